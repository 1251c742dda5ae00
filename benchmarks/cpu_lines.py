"""The lines of the CPU benchmark: each as a Weft program, as a torch module, and in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as tf

from weft.ptir import Builder, Program

Array = NDArray[Any]


@dataclass(frozen=True)
class Line:
    """A measured computation on normally distributed inputs of some shapes."""

    name: str
    kind: str
    """What bar it counts for: gemm, memory, attention or conv."""
    shapes: tuple[tuple[int, ...], ...]
    weft: Callable[..., Any]
    """From a builder and its parameters to the result."""
    torch: Callable[..., Any]
    """The same of torch tensors; jax, OpenVINO and ONNX Runtime get what torch exports."""
    flops: float = 0.0
    numpy: Callable[..., Any] | None = None

    def program(self) -> Program:
        builder = Builder("line")
        params = [builder.param("f32", list(shape)) for shape in self.shapes]
        return builder.build(self.weft(builder, *params))

    def inputs(self) -> list[Array]:
        rng = np.random.default_rng(0)
        return [rng.standard_normal(shape).astype(np.float32) for shape in self.shapes]

    def limit(self, results: int, bandwidth: float, peak: float) -> float:
        """The seconds that memory or arithmetic take at least, with each input and each of the
        `results` elements moved once."""
        moved = 4 * (sum(math.prod(shape) for shape in self.shapes) + results)
        return max(moved / bandwidth, self.flops / peak)


def _matmul(n: int) -> Line:
    return Line(
        f"matmul {n}^3", "gemm", ((n, n), (n, n)), lambda b, x, y: b.matmul(x, y),
        lambda x, y: x @ y, 2.0 * n**3, lambda x, y: x @ y,
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


HEADS = (1, 12, 512, 64)
LINES: Sequence[Line] = (
    _matmul(512),
    _matmul(1024),
    _matmul(2048),
    Line(
        "gemm+bias+gelu", "gemm", ((256, 768), (768, 3072), (3072,)), _dense,
        lambda x, w, c: tf.gelu(x @ w + c), 2.0 * 256 * 768 * 3072,
    ),
    Line(
        "tanh/exp chain 16M", "memory", ((1 << 24,),),
        lambda b, x: b.tanh(x * 0.5 + 0.1) * b.exp(-(x * x)) + 0.3,
        lambda x: torch.tanh(x * 0.5 + 0.1) * torch.exp(-(x * x)) + 0.3,
    ),
    Line(
        "softmax [4096,1024]", "memory", ((4096, 1024),), lambda b, x: b.softmax(x),
        lambda x: torch.softmax(x, -1),
    ),
    Line(
        "layer_norm [4096,1024]", "memory", ((4096, 1024), (1024,), (1024,)),
        lambda b, x, g, c: b.layer_norm(x, g, c, epsilon=1e-5, feature_axis=-1),
        lambda x, g, c: tf.layer_norm(x, (1024,), g, c, 1e-5),
    ),
    Line(
        "sum axis 0 [4096,4096]", "memory", ((4096, 4096),), lambda b, x: b.reduce_sum(x, [0]),
        lambda x: x.sum(0), 0.0, lambda x: x.sum(0),
    ),
    Line(
        "sum axis 1 [4096,4096]", "memory", ((4096, 4096),), lambda b, x: b.reduce_sum(x, [1]),
        lambda x: x.sum(1), 0.0, lambda x: x.sum(1),
    ),
    Line(
        "x.T+y [4096,4096]", "memory", ((4096, 4096), (4096, 4096)),
        lambda b, x, y: b.transpose(x, [1, 0]) + y, lambda x, y: x.T + y, 0.0,
        lambda x, y: x.T + y,
    ),
    Line(
        "causal attention 1x12x512x64", "attention", (HEADS, HEADS, HEADS),
        lambda b, q, k, v: b.attention(q, k, v, causal=True),
        lambda q, k, v: tf.scaled_dot_product_attention(q, k, v, is_causal=True),
        2.0 * 12 * 512 * 512 * 64,
    ),
    Line(
        "conv 3x3 NHWC 56x56 64->64", "conv", ((1, 56, 56, 64), (576, 64)), _convolution,
        _torch_convolution, 2.0 * 56 * 56 * 64 * 576,
    ),
)  # fmt: skip
