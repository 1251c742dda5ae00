"""Scalar expressions, register elements and blocks as CUDA text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from weft.codegen.gpu.ir import RegAt
from weft.codegen.gpu.ir.scalar import INFIX, Lit, Name, Op, Scalar, Special, TableAt, Wide
from weft.foundation.errors import InternalError


def text(value: Scalar) -> str:
    """A scalar as a C expression."""
    # The frequent ones first, and no patterns, which take twice as long.
    if isinstance(value, Op):
        infix = INFIX.get(value.fn)
        if infix is None:
            return f"{value.fn}({text(value.lhs)}, {text(value.rhs)})"
        return f"({text(value.lhs)} {infix} {text(value.rhs)})"
    if isinstance(value, Name):
        return value.name
    if isinstance(value, Lit):
        return str(value.value)
    match value:
        case Special(which=which):
            return which.value
        case Wide(value=inner):
            return f"(i64){text(inner)}"
        case TableAt(table=table, index=index):
            return f"__ldg({table} + {text(index)})"
        case _:
            raise InternalError(f"no CUDA text for {type(value).__name__}")


def at(register: RegAt, offset: int = 0) -> str:
    """A register array's element, `offset` further on."""
    return f"{register.array}[{register.index + offset}]"


def braced(head: str, body: Iterable[str]) -> Iterator[str]:
    """A block: its head, its indented body."""
    yield f"{head} {{".lstrip()
    for line in body:
        yield "  " + line
    yield "}"
