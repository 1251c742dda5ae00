"""Operators that draw random numbers, by Weft's Philox.

A node with a seed draws from `weft.random.key(bits)`, where the bits are those of the seed as an
f32: the same numbers in every call. The others draw from the key of `weft.nn.training(key)` around
the call, each from one of its own, in the order of the nodes. ONNX Runtime's numbers are others:
ONNX does not say which.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from weft.foundation.dtypes import F32, SI32, SI64, DType
from weft.foundation.errors import SpecViolation, UserError
from weft.interop.onnx.table import Call, rule
from weft.interop.onnx.tensors import dtype_numbered
from weft.interop.onnx.values import Value, value_as_tensor, wf
from weft.ops.nn.training import next_key

R: Final[Any] = wf.random


def key_of(call: Call) -> Any:
    """What a node draws from."""
    seed = call.attr("seed")
    if seed is not None:
        (bits,) = struct.unpack("<I", struct.pack("<f", seed))
        return R.key(bits)
    key = next_key(call.node.op)
    if key is None:
        raise UserError(
            f"{call.node.op} draws random numbers, and has neither a seed nor a key; call the "
            "model inside `with weft.nn.training(weft.random.key(seed))`",
            "KeyMissing",
        )
    return key


def _dtype_of_call(call: Call, default: DType) -> DType:
    number = call.attr("dtype")
    return default if number is None else dtype_numbered(number)


def _draw_uniform(call: Call, shape: Any, dtype: DType) -> Value:
    low, high = call.attr("low", 0.0), call.attr("high", 1.0)
    drawn = R.uniform(key_of(call), tuple(shape)) * (high - low) + low
    return wf.astype(drawn, dtype)


def _draw_normal(call: Call, shape: Any, dtype: DType) -> Value:
    drawn = R.normal(key_of(call), tuple(shape)) * call.attr("scale", 1.0) + call.attr("mean", 0.0)
    return wf.astype(drawn, dtype)


@rule("RandomUniform", raw=True)
def random_uniform(call: Call) -> Value:
    return _draw_uniform(call, call.need("shape"), _dtype_of_call(call, F32))


@rule("RandomNormal", raw=True)
def random_normal(call: Call) -> Value:
    return _draw_normal(call, call.need("shape"), _dtype_of_call(call, F32))


@rule("RandomUniformLike", raw=True)
def random_uniform_like(call: Call, x: Value) -> Value:
    given = value_as_tensor(x)
    return _draw_uniform(call, given.shape, _dtype_of_call(call, given.dtype))


@rule("RandomNormalLike", raw=True)
def random_normal_like(call: Call, x: Value) -> Value:
    given = value_as_tensor(x)
    return _draw_normal(call, given.shape, _dtype_of_call(call, given.dtype))


@rule("Bernoulli", raw=True)
def bernoulli(call: Call, x: Value) -> Value:
    """1 where a number of f32 drawn from [0, 1) is below the chance."""
    chance = value_as_tensor(x)
    drawn = R.uniform(key_of(call), chance.shape) < wf.astype(chance, F32)
    return wf.astype(drawn, _dtype_of_call(call, chance.dtype))


@rule("Multinomial", raw=True)
def multinomial(call: Call, x: Value) -> Value:
    """The largest of logarithms plus noise is a choice by their exponentials."""
    logs, count = value_as_tensor(x), call.attr("sample_size", 1)
    dtype = _dtype_of_call(call, SI32)
    if logs.ndim != 2 or count < 1 or dtype not in (SI32, SI64):
        raise SpecViolation(
            "MalformedModel", "it takes a matrix, and gives at least one sample as int32 or int64"
        )
    noise = R.gumbel(key_of(call), (logs.shape[0], count, logs.shape[1]))
    return wf.astype(wf.argmax(wf.astype(logs, F32)[:, None, :] + noise, axis=-1), dtype)
