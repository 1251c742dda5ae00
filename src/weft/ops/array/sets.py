"""Distinct elements, in ascending order. Every NaN is distinct, and -0 equals +0.

How many there are is in the data, so these functions read their argument; the values themselves are
gathered from it and stay part of the program.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.ops.arithmetic import as_tensor
from weft.ops.array.operands import given, taken
from weft.ops.array.reading import read_elements
from weft.ops.calls import public
from weft.ops.tensor import Tensor, from_array, tensor_method

__all__ = ["unique_all", "unique_counts", "unique_inverse", "unique_values"]


_TABLE = 4
"""Places of a table for each integer, at most."""


class UniqueAll(NamedTuple):
    """Distinct values, where each occurs first, which of them each element is, how often."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """Distinct values, and how often each occurs."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """Distinct values, and which of them each element is."""

    values: Tensor
    inverse_indices: Tensor


@tensor_method
@public
def unique_all(x: Tensor, /) -> UniqueAll:
    """Distinct values with first positions, inverse and counts. This reads `x`."""
    value = as_tensor(x)
    groups = _distinct_groups(value, inverse=True, counts=True)
    values = _take_positions(value, groups.first)
    return UniqueAll(values, *map(from_array, groups))


@tensor_method
@public
def unique_counts(x: Tensor, /) -> UniqueCounts:
    """Distinct values and how often each occurs. This reads `x`."""
    value = as_tensor(x)
    groups = _distinct_groups(value, counts=True)
    return UniqueCounts(_take_positions(value, groups.first), from_array(groups.counts))


@tensor_method
@public
def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """Distinct values and which of them each element is. This reads `x`."""
    value = as_tensor(x)
    groups = _distinct_groups(value, inverse=True)
    return UniqueInverse(_take_positions(value, groups.first), from_array(groups.inverse))


@tensor_method
@public
def unique_values(x: Tensor, /) -> Tensor:
    """Distinct values. This reads `x`."""
    value = as_tensor(x)
    return _take_positions(value, _distinct_groups(value).first)


class _Groups(NamedTuple):
    """Of the distinct values: first positions, the inverse in the shape of x, and counts; nothing
    where they are not asked for."""

    first: NDArray[Any]
    inverse: NDArray[Any]
    counts: NDArray[Any]


_NONE = np.empty(0, np.int64)


def _distinct_groups(x: Tensor, *, inverse: bool = False, counts: bool = False) -> _Groups:
    elements = read_elements(x, "the number of distinct elements")
    near = _near_integers(elements)
    if near is not None:
        found = _group_by_counting(near, inverse=inverse)
    else:
        unique: Any = np.unique  # Its types know no flags that are only known at run time.
        _, first, *rest = unique(
            elements,
            return_index=True,
            return_inverse=inverse,
            return_counts=counts,
            equal_nan=False,
        )
        found = _Groups(first, rest.pop(0) if inverse else _NONE, rest[0] if counts else _NONE)
    turned = np.array(found.inverse.reshape(elements.shape)) if inverse else _NONE
    return found._replace(inverse=turned)


def _near_integers(elements: NDArray[Any]) -> NDArray[Any] | None:
    """Integers as differences from the least one, in one row, where there is a table for all that
    lie between them; else None."""
    if elements.dtype.kind not in "iu" or not elements.size:
        return None
    least, most = int(elements.min()), int(elements.max())
    if most - least >= _TABLE * elements.size:
        return None
    # Differences may wrap; as unsigned numbers they are in range.
    differences: NDArray[Any] = elements.reshape(-1) - elements.dtype.type(least)
    unsigned: NDArray[Any] = differences.view(f"u{elements.itemsize}")
    return unsigned.astype(np.int64)


def _group_by_counting(elements: NDArray[Any], *, inverse: bool) -> _Groups:
    """What sorting finds, without sorting."""
    counts = np.bincount(elements)
    first = np.empty(len(counts), np.int64)
    # Of several elements that write to one place, the last one stays.
    first[elements[::-1]] = np.arange(len(elements) - 1, -1, -1)
    there = counts > 0
    numbers = (np.cumsum(there) - 1)[elements] if inverse else _NONE
    return _Groups(first[there], numbers, counts[there])


def _take_positions(x: Tensor, positions: NDArray[Any]) -> Tensor:
    value = taken(x)
    places = value.session.import_(from_array(positions))
    return given(value.reshape((-1,)).take(places), x)
