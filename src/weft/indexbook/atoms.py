"""Atoms: the coarsest common refinement of the dims that reshapes connect.

A dim is a node; dims that always run together (the same axis of an elementwise op and its operands)
are one class. A class has *cuts*: divisors `c` of its size, each saying that the axis is made of
blocks of `c` consecutive elements. The cuts of a class divide one another, so they split the axis
into atoms. A reshape links groups of dims with equal products, and a cut on one side must be a cut
or a boundary on the other; where that would break a chain of divisors, the reshape is refused and
everything is as before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from itertools import pairwise
from typing import TypeAlias

from weft.foundation.records import dataclass

Side: TypeAlias = tuple[tuple[int, int], ...]
"""The dims of one side of a reshape group: (node, stride) from the outermost to the innermost."""


@dataclass(frozen=True)
class Group:
    """Dims before and dims after a reshape that hold the same elements."""

    before: Side
    after: Side

    def opposite(self, side: Side) -> Side:
        return self.after if side is self.before else self.before


@dataclass
class AtomTable:
    """Union-find over dims, with the cuts of each class."""

    sizes: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    cuts: list[set[int]] = field(default_factory=list)
    links: list[list[Group]] = field(default_factory=list)

    def add(self, size: int) -> int:
        """A new dim."""
        node = len(self.sizes)
        self.sizes.append(size)
        self.parents.append(node)
        self.cuts.append(set())
        self.links.append([])
        return node

    def find(self, node: int) -> int:
        """The class of a dim."""
        parents = self.parents
        while (above := parents[node]) != node:
            parents[node] = parents[above]
            node = parents[node]
        return node

    def unite(self, a: int, b: int) -> None:
        """Two dims run together. All uniting comes before the first `link`."""
        first, second = self.find(a), self.find(b)
        self.parents[max(first, second)] = min(first, second)

    def atoms(self, node: int) -> tuple[int, ...]:
        """The sizes an axis is made of, outermost first; none for an axis of size 1."""
        size = self.sizes[node]
        if size == 1:
            return ()
        cuts = self.cuts[self.find(node)]
        if not size or not cuts:
            return (size,)
        # Cuts divide one another, so the quotients of neighbours are whole, and their product is
        # the size.
        bounds = [size, *sorted(cuts, reverse=True), 1]
        return tuple(outer // inner for outer, inner in pairwise(bounds))

    def link(self, group: Group) -> bool:
        """Connect the dims of a group; False, and nothing changed, where no refinement exists."""
        members = {self.find(node) for node, _ in (*group.before, *group.after)}
        # What a reshape asks for by itself: where a dim of one side begins inside of a dim of the
        # other, that one is cut there.
        pending = [
            (self.find(other), cut)
            for side in (group.before, group.after)
            for _, stride in side
            for other, cut in self._across(group.opposite(side), stride)
        ]
        pending += [(root, cut) for root in members for cut in self.cuts[root]]
        for root in members:
            self.links[root].append(group)
        undo: list[tuple[int, int]] = []
        if self._spread_cuts(pending, undo, seen=group):
            return True
        for root, cut in undo:
            self.cuts[root].discard(cut)
        for root in members:
            self.links[root].pop()
        return False

    def _spread_cuts(
        self, pending: list[tuple[int, int]], undo: list[tuple[int, int]], seen: Group
    ) -> bool:
        """Carry cuts along the links until nothing is new."""
        known = {root: set(self.cuts[root]) for root, _ in pending}
        while pending:
            root, cut = pending.pop()
            # 0 stands for a boundary that falls into the midst of an element of the other side: no
            # blocks of equal size have it.
            if cut == 0 or not self._fits(root, cut):
                return False
            fresh = cut not in self.cuts[root]
            if not fresh and cut not in known.get(root, ()):
                continue
            if fresh:
                self.cuts[root].add(cut)
                undo.append((root, cut))
            # A cut from before the new group has been carried everywhere but over that group.
            groups = self.links[root] if fresh else [seen]
            known.get(root, set()).discard(cut)
            for group in groups:
                pending.extend(self._images(group, root, cut))
        return True

    def _images(self, group: Group, root: int, cut: int) -> Iterator[tuple[int, int]]:
        for side in (group.before, group.after):
            for node, stride in side:
                if self.find(node) == root:
                    found = self._across(group.opposite(side), stride * cut)
                    yield from ((self.find(other), image) for other, image in found)

    def _across(self, side: Side, position: int) -> Iterator[tuple[int, int]]:
        """The cut that a position of the group asks for; 0 where no cut can be there."""
        for node, stride in side:
            end = stride * self.sizes[node]
            if stride < position < end:
                # The dim has to be made of whole blocks that end there: whole elements in a block,
                # and whole blocks in the dim.
                exact = position % stride == 0 and end % position == 0
                yield node, position // stride if exact else 0

    def _fits(self, root: int, cut: int) -> bool:
        chain = sorted({*self.cuts[root], cut, self.sizes[root]})
        return all(large % small == 0 for small, large in pairwise(chain))


def matching_groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[range, range]]:
    """The smallest runs of dims of two shapes with equal products, from left to right.

    Neither shape has a dim of size 0. Dims of size 1 belong to the run they stand in, or to none.
    """
    groups: list[tuple[range, range]] = []
    i = j = 0
    while i < len(before) or j < len(after):
        start_i, start_j = i, j
        left = right = 1
        # The side with the smaller product takes its next dim, until both are equal. A product of 1
        # is no end: dims of size 1 alone are no group.
        while left != right or left == 1:
            if left <= right and i < len(before):
                left *= before[i]
                i += 1
            elif j < len(after):
                right *= after[j]
                j += 1
            else:
                break
        if left > 1:
            groups.append((range(start_i, i), range(start_j, j)))
    return groups


def side_of(nodes: Sequence[int], sizes: Sequence[int]) -> Side:
    """Dims of a run with their row-major strides inside it."""
    strides, total = [], 1
    for size in reversed(sizes):
        strides.append(total)
        total *= size
    return tuple(zip(nodes, reversed(strides), strict=True))
