"""Lines of the CPU benchmark whose Weft side is written with tensors: convolutions with channels
first and their gradients, batched products, products of few rows, grouped attention, norms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax import numpy as jnp
from numpy.typing import NDArray
from torch.nn import functional as tf

import weft
from benchmarks.cpu_lines import Call, Line, Shapes
from benchmarks.cpu_models import JAX
from weft import functional as wf

Array = NDArray[Any]
NCHW = ("NCHW", "OIHW", "NCHW")


def traced(
    name: str,
    kind: str,
    shapes: Shapes,
    in_weft: Callable[..., Any],
    in_torch: Callable[..., Any],
    in_jax: Callable[..., Any],
    *,
    scale: float = 1.0,
    dtype: str = "float32",
    **rest: Any,
) -> Line:
    """A line whose Weft side is written with tensors. How many threads Weft takes for it is
    `WEFT_NUM_THREADS`."""

    def inputs() -> list[Array]:
        rng = np.random.default_rng(0)
        return [(rng.standard_normal(shape) * scale).astype(dtype) for shape in shapes]

    def ready(arrays: list[Array]) -> Call:
        tensors = [weft.asarray(array).to("cpu") for array in arrays]
        function = weft.jit(in_weft)

        def call() -> Any:
            # Computed, and still Weft's tensors, as the peers' results are still theirs.
            found = function(*tensors)
            weft.eval(found)
            return list(found) if isinstance(found, tuple) else found

        return call

    return Line(name, kind, inputs, ready, in_torch, in_jax, **rest)


def _jax_conv(x: Any, w: Any, stride: int, pad: int, groups: int = 1) -> Any:
    return jax.lax.conv_general_dilated(
        x, w, (stride, stride), [(pad, pad)] * 2, dimension_numbers=NCHW, feature_group_count=groups
    )


def _conv(name: str, x: tuple[int, ...], w: tuple[int, ...], stride: int, groups: int = 1) -> Line:
    pad = w[-1] // 2
    places = (x[2] // stride) * (x[3] // stride)
    return traced(
        name, "conv", (x, w),
        lambda a, b: wf.conv2d(a, b, padding=pad, stride=stride, groups=groups),
        lambda a, b: tf.conv2d(a, b, padding=pad, stride=stride, groups=groups),
        lambda a, b: _jax_conv(a, b, stride, pad, groups),
        flops=2.0 * x[0] * places * w[0] * w[1] * w[2] * w[3],
    )  # fmt: skip


STRIDES = (1, 2, 2)


def _weft_net(x: Any, *weights: Any) -> Any:
    for w, stride in zip(weights[:3], STRIDES, strict=True):
        x = wf.relu(wf.conv2d(x, w, padding=1, stride=stride))
    return ((weft.mean(x, axis=(2, 3)) @ weights[3]) ** 2).sum()


def _torch_net(x: Any, *weights: Any) -> Any:
    for w, stride in zip(weights[:3], STRIDES, strict=True):
        x = tf.relu(tf.conv2d(x, w, padding=1, stride=stride))
    return ((x.mean((2, 3)) @ weights[3]) ** 2).sum()


def _torch_net_gradient(x: Any, *weights: Any) -> Any:
    given = [w.detach().requires_grad_() for w in weights]
    return torch.autograd.grad(_torch_net(x, *given), given)


def _jax_net(x: Any, *weights: Any) -> Any:
    for w, stride in zip(weights[:3], STRIDES, strict=True):
        x = jax.nn.relu(_jax_conv(x, w, stride, 1))
    return ((x.mean((2, 3)) @ weights[3]) ** 2).sum()


def _product(name: str, x: tuple[int, ...], y: tuple[int, ...]) -> Line:
    return traced(
        name, "gemm", (x, y), lambda a, b: a @ b, lambda a, b: a @ b, lambda a, b: a @ b,
        numpy=lambda a, b: a @ b, flops=2.0 * float(np.prod(x)) * y[-1],
    )  # fmt: skip


QUERIES, GROUPED = (1, 16, 512, 64), (1, 4, 512, 64)
LINES: Sequence[Line] = (
    _conv("depthwise 3x3 NCHW 128 at 56x56", (1, 128, 56, 56), (128, 1, 3, 3), 1, 128),
    _conv("depthwise 3x3/2 NCHW 96 at 112x112", (1, 96, 112, 112), (96, 1, 3, 3), 2, 96),
    _conv("depthwise 5x5 NCHW 672 at 14x14", (1, 672, 14, 14), (672, 1, 5, 5), 1, 672),
    _conv("depthwise 7x7 NCHW 384 at 7x7", (1, 384, 7, 7), (384, 1, 7, 7), 1, 384),
    _conv("conv 7x7/2 NCHW 3->64 at 224x224", (1, 3, 224, 224), (64, 3, 7, 7), 2),
    _conv("conv 3x3 NCHW 64->128 at 28x28", (1, 64, 28, 28), (128, 64, 3, 3), 1),
    _conv("conv 3x3 NCHW 256->256 at 14x14", (1, 256, 14, 14), (256, 256, 3, 3), 1),
    _conv("conv 3x3 NCHW 96->80 at 27x27", (1, 96, 27, 27), (80, 96, 3, 3), 1),
    _conv("conv 1x1 NCHW 256->64 at 56x56", (1, 256, 56, 56), (64, 256, 1, 1), 1),
    _conv("conv 3x3/2 NCHW 128->128 at 56x56", (1, 128, 56, 56), (128, 128, 3, 3), 2),
    _conv("conv 3x3 NCHW 512->512 at 7x7", (1, 512, 7, 7), (512, 512, 3, 3), 1),
    _conv("conv 3x3 NCHW 64->64 at 56x56, 8 images", (8, 64, 56, 56), (64, 64, 3, 3), 1),
    traced(
        "small convnet, gradient", "conv",
        ((8, 3, 32, 32), (32, 3, 3, 3), (64, 32, 3, 3), (64, 64, 3, 3), (64, 10)),
        weft.grad(_weft_net, argnums=(1, 2, 3, 4)), _torch_net_gradient,
        jax.grad(_jax_net, argnums=(1, 2, 3, 4)), scale=0.1, exports=False,
    ),
    _product("batched 48x128x64x128", (48, 128, 64), (48, 64, 128)),
    _product("matmul 1000^3", (1000, 1000), (1000, 1000)),
    _product("product 777x999x1111", (777, 999), (999, 1111)),
    _product("2x4096x4096", (2, 4096), (4096, 4096)),
    _product("8x4096x4096", (8, 4096), (4096, 4096)),
    traced(
        "MLP, 64 rows", "gemm", ((64, 784), (784, 512), (512, 512), (512, 10)),
        lambda x, a, b, c: wf.relu(wf.relu(x @ a) @ b) @ c,
        lambda x, a, b, c: tf.relu(tf.relu(x @ a) @ b) @ c,
        lambda x, a, b, c: jax.nn.relu(jax.nn.relu(x @ a) @ b) @ c,
        flops=2.0 * 64 * (784 * 512 + 512 * 512 + 512 * 10),
    ),
    traced(
        "causal attention, 16 heads in 4 groups", "attention", (QUERIES, GROUPED, GROUPED),
        lambda q, k, v: wf.attention(q, k, v, causal=True),
        lambda q, k, v: tf.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
        lambda q, k, v: JAX.attention(q, jnp.repeat(k, 4, 1), jnp.repeat(v, 4, 1), True),
        flops=2.0 * 16 * 512 * 512 * 64, exports=False,
    ),
    traced(
        "layer_norm [3000,768]", "memory", ((3000, 768), (768,), (768,)),
        lambda x, g, c: wf.layer_norm(x, (768,), g, c),
        lambda x, g, c: tf.layer_norm(x, (768,), g, c, 1e-5), JAX.norm,
    ),
)  # fmt: skip
