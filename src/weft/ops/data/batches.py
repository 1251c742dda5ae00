"""Batches of samples: from arrays, from what has a length and items, or from an iterator."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.arrays import handed_in
from weft.foundation.errors import SpecViolation, UserError, a_type, brief
from weft.ops.calls import public
from weft.ops.pytree import alike, flatten, is_container, leaf_names, unflatten
from weft.ops.random import fold_in, permutation
from weft.ops.tensor import Tensor

_ARRAYS = (np.ndarray, Tensor)


@public
def batches(
    source: Any,
    size: int,
    *,
    key: Any = None,
    epochs: int | None = 1,
    start: int = 0,
    drop_last: bool = True,
) -> Iterator[Any]:
    """Batches of `size` samples, as NumPy arrays nested as the samples are.

    The source is arrays with the same first axis, nested in any way, an object with a length whose
    items are samples, or an iterator of samples. With a key the samples are in another order in
    every epoch, which is a function of the key and of the epoch's number; `epochs=None` goes on for
    ever. `start` leaves out so many batches without making them: a run that is resumed goes on with
    the batch it would have had. Without `drop_last` a shorter batch may end an epoch.
    """
    for name, value, least in (("size", size, 1), ("start", start, 0), ("epochs", epochs, 0)):
        if value is not None and (type(value) is not int or value < least):
            raise UserError(f"{name} is {value!r}; it must be a whole number, at least {least}")
    if isinstance(source, Iterator):
        if key is not None or epochs != 1:
            raise UserError(
                "an iterator gives its samples once, in its order; give arrays or a list-like "
                "source for a key or several epochs"
            )
        made = _of_iterator(source, size, drop_last)
        return itertools.islice(made, start, None)
    return _of_samples(samples_of(source), size, key, epochs, start, drop_last)


class Samples:
    """Samples that are taken by their numbers."""

    def __init__(self, count: int) -> None:
        self.count = count

    def take(self, places: NDArray[Any]) -> Any:
        raise NotImplementedError


class _Arrays(Samples):
    """Rows of arrays."""

    def __init__(self, source: Any) -> None:
        leaves, self.structure = flatten(source)
        names = leaf_names(self.structure, "source")
        if not leaves:
            raise UserError(
                f"the source is {brief(source)}, in which there is no array; give arrays with an "
                "axis of samples"
            )
        for name, leaf in zip(names, leaves, strict=True):
            if not isinstance(leaf, _ARRAYS) or not leaf.ndim:
                what = "a scalar" if isinstance(leaf, _ARRAYS) else a_type(leaf)
                raise UserError(f"{name} is {what}; arrays with an axis of samples are wanted")
        self.arrays = [handed_in(leaf) for leaf in leaves]
        counts = {len(array) for array in self.arrays}
        if len(counts) != 1:
            listed = ", ".join(f"{n} {len(a)}" for n, a in zip(names, self.arrays, strict=True))
            raise SpecViolation(
                "ShapeMismatch",
                f"the arrays have different numbers of samples: {listed}",
                "give arrays with the same first axis",
            )
        super().__init__(counts.pop())

    def take(self, places: NDArray[Any]) -> Any:
        return unflatten(self.structure, [array[places] for array in self.arrays])


class _Items(Samples):
    """Items of an object, one by one."""

    def __init__(self, source: Any) -> None:
        super().__init__(len(source))
        self.source = source

    def take(self, places: NDArray[Any]) -> Any:
        return _stack_samples([self.source[int(place)] for place in places])


def samples_of(source: Any) -> Samples:
    """What has samples, taken by their numbers."""
    return source if isinstance(source, Samples) else _arrays(source) or _items(source)


def _arrays(source: Any) -> Samples | None:
    nested = isinstance(source, _ARRAYS) or is_container(source)
    return _Arrays(source) if nested else None


def _items(source: Any) -> Samples:
    if not hasattr(source, "__len__") or not hasattr(source, "__getitem__"):
        raise UserError(
            f"the source is {a_type(source)}; give arrays, an object with a length and items, or "
            "an iterator, such as iter(source)"
        )
    return _Items(source)


def _of_samples(
    taken: Samples, size: int, key: Any, epochs: int | None, start: int, drop_last: bool
) -> Iterator[Any]:
    each = taken.count // size if drop_last else -(-taken.count // size)
    if not each:
        raise UserError(
            f"there are {taken.count} samples, fewer than a batch of {size}; make it smaller, or "
            "say drop_last=False"
        )
    return _endless(taken, size, key, epochs, start, each)


def _endless(
    taken: Samples, size: int, key: Any, epochs: int | None, start: int, each: int
) -> Iterator[Any]:
    first, skipped = divmod(start, each)
    for epoch in itertools.count(first) if epochs is None else range(first, epochs):
        order = np.arange(taken.count) if key is None else _epoch_order(key, epoch, taken.count)
        for number in range(skipped if epoch == first else 0, each):
            yield taken.take(order[number * size : (number + 1) * size])


def _epoch_order(key: Any, epoch: int, count: int) -> NDArray[Any]:
    return np.asarray(permutation(fold_in(key, epoch), count))


def _of_iterator(source: Iterable[Any], size: int, drop_last: bool) -> Iterator[Any]:
    samples = iter(source)
    while found := list(itertools.islice(samples, size)):
        if len(found) == size or not drop_last:
            yield _stack_samples(found)


def _stack_samples(samples: Sequence[Any]) -> Any:
    """Samples of one structure as one, with a first axis that counts them."""
    columns, structure = [], None
    for sample in samples:
        leaves, shape = flatten(sample)
        if structure is not None and not alike(shape, structure):
            raise UserError("the samples of a batch are nested in different ways")
        structure = shape
        columns.append([handed_in(leaf) for leaf in leaves])
    assert structure is not None
    for column in zip(*columns, strict=True):
        shapes = {array.shape for array in column}
        if len(shapes) > 1:
            listed = " and ".join(map(str, sorted(shapes)[:2]))
            raise SpecViolation(
                "ShapeMismatch",
                f"the samples of a batch have different shapes: {listed}",
                "pad them to one shape first",
            )
    return unflatten(structure, [np.stack(column) for column in zip(*columns, strict=True)])
