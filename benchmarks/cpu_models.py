"""Whole models for the CPU benchmark, written once for torch, jax and Weft's tensors.

`Ops` names what the models need of a library; everything else is operators that all of them have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch
from jax import numpy as jnp
from numpy.typing import NDArray
from torch.nn import functional as tf

import weft
from weft import functional as wf

Array = NDArray[Any]


@dataclass(frozen=True)
class Ops:
    """The words of one library."""

    take: Callable[[Any, Any], Any]
    norm: Callable[[Any, Any, Any], Any]
    gelu: Callable[[Any], Any]
    relu: Callable[[Any], Any]
    attention: Callable[[Any, Any, Any, bool], Any]
    reshape: Callable[[Any, tuple[int, ...]], Any]
    permute: Callable[[Any, tuple[int, ...]], Any]
    keep: Callable[[Any, Any, Any], Any]
    """A cache with something new written at a place of its axis 2, in its own memory."""
    cross_entropy: Callable[[Any, Any], Any]
    value_and_grad: Callable[[Callable[..., Any]], Callable[..., Any]]
    """Of a function of a list of parameters first."""


def _torch_value_and_grad(function: Callable[..., Any]) -> Callable[..., Any]:
    both = torch.func.grad_and_value(function)

    def call(*args: Any) -> Any:
        gradient, value = both(*args)
        return value, gradient

    return call


def _jax_attention(q: Any, k: Any, v: Any, causal: bool) -> Any:
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(q.shape[-1]).astype(q.dtype)
    if causal:
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        scores = jnp.where(seen, scores, -jnp.inf)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, -1), v)


def _jax_norm(x: Any, g: Any, b: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(variance + 1e-5) * g + b


def _jax_cross_entropy(scores: Any, labels: Any) -> Any:
    chances = jax.nn.log_softmax(scores, -1)
    return -jnp.take_along_axis(chances, labels[:, None], 1).mean()


TORCH = Ops(
    take=lambda table, index: table[index],
    norm=lambda x, g, b: tf.layer_norm(x, g.shape, g, b, 1e-5),
    gelu=tf.gelu,
    relu=tf.relu,
    attention=lambda q, k, v, causal: tf.scaled_dot_product_attention(q, k, v, is_causal=causal),
    reshape=lambda x, shape: x.reshape(shape),
    permute=lambda x, order: x.permute(order),
    keep=lambda cache, new, place: cache.index_copy_(2, place, new),
    cross_entropy=tf.cross_entropy,
    value_and_grad=_torch_value_and_grad,
)
JAX = Ops(
    take=lambda table, index: table[index],
    norm=_jax_norm,
    gelu=lambda x: jax.nn.gelu(x, approximate=False),
    relu=jax.nn.relu,
    attention=_jax_attention,
    reshape=lambda x, shape: x.reshape(shape),
    permute=jnp.transpose,
    keep=lambda cache, new, place: jax.lax.dynamic_update_slice_in_dim(cache, new, place[0], 2),
    cross_entropy=_jax_cross_entropy,
    value_and_grad=jax.value_and_grad,
)
WEFT = Ops(
    take=lambda table, index: weft.take(table, weft.reshape(index, (-1,)), axis=0),
    norm=lambda x, g, b: wf.layer_norm(x, g.shape, g, b, 1e-5),
    gelu=wf.gelu,
    relu=wf.relu,
    attention=lambda q, k, v, causal: wf.attention(q, k, v, causal=causal),
    reshape=weft.reshape,
    permute=weft.permute_dims,
    keep=lambda cache, new, place: wf.update_cache(cache, new, weft.reshape(place, ())),
    cross_entropy=wf.cross_entropy,
    value_and_grad=weft.value_and_grad,
)


# -- GPT -----------------------------------------------------------------------------------------


def gpt(ops: Ops, heads: int, tokens: Any, weights: Sequence[Any]) -> Any:
    """Logits `[B * S, V]` of token ids `[B, S]`."""
    (_, rows), places = tokens.shape, weights[1]
    return _logits(ops, heads, tokens, places[:rows], weights, Cache((), None))[0]


def decode(
    ops: Ops, heads: int, token: Any, place: Any, caches: Sequence[Any], weights: Sequence[Any]
) -> list[Any]:
    """The logits of one token at a place `[1]` that follows all others in the caches
    `[B, H, T, D]`, keys and values of each block, and the caches with its own written there."""
    kept = Cache(caches, place)
    logits, held = _logits(ops, heads, token, ops.take(weights[1], place), weights, kept)
    return [logits, *held]


@dataclass(frozen=True)
class Cache:
    """Keys and values in turn, and the place of the next ones; nothing where none are kept."""

    held: Sequence[Any]
    place: Any


def _logits(
    ops: Ops, heads: int, tokens: Any, places: Any, weights: Sequence[Any], cache: Cache
) -> tuple[Any, list[Any]]:
    """The logits, and the caches as they are afterwards."""
    (batch, rows), (table, _, *rest) = tokens.shape, weights
    width, held = table.shape[-1], list[Any]()
    x = ops.reshape(ops.take(table, tokens), (batch, rows, width)) + places
    for number in range((len(rest) - 2) // 12):
        block = rest[12 * number : 12 * number + 12]
        own = Cache(cache.held[2 * number : 2 * number + 2], cache.place)
        mixed, kept = _heads(ops, heads, ops.norm(x, *block[:2]), block[2:6], own)
        held += kept
        x = x + mixed
        grown = ops.gelu(ops.norm(x, *block[6:8]) @ block[8] + block[9])
        x = x + (grown @ block[10] + block[11])
    x = ops.reshape(ops.norm(x, *rest[-2:]), (batch * rows, width))
    return x @ ops.permute(table, (1, 0)), held


def _heads(
    ops: Ops, heads: int, x: Any, block: Sequence[Any], cache: Cache
) -> tuple[Any, list[Any]]:
    batch, rows, width = x.shape
    joined = x @ block[0] + block[1]
    split = ops.reshape(joined, (batch, rows, 3, heads, width // heads))
    q, k, v = (ops.permute(split[:, :, part], (0, 2, 1, 3)) for part in range(3))
    held = [ops.keep(old, new, cache.place) for old, new in zip(cache.held, (k, v), strict=False)]
    k, v = held or (k, v)
    mixed = ops.permute(ops.attention(q, k, v, not held), (0, 2, 1, 3))
    return ops.reshape(mixed, (batch, rows, width)) @ block[2] + block[3], held


def gpt_weights(layers: int, width: int, vocabulary: int, context: int) -> list[Array]:
    """Random weights, in the order that `gpt` takes them."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Array:
        return np.asarray(rng.standard_normal(shape) / math.sqrt(shape[0]), np.float32)

    def norm() -> list[Array]:
        return [np.ones(width, np.float32), np.zeros(width, np.float32)]

    found = [0.02 * normal(vocabulary, width) * vocabulary**0.5, 0.1 * normal(context, width)]
    for _ in range(layers):
        found += [*norm(), normal(width, 3 * width), normal(3 * width)]
        found += [normal(width, width), normal(width), *norm(), normal(width, 4 * width)]
        found += [normal(4 * width), normal(4 * width, width), normal(width)]
    return [*found, *norm()]


# -- training ------------------------------------------------------------------------------------


def sgd(ops: Ops, loss_of: Callable[..., Any], rate: float) -> Callable[..., Any]:
    """One step: the loss, and every parameter less its gradient."""

    def step(weights: Any, *data: Any) -> Any:
        loss, gradients = ops.value_and_grad(loss_of)(weights, *data)
        return [w - rate * g for w, g in zip(weights, gradients, strict=True)], loss

    return step


def mlp_loss(ops: Ops) -> Callable[..., Any]:
    """Cross-entropy of a perceptron with two hidden layers."""

    def loss(weights: Any, x: Any, labels: Any) -> Any:
        w1, b1, w2, b2, w3, b3 = weights
        hidden = ops.relu(ops.relu(x @ w1 + b1) @ w2 + b2)
        return ops.cross_entropy(hidden @ w3 + b3, labels)

    return loss


def gpt_loss(ops: Ops, heads: int) -> Callable[..., Any]:
    """Cross-entropy of the following tokens."""

    def loss(weights: Any, tokens: Any, following: Any) -> Any:
        return ops.cross_entropy(gpt(ops, heads, tokens, weights), following)

    return loss
