"""Packing blocks that come and go into one range of bytes.

Best fit: a block takes the smallest hole that holds it, of equal ones the lowest; without such a
hole the range grows, from the hole at its end if there is one. Sizes and offsets are multiples of
`ALIGNMENT`. The same calls give the same offsets, and each takes logarithmic time.
"""

from __future__ import annotations

from bisect import bisect_left, insort

ALIGNMENT = 64
"""Bytes: a line of the cache, and the widest vector."""


def align_bytes(count: int) -> int:
    """A number of bytes, rounded up to the alignment."""
    return -(-count // ALIGNMENT) * ALIGNMENT


class Arena:
    """A range of bytes that grows as blocks are taken."""

    def __init__(self) -> None:
        self.size = 0
        self.in_use = 0
        self.most_in_use = 0
        self._by_size: list[tuple[int, int]] = []
        self._holes: dict[int, int] = {}
        """Size by offset."""
        self._ends: dict[int, int] = {}
        """Offset by end."""

    def take(self, count: int) -> int:
        """The offset of a new block; an empty one takes no space."""
        size = align_bytes(count)
        if not size:
            return 0
        self.in_use += size
        self.most_in_use = max(self.most_in_use, self.in_use)
        index = bisect_left(self._by_size, (size, 0))
        if index < len(self._by_size):
            found, offset = self._by_size[index]
            self._remove(offset)
            if found > size:
                self._add(offset + size, found - size)
            return offset
        offset = self._ends.get(self.size, self.size)
        if offset != self.size:
            self._remove(offset)
        self.size = offset + size
        return offset

    def give(self, offset: int, count: int) -> None:
        """Free a block that was taken with the same size."""
        size = align_bytes(count)
        if not size:
            return
        self.in_use -= size
        after, before = offset + size, self._ends.get(offset)
        if after in self._holes:
            size += self._remove(after)
        if before is not None:
            size += self._remove(before)
            offset = before
        self._add(offset, size)

    def _add(self, offset: int, size: int) -> None:
        insort(self._by_size, (size, offset))
        self._holes[offset] = size
        self._ends[offset + size] = offset

    def _remove(self, offset: int) -> int:
        size = self._holes.pop(offset)
        del self._ends[offset + size]
        del self._by_size[bisect_left(self._by_size, (size, offset))]
        return size
