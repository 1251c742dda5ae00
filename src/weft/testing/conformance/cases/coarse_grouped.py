"""weft.grouped_matmul and weft.grouped_outer: groups of any size, offsets in and out of order."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from weft.foundation.dtypes import SI32, SI64, DType
from weft.testing.conformance.case import Case, Trial
from weft.testing.conformance.cases.common import (
    Array,
    Dims,
    apply,
    case,
    defined,
    near,
    trial,
    work_dtype,
)
from weft.testing.conformance.data import sample
from weft.testing.conformance.oracles.rounding import wide

_OFFSETS: dict[str, list[int]] = {
    "plain": [4, 9, 11],
    "transposed": [4, 9, 11],
    "empty-groups": [0, 6, 6, 11, 11],
    "rest": [3, 7],
    "all-rest": [0, 0],
    "out-of-order": [5, 3, -2, 8],
    "too-far": [5, 40],
    "long-groups": [150, 151, 500],
    "no-groups": [],
    "no-rows": [0, 0],
    "no-depth": [4, 11],
    "dynamic": [4, 9, 11],
}
_ROWS = {"long-groups": 520, "no-rows": 0}


def cases() -> Iterator[Case]:
    """Every form on every dtype."""
    row = "weft.grouped_matmul"
    for dtype in defined(row):
        for name in _OFFSETS:
            yield case(row, dtype, name, trial=partial(_grouped_trial, dtype, name))
    row = "weft.grouped_outer"
    for dtype in defined(row):
        for name in _OFFSETS:
            yield case(row, dtype, name, trial=partial(_outer, dtype, name))


def _grouped_trial(dtype: DType, name: str) -> Trial:
    given = _OFFSETS[name]
    rows, depth, columns = _ROWS.get(name, 11), 0 if name == "no-depth" else 6, 5
    x = sample(dtype, (rows, depth), "x", scale=1.0)
    weight = sample(dtype, (len(given), depth, columns), "weight", scale=1.0)
    kind = SI32 if name in ("plain", "out-of-order") else SI64
    offsets = np.array(given, kind.numpy)
    work = work_dtype(dtype)
    exact = _multiply_groups(wide(x), wide(weight), given)
    plain = _multiply_groups(x.astype(work.numpy), weight.astype(work.numpy), given)
    is_turned = name == "transposed"
    inputs = [x, np.swapaxes(weight, 1, 2).copy() if is_turned else weight, offsets]
    dims: list[Dims] | None = [["?M", "?K"], ["?G", "?K", 5], ["?G"]] if name == "dynamic" else None
    build = apply("weft.grouped_matmul", inputs, dims=dims, transposed=is_turned)
    return trial(build, inputs, near(exact, plain, dtype, work))


def _multiply_groups(x: Array, weight: Array, offsets: list[int]) -> Array:
    """One group after the other."""
    result = np.zeros((x.shape[0], weight.shape[2]), x.dtype)
    start = 0
    for matrix, offset in zip(weight, offsets, strict=True):
        end = max(start, min(offset, x.shape[0]))
        result[start:end] = x[start:end] @ matrix
        start = end
    return result


def _outer(dtype: DType, name: str) -> Trial:
    given, rows = _OFFSETS[name], _ROWS.get(name, 11)
    lhs = sample(dtype, (rows, 0 if name == "no-depth" else 6), "lhs", scale=1.0)
    rhs = sample(dtype, (rows, 5), "rhs", scale=1.0)
    inputs = [lhs, rhs, np.array(given, (SI32 if name == "plain" else SI64).numpy)]
    work = work_dtype(dtype)
    exact = _outer_product(wide(lhs), wide(rhs), given)
    plain = _outer_product(lhs.astype(work.numpy), rhs.astype(work.numpy), given)
    dims: list[Dims] | None = [["?M", "?K"], ["?M", 5], ["?G"]] if name == "dynamic" else None
    build = apply("weft.grouped_outer", inputs, dims=dims)
    return trial(build, inputs, near(exact, plain, dtype, work))


def _outer_product(lhs: Array, rhs: Array, offsets: list[int]) -> Array:
    """One group after the other."""
    result = np.zeros((len(offsets), lhs.shape[1], rhs.shape[1]), lhs.dtype)
    start = 0
    for number, offset in enumerate(offsets):
        end = max(start, min(offset, lhs.shape[0]))
        result[number] = lhs[start:end].T @ rhs[start:end]
        start = end
    return result
