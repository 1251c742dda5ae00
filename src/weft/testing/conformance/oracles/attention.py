"""Attention and its gradient, one head at a time: exact, and step by step in a narrower dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.testing.conformance.oracles.normalisation import Step, added, multiply_matrices, unrounded

Array = NDArray[Any]


@dataclass(frozen=True)
class Rules:
    """What happens between the two products, and how results are rounded."""

    scale: float
    mask: Array | None = None
    """Added to the scores; broadcasts to [B, H, Sq, Sk]."""
    kept: Array | None = None
    """The factor of each weight: 0 for the dropped ones."""
    step: Step = unrounded
    weights: Step = unrounded
    """The rounding of weights and of their cotangents before a product."""


def shared(x: Array, heads: int) -> Array:
    """Every head repeated for the query heads that share it; x is [B, H, S, D]."""
    return np.repeat(x, heads // x.shape[1], axis=1)


def scores(rules: Rules, q: Array, k: Array) -> Array:
    """q k^T scale + mask, for [B, H, S, D]."""
    step = rules.step
    keys = np.swapaxes(shared(k, q.shape[1]), -1, -2)
    found = step(multiply_matrices(q, keys, step) * step(np.asarray(rules.scale)))
    return found if rules.mask is None else step(found + rules.mask)


def forward(rules: Rules, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """The result, the log-sum-exp of the scores, and the weights after dropout."""
    step, found = rules.step, scores(rules, q, k)
    largest = np.max(found, axis=-1, keepdims=True)
    powers = step(np.exp(step(found - largest)))
    total = added(powers, found.ndim - 1, step)
    weights = step(powers / total)
    if rules.kept is not None:
        weights = step(weights * rules.kept)
    out = multiply_matrices(rules.weights(weights), shared(v, q.shape[1]), step)
    return out, step(largest + step(np.log(total)))[..., 0], weights


def backward(
    rules: Rules, q: Array, k: Array, v: Array, out: Array, lse: Array, dout: Array
) -> tuple[Array, Array, Array, Array]:
    """The cotangents of q, k and v, and the inner product of each row with its cotangent."""
    step, heads = rules.step, q.shape[1]
    weights = step(np.exp(step(scores(rules, q, k) - lse[..., None])))
    rows = added(step(dout * out), 3, step)
    dweights = multiply_matrices(dout, np.swapaxes(shared(v, heads), -1, -2), step)
    dropped = weights
    if rules.kept is not None:
        dweights, dropped = step(dweights * rules.kept), step(weights * rules.kept)
    dscores = rules.weights(step(weights * step(dweights - rows)))
    dq = step(multiply_matrices(dscores, shared(k, heads), step) * rules.scale)
    dk = step(multiply_matrices(np.swapaxes(dscores, -1, -2), q, step) * rules.scale)
    dv = multiply_matrices(np.swapaxes(rules.weights(dropped), -1, -2), dout, step)
    return dq, summed(dk, k.shape[1], step), summed(dv, v.shape[1], step), rows[..., 0]


def summed(x: Array, heads: int, step: Step) -> Array:
    """The sum over the query heads that share a head."""
    batch, own, rows, depth = x.shape
    return added(x.reshape(batch, heads, own // heads, rows, depth), 2, step)[:, :, 0]
