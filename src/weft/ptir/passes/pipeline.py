"""The list of passes, and running them to a fixpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from weft.foundation.calls import told_outside
from weft.foundation.errors import InternalError, SpecViolation
from weft.ptir.ir import Program
from weft.ptir.passes.canonicalise import canonicalise
from weft.ptir.passes.fold import fold
from weft.ptir.passes.log import PassLog
from weft.ptir.passes.redundant import cse, dce
from weft.ptir.streams import assign_streams, drop_default_streams
from weft.ptir.verify import verify

Transform: TypeAlias = Callable[[Program, PassLog], Program]


@dataclass(frozen=True)
class Pass:
    """A named step from program to program. It returns the same object when it changed nothing."""

    name: str
    run: Transform = field(repr=False)
    done_after: frozenset[str] = frozenset()
    """Passes that leave it nothing to do where it ran before them."""


PASSES: tuple[Pass, ...] = (
    Pass("canonicalise", canonicalise),
    Pass("fold", fold),
    # Once every instruction has a form of its own, it has after others are gone.
    Pass("cse", cse, frozenset({"cse", "dce"})),
    Pass("dce", dce),
)
MAX_ROUNDS = 8


@told_outside
def optimise(program: Program, log: PassLog | None = None) -> Program:
    """The program after all passes, until none changes anything. It verifies the program first.

    Results are bit for bit those of the program that was given (but for the sign and payload of
    NaN), random numbers included. The same program always gives the same result.
    """
    verify(program)
    kept_log = PassLog() if log is None else log
    # Numbered here, in the order of the program as it was given: instructions that go or move take
    # no numbers from others.
    current = assign_streams(program)
    done = set[Pass]()
    for _ in range(MAX_ROUNDS):
        before = current
        for step in PASSES:
            if step in done:
                continue
            after = step.run(current, kept_log)
            if after is not current:
                done = {other for other in done if step.name in other.done_after}
            if step.name in step.done_after:
                done.add(step)
            current = after
        # A pass that changes nothing returns the object that it was given.
        if current is before:
            break
    result = drop_default_streams(current)
    try:
        verify(result)
    except SpecViolation as error:
        raise InternalError(f"the passes made an invalid program: {error}") from error
    return result
