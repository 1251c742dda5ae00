"""The lines of the CPU benchmark: each for Weft, for torch, for jax, and where it applies in NumPy.

ONNX Runtime and OpenVINO get what torch exports.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import ml_dtypes
import numpy as np
import torch
from jax import numpy as jnp
from numpy.typing import NDArray
from torch.nn import functional as tf

import weft
from benchmarks.cpu_models import (
    JAX,
    TORCH,
    WEFT,
    decode,
    gpt,
    gpt_loss,
    gpt_weights,
    mlp_loss,
    sgd,
)
from weft.ptir import Builder
from weft.target.cpu import host

Array = NDArray[Any]
Call = Callable[[], Any]
THREADS = int(os.environ.get("WEFT_NUM_THREADS", "2"))
LANES = host().limits.vector_bits // 32
"""f32 numbers of a vector instruction."""
PEAK = THREADS * host().rates.matrix_flops["f32"] / host().limits.units
"""FLOP/s of the threads, by what the host says of itself and a usual clock."""


@dataclass(frozen=True)
class Line:
    """One measured computation."""

    name: str
    kind: str
    """What bar it counts for: gemm, memory, attention, conv, model or training."""
    inputs: Callable[[], list[Array]]
    weft: Callable[[list[Array]], Call]
    torch: Callable[..., Any]
    jax: Callable[..., Any]
    numpy: Callable[..., Any] | None = None
    flops: float = 0.0
    vector_instructions: float = 0.0
    exports: bool = True
    """Whether ONNX Runtime and OpenVINO can take it."""
    changed: range = range(0)
    """The inputs that a call changes in place: torch writes into them; the function for jax returns
    them after its result, as does the one for Weft, and both are given their memory."""

    def limit(self, results: int, bandwidth: float, peak: float) -> float:
        """The seconds that memory, arithmetic or issuing vector instructions take at least, with
        each input and each of the `results` bytes moved once."""
        moved = sum(array.nbytes for array in self.inputs()) + results
        issue = self.vector_instructions * 2 * LANES / peak
        return max(moved / bandwidth, self.flops / peak, issue)


Shapes = tuple[tuple[int, ...], ...]
DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


def _program(
    name: str,
    kind: str,
    shapes: Shapes,
    function: Callable[..., Any],
    in_torch: Callable[..., Any],
    in_jax: Callable[..., Any],
    *,
    dtype: str = "f32",
    **rest: Any,
) -> Line:
    """A line whose Weft side is written with the builder."""

    def inputs() -> list[Array]:
        rng = np.random.default_rng(0)
        return [rng.standard_normal(shape).astype(DTYPES[dtype]) for shape in shapes]

    def ready(arrays: list[Array]) -> Call:
        builder = Builder("line")
        params = [builder.param(dtype, list(shape)) for shape in shapes]
        executable = weft.compile(builder.build(function(builder, *params)), "cpu")
        return lambda: executable.run(arrays, threads=THREADS)[0]

    return Line(name, kind, inputs, ready, in_torch, in_jax, **rest)


def _matmul(n: int, dtype: str = "f32") -> Line:
    label = "" if dtype == "f32" else f" {dtype}"
    return _program(
        f"matmul {n}^3{label}", "gemm", ((n, n), (n, n)), lambda b, x, y: b.matmul(x, y),
        lambda x, y: x @ y, lambda x, y: x @ y, dtype=dtype, flops=2.0 * n**3,
        numpy=(lambda x, y: x @ y) if dtype == "f32" else None,
    )  # fmt: skip


def _dense(b: Builder, x: Any, w: Any, c: Any) -> Any:
    return b.gelu(b.matmul(x, w) + b.broadcast_to(b.reshape(c, [1, 3072]), [256, 3072]))


def _convolution(b: Builder, x: Any, w: Any) -> Any:
    patches = b.emit(
        "extract_patches", x, window=[3, 3], strides=[1, 1], dilation=[1, 1],
        padding=[(1, 1), (1, 1)], pad_value=0.0,
    )  # fmt: skip
    return b.dot_general(b.reshape(patches, [1, 56, 56, 576]), w, contract=([3], [0]))


def _torch_convolution(x: Any, w: Any) -> Any:
    kernel = w.reshape(3, 3, 64, 64).permute(3, 2, 0, 1)
    return tf.conv2d(x.permute(0, 3, 1, 2), kernel, padding=1).permute(0, 2, 3, 1)


def _jax_convolution(x: Any, w: Any) -> Any:
    kernel = w.reshape(3, 3, 64, 64)
    return jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


# -- models --------------------------------------------------------------------------------------


def _arrays(result: Any) -> Any:
    """Views, as the tensors of torch are: a copy for NumPy is no part of a line."""
    return [np.asarray(one) for one in result] if isinstance(result, list) else np.asarray(result)


def model_line(
    name: str, kind: str, data: Callable[[], list[Array]], function: Any, **rest: Any
) -> Line:
    """A line whose function is one of `Ops`, the data and then the weights. How many threads Weft
    takes for it is `WEFT_NUM_THREADS`."""

    changed: range = rest.get("changed", range(0))

    def ready(arrays: list[Array]) -> Call:
        tensors = [weft.tensor(array).to("cpu") for array in arrays]
        if changed:
            return _in_place(function, tensors, changed)
        call = weft.jit(lambda given: function(WEFT, *given))
        return lambda: _arrays(call(tensors))

    def in_torch(*given: Any) -> Any:
        found = function(TORCH, *given)
        return found[0] if changed else found

    return Line(name, kind, data, ready, in_torch, lambda *given: function(JAX, *given), **rest)


def _in_place(function: Any, tensors: list[Any], changed: range) -> Call:
    """Calls that give their memory to the next one: the first result, the others kept."""
    kept = tensors[changed.start : changed.stop]
    before, after = tensors[: changed.start], tensors[changed.stop :]
    call = weft.jit(
        lambda held, given, more: function(WEFT, *given, *held, *more), donate=("held",)
    )

    def again() -> Array:
        nonlocal kept
        result, *kept = call(kept, before, after)
        return np.asarray(result)

    return again


GPT2 = {"layers": 12, "width": 768, "vocabulary": 50257, "context": 256}
SMALL = {"layers": 4, "width": 128, "vocabulary": 96, "context": 64}


def _gpt_flops(sizes: dict[str, int], tokens: int, seen: int) -> float:
    width, layers = sizes["width"], sizes["layers"]
    blocks = layers * (24 * width * width + 4 * width * seen)
    return float(tokens) * (blocks + 2 * width * sizes["vocabulary"])


def _ids(count: int, *shape: int) -> Array:
    return np.random.default_rng(1).integers(0, count, shape)


def _decode_data() -> list[Array]:
    """One token, its place, which is the last one, caches of all blocks, and the weights."""
    rng = np.random.default_rng(2)
    caches = [rng.standard_normal((1, 12, 256, 64)).astype(np.float32) for _ in range(24)]
    return [_ids(50257, 1, 1), np.array([255]), *caches, *gpt_weights(**GPT2)]


def _decode(ops: Any, token: Any, place: Any, *rest: Any) -> list[Any]:
    return decode(ops, 12, token, place, rest[:24], rest[24:])


def _mlp_weights() -> list[Array]:
    rng = np.random.default_rng(0)
    sizes = [(784, 512), (512,), (512, 512), (512,), (512, 10), (10,)]
    return [(rng.standard_normal(s) * 0.04).astype(np.float32) for s in sizes]


def _mlp_data() -> list[Array]:
    x = np.random.default_rng(3).standard_normal((128, 784)).astype(np.float32)
    return [x, _ids(10, 128), *_mlp_weights()]


def _mlp_step(ops: Any, x: Any, labels: Any, *weights: Any) -> Any:
    return sgd(ops, mlp_loss(ops), 0.1)(list(weights), x, labels)[0]


def _gpt_step(ops: Any, tokens: Any, following: Any, *weights: Any) -> Any:
    return sgd(ops, gpt_loss(ops, 4), 0.1)(list(weights), tokens, following)[0]


HEADS = (1, 12, 512, 64)
MILLIONS = 1 << 24
LINES: Sequence[Line] = (
    _matmul(512),
    _matmul(1024),
    _matmul(2048),
    _matmul(512, "f16"),
    _matmul(512, "bf16"),
    _program(
        "gemm+bias+gelu", "gemm", ((256, 768), (768, 3072), (3072,)), _dense,
        lambda x, w, c: tf.gelu(x @ w + c),
        lambda x, w, c: jax.nn.gelu(x @ w + c, approximate=False), flops=2.0 * 256 * 768 * 3072,
    ),
    _program(
        "tanh/exp chain 16M", "memory", ((MILLIONS,),),
        lambda b, x: b.tanh(x * 0.5 + 0.1) * b.exp(-(x * x)) + 0.3,
        lambda x: torch.tanh(x * 0.5 + 0.1) * torch.exp(-(x * x)) + 0.3,
        lambda x: jnp.tanh(x * 0.5 + 0.1) * jnp.exp(-(x * x)) + 0.3,
        vector_instructions=42 * MILLIONS / LANES,
    ),
    _program(
        "softmax [4096,1024]", "memory", ((4096, 1024),), lambda b, x: b.softmax(x),
        lambda x: torch.softmax(x, -1), lambda x: jax.nn.softmax(x, -1),
        vector_instructions=24 * 4096 * 1024 / LANES,
    ),
    _program(
        "layer_norm [4096,1024]", "memory", ((4096, 1024), (1024,), (1024,)),
        lambda b, x, g, c: b.layer_norm(x, g, c, epsilon=1e-5, feature_axis=-1),
        lambda x, g, c: tf.layer_norm(x, (1024,), g, c, 1e-5), JAX.norm,
    ),
    _program(
        "sum axis 0 [4096,4096]", "memory", ((4096, 4096),), lambda b, x: b.reduce_sum(x, [0]),
        lambda x: x.sum(0), lambda x: x.sum(0), numpy=lambda x: x.sum(0),
    ),
    _program(
        "sum axis 1 [4096,4096]", "memory", ((4096, 4096),), lambda b, x: b.reduce_sum(x, [1]),
        lambda x: x.sum(1), lambda x: x.sum(1), numpy=lambda x: x.sum(1),
    ),
    _program(
        "x.T+y [4096,4096]", "memory", ((4096, 4096), (4096, 4096)),
        lambda b, x, y: b.transpose(x, [1, 0]) + y, lambda x, y: x.T + y, lambda x, y: x.T + y,
        numpy=lambda x, y: x.T + y,
    ),
    _program(
        "causal attention 1x12x512x64", "attention", (HEADS, HEADS, HEADS),
        lambda b, q, k, v: b.attention(q, k, v, causal=True),
        lambda q, k, v: tf.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda q, k, v: JAX.attention(q, k, v, True), flops=2.0 * 12 * 512 * 512 * 64,
    ),
    _program(
        "conv 3x3 NHWC 56x56 64->64", "conv", ((1, 56, 56, 64), (576, 64)), _convolution,
        _torch_convolution, _jax_convolution, flops=2.0 * 56 * 56 * 64 * 576,
    ),
    model_line(
        "GPT-2 forward, 128 tokens", "model",
        lambda: [_ids(50257, 1, 128), *gpt_weights(**GPT2)],
        lambda ops, tokens, *weights: gpt(ops, 12, tokens, weights),
        flops=_gpt_flops(GPT2, 128, 64),
    ),
    model_line(
        "GPT-2 decode, cache 256", "model", _decode_data, _decode,
        flops=_gpt_flops(GPT2, 1, 256), exports=False, changed=range(2, 26),
    ),
    model_line(
        "MLP training step", "training", _mlp_data, _mlp_step, exports=False,
        flops=6.0 * 128 * sum(math.prod(w.shape) for w in _mlp_weights()),
    ),
    model_line(
        "small GPT training step", "training",
        lambda: [_ids(96, 16, 64), _ids(96, 16 * 64), *gpt_weights(**SMALL)], _gpt_step,
        exports=False, flops=3 * _gpt_flops(SMALL, 16 * 64, 32),
    ),
)  # fmt: skip
