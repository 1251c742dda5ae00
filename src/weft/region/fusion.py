"""Which blocks become one kernel: greedy, backward from the outputs, with one step of rollback.

Blocks are visited from the last to the first. A block is written into every kernel that reads it
(*inlined*) when that is legal, within the machine's limits, and cheaper than storing it and reading
it back; otherwise it is *stored* and begins a kernel of its own. Elementwise blocks may be
duplicated; a reduction or contraction is computed once or not inlined at all. When a block has to
be stored because a reader of it was inlined into several kernels, storing that reader instead is
tried (the rollback).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from weft.poly_view.ir import Access, BlockKind
from weft.region.assemble import assemble, draft
from weft.region.cost import kernel_seconds
from weft.region.emit import Root, Stop, View
from weft.region.ir import Kernel, Tensor
from weft.region.resources import stop_reason
from weft.region.signature import on_tensors, signature
from weft.target.target import Target

HEAVY = (BlockKind.REDUCE, BlockKind.CONTRACTION)
SMALL = 64
"""Elementwise kernels of fewer blocks than this are within the limits of registers."""
LARGEST = 96
"""The most blocks that one kernel computes."""


@dataclass
class Fusion:
    """The choice for one program. `order` has every block after what it reads; `must` gives, for
    blocks that have to be stored, the reason."""

    view: View
    target: Target
    order: Sequence[str]
    must: Mapping[str, str]
    inlined: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tensors: dict[str, Tensor] = {
            source.tensor.name: source.tensor for source in self.view.sources.values()
        }
        self.readers: dict[str, list[str]] = {name: [] for name in self.order}
        for name in self.order:
            for source in self._sources(name):
                if source in self.readers and name not in self.readers[source]:
                    self.readers[source].append(name)
        self._drafts: dict[object, tuple[Kernel, float] | str] = {}
        self._finished: dict[object, tuple[Kernel, tuple[str, ...]]] = {}

    def _sources(self, name: str) -> list[str]:
        return [access.tensor for access in self.view.blocks[name].accesses]

    def choose(self) -> None:
        """Decide about every block."""
        for name in reversed(self.order):
            if name in self.must:
                self.notes.append(f"{name} is stored: {self.must[name]}")
            else:
                self._decide(name)

    @property
    def stored(self) -> list[str]:
        """The blocks that are not inlined, in order."""
        return [name for name in self.order if name not in self.inlined]

    # -- one block -------------------------------------------------------------------------------

    def _decide(self, name: str) -> None:
        why = None if self._surely(name) else self._try_inline(name, self.inlined)
        if why is None:
            self.inlined.add(name)
        elif not self._roll_back(name):
            self.notes.append(f"{name} is stored: {why}")

    def _surely(self, name: str) -> bool:
        """Whether inlining needs no estimate: an elementwise block that one small kernel reads,
        element by element, and that itself reads nothing out of place."""
        block = self.view.blocks[name]
        users = self.roots_using(name, self.inlined)
        if block.kind is not BlockKind.EWISE or len(users) != 1:
            return False
        inside = [*users, *self.closure(users, self.inlined)]
        if len(inside) >= SMALL or not all(_in_place(a) for a in block.accesses):
            return False
        points = math.prod(block.shape)
        return all(
            math.prod(a.size for a in self.view.blocks[reader].axes) == points
            and all(_in_place(a) for a in self.view.blocks[reader].accesses if a.tensor == name)
            for reader in inside
            if name in self._sources(reader)
        )

    def _try_inline(self, name: str, inlined: set[str]) -> str | None:
        """Why a block cannot or should not be inlined; None where it should."""
        users = self.roots_using(name, inlined)
        if any(len(self.closure((user,), inlined)) >= LARGEST for user in users):
            return f"a kernel that reads it has {LARGEST} blocks already"
        heavy = self.view.blocks[name].kind in HEAVY
        if heavy and len(users) > 1:
            return f"{len(users)} kernels read it"
        try:
            before = [self.kernel((Root(user),), inlined) for user in users]
            after = [self.kernel((Root(user),), inlined | {name}) for user in users]
        except Stop as reason:
            return str(reason)
        for (old, _), (new, _) in zip(before, after, strict=True):
            stop = stop_reason(old, new, self.tensors, self.target)
            if stop is not None:
                return stop
        spent = sum(seconds for _, seconds in after)
        stored = sum(seconds for _, seconds in before) + self._alone(name, inlined)
        if spent >= stored:
            return f"computing it {len(users)} times takes {spent - stored:.2g} s longer"
        return None

    def _alone(self, name: str, inlined: set[str]) -> float:
        return self.kernel((Root(name),), inlined)[1]

    def _roll_back(self, name: str) -> bool:
        """Store a reader that was inlined before, so that this block can be inlined into it."""
        for reader in self.readers[name]:
            if reader not in self.inlined:
                continue
            without = self.inlined - {reader}
            users = self.roots_using(reader, self.inlined)
            if self._try_inline(name, without) is not None:
                continue
            try:
                now = sum(self.kernel((Root(u),), self.inlined)[1] for u in users)
                now += self._alone(name, self.inlined)
                then = sum(self.kernel((Root(u),), without)[1] for u in users)
                then += self._alone(reader, without | {name})
            except Stop:
                continue
            if then < now:
                self.inlined = without | {name}
                self.notes.append(f"{reader} is stored after all: {name} is computed with it")
                return True
        return False

    # -- kernels ---------------------------------------------------------------------------------

    def roots_using(self, name: str, inlined: set[str]) -> list[str]:
        """The stored blocks whose kernels would contain this block, if it were inlined."""
        found: dict[str, None] = {}
        stack, seen = list(self.readers[name]), set()
        while stack:
            reader = stack.pop()
            if reader in inlined:
                stack += [r for r in self.readers[reader] if r not in seen]
                seen.update(self.readers[reader])
            else:
                found[reader] = None
        return list(found)

    def closure(self, roots: Iterable[str], inlined: set[str]) -> frozenset[str]:
        """The inlined blocks that kernels with these roots compute."""
        found: set[str] = set()
        stack = [source for root in roots for source in self._sources(root)]
        while stack:
            name = stack.pop()
            if name in inlined and name not in found:
                found.add(name)
                stack += self._sources(name)
        return frozenset(found)

    def members(self, roots: tuple[Root, ...], inlined: set[str]) -> frozenset[str]:
        """What a kernel with these roots inlines, also of one another."""
        names = {root.block for root in roots}
        return self.closure(names, inlined | names)

    def kernel(self, roots: tuple[Root, ...], inlined: set[str]) -> tuple[Kernel, float]:
        """A draft of the kernel of some roots, on tensors of the same shapes, and its time."""
        needed = self.members(roots, inlined)
        key, _ = signature(self.view, roots, needed)
        if key not in self._drafts:
            self._drafts[key] = self._draft(roots, needed)
        found = self._drafts[key]
        if isinstance(found, str):
            raise Stop(found)
        return found

    def _draft(self, roots: tuple[Root, ...], needed: frozenset[str]) -> tuple[Kernel, float] | str:
        try:
            kernel = draft(self.view, roots, needed)
        except Stop as reason:
            return str(reason)
        return kernel, kernel_seconds(kernel, self.tensors, self.target)

    def finished(self, roots: tuple[Root, ...]) -> Kernel:
        """The kernel of some roots as it will be; equal ones are written out once."""
        needed = self.members(roots, self.inlined)
        blocks = [self.view.blocks[name] for name in (*needed, *(r.block for r in roots))]
        if any(block.value_id and block.name != block.value_id for block in blocks):
            return assemble(self.view, roots, needed)
        key, tensors = signature(self.view, roots, needed)
        if key not in self._finished:
            self._finished[key] = assemble(self.view, roots, needed), tensors
        kernel, known = self._finished[key]
        return on_tensors(kernel, dict(zip(known, tensors, strict=True)))


def _in_place(access: Access) -> bool:
    """Whether an access reads along whole axes, each at most once, without guards."""
    names = [expr.single_axis for expr in access.map if not expr.is_constant]
    return not access.guards and None not in names and len(set(names)) == len(names)
