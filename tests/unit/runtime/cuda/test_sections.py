"""Which steps of a program a device carries out without asking the host."""

from __future__ import annotations

from dataclasses import replace

from weft.runtime.artifact import (
    Again,
    CopyBuffer,
    Enter,
    HostCall,
    Jump,
    JumpUnless,
    Launch,
    Leave,
    Reset,
    Step,
)
from weft.runtime.cuda.sections import LONGEST, Branch, Loop, Section, sections

LAUNCH = Launch(0, (), "launch")
HOST = HostCall("call", (), (), "host")


def branch(*steps: Step) -> list[Step]:
    """A branch whose first body is some steps, and whose second a launch."""
    other = len(steps) + 3
    return [
        JumpUnless(5, other, "branch"), Enter(1, ""), *steps,
        Jump(other + 2, "branch"), Enter(2, ""), LAUNCH,
    ]  # fmt: skip


def test_steps_that_follow_one_another_are_a_section() -> None:
    steps: list[Step] = [LAUNCH, LAUNCH, HOST, LAUNCH]
    assert sections(steps, turning=True) == [Section(0, 2, (0, 1)), Section(3, 4, (3,))]


def test_a_branch_is_part_of_a_section() -> None:
    steps = [*branch(LAUNCH), LAUNCH]
    made = Branch(0, 5, (1, 2), (4, 5))
    assert sections(steps, turning=True) == [Section(0, 7, (made, 6))]
    assert sections(steps, turning=False) == [
        Section(2, 3, (2,)), Section(5, 6, (5,)), Section(6, 7, (6,))
    ]  # fmt: skip


def test_what_is_around_a_step_of_the_hosts_is_the_hosts() -> None:
    found = sections(branch(LAUNCH, HOST), turning=True)
    assert found == [Section(2, 3, (2,)), Section(6, 7, (6,))]


def test_a_loop_is_recognised_by_its_jump_back() -> None:
    steps: list[Step] = [
        LAUNCH, Enter(1, ""), LAUNCH, JumpUnless(7, 7, "loop"), Enter(2, ""), LAUNCH,
        Jump(1, "loop"), LAUNCH,
    ]  # fmt: skip
    made = Loop(1, 7, 3, 7, (1, 2), (4, 5))
    assert sections(steps, turning=True) == [Section(0, 8, (0, made, 7))]


def test_a_branch_within_a_counted_loop_is_a_section_of_its_own() -> None:
    moved = CopyBuffer(0, 1, 4, "slice", 0, 4)
    steps: list[Step] = [Reset(0, ""), Leave(0, 9, 10, ""), moved]
    for step in branch(LAUNCH):
        if isinstance(step, Jump | JumpUnless):
            step = replace(step, target=step.target + 3)
        steps.append(step)
    steps.append(Again(0, 1, ""))
    assert sections(steps, turning=True) == [Section(3, 9, (Branch(3, 5, (4, 5), (7, 8)),))]


def test_entering_a_body_that_draws_nothing_ends_no_section() -> None:
    steps: list[Step] = [LAUNCH, Enter(1, "a"), LAUNCH, Enter(2, "b"), LAUNCH, HOST, Enter(1, "a")]
    (first, second) = sections(steps, turning=True, quiet={1})
    assert (first, second) == (Section(0, 3, (0, 1, 2)), Section(4, 5, (4,)))
    assert first.entered(steps) == [steps[1]]


def test_long_programs_are_several_sections() -> None:
    found = sections([LAUNCH] * (LONGEST + 3), turning=True)
    assert [(s.first, s.last) for s in found] == [(0, LONGEST), (LONGEST, LONGEST + 3)]
