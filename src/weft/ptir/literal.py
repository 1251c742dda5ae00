"""Constants inside a program: whole tensors as bytes, and the scalars that attributes hold."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.foundation.arrays import handed_in
from weft.foundation.calls import told_outside
from weft.foundation.dtypes import I1, SI4, UI4, DType, as_dtype
from weft.foundation.errors import SpecViolation, UserError, brief
from weft.foundation.limits import Limits
from weft.foundation.numeric import round_float
from weft.ptir.types import TensorType


@dataclass(frozen=True, eq=False)
class TensorLiteral:
    """A dense constant: row-major, little-endian, one byte an element for i1, si4 and ui4.

    Two literals are equal when type and bytes are; large ones compare by identity, then by digest.
    """

    type: TensorType
    data: bytes = field(repr=False)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, TensorLiteral) or self.type != other.type:
            return False
        return len(self.data) == len(other.data) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash((self.type, len(self.data), self.data[:64]))

    @cached_property
    def digest(self) -> bytes:
        return hashlib.blake2b(self.data, digest_size=32).digest()

    @cached_property
    def array(self) -> NDArray[Any]:
        """The elements, read-only."""
        self.check()
        dtype = self.type.dtype
        if dtype in (SI4, UI4):
            nibbles = np.frombuffer(self.data, np.uint8) & 0x0F
            elements = nibbles.view(dtype.numpy)
        else:
            elements = np.frombuffer(self.data, dtype.numpy.newbyteorder("<"))
            elements = elements.astype(dtype.numpy, copy=False)
        result = elements.reshape(self.type.static_shape)
        result.flags.writeable = False
        return result

    def check(self) -> None:
        """Raise unless the bytes are what the type says."""
        if not self.type.is_static:
            raise SpecViolation(
                "LiteralInvalid", f"a literal of type {self.type} has a dynamic dimension"
            )
        if self.type.rank > Limits.rank:
            raise SpecViolation("RankTooLarge", f"a literal has rank {self.type.rank}")
        if len(self.data) != self.type.bytes:
            raise SpecViolation(
                "LiteralInvalid",
                f"a literal of type {self.type} has {len(self.data)} bytes, not {self.type.bytes}",
            )
        if self.type.dtype in _BYTE_RANGES:
            low, high = _BYTE_RANGES[self.type.dtype]
            values = np.frombuffer(self.data, np.int8)
            if values.size and (values.min() < low or values.max() > high):
                raise SpecViolation(
                    "LiteralInvalid",
                    f"a literal of type {self.type} has a byte outside {low}..{high}",
                )

    def item(self) -> Any:
        """The value of a one-element literal, or of the first element of a uniform one."""
        return self.array.reshape(-1)[0]

    @property
    def is_splat(self) -> bool:
        """Whether every element has the same bytes (and there is at least one)."""
        width = self.type.dtype.storage_bytes
        count = len(self.data) // width
        return count > 0 and self.data == self.data[:width] * count


_BYTE_RANGES = {I1: (0, 1), SI4: (-8, 15), UI4: (0, 15)}


@told_outside
def literal(value: Any, dtype: DType | str | None = None) -> TensorLiteral:
    """A literal from a scalar, list or array. Python floats become f32, ints si64, bools i1."""
    if isinstance(value, TensorLiteral):
        return value
    try:
        array = handed_in(value)
    except ValueError:
        raise UserError(f"{brief(value)} is not a rectangular list of numbers") from None
    if array.dtype.kind in "OUS":
        raise UserError(f"{brief(value)} is not a number, or a list or array of numbers")
    if dtype is None:
        wanted = as_dtype(np.float32) if _is_python_float(value, array) else as_dtype(array.dtype)
    else:
        wanted = as_dtype(dtype)
    if array.dtype.kind == "c" and not wanted.is_complex:
        raise UserError(f"the value {brief(value)} is complex; it is not representable in {wanted}")
    with np.errstate(all="ignore"):
        exact_source = wanted.is_float and array.dtype == np.float64
        converted = round_float(array, wanted) if exact_source else array.astype(wanted.numpy)
    if wanted.is_integer and not np.array_equal(converted.astype(object), array.astype(object)):
        raise UserError(f"the value {brief(value)} is not representable in {wanted}")
    return from_array(converted)


def _is_python_float(value: Any, array: NDArray[Any]) -> bool:
    return array.dtype == np.float64 and not isinstance(value, np.ndarray | np.generic)


def from_array(array: NDArray[Any]) -> TensorLiteral:
    """The literal with exactly the elements of `array`."""
    dtype = as_dtype(array.dtype)
    if dtype in (SI4, UI4):
        stored: NDArray[Any] = array.astype(np.int8)
    else:
        stored = np.ascontiguousarray(array, dtype=dtype.numpy.newbyteorder("<"))
    return TensorLiteral(TensorType(dtype, tuple(array.shape)), stored.tobytes())


Scalar: TypeAlias = bool | int | float | complex
"""The scalar an attribute holds (a padding value). On the wire its class is a tag of its own."""


class ScalarTag:
    """The five wire tags of a scalar literal, in order."""

    I1 = "I1"
    SIGNED = "Signed"
    UNSIGNED = "Unsigned"
    FLOAT = "Float"
    COMPLEX = "Complex"
    ORDER = (I1, SIGNED, UNSIGNED, FLOAT, COMPLEX)


@dataclass(frozen=True, eq=False, slots=True)
class ScalarLiteral:
    """A scalar with its wire class, so that `Signed 7` and `Unsigned 7` stay apart.

    Equality is of representation: NaN equals NaN, and -0.0 differs from 0.0.
    """

    tag: str
    value: Scalar

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ScalarLiteral) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __str__(self) -> str:
        return f"{self.tag}({self.value})"

    def fits(self, dtype: DType) -> bool:
        """Whether this scalar may fill a tensor of `dtype`: the same class, and in range."""
        if dtype is I1:
            return self.tag == ScalarTag.I1
        if dtype.is_integer:
            wanted = ScalarTag.SIGNED if dtype.is_signed else ScalarTag.UNSIGNED
            if self.tag != wanted or not isinstance(self.value, int):
                return False
            return dtype.lowest <= self.value <= dtype.highest
        return self.tag == (ScalarTag.FLOAT if dtype.is_float else ScalarTag.COMPLEX)

    def fill(self, dtype: DType) -> NDArray[Any]:
        """The scalar as a rank-0 array of `dtype`, rounded to nearest."""
        if dtype.is_float:
            return round_float(np.asarray(self.value, np.float64), dtype)
        wide = np.asarray(self.value, np.complex128 if dtype.is_complex else None)
        return wide.astype(dtype.numpy)


def scalar_literal(value: Scalar | ScalarLiteral, dtype: DType) -> ScalarLiteral:
    """The scalar literal of the right class for `dtype` from a plain Python or NumPy number."""
    if isinstance(value, ScalarLiteral):
        return value
    if dtype is I1:
        return ScalarLiteral(ScalarTag.I1, bool(value))
    if dtype.is_complex:
        return ScalarLiteral(ScalarTag.COMPLEX, complex(value))
    if isinstance(value, complex) or not hasattr(value, "__float__"):
        raise UserError(f"the value {value!r} cannot fill a {dtype} tensor")
    if dtype.is_float:
        return ScalarLiteral(ScalarTag.FLOAT, float(value))
    if int(value) != value:
        raise UserError(f"the value {value} is not a whole number, as {dtype} needs")
    return ScalarLiteral(ScalarTag.SIGNED if dtype.is_signed else ScalarTag.UNSIGNED, int(value))
