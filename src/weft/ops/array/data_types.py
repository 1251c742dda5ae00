"""The dtypes under the array API's names, and the functions that ask about them.

`weft.float32` is the dtype that PTIR calls `f32`. Beyond the standard there are the narrow ones of
deep learning: bfloat16, float16, two of eight bits, and integers of four.
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import ml_dtypes

from weft.foundation.dtypes import (
    ALL,
    BF16,
    BY_NAME,
    CF32,
    CF64,
    COMPLEX,
    F16,
    F32,
    F64,
    FLOATS,
    FP8_E4M3,
    FP8_E5M2,
    I1,
    INTEGERS,
    SI4,
    SI8,
    SI16,
    SI32,
    SI64,
    SIGNED,
    UI4,
    UI8,
    UI16,
    UI32,
    UI64,
    UNSIGNED,
    DType,
    as_dtype,
)
from weft.foundation.errors import SpecViolation, UserError
from weft.foundation.lines import user_line
from weft.ops.arithmetic import as_operand, number_kind
from weft.ops.calls import public
from weft.ops.graph.context import arena_for
from weft.ops.graph.forms import cast_form, form
from weft.ops.numbers import widest
from weft.ops.promotion import DEFAULTS, beside, promoted
from weft.ops.tensor import Tensor, tensor_method

__all__ = [
    "astype", "bfloat16", "bitcast", "bool", "can_cast", "complex64", "complex128", "finfo",
    "float8_e4m3", "float8_e5m2", "float16", "float32", "float64", "iinfo", "int4", "int8", "int16",
    "int32", "int64", "isdtype", "result_type", "uint4", "uint8", "uint16", "uint32", "uint64",
]  # fmt: skip

bool = I1  # noqa: A001
int4, int8, int16, int32, int64 = SI4, SI8, SI16, SI32, SI64
uint4, uint8, uint16, uint32, uint64 = UI4, UI8, UI16, UI32, UI64
float16, bfloat16, float32, float64 = F16, BF16, F32, F64
complex64, complex128 = CF32, CF64
float8_e4m3, float8_e5m2 = FP8_E4M3, FP8_E5M2

STANDARD: Final[dict[str, DType]] = {
    "bool": I1, "int8": SI8, "int16": SI16, "int32": SI32, "int64": SI64, "uint8": UI8,
    "uint16": UI16, "uint32": UI32, "uint64": UI64, "float32": F32, "float64": F64,
    "complex64": CF32, "complex128": CF64,
}  # fmt: skip
"""The dtypes of the standard."""
_NAMES = STANDARD | {
    "int4": SI4, "uint4": UI4, "float16": F16, "bfloat16": BF16, "float8_e4m3": FP8_E4M3,
    "float8_e5m2": FP8_E5M2,
}  # fmt: skip
KINDS: Final[dict[str, frozenset[DType]]] = {
    "bool": frozenset({I1}),
    "signed integer": SIGNED,
    "unsigned integer": UNSIGNED,
    "integral": INTEGERS,
    "real floating": FLOATS,
    "complex floating": COMPLEX,
    "numeric": INTEGERS | FLOATS | COMPLEX,
}


def dtype_named(value: Any) -> DType:
    """The dtype meant by a dtype, a name ("float32", "f32"), or a NumPy or Python type; bool, int,
    float and complex mean the defaults."""
    if isinstance(value, DType):
        return value
    if isinstance(value, str) and value not in BY_NAME:
        if value not in _NAMES:
            raise UserError(f"unknown dtype {value!r}; the dtypes are {', '.join(_NAMES)}")
        return _NAMES[value]
    if isinstance(value, type) and value in DEFAULTS:
        return DEFAULTS[value]
    return as_dtype(value)


@tensor_method
@public
def astype(
    x: Tensor,
    dtype: Any,
    /,
    *,
    copy: builtins.bool = True,
    device: str | None = None,
) -> Tensor:
    """The tensor in another dtype. Floats lose their fraction on the way to integers, and what does
    not fit becomes the nearest number that does; NaN becomes 0. What is too large for a float
    becomes an infinity, or NaN in `float8_e4m3`, which has none."""
    value, wanted = as_operand(x), dtype_named(dtype)
    if device is not None:
        value = value.to(device)
    if value.dtype is wanted:
        return value.__copy__() if copy else value
    if value.dtype.is_complex and not wanted.is_complex and wanted is not I1:
        raise SpecViolation(
            "DTypeMismatch",
            f"a tensor of {value.dtype} cannot be converted to {wanted}",
            "take weft.real, weft.imag or weft.abs of it first",
        )
    arena = arena_for(value._node)
    node = arena.emit(cast_form(value.type, wanted), (value._node,), user_line())
    return Tensor(node, value.requires_grad and (wanted.is_float or wanted.is_complex))


@tensor_method
@public
def bitcast(x: Tensor, dtype: Any, /) -> Tensor:
    """The bits of every element read as another dtype of the same width."""
    value, wanted = as_operand(x), dtype_named(dtype)
    if value.dtype.bits != wanted.bits:
        raise SpecViolation(
            "DTypeMismatch",
            f"an element of {value.dtype} has {value.dtype.bits} bits, and one of {wanted} "
            f"{wanted.bits}",
            "give a dtype of the same width; astype converts values",
        )
    made = form("bitcast", (value.type,), {"dtype": wanted})
    return Tensor(arena_for(value._node).emit(made, (value._node,), user_line()))


@public
def can_cast(from_: Any, to: Any, /) -> builtins.bool:
    """Whether promotion may convert one dtype to the other."""
    source = from_.dtype if isinstance(from_, Tensor) else dtype_named(from_)
    target = dtype_named(to)
    try:
        return promoted(source, target) is target
    except SpecViolation:
        return False


@public
def result_type(*arrays_and_dtypes: Any) -> DType:
    """The dtype in which these tensors, dtypes and numbers meet."""
    kinds = [kind for a in arrays_and_dtypes if (kind := number_kind(a)) is not None]
    others = [a for a in arrays_and_dtypes if number_kind(a) is None]
    if not others:
        if not kinds:
            raise UserError("at least one tensor, dtype or number is wanted")
        return DEFAULTS[widest(kinds)]
    dtypes = [a.dtype if isinstance(a, Tensor) else dtype_named(a) for a in others]
    strong = reduce(promoted, sorted(dtypes, key=ALL.index))
    return beside(strong, widest(kinds)) if kinds else strong


@public
def isdtype(dtype: Any, kind: Any) -> builtins.bool:
    """Whether a dtype is another one, or of a kind such as "integral", or one of several."""
    found = dtype_named(dtype)
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return any(_is_of(found, item) for item in kinds)


def _is_of(dtype: DType, kind: Any) -> builtins.bool:
    if isinstance(kind, str) and kind in KINDS:
        return dtype in KINDS[kind]
    if isinstance(kind, str) and kind not in _NAMES and kind not in BY_NAME:
        raise UserError(f"unknown kind {kind!r}; the kinds are {', '.join(KINDS)}")
    return dtype is dtype_named(kind)


@dataclass(frozen=True)
class FloatInfo:
    """The limits of a float dtype; of a complex one, those of its parts."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@dataclass(frozen=True)
class IntegerInfo:
    """The limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: DType


@public
def finfo(type: Any, /) -> FloatInfo:
    """The limits of a float or complex dtype, or of that of a tensor."""
    dtype = type.dtype if isinstance(type, Tensor) else dtype_named(type)
    dtype = {CF32: F32, CF64: F64}.get(dtype, dtype)
    if not dtype.is_float:
        raise SpecViolation(
            "DTypeNotSupported", f"{dtype} is not a float", "use iinfo for integers"
        )
    found: Any = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
    return FloatInfo(
        dtype.bits,
        float(found.eps),
        float(found.max),
        float(found.min),
        float(found.smallest_normal),
        dtype,
    )


@public
def iinfo(type: Any, /) -> IntegerInfo:
    """The limits of an integer dtype, or of that of a tensor."""
    dtype = type.dtype if isinstance(type, Tensor) else dtype_named(type)
    if not dtype.is_integer:
        raise SpecViolation(
            "DTypeNotSupported", f"{dtype} is not an integer", "use finfo for floats"
        )
    return IntegerInfo(dtype.bits, int(dtype.highest), int(dtype.lowest), dtype)
