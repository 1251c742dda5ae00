"""Greedy fusion, backward from the outputs, with one step of rollback.

Blocks are visited from the last to the first. A block is written into every kernel that reads it
(*inlined*) when that is legal, within the machine's limits, and cheaper than storing it and reading
it back; otherwise it is *stored* and begins a kernel of its own. Elementwise blocks may be
duplicated; a reduction or contraction is computed once or not inlined at all. When a block has to
be stored because a reader of it was inlined into several kernels, storing that reader instead is
tried (the rollback).

Another start is to store every block that a kernel would read at several places (`one_place`): what
is inlined then does no work twice. Which of the two takes less time is for the caller to say.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from functools import cached_property
from typing import TypeAlias

from weft.foundation.dtypes import I1, INDICES
from weft.foundation.records import dataclass, replace
from weft.foundation.tally import asked, done
from weft.poly_view.ir import BlockKind
from weft.region.cost import kernel_seconds, operations_of
from weft.region.fusion.bounds import PLACED, Bounds, reads_in_place
from weft.region.fusion.read_counts import meet, places_of
from weft.region.fusion.resources import stop_reason
from weft.region.fusion.signature import Signatures
from weft.region.ir import Kernel, Tensor, Weighed
from weft.region.structure import on_tensors
from weft.region.writing.assemble import assemble, draft, drafted
from weft.region.writing.emit import Emitter, Root, Stop, View
from weft.target.target import Kind, Target

Begun: TypeAlias = tuple[Emitter, tuple[Root, ...]] | None
"""Who has written the first roots of a kernel, and the roots that are left."""
Inside: TypeAlias = Mapping[str, frozenset[str]]
"""Kernels by their roots, with the blocks that they inline."""
HEAVY = (BlockKind.REDUCE, BlockKind.CONTRACTION)
DRAFTS = "kernels drafted"
KERNELS = "kernels written out"
SMALL = 64
"""Elementwise kernels of fewer blocks than this are within the limits of registers."""
ROUNDING = 1e-9
"""The part of a time by which sums in another order may differ."""
LARGEST = 160
"""The most blocks that one kernel computes."""
LONG = 16
"""Operations of one number that are worth a kernel of its own, or blocks that say on
which side of a place an element is."""
_EDGES = 16
"""How many times as many elements a block has as what counts as its edges."""
MANY = 1 << 16
"""Elements that such a number must be for."""


@dataclass(frozen=True)
class Drafted:
    """A kernel that was drafted on tensors `known`, with its time, for other tensors of the same
    shapes. Those of one `structure` are the same but for that."""

    structure: int
    made: Kernel
    known: tuple[str, ...]
    tensors: tuple[str, ...]
    seconds: float

    def on(self, tensors: tuple[str, ...]) -> Drafted:
        """The same on other tensors."""
        if tensors == self.tensors:
            return self
        return Drafted(self.structure, self.made, self.known, tensors, self.seconds)

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel on its own tensors."""
        if self.tensors == self.known:
            return self.made
        return on_tensors(self.made, dict(zip(self.known, self.tensors, strict=True)))


