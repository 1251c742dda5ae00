"""Python numbers as constants of a program, interned: capturing `x * 0.5` looks the constant up
instead of making it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeAlias

from weft.foundation.dtypes import DType, Kind
from weft.foundation.errors import OutOfRange
from weft.foundation.memo import forgettable
from weft.ptir.literal import TensorLiteral, literal

Number: TypeAlias = bool | int | float | complex

_KINDS = (bool, int, float, complex)
PYTHON = frozenset(_KINDS)
"""The types of Python numbers."""
_RANKS = {kind: rank for rank, kind in enumerate(_KINDS)}
_PYTHON = {
    Kind.BOOL: bool, Kind.SIGNED: int, Kind.UNSIGNED: int, Kind.FLOAT: float, Kind.COMPLEX: complex,
}  # fmt: skip
_MOST_KEPT = 4096
_kept: dict[Any, TensorLiteral] = {}
forgettable(_kept.clear)


def is_number(value: object) -> bool:
    """Whether a value is a Python number; NumPy's float64 and complex128 scalars are two."""
    return type(value) in PYTHON or isinstance(value, int | float | complex)


def number_type(value: Any) -> type:
    """bool, int, float or complex: the one of which a number is an instance."""
    kind = type(value)
    return kind if kind in PYTHON else next(k for k in _KINDS if isinstance(value, k))


def python_type(dtype: DType) -> type:
    """The Python type whose numbers the elements of a dtype are."""
    return _PYTHON[dtype.kind]


def widest(kinds: Iterable[type]) -> type:
    """The Python type in which numbers of all these types are written."""
    return max(kinds, key=_RANKS.__getitem__, default=float)


def number(value: Number, dtype: DType) -> TensorLiteral:
    """A Python number as a rank-0 constant."""
    kind = type(value)
    plain = kind is bool or kind is int or (kind is float and abs(value) > 0)
    key = (kind, value if plain else _write_number(value), dtype)
    found = _kept.get(key)
    if found is None:
        if len(_kept) >= _MOST_KEPT:
            _kept.clear()
        found = _kept[key] = _literal(number_type(value)(value), dtype)
    return found


def _write_number(value: Number) -> tuple[str, float, float]:
    """What tells numbers apart that are equal or are no numbers: zeros and NaN have signs."""
    signs = [math.copysign(1.0, part) for part in (value.real, value.imag)]
    return (repr(value), signs[0], signs[1])


def _literal(value: Number, dtype: DType) -> TensorLiteral:
    if isinstance(value, complex) and not dtype.is_complex:
        raise _unrepresentable(value, dtype, "take its real part")
    if dtype.is_integer:
        whole = not isinstance(value, float) or value.is_integer()
        if not whole or not dtype.lowest <= value <= dtype.highest:  # type: ignore[operator]
            advice = f"{dtype} holds whole numbers from {dtype.lowest} to {dtype.highest}"
            raise _unrepresentable(value, dtype, advice)
        return literal(int(value), dtype)  # type: ignore[arg-type]
    try:
        return literal(value if dtype.kind is Kind.BOOL else python_type(dtype)(value), dtype)
    except OverflowError:
        raise _unrepresentable(value, dtype, "it is larger than every float") from None


def _unrepresentable(value: Number, dtype: DType, hint: str) -> OutOfRange:
    text = f"the number {value!r} is not representable in {dtype}"
    return OutOfRange("LiteralInvalid", text, hint)
