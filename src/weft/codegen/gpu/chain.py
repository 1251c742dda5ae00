"""Kernels that start before those ahead of them have ended.

    AdmitNext        as soon as every block has said so, the next kernel may be started
    ...              numbers of the thread, barriers, tensor maps: nothing that others can see
    AwaitPrevious    all kernels before have ended, and what they wrote is there

So a kernel's start runs beside the end of the one before it. Since each waits for the one before,
a kernel that goes on has all earlier ones behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import cache

from weft.codegen.gpu import ir, values
from weft.target.target import Target


def chained(kernel: ir.Kernel, target: Target) -> ir.Kernel:
    """The kernel with its waiting put in front of the first access to memory."""
    if not target.has("griddepcontrol"):
        return kernel
    body = kernel.body
    first = next((n for n, found in enumerate(body) if touches_memory(found)), len(body))
    body = (ir.AdmitNext(), *body[:first], ir.AwaitPrevious(), *body[first:])
    return replace(kernel, body=body)


def touches_memory(statement: ir.Stmt) -> bool:
    """Whether a statement, or one inside it, reads or writes what other kernels may write."""
    match statement:
        case ir.For(body=body):
            return any(map(touches_memory, body))
        case ir.If(then=then, otherwise=otherwise):
            return any(map(touches_memory, (*then, *otherwise)))
        case ir.Roles(cases=cases):
            return any(touches_memory(inner) for case in cases for inner in case.body)
        case ir.Epilogue(sources=sources):
            return any(_has_place(type(source)) for source in sources)
        case _:
            return _has_place(type(statement))


@cache
def _has_place(cls: type) -> bool:
    """Whether records of a class have a buffer, a tensor map or the error word to go to."""
    names = {found.name for found in fields(cls)}
    if cls is ir.PrefetchMap:
        return False
    return cls is values.Report or bool(names & {"buffer", "map"})


def chain_faults(kernel: ir.Kernel) -> Iterator[str]:
    """What is wrong with the way in which a kernel waits for those before it."""
    waits = [n for n, found in enumerate(kernel.body) if isinstance(found, ir.AwaitPrevious)]
    if len(waits) > 1 or any(map(_waits_inside, kernel.body)):
        yield "a kernel waits for those before it once, and outside of branches and loops"
    elif waits and any(map(touches_memory, kernel.body[: waits[0]])):
        yield "memory is touched before the kernels ahead of this one have ended"


def _waits_inside(statement: ir.Stmt) -> bool:
    return any(
        isinstance(inner, ir.AwaitPrevious) or _waits_inside(inner) for inner in _inside(statement)
    )


def _inside(statement: ir.Stmt) -> Sequence[ir.Stmt]:
    match statement:
        case ir.For(body=body):
            return body
        case ir.If(then=then, otherwise=otherwise):
            return (*then, *otherwise)
        case ir.Roles(cases=cases):
            return [inner for case in cases for inner in case.body]
        case _:
            return ()
