"""Which blocks become one kernel: greedy, backward from the outputs, with one step of rollback.

Blocks are visited from the last to the first. A block is written into every kernel that reads it
(*inlined*) when that is legal, within the machine's limits, and cheaper than storing it and reading
it back; otherwise it is *stored* and begins a kernel of its own. Elementwise blocks may be
duplicated; a reduction or contraction is computed once or not inlined at all. When a block has to
be stored because a reader of it was inlined into several kernels, storing that reader instead is
tried (the rollback). At the end, kernels over the same space that share what they read are merged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from weft.foundation.index_expr import Expr, params_of
from weft.poly_view.ir import Access, BlockKind
from weft.region.assemble import draft
from weft.region.cost import kernel_seconds
from weft.region.emit import Emitter, Root, Stop, View
from weft.region.ir import Kernel, Read, Tensor
from weft.region.resources import stop_reason
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
        self._kernels: dict[object, tuple[Kernel, float]] = {}

    def _sources(self, name: str) -> list[str]:
        return [access.tensor for access in self.view.blocks[name].accesses]

    def choose(self) -> list[tuple[Root, ...]]:
        """The roots of every kernel, in an order in which they can run."""
        for name in reversed(self.order):
            if name in self.must:
                self.notes.append(f"{name} is stored: {self.must[name]}")
            else:
                self._decide(name)
        stored = [name for name in self.order if name not in self.inlined]
        groups: list[tuple[Root, ...]] = [(Root(name),) for name in stored]
        return Merger(self, groups).run()

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

    def kernel(self, roots: tuple[Root, ...], inlined: set[str]) -> tuple[Kernel, float]:
        """The kernel of some roots, and its time. What one of them reads of another is inlined."""
        names = {root.block for root in roots}
        needed = self.closure(names, inlined | names)
        key = (roots, needed)
        if key not in self._kernels:
            kernel, _ = draft(self.view, roots, needed)
            seconds = kernel_seconds(kernel, self.tensors, self.target)
            self._kernels[key] = kernel, seconds
        return self._kernels[key]


@dataclass
class Merger:
    """Kernels over the same space made one, where that saves reads."""

    fusion: Fusion
    groups: list[tuple[Root, ...]]
    _read_sets: dict[tuple[Root, ...], set[str]] = field(default_factory=dict)
    _need_sets: dict[tuple[Root, ...], set[str]] = field(default_factory=dict)

    def run(self) -> list[tuple[Root, ...]]:
        for place in range(len(self.groups) - 1, -1, -1):
            self._absorb(place)
        return self._in_order()

    def _absorb(self, place: int) -> None:
        """Merge earlier groups into the group at `place`, nearest first."""
        for other in range(place - 1, -1, -1):
            if not self.groups[other] or not self.groups[place]:
                continue
            merged = self._merged(self.groups[place], self.groups[other])
            if merged is not None:
                first, second = self.groups[place][0].block, self.groups[other][0].block
                self.fusion.notes.append(f"{second} is stored by the kernel of {first}")
                self.groups[place], self.groups[other] = merged, ()

    def _merged(self, group: tuple[Root, ...], other: tuple[Root, ...]) -> tuple[Root, ...] | None:
        if not self._related(group, other) or self._far(group, other):
            return None
        fusion = self.fusion
        try:
            roots = (*group, *self._places(group, other))
            kernel, seconds = fusion.kernel(roots, fusion.inlined)
            parts = [fusion.kernel(part, fusion.inlined) for part in (group, other)]
        except Stop:
            return None
        stops = [stop_reason(p, kernel, fusion.tensors, fusion.target) for p, _ in parts]
        shares = _reads_of(kernel) < sum(_reads_of(part) for part, _ in parts)
        if any(stops) or not shares or seconds >= sum(time for _, time in parts):
            return None
        return roots

    def _related(self, group: tuple[Root, ...], other: tuple[Root, ...]) -> bool:
        """Whether two groups are of a kind that can be merged and read something in common."""
        blocks = [self.fusion.view.blocks[root.block] for root in (*group, *other)]
        if any(b.kind in (BlockKind.OPAQUE, BlockKind.UPDATE) for b in blocks):
            return False
        if len({b.shape for b in blocks}) > 1 and sorted(blocks[0].shape) != sorted(
            blocks[-1].shape
        ):
            return False
        mine, theirs = self._reads(group), self._reads(other)
        return bool(mine & theirs) or any(root.block in mine for root in other)

    def _reads(self, group: tuple[Root, ...]) -> set[str]:
        """Every stored tensor that a group reads."""
        if group in self._read_sets:
            return self._read_sets[group]
        fusion = self.fusion
        names = {root.block for root in group}
        inside = names | fusion.closure(names, fusion.inlined)
        sources = {a.tensor for name in inside for a in fusion.view.blocks[name].accesses}
        self._read_sets[group] = sources - inside
        return self._read_sets[group]

    def _places(self, group: tuple[Root, ...], other: tuple[Root, ...]) -> list[Root]:
        """The roots of `other` placed on the axes of `group`: where it reads them, or position by
        position."""
        fusion = self.fusion
        names = {root.block for root in (*group, *other)}
        inside = fusion.closure(names, fusion.inlined | names)
        if len(inside) >= LARGEST:
            raise Stop(f"a kernel has at most {LARGEST} blocks")
        emitter = Emitter(fusion.view, inside)
        emitter.run(group)
        found = []
        for root in other:
            read = {
                key[1]
                for key in emitter.values
                if isinstance(key, tuple) and key[0] == root.block and not key[2]
            }
            places = read.pop() if len(read) == 1 else self._by_position(emitter, root)
            axes = {expr.single_axis.name for expr in places if expr.single_axis is not None}
            if len(axes) != len(places) or axes != set(emitter.own):
                raise Stop(f"{root.block} lies over other axes")
            found.append(Root(root.block, places))
        return found

    def _by_position(self, emitter: Emitter, root: Root) -> tuple[Expr, ...]:
        shape = self.fusion.view.blocks[root.block].shape
        if shape != tuple(emitter.sizes[name] for name in emitter.own):
            raise Stop(f"{root.block} has another shape")
        return emitter.places

    def _far(self, group: tuple[Root, ...], other: tuple[Root, ...]) -> bool:
        """Whether a third group stands between the two: it reads one and is read by the other."""
        mine = {root.block for root in group}
        start = {root.block for root in other}
        reached: set[str] = set()
        stack = [
            reader
            for name in start
            for reader in self._reading_groups(name)
            if not reader & (mine | start)
        ]
        while stack:
            names = stack.pop()
            if names <= reached:
                continue
            reached |= names
            for name in names:
                for reader in self._reading_groups(name):
                    if reader & mine:
                        return True
                    stack.append(reader)
        return False

    def _reading_groups(self, name: str) -> list[frozenset[str]]:
        """The groups whose kernels read a stored block, as sets of roots."""
        return [
            frozenset(root.block for root in group)
            for group in self.groups
            if group and name in self._needs(group)
        ]

    def _needs(self, group: tuple[Root, ...]) -> set[str]:
        """Stored blocks that a group depends on, bases and params included."""
        if group in self._need_sets:
            return self._need_sets[group]
        view = self.fusion.view
        inside = {root.block for root in group}
        inside |= self.fusion.closure(inside, self.fusion.inlined)
        found = set(self._reads(group))
        for name in inside:
            found |= dependencies(view, name)
        needs = {name for name in found if name in view.blocks and name not in inside}
        self._need_sets[group] = needs
        return needs

    def _in_order(self) -> list[tuple[Root, ...]]:
        """Groups after everything they read; otherwise in the order of the program."""
        left = [group for group in self.groups if group]
        done: set[str] = set()
        result = []
        while left:
            ready = next(g for g in left if self._needs(g) <= done)
            left.remove(ready)
            result.append(ready)
            done |= {root.block for root in ready}
        return result


def dependencies(view: View, name: str) -> set[str]:
    """What a block needs besides what it reads: its base, and the tensors of its params."""
    block = view.blocks[name]
    found = {block.base} if block.base is not None else set()
    for expr in block.expressions:
        for param in params_of(expr):
            found.add(view.params[param].access.tensor)
    return found


def _reads_of(kernel: Kernel) -> int:
    return sum(isinstance(let.expr, Read) for let in kernel.body)


def _in_place(access: Access) -> bool:
    """Whether an access reads along whole axes, each at most once, without guards."""
    names = [expr.single_axis for expr in access.map if not expr.is_constant]
    return not access.guards and None not in names and len(set(names)) == len(names)
