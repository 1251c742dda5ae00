"""Horizontal fusion: kernels over the same space are merged where that saves reads.

Two kernels are candidates when one reads what the other stores, or when both read a tensor. They
are merged if no third kernel stands between them, neither has to wait for the other, the result is
a kernel of a known shape within the machine's limits, at least one read disappears, and the
estimate is lower. On a GPU those that have much in common come first, as what an optimiser makes of
one tensor; then those that are hardly longer than their start. Where there are very many kernels of
one number each on a CPU, they are put together first; kernels of short vectors on a GPU, last.

What an optimiser makes of one tensor and of the next stays apart on a GPU: such kernels are one
text (`flat_maps`), and one launch carries them out. They come last, side by side, where what they
read may wait for them in the memory that there is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from typing import TypeAlias

from weft.foundation.index_expr import Expr, axis, substitute
from weft.foundation.memo import memo
from weft.foundation.tally import asked, done
from weft.poly_view.ir import BlockKind
from weft.region.cost import kernel_work
from weft.region.flat_maps import flat_key
from weft.region.fusion.bounds import PLACED
from weft.region.fusion.greedy import LARGEST, Fusion
from weft.region.fusion.order import Order, Traffic
from weft.region.fusion.resources import stop_reason
from weft.region.fusion.signature import REFUSED, Pairs, Verdict
from weft.region.ir import Kernel, Pattern, Read, Weighed
from weft.region.writing.emit import Emitter, Root, Stop, View
from weft.target.target import Kind

Group: TypeAlias = tuple[Root, ...]
LONGEST = 1 << 15
"""Elements of vectors that a GPU reads and writes in less time than it takes to start a kernel."""
LITTLE = 1 / 16
"""Of what a kernel moves, what it has in common with another one that it has nothing to do with."""
MORE = 1 / 32
"""Of the most memory that is in use at one moment, what gradients may add that wait for a launch
with the updates of all tensors: those of the last layers, while activations of all others live."""
PAIRS = "pairs of kernels"
MANY = 32
"""From so many numbers on, kernels compute several that have nothing to do with one another."""


def fuse_greedily(fusion: Fusion) -> list[Group]:
    """The roots of every kernel, in an order in which they can run."""
    fusion.choose()
    return merge_groups(fusion)


def fuse_nothing(fusion: Fusion) -> list[Group]:
    """A kernel for every block that is more than a number."""
    numbers = (name for name in fusion.order if fusion.view.blocks[name].fn == "const")
    free = (name for name in numbers if name not in fusion.must)
    fusion.inlined.update(name for name in free if fusion.is_number_anywhere(fusion.readers[name]))
    fusion.refusals = dict.fromkeys(fusion.stored, "nothing is fused")
    return _Merger(fusion, [(Root(name),) for name in fusion.stored]).in_order()


def merge_groups(fusion: Fusion) -> list[Group]:
    """The roots of every kernel, in an order in which they can run."""
    merger = _Merger(fusion, [(Root(name),) for name in fusion.stored])
    merger.gather_scalars()
    merger.run()
    return merger.in_order()


class _Merger:
    """Groups of roots by number; a group that was merged into another one is gone."""

    def __init__(self, fusion: Fusion, groups: list[Group]) -> None:
        self.fusion = fusion
        self._waits = any(block.after for block in fusion.view.blocks.values())
        self.groups: dict[int, Group] = dict(enumerate(groups))
        self.home = {root.block: n for n, group in self.groups.items() for root in group}
        self.reads = {n: self._reads(group) for n, group in self.groups.items()}
        self.order = Order({n: self._before(group, n) for n, group in self.groups.items()})
        self._readings: dict[Group, frozenset[object]] = {}
        self._pairs = Pairs(fusion.signatures, fusion.members, fusion.settled)
        self._verdicts: dict[object, Verdict] = {}
        self._leads: dict[int, tuple[int, ...] | None] = {}
        self._texts: dict[int, Hashable | None] = {}
        self._texts_of: dict[Group, Hashable | None] = {}
        self.readers: dict[str, set[int]] = {}
        for n, names in self.reads.items():
            for name in names:
                self.readers.setdefault(name, set()).add(n)

    def gather_scalars(self) -> None:
        """Hundreds of numbers that depend on nothing stored are computed by a few kernels: each
        kernel takes longer to compile, and to start, than all of its work."""
        alone = [number for number in self.groups if self._is_scalar(number)]
        if len(alone) < MANY or self.fusion.target.kind is Kind.GPU:
            return
        held: list[int] = []
        size = 0
        for number in alone:
            count = len(self._inside(self.groups[number]))
            if held and size + count > LARGEST:
                self._gather(held)
                held, size = [], 0
            held.append(number)
            size += count
        self._gather(held)

    def _is_scalar(self, number: int) -> bool:
        """Whether a group is one number, computed from numbers that are there already."""
        blocks = [self.fusion.view.blocks[name] for name in self._inside(self.groups[number])]
        plain = all(
            block.kind is BlockKind.EWISE and not block.shape and block.fn not in PLACED
            for block in blocks
        )
        return plain and not self._before(self.groups[number], number)

    def _gather(self, numbers: list[int]) -> None:
        roots = tuple(root for number in numbers for root in self.groups[number])
        try:
            self.fusion.kernel(roots)
        except Stop:
            return
        for other in numbers[1:]:
            self._join(numbers[0], other, roots)

    def run(self) -> None:
        for kin in (True, False) if self.fusion.target.kind is Kind.GPU else (False,):
            for number in sorted(self.groups, reverse=True):
                self._grow(number, kin)
        self._gather_vectors()
        for number in self.groups:
            self._drop_unread(number)

    def _grow(self, number: int, kin: bool) -> None:
        """Merge others into a group, or only its kin; on a GPU, where every kernel less is a launch
        less, then those that read what only these have read."""
        tried, once = set[int](), self.fusion.target.kind is not Kind.GPU
        while number in self.groups:
            size, fresh = len(self.groups[number]), self._candidates(number)
            for other in fresh:
                if other not in tried:
                    self._try(number, other, kin=kin)
            tried.update(fresh)
            if once or len(self.groups[number]) == size:
                return

    def _gather_vectors(self) -> None:
        """On a GPU, vectors of one length that have nothing to do with one another, as those of an
        optimiser, are computed by a few kernels: each takes longer to start than all of its work.
        """
        if self.fusion.target.kind is not Kind.GPU:
            return
        alike: dict[tuple[int, ...], list[int]] = {}
        for number in sorted(self.groups, reverse=True):
            if self._is_vector(number):
                lead = self.fusion.view.blocks[self.groups[number][0].block]
                alike.setdefault(lead.shape, []).append(number)
        for numbers in alike.values():
            left = numbers
            while left:
                first, *rest = left
                left = [other for other in rest if not self._try(first, other, related=False)]

    def _is_vector(self, number: int) -> bool:
        """Whether a group computes vectors, element by element."""
        blocks, group = self.fusion.view.blocks, self.groups[number]
        if any(blocks[root.block].kind is BlockKind.UPDATE for root in group):
            return False
        shapes = {blocks[root.block].shape for root in group}
        sizes = [size for shape in shapes for size in shape if size > 1]
        if len(shapes) > 1 or len(sizes) != 1 or sizes[0] > LONGEST:
            return False
        try:
            return self.fusion.kernel(group)[0].pattern is Pattern.MAP
        except Stop:
            return False

    def in_order(self) -> list[Group]:
        """The groups, each after those that it needs."""
        traffic = self.traffic()
        sequence = self.order.sequence(traffic)
        last = self._updates_last(sequence)
        if last != sequence and traffic.peak(last) <= (1 + MORE) * traffic.peak(sequence):
            sequence = last
        return [self.groups[number] for number in sequence]

    def _updates_last(self, sequence: list[int]) -> list[int]:
        """Another order: results of one text behind all else, the largest first."""
        texts = {number: self._text(number) for number in sequence}
        counts = Counter(texts.values())
        late = [n for n in sequence if texts[n] is not None and counts[texts[n]] > 1]
        blocks, others = self.fusion.view.blocks, set(late)
        late.sort(key=lambda n: -math.prod(blocks[self.groups[n][0].block].shape))
        return [n for n in sequence if n not in others] + late

    def _text(self, number: int) -> Hashable | None:
        """What a group on a GPU is but for names and sizes, where it makes results of the program
        that no other one reads; None where a launch of its own carries it out."""
        if self.order.after[number]:
            return None
        if number not in self._texts:
            group = self.groups[number]
            if group not in self._texts_of:
                self._texts_of[group] = self._text_of(group)
            self._texts[number] = self._texts_of[group]
        return self._texts[number]

    def _text_of(self, group: Group) -> Hashable | None:
        fusion, sources = self.fusion, self.fusion.view.sources
        if fusion.target.kind is not Kind.GPU:
            return None
        if any(sources[root.block].tensor.role != "output" for root in group):
            return None
        try:
            return flat_key(fusion.kernel(group)[0], fusion.tensors)
        except Stop:
            return None

    def _is_one_text(self, number: int, other: int) -> bool:
        """Whether one launch may carry two groups out as they are."""
        text = self._text(number)
        return text is not None and text == self._text(other)

    # -- what a group reads ----------------------------------------------------------------------

    def _inside(self, group: Group) -> set[str]:
        names = {root.block for root in group}
        return names | self.fusion.closure(names, names)

    def _reads(self, group: Group) -> set[str]:
        """Every tensor that a group reads."""
        blocks, inside = self.fusion.view.blocks, self._inside(group)
        return {a.tensor for name in inside for a in blocks[name].accesses} - inside

    def _before(self, group: Group, number: int) -> set[int]:
        """The groups that have to run before this one."""
        needed = self._reads(group) | self._besides(group)
        before = {self.home[name] for name in needed if name in self.home}
        return (before | self._groups_before(group)) - {number}

    def _besides(self, group: Group) -> set[str]:
        """What a group needs besides what it reads."""
        view, inside = self.fusion.view, self._inside(group)
        return set[str]().union(*(dependencies(view, name) for name in inside))

    def _groups_before(self, group: Group) -> set[int]:
        """The groups that this one waits for; where it waits for a block that is stored nowhere,
        those that store what the block is computed from."""
        blocks = self.fusion.view.blocks
        if not self._waits:
            return set()
        stack = [name for member in self._inside(group) for name in blocks[member].after]
        found, seen = set[int](), set(stack)
        while stack:
            name = stack.pop()
            if name in self.home:
                found.add(self.home[name])
            elif name in blocks:
                fresh = {access.tensor for access in blocks[name].accesses} - seen
                seen |= fresh
                stack += fresh
        return found

    def traffic(self) -> Traffic:
        """What every group reads and stores, in bytes."""
        sources = self.fusion.view.sources
        sizes: dict[str, dict[str, int]] = {}
        for name, source in sources.items():
            sizes.setdefault(source.tensor.role, {})[name] = source.tensor.bytes
        internal, handed_out = (sizes.pop(role, {}) for role in ("internal", "output"))
        return Traffic(
            {n: self.reads[n] | self._besides(group) for n, group in self.groups.items()},
            {n: {root.block for root in group} for n, group in self.groups.items()},
            internal,
            {name: size for held in sizes.values() for name, size in held.items()},
            handed_out,
        )

    def _candidates(self, number: int) -> list[int]:
        """Groups that this one reads, or earlier ones that read the same tensors, nearest first.
        What it reads may have become part of a later group."""
        needed = {self.home[name] for name in self.reads[number] if name in self.home}
        found = set(needed)
        for name in self.reads[number]:
            found |= self.readers[name]
        shape = self._lead(number)
        if shape is None:
            return []
        earlier = [n for n in found if (n < number or n in needed) and n in self.groups]
        shapes = {n: lead for n in earlier if (lead := self._lead(n)) is not None}
        return sorted((n for n, lead in shapes.items() if _is_part(lead, shape)), reverse=True)

    def _lead(self, number: int) -> tuple[int, ...] | None:
        """The shape of a group's first block; None where it shares no kernel with others, whatever
        their size."""
        if number not in self._leads:
            group = self.groups[number]
            lead = self.fusion.view.blocks[group[0].block]
            alone = lead.kind in (BlockKind.OPAQUE, BlockKind.UPDATE)
            alone = alone or any(root.block in self.fusion.kept for root in group)
            self._leads[number] = None if alone else lead.shape
        return self._leads[number]

    # -- merging ---------------------------------------------------------------------------------

    def _try(self, number: int, other: int, *, related: bool = True, kin: bool = False) -> bool:
        """Whether two groups are one now: of related ones, if that saves a read; of kin, if they
        have much in common."""
        if other not in self.groups:
            return False
        asked(PAIRS)
        alike = self._is_one_text(number, other)
        key = self._pairs.key(self.groups, number, other), related, kin, alike
        # A refusal that is known costs less than finding out what is between the two.
        if self._verdicts.get(key) is REFUSED or not self._may_join(number, other, related):
            return False
        if key not in self._verdicts:
            done(PAIRS)
            self._verdicts[key] = self._verdict(number, other, related, kin, alike)
        verdict, group, earlier = self._verdicts[key], self.groups[number], self.groups[other]
        if verdict.seconds is not None:
            pair, (spent, apart) = (group[0].block, earlier[0].block), verdict.seconds
            self.fusion.weighed[pair] = Weighed(pair[0], spent, apart, pair[1])
        if verdict.places is None:
            return False
        moved = (Root(r.block, p) for r, p in zip(earlier, verdict.places, strict=True))
        self._join(number, other, (*group, *moved))
        return True

    def _may_join(self, number: int, other: int, related: bool) -> bool:
        """Whether no order of kernels stands against two groups' being one, whatever they are."""
        if self.order.is_between(number, other) or other in self._groups_before(
            self.groups[number]
        ):
            return False
        return related or not self.order.are_neighbours(number, other)

    def _join(self, number: int, other: int, roots: Group) -> None:
        """One group in the place of two."""
        del self.groups[other]
        self.groups[number] = roots
        for gone in (number, other):
            self._pairs.forget(gone)
            self._texts.pop(gone, None)
        self._leads.pop(number, None)
        self.home.update((root.block, number) for root in roots)
        self.reads[number] = self._reads(roots)
        self.order.join(number, other)
        for name in self.reads.pop(other):
            self.readers[name].discard(other)
            self.readers[name].add(number)

    def _drop_unread(self, number: int) -> None:
        """Store nothing that was stored only for kernels which are one now."""
        fusion = self.fusion
        for root in self.groups[number][1:]:
            if root.block in fusion.must:
                continue
            rest = tuple(r for r in self.groups[number] if r is not root)
            users = set(fusion.roots_using(root.block))
            if not users <= {r.block for r in rest}:
                continue
            fusion.inlined.add(root.block)
            try:
                fusion.kernel(rest)
            except Stop:
                fusion.inlined.discard(root.block)
                continue
            self.groups[number] = rest
            self._texts.pop(number, None)
            del self.home[root.block]

    def _verdict(self, number: int, other: int, related: bool, kin: bool, alike: bool) -> Verdict:
        """Whether two groups should be one, which are `alike` where one launch may carry out both.
        The answer holds for every pair with their key."""
        fusion, group, earlier = self.fusion, self.groups[number], self.groups[other]
        if related and not self._may_share(number, other):
            return REFUSED
        try:
            emitter, placed = self._places(group, earlier)
            kernel, seconds = fusion.kernel_with(emitter, group, placed)
            parts = [fusion.kernel(part) for part in (group, earlier)]
        except Stop:
            return REFUSED
        if kernel.roles is not None and self._has_strangers(group, earlier, parts):
            return REFUSED
        # Short kernels are merged even for a number in common: a launch less is worth it.
        stay = alike or (related and (kin or self._are_long(parts)))
        if stay and self._are_strangers(kernel, parts):
            return REFUSED
        reads = sum(_read_count(part) for part, _ in parts)
        if related and _read_count(kernel) >= reads:
            return REFUSED
        if any(stop_reason(part, kernel, fusion.tensors, fusion.target) for part, _ in parts):
            return REFUSED
        apart = sum(time for _, time in parts)
        places = tuple(root.env for root in placed) if seconds < apart else None
        return Verdict(places, (seconds, apart))

    def _are_strangers(self, kernel: Kernel, parts: Sequence[tuple[Kernel, float]]) -> bool:
        """Whether maps on a GPU share only numbers, as the updates of an optimiser's tensors do
        with the rate, or little beside what each of them moves."""
        tensors, target = self.fusion.tensors, self.fusion.target
        if target.kind is not Kind.GPU or kernel.pattern is not Pattern.MAP:
            return False
        together, *apart = (
            kernel_work(one, tensors, target).bytes for one in (kernel, *(p for p, _ in parts))
        )
        # What merging spares is what both read: it is little beside what either moves.
        return sum(apart) - together < LITTLE * min(apart)

    def _are_long(self, parts: Sequence[tuple[Kernel, float]]) -> bool:
        """Whether kernels take more than twice the time of their start. One less is little then,
        and a thread would take one tensor after the other, with the addresses of all of them."""
        launch = self.fusion.target.rates.launch_seconds
        return all(seconds > 2 * launch for _, seconds in parts)

    def _has_strangers(
        self, group: Group, other: Group, parts: Sequence[tuple[Kernel, float]]
    ) -> bool:
        """Whether several maps would be computed beside a contraction of which they are not made:
        its registers hold its sums, and those of other tensors are a kernel of their own."""
        pairs = list(zip((group, other), parts, strict=True))
        maps = [roots for roots, (kernel, _) in pairs if kernel.pattern is Pattern.MAP]
        if len(maps) != 1:
            return False
        made = {root.block for roots, _ in pairs if roots is not maps[0] for root in roots}
        left = list(maps[0])
        while found := [root for root in left if not made.isdisjoint(self._reads((root,)))]:
            made.update(root.block for root in found)
            left = [root for root in left if root not in found]
        return bool(left) and len(group) + len(other) > 2

    def _may_share(self, number: int, other: int) -> bool:
        """Whether a read could disappear where two groups become one. Slices of one tensor are read
        apart; hundreds of them would be drafted pair by pair only to find that out."""
        group, earlier = self.groups[number], self.groups[other]
        if not self.reads[number].isdisjoint(root.block for root in earlier):
            return True
        try:
            return not self._reads_of(group).isdisjoint(self._reads_of(earlier))
        except Stop:
            return False

    def _reads_of(self, group: Group) -> frozenset[object]:
        """What a group reads where, whatever its axes are called: an axis is known by its size. A
        read at places that data names is known by its tensor."""
        if group not in self._readings:
            kernel, _ = self.fusion.kernel(group)
            sizes = {name: axis(f"of {size}") for name, size in kernel.sizes.items()}
            reads = [let.expr for let in kernel.body if isinstance(let.expr, Read)]
            self._readings[group] = frozenset(
                (one.tensor, *(() if one.places else (substitute(e, sizes) for e in one.index)))
                for one in reads
            )
        return self._readings[group]

    def _places(self, group: Group, other: Group) -> tuple[Emitter, Group]:
        """The roots of `other` placed on the axes of `group`: where it reads them, or position by
        position; and who has written `group`."""
        fusion = self.fusion
        inside = fusion.members((*group, *other))
        if len(inside) >= LARGEST:
            raise Stop(f"a kernel has at most {LARGEST} blocks")
        emitter = Emitter(fusion.view, inside)
        emitter.run(group)
        reduced = {name for reduction in emitter.reductions for name in reduction.axes}
        found = []
        for root in other:
            read = {
                places
                for (block, places, guards) in emitter.values
                if block == root.block and not guards
            }
            places = read.pop() if len(read) == 1 else self._by_position(emitter, root, reduced)
            axes = {expr.single_axis.name for expr in places if expr.single_axis is not None}
            missing = set(emitter.own) - axes
            if missing and not inside.isdisjoint(fusion.settled):
                raise Stop(f"{root.block} is read by a chain whose kernels are joined as they are")
            if len(axes) != len(places) or not missing <= reduced:
                raise Stop(f"{root.block} lies over other axes")
            found.append(Root(root.block, places))
        return emitter, tuple(found)

    def _by_position(
        self, emitter: Emitter, root: Root, reduced: Collection[str]
    ) -> tuple[Expr, ...]:
        """A block with an element for each of the kernel's, or for each of its rows."""
        shape = self.fusion.view.blocks[root.block].shape
        if shape == tuple(emitter.sizes[name] for name in emitter.own):
            return emitter.places
        rows = [name for name in emitter.own if name not in reduced]
        if not rows or shape != tuple(emitter.sizes[name] for name in rows):
            raise Stop(f"{root.block} has another shape")
        return tuple(map(axis, rows))


def dependencies(view: View, name: str) -> set[str]:
    """What a block needs besides what it reads: its base, and the tensors of its params."""
    block = view.blocks[name]
    if block.base is None and not block.params:
        return set()
    found = {block.base} if block.base is not None else set()
    found.update(view.params[param].access.tensor for param in block.params)
    return found


@memo(1 << 12)
def _is_part(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether a shape has no axes that another one has not, in whatever order."""
    return Counter(shape) <= Counter(other)


def _read_count(kernel: Kernel) -> int:
    return sum(isinstance(let.expr, Read) for let in kernel.body)
