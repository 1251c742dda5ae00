"""Partitions of ranks: which ranks hold the same value.

The ranks of a mesh fall into classes: ranks of one class hold the same value, ranks of different
classes may not. `Classes` has the number of its class for each rank, counted from 0 in the order in
which classes appear; the empty tuple says that all ranks hold the same. Two finer or coarser
partitions of one mesh can be compared, and that is all that programs need to know of mesh axes: a
value that varies over an axis is one whose classes are split along it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeAlias

Classes: TypeAlias = tuple[int, ...]
Groups: TypeAlias = tuple[tuple[int, ...], ...]
SAME: Classes = ()


def classes_of(keys: Sequence[Hashable]) -> Classes:
    """Ranks with equal keys are of one class."""
    numbers: dict[Hashable, int] = {}
    found = tuple(numbers.setdefault(key, len(numbers)) for key in keys)
    return found if len(numbers) > 1 else SAME


def split_classes(several: Iterable[Classes]) -> Classes:
    """The classes of what is computed from values of these classes."""
    known = [classes for classes in several if classes]
    if len(known) < 2:
        return known[0] if known else SAME
    return classes_of(list(zip(*known, strict=True)))


def merged(first: Classes, second: Classes) -> Classes:
    """The finest classes that are unions of classes of both."""
    if not first or not second:
        return SAME
    names = list(range(len(first)))
    for classes in (first, second):
        heads: dict[int, int] = {}
        for rank, number in enumerate(classes):
            old, new = names[rank], names[heads.setdefault(number, rank)]
            # Each rank is joined with the first one of its class, in both partitions: what hangs
            # together ends with one name.
            names = [new if name == old else name for name in names]
    return classes_of(names)


def one_of_each(members: Sequence[int], classes: Classes) -> Groups | None:
    """Groups of these ranks, each with one rank of every class; None where classes differ in
    size."""
    by_class: dict[int, list[int]] = {}
    for rank in members:
        by_class.setdefault(classes[rank] if classes else 0, []).append(rank)
    columns = list(by_class.values())
    # Each group has one rank of every class: classes of different sizes would leave ranks over.
    if len({len(column) for column in columns}) > 1:
        return None
    return tuple(tuple(sorted(row)) for row in zip(*columns, strict=True))


def sums(fine: Classes, coarse: Classes) -> Groups | None:
    """Over which ranks to sum what each class of `fine` has, so that every class of `coarse` gets
    the sum of the classes it consists of. None where there are no such groups."""
    keys = coarse or (0,) * len(fine)
    found: list[tuple[int, ...]] = []
    for number in dict.fromkeys(keys):
        groups = one_of_each([r for r, key in enumerate(keys) if key == number], fine)
        if groups is None:
            return None
        found += groups
    return tuple(found) if len({len(group) for group in found}) == 1 else None
