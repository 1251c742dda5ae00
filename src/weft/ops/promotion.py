"""Which dtype two tensors, or a tensor and a Python number, have in common.

The rules are the array API's: within a kind the wider wins, signed and unsigned meet in the next
wider signed type, and a Python number takes the dtype of the tensor beside it unless its kind is
larger. Where the standard leaves a pair open, an integer beside a float takes the float's dtype.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np

from weft.foundation.dtypes import (
    BF16,
    CF32,
    CF64,
    F16,
    F32,
    F64,
    I1,
    SI8,
    SI16,
    SI32,
    SI64,
    UI64,
    DType,
    Kind,
)
from weft.foundation.errors import SpecViolation

DEFAULT_FLOAT: Final = F32
DEFAULT_INTEGER: Final = SI64
DEFAULT_COMPLEX: Final = CF32
DEFAULTS: Final[dict[type, DType]] = {
    bool: I1,
    int: DEFAULT_INTEGER,
    float: DEFAULT_FLOAT,
    complex: DEFAULT_COMPLEX,
}
"""The dtype of a Python number that nothing stands beside."""
EXACT: Final[dict[type, DType]] = {
    bool: I1, int: SI64, float: F64, np.float64: F64, complex: CF64, np.complex128: CF64,
}  # fmt: skip
"""The dtype in which traced Python numbers are computed among themselves, as Python does it. Two of
NumPy's scalars are numbers of Python."""
_RANK = {Kind.BOOL: 0, Kind.UNSIGNED: 1, Kind.SIGNED: 1, Kind.FLOAT: 2, Kind.COMPLEX: 3}


@cache
def promoted(left: DType, right: DType) -> DType:
    """The dtype that both operands are converted to."""
    if left is right:
        return left
    low, high = sorted((left, right), key=lambda dtype: (_RANK[dtype.kind], dtype.bits))
    if low.kind is Kind.BOOL:
        return high
    if high.is_complex:
        wide = high is CF64 or low is F64 or low is CF64
        return CF64 if wide else CF32
    if high.is_float:
        return _promote_floats(low, high) if low.is_float else high
    return _promote_integers(left, right)


def _promote_floats(left: DType, right: DType) -> DType:
    if {left, right} == {F16, BF16}:
        return F32
    if left.bits == right.bits:
        return F16
    return left if left.bits > right.bits else right


def _promote_integers(left: DType, right: DType) -> DType:
    if left.kind is right.kind:
        return left if left.bits > right.bits else right
    signed, unsigned = (left, right) if left.is_signed else (right, left)
    if signed.bits > unsigned.bits:
        return signed
    if unsigned is UI64:
        raise SpecViolation(
            "DTypeMismatch",
            f"{signed} and {unsigned} have no integer dtype in common",
            "cast one of them first, with astype",
        )
    return {4: SI8, 8: SI16, 16: SI32, 32: SI64}[unsigned.bits]


@cache
def beside(dtype: DType, number: type) -> DType:
    """The dtype of a tensor and a Python number of this type."""
    if issubclass(number, bool) or dtype.is_complex:
        return dtype
    if issubclass(number, int):
        return DEFAULT_INTEGER if dtype is I1 else dtype
    if issubclass(number, float):
        return dtype if dtype.is_float else DEFAULT_FLOAT
    return CF64 if dtype is F64 else CF32


def as_float(dtype: DType) -> DType:
    """The dtype in which a function of real numbers takes a tensor: its own, or the default."""
    return dtype if dtype.is_float or dtype.is_complex else DEFAULT_FLOAT
