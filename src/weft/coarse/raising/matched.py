"""The result of a match: a coarse op, and the instruction that is its last step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from weft.coarse.raising.search import Search, View
from weft.ptir.ir import Instruction, Operand
from weft.ptir.term import Term

Write: TypeAlias = Callable[[Sequence[Term]], Term]


@dataclass(frozen=True)
class Matched:
    """`write` makes, of these operands, what the root of a formula computes; `inside` are all of
    its instructions, the root included."""

    operands: tuple[Operand, ...]
    inside: frozenset[int]
    write: Write


Pattern: TypeAlias = Callable[[View, Instruction], Matched | None]


def one_op(search: Search, name: str, operands: Sequence[Operand], **attrs: Any) -> Matched:
    """The op called `name`, on the operands as they are."""
    write = partial(_emit, name, attrs)
    return Matched(tuple(operands), frozenset(search.inside), write)


def _emit(name: str, attrs: dict[str, Any], values: Sequence[Term]) -> Term:
    return values[0].emitter.emit(name, *values, **attrs)
