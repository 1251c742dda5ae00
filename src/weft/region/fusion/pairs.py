"""What makes two pairs of groups alike: their structures, and what the two have in common.

Whether two kernels become one, where the roots of the second lie then, and what it takes, depends
on nothing else. A training step has hundreds of groups and thousands of pairs, most of them the
same few again: an optimiser's update of one matrix and of the next.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass

from weft.foundation.index_expr import Expr
from weft.region.fusion.signature import Signatures
from weft.region.writing.emit import Root


@dataclass(frozen=True)
class Verdict:
    """What was found of two groups. `places` says where the roots of the second are on the axes of
    the first, if the two should be one; `seconds` are their times together and apart, where they
    were weighed."""

    places: tuple[tuple[Expr, ...] | None, ...] | None = None
    seconds: tuple[float, float] | None = None


REFUSED = Verdict()
"""Two groups that nothing was weighed for."""


@dataclass(frozen=True)
class _Look:
    """A group without names, and the names by their places in it."""

    structure: int
    places: dict[tuple[bool, str], int]


class Pairs:
    """The keys of pairs of groups, which have numbers."""

    def __init__(
        self,
        signatures: Signatures,
        members: Callable[[tuple[Root, ...]], frozenset[str]],
        settled: Collection[str],
    ) -> None:
        self._signatures, self._members, self._settled = signatures, members, settled
        self._looks: dict[int, _Look] = {}
        self._structures: dict[Hashable, int] = {}

    def key(self, groups: dict[int, tuple[Root, ...]], first: int, second: int) -> Hashable:
        """A key that pairs of equal structure share: what is alike in both of a pair is one block
        or tensor in each of these."""
        one, other = self._look(first, groups[first]), self._look(second, groups[second])
        here, there = one.places, other.places
        shared = frozenset([(here[name], there[name]) for name in here.keys() & there.keys()])
        return one.structure, other.structure, shared

    def forget(self, number: int) -> None:
        """A group is another one from here on."""
        self._looks.pop(number, None)

    def _look(self, number: int, group: tuple[Root, ...]) -> _Look:
        if number not in self._looks:
            key, blocks, tensors = self._signatures.described(group, self._members(group))
            settled = tuple(name in self._settled for name in blocks)
            structure = self._structures.setdefault((key, settled), len(self._structures))
            named = [*((True, name) for name in blocks), *((False, name) for name in tensors)]
            self._looks[number] = _Look(structure, {name: n for n, name in enumerate(named)})
        return self._looks[number]
