"""PTIR's casts as C expressions: to integers truncating and saturating, to floats rounding to
nearest even.

Narrow floats are held in f32; the caller rounds the result of a cast to one. Where a source has
more digits than f32 it is rounded to odd first, so that the second rounding is the only one that
shows.
"""

from __future__ import annotations

from typing import Final

from weft.foundation.dtypes import F64, I1, DType

_EXACT_BITS: Final = 24
"""Integers up to this width are exact in f32."""


def cast(name: str, source: DType, target: DType, held: str) -> str:
    """`name`, a held value of `source`, as a value of `target`, whose held type is `held`."""
    if source is target:
        return name
    if target is I1:
        return f"{name} != 0"
    if source is I1:
        return f"({held}){name}"
    if target.is_float:
        return _to_float(name, source, target, held)
    if source.is_float:
        return _float_to_int(name, source, target, held)
    return _int_to_int(name, source, target, held)


def _to_float(name: str, source: DType, target: DType, held: str) -> str:
    long = source is F64 or (source.is_integer and source.bits > _EXACT_BITS)
    if target.bits < 32 and long:
        return f"to_odd({name})"
    return f"({held}){name}"


def _float_to_int(name: str, source: DType, target: DType, held: str) -> str:
    """By the conversion of the machine, which saturates; 64-bit ones do not give 0 for NaN."""
    wide = target.bits == 64
    kind = ("ll" if wide else "int") if target.is_signed else ("ull" if wide else "uint")
    text = f"__{'double' if source is F64 else 'float'}2{kind}_rz({name})"
    if wide or source is F64:
        text = f"({name} != {name} ? 0 : {text})"
    if target.bits < 32:
        low, high = int(target.lowest), int(target.highest)
        # The machine's unsigned conversion stops at 0 already.
        text = f"max({low}, min({high}, {text}))" if target.is_signed else f"min({high}u, {text})"
    return f"({held}){text}"


def _int_to_int(name: str, source: DType, target: DType, held: str) -> str:
    low, high = int(target.lowest), int(target.highest)
    text = name
    if low > int(source.lowest):
        text = f"max({text}, {_bound_literal(low, source)})"
    if high < int(source.highest):
        text = f"min({text}, {_bound_literal(high, source)})"
    return f"({held}){text}"


def _bound_literal(number: int, source: DType) -> str:
    """A literal of the type in which C compares values of `source`."""
    kind = {(64, True): "i64", (64, False): "u64", (32, False): "u32"}.get(
        (source.bits, source.is_signed), "int"
    )
    return f"({kind}){number}"
