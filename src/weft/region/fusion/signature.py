"""Canonical signatures of fusion choices: everything but names, so that equal kernels are drafted
once; and of pairs of groups, with what the two have in common.

A signature lists the blocks of a kernel from its roots down, with other blocks and tensors by
number. Equal layers have equal signatures, so that a kernel is drafted, costed and written out
once, and the tensors of the others are put in by position.

Whether two kernels become one, where the roots of the second lie then, and what it takes, depends
on nothing but their pair. A training step has hundreds of groups and thousands of pairs, most of
them the same few again: an optimiser's update of one matrix and of the next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from itertools import count
from typing import Final

from weft.foundation.index_expr import Expr
from weft.foundation.records import dataclass
from weft.poly_view.ir import PolyBlock
from weft.region.writing.emit import Root, View
from weft.tiny.ir import Cast, Check, Const, Iota, Reduce

_KINDS: Final = 32
"""Bits for the number of a kind of tensor."""


class Signatures:
    """The keys of kernels over one view. What a block is by itself is described once and numbered,
    so that a key is a few small numbers per block."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._numbers: dict[Hashable, int] = {}
        self._blocks: dict[str, tuple[int, tuple[str, ...], tuple[str, ...]]] = {}
        self._tensors: dict[str, tuple[str, int]] = {}

    def of(
        self, roots: Sequence[Root], inlined: frozenset[str]
    ) -> tuple[Hashable, tuple[str, ...]]:
        """A key that equal kernels share, and the tensors of this one in the order of the key."""
        key, _, tensors = self.described(roots, inlined)
        return key, tensors

    def described(
        self, roots: Sequence[Root], inlined: frozenset[str]
    ) -> tuple[Hashable, tuple[str, ...], tuple[str, ...]]:
        """The key, with the blocks it speaks of (roots, and what is read) and the tensors."""
        # Names are numbered in the order in which they are met.
        numbers: dict[str, int] = defaultdict(count().__next__)
        tensors: dict[str, int] = defaultdict(count().__next__)
        parts: list[Hashable] = []
        note = parts.append
        for root in roots:
            note(root.env)
            note(numbers[root.block])
            self._place(root.block, tensors, parts)
        stack = [root.block for root in roots]
        done: set[str] = set()
        blocks, held = self._blocks, self._tensors
        while stack:
            name = stack.pop()
            if name in done:
                continue
            done.add(name)
            number, sources, around = blocks.get(name) or self._block(name)
            note(number)
            for source in sources:
                note(numbers[source])
                if source in inlined:
                    stack.append(source)
                else:
                    tensor, kind = held.get(source) or self._tensor(source)
                    note(~(tensors[tensor] << _KINDS | kind))
            for source in around:
                self._place(source, tensors, parts)
        return tuple(parts), tuple(numbers), tuple(tensors)

    def _place(self, name: str, tensors: dict[str, int], parts: list[Hashable]) -> None:
        """Note which tensor a block is stored as: the how-manieth, and of what kind. Below 0, so
        that it is no number of a block."""
        tensor, kind = self._tensors.get(name) or self._tensor(name)
        parts.append(~(tensors[tensor] << _KINDS | kind))

    def _tensor(self, name: str) -> tuple[str, int]:
        """The tensor that a block is stored as, and the number of its kind."""
        source = self.view.sources[name]
        held = source.tensor
        kind = self._number((held.dtype, held.shape, source.atoms, source.order))
        self._tensors[name] = held.name, kind
        return self._tensors[name]

    def _block(self, name: str) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
        """The number of what a block computes, without its name and those of its operands; then
        what it reads, and what it needs beside that."""
        block = self.view.blocks[name]
        params = [self.view.params[name] for name in sorted(block.params)]
        around = [] if block.base is None else [block.base]
        reads = ((a.map, a.guards, repr(a.fill), a.widen) for a in block.accesses)
        known = ((param.name, param.low, param.high, param.access.map) for param in params)
        written = (block.write, block.base is None)
        self._blocks[name] = (
            self._number((_describe_value(block), *reads, written, *known)),
            tuple(access.tensor for access in block.accesses),
            (*around, *(param.access.tensor for param in params)),
        )
        return self._blocks[name]

    def _number(self, what: Hashable) -> int:
        return self._numbers.setdefault(what, len(self._numbers))


def _describe_value(block: PolyBlock) -> Hashable:
    detail: Hashable = None
    match block.value:
        case Const(value=value):
            detail = repr(value)
        case Iota(axis=axis, shape=shape):
            detail = (axis, shape)
        case Reduce(x=Cast(dtype=dtype)):
            detail = dtype
        case Check(rule=rule, code=code, size=size):
            detail = (rule, code, size)
    return (block.kind, block.fn, block.axes, block.dtype, block.attrs, block.selected, detail)


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
        blocks, tensors = (
            _shared_places(one.blocks, other.blocks),
            _shared_places(one.tensors, other.tensors),
        )
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


def _shared_places(here: dict[str, int], there: dict[str, int]) -> frozenset[tuple[int, int]]:
    """The places of what stands in both."""
    if here.keys().isdisjoint(there):
        return _NOTHING
    return frozenset([(here[name], there[name]) for name in here.keys() & there.keys()])
