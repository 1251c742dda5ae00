"""Activations."""

from __future__ import annotations

import math
from typing import Any

from weft.foundation.dtypes import F16
from weft.interop.onnx.rules.elementwise import scalar_like, widened
from weft.interop.onnx.table import Call, rule
from weft.interop.onnx.values import Value, wf
from weft.ops import functional
from weft.ops.tensor import Tensor


def rectified(x: Tensor) -> Value:
    """`max(x, 0)`, with the derivative 0 at 0; integers too."""
    return functional.relu(x) if x.dtype.is_float else wf.maximum(x, scalar_like(x, 0))


def hard_sigmoid_of(x: Tensor, alpha: float, beta: float) -> Value:
    """`alpha * x + beta` between 0 and 1, with the derivative 0 at both bounds."""
    return functional.hardtanh(x * alpha + beta, 0.0, 1.0)


@rule("Relu")
def relu(call: Call, x: Tensor) -> Value:
    return rectified(x)


@rule("Sigmoid")
def sigmoid(call: Call, x: Tensor) -> Value:
    return functional.sigmoid(x)


@rule("LeakyRelu")
def leaky_relu(call: Call, x: Tensor) -> Value:
    return functional.leaky_relu(x, call.attr("alpha", 0.01))


@rule("PRelu")
def prelu(call: Call, x: Tensor, slope: Tensor) -> Value:
    if call.version < 7 and slope.ndim == 1:  # one slope for each channel
        slope = slope.reshape((-1, *[1] * (x.ndim - 2)))
    return wf.where(x > 0, x, x * slope)


@rule("Elu")
def elu(call: Call, x: Tensor) -> Value:
    return functional.elu(x, call.attr("alpha", 1.0))


@rule("Celu")
def celu(call: Call, x: Tensor) -> Value:
    return functional.celu(x, call.attr("alpha", 1.0))


@rule("Selu")
def selu(call: Call, x: Tensor) -> Value:
    alpha = call.attr("alpha", 1.67326319217681884765625)
    gamma = call.attr("gamma", 1.05070102214813232421875)
    below = wf.where(
        x > 0, scalar_like(x, 0), x
    )  # a choice: at 0 the derivative is that of this side
    return wf.where(x > 0, x * gamma, (wf.exp(below) - 1) * (alpha * gamma))


@rule("HardSigmoid")
def hard_sigmoid(call: Call, x: Tensor) -> Value:
    return hard_sigmoid_of(x, call.attr("alpha", 0.2), call.attr("beta", 0.5))


@rule("HardSwish")
def hard_swish(call: Call, x: Tensor) -> Value:
    return functional.hardswish(x)


@rule("Softplus")
def softplus(call: Call, x: Tensor) -> Value:
    return functional.softplus(x, threshold=math.inf)


@rule("Softsign")
def softsign(call: Call, x: Tensor) -> Value:
    return functional.softsign(x)


@rule("ThresholdedRelu")
def thresholded_relu(call: Call, x: Tensor) -> Value:
    return wf.where(x > call.attr("alpha", 1.0), x, scalar_like(x, 0))


@rule("Gelu")
def gelu(call: Call, x: Tensor) -> Value:
    return functional.gelu(x, call.choice("approximate", "none", ("none", "tanh")))


@rule("Mish")
def mish(call: Call, x: Tensor) -> Value:
    return functional.mish(x)


@rule("Clip")
def clip(call: Call, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Value:
    low = scalar_like(x, call.attr("min")) if "min" in call.node.attributes else low
    high = scalar_like(x, call.attr("max")) if "max" in call.node.attributes else high
    return wf.clip(x, low, high)


def _flatten_to_rows(call: Call, x: Tensor) -> tuple[Tensor, int]:
    """The operand and the axis; before version 13 all axes from that one on are one."""
    axis = call.attr("axis", -1 if call.version >= 13 else 1)
    if call.version >= 13 or x.ndim < 2:
        return x, axis if call.version >= 13 else 0
    axis %= x.ndim
    return x.reshape((math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))), 1


@rule("Softmax")
def softmax(call: Call, x: Tensor) -> Any:
    if x.dtype is F16 and call.version >= 13:
        return NotImplemented  # ONNX's description rounds after each step
    rows, axis = _flatten_to_rows(call, x)
    return functional.softmax(rows, axis).reshape(x.shape)


@rule("LogSoftmax")
def log_softmax(call: Call, x: Tensor) -> Value:
    rows, axis = _flatten_to_rows(call, x)
    return functional.log_softmax(rows, axis).reshape(x.shape)


@rule("Hardmax")
def hardmax(call: Call, x: Tensor) -> Value:
    rows, axis = _flatten_to_rows(call, x)
    best = wf.argmax(rows, axis=axis)
    depth = int(rows.shape[axis])
    return functional.one_hot(best, depth, axis=axis, dtype=x.dtype).reshape(x.shape)


@rule("Swish")
def swish(call: Call, x: Tensor) -> Value:
    wide = widened(x)
    return (wide * functional.sigmoid(wide * call.attr("alpha", 1.0))).astype(x.dtype)
