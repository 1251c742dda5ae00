"""Long routines are several functions, one for each of their outermost loops.

What is cut into blocks has loops for whole blocks and for those at the edges, one after the other,
each with all that a block takes. Some of LLVM's passes take time for every block of a function with
every other: four functions are done in half the time of one that is as long as all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from weft.codegen.cpu import ir
from weft.codegen.cpu.ir import LoopKind

LONG: Final = 500
"""Statements, with unrolled loops written out, from which on a routine is long."""


def parts_of(routine: ir.Routine) -> list[ir.Routine]:
    """The routines that do in turn what a long one does; none for others. Parameters are read once,
    before anything is written."""
    loops = [s for s in routine.body if isinstance(s, ir.For) and s.kind is LoopKind.PARALLEL]
    apart = len(loops) == len(routine.body) > 1 and not routine.params
    if not apart or _statements(routine.body, {}) < LONG:
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
