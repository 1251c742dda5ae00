"""Running reductions along an axis, and reductions over segments."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from weft.foundation.dtypes import I1, INDICES, SI8, SI64, DType, in_order
from weft.testing.conformance.case import Case, Trial, Wanted, exactly
from weft.testing.conformance.cases.common import (
    DYNAMIC,
    LARGE,
    ODD,
    Array,
    Dims,
    Shape,
    apply,
    case,
    defined,
    symbolic,
    trial,
)
from weft.testing.conformance.data import near_one, positions, sample, source, special
from weft.testing.conformance.oracles import reduction as oracle
from weft.testing.conformance.oracles.casts import convert
from weft.testing.conformance.tolerance import PerTensor

KINDS = {
    "cumulative_sum": "sum",
    "cumulative_prod": "prod",
    "cumulative_max": "max",
    "cumulative_min": "min",
}
LAYOUTS: dict[str, tuple[Shape, int, bool]] = {
    "empty": ((2, 0, 3), 1, False),
    "line": ((9,), 0, False),
    "last": (ODD, 2, False),
    "first-reverse": (ODD, 0, True),
    "negative": (ODD, -2, False),
    "negative-reverse": (ODD, -1, True),
    "large": (LARGE, 1, False),
}


def cases() -> Iterator[Case]:
    """cumulative_sum, _prod, _max, _min; segment_sum, segment_max."""
    for row, kind in KINDS.items():
        for dtype in defined(row):
            for name, (shape, axis, reverse) in LAYOUTS.items():
                make = partial(_make_running, row, dtype, shape, axis, reverse)
                yield case(row, dtype, name, trial=make)
            make = partial(_make_running, row, dtype, ODD, 1, False, dynamic=True)
            yield case(row, dtype, "dynamic", trial=make)
            if dtype.is_float and kind in ("max", "min"):
                yield case(row, dtype, "special", trial=partial(_special_trial, row, dtype))
    yield from _segments()


def _make_running(
    row: str, dtype: DType, shape: Shape, axis: int, reverse: bool, dynamic: bool = False
) -> Trial:
    around_one = KINDS[row] == "prod" and not dtype.is_integer
    x = (near_one if around_one else sample)(dtype, shape, row)
    dims = [symbolic(shape, DYNAMIC)] if dynamic else None
    wanted = _compute_wanted(row, x, axis % len(shape), reverse, dtype)
    return trial(apply(row, [x], dims=dims, axis=axis, reverse=reverse), [x], wanted)


def _special_trial(row: str, dtype: DType) -> Trial:
    x = np.array(source(row, dtype).choice(special(dtype), (20, 9)), dtype.numpy)
    wanted = _compute_wanted(row, x, 1, False, dtype)
    return trial(apply(row, [x], axis=1, reverse=False), [x], wanted)


def _compute_wanted(row: str, x: Array, axis: int, reverse: bool, dtype: DType) -> Wanted:
    turned = np.flip(x, axis) if reverse else x
    kind = KINDS[row]
    product = kind == "prod"
    work = oracle.sum_accumulator(dtype)

    def back(rows: Array) -> Array:
        moved = np.moveaxis(rows, -1, axis)
        return np.flip(moved, axis) if reverse else moved

    if kind in ("max", "min"):
        return exactly(back(oracle.running_extreme(kind, turned, axis, dtype)), zeros=False)
    if dtype.is_integer:
        return exactly(back(oracle.integer_running(turned, axis, dtype, product=product)))
    exact = back(oracle.running(turned, (axis,), work, product=product))
    error = oracle.running_error(turned, (axis,), work, product=product)
    return Wanted(exact, dtype, PerTensor(work, error))


# -- segments ------------------------------------------------------------------------------------

SEGMENTS: dict[str, tuple[Shape, int]] = {
    "line": ((9,), 4),
    "rows": ((11, 3), 5),
    "many": ((300, 7), 13),
    "no-rows": ((0, 3), 4),
    "no-columns": ((5, 0), 3),
    "one": ((7, 2), 1),
}


def _segments() -> Iterator[Case]:
    for row in ("segment_sum", "segment_max"):
        for dtype in defined(row):
            for index in in_order(INDICES):
                for name, (shape, count) in SEGMENTS.items():
                    make = partial(_segment, row, dtype, index, shape, count, None)
                    yield case(row, dtype, index, name, trial=make)
            make = partial(_segment, row, dtype, SI64, (5, 3), 4, None, dynamic=True)
            yield case(row, dtype, "dynamic", trial=make)
            make = partial(_segment, row, dtype, SI64, (8, 2), 3, None, ordered=True)
            yield case(row, dtype, "sorted", trial=make)
            for accum in _wider(dtype):
                make = partial(_segment, row, dtype, SI64, (9, 2), 3, accum)
                yield case(row, dtype, f"accum={accum}", trial=make)
    make = partial(_segment, "segment_sum", I1, SI64, (9,), 4, SI8)
    counted = case("segment_sum", I1, "accum=si8", trial=make)
    yield Case(counted.id, counted.family, counted.row, SI8, counted.trial)


def _wider(dtype: DType) -> list[DType]:
    family = [d for d in defined("segment_sum") if d.kind is dtype.kind and d.bits > dtype.bits]
    return [] if dtype is I1 else [dtype, *family]


def _segment(
    row: str,
    dtype: DType,
    index: DType,
    shape: Shape,
    count: int,
    accum: DType | None,
    *,
    dynamic: bool = False,
    ordered: bool = False,
) -> Trial:
    data = sample(dtype, shape, row, accum)
    # The last segment stays empty where there is more than one.
    ids = positions(max(count - 1, 1), shape[:1], index, row, dtype)
    ids = np.sort(ids) if ordered else ids
    dims: list[Dims] | None = [["?B", *shape[1:]], ["?B"]] if dynamic else None
    build = apply(
        row, [data, ids], dims=dims, num_segments=count, accum_dtype=accum,
        indices_are_sorted=ordered, unique=False,
    )  # fmt: skip
    wanted = _segment_wanted(row, data, ids.tolist(), count, accum, dtype)
    return trial(build, [data, ids], wanted)


def _segment_wanted(
    row: str, data: Array, ids: list[int], count: int, accum: DType | None, dtype: DType
) -> Wanted:
    groups = [data[[i for i, s in enumerate(ids) if s == segment]] for segment in range(count)]
    if row == "segment_max":
        found = [oracle.extreme("max", group, (0,), dtype) for group in groups]
        return exactly(np.stack(found), zeros=False)
    work = accum or oracle.sum_accumulator(dtype)
    if work.is_integer:
        totals = [oracle.integer_total(group, (0,), work) for group in groups]
        return exactly(convert(np.stack(totals), work, dtype))
    exact = np.stack([oracle.total(group, (0,), work) for group in groups])
    error = max((oracle.plain_error(group, (0,), work) for group in groups), default=0.0)
    return Wanted(exact, dtype, PerTensor(work, error))
