"""Values with a gradient of their own: they are what they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from weft.foundation.dtypes import DType
from weft.testing.conformance.case import Case, Trial, exactly
from weft.testing.conformance.cases.common import (
    SHAPES,
    Dims,
    Shape,
    case,
    defined,
    program,
    trial,
)
from weft.testing.conformance.data import sample

_NONE = "ptir.v0.4\nentry @none\n\nfunc @none() -> () {\n  return\n}\n"


def cases() -> Iterator[Case]:
    """Every dtype, one result or two, with more operands behind them."""
    for dtype in defined("custom_gradient"):
        for name, shape in SHAPES.items():
            yield case("custom_gradient", dtype, name, trial=partial(_through, dtype, shape, 1))
        yield case("custom_gradient", dtype, "two", trial=partial(_through, dtype, (3, 5), 2))
        dynamic = partial(_through, dtype, (3, 5), 1, dims=[["?M", "?N"], [4]])
        yield case("custom_gradient", dtype, "dynamic", trial=dynamic)


def _through(dtype: DType, shape: Shape, count: int, dims: Sequence[Dims] | None = None) -> Trial:
    inputs = [sample(dtype, shape, f"x{at}") for at in range(count)] + [sample(dtype, (4,), "kept")]
    attrs = {"results": count, "kept": 1, "inputs": 0, "backward": _NONE}
    build = program(
        inputs, lambda b, *values: b.emit("custom_gradient", *values, **attrs), dims=dims
    )
    return trial(build, inputs, *(exactly(x) for x in inputs[:count]))
