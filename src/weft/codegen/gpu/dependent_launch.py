"""Programmatic dependent launch: kernels that start before those ahead of them have ended.

    AdmitNext        as soon as every block has said so, the next kernel may be started
    ...              numbers of the thread, barriers, tensor maps: nothing that others can see
    AwaitPrevious    all kernels before have ended, and what they wrote is there

So a kernel's start runs beside the end of the one before it. Each block waits for itself, which
takes long where blocks come in many waves: such kernels, and those that no other one precedes, have
no wait and are launched in the order of the stream, when the one before has ended whole.

Either way all earlier kernels have ended before a kernel touches memory. By induction: the one
right before it has ended then, and each of its blocks had gone on only after its own wait, or was
launched after the kernel ahead of it had ended; so that one had ended, and with it all before. The
early launch of a kernel that does not wait would break this, for kernels further behind as well:
the runtime launches early only what `waits`.

The compiler of machine code moves reads of constant data (`ld.global.nc`) ahead of the wait, as it
may: such reads are for buffers that no kernel of the program writes. Copies of such data into
shared memory, and single elements of it, with which a kernel begins stay ahead of the wait too:
weights are on their way while the kernel before makes what they are multiplied with.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.ir import values, walk
from weft.codegen.gpu.ir.scalar import LANES
from weft.foundation.records import dataclass
from weft.target.target import Target

_MOST_WAVES: Final = 2
"""GPT-2's 122 kernels, of one wave each, take 34 µs less where they start early: 0.28 µs a kernel.
A sum of 1048576 rows of 64 numbers, 31 waves, took 43.1 µs with a wait and 35.7 without: 0.24 µs a
wave. So the second wave still leaves something of what is saved, the third does not."""


@dataclass(frozen=True)
class Neighbours:
    """Whether other kernels of the program come before a kernel, and after it."""

    before: bool = True
    after: bool = True


BOTH: Final = Neighbours()


def chained(
    kernel: ir.Kernel,
    target: Target,
    settled: Collection[int] = (),
    neighbours: Neighbours = BOTH,
) -> ir.Kernel:
    """The kernel with its waiting put in front of the first access to memory, where that pays.
    Where its blocks do not all run at once they end here and there, and the next kernel's would be
    scattered: that one is admitted when they have ended.

    In a kernel that waits, what is read from a buffer that is not `settled`, that is, which kernels
    ahead may still write, is not constant: machine code may read constants before it waits, and
    copies of them may begin before."""
    if not target.has("griddepcontrol"):
        return kernel
    count, body = waves(kernel, target), kernel.body
    if neighbours.before and count <= _MOST_WAVES:
        # Marked before the wait is placed: what is no constant any more counts as access, and the
        # wait goes in front of it.
        body = _unsettle_all(body, settled)
        first = next((n for n, found in enumerate(body) if _holds_access(found)), len(body))
        body = (*body[:first], ir.AwaitPrevious(), *body[first:])
    if neighbours.after and count <= 1:
        body = (ir.AdmitNext(), *body)
    return replace(kernel, body=body)


def _unsettle_all(body: tuple[ir.Stmt, ...], settled: Collection[int]) -> tuple[ir.Stmt, ...]:
    return tuple(_unsettle(statement, settled) for statement in body)


def _unsettle(statement: Any, settled: Collection[int]) -> Any:
    match statement:
        case ir.For(body=body):
            return replace(statement, body=_unsettle_all(body, settled))
        case ir.If(then=then, otherwise=otherwise):
            inner = (_unsettle_all(then, settled), _unsettle_all(otherwise, settled))
            return replace(statement, then=inner[0], otherwise=inner[1])
        case ir.Roles(cases=cases):
            changed = (replace(case, body=_unsettle_all(case.body, settled)) for case in cases)
            return replace(statement, cases=tuple(changed))
        case ir.CpAsync(buffer=buffer) if buffer in settled:
            return replace(statement, constant=True)
        case _ if getattr(statement, "constant", False) and statement.buffer not in settled:
            return replace(statement, constant=False)
    return statement


def waves(kernel: ir.Kernel, target: Target) -> int:
    """How often the machine is filled with blocks, as far as threads and shared memory decide."""
    limits, shared = target.limits, kernel.shared_bytes
    room = [limits.blocks_per_unit, limits.warps_per_unit * LANES // kernel.threads]
    if shared:
        room.append(limits.shared_bytes_per_unit // shared)
    return -(-kernel.grid // (limits.units * max(1, min(room))))


def reaches_memory(statement: ir.Stmt) -> bool:
    """Whether a statement itself reads or writes what other kernels may write."""
    parts: Sequence[Any] = statement.sources if isinstance(statement, ir.Epilogue) else (statement,)
    return any(_has_place(part) for part in parts)


def _has_place(part: Any) -> bool:
    """Whether a record has a buffer, a tensor map, the error word or the workspace to go to."""
    if isinstance(part, values.Report | ir.PartStmt):
        return True
    if isinstance(part, ir.PrefetchMap):
        return False
    if isinstance(part, ir.CpAsync | ir.LoadElement) and part.constant:
        return False
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
