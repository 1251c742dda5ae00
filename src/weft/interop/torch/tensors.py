"""Tensors of torch as tensors of Weft and back, by DLPack: their memory is shared where it can."""

from __future__ import annotations

from typing import Any

import torch

from weft.foundation.errors import UserError, a_type
from weft.interop.torch.dtypes import OURS, THEIRS
from weft.ops import namespace
from weft.ops.calls import public
from weft.ops.tensor import Tensor


@public
def from_tensor(tensor: Any, *, copy: bool | None = None) -> Tensor:
    """A tensor of torch as one of Weft, on the backend where its memory is. It shares that memory
    unless `copy` is True: do not write to it afterwards."""
    check_tensor(tensor)
    if tensor.requires_grad:
        raise UserError(
            "the tensor requires a gradient, which Weft's tensor would not carry back; give "
            "x.detach()",
            "RequiresGradient",
        )
    plain = tensor.resolve_conj().resolve_neg()
    made: Tensor = namespace.from_dlpack(plain, copy=copy)
    return made


@public
def to_tensor(tensor: Any, *, copy: bool = True) -> torch.Tensor:
    """A tensor of Weft as one of torch. With `copy=False` it shares memory that nobody may write
    to."""
    if not isinstance(tensor, Tensor):
        raise UserError(f"a tensor of Weft is wanted, not {a_type(tensor)}", "NotATensor")
    if tensor.dtype not in THEIRS:
        raise UserError(f"torch has no dtype {tensor.dtype}", "UnsupportedDtype")
    return torch.from_dlpack(_Lent(tensor, copy))


class _Lent:
    """A tensor that is handed over by DLPack with or without a copy."""

    def __init__(self, tensor: Tensor, copy: bool) -> None:
        self.tensor = tensor
        self.copy = copy

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        options.pop("copy", None)
        return self.tensor.__dlpack__(copy=self.copy, **options)


def check_tensor(tensor: Any) -> None:
    """A tensor of torch that Weft can hold; else a sentence that says why not."""
    if not isinstance(tensor, torch.Tensor):
        raise UserError(f"a tensor of torch is wanted, not {a_type(tensor)}", "NotATensor")
    if tensor.is_quantized:
        raise UserError("the tensor is quantised; give x.dequantize()", "UnsupportedTensor")
    if tensor.layout is not torch.strided:
        raise UserError(
            f"the tensor has the layout {tensor.layout}; give x.to_dense()", "UnsupportedTensor"
        )
    if tensor.dtype not in OURS:
        raise UserError(f"{tensor.dtype} is a dtype that Weft does not have", "UnsupportedDtype")
    if tensor.device.type not in ("cpu", "cuda"):
        raise UserError(
            f"the tensor is on the device {tensor.device}; move it to the cpu, or to cuda",
            "UnsupportedDevice",
        )
