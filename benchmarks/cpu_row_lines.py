"""Lines of the CPU benchmark over rows and whole numbers: norms, softmax and their gradients at odd
sizes, positions, sorting, counting and powers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax import numpy as jnp
from torch.nn import functional as tf

import weft
from benchmarks.cpu_lines import Line
from benchmarks.cpu_models import JAX
from benchmarks.cpu_traced_lines import traced
from weft import functional as wf

Shape = tuple[int, ...]


def _gradient(function: Callable[..., Any], library: Any) -> Callable[..., Any]:
    """The gradient to the first argument of the sum of squares, in Weft or jax."""
    return library.grad(lambda *args: (function(*args) ** 2).sum())  # type: ignore[no-any-return]


def _torch_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    def gradient(x: Any, *rest: Any) -> Any:
        given = x.detach().requires_grad_()
        return torch.autograd.grad((function(given, *rest) ** 2).sum(), given)[0]

    return gradient


def _both(
    name: str, shapes: tuple[Shape, ...], ours: Callable[..., Any], theirs: Callable[..., Any],
    in_jax: Callable[..., Any],
) -> list[Line]:  # fmt: skip
    """A function, and its gradient."""
    return [
        traced(name, "memory", shapes, ours, theirs, in_jax),
        traced(
            f"{name}, gradient", "memory", shapes, _gradient(ours, weft), _torch_gradient(theirs),
            _gradient(in_jax, jax), exports=False,
        ),
    ]  # fmt: skip


def _jax_rms(x: Any, g: Any) -> Any:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * g


def _jax_group(x: Any, g: Any, c: Any) -> Any:
    parts = x.reshape(8, 32, -1)
    mean = parts.mean(-1, keepdims=True)
    off = (parts - mean) / jnp.sqrt(((parts - mean) ** 2).mean(-1, keepdims=True) + 1e-5)
    return off.reshape(x.shape) * g[:, None, None] + c[:, None, None]


def _numbers(
    name: str, shapes: tuple[Shape, ...], dtype: str, ours: Any, theirs: Any, in_jax: Any,
    in_numpy: Any,
) -> Line:  # fmt: skip
    return traced(
        name, "numbers", shapes, ours, theirs, in_jax, scale=20.0, dtype=dtype, numpy=in_numpy,
        exports=False,
    )  # fmt: skip


LINES: Sequence[Line] = (
    *_both(
        "softmax [3001,1003]", ((3001, 1003),), lambda x: wf.softmax(x, axis=-1),
        lambda x: tf.softmax(x, -1), lambda x: jax.nn.softmax(x, -1),
    ),
    traced(
        "layer_norm [3000,768], gradient", "memory", ((3000, 768), (768,), (768,)),
        _gradient(lambda x, g, c: wf.layer_norm(x, (768,), g, c), weft),
        _torch_gradient(lambda x, g, c: tf.layer_norm(x, (768,), g, c, 1e-5)),
        _gradient(JAX.norm, jax), exports=False,
    ),
    *_both(
        "RMS norm [2048,1024]", ((2048, 1024), (1024,)),
        lambda x, g: wf.rms_norm(x, (1024,), g, eps=1e-5),
        lambda x, g: tf.rms_norm(x, (1024,), g, 1e-5), _jax_rms,
    ),
    *_both(
        "group norm [8,256,28,28]", ((8, 256, 28, 28), (256,), (256,)),
        lambda x, g, c: wf.group_norm(x, 32, g, c), lambda x, g, c: tf.group_norm(x, 32, g, c),
        _jax_group,
    ),
    _numbers(
        "argmax of si8 [1000,4096]", ((1000, 4096),), "int8", lambda x: weft.argmax(x, axis=1),
        lambda x: x.argmax(1), lambda x: x.argmax(1), lambda x: x.argmax(1),
    ),
    _numbers(
        "sort of si8 [256,4096]", ((256, 4096),), "int8", lambda x: weft.sort(x, axis=1),
        lambda x: x.sort(1)[0], lambda x: jnp.sort(x, 1), lambda x: np.sort(x, 1),
    ),
    _numbers(
        "sort of si16 [256,4096]", ((256, 4096),), "int16", lambda x: weft.sort(x, axis=1),
        lambda x: x.sort(1)[0], lambda x: jnp.sort(x, 1), lambda x: np.sort(x, 1),
    ),
    _numbers(
        "count_nonzero of f32, 4M", ((1 << 22,),), "float32", weft.count_nonzero,
        torch.count_nonzero, jnp.count_nonzero, np.count_nonzero,
    ),
    traced(
        "x**y, 1M", "numbers", ((1 << 20,), (1 << 20,)), lambda x, y: weft.exp(x) ** y,
        lambda x, y: x.exp() ** y, lambda x, y: jnp.exp(x) ** y,
        numpy=lambda x, y: np.exp(x) ** y,
    ),
)  # fmt: skip
