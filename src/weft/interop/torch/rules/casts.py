"""Conversions. Between integers torch keeps the lowest bits, where Weft's cast takes the nearest
number that fits."""

from __future__ import annotations

from typing import Any

from weft.foundation.dtypes import I1, SI64, UI8, DType
from weft.interop.torch.rules.table import rule, w


def cast(x: Any, dtype: DType) -> Any:
    """A tensor in another dtype, as torch converts it."""
    if x.dtype is dtype:
        return x
    if dtype is I1:
        return w.not_equal(x, w.zeros((), dtype=x.dtype))
    if x.dtype.is_complex and not dtype.is_complex:
        x = w.real(x)
    if not dtype.is_integer or x.dtype is I1:
        return w.astype(x, dtype)
    if dtype.bits >= 64 or (x.dtype.is_integer and _holds_every_number(dtype, x.dtype)):
        return w.astype(x, dtype)
    return _wrap_bits(w.astype(x, SI64), dtype)


def _holds_every_number(wide: DType, narrow: DType) -> bool:
    """Whether one integer dtype has every number of another."""
    if wide.is_signed == narrow.is_signed:
        return wide.bits >= narrow.bits
    return wide.is_signed and wide.bits > narrow.bits


def _wrap_bits(x: Any, dtype: DType) -> Any:
    """The lowest bits of 64-bit integers, read as a dtype."""
    low = w.bitwise_and(x, (1 << dtype.bits) - 1)
    if dtype.is_signed:
        half = 1 << (dtype.bits - 1)
        low = w.bitwise_xor(low, half) - half
    return w.astype(low, dtype)


@rule("aten._to_copy", "prims.convert_element_type", "aten.to.dtype", "aten.to.dtype_layout")
def _(x: Any, dtype: Any = None, *_: Any, **__: Any) -> Any:
    return x if dtype is None else cast(x, dtype)


@rule("aten.view.dtype")
def _(x: Any, dtype: DType) -> Any:
    if dtype is x.dtype:
        return x
    if x.dtype is I1 or dtype is I1:
        return w.astype(x, UI8) if dtype is UI8 else cast(x, dtype)
    return w.bitcast(x, dtype)
