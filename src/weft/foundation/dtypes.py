"""The nineteen element types, in the order of the wire format, and the NumPy type each one is.

A `DType` is a singleton: compare with `is` or `==`. It also equals the NumPy type it is, and has
the hash of that. The narrow types (`si4`, `ui4`, the two fp8, `bf16`) are ml_dtypes' NumPy
extension types; NumPy stores one element a byte for the 4-bit ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import ml_dtypes
import numpy as np

from weft.foundation.errors import UserError, brief


class Kind(Enum):
    """The class of numbers a dtype belongs to."""

    BOOL = "bool"
    SIGNED = "signed"
    UNSIGNED = "unsigned"
    FLOAT = "float"
    COMPLEX = "complex"


@dataclass(frozen=True, eq=False, slots=True)
class DType:
    """An element type. `wire` is its name in JSON, `index` its bincode tag."""

    name: str
    wire: str
    index: int
    kind: Kind
    bits: int
    numpy: np.dtype[Any]
    precision: int
    """Significand bits of a float (hidden bit included); 0 for everything else."""
    hash: int = 0
    storage_bytes: int = 1
    """Bytes of one element in memory and on the wire."""

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DType):
            return self is other
        is_type = isinstance(other, type) and issubclass(other, np.generic)
        if is_type or isinstance(other, np.dtype):
            return bool(self.numpy == other)
        return NotImplemented

    def __hash__(self) -> int:
        return self.hash

    def __reduce__(self) -> tuple[Any, ...]:
        """Copied to another process, a dtype is still the one there is."""
        return (as_dtype, (self.name,))

    def __copy__(self) -> DType:
        return self

    def __deepcopy__(self, memo: object) -> DType:
        return self

    @property
    def is_float(self) -> bool:
        return self.kind is Kind.FLOAT

    @property
    def is_complex(self) -> bool:
        return self.kind is Kind.COMPLEX

    @property
    def is_signed(self) -> bool:
        return self.kind is Kind.SIGNED

    @property
    def is_integer(self) -> bool:
        return self.kind in (Kind.SIGNED, Kind.UNSIGNED)

    @property
    def lowest(self) -> int | float:
        """The smallest value: the identity of max. Floats answer -inf where they have one."""
        if self.kind is Kind.SIGNED:
            return -(1 << (self.bits - 1))
        if self.is_float:
            return float("-inf") if self is not FP8_E4M3 else -448.0
        return 0

    @property
    def highest(self) -> int | float:
        """The largest value: the identity of min. Floats answer inf where they have one."""
        if self.kind is Kind.SIGNED:
            return (1 << (self.bits - 1)) - 1
        if self.kind is Kind.UNSIGNED:
            return (1 << self.bits) - 1
        if self.is_float:
            return float("inf") if self is not FP8_E4M3 else 448.0
        return 1


def _define(rows: Iterable[tuple[str, str, Kind, int, Any, int]]) -> tuple[DType, ...]:
    return tuple(
        DType(name, wire, index, kind, bits, held, precision, hash(held), max(1, bits // 8))
        for index, (name, wire, kind, bits, scalar, precision) in enumerate(rows)
        for held in [np.dtype(scalar)]
    )


ALL: tuple[DType, ...] = _define(
    [
        ("i1", "I1", Kind.BOOL, 1, np.bool_, 0),
        ("si4", "Si4", Kind.SIGNED, 4, ml_dtypes.int4, 0),
        ("ui4", "Ui4", Kind.UNSIGNED, 4, ml_dtypes.uint4, 0),
        ("si8", "Si8", Kind.SIGNED, 8, np.int8, 0),
        ("ui8", "Ui8", Kind.UNSIGNED, 8, np.uint8, 0),
        ("si16", "Si16", Kind.SIGNED, 16, np.int16, 0),
        ("ui16", "Ui16", Kind.UNSIGNED, 16, np.uint16, 0),
        ("si32", "Si32", Kind.SIGNED, 32, np.int32, 0),
        ("ui32", "Ui32", Kind.UNSIGNED, 32, np.uint32, 0),
        ("si64", "Si64", Kind.SIGNED, 64, np.int64, 0),
        ("ui64", "Ui64", Kind.UNSIGNED, 64, np.uint64, 0),
        ("fp8_e4m3", "Fp8E4M3", Kind.FLOAT, 8, ml_dtypes.float8_e4m3fn, 4),
        ("fp8_e5m2", "Fp8E5M2", Kind.FLOAT, 8, ml_dtypes.float8_e5m2, 3),
        ("bf16", "Bf16", Kind.FLOAT, 16, ml_dtypes.bfloat16, 8),
        ("f16", "F16", Kind.FLOAT, 16, np.float16, 11),
        ("f32", "F32", Kind.FLOAT, 32, np.float32, 24),
        ("f64", "F64", Kind.FLOAT, 64, np.float64, 53),
        ("cf32", "Cf32", Kind.COMPLEX, 64, np.complex64, 0),
        ("cf64", "Cf64", Kind.COMPLEX, 128, np.complex128, 0),
    ]
)
(I1, SI4, UI4, SI8, UI8, SI16, UI16, SI32, UI32, SI64, UI64) = ALL[:11]
(FP8_E4M3, FP8_E5M2, BF16, F16, F32, F64, CF32, CF64) = ALL[11:]

BY_NAME = {dtype.name: dtype for dtype in ALL}
BY_WIRE = {dtype.wire: dtype for dtype in ALL}
_BY_NUMPY = {dtype.numpy: dtype for dtype in ALL}

BOOL = frozenset({I1})
SIGNED = frozenset(d for d in ALL if d.kind is Kind.SIGNED)
UNSIGNED = frozenset(d for d in ALL if d.kind is Kind.UNSIGNED)
INTEGERS = SIGNED | UNSIGNED
FLOATS = frozenset(d for d in ALL if d.is_float)
COMPLEX = frozenset({CF32, CF64})
REALS = INTEGERS | FLOATS
NUMBERS = REALS | COMPLEX
ORDERED = REALS | BOOL
ANY = frozenset(ALL)
INDICES = frozenset({SI32, SI64})


_WIDEST: Final = {
    np.dtype(np.longdouble).name: "float64",
    np.dtype(np.clongdouble).name: "complex128",
}
"""What NumPy's longest numbers are best brought to."""


