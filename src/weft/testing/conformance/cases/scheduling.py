"""Order: a value that waits for another is the same value."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from weft.foundation.dtypes import DType
from weft.testing.conformance.case import Case, Trial, exactly
from weft.testing.conformance.cases.common import SHAPES, Shape, case, defined, program, trial
from weft.testing.conformance.data import sample


def cases() -> Iterator[Case]:
    """Every dtype, waiting for a tensor of another shape."""
    for dtype in defined("barrier"):
        for name, shape in SHAPES.items():
            yield case("barrier", dtype, name, trial=partial(_make_waiting, dtype, shape))
        yield case("barrier", dtype, "dynamic", trial=partial(_make_waiting, dtype, (3, 5), True))


def _make_waiting(dtype: DType, shape: Shape, dynamic: bool = False) -> Trial:
    inputs = [sample(dtype, shape, "x"), sample(dtype, (4,), "after")]
    dims = [["?A", "?B"], ["?C"]] if dynamic else None
    build = program(inputs, lambda b, x, after: b.emit("barrier", x, after), dims=dims)
    return trial(build, inputs, exactly(inputs[0]))
