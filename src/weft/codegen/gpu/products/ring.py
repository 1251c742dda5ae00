"""A ring of slots in shared memory as a producer or consumer goes through it: the next slot, and
the parity of its mbarriers, which flips with every round.

Each slot has a barrier that says *full* and one that says *empty*. A barrier counts its completions
by one bit: a wait for parity p passes when the last completed phase has parity p, and before any
was completed the last one counts as 1. Both sides begin with `phase` 0. The consumer waits for
*full* with `phase`: it passes after the first filling. The producer waits for *empty* with
`phase ^ 1`: it passes at once in its first turn, since all slots are empty, and in the next one
after the slot was handed back.

One bit is enough because nobody is two turns ahead of another: a slot is filled again only after it
was emptied, and emptied only after it was filled. A user that leaves out slots (`skip`) has to stay
inside that turn, too, or its wait passes by the phase of two turns before.
"""

from __future__ import annotations

from weft.codegen.gpu import ir
from weft.codegen.gpu.ir.scalar import Lit, Name, Scalar
from weft.foundation.records import dataclass


# Why nobody waits for ever: step s is filled after step s - slots was emptied, and used after it
# was filled. Every wait is for something earlier in that order, so that the earliest thing that is
# not done yet waits for nothing.
@dataclass(frozen=True)
class Ring:
    """The variables of one user, told apart by a prefix where it goes through several rings."""

    slots: int
    prefix: str = ""

    @property
    def slot(self) -> Name:
        return Name(f"{self.prefix}slot")

    @property
    def phase(self) -> Name:
        return Name(f"{self.prefix}phase")

    @property
    def previous(self) -> Scalar:
        """The slot before the next."""
        return (self.slot + (self.slots - 1)) % self.slots

    def start(self) -> tuple[ir.Stmt, ...]:
        return (ir.Let(self.slot.name, Lit(0)), ir.Let(self.phase.name, Lit(0)))

    def advance(self) -> tuple[ir.Stmt, ...]:
        """To the next slot."""
        slot, phase = self.slot, self.phase
        wrap = (ir.Set(slot.name, Lit(0)), ir.Set(phase.name, phase ^ 1))
        return (ir.Set(slot.name, slot + 1), ir.If(slot.equals(self.slots), wrap))

    def skip(self, count: Scalar) -> tuple[ir.Stmt, ...]:
        """Over slots that belong to others."""
        slot, phase = self.slot, self.phase
        if not isinstance(count, Lit):
            ahead = slot + count
            # The phase changes whenever the slot passes the end: as often as whole rings fit into
            # `ahead`.
            turn = ir.Set(phase.name, phase ^ ahead // self.slots % 2)
            return (turn, ir.Set(slot.name, ahead % self.slots))
        turns, rest = divmod(count.value, self.slots)
        turned = (ir.Set(phase.name, phase ^ 1),) if turns % 2 else ()
        if not rest:
            return turned
        # Both numbers are less than a ring: what is left passes the end once at most.
        wrap = (ir.Set(slot.name, slot - self.slots), ir.Set(phase.name, phase ^ 1))
        return (*turned, ir.Set(slot.name, slot + rest), ir.If(slot >= self.slots, wrap))