@dataclass
class Fusion:
    """The choice for one program. `order` has every block after what it reads; `must` gives, for
    blocks that have to be stored, the reason; `settled` are blocks of chains whose kernels are
    joined later, and which nobody chooses about a second time."""

    view: View
    target: Target
    order: Sequence[str]
    must: Mapping[str, str]
    settled: Collection[str] = ()
    inlined: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    refusals: dict[str, str] = field(default_factory=dict)
    """Why blocks that could have been inlined are stored."""
    weighed: dict[tuple[str, str], Weighed] = field(default_factory=dict)
    """What estimates decided: by block, or by two that could have been stored by one kernel."""
    one_place: bool = False
    """Whether blocks that a kernel would read at several places are stored."""
    kept: frozenset[str] = frozenset()
    """Stored blocks whose kernels are not merged with others: stages may come of them."""

    def __post_init__(self) -> None:
        self.tensors: dict[str, Tensor] = {
            source.tensor.name: source.tensor for source in self.view.sources.values()
        }
        self.sources = {
            name: tuple(access.tensor for access in block.accesses)
            for name, block in self.view.blocks.items()
        }
        self.readers: dict[str, dict[str, None]] = {name: {} for name in self.order}
        for name in self.order:
            for source in self.sources[name]:
                if source in self.readers:
                    self.readers[source][name] = None
        self._places = {name: number for number, name in enumerate(self.order)}
        self._bounds = Bounds(self.view, self.target, self._places)
        self.signatures = Signatures(self.view)
        self._known: dict[tuple[tuple[Root, ...], frozenset[str]], Drafted | str] = {}
        # Equal layers have equal kernels: drafts, and what is known of them, are found by a
        # signature that names no tensor.
        self._drafts: dict[object, Drafted | str] = {}
        self._stops: dict[object, str | None] = {}
        self._finished: dict[object, tuple[Kernel, tuple[str, ...]]] = {}

    def afresh(self, *, one_place: bool = False) -> Fusion:
        """The choice from the beginning, with what is known of kernels already."""
        made = replace(self, inlined=set(), notes=[], refusals={}, weighed={}, one_place=one_place)
        made._known, made._drafts, made._finished = self._known, self._drafts, self._finished
        # Drafts are known by numbers that signatures give out.
        made._stops, made.signatures = self._stops, self.signatures
        return made

    def repeating(self) -> Iterator[str]:
        """The stored blocks whose kernels only map elements, and compute a block at several
        places."""
        for root in self.stored:
            inside = self.closure((root,))
            if self._maps((root, *inside)) and self._repeated_blocks(root, inside):
                yield root

    def _maps(self, names: Iterable[str]) -> bool:
        kinds = {self.view.blocks[name].kind for name in names}
        return kinds <= {BlockKind.EWISE, BlockKind.MOVEMENT}

    def _repeated_blocks(self, root: str, inside: Collection[str]) -> set[str]:
        """The blocks of those that a kernel inlines which it computes at several places."""
        worth = [name for name in inside if self.is_work(name)]
        if not worth:
            return set()
        blocks, params = self.view.blocks, self.view.params
        found = places_of(blocks, self._places, root, inside)
        return {n for n in worth if meet(found.get(n, ()), blocks[n], blocks[root], params)}

    def is_work(self, name: str) -> bool:
        """Whether a block is elementwise, and it takes anything to compute it again."""
        block = self.view.blocks[name]
        return block.kind is BlockKind.EWISE and block.fn not in ("const", "cast", *PLACED)

    def _is_read_apart(self, name: str) -> bool:
        """Whether a kernel that inlined a block would compute it at several places."""
        if not self.is_work(name):
            return False
        users = self.roots_using(name)
        return any(
            name in self._repeated_blocks(user, self.closure((user,), (name,))) for user in users
        )

    def choose(self) -> None:
        """Decide about every block."""
        for name in reversed(self.order):
            if name not in self.must:
                self._decide(name)

    @property
    def stored(self) -> list[str]:
        """The blocks that are not inlined, in order."""
        return [name for name in self.order if name not in self.inlined]

    def why_stored(self, name: str) -> str:
        """Why a block is not inlined, where it is not."""
        why = self.must.get(name) or self.refusals.get(name)
        return why or "the kernels around it take less time with it stored"

    # -- one block -------------------------------------------------------------------------------

    def _decide(self, name: str) -> None:
        if self.one_place and self._is_read_apart(name):
            why = self._try_inline(name, self._kernels_using(name))
            self.refusals[name] = why or "a kernel reads it at several places"
            return
        if self._is_number_for_many(name):
            self.refusals[name] = "it is a single number, which every thread would compute again"
            return
        why = self._refusal(name)
        known = self.weighed.get((name, ""))
        if why is None:
            self.inlined.add(name)
        elif not self._roll_back(name, why):
            self.refusals[name] = why
            # Trying what a rollback would bring has weighed the block again: what is reported is
            # what was weighed before.
            self.weighed.pop((name, ""), None)
            if known is not None:
                self.weighed[name, ""] = known

    def _is_number_for_many(self, name: str) -> bool:
        """Whether a block is one number that takes long and that many elements are computed with,
        such as an optimiser's correction by the number of its step. An estimate counts it once; but
        every thread of a GPU computes it, and a matrix kernel's code has it for every result of a
        thread: two powers a result took the compiler 100 s, and the kernel twice its time. On a CPU
        every vector of a map computes it, and every kernel has its code."""
        if self._points(name) != 1:
            return False
        many = any(self._points(reader) >= MANY for reader in self.readers[name])
        return many and self._operations(name) >= LONG

    def _points(self, name: str) -> int:
        return math.prod(axis.size for axis in self.view.blocks[name].axes)

    def _operations(self, name: str) -> int:
        """What one number takes, with the numbers it is made of."""
        parts, found = [name], {name}
        while parts:
            sources = self.sources[parts.pop()]
            fresh = [n for n in sources if n in self.readers and self._points(n) == 1]
            parts += [n for n in fresh if n not in found]
            found.update(fresh)
        return sum(operations_of(self.view.blocks[n].fn) for n in found)

    def _refusal(self, name: str) -> str | None:
        """Why a block cannot or should not be inlined; None where it should."""
        block = self.view.blocks[name]
        if block.kind is BlockKind.EWISE and block.fn == "const":
            users = self.roots_using(name)
            if self.is_number_anywhere([*users, *self.closure(users)]):
                return None
        inside = self._kernels_using(name)
        return None if self._surely(name, inside) else self._try_inline(name, inside)

    def _surely(self, name: str, inside: Inside) -> bool:
        """Whether inlining needs no estimate: an elementwise block that one small kernel
        reads, element by element, and that itself reads nothing out of place; or one that takes
        less time than starting a kernel does, wherever it is read."""
        block = self.view.blocks[name]
        if block.kind is not BlockKind.EWISE or block.fn in PLACED or block.fn == "const":
            return False
        return self._reads_in_place(name, inside) or self._is_cheap(name, inside)

    def is_number_anywhere(self, readers: Iterable[str]) -> bool:
        """Whether a number can stand in all these blocks. Part of a tensor that a gather reads, it
        may be under a guard on the place that data names, which only reads of memory can have."""
        return not any(self.view.blocks[reader].selected for reader in readers)

    def _reads_in_place(self, name: str, kernels: Inside) -> bool:
        block = self.view.blocks[name]
        # The table of a gather is read out of place wherever the gather is computed.
        reads = block.accesses[:1] if block.selected else block.accesses
        if len(kernels) != 1 or not all(reads_in_place(a) for a in reads):
            return False
        ((user, found),) = kernels.items()
        inside = [user, *found]
        if len(inside) >= SMALL:
            return False
        points = math.prod(block.shape)
        return all(
            math.prod(a.size for a in self.view.blocks[reader].axes) == points
            and all(
                reads_in_place(a) for a in self.view.blocks[reader].accesses if a.tensor == name
            )
            for reader in inside
            if name in self.sources[reader]
        )

    def _is_cheap(self, name: str, closures: Inside) -> bool:
        if self.target.kind is Kind.GPU or self._private_chain(name):
            return False
        most = max((len(inside) for inside in closures.values()), default=0)
        apart = self.inlined.isdisjoint(self.sources[name])
        return most < LARGEST and self._bounds.is_cheap(name, closures, apart)

    def _kernels_using(self, name: str) -> dict[str, frozenset[str]]:
        """The kernels that would contain a block, by their roots, with what they inline now."""
        return {user: self.closure((user,)) for user in self.roots_using(name)}

    def _try_inline(self, name: str, inside: Inside) -> str | None:
        """Why a block cannot or should not be inlined into kernels; None where it should."""
        users = list(inside)
        if any(len(found) >= LARGEST for found in inside.values()):
            return f"a kernel that reads it has {LARGEST} blocks already"
        heavy = self.view.blocks[name].kind in HEAVY
        if heavy and len(users) > 1:
            return f"{len(users)} kernels read it"
        more = {name, *self.closure((name,))}
        try:
            before = [self._find_draft((Root(user),), inside[user]) for user in users]
            after = [self._find_draft((Root(user),), inside[user] | more) for user in users]
        except Stop as reason:
            return str(reason)
        for old, new in zip(before, after, strict=True):
            stop = self._stop(old, new)
            if stop is not None:
                return stop
        if self._is_border(name):
            return None
        spent = sum(found.seconds for found in after)
        stored = sum(found.seconds for found in before) + self._cost_of_storing(name, users)
        self.weighed[name, ""] = Weighed(name, spent, stored)
        # Each kernel that reads it, with it inside, against all of them reading it, and one that
        # stores it. What else will be decided later is not known here: blocks are visited once.
        if not is_shorter(spent, stored):
            return f"computing it {len(users)} times takes {spent - stored:.2g} s longer"
        return None

    def _is_border(self, name: str) -> bool:
        """Whether a block says on which side of a place an element is: a truth of counters and
        numbers alone, as that of a padding, or of the rows that an attention's query sees, or of
        integers of its rows and of its columns, as those of packed sequences. Where loops are cut
        at that place, and blocks of keys that nobody sees are left out, it takes nothing, and
        nowhere much; a kernel that reads it instead does not know the place."""
        if self.view.blocks[name].dtype is not I1:
            return False
        parts, found, numbers = [name], {name}, False
        while parts and len(found) <= LONG:
            sources = self.sources[parts.pop()]
            fresh = [source for source in dict.fromkeys(sources) if source not in found]
            few = [source for source in fresh if self._is_of_edges(source, name)]
            numbers = numbers or bool(few)
            fresh = [source for source in fresh if source not in few]
            if not all(source in self.readers for source in fresh):
                return False
            parts += fresh
            found.update(fresh)
        blocks = [self.view.blocks[part] for part in found]
        return (
            len(found) <= LONG
            and all(
                block.kind in (BlockKind.EWISE, BlockKind.MOVEMENT)
                and (block.fn == "iota" or block.fn not in PLACED)
                and operations_of(block.fn) == 1
                for block in blocks
            )
            and (numbers or any(block.fn == "iota" for block in blocks))
        )

    def _is_of_edges(self, source: str, name: str) -> bool:
        """Whether something is integers in memory, far fewer than a block has elements, and not
        counted there."""
        block = self.view.blocks.get(source)
        if block is not None and block.kind in (BlockKind.EWISE, BlockKind.MOVEMENT):
            return False
        tensor = self.view.sources[source].tensor
        points = self._points(name)
        return tensor.dtype in INDICES and _EDGES * math.prod(tensor.shape) <= points

    def _cost_of_storing(self, name: str, users: Sequence[str]) -> float:
        """The time it takes to store a block that several kernels read, or one by windows, which
        may have to compute it several times: a kernel of its own, or what it adds to the kernel of
        a contraction that nobody else reads, as its last step."""
        alone = self._seconds(name)
        windows = self.target.kind is Kind.CPU and any(map(self._reduces_windows, users))
        chain = self._private_chain(name) if windows or len(users) > 1 else []
        if not chain:
            return alone
        try:
            with self._suppose(inlined=chain[1:]):
                short = self._find_draft((Root(chain[0]),))
            with self._suppose(inlined=chain):
                whole = self._find_draft((Root(name),))
        except Stop:
            return alone
        if self._stop(short, whole) is not None:
            return alone
        return min(alone, whole.seconds - short.seconds)

    def _reduces_windows(self, name: str) -> bool:
        block = self.view.blocks[name]
        return block.kind is BlockKind.REDUCE and not all(map(reads_in_place, block.accesses))

    def _private_chain(self, name: str) -> list[str]:
        """The blocks from what this one reads up to a contraction, each read by the next one alone;
        none where there is no such contraction."""
        chain: list[str] = []
        while name in self._toward_contractions:
            name = self._toward_contractions[name]
            chain.append(name)
            if self.view.blocks[name].kind is BlockKind.CONTRACTION:
                break
        return chain

    @cached_property
    def _toward_contractions(self) -> dict[str, str]:
        """The first block of each such chain, by the block that reads it; of several the last."""
        found: dict[str, str] = {}
        for name in self.order:
            for source in filter(self._is_private, self.sources[name]):
                if source in found or self.view.blocks[source].kind is BlockKind.CONTRACTION:
                    found[name] = source
        return found

    def _is_private(self, name: str) -> bool:
        """Whether a block may be inlined, has operands, and has one reader."""
        if name not in self.readers or name in self.must or not self.sources[name]:
            return False
        return len(self.readers[name]) == 1 and self.view.blocks[name].kind is not BlockKind.REDUCE

    def _seconds(self, *names: str) -> float:
        """The time of kernels that store one block each."""
        return sum(map(self._alone, names))

    def _alone(self, name: str) -> float:
        inside = self.closure((name,))
        if self.target.kind is not Kind.GPU and self._bounds.of_numbers(name, inside):
            return self._bounds.seconds_of_numbers(name, inside)
        return self._find_draft((Root(name),), inside).seconds

    def _roll_back(self, name: str, why: str) -> bool:
        """Store a block that was inlined before, so that this one can be inlined into it, which it
        cannot be where that block is read; `why` says so."""
        best: tuple[float, str] | None = None
        for reader in self._followers(name):
            users = self.roots_using(reader)
            try:
                with self._suppose(stored=[reader]):
                    if self._refusal(name) is not None:
                        continue
                    then = self._seconds(*users)
                    with self._suppose(inlined=[name]):
                        then += self._seconds(reader)
                now = self._seconds(*users, name)
            except Stop:
                continue
            if is_shorter(then, now) and (best is None or is_shorter(then - now, best[0])):
                best = then - now, reader
        if best is None:
            return False
        reader = best[1]
        self.inlined.discard(reader)
        self.inlined.add(name)
        self.refusals[reader] = why
        return True

    def _followers(self, name: str) -> Iterator[str]:
        """What reads a block and is inlined, and what takes fewer bytes and is made of that alone:
        a sum that is scaled and rounded is best stored rounded."""
        for reader in self.readers[name]:
            here: str | None = reader
            least = math.inf
            while here is not None and here in self.inlined:
                block = self.view.blocks[here]
                size = math.prod(block.shape) * block.dtype.storage_bytes
                if size < least:
                    least = size
                    yield here
                (here,) = self.readers[here] if len(self.readers[here]) == 1 else (None,)

    @contextmanager
    def _suppose(self, inlined: Sequence[str] = (), stored: Sequence[str] = ()) -> Iterator[None]:
        """The choice changed for a moment: blocks inlined that are stored, or the reverse."""
        self.inlined.update(inlined)
        self.inlined.difference_update(stored)
        try:
            yield
        finally:
            self.inlined.difference_update(inlined)
            self.inlined.update(stored)

    # -- kernels ---------------------------------------------------------------------------------

    def roots_using(self, name: str) -> list[str]:
        """The stored blocks whose kernels would contain this block, if it were inlined."""
        found: dict[str, None] = {}
        inlined, readers = self.inlined, self.readers
        stack, seen = list(readers[name]), set[str]()
        while stack:
            reader = stack.pop()
            if reader not in inlined:
                found[reader] = None
                continue
            for further in readers[reader]:
                if further not in seen:
                    seen.add(further)
                    stack.append(further)
        return list(found)

    def closure(self, roots: Iterable[str], more: Collection[str] = ()) -> frozenset[str]:
        """The inlined blocks that kernels with these roots compute; `more` are inlined too."""
        found: set[str] = set()
        inlined, sources = self.inlined, self.sources
        stack = [source for root in roots for source in sources[root]]
        while stack:
            name = stack.pop()
            if (name in inlined or name in more) and name not in found:
                found.add(name)
                stack += sources[name]
        return frozenset(found)

    def members(self, roots: tuple[Root, ...]) -> frozenset[str]:
        """What a kernel with these roots inlines, also of one another."""
        names = {root.block for root in roots}
        return self.closure(names, names)

    def kernel(self, roots: tuple[Root, ...]) -> tuple[Kernel, float]:
        """A draft of the kernel of some roots, and its time."""
        found = self._find_draft(roots)
        return found.kernel, found.seconds

    def kernel_with(
        self, begun: Emitter, group: tuple[Root, ...], more: tuple[Root, ...]
    ) -> tuple[Kernel, float]:
        """The same for a group and more roots, where an emitter has written the group and knows
        what all of them inline."""
        found = self._find_draft((*group, *more), begun.inlined, (begun, more))
        return found.kernel, found.seconds

    def drafted(self, roots: tuple[Root, ...], needed: frozenset[str]) -> tuple[Kernel, float]:
        """The same for roots that inline what is `needed`, whatever is chosen now."""
        found = self._find_draft(roots, needed)
        return found.kernel, found.seconds

    def _stop(self, old: Drafted, new: Drafted) -> str | None:
        """Why a kernel should not become another one, found out once for kernels of one structure
        that have the same tensors in common."""
        places = {name: place for place, name in enumerate(new.tensors)}
        shared = tuple(places.get(name) for name in old.tensors)
        key = old.structure, new.structure, shared, self.one_place
        if key not in self._stops:
            self._stops[key] = stop_reason(
                old.kernel, new.kernel, self.tensors, self.target, in_stages=self.one_place
            )
        return self._stops[key]

    def _find_draft(
        self, roots: tuple[Root, ...], needed: frozenset[str] | None = None, begun: Begun = None
    ) -> Drafted:
        needed = self.members(roots) if needed is None else needed
        known = (roots, needed)
        found = self._known.get(known)
        if found is None:
            key, tensors = self.signatures.of(roots, needed)
            asked(DRAFTS)
            made = self._drafts.get(key)
            if made is None:
                done(DRAFTS)
                made = self._drafts[key] = self._draft(roots, needed, tensors, begun)
            found = self._known[known] = made if isinstance(made, str) else made.on(tensors)
        if isinstance(found, str):
            raise Stop(found)
        return found

    def _draft(
        self,
        roots: tuple[Root, ...],
        needed: frozenset[str],
        tensors: tuple[str, ...],
        begun: Begun = None,
    ) -> Drafted | str:
        try:
            if begun is None:
                kernel = draft(self.view, roots, needed)
            else:
                emitter, more = begun
                emitter.add(more)
                kernel = drafted(emitter)
        except Stop as reason:
            return str(reason)
        seconds = kernel_seconds(kernel, self.tensors, self.target)
        return Drafted(len(self._drafts), kernel, tensors, tensors, seconds)

    def finished(self, roots: tuple[Root, ...]) -> Kernel:
        """The kernel of some roots as it will be; equal ones are written out once."""
        needed = self.members(roots)
        blocks = [self.view.blocks[name] for name in (*needed, *(r.block for r in roots))]
        if any(block.value_id and block.name != block.value_id for block in blocks):
            return assemble(self.view, roots, needed)
        key, tensors = self.signatures.of(roots, needed)
        asked(KERNELS)
        if key not in self._finished:
            done(KERNELS)
            self._finished[key] = assemble(self.view, roots, needed), tensors
        kernel, known = self._finished[key]
        return on_tensors(kernel, dict(zip(known, tensors, strict=True)))


def is_shorter(one: float, other: float) -> bool:
    """Whether one time is shorter than another by more than rounding: equal parts of a program add
    their times up in other orders, and are still cut alike."""
    return one < other * (1 - ROUNDING)
