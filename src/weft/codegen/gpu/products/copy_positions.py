"""Source coordinates of the next TMA copy of a convolution, as mixed-radix digits that are
incremented with carry from k step to k step: the one thread that issues all copies of a block has
time to add and compare, but not to divide.

    x = x + 8;   carry = x >= 14;  if (carry) x = x - 14
    y = y + 4 + carry; ...                                  64 places further on in a 14 x 14 image
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from weft.codegen.gpu import ir
from weft.codegen.gpu.ir.scalar import Lit, Name, Scalar, scalar
from weft.codegen.gpu.products.walks import Walk
from weft.foundation.records import dataclass


@dataclass(frozen=True)
class Carried:
    """The digits of the contracted axes of a walk, `step` elements of which are a k step. Variables
    are told apart by a prefix."""

    walk: Walk
    step: int
    prefix: str

    @property
    def digits(self) -> Mapping[str, Scalar]:
        return {name: self._variable(name) for name, _ in self.walk.inner}

    def start(self, first: Scalar, batch: Sequence[Scalar]) -> Iterator[ir.Stmt]:
        """Statements that make the digits of a k step, and count the taps of a matrix."""
        for phase in self.walk.phases:
            yield ir.Let(self._count(phase.tap).name, phase.count(batch))
        found: Mapping[str, Scalar] = dict.fromkeys(self.digits, Lit(0))
        if first != Lit(0):
            made = self.walk.inner_digits(first * self.step, batch)
            found = {name: made[name] for name in found}
        for name, value in found.items():
            yield ir.Let(self._variable(name).name, value)

    def advance(self) -> Iterator[ir.Stmt]:
        """Statements that go on to the next k step."""
        counts = {phase.tap: self._count(phase.tap) for phase in self.walk.phases}
        rest, carry = self.step, scalar(0)
        first = self.walk.inner[0][0]
        for name, size in reversed(self.walk.inner):
            # Below a digit of which matrices have more or fewer values all fit into a step.
            assert name not in counts or rest <= 1
            further = rest if name in counts or name == first else rest % size
            rest = 0 if name in counts or name == first else rest // size
            if further == 0 and carry == Lit(0):
                continue
            digit, end = self._variable(name), counts.get(name, scalar(size))
            yield ir.Set(digit.name, digit + further + carry)
            if name == first:
                continue
            # `further` is less than the size and the carry 1 at most: one subtraction is the
            # remainder.
            carry = Name(f"{digit.name}_over")
            yield ir.Let(carry.name, digit >= end)
            yield ir.If(carry, (ir.Set(digit.name, digit - end),))

    def _variable(self, name: str) -> Name:
        place = [axis for axis, _ in self.walk.inner].index(name)
        return Name(f"{self.prefix}_at{place}")

    def _count(self, tap: str) -> Name:
        return Name(f"{self._variable(tap).name}_count")


def carried(walks: Mapping[str, Walk | None], step: int) -> dict[str, Carried]:
    """The digits of some operands by their names; equal ones are carried once."""
    found: dict[str, Carried] = {}
    for name, walk in walks.items():
        if walk is None:
            continue
        same = (c for c in found.values() if _walk_alike(c.walk, walk))
        found[name] = next(same, Carried(walk, step, name))
    return found


def _walk_alike(one: Walk, other: Walk) -> bool:
    return one.inner == other.inner and one.phases == other.phases
