"""Normalisation."""

from __future__ import annotations

import numpy as np

from weft.foundation.dtypes import F32
from weft.foundation.errors import SpecViolation
from weft.interop.onnx.rules.elementwise import widened
from weft.interop.onnx.rules.random import key_of
from weft.interop.onnx.table import Call, rule
from weft.interop.onnx.tensors import dtype_numbered
from weft.interop.onnx.values import Array, Value, axis_in, wf
from weft.ops import functional
from weft.ops.tensor import Tensor


def _channel(value: Tensor, x: Tensor) -> Value:
    return value.reshape((1, -1, *[1] * (x.ndim - 2))) if x.ndim > 1 else value


@rule("BatchNormalization")
def batch_normalization(
    call: Call, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor
) -> tuple[Tensor, ...]:
    eps, momentum = call.attr("epsilon", 1e-5), call.attr("momentum", 0.9)
    wide = widened(x)
    training = call.attr("training_mode", 0) or (call.version < 7 and not call.attr("is_test", 0))
    if not training:
        return (_normalise_by(wide, mean, var, scale, bias, eps).astype(x.dtype),)
    axes = tuple(axis for axis in range(x.ndim) if axis != 1)
    now_mean = wf.mean(wide, axis=axes)
    now_var = wf.var(wide, axis=axes)
    made = _normalise_by(wide, now_mean, now_var, scale, bias, eps).astype(x.dtype)
    kept = [
        (old.astype(F32) * momentum + new.astype(F32) * (1 - momentum)).astype(old.dtype)
        for old, new in ((mean, now_mean), (var, now_var))
    ]
    return made, *kept


def _normalise_by(
    x: Tensor, mean: Tensor, var: Tensor, scale: Tensor, bias: Tensor, eps: float
) -> Value:
    parts = [_channel(widened(each).astype(x.dtype), x) for each in (mean, var, scale, bias)]
    return parts[2] * (x - parts[0]) / wf.sqrt(parts[1] + eps) + parts[3]


@rule("InstanceNormalization")
def instance_normalization(call: Call, x: Tensor, scale: Tensor, bias: Tensor) -> Value:
    return functional.instance_norm(x, scale, bias, call.attr("epsilon", 1e-5))


@rule("LayerNormalization")
def layer_normalization(
    call: Call, x: Tensor, scale: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, ...]:
    axis = axis_in(call.attr("axis", -1), x.ndim)
    axes = tuple(range(axis, x.ndim))
    eps, stash = call.attr("epsilon", 1e-5), dtype_numbered(call.attr("stash_type", 1))
    shape = tuple(int(size) for size in x.shape[axis:])
    plain = call.results == 1 and stash is F32 and x.dtype is not wf.float64
    if plain and scale.shape == shape and (bias is None or bias.shape == shape):
        return (functional.layer_norm(x, shape, scale, bias, eps),)
    wide = x.astype(stash)
    mean = wf.mean(wide, axis=axes, keepdims=True)
    apart = wide - mean
    inverse = 1 / wf.sqrt(wf.mean(apart * apart, axis=axes, keepdims=True) + eps)
    made = (apart * inverse).astype(x.dtype) * scale
    return made if bias is None else made + bias, mean, inverse


@rule("LRN")
def lrn(call: Call, x: Tensor) -> Value:
    size = call.need("size")
    wide = widened(x)
    low = (size - 1) // 2
    widths = [(0, 0)] * x.ndim
    widths[1] = (low, size - 1 - low)
    squares = functional.pad(wide * wide, widths)
    channels = int(x.shape[1])
    total = sum((squares[:, i : i + channels] for i in range(1, size)), start=squares[:, :channels])
    scaled = total * (call.attr("alpha", 1e-4) / size) + call.attr("bias", 1.0)
    power = wf.full((), call.attr("beta", 0.75), dtype=wide.dtype)
    return (wide / wf.pow(scaled, power)).astype(x.dtype)


@rule("Dropout", values=(1, 2))
def dropout(
    call: Call, x: Tensor, ratio: Array | None = None, training: Array | None = None
) -> tuple[Tensor, ...]:
    """In training an element stays where a number of f32 drawn from [0, 1) is at least the ratio,
    and is divided by the chance that it does."""
    part = call.attr("ratio", 0.5) if ratio is None else float(ratio.reshape(()))
    learning = training is not None and bool(np.any(training))
    if not 0 <= part < 1:
        raise SpecViolation("MalformedModel", f"the ratio {part} is not in [0, 1)")
    if learning and part:
        kept = wf.random.uniform(key_of(call), x.shape) >= part
        return wf.where(kept, x / (1.0 - part), wf.zeros_like(x)), kept
    return x, wf.ones(x.shape, dtype=wf.bool) if call.version >= 10 else x
