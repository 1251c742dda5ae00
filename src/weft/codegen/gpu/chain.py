"""Kernels that start before those ahead of them have ended.

    AdmitNext        as soon as every block has said so, the next kernel may be started
    ...              numbers of the thread, barriers, tensor maps: nothing that others can see
    AwaitPrevious    all kernels before have ended, and what they wrote is there

So a kernel's start runs beside the end of the one before it. Since each waits for the one before,
a kernel that goes on has all earlier ones behind it.

The compiler of machine code moves reads of constant data (`ld.global.nc`) ahead of the wait, as it
may: such reads are for buffers that no kernel of the program writes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, Final

from weft.codegen.gpu import ir, values
from weft.codegen.gpu.ir import walk
from weft.target.target import Target

_WARP: Final = 32


def chained(kernel: ir.Kernel, target: Target, settled: Collection[int] = ()) -> ir.Kernel:
    """The kernel with its waiting put in front of the first access to memory. Where its blocks do
    not all run at once they end here and there, and the next kernel's would be scattered: that one
    is admitted when they have ended.

    What is read from a buffer that is not `settled`, that is, which kernels ahead may still write,
    is not constant: machine code may read constants before it waits."""
    if not target.has("griddepcontrol"):
        return kernel
    body = _unsettled(kernel.body, settled)
    first = next((n for n, found in enumerate(body) if _holds_access(found)), len(body))
    admitted = (ir.AdmitNext(),) if _runs_at_once(kernel, target) else ()
    body = (*admitted, *body[:first], ir.AwaitPrevious(), *body[first:])
    return replace(kernel, body=body)


def _unsettled(body: tuple[ir.Stmt, ...], settled: Collection[int]) -> tuple[ir.Stmt, ...]:
    return tuple(_unsettle(statement, settled) for statement in body)


def _unsettle(statement: Any, settled: Collection[int]) -> Any:
    match statement:
        case ir.For(body=body):
            return replace(statement, body=_unsettled(body, settled))
        case ir.If(then=then, otherwise=otherwise):
            inner = (_unsettled(then, settled), _unsettled(otherwise, settled))
            return replace(statement, then=inner[0], otherwise=inner[1])
        case ir.Roles(cases=cases):
            changed = (replace(case, body=_unsettled(case.body, settled)) for case in cases)
            return replace(statement, cases=tuple(changed))
        case _ if getattr(statement, "constant", False) and statement.buffer not in settled:
            return replace(statement, constant=False)
    return statement


def _runs_at_once(kernel: ir.Kernel, target: Target) -> bool:
    limits = target.limits
    together = min(limits.blocks_per_unit, limits.warps_per_unit * _WARP // kernel.threads)
    return kernel.grid <= limits.units * together


def reaches_memory(statement: ir.Stmt) -> bool:
    """Whether a statement itself reads or writes what other kernels may write."""
    parts: Sequence[Any] = statement.sources if isinstance(statement, ir.Epilogue) else (statement,)
    return any(_has_place(part) for part in parts)


def _has_place(part: Any) -> bool:
    """Whether a record has a buffer, a tensor map or the error word to go to."""
    if isinstance(part, values.Report | ir.PrefetchMap):
        return isinstance(part, values.Report)
    return any(found.name in ("buffer", "map") for found in fields(part))


def _holds_access(statement: ir.Stmt) -> bool:
    return any(map(reaches_memory, walk((statement,))))


def chain_faults(kernel: ir.Kernel) -> Iterator[str]:
    """What is wrong with the way in which a kernel waits for those before it."""
    waits = [n for n, found in enumerate(kernel.body) if isinstance(found, ir.AwaitPrevious)]
    every = sum(isinstance(found, ir.AwaitPrevious) for found in walk(kernel.body))
    if len(waits) > 1 or every > len(waits):
        yield "a kernel waits for those before it once, and outside of branches and loops"
    elif waits and any(map(_holds_access, kernel.body[: waits[0]])):
        yield "memory is touched before the kernels ahead of this one have ended"