def as_dtype(value: DType | str | Any) -> DType:
    """The dtype meant by a `DType`, a name such as "f32", or a NumPy dtype or scalar type."""
    if isinstance(value, DType):
        return value
    if isinstance(value, str) and value in BY_NAME:
        return BY_NAME[value]
    # NumPy has other meanings for strings: its "f16" has 16 bytes.
    if value is not None and not isinstance(value, str):  # None is f64 to NumPy
        try:
            found = _BY_NUMPY.get(np.dtype(value))
        except (TypeError, ValueError, AttributeError, RecursionError):
            found = None
        if found is not None:
            return found
    if isinstance(value, np.dtype) and value.kind in "OUSMmV":
        raise UserError(
            f"elements of NumPy dtype {value} are not numbers of one size; bring the array to a "
            f"dtype of numbers, as by x.astype('float32'); the dtypes are {', '.join(BY_NAME)}"
        )
    if wide := _WIDEST.get(_numpy_name(value)):
        raise UserError(
            f"NumPy dtype {_numpy_name(value)} has more digits than any dtype of Weft; bring the "
            f"array to {wide}, as by x.astype('{wide}')"
        )
    raise UserError(f"unknown dtype {brief(value)}; the dtypes are {', '.join(BY_NAME)}")


def _numpy_name(value: Any) -> str:
    """The name of a NumPy dtype or scalar type; nothing of anything else."""
    is_type = isinstance(value, type) and issubclass(value, np.generic)
    return np.dtype(value).name if isinstance(value, np.dtype) or is_type else ""


def as_dtype_or_none(value: Any) -> DType | None:
    """The same; None where there is none."""
    try:
        return as_dtype(value)
    except UserError:
        return None


def in_order(dtypes: Iterable[DType]) -> list[DType]:
    """Dtypes in wire order, for printing."""
    return sorted(dtypes, key=lambda d: d.index)
