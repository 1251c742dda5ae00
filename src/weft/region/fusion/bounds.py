"""Cost bounds of fusion choices before kernels are drafted, on a CPU, where a kernel has no limit
but its number of blocks: when computing a block wherever it is read is cheaper than starting a
kernel, and how long scalar kernels take.

A draft would say the same, and takes a thousand times as long where kernels have many blocks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from weft.poly_view.ir import Access, BlockKind, PolyBlock
from weft.region.cost import operations_of
from weft.region.writing.emit import View
from weft.target.roofline import Work, time_estimate
from weft.target.target import Target

PLACED: Final = ("check", "words", "iota")
"""Functions of the place of an element, which a gather or a guard on the way may rule out."""
_PLAIN: Final = (BlockKind.EWISE, BlockKind.MOVEMENT)
_PREDICATE: Final = 4
"""Operations that a guard adds for each element at most: two comparisons, both or one, a choice."""
_FREE: Final = ("cast", "const")
_CLEARLY: Final = 0.99
"""Of a time, what is less by more than rounding."""


@dataclass
class Bounds:
    """Bounds over one view; `place` says where blocks stand in the order of the program."""

    view: View
    target: Target
    place: Mapping[str, int]
    _numbers: dict[str, bool] = field(default_factory=dict)

    def is_cheap(self, name: str, users: Mapping[str, Collection[str]], apart: bool) -> bool:
        """Whether computing an elementwise block in the kernels that read it, by their roots with
        what they inline, takes less time than a kernel that stores it: than starting it, or than
        all of it where it computes this block `apart` from all others."""
        block = self.view.blocks[name]
        if block.selected or not all(map(self._is_plain, users, users.values())):
            return False
        total = sum(self._most_seconds(block, root, inside) for root, inside in users.items())
        launch = self.target.rates.launch_seconds
        return total < max(launch / 2, _CLEARLY * self._seconds_apart(block) if apart else 0.0)

    def _seconds_apart(self, block: PolyBlock) -> float:
        """The time of a kernel that computes one elementwise block, at least."""
        points, rate = math.prod(block.shape), self.target.vector_rate(block.dtype)
        operations = 0 if block.fn in _FREE else points * operations_of(block.fn)
        sizes = {axis.name: axis.size for axis in block.axes}
        moved = {block.name: points * block.dtype.storage_bytes}
        for access in filter(reads_in_place, block.accesses):
            names = [expr.single_axis.name for expr in access.map if expr.single_axis is not None]
            here = math.prod(sizes[name] for name in names) * self._width(access.tensor)
            moved[access.tensor] = max(here, moved.get(access.tensor, 0))
        work = Work(0.0, operations / rate, sum(moved.values()))
        return time_estimate(self.target, work) + self.target.rates.launch_seconds

    def _is_plain(self, root: str, inside: Collection[str]) -> bool:
        """Whether nothing forbids a kernel to compute more: it reads no places that data names, and
        computes element by element."""
        blocks = [self.view.blocks[name] for name in (root, *inside)]
        return all(block.kind in _PLAIN and not block.selected for block in blocks)

    def _most_seconds(self, block: PolyBlock, root: str, inside: Collection[str]) -> float:
        """What a block adds to a kernel at most: on every way on which it is read it may be
        computed for every element, with guards."""
        ways, guards = (1, 0) if self.of_numbers(root, inside) else self._ways(block, root, inside)
        points = ways * math.prod(self.view.blocks[root].shape)
        vector = points * operations_of(block.fn) / self.target.vector_rate(block.dtype)
        vector += points * _PREDICATE * guards / min(self.target.rates.vector_flops.values())
        sources = [self.view.sources[access.tensor].tensor for access in block.accesses]
        moved = sum(min(t.bytes, points * t.dtype.storage_bytes) for t in sources)
        # The slower of computing and moving grows by the slower of what is added to each.
        return time_estimate(self.target, Work(0.0, vector, moved))

    def _ways(self, block: PolyBlock, root: str, inside: Collection[str]) -> tuple[int, int]:
        """On how many ways a kernel reads a block, and the guards of the read that has most."""
        ways, guards = {root: 1}, 0
        for reader in (root, *sorted(inside, key=self.place.__getitem__, reverse=True)):
            for access in self.view.blocks[reader].accesses:
                ways[access.tensor] = ways.get(access.tensor, 0) + ways[reader]
                if access.tensor == block.name:
                    guards = max(guards, len(access.guards))
        return ways[block.name], guards

    # -- kernels of numbers ----------------------------------------------------------------------

    def of_numbers(self, root: str, inside: Collection[str]) -> bool:
        """Whether a kernel computes nothing but single numbers, each of them once."""
        return self._is_number(root) and all(map(self._is_number, inside))

    def _is_number(self, name: str) -> bool:
        """Whether a block is one element, of elements at known places."""
        if name not in self._numbers:
            block = self.view.blocks[name]
            plain = block.kind is BlockKind.EWISE and block.fn not in PLACED
            known = not (block.axes or block.selected or block.params)
            guarded = any(access.guards for access in block.accesses)
            self._numbers[name] = plain and known and not guarded
        return self._numbers[name]

    def seconds_of_numbers(self, root: str, inside: Collection[str]) -> float:
        """The time of a kernel of numbers, its launch included."""
        blocks = [self.view.blocks[name] for name in (*inside, root)]
        operations = [(block, operations_of(block.fn)) for block in blocks if block.fn not in _FREE]
        vector = sum(count / self.target.vector_rate(block.dtype) for block, count in operations)
        read = {(a.tensor, a.map) for block in blocks for a in block.accesses}
        moved = self._bytes([name for name, _ in read if name not in inside])
        work = Work(0.0, vector, moved + self._bytes([root]))
        return time_estimate(self.target, work) + self.target.rates.launch_seconds

    def _bytes(self, names: Sequence[str]) -> int:
        return sum(map(self._width, names))

    def _width(self, name: str) -> int:
        """The bytes of one element."""
        return self.view.sources[name].tensor.dtype.storage_bytes


def reads_in_place(access: Access) -> bool:
    """Whether an access reads along whole axes, each at most once, without guards."""
    names = [expr.single_axis for expr in access.map if not expr.is_constant]
    return not access.guards and None not in names and len(set(names)) == len(names)
