"""Lines of the CPU benchmark with loops: LSTM and GRU, 64 steps of 32 rows, and their gradients.

Weft's and torch's are the layers of the library; jax's is a scan with the input products before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import torch
from jax import numpy as jnp

import weft
from benchmarks.cpu_lines import Line, Shapes
from benchmarks.cpu_traced_lines import traced
from weft import nn

STEPS, ROWS = 64, 32
NAMES = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
GATES = {"LSTM": 4, "GRU": 3}


def _weft_layer(kind: str, hidden: int) -> Callable[..., Any]:
    def run(x: Any, *weights: Any) -> Any:
        layer = getattr(nn, kind)(hidden, hidden)
        for name, weight in zip(NAMES, weights, strict=True):
            setattr(layer, name, weight)
        return layer(x)[0]

    return run


def _torch_layer(kind: str, hidden: int) -> Callable[..., Any]:
    layer = getattr(torch.nn, kind)(hidden, hidden)

    def run(x: Any, *weights: Any) -> Any:
        return torch.func.functional_call(layer, dict(zip(NAMES, weights, strict=True)), (x,))[0]

    return run


def _jax_lstm(state: Any, given: Any, w: Any, c: Any) -> Any:
    hidden, cell = state
    enters, stays, new, shown = jnp.split(given + hidden @ w.T + c, 4, -1)
    cell = jax.nn.sigmoid(stays) * cell + jax.nn.sigmoid(enters) * jnp.tanh(new)
    hidden = jax.nn.sigmoid(shown) * jnp.tanh(cell)
    return (hidden, cell), hidden


def _jax_gru(state: Any, given: Any, w: Any, c: Any) -> Any:
    hidden, _ = state
    counts, stays, new = jnp.split(given, 3, -1)
    counted, stayed, old = jnp.split(hidden @ w.T + c, 3, -1)
    update = jax.nn.sigmoid(stays + stayed)
    fresh = jnp.tanh(new + jax.nn.sigmoid(counts + counted) * old)
    hidden = fresh + update * (hidden - fresh)
    return (hidden, hidden), hidden


def _jax_layer(kind: str, hidden: int) -> Callable[..., Any]:
    step = _jax_lstm if kind == "LSTM" else _jax_gru

    def run(x: Any, inner: Any, own: Any, b: Any, c: Any) -> Any:
        start = jnp.zeros((ROWS, hidden), x.dtype)
        given = x @ inner.T + b
        return jax.lax.scan(lambda s, g: step(s, g, own, c), (start, start), given)[1]

    return run


def _torch_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    def gradient(x: Any, *weights: Any) -> Any:
        given = [w.detach().requires_grad_() for w in weights]
        return torch.autograd.grad(function(x, *given).square().sum(), given)

    return gradient


def _lines(kind: str, hidden: int) -> Iterator[Line]:
    gates = GATES[kind] * hidden
    shapes: Shapes = ((STEPS, ROWS, hidden), (gates, hidden), (gates, hidden), (gates,), (gates,))
    weights, flops = (1, 2, 3, 4), 4.0 * STEPS * ROWS * gates * hidden
    ours, theirs, in_jax = (make(kind, hidden) for make in (_weft_layer, _torch_layer, _jax_layer))
    name = f"{kind} {hidden}"
    yield traced(
        name, "recurrent", shapes, ours, theirs, in_jax, scale=0.1, flops=flops, exports=False
    )
    yield traced(
        f"{name}, gradient", "recurrent", shapes,
        weft.grad(lambda *args: (ours(*args) ** 2).sum(), argnums=weights),
        _torch_gradient(theirs),
        jax.grad(lambda *args: (in_jax(*args) ** 2).sum(), argnums=weights),
        scale=0.1, flops=3 * flops, exports=False,
    )  # fmt: skip


LINES: Sequence[Line] = tuple(
    line for kind in GATES for hidden in (64, 256, 512) for line in _lines(kind, hidden)
)
