"""Take, gather, scatter, dynamic slices: with indices of both dtypes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from weft.foundation.dtypes import INDICES, NUMBERS, ORDERED, DType, in_order
from weft.testing.conformance.case import Case, Trial, Wanted, exactly
from weft.testing.conformance.cases.common import Array, Dims, Shape, apply, case, defined, trial
from weft.testing.conformance.data import positions, sample, source, special
from weft.testing.conformance.oracles import indexing as oracle
from weft.testing.conformance.oracles import reduction
from weft.testing.conformance.oracles.movement import window
from weft.testing.conformance.tolerance import PerTensor


def cases() -> Iterator[Case]:
    """Every indexing op on every dtype, with si32 and si64 indices."""
    for index in in_order(INDICES):
        for make in (_take_cases, _gathers, _scatter_reduces, _scatter_adds, _slices, _updates):
            yield from make(index)


def _sample_with_special(dtype: DType, shape: Shape, key: str) -> Array:
    """Ordinary values with some special ones among them."""
    x = sample(dtype, shape, key)
    unusual = source(dtype, shape, key).choice(special(dtype), shape)
    return np.where(source(key, shape).random(shape) < 0.3, unusual, x).astype(dtype.numpy)


# -- reading -------------------------------------------------------------------------------------


def _take_cases(index: DType) -> Iterator[Case]:
    layouts: dict[str, tuple[Shape, Shape, Any]] = {
        "rows": ((6, 3), (4,), None),
        "scalar": ((6, 3), (), None),
        "matrix": ((5, 2, 3), (2, 4), None),
        "line": ((7,), (3, 2), None),
        "no-indices": ((6, 3), (0, 2), None),
        "no-columns": ((6, 0), (4,), None),
        "large": ((40, 31), (67,), None),
        "dynamic": ((6, 3), (4,), [["?V", 3], ["?N"]]),
    }
    for dtype in defined("take"):
        for name, (shape, count, dims) in layouts.items():
            make = partial(_take, dtype, index, shape, count, dims)
            yield case("take", dtype, index, name, trial=make)


def _take(dtype: DType, index: DType, shape: Shape, count: Shape, dims: Any) -> Trial:
    x = _sample_with_special(dtype, shape, "take")
    at = positions(shape[0], count, index, "take")
    build = apply("take", [x, at], dims=dims)
    return trial(build, [x, at], exactly(oracle.taken(x, at)))


ALONG: dict[str, tuple[Shape, int, int, Any]] = {
    "line": ((7,), 0, 5, None),
    "first": ((4, 3), 0, 6, None),
    "last": ((3, 5), 1, 2, None),
    "negative": ((2, 5, 3), -2, 4, None),
    "nothing": ((3, 5), 1, 0, None),
    "empty": ((0, 5), 1, 3, None),
    "large": ((13, 17), 1, 29, None),
    "dynamic": ((4, 3), 0, 6, ["?A", "?B", "?C"]),
}
"""The shape of the operand, the axis, how many indices lie along it, and symbols: the operand's
axes, then the indices' one."""


def _case_along(name: str, index: DType, key: str) -> tuple[Shape, Shape, int, Array, Any]:
    shape, axis, count, symbols = ALONG[name]
    place = axis % len(shape)
    other = (*shape[:place], count, *shape[place + 1 :])
    at = positions(shape[place], other, index, key, name)
    dims = None
    if symbols:
        first, second, third = symbols
        dims = [[first, second], [third, second]]
    return shape, other, axis, at, dims


def _gathers(index: DType) -> Iterator[Case]:
    for dtype in defined("gather"):
        for name in ALONG:
            yield case("gather", dtype, index, name, trial=partial(_gather, dtype, index, name))


def _gather(dtype: DType, index: DType, name: str) -> Trial:
    shape, _, axis, at, dims = _case_along(name, index, "gather")
    x = _sample_with_special(dtype, shape, "gather")
    want = oracle.gathered(x, at, axis % len(shape))
    return trial(apply("gather", [x, at], dims=dims, axis=axis), [x, at], exactly(want))


# -- writing -------------------------------------------------------------------------------------

REDUCTIONS = {"add": NUMBERS, "max": ORDERED, "min": ORDERED, "replace": None}


