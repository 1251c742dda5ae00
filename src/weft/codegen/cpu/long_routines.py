"""Long routines: several LLVM functions in place of one, and checks of whether the run was
interrupted.

*Parts.* What is cut into blocks has loops for whole blocks and for those at the edges, one after
the other, each with all that a block takes. Some of LLVM's passes take time for every block of a
function with every other: four functions, one for each of the outermost loops, are done in half the
time of one that is as long as all of them.

*Looks.* A routine that takes long looks whether it shall stop: often enough for somebody who waits,
and so seldom that it costs nothing. Routines that are done in a moment look nowhere, and stay as
they are. Work is counted in steps: statements in the innermost loops, weighed by what they take.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from weft.codegen.cpu import ir
from weft.codegen.cpu.ir import LoopKind
from weft.foundation.index_expr import bounds

MANY_STATEMENTS: Final = 500
"""Statements, with unrolled loops written out, from which on a routine is long."""


def parts_of(routine: ir.Routine) -> list[ir.Routine]:
    """The routines that do in turn what a long one does; none for others. Parameters are read once,
    before anything is written."""
    loops = [s for s in routine.body if isinstance(s, ir.For) and s.kind is LoopKind.PARALLEL]
    apart = len(loops) == len(routine.body) > 1 and not routine.params
    if not apart or _statements(routine.body, {}) < MANY_STATEMENTS:
        return []
    return [
        replace(routine, name=f"{routine.name}_{number}", body=(loop,))
        for number, loop in enumerate(loops)
    ]


def _statements(body: tuple[ir.Stmt, ...], around: Mapping[str, tuple[int, int]]) -> int:
    """How many statements are written for a body."""
    total = 0
    for stmt in body:
        if not isinstance(stmt, ir.For):
            total += 1
            continue
        first, last = stmt.span(around)
        once = _statements(stmt.body, {**around, stmt.var: (first, max(first, last))})
        unrolled = stmt.kind is LoopKind.UNROLLED
        total += once * (len(range(first, last + 1, stmt.step)) if unrolled else 1)
    return total


STOP_WORD: Final = 3
"""The word of the executor's state that says to stop; `error` has the state's address."""
MANY_STEPS: Final = 1 << 30
"""Steps from which on a routine is long: some tens of milliseconds of one processor."""
BETWEEN: Final = 1 << 20
"""Steps between two looks, at least: a tenth of a millisecond."""
_HEAVY: Final = 16
"""Steps that a function counts as that is none of these."""
_LIGHT: Final = frozenset(
    {"add", "sub", "mul", "max", "min", "neg", "abs", "cast", "select", "const", "index", "fma"}
)


def in_turn(name: str, parts: list[ir.Routine], arguments: str) -> str:
    """The LLVM text of a routine that is several functions."""
    calls = "\n".join(f"  call void @{part.name}({arguments})" for part in parts)
    return f"define void @{name}({arguments}) nounwind {{\nentry:\n{calls}\n  ret void\n}}"


def looks_of(routine: ir.Routine) -> dict[int, int]:
    """The loops in which a routine looks, by identity, with the number of turns between looks;
    none for a routine that is not long."""
    found: dict[int, int] = {}
    work = _steps_of_body(routine.body, {}, found)
    return found if work >= MANY_STEPS else {}


def _steps_of_body(
    body: tuple[ir.Stmt, ...], around: Mapping[str, tuple[int, int]], found: dict[int, int]
) -> int:
    """The steps of a body. Of loops inside one another, the innermost that takes long enough is
    the one that looks."""
    total = 0
    for stmt in body:
        if not isinstance(stmt, ir.For):
            total += _HEAVY if isinstance(stmt, ir.Let) and stmt.fn not in _LIGHT else 1
            continue
        first, last = stmt.span(around)
        known = len(found)
        once = _steps_of_body(stmt.body, {**around, stmt.var: (first, max(first, last))}, found)
        # Bounds that move with a loop around are near one another, however far they move.
        length = last + 1 - first
        if not (stmt.start.is_constant and stmt.stop.is_constant):
            length = min(bounds(stmt.stop - stmt.start, around)[1], length)
        turns = max(0, -(-length // stmt.step))
        counted = stmt.kind in (LoopKind.SERIAL, LoopKind.PARALLEL)
        # No loop inside looks already, and this one takes long enough.
        if counted and len(found) == known and once * turns >= BETWEEN:
            found[id(stmt)] = max(1, BETWEEN // max(1, once))
        total += once * turns
    return total
