"""Integer expressions of a thread: addresses, loop bounds and conditions.

    Scalar = Lit | Name | Special(thread | lane | warp | block) | Op(fn, args) | Wide | TableAt

Semantics. A scalar is a signed 32-bit integer, one per thread; operations must not overflow.
`Wide` makes the value 64 bits wide, and an operation with a wide argument is wide. `div` and `mod`
are only applied to non-negative numbers. Comparisons give 0 or 1. Literals fold when they meet, so
templates can be written without caring which sizes are known.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from enum import Enum
from typing import Final, TypeAlias

from weft.foundation.records import dataclass


class Which(Enum):
    """What a thread knows about itself."""

    THREAD = "thread"
    LANE = "lane"
    WARP = "warp"
    BLOCK = "block"


FOLD: Final[dict[str, Callable[[int, int], int]]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.floordiv,
    "mod": operator.mod,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "shl": operator.lshift,
    "shr": operator.rshift,
    "min": min,
    "max": max,
    "lt": lambda a, b: int(a < b),
    "le": lambda a, b: int(a <= b),
    "eq": lambda a, b: int(a == b),
    "ne": lambda a, b: int(a != b),
    "ge": lambda a, b: int(a >= b),
    "gt": lambda a, b: int(a > b),
}
"""Binary operations and what they do to literals."""

INFIX: Final[dict[str, str]] = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "mod": "%",
    "and": "&",
    "or": "|",
    "xor": "^",
    "shl": "<<",
    "shr": ">>",
    "lt": "<",
    "le": "<=",
    "eq": "==",
    "ne": "!=",
    "ge": ">=",
    "gt": ">",
}
"""Those that are written between their operands, and how."""

_NEUTRAL: Final[dict[str, int]] = {
    "add": 0,
    "sub": 0,
    "mul": 1,
    "div": 1,
    "or": 0,
    "xor": 0,
    "shl": 0,
    "shr": 0,
}
"""Right operands that change nothing."""


class Scalar:
    """Base of scalar expressions; arithmetic on them builds expressions."""

    __slots__ = ()

    def __add__(self, other: Like) -> Scalar:
        return op("add", self, other)

    def __radd__(self, other: int) -> Scalar:
        return op("add", other, self)

    def __sub__(self, other: Like) -> Scalar:
        return op("sub", self, other)

    def __rsub__(self, other: int) -> Scalar:
        return op("sub", other, self)

    def __mul__(self, other: Like) -> Scalar:
        return op("mul", self, other)

    def __rmul__(self, other: int) -> Scalar:
        return op("mul", self, other)

    def __floordiv__(self, other: Like) -> Scalar:
        return op("div", self, other)

    def __mod__(self, other: Like) -> Scalar:
        return op("mod", self, other)

    def __and__(self, other: Like) -> Scalar:
        return op("and", self, other)

    def __or__(self, other: Like) -> Scalar:
        return op("or", self, other)

    def __xor__(self, other: Like) -> Scalar:
        return op("xor", self, other)

    def __lshift__(self, other: Like) -> Scalar:
        return op("shl", self, other)

    def __rshift__(self, other: Like) -> Scalar:
        return op("shr", self, other)

    def __lt__(self, other: Like) -> Scalar:
        return op("lt", self, other)

    def __le__(self, other: Like) -> Scalar:
        return op("le", self, other)

    def __gt__(self, other: Like) -> Scalar:
        return op("gt", self, other)

    def __ge__(self, other: Like) -> Scalar:
        return op("ge", self, other)

    def equals(self, other: Like) -> Scalar:
        """`self == other` as an expression; `==` itself compares the nodes."""
        return op("eq", self, other)


@dataclass(frozen=True, slots=True)
class Lit(Scalar):
    """A number."""

    value: int


@dataclass(frozen=True, slots=True)
class Name(Scalar):
    """A variable of the thread."""

    name: str


@dataclass(frozen=True, slots=True)
class Special(Scalar):
    """The thread's place: its number in the block, its lane, its warp, its block."""

    which: Which


@dataclass(frozen=True, slots=True)
class Op(Scalar):
    """`fn(lhs, rhs)`."""

    fn: str
    lhs: Scalar
    rhs: Scalar


@dataclass(frozen=True, slots=True)
class Wide(Scalar):
    """The same number in 64 bits."""

    value: Scalar


@dataclass(frozen=True, slots=True)
class TableAt(Scalar):
    """An entry of one of the kernel's constant tables."""

    table: str
    index: Scalar


Like: TypeAlias = Scalar | int

THREAD: Final = Special(Which.THREAD)
LANE: Final = Special(Which.LANE)
WARP: Final = Special(Which.WARP)
BLOCK: Final = Special(Which.BLOCK)
LANES: Final = 32
"""Threads of a warp."""


_ZERO: Final = Lit(0)


def scalar(value: Like) -> Scalar:
    return value if isinstance(value, Scalar) else Lit(value)


def op(fn: str, lhs: Like, rhs: Like) -> Scalar:
    """An operation, folded where both sides are known or one side changes nothing."""
    left = lhs if isinstance(lhs, Scalar) else Lit(lhs)
    right = rhs if isinstance(rhs, Scalar) else Lit(rhs)
    if isinstance(right, Lit):
        number = right.value
        if isinstance(left, Lit):
            return Lit(FOLD[fn](left.value, number))
        if _NEUTRAL.get(fn) == number:
            return left
        if (fn == "mul" and number == 0) or (fn == "mod" and number == 1):
            return _ZERO
    elif isinstance(left, Lit):
        number = left.value
        if fn in ("add", "mul") and _NEUTRAL[fn] == number:
            return right
        if fn == "mul" and number == 0:
            return _ZERO
    return Op(fn, left, right)


def least(lhs: Like, rhs: Like) -> Scalar:
    return op("min", lhs, rhs)


def most(lhs: Like, rhs: Like) -> Scalar:
    return op("max", lhs, rhs)


def both(lhs: Like, rhs: Like) -> Scalar:
    """Whether both truth values hold."""
    left, right = scalar(lhs), scalar(rhs)
    if isinstance(left, Lit) and left.value == 1:
        return right
    return left if isinstance(right, Lit) and right.value == 1 else op("and", left, right)


def total(*terms: Like) -> Scalar:
    """The sum."""
    result: Scalar = Lit(0)
    for term in terms:
        result = result + term
    return result


def wide(value: Like) -> Scalar:
    return Wide(scalar(value))
