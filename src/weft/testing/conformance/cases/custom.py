"""Values with a gradient of their own, which are what they are, and functions of the caller's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from weft.foundation.dtypes import DType
from weft.ptir.ops.callback import Callback
from weft.ptir.types import TensorType
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
            yield case(
                "custom_gradient", dtype, name, trial=partial(_custom_trial, dtype, shape, 1)
            )
        yield case("custom_gradient", dtype, "two", trial=partial(_custom_trial, dtype, (3, 5), 2))
        dynamic = partial(_custom_trial, dtype, (3, 5), 1, dims=[["?M", "?N"], [4]])
        yield case("custom_gradient", dtype, "dynamic", trial=dynamic)
    for dtype in defined("callback"):
        for name, shape in SHAPES.items():
            yield case("callback", dtype, name, trial=partial(_make_call, dtype, shape))
        yield case("callback", dtype, "effect", trial=partial(_make_counted, dtype))


def _custom_trial(
    dtype: DType, shape: Shape, count: int, dims: Sequence[Dims] | None = None
) -> Trial:
    inputs = [sample(dtype, shape, f"x{at}") for at in range(count)] + [sample(dtype, (4,), "kept")]
    attrs = {"results": count, "kept": 1, "inputs": 0, "backward": _NONE}
    build = program(
        inputs, lambda b, *values: b.emit("custom_gradient", *values, **attrs), dims=dims
    )
    return trial(build, inputs, *(exactly(x) for x in inputs[:count]))


def _make_call(dtype: DType, shape: Shape) -> Trial:
    """A function without effects: its only result is its operand."""
    x = sample(dtype, shape, "x")
    op = Callback.of(lambda arrays: arrays, "same", False, [TensorType(dtype, shape)])
    return trial(program([x], lambda b, value: b.append(op, [value])), [x], exactly(x))


def _make_counted(dtype: DType) -> Trial:
    """An effect with a result: the token counts it."""
    token, x = np.array(7), sample(dtype, (3, 5), "x")
    op = Callback.of(lambda arrays: arrays, "same", True, [TensorType(dtype, (3, 5))])
    build = program([token, x], lambda b, *values: b.append(op, values))
    return trial(build, [token, x], exactly(np.array(8)), exactly(x))
