"""The proof that a loop nest does what its kernel says: every output element, once, and no other.

The executed points are recovered from the emitted loops (their bounds, and the expressions the
stores were given), not from the kernel; isl compares them with the kernel's domain.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.codegen.cpu import ir
from weft.foundation.errors import Finding, InternalError
from weft.foundation.index_expr import Guard, axis
from weft.poly.sets import Domain, IslBudget, Piece, difference
from weft.region.ir import Kernel, Output
from weft.region.structure import buffers

_FAR = 1 << 40
"""Beyond every index: guards with it are bounded on one side only."""


def prove(routine: ir.Routine, kernel: Kernel) -> list[Finding]:
    """Raises an `InternalError` with a sample point where loops and kernel differ.

    What could not be decided within isl's budget is returned as findings.
    """
    skipped = []
    for output in kernel.outputs:
        try:
            _prove_output(routine, kernel, output)
        except IslBudget as error:
            skipped.append(error.finding)
    return skipped


def _prove_output(routine: ir.Routine, kernel: Kernel, output: Output) -> None:
    number = buffers(kernel).index(output.tensor)
    pieces = tuple(
        Piece(executed(loops), stmt.point)
        for stmt, loops in ir.walk(routine.body)
        if isinstance(stmt, ir.Store) and stmt.buffer == number and stmt.value == output.value
    )
    axes = kernel.let(output.value).axes
    wanted = Domain.box({name: kernel.sizes[name] for name in axes})
    found = difference(pieces, wanted)
    if found is not None:
        raise InternalError(
            f"the loops of {routine.name} do not compute {kernel.name} over its domain: {found}"
        )


def prove_stores(routine: ir.Routine, sizes: Mapping[str, int], what: str) -> list[Finding]:
    """The same for a routine that carries an op whole: its stores, or the rows that it sorts, are
    the points of a box."""
    pieces = []
    for stmt, loops in ir.walk(routine.body):
        if isinstance(stmt, ir.Store):
            pieces.append(Piece(executed(loops), stmt.point))
        elif isinstance(stmt, ir.Sort):
            pieces.append(Piece(executed(loops), (stmt.row,)))
    try:
        found = difference(tuple(pieces), Domain.box(sizes))
    except IslBudget as error:
        return [error.finding]
    if found is not None:
        raise InternalError(f"the loops of {routine.name} do not carry out {what}: {found}")
    return []


def executed(loops: tuple[ir.For, ...]) -> Domain:
    """The points that loops run over. Unit steps are all that code generation emits."""
    ranges: dict[str, tuple[int, int]] = {}
    guards: list[Guard] = []
    for loop in loops:
        if loop.step != 1:
            raise InternalError(f"the loop over {loop.var} has a step that cannot be proved")
        ranges[loop.var] = loop.span(ranges)
        if not (loop.start.is_constant and loop.stop.is_constant):
            here = axis(loop.var)
            guards += [Guard(here - loop.start, _FAR), Guard(loop.stop - 1 - here, _FAR)]
    return Domain(tuple((name, *span) for name, span in ranges.items()), (), tuple(guards))
