"""What makes two pairs of groups alike: their structures, and what the two have in common.

Whether two kernels become one, where the roots of the second lie then, and what it takes, depends
on nothing else. A training step has hundreds of groups and thousands of pairs, most of them the
same few again: an optimiser's update of one matrix and of the next.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Final

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


_NOTHING: Final = frozenset[tuple[int, int]]()
REFUSED = Verdict()
"""Two groups that nothing was weighed for."""


@dataclass(frozen=True)
class _Look:
    """A group without names, and the names by their places in it."""

    structure: int
    blocks: dict[str, int]
    tensors: dict[str, int]


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
        blocks, tensors = _shared(one.blocks, other.blocks), _shared(one.tensors, other.tensors)
        return one.structure, other.structure, blocks, tensors

    def forget(self, number: int) -> None:
        """A group is another one from here on."""
        self._looks.pop(number, None)

    def _look(self, number: int, group: tuple[Root, ...]) -> _Look:
        if number not in self._looks:
            key, blocks, tensors = self._signatures.described(group, self._members(group))
            settled = tuple(name in self._settled for name in blocks)
            structure = self._structures.setdefault((key, settled), len(self._structures))
            places = [{name: n for n, name in enumerate(names)} for names in (blocks, tensors)]
            self._looks[number] = _Look(structure, *places)
        return self._looks[number]


def _shared(here: dict[str, int], there: dict[str, int]) -> frozenset[tuple[int, int]]:
    """The places of what stands in both."""
    if here.keys().isdisjoint(there):
        return _NOTHING
    return frozenset([(here[name], there[name]) for name in here.keys() & there.keys()])
