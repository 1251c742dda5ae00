"""Recognising functions that programs spell out (such as gelu) on the way into Tiny.

    (x * 0.5) * (erf(x / sqrt(2)) + 1)    ->    gelu(x)
    x <= 0 ? 0 : x                        ->    relu(x)

Later stages look for neither. Operands of sums and products may stand in any order, and the inner
number may multiply or divide; the constants must be the dtype's own, since another number is
another function. Steps that something else reads stay beside the named function.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from weft.foundation.dtypes import BF16, F16, F32, F64
from weft.foundation.scalar import Fn
from weft.tiny.ir import Binary, Const, Expand, Reshape, Scalar, Unary, Value, Where

_DTYPES: Final = frozenset({F16, BF16, F32, F64})


def multiply(lhs: Value, rhs: Value) -> Value:
    """A product, or the function that it is the last step of."""
    x = _gelu_of(lhs, rhs) or _gelu_of(rhs, lhs)
    return Binary(Fn.MUL, lhs, rhs) if x is None else Unary(Fn.GELU, x)


def choice(mask: Value, chosen: Value, other: Value) -> Value:
    """A choice; `x <= 0 ? 0 : x` is known by its name, and exactly that: +0 for -0."""
    rectifies = known_number(chosen) == 0 and _is_at_most_zero(mask, other)
    return Unary(Fn.RELU, other) if rectifies else Where(mask, chosen, other)


def known_number(x: Value) -> Scalar | None:
    """The number that stands at every place, where it is known."""
    while isinstance(x, Expand | Reshape):
        x = x.x
    return x.value if isinstance(x, Const) else None


def _is_at_most_zero(mask: Value, x: Value) -> bool:
    if not isinstance(mask, Binary) or mask.fn is not Fn.LE or not x.dtype.is_float:
        return False
    return mask.lhs is x and known_number(mask.rhs) == 0


def _gelu_of(half: Value, bell: Value) -> Value | None:
    """x, where the operands of a product are `x * 0.5` and `erf(x / sqrt(2)) + 1`."""
    if half.dtype not in _DTYPES:
        return None
    inner = next(
        (x for x, one in _operands_both_ways(bell, Fn.ADD) if _equals_number(one, 1.0)), None
    )
    x = None if inner is None else _erf_of(inner)
    halves = x is not None and any(
        side is x and _equals_number(other, 0.5)
        for side, other in _operands_both_ways(half, Fn.MUL)
    )
    return x if halves else None


def _erf_of(value: Value) -> Value | None:
    """x, where a value is `erf(x / sqrt(2))`."""
    if not isinstance(value, Unary) or value.fn is not Fn.ERF:
        return None
    inner = value.x
    if isinstance(inner, Binary) and inner.fn is Fn.DIV:
        return inner.lhs if _equals_number(inner.rhs, 2.0**0.5) else None
    return next(
        (x for x, root in _operands_both_ways(inner, Fn.MUL) if _equals_number(root, 0.5**0.5)),
        None,
    )


def _operands_both_ways(value: Value, fn: Fn) -> Iterator[tuple[Value, Value]]:
    """The operands of a commutative function, both ways round."""
    if isinstance(value, Binary) and value.fn is fn:
        yield value.lhs, value.rhs
        yield value.rhs, value.lhs


def _equals_number(value: Value, number: float) -> bool:
    """Whether a value is a number as its dtype has it."""
    known, own = known_number(value), value.dtype.numpy.type
    # Both rounded to the dtype: a literal in a program has been, a number of Python may not yet.
    return isinstance(known, int | float) and float(own(known)) == float(own(number))
