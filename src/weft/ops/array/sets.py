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
    first, inverse, counts = _distinct_groups(value)
    values = _take_positions(value, first)
    return UniqueAll(values, from_array(first), from_array(inverse), from_array(counts))


@tensor_method
@public
def unique_counts(x: Tensor, /) -> UniqueCounts:
    """Distinct values and how often each occurs. This reads `x`."""
    value = as_tensor(x)
    first, _, counts = _distinct_groups(value)
    return UniqueCounts(_take_positions(value, first), from_array(counts))


@tensor_method
@public
def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """Distinct values and which of them each element is. This reads `x`."""
    value = as_tensor(x)
    first, inverse, _ = _distinct_groups(value)
    return UniqueInverse(_take_positions(value, first), from_array(inverse))


@tensor_method
@public
def unique_values(x: Tensor, /) -> Tensor:
    """Distinct values. This reads `x`."""
    value = as_tensor(x)
    return _take_positions(value, _distinct_groups(value)[0])


def _distinct_groups(x: Tensor) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Of the distinct values: first positions, the inverse in the shape of x, and counts."""
    elements = read_elements(x, "the number of distinct elements")
    _, first, inverse, counts = np.unique(
        elements, return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    return first, np.array(inverse.reshape(elements.shape)), counts


def _take_positions(x: Tensor, positions: NDArray[Any]) -> Tensor:
    value = taken(x)
    places = value.session.import_(from_array(positions))
    return given(value.reshape((-1,)).take(places), x)
