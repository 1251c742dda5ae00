"""The types of Core IR: four element types and shapes of plain numbers.

    tensor<f32[2, 3]>       a matrix
    tensor<i64[]>           a scalar: the empty shape

A type may say nonsense (a negative dim); the verifier is who minds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from weft.foundation.calls import told_outside
from weft.foundation.dtypes import F32, F64, SI32, SI64, DType
from weft.foundation.errors import UserError
from weft.ptir.types import listed

Shape: TypeAlias = tuple[int, ...]

DTYPES: Final = {"i32": SI32, "i64": SI64, "f32": F32, "f64": F64}
"""Core IR's dtypes by name; the rest of Weft calls the integers si32 and si64."""
_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}
_TYPE: Final = re.compile(r"(?:tensor<)?\s*([a-z0-9]+)\s*\[([-0-9,\s]*)\]\s*>?")


def dtype_name(dtype: DType) -> str:
    """What Core IR calls a dtype."""
    return _NAMES.get(dtype, dtype.name)


def as_dtype(value: DType | str) -> DType:
    """A Core IR dtype from its name."""
    found = DTYPES.get(value) if isinstance(value, str) else value
    if found not in _NAMES:
        raise UserError(f"{value!r} is not a dtype of Core IR; they are {', '.join(DTYPES)}")
    return found


def show_shape(shape: Iterable[object]) -> str:
    """A shape or another list of numbers, for messages."""
    return f"[{listed(list(shape))}]"


@dataclass(frozen=True, slots=True)
class TensorType:
    """An element type and a shape."""

    dtype: DType
    shape: Shape

    def __str__(self) -> str:
        return f"tensor<{dtype_name(self.dtype)}[{', '.join(map(str, self.shape))}]>"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def with_shape(self, shape: Iterable[int]) -> TensorType:
        return TensorType(self.dtype, tuple(shape))


@told_outside
def tensor(dtype: DType | str, shape: Iterable[int] = ()) -> TensorType:
    """The type written as in `tensor("f32", [2, 3])`."""
    return TensorType(as_dtype(dtype), tuple(shape))


def as_type(value: TensorType | str) -> TensorType:
    """A type from its text: `tensor<f32[2, 3]>`, or shorter `f32[2, 3]`."""
    if isinstance(value, TensorType):
        return value
    match = _TYPE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise UserError(f"{value!r} is not a type such as 'f32[2, 3]'")
    dims = [part.strip() for part in match[2].split(",")] if match[2].strip() else []
    if not all(re.fullmatch(r"-?[0-9]{1,40}", dim) for dim in dims):
        raise UserError(f"{value!r} has a dim that is not a whole number")
    return tensor(match[1], map(int, dims))


def scalar(dtype: DType) -> TensorType:
    return TensorType(dtype, ())
