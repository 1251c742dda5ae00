"""The dtype in which torch computes an elementwise op.

Tensors with axes decide among themselves; a scalar tensor counts only where its kind (bool,
integer, float, complex) is higher than theirs, and a Python number only where its kind is higher
than that of all tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from weft.foundation.dtypes import CF32, CF64, F32, F64, I1, DType
from weft.interop.torch.rules.casts import cast
from weft.interop.torch.rules.table import is_tensor
from weft.ops.promotion import DEFAULTS, promoted


def common(operands: Sequence[Any]) -> DType:
    """The dtype that these tensors and numbers meet in."""
    tensors = [x for x in operands if is_tensor(x)]
    groups = (
        [x.dtype for x in tensors if x.ndim],
        [x.dtype for x in tensors if not x.ndim],
        [DEFAULTS[type(x)] for x in operands if type(x) in DEFAULTS],
    )
    chosen: DType | None = None
    for group in reversed(groups):
        own = reduce(promoted, group) if group else None
        if own is not None:
            chosen = (
                own if chosen is None or kind(own) >= kind(chosen) else _join_kinds(own, chosen)
            )
    return F32 if chosen is None else chosen


def _join_kinds(high: DType, low: DType) -> DType:
    """A dtype of more weight and one of a higher kind."""
    if low.is_complex and high.is_float:
        return CF64 if high is F64 else CF32
    return promoted(high, low)


def kind(dtype: DType) -> int:
    """Bool, integer, float, complex."""
    if dtype is I1:
        return 0
    return 3 if dtype.is_complex else 2 if dtype.is_float else 1


def floating(dtype: DType) -> DType:
    """The dtype of a function of fractions: integers become the default float."""
    return dtype if kind(dtype) >= 2 else F32


def converted(operands: Sequence[Any], dtype: DType) -> list[Any]:
    """Tensors in a dtype, and numbers of its kind, which take it where they meet tensors."""
    return [cast(x, dtype) if is_tensor(x) else number_of_kind(x, dtype) for x in operands]


def number_of_kind(value: Any, dtype: DType) -> Any:
    if type(value) not in DEFAULTS:
        return value
    return (bool, int, float, complex)[kind(dtype)](value)
