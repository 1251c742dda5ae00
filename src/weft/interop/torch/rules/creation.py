"""Tensors made of numbers."""

from __future__ import annotations

import math
from typing import Any

from weft.foundation.dtypes import F32, I1, SI64, DType
from weft.interop.torch.rules.promotion import number_of_kind
from weft.interop.torch.rules.table import is_tensor, rule, rules, w
from weft.ops.promotion import DEFAULTS


def filled(size: Any, value: Any, dtype: DType | None = None, **_: Any) -> Any:
    chosen = dtype or (value.dtype if is_tensor(value) else DEFAULTS[type(value)])
    if is_tensor(value):
        return w.broadcast_to(w.astype(value, chosen), tuple(size))
    return w.full(tuple(size), _fit_number(value, chosen), dtype=chosen)


def _fit_number(value: Any, dtype: DType) -> Any:
    """A number of the dtype's kind; an integer keeps its lowest bits."""
    if dtype.is_integer and isinstance(value, float) and not math.isfinite(value):
        return 0
    made = number_of_kind(value, dtype)
    if dtype.is_integer and dtype is not I1:
        made &= (1 << dtype.bits) - 1
        if dtype.is_signed and made >> (dtype.bits - 1):
            made -= 1 << dtype.bits
    return made


def _fill_rule(value: Any) -> Any:
    return lambda x, *, dtype=None, **_: filled(x.shape, value, dtype or x.dtype)


def _new_rule(value: Any) -> Any:
    return lambda x, size, *_, dtype=None, **__: filled(size, value, dtype or x.dtype)


@rule("aten.arange")
def arange(start: Any, end: Any = None, step: Any = 1, dtype: DType | None = None, **_: Any) -> Any:
    if end is None:
        start, end = 0, start
    whole = all(isinstance(each, int) for each in (start, end, step))
    chosen = dtype or (SI64 if whole else F32)
    count = max(math.ceil((end - start) / step), 0)
    if whole and chosen.is_integer:
        return w.arange(start, start + count * step, step, dtype=chosen)
    row = w.arange(count, dtype=w.float64) * float(step) + float(start)
    return w.astype(row, chosen)


@rule("aten.linspace")
def _(start: Any, end: Any, steps: int, dtype: DType | None = None, **_: Any) -> Any:
    chosen = dtype or F32
    low, high = (x.item() if is_tensor(x) else x for x in (start, end))
    return w.astype(w.linspace(low, high, steps, dtype=w.float64), chosen)


@rule("aten.eye")
def _(n: int, m: Any = None, *, dtype: DType | None = None, **_: Any) -> Any:
    return w.eye(n, n if m is None else m, dtype=dtype or F32)


def _corner(row: int, col: int, offset: int, lower: bool) -> Any:
    """Where the elements of a triangle of a matrix are."""
    places = [
        (r, c) for r in range(row) for c in range(col)
        if (c - r <= offset if lower else c - r >= offset)
    ]  # fmt: skip
    if not places:
        return w.zeros((2, 0), dtype=SI64)
    return w.asarray([[r for r, _ in places], [c for _, c in places]], dtype=SI64)


rules(
    "aten.",
    full=filled,
    full_like=lambda x, value, dtype=None, **_: filled(x.shape, value, dtype or x.dtype),
    fill=lambda x, value: filled(x.shape, value, x.dtype),
    zeros=lambda size, dtype=None, **_: filled(size, 0, dtype or F32),
    ones=lambda size, dtype=None, **_: filled(size, 1, dtype or F32),
    empty=lambda size, dtype=None, **_: filled(size, 0, dtype or F32),
    empty_permuted=lambda size, order, dtype=None, **_: filled(size, 0, dtype or F32),
    empty_strided=lambda size, stride, dtype=None, **_: filled(size, 0, dtype or F32),
    zeros_like=_fill_rule(0),
    ones_like=_fill_rule(1),
    empty_like=_fill_rule(0),
    new_zeros=_new_rule(0),
    new_ones=_new_rule(1),
    new_empty=_new_rule(0),
    new_empty_strided=_new_rule(0),
    new_full=lambda x, size, value, dtype=None, **_: filled(size, value, dtype or x.dtype),
    scalar_tensor=lambda value, dtype=None, **_: filled((), value, dtype or F32),
    tril_indices=lambda row, col, offset=0, dtype=SI64, **_: w.astype(
        _corner(row, col, offset, True), dtype
    ),
    triu_indices=lambda row, col, offset=0, dtype=SI64, **_: w.astype(
        _corner(row, col, offset, False), dtype
    ),
)
