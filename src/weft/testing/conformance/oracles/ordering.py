"""Sorting and searching with Python's own stable sort: NaN is larger than everything else."""

from __future__ import annotations

import bisect
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import DType
from weft.testing.conformance.oracles.rounding import whole, wide

Array = NDArray[Any]


def keys(x: Array, dtype: DType) -> list[tuple[bool, Any]]:
    """Each element of a flat array as a pair that Python orders as PTIR does."""
    values = (wide(x) if dtype.is_float else whole(x)).tolist()
    missing = [value != value for value in values]  # noqa: PLR0124
    return [(gone, 0 if gone else value) for gone, value in zip(missing, values, strict=True)]


def order(x: Array, axis: int, descending: bool, dtype: DType) -> Array:
    """The positions along an axis in sorted order; equal elements keep their order."""
    rows = np.moveaxis(x, axis, -1)
    result = np.empty(rows.shape, np.int64)
    for index in np.ndindex(rows.shape[:-1]):
        line = keys(rows[index], dtype)
        result[index] = sorted(range(len(line)), key=line.__getitem__, reverse=descending)
    return np.moveaxis(result, -1, axis)


def insertion(ascending: Array, values: Array, side: str, dtype: DType) -> Array:
    """How many elements come before each value."""
    search = bisect.bisect_left if side == "left" else bisect.bisect_right
    line = keys(ascending, dtype)
    found = [search(line, key) for key in keys(values.reshape(-1), dtype)]
    return np.array(found, object).reshape(values.shape)
