"""Sections of a program: steps that a device carries out without the host.

    Part    = the number of a launch or a copy
            | Branch(flag, taken, otherwise)
            | Loop(flag, head, body)      head; and while the flag holds, body and head again

Branches and loops are recognised in the list of steps by their jumps:

    branch:       jump unless f to other;  ...;  jump to end;  other: ...;  end:
    loop:   head: ...;  jump unless f to end;  ...;  jump to head;  end:

A branch or loop in which anything is the host's, or moves with the turns of a counted loop, is the
host's too; what lies inside it may still be the device's. That a body is entered is no work for the
device where no random numbers depend on it: `quiet` are those bodies.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from weft.runtime.artifact import (
    Again,
    CopyBuffer,
    Enter,
    Jump,
    JumpUnless,
    Launch,
    Leave,
    Step,
)

LONGEST: Final = 1024
"""The most parts of a section: what a graph takes to be made ready grows with its nodes."""


@dataclass(frozen=True)
class Branch:
    """One of two lists of parts, by the i1 in a buffer."""

    step: int
    flag: int
    taken: tuple[Part, ...]
    otherwise: tuple[Part, ...]


@dataclass(frozen=True)
class Loop:
    """The head decides, by the i1 in a buffer, whether the body follows and then the head again.
    All its steps are from `first` to before `last`."""

    first: int
    last: int
    step: int
    flag: int
    head: tuple[Part, ...]
    body: tuple[Part, ...]


Part: TypeAlias = int | Branch | Loop


@dataclass(frozen=True)
class Section:
    """Steps from `first` to before `last`, all the device's, into the midst of which nothing
    jumps."""

    first: int
    last: int
    parts: tuple[Part, ...]

    @property
    def turns(self) -> bool:
        """Whether there is a branch or a loop."""
        return any(not isinstance(part, int) for part in self.parts)

    def entered(self, steps: Sequence[Step]) -> list[Enter]:
        """The bodies that are entered whatever happens, and which the host counts."""
        found = (steps[part] for part in self.parts if isinstance(part, int))
        return [step for step in found if isinstance(step, Enter)]


def is_straight(step: Step, quiet: Container[int] = ()) -> bool:
    """Whether a step is the same work for the device in every turn of every run."""
    if isinstance(step, CopyBuffer):
        return not (step.source_step or step.target_step)
    return isinstance(step, Launch) or (isinstance(step, Enter) and step.body in quiet)


def sections(
    steps: Sequence[Step],
    *,
    turning: bool,
    quiet: Container[int] = (),
    exchanged: Container[int] = (),
) -> list[Section]:
    """The longest sections of a program; with branches and loops only where the device is able to
    turn. The steps `exchanged` are the device's as well, outside of branches and loops."""
    constructs = _Constructs(steps).found() if turning else {}
    inside = {n for first, (_, last) in constructs.items() for n in range(first, last)}
    # Something outside jumps there, so a section must not go across: it could be entered in its
    # midst.
    targets = {
        step.target
        for number, step in enumerate(steps)
        if isinstance(step, Jump | JumpUnless | Leave | Again) and number not in inside
    }
    return list(_sections(steps, constructs, targets, quiet, exchanged))


def _sections(
    steps: Sequence[Step],
    constructs: dict[int, tuple[Part, int]],
    targets: set[int],
    quiet: Container[int],
    exchanged: Container[int],
) -> Iterator[Section]:
    first, parts, number = 0, list[Part](), 0
    while number <= len(steps):
        ends = number == len(steps) or not (
            number in constructs or number in exchanged or is_straight(steps[number], quiet)
        )
        if (ends or number in targets or len(parts) == LONGEST) and parts:
            if any(not isinstance(part, int) or _works(steps[part]) for part in parts):
                yield Section(first, number, tuple(parts))
            parts.clear()
        if not parts:
            first = number
        if ends:
            number += 1
        elif number in constructs:
            part, number = constructs[number]
            parts.append(part)
        else:
            parts.append(number)
            number += 1


def _works(step: Step) -> bool:
    return not isinstance(step, Enter)


class _Constructs:
    """The outermost branches and loops of a list of steps that are the device's as a whole."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        # Only a loop jumps backward by `Jump`; counted loops do so by `Again`.
        backward = [n for n, s in enumerate(steps) if isinstance(s, Jump) and s.target <= n]
        self.loops = {self._jump(n).target: n for n in backward}

    def found(self) -> dict[int, tuple[Part, int]]:
        """By the step where each begins: what it is, and the step behind it."""
        made: dict[int, tuple[Part, int]] = {}
        number = 0
        while number < len(self.steps):
            construct = self._at(number)
            if construct is None:
                number += 1
            else:
                made[number] = construct
                number = construct[1]
        return made

    def _at(self, number: int) -> tuple[Part, int] | None:
        """The branch or loop that begins at a step."""
        if number in self.loops:
            return self._loop(number, self.loops[number])
        step = self.steps[number]
        # The step before the other side of a branch jumps forward, over that side; that before the
        # end of a loop jumps back.
        if isinstance(step, JumpUnless) and self._jump(step.target - 1).target > number:
            return self._branch(number, step)
        return None

    def _jump(self, number: int) -> Jump:
        step = self.steps[number]
        return step if isinstance(step, Jump) else Jump(-1, "")

    def _branch(self, number: int, step: JumpUnless) -> tuple[Part, int] | None:
        end = self._jump(step.target - 1).target
        taken = self._inside(number + 1, step.target - 1)
        otherwise = self._inside(step.target, end)
        if taken is None or otherwise is None:
            return None
        return Branch(number, step.buffer, taken, otherwise), end

    def _loop(self, head: int, jump: int) -> tuple[Part, int] | None:
        leave = next(
            n
            for n in range(head, jump)
            if isinstance(s := self.steps[n], JumpUnless) and s.target == jump + 1
        )
        step = self.steps[leave]
        parts, body = self._inside(head, leave, head), self._inside(leave + 1, jump)
        if parts is None or body is None or not isinstance(step, JumpUnless):
            return None
        return Loop(head, jump + 1, leave, step.buffer, parts, body), jump + 1

    def _inside(self, first: int, last: int, head: int = -1) -> tuple[Part, ...] | None:
        """The parts of some steps; None where one of them is the host's. The `head` of the loop
        that they are the head of begins no other."""
        parts: list[Part] = []
        number = first
        while number < last:
            construct = self._at(number) if number != head else None
            if construct is not None:
                part, number = construct
                parts.append(part)
            elif is_straight(self.steps[number]) or isinstance(self.steps[number], Enter):
                parts.append(number)
                number += 1
            else:
                return None
        return tuple(parts)
