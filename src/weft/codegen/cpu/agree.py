"""Checks of an edited routine against its kernel: it must have the same buffers, params and error
reports, and still compute every output element once. How its loops are tiled is free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from weft.codegen.cpu import ir
from weft.codegen.cpu.domain import executed, ring_faults
from weft.codegen.cpu.reads import Unknown, other_reads, same_flow
from weft.codegen.cpu.verify import EMPTY, findings, repetitions
from weft.foundation.errors import Finding, SpecViolation
from weft.foundation.index_expr import Expr, axes_of, linear, substitute
from weft.memory.ir import MemRef
from weft.plan.ir import Plan
from weft.poly.sets import Domain, IslBudget, Piece, always_equal, difference
from weft.region.ir import Kernel, Output
from weft.region.structure import buffers

MORE_WORK: Final = 64
"""How many times as many statements an edited routine may carry out."""


MOST_COUNTED: Final = 4_096
"""Turns of a loop that are looked at one by one."""


def agree(
    read: ir.Routine,
    made: ir.Routine,
    kernel: Kernel,
    refs: Mapping[str, MemRef],
    plan: Plan | None = None,
) -> str:
    """Raise where a routine that was read is none of its kernel. The answer is why it is not known
    whether it reads the elements that its kernel reads; nothing where it does."""
    found = (
        list(_frame(read, made, kernel)) or list(findings(read)) or list(_work_findings(read, made))
    )
    if not found and kernel.opaque is None:
        found = list(_terms(read, made)) if read.body != made.body else []
        faults = [] if plan is None else _ring_faults(read, kernel, plan)
        found += [_routine_finding(read, "RoutineDomain", why) for why in faults]
        found += [
            f for output in kernel.outputs for f in _output_findings(read, kernel, output, refs)
        ]
    elif not found and read.body != made.body:
        why = "its op is carried whole, and what its loops must do cannot be shown"
        found = [_routine_finding(read, "RoutineDomain", why, "leave its loops as they were")]
    if found:
        raise SpecViolation.of(found)
    return _check_reads(read, made, kernel) if kernel.opaque is None else ""


def _ring_faults(read: ir.Routine, kernel: Kernel, plan: Plan) -> list[str]:
    try:
        return list(ring_faults(read, kernel, plan))
    except IslBudget as error:
        return [str(error)]


def _check_reads(read: ir.Routine, made: ir.Routine, kernel: Kernel) -> str:
    """Every element of an output is made of the elements that the kernel reads for it."""
    try:
        for output in kernel.outputs:
            why = other_reads(read, made, buffers(kernel).index(output.tensor))
            if why:
                hint = "what is computed of which elements is changed in an earlier stage"
                raise SpecViolation.of([_routine_finding(read, "RoutineDomain", why, hint)])
    except Unknown as unknown:
        return "" if same_flow(read, made) else str(unknown)
    return ""


def _routine_finding(routine: ir.Routine, code: str, why: str, hint: str = "") -> Finding:
    return Finding(code, f"routine {routine.name}", why, hint)


def _frame(read: ir.Routine, made: ir.Routine, kernel: Kernel) -> Iterator[Finding]:
    for what, got, wanted in (
        ("buffers", read.buffers, made.buffers),
        ("params", read.params, made.params),
        ("reports", read.checks, made.checks),
        *((("rings", read.scratch, made.scratch),) if kernel.stages else ()),
    ):
        if got != wanted:
            why = f"its {what} follow from the kernel and its memory, and are other ones"
            yield _routine_finding(
                read, "RoutineFrame", why, "leave the lines before its loops as they were"
            )


def _work_findings(read: ir.Routine, made: ir.Routine) -> Iterator[Finding]:
    now, before = repetitions(read.body), repetitions(made.body)
    if now > MORE_WORK * max(before, 1):
        why = f"it carries out {now:,} statements, the one that was made {before:,}"
        yield _routine_finding(read, "RoutineLoop", why)


def _terms(read: ir.Routine, made: ir.Routine) -> Iterator[Finding]:
    """Sums, and whatever else is put together of many, have as many terms as they had."""
    now, before = terms(read.body), terms(made.body)
    for what in sorted(now.keys() | before.keys()):
        if now[what] != before[what]:
            why = f"{what} takes {now[what]:,} terms in all, the kernel has {before[what]:,}"
            yield _routine_finding(
                read, "RoutineDomain", why, "cut the loop so that every term is taken once"
            )


def terms(body: tuple[ir.Stmt, ...]) -> Counter[str]:
    """How many elements each kind of accumulator takes up in a run."""
    kinds = {stmt.acc: stmt.fn for stmt, _ in ir.walk(body) if isinstance(stmt, ir.Init)}
    found: Counter[str] = Counter()
    for stmt, loops in ir.walk(body):
        if isinstance(stmt, ir.Accumulate | ir.Assign):
            found[kinds.get(stmt.acc, "fold")] += iterations(loops)
        elif isinstance(stmt, ir.Tiles):
            found["tiles"] += iterations(loops) * stmt.rows * stmt.columns * stmt.words
        elif isinstance(stmt, ir.Turn):
            found["turn"] += iterations(loops) * stmt.words
    return found


def iterations(loops: tuple[ir.For, ...], at: Mapping[str, tuple[int, int]] = EMPTY) -> int:
    """How often the innermost of some loops comes round; exactly, but for long loops on which the
    bounds of others depend, where it is at most so often."""
    if not loops:
        return 1
    loop, inner = loops[0], loops[1:]
    first, last = loop.span(at)
    bounds = [bound for deeper in inner for bound in (deeper.start, deeper.stop)]
    if last - first > MOST_COUNTED or not any(loop.var in axes_of(bound) for bound in bounds):
        return max(0, last + 1 - first) * iterations(inner, {**at, loop.var: (first, last)})
    return sum(iterations(inner, {**at, loop.var: (i, i)}) for i in range(first, last + 1))


def _output_findings(
    routine: ir.Routine, kernel: Kernel, output: Output, refs: Mapping[str, MemRef]
) -> Iterator[Finding]:
    """Every point of an output is stored once, at its own address."""
    number = buffers(kernel).index(output.tensor)
    axes = kernel.let(output.value).axes
    pieces = []
    for stmt, loops in ir.walk(routine.body):
        if not isinstance(stmt, ir.Store) or stmt.buffer != number:
            continue
        domain = executed(loops)
        if stmt.places or len(stmt.point) != len(axes):
            yield _routine_finding(
                routine, "RoutineDomain", f"a store to b{number} is of no point of {axes}"
            )
            return
        point = dict(zip(axes, stmt.point, strict=True))
        place = [substitute(expr, point) for expr in output.index]
        wanted = linear(place, refs[output.tensor].strides)
        if not _is_same_address(domain, kernel, stmt.address, wanted):
            why = f"b{number}[{stmt.address}] is not where its point belongs, which is {wanted}"
            yield _routine_finding(routine, "RoutineDomain", why)
        pieces.append(Piece(domain, stmt.point))
    try:
        box = Domain.box({name: kernel.sizes[name] for name in axes})
        found = difference(tuple(pieces), box)
    except IslBudget as error:
        yield error.finding
        return
    if found is not None:
        why = f"it does not compute {output.tensor} over its domain: {found}"
        yield _routine_finding(routine, "RoutineDomain", why)


def _is_same_address(domain: Domain, kernel: Kernel, one: Expr, other: Expr) -> bool:
    if one is other:
        return True
    params = tuple((p.name, p.low, p.high) for p in kernel.params)
    try:
        return always_equal(Domain(domain.axes, params, domain.guards), one, other)
    except IslBudget:
        return False