def _scatter_reduces(index: DType) -> Iterator[Case]:
    for dtype in defined("scatter_reduce"):
        for kind, dtypes in REDUCTIONS.items():
            if dtypes is not None and dtype not in dtypes:
                continue
            names = [name for name in ALONG if name != "large" or kind in ("add", "replace")]
            for name in names:
                make = partial(_scatter_reduce, dtype, index, kind, name)
                yield case("scatter_reduce", dtype, kind, index, name, trial=make)


def _scatter_reduce(dtype: DType, index: DType, kind: str, name: str) -> Trial:
    shape, other, axis, at, dims = _case_along(name, index, "scatter")
    x, updates = (_summand(kind, dtype, s, i) for i, s in enumerate((shape, other)))
    places = oracle.scattered_places(at, axis % len(shape))
    want = _combine_met(kind, x, oracle.collected(x, updates, places), dtype)
    dims = [dims[0], dims[1], dims[1]] if dims else None
    build = apply("scatter_reduce", [x, at, updates], dims=dims, axis=axis, reduce=kind)
    return trial(build, [x, at, updates], want)


def _summand(kind: str, dtype: DType, shape: Shape, part: int) -> Array:
    key = f"scatter {kind} {part}"
    return sample(dtype, shape, key) if kind == "add" else _sample_with_special(dtype, shape, key)


def _combine_met(kind: str, x: Array, found: dict[oracle.Index, list[Any]], dtype: DType) -> Wanted:
    """What is left at each place when everything that meets there is combined."""
    if kind == "replace":
        return exactly(
            np.array([values[-1] for values in found.values()], x.dtype).reshape(x.shape)
        )
    lines, last = _as_lines(kind, x, list(found.values())), (x.ndim,)
    if kind != "add":
        return exactly(reduction.extreme(kind, lines, last, dtype), zeros=False)
    work = reduction.sum_accumulator(dtype)
    if work.is_integer:
        return exactly(reduction.integer_total(lines, last, work))
    exact = reduction.total(lines, last, work)
    return Wanted(exact, dtype, PerTensor(work, reduction.plain_error(lines, last, work)))


def _as_lines(kind: str, x: Array, groups: list[list[Any]]) -> Array:
    """What meets at each place along a last axis; short lines are filled up with something that
    changes nothing: zeros for sums, the first element again for extremes."""
    longest = max(map(len, groups), default=1)
    lines = np.zeros((len(groups), longest), x.dtype)
    for row, values in zip(lines, groups, strict=True):
        row[: len(values)] = values
        if kind != "add":
            row[len(values) :] = values[0]
    return lines.reshape(*x.shape, longest)


@dataclass(frozen=True)
class Windows:
    """The shapes and the dimension numbers of a scatter_add."""

    x: Shape
    indices: Shape
    updates: Shape
    window: Sequence[int]
    inserted: Sequence[int]
    scattered: Sequence[int]
    vector: int | None
    dims: Sequence[Dims] | None = None


WINDOWS = {
    "rows": Windows((6, 4), (3, 1), (3, 4), [1], [0], [0], 1),
    "implicit": Windows((6, 4), (3,), (3, 4), [1], [0], [0], None),
    "elements": Windows((4, 5), (7, 2), (7,), [], [0, 1], [0, 1], 1),
    "vectors-first": Windows((4, 5), (2, 7), (7,), [], [0, 1], [1, 0], 0),
    "one": Windows((5,), (1,), (), [], [0], [0], 0),
    "narrow": Windows((6, 4), (2, 1), (2, 3), [1], [0], [0], 1),
    "window-axis": Windows((8, 3), (4, 1), (4, 2, 3), [1, 2], [], [0], 1),
    "window-first": Windows((6, 4), (3, 1), (4, 3), [0], [0], [0], 1),
    "matrix-of-indices": Windows((6, 4), (2, 3, 1), (2, 3, 4), [2], [0], [0], 2),
    "no-indices": Windows((6, 4), (0, 1), (0, 4), [1], [0], [0], 1),
    "many": Windows((9, 7), (40, 1), (40, 7), [1], [0], [0], 1),
    "dynamic": Windows((6, 4), (3, 1), (3, 4), [1], [0], [0], 1, [["?N", 4], ["?K", 1], ["?K", 4]]),
}


