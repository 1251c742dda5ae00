"""Coarse ops whose operands or results are positions: one_hot, repeat, non_zero."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from weft.foundation.dtypes import F16, F32, I1, SI8, SI32, SI64, UI8, DType
from weft.testing.conformance.case import Case, Trial, exactly
from weft.testing.conformance.cases.common import Array, Dims, Shape, apply, case, defined, trial
from weft.testing.conformance.data import counts, sample, source
from weft.testing.conformance.oracles.rounding import from_whole


def cases() -> Iterator[Case]:
    """Every dtype, in and out of range, and nothing at all."""
    yield from _one_hots()
    yield from _repeats()
    yield from _non_zeros()


# -- one_hot -------------------------------------------------------------------------------------

_VALUES: dict[DType, tuple[Any, Any]] = {
    F32: (1.0, 0.0),
    F16: (-2.5, 0.5),
    I1: (False, True),
    SI8: (-128, 127),
    UI8: (255, 3),
    SI64: (1, 0),
}
_LAYOUTS: dict[str, tuple[Shape, int]] = {
    "last": ((3, 5), 2),
    "first": ((3, 5), 0),
    "middle": ((3, 5), 1),
    "rank0": ((), 0),
    "empty": ((2, 0), 1),
    "dynamic": ((3, 5), 1),
}


def _one_hots() -> Iterator[Case]:
    row = "byteir.one_hot"
    for dtype in defined(row):
        for name in _LAYOUTS:
            yield case(row, dtype, name, trial=partial(_one_hot, dtype, name, F32, 4))
        for output in _VALUES:
            make = partial(_one_hot, dtype, "last", output, 4)
            yield case(row, dtype, f"to={output}", trial=make)
        yield case(row, dtype, "no-depth", trial=partial(_one_hot, dtype, "last", F32, 0))


def _one_hot(dtype: DType, name: str, output: DType, depth: int) -> Trial:
    shape, axis = _LAYOUTS[name]
    low = -6 if dtype.is_signed else 0
    drawn = np.asarray(source("one_hot", dtype, name).integers(low, 7, shape))
    x = from_whole(drawn.astype(object), dtype)
    on, off = _VALUES[output]
    result = np.full((*shape[:axis], depth, *shape[axis:]), off, output.numpy)
    for place in np.ndindex(*shape):
        index = int(drawn[place])
        index += depth if -depth <= index < 0 else 0
        if 0 <= index < depth:
            result[(*place[:axis], index, *place[axis:])] = on
    dims: list[Dims] | None = [["?A", "?B"]] if name == "dynamic" else None
    build = apply(
        "byteir.one_hot", [x], dims=dims, depth=depth, axis=axis, on_value=on, off_value=off,
        dtype=output,
    )  # fmt: skip
    return trial(build, [x], exactly(result))


# -- repeat --------------------------------------------------------------------------------------


def _repeats() -> Iterator[Case]:
    row = "byteir.repeat"
    for dtype in defined(row):
        for name, (shape, repeats) in {
            "rows": ((4, 3), (2, 0, 1, 3)),
            "line": ((3,), (1, 1, 4)),
            "none": ((3, 2), (0, 0, 0)),
            "empty": ((0, 2), ()),
            "dynamic": ((3, 2), (2, 0, 3)),
        }.items():
            for indices in (SI32, SI64):
                make = partial(_repeat, dtype, shape, repeats, indices, name == "dynamic")
                yield case(row, dtype, name, f"repeats={indices}", trial=make)


def _repeat(
    dtype: DType, shape: Shape, repeats: tuple[int, ...], indices: DType, dynamic: bool
) -> Trial:
    x, counted = sample(dtype, shape, "repeat"), np.array(repeats, indices.numpy)
    rows = [x[row] for row, count in enumerate(repeats) for _ in range(count)]
    want = np.array(rows, dtype.numpy).reshape(sum(repeats), *shape[1:])
    dims: list[Dims] | None = [["?A", "?B"], ["?A"]] if dynamic else None
    build = apply("byteir.repeat", [x, counted], dims=dims, length=sum(repeats))
    return trial(build, [x, counted], exactly(want))


# -- non_zero ------------------------------------------------------------------------------------


def _non_zeros() -> Iterator[Case]:
    row = "byteir.non_zero"
    for dtype in defined(row):
        for name, shape in {
            "matrix": (3, 5),
            "line": (9,),
            "cube": (2, 3, 4),
            "rank0": (),
            "empty": (2, 0),
        }.items():
            make = partial(_non_zero, dtype, shape, SI64, None)
            yield case(row, dtype, name, trial=make)
        yield case(row, dtype, "si32", trial=partial(_non_zero, dtype, (3, 5), SI32, None))
        make = partial(_non_zero, dtype, (3, 5), SI64, [["?A", "?B"]])
        yield case(row, dtype, "dynamic", trial=make)


def _non_zero(dtype: DType, shape: Shape, indices: DType, dims: list[Dims] | None) -> Trial:
    x: Array = counts(dtype, shape, "non_zero", most=1)
    found = [place for place in np.ndindex(*shape) if x[place] != np.zeros((), dtype.numpy)]
    bound = len(found) + 2
    want = np.full((bound, len(shape)), -1, indices.numpy)
    for row, place in enumerate(found):
        want[row] = place
    build = apply("byteir.non_zero", [x], dims=dims, bound=bound, indices=indices)
    return trial(build, [x], exactly(want))
