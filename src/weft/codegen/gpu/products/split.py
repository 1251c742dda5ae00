"""Split-K: the sum of a tile in parts, each of which is a work item of its own.

    serial      part p makes its sum, waits until part p - 1 has handed on what is before it, adds,
                and hands on; the last one stores the result
    parallel    every part keeps its sum; whoever comes last adds up all of them and stores

Sums are kept in the kernel's workspace as registers hold them. Either way part 0 comes first, then
part 1, and so on: every run has the same bits. The items of part 0 come before all of part 1: a
block that takes items in order waits only for items that are before its own, and so the first
unfinished one never waits. The last part leaves the tile's counters at zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.accept import refuse, too_many
from weft.codegen.gpu.ir.scalar import Lit, Name, Scalar, wide
from weft.codegen.gpu.products.walks import Counted
from weft.foundation.errors import Finding
from weft.foundation.records import dataclass
from weft.foundation.tally import counted
from weft.plan.sum_parts import SumParts

PART: Final = Name("sum_part")
_STEPS: Final = Name("steps")
_FIRST: Final = Name("first_step")
_DONE: Final = "all_parts"
Body = tuple[ir.Stmt, ...]


@dataclass(frozen=True)
class Split:
    """`parts.count` parts of the k steps of each tile; parts need not be equally long."""

    parts: SumParts
    k_steps: int
    tiles: int

    @property
    def count(self) -> int:
        return self.parts.count

    @property
    def items(self) -> int:
        """Pieces of work: every part of every tile."""
        return self.tiles * self.count

    @property
    def even(self) -> bool:
        return self.k_steps % self.count == 0

    @property
    def fewest(self) -> int:
        """Steps that every part has."""
        return self.k_steps // self.count

    @property
    def item(self) -> Name:
        """The variable that numbers pieces of work: with one part they are the tiles."""
        return Name("tile" if self.count == 1 else "item")

    def locate(self, item: Scalar | None = None) -> tuple[ir.Stmt, ...]:
        """Statements that make `tile` from an item's number, and which steps its part has."""
        if self.count == 1:
            return ()
        number = item or self.item
        found = [ir.Let("tile", number % self.tiles), ir.Let(PART.name, number // self.tiles)]
        found.append(ir.Let(_FIRST.name, self._start(PART)))
        if not self.even:
            found.append(ir.Let(_STEPS.name, self._start(PART + 1) - _FIRST))
        return tuple(found)

    def _start(self, part: Scalar) -> Scalar:
        # The difference of two neighbours is `fewest` or one more: no part goes without steps, and
        # parts differ by one step at most.
        return part * self.fewest if self.even else part * self.k_steps // self.count

    @property
    def first_step(self) -> Scalar:
        """The step of the tile with which the part at hand begins."""
        return Lit(0) if self.count == 1 else _FIRST

    @property
    def steps(self) -> Scalar:
        """How many steps the part at hand has."""
        return Lit(self.fewest) if self.even else _STEPS

    def steps_of(self, item: Scalar) -> Scalar:
        """How many steps the part of any item has."""
        if self.even:
            return Lit(self.fewest)
        part = item // self.tiles
        return self._start(part + 1) - self._start(part)

    def if_last(self, statement: ir.Stmt) -> ir.Stmt:
        """A statement for the last part of a sum."""
        return statement if self.count == 1 else ir.If(PART.equals(self.count - 1), (statement,))

    def has(self, step: Scalar) -> Scalar:
        """Whether the part at hand has a step of this number."""
        known = isinstance(step, Lit) and step.value < self.fewest
        return Lit(1) if known else step < self.steps


@dataclass(frozen=True)
class PhasedSplit(Split):
    """Whole tiles, of which those of some matrices have fewer steps than others: `each` for every
    combination of taps in `phases`, by the place of a matrix along the axes of a batch. A matrix
    has `per_matrix` tiles."""

    phases: tuple[Counted, ...]
    batch: tuple[int, ...]
    per_matrix: int
    each: int

    @property
    def even(self) -> bool:
        return False

    @property
    def fewest(self) -> int:
        return self.each * prod(phase.fewest for phase in self.phases)

    def locate(self, item: Scalar | None = None) -> tuple[ir.Stmt, ...]:
        return (ir.Let(_STEPS.name, self.steps_of(item or self.item)),)

    def steps_of(self, item: Scalar) -> Scalar:
        matrix, places = item // self.per_matrix, list[Scalar]()
        for number, size in reversed(list(enumerate(self.batch))):
            places.insert(0, matrix % size if number else matrix)
            matrix = matrix // size
        found: Scalar = Lit(self.each)
        for phase in self.phases:
            found = found * phase.count(places)
        return found


@dataclass(frozen=True)
class Meeting:
    """The threads that make a share of a tile's sums: their named barrier, how many they are, and
    which of them a thread is; and the number of the share among all of the result."""

    number: Scalar
    threads: int
    member: Scalar
    share: Scalar


@dataclass(frozen=True)
class Handing:
    """How a share of a tile's sums, in register arrays of `words` words each, goes from part to
    part; the result has so many `shares`."""

    split: Split
    arrays: Sequence[str]
    words: int
    shares: int
    meeting: Meeting

    @property
    def workspace(self) -> ir.Workspace | None:
        """A place for every share, and in parallel one for each of its parts."""
        if self.split.count == 1:
            return None
        places = self.shares * (self.split.count if self.split.parts.parallel else 1)
        return ir.Workspace(self.shares, places * self.per_share)

    @property
    def per_share(self) -> int:
        return len(self.arrays) * self.words * self.meeting.threads

    def handed_on(self, finish: Body, otherwise: Body = ()) -> Body:
        """Statements behind the last step of a part, of which the last one does `finish` with the
        whole sum, and the others `otherwise`."""
        if self.split.count == 1:
            return finish
        if self.split.parts.parallel:
            return self._parallel(finish, otherwise)
        return self._serial(finish, otherwise)

    def _serial(self, finish: Body, otherwise: Body) -> Body:
        last, start = self.split.count - 1, self._start(Lit(0))
        # There is no race for the sums: a part passes its turn on after all its threads have stored
        # and met, by a release, and the next one finds it by an acquire, after which its threads
        # meet (`spelling/prelude/partial_sums.py`).
        before = (self._await(PART), *self._add(start))
        behind = (*self._keep(start), self._pass(PART + 1), *otherwise)
        return (
            ir.If(PART > 0, before),
            # Back to 0, as the next launch expects it. The last part waited for this counter, and
            # nobody else does any more.
            ir.If(PART.equals(last), (self._pass(Lit(0)), *finish), behind),
        )

    def _parallel(self, finish: Body, otherwise: Body) -> Body:
        meeting, last = self.meeting, self.split.count - 1
        # Nobody waits here: whoever is the last to count itself off sees what all others have
        # stored, since each count is an acquire and a release; it sets the counter back to 0.
        stride = self.shares * self.per_share
        count = ir.CountOff(
            _DONE, meeting.share, Lit(last), meeting.member, meeting.number, meeting.threads
        )
        whole = tuple(
            ir.GatherSums(array, place, stride, last + 1, meeting.member, meeting.threads)
            for array, place in self._places(self._start(Lit(0)))
        )
        # The last one's own sum goes through memory too: added from registers it would come first
        # or last, as it happens.
        keep = self._keep(self._start(PART))
        return (*keep, count, ir.If(Name(_DONE), (*whole, *finish), otherwise))

    def _start(self, part: Scalar) -> Scalar:
        """Where the sums of a share lie, those of a part where each has a place."""
        return (wide(self.meeting.share) + part * self.shares) * self.per_share

    def _places(self, start: Scalar) -> Iterator[tuple[str, Scalar]]:
        for number, array in enumerate(self.arrays):
            yield array, start + number * self.words * self.meeting.threads

    def _keep(self, start: Scalar) -> Iterator[ir.Stmt]:
        for array, place in self._places(start):
            yield ir.KeepSums(array, place, self.meeting.member, self.meeting.threads)

    def _add(self, start: Scalar) -> Iterator[ir.Stmt]:
        for array, place in self._places(start):
            yield ir.AddSums(array, place, self.meeting.member, self.meeting.threads)

    def _await(self, value: Scalar) -> ir.Stmt:
        meeting = self.meeting
        return ir.AwaitTurn(meeting.share, value, meeting.member, meeting.number, meeting.threads)

    def _pass(self, value: Scalar) -> ir.Stmt:
        meeting = self.meeting
        return ir.PassTurn(meeting.share, value, meeting.member, meeting.number, meeting.threads)


def split_refusals(split: Split) -> Iterator[Finding]:
    """Parts that there are no k steps for, and more of them than can be counted."""
    yield from too_many(split.items, split.count * split.k_steps)
    if isinstance(split, PhasedSplit) and split.count > 1:
        yield refuse("PlanField", "sums of phases, some longer than others, are not made in parts")
    if not 1 <= split.count <= split.k_steps:
        yield refuse(
            "PlanField",
            f"split_k={split.count}, but a sum has {counted(split.k_steps, 'k step')} to divide",
            "use fewer parts or a shorter k tile",
        )
