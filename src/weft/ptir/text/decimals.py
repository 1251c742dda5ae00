"""The elements of a literal in decimals, where those are short and say every bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft.foundation.dtypes import I1, DType
from weft.foundation.errors import SpecViolation, UserError
from weft.foundation.text import commas
from weft.ptir.literal import TensorLiteral, from_array
from weft.ptir.types import TensorType

SHORT_LITERAL = 8
"""How many elements are written in decimals."""


def to_decimals(literal: TensorLiteral) -> str:
    """The elements of a literal; nothing where decimals would be long or lose bits."""
    if len(literal.data) > SHORT_LITERAL * literal.type.dtype.storage_bytes:
        return ""
    try:
        texts = [_element_text(value, literal.type.dtype) for value in literal.array.reshape(-1)]
        same = from_decimals(texts, literal.type)
    except (SpecViolation, UserError, ValueError, OverflowError):
        return ""
    return commas(texts) if same.data == literal.data else ""


def _element_text(value: Any, dtype: DType) -> str:
    if dtype is I1:
        return "true" if value else "false"
    if dtype.is_integer:
        return str(int(value))
    if dtype.is_complex:
        return f"({float(value.real)!r}, {float(value.imag)!r})"
    return repr(float(value))


def from_decimals(texts: list[str], kind: TensorType) -> TensorLiteral:
    """The literal with these elements; raises `ValueError` where one does not parse."""
    dtype = kind.dtype
    if len(texts) != kind.size:
        raise ValueError(f"there are {len(texts)} of them, not {kind.size}")
    if dtype is I1:
        if not {"true", "false"}.issuperset(texts):
            raise ValueError("i1 is written as true and false")
        values: list[Any] = [t == "true" for t in texts]
    elif dtype.is_integer:
        values = [int(t) for t in texts]
        if any(not dtype.lowest <= v <= dtype.highest for v in values):
            raise ValueError(f"they must be from {dtype.lowest} to {dtype.highest}")
    elif dtype.is_complex:
        values = [complex(*map(float, t.strip("()").split(","))) for t in texts]
    else:
        values = [float(t) for t in texts]
        if any(math.isnan(v) for v in values):
            raise ValueError("NaN has many bit patterns; it is written in hex")
    with np.errstate(all="ignore"):
        array = np.array(values, dtype=_numpy_dtype(dtype)).reshape(kind.static_shape)
        return from_array(array.astype(dtype.numpy))


def _numpy_dtype(dtype: DType) -> Any:
    if dtype.is_integer or dtype is I1:
        return dtype.numpy
    return np.complex128 if dtype.is_complex else np.float64
