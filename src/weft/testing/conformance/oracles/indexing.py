"""Reading and writing at indices that are data, one element after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.testing.conformance.oracles.movement import read

Array = NDArray[Any]
Index = tuple[int, ...]


def taken(x: Array, indices: Array) -> Array:
    """Rows of x in the shape of the indices."""
    at = np.indices((*indices.shape, *x.shape[1:]))
    rank = indices.ndim
    row = read(indices, list(at[:rank])) if rank else np.full(at.shape[1:], indices)
    return read(x, [np.asarray(row, np.int64), *at[rank:]])


def gathered(x: Array, indices: Array, axis: int) -> Array:
    """x at the place of each index, which replaces the place along one axis."""
    at: list[Array] = list(np.indices(indices.shape))
    at[axis] = indices.astype(np.int64)
    return read(x, at)


def scattered_places(indices: Array, axis: int) -> Iterator[tuple[Index, Index]]:
    """Each place of the updates, row by row, with the place in the operand that it goes to."""
    for place in np.ndindex(indices.shape):
        yield place, (*place[:axis], int(indices[place]), *place[axis + 1 :])


def window_places(
    x: Array,
    indices: Array,
    updates: Array,
    *,
    window: Sequence[int],
    inserted: Sequence[int],
    scattered: Sequence[int],
    vector: int | None,
) -> Iterator[tuple[Index, Index]]:
    """The same for windows of updates: XLA's scatter, place by place."""
    vectors = indices[..., None] if vector is None else np.moveaxis(indices, vector, -1)
    kept = [d for d in range(x.ndim) if d not in inserted]
    if len(kept) != len(window):
        kept = [d for d in kept if d not in scattered]
    for place in np.ndindex(updates.shape):
        outer = tuple(i for d, i in enumerate(place) if d not in window)
        target = [0] * x.ndim
        for component, d in enumerate(scattered):
            target[d] = int(vectors[(*outer, component)])
        for d, axis in zip(kept, window, strict=True):
            target[d] += place[axis]
        yield place, tuple(target)


def collected(
    x: Array, updates: Array, places: Iterator[tuple[Index, Index]]
) -> dict[Index, list[Any]]:
    """For each place of x the values that meet there: its own first, then the updates in order."""
    found = {place: [x[place]] for place in np.ndindex(x.shape)}
    for place, target in places:
        found[target].append(updates[place])
    return found


def clamped(start: Array, shape: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Where a window begins that is moved as little as needed to lie inside."""
    bounds = zip(start.tolist(), shape, sizes, strict=True)
    return [min(max(at, 0), n - size) for at, n, size in bounds]
