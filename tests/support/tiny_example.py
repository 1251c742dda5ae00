"""The example of the specification, in the text of Tiny."""

from __future__ import annotations

from weft.foundation.dtypes import F32, DType
from weft.foundation.scalar import Fn
from weft.tiny import build
from weft.tiny.ir import Input, Pad, Reshape, Unary, Value

EXAMPLE = """
{
  "ops": [
    {"op":"Movement","name":"a_reshape","kind":"reshape","inputs":["A"],"outputs":["A_r"],"attrs":{"new_shape":["M","K","1"]}},
    {"op":"Movement","name":"b_reshape","kind":"reshape","inputs":["B"],"outputs":["B_r"],"attrs":{"new_shape":["1","K","N"]}},
    {"op":"Binary","name":"mul","fn":"mul","inputs":["A_r","B_r"],"outputs":["T"]},
    {"op":"Reduce","name":"sum_k","fn":"sum","inputs":["T"],"outputs":["C0"],"axes":["K"]},
    {"op":"Movement","name":"bias_expand","kind":"expand","inputs":["bias"],"outputs":["bias_mn"],"attrs":{"new_shape":["M","N"]}},
    {"op":"Binary","name":"bias_add","fn":"add","inputs":["C0","bias_mn"],"outputs":["C1"]},
    {"op":"Unary","name":"relu","fn":"relu","inputs":["C1"],"outputs":["C2"]}
  ],
  "values": {
    "A":{"dtype":"fp16","shape":["M","K"]},
    "B":{"dtype":"fp16","shape":["K","N"]},
    "bias":{"dtype":"fp16","shape":["N"]},
    "A_r":{"dtype":"fp16","shape":["M","K","1"]},
    "B_r":{"dtype":"fp16","shape":["1","K","N"]},
    "T":{"dtype":"fp16","shape":["M","K","N"]},
    "C2":{"dtype":"fp16","shape":["M","N"]}
  }
}
"""
"""Section 1.2 of document 2, as printed."""


def inputs(*shapes: tuple[int, ...], dtype: DType = F32) -> list[Input]:
    return [Input(f"x{n}", dtype, shape) for n, shape in enumerate(shapes)]


def matmul(lhs: Value, rhs: Value) -> Value:
    return build.product(lhs, rhs, ([], []), ([1], [0]), F32)


def convolution(dtype: DType = F32, filters: int = 4) -> tuple[list[Input], Value]:
    """A 3x3 convolution with padding 1, channels last, and a silu."""
    x, w = inputs((2, 6, 5, 3), (3, 3, 3, filters), dtype=dtype)
    padded = Pad(x, (0, 1, 1, 0), (0, 1, 1, 0), build.const(0.0, dtype))
    windows = build.windows(padded, (1, 3, 3, 3), (1, 1, 1, 1), (1, 1, 1, 1))
    columns = Reshape(windows, (2 * 6 * 5, 27))
    y = matmul(columns, Reshape(w, (27, filters)))
    y = Reshape(y, (2, 6, 5, filters))
    below = build.binary(Fn.ADD, Unary(Fn.EXP, Unary(Fn.NEG, y)), 1.0)
    return [x, w], build.binary(Fn.DIV, y, below)
