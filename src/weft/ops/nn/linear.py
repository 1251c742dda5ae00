"""Linear and bilinear layers."""

from __future__ import annotations

from weft.foundation.dtypes import DType
from weft.ops.calls import public
from weft.ops.functional.contraction import einsum
from weft.ops.functional.linear import linear
from weft.ops.nn.initialise import kaiming
from weft.ops.nn.module import Module
from weft.ops.tensor import Tensor


class Linear(Module):
    """`x @ weight.T + bias`, weight [out, in]."""

    @public
    def __init__(
        self, inputs: int, outputs: int, bias: bool = True, *, dtype: DType | str = "f32"
    ) -> None:
        self.weight = kaiming((outputs, inputs), inputs, dtype)
        self.bias = kaiming((outputs,), inputs, dtype) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class Bilinear(Module):
    """`x1 @ weight[o] @ x2 + bias[o]` for each output o, weight [out, in1, in2]."""

    @public
    def __init__(
        self,
        first: int,
        second: int,
        outputs: int,
        bias: bool = True,
        *,
        dtype: DType | str = "f32",
    ) -> None:
        self.weight = kaiming((outputs, first, second), first, dtype)
        self.bias = kaiming((outputs,), first, dtype) if bias else None

    def __call__(self, x1: Tensor, x2: Tensor) -> Tensor:
        made = einsum("...i,oij,...j->...o", x1, self.weight, x2)
        return made if self.bias is None else made + self.bias
