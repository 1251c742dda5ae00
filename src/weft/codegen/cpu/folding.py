"""Instructions on whole numbers that are known while code is written: their results are numbers,
not lines. Unrolled code has many of them, such as where a lane is, and whether that is inside.

Operands and results are texts as they stand in LLVM IR; all of this is about scalars.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Final

from weft.foundation.memo import memo

_TRUTHS: Final = {"true": 1, "false": 0}


def _quotient(a: int, b: int) -> int:
    """A quotient as machines have it, cut off towards 0."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_SIGNED: Final[Mapping[str, Callable[[int, int], int]]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "sdiv": _quotient,
    "srem": lambda a, b: a - b * _quotient(a, b),
    "llvm.smax": max,
    "llvm.smin": min,
    "icmp eq": operator.eq,
    "icmp ne": operator.ne,
    "icmp slt": operator.lt,
    "icmp sle": operator.le,
    "icmp sgt": operator.gt,
    "icmp sge": operator.ge,
}
"""What instructions on signed numbers give."""
_UNSIGNED: Final[Mapping[str, Callable[[int, int], int]]] = {
    "udiv": operator.floordiv,
    "icmp ult": operator.lt,
    "icmp ule": operator.le,
    "icmp ugt": operator.gt,
    "icmp uge": operator.ge,
}
_DIVISIONS: Final = frozenset(("sdiv", "srem", "udiv"))
_LOGIC: Final = frozenset(("and", "or", "xor"))
_CHANGES_NOTHING: Final = {"add": 0, "or": 0, "xor": 0, "mul": 1}
"""The operand with which the result is the other one."""
_DECIDES: Final = {"mul": 0, "and": 0}
"""The operand that is the result, whatever the other one is."""


@memo(1 << 12)
def number_text(value: bool | int | float, scalar: str) -> str:
    """A whole number as LLVM IR has it."""
    if scalar == "i1":
        return "true" if value else "false"
    bits = int(scalar[1:])
    whole = int(value) % (1 << bits)
    return str(whole - (1 << bits) if whole >> (bits - 1) else whole)


def known_number(text: str) -> int | None:
    """The whole number that an operand is; None where it is a value, or a float."""
    if text[0] == "%":
        return None
    truth = _TRUTHS.get(text)
    if truth is not None:
        return truth
    digits = text[1:] if text[0] == "-" else text
    return int(text) if digits.isdigit() else None


def are_in_order(a: str, b: str) -> bool:
    """Whether two numbers are known, and the first is less."""
    first, second = known_number(a), known_number(b)
    return first is not None and second is not None and first < second


def folded(op: str, scalar: str, a: str, b: str) -> str | None:
    """The number that an instruction gives, or the operand that it gives back; None where it has to
    be carried out."""
    if scalar[0] != "i" or (scalar == "i1" and op not in _LOGIC):
        return None
    first, second = known_number(a), known_number(b)
    if first is not None and second is not None:
        found = _result(op, int(scalar[1:]), first, second)
        result = "i1" if op.startswith("icmp") else scalar
        return None if found is None else number_text(found, result)
    if first is None and second is None:
        return None
    known, other, text = (second, a, b) if first is None else (first, b, a)
    if _DECIDES.get(op) == known:
        return text
    if scalar == "i1":
        # Of the two numbers, the one that does not decide changes nothing.
        return text if op == "or" and known else None if op == "xor" and known else other
    return other if _CHANGES_NOTHING.get(op) == known else None


def converted(op: str, scalar: str, text: str, to: str) -> str | None:
    """The number that a conversion to another type gives; None where it has to be carried out."""
    known = known_number(text) if scalar[0] == to[0] == "i" else None
    if known is None or op == "bitcast" or (op == "sext" and scalar == "i1"):
        return None
    return number_text(known % (1 << int(scalar[1:])) if op == "zext" else known, to)


def _result(op: str, bits: int, first: int, second: int) -> int | None:
    if second == 0 and op in _DIVISIONS:
        return None
    if op in _SIGNED:
        return int(_SIGNED[op](first, second))
    if op in _UNSIGNED:
        return int(_UNSIGNED[op](first % (1 << bits), second % (1 << bits)))
    return None