def _scatter_adds(index: DType) -> Iterator[Case]:
    for dtype in defined("scatter_add"):
        for name in WINDOWS:
            make = partial(_scatter_add, dtype, index, name)
            yield case("scatter_add", dtype, index, name, trial=make)


def _scatter_add(dtype: DType, index: DType, name: str) -> Trial:
    w = WINDOWS[name]
    x, updates = sample(dtype, w.x, name, 0), sample(dtype, w.updates, name, 1)
    at = _window_starts(w, index, name)
    places = oracle.window_places(
        x, at, updates, window=w.window, inserted=w.inserted, scattered=w.scattered, vector=w.vector
    )
    want = _combine_met("add", x, oracle.collected(x, updates, places), dtype)
    build = apply(
        "scatter_add", [x, at, updates], dims=w.dims, update_window_dims=w.window,
        inserted_window_dims=w.inserted, scatter_dims_to_operand_dims=w.scattered,
        index_vector_dim=w.vector,
    )  # fmt: skip
    return trial(build, [x, at, updates], want)


def _window_starts(w: Windows, index: DType, name: str) -> Array:
    """Indices at which every window lies inside the operand."""
    room = 2 if name == "window-axis" else 1
    limits = [w.x[d] - room + 1 for d in w.scattered]
    if w.vector is None:
        return positions(limits[0], w.indices, index, name)
    columns = [positions(limit, _drop_axis(w.indices, w.vector), index, name, limit, d)
               for d, limit in enumerate(limits)]  # fmt: skip
    return np.stack(columns, axis=w.vector)


def _drop_axis(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], *shape[axis + 1 :])


# -- dynamic slices ------------------------------------------------------------------------------

STARTS: dict[str, tuple[Shape, Shape, list[int], Any]] = {
    "inside": ((5, 7), (2, 3), [1, 2], None),
    "clamped": ((5, 7), (2, 3), [-4, 6], None),
    "far": ((5, 7), (2, 3), [2**31 - 1, -(2**31)], None),
    "whole": ((5, 7), (5, 7), [3, -1], None),
    "nothing": ((5, 7), (0, 3), [5, 1], None),
    "rank0": ((), (), [], None),
    "empty": ((2, 0, 3), (1, 0, 2), [1, 0, 1], None),
    "large": ((61, 67), (40, 59), [9, 3], None),
    "dynamic": ((5, 7), (2, 3), [1, 9], ["?A", "?B"]),
}


def _slices(index: DType) -> Iterator[Case]:
    for dtype in defined("dynamic_slice"):
        for name in STARTS:
            make = partial(_dynamic_slice, dtype, index, name)
            yield case("dynamic_slice", dtype, index, name, trial=make)


def _dynamic_slice(dtype: DType, index: DType, name: str) -> Trial:
    shape, sizes, start, symbols = STARTS[name]
    x, at = _sample_with_special(dtype, shape, name), np.array(start, index.numpy)
    want = window(x, oracle.clamped(at, shape, sizes), sizes)
    dims = [symbols, at.shape] if symbols else None
    build = apply("dynamic_slice", [x, at], dims=dims, sizes=sizes)
    return trial(build, [x, at], exactly(want))


def _updates(index: DType) -> Iterator[Case]:
    for dtype in defined("dynamic_update_slice"):
        for name in STARTS:
            make = partial(_dynamic_update, dtype, index, name)
            yield case("dynamic_update_slice", dtype, index, name, trial=make)


def _dynamic_update(dtype: DType, index: DType, name: str) -> Trial:
    shape, sizes, start, symbols = STARTS[name]
    x, update = (
        _sample_with_special(dtype, shape, name),
        _sample_with_special(dtype, sizes, f"{name} update"),
    )
    at = np.array(start, index.numpy)
    want = x.copy()
    begin = oracle.clamped(at, shape, sizes)
    want[tuple(i + b for i, b in zip(np.indices(sizes), begin, strict=True))] = update
    dims = [symbols, sizes, at.shape] if symbols else None
    build = apply("dynamic_update_slice", [x, update, at], dims=dims, sizes=sizes)
    return trial(build, [x, update, at], exactly(want))
