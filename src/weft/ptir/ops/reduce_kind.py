"""The three reductions that `reduce` and `reduce_window` share, and what each one is in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.foundation.dtypes import NUMBERS, ORDERED, DType
from weft.ptir.op import Array
from weft.ptir.schema import WireEnum


class ReduceKind(WireEnum):
    """How a reduction combines elements, in wire order."""

    SUM = "Sum"
    MAX = "Max"
    MIN = "Min"


DEFINED: Mapping[ReduceKind, frozenset[DType]] = {
    ReduceKind.SUM: NUMBERS,
    ReduceKind.MAX: ORDERED,
    ReduceKind.MIN: ORDERED,
}
"""The dtypes each reduction is defined for: i1 has no sum, complex numbers have no order."""

# maximum and minimum propagate NaN, and are or and and on i1.
_UFUNCS: Mapping[ReduceKind, Any] = {
    ReduceKind.SUM: np.add,
    ReduceKind.MAX: np.maximum,
    ReduceKind.MIN: np.minimum,
}


def ufunc(kind: ReduceKind) -> Any:
    """The NumPy ufunc. `reduce` with it needs `dtype=`: NumPy would widen small integers."""
    return _UFUNCS[kind]


def reduce_identity(kind: ReduceKind, dtype: DType) -> Array:
    """What an empty reduction over `dtype` gives, as a rank-0 array of `dtype`.

    The identity belongs to the operand's dtype even where the accumulator is wider: fp8_e4m3 has no
    infinity, so the one of an f32 accumulator could not be cast back.
    """
    if kind is ReduceKind.SUM:
        return np.zeros((), dtype.numpy)
    bound = dtype.lowest if kind is ReduceKind.MAX else dtype.highest
    return np.asarray(np.asarray(bound).astype(dtype.numpy))
