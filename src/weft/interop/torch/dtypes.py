"""The dtypes that torch and Weft have in common."""

from __future__ import annotations

from typing import Final

import torch

from weft.foundation.dtypes import (
    BF16,
    CF32,
    CF64,
    F16,
    F32,
    F64,
    FP8_E4M3,
    FP8_E5M2,
    I1,
    SI8,
    SI16,
    SI32,
    SI64,
    UI8,
    UI16,
    UI32,
    UI64,
    DType,
)
from weft.foundation.errors import UserError

OURS: Final[dict[torch.dtype, DType]] = {
    torch.bool: I1, torch.uint8: UI8, torch.int8: SI8, torch.int16: SI16, torch.int32: SI32,
    torch.int64: SI64, torch.uint16: UI16, torch.uint32: UI32, torch.uint64: UI64,
    torch.float16: F16, torch.bfloat16: BF16, torch.float32: F32, torch.float64: F64,
    torch.complex64: CF32, torch.complex128: CF64,
    torch.float8_e4m3fn: FP8_E4M3, torch.float8_e5m2: FP8_E5M2,
}  # fmt: skip
THEIRS: Final = {ours: theirs for theirs, ours in OURS.items()}


def ours(dtype: torch.dtype) -> DType:
    """Weft's name for a dtype of torch."""
    known = OURS.get(dtype)
    if known is None:
        raise UserError(f"{dtype} is a dtype that Weft does not have", "UnsupportedDtype")
    return known
