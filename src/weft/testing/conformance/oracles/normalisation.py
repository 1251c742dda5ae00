"""Normalisation and the library forms: exact, and step by step in a narrower dtype."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import DType
from weft.testing.conformance.oracles.functions import each
from weft.testing.conformance.oracles.rounding import nearest

Array = NDArray[Any]
Step = Callable[[Any], Array]
"""What happens to every intermediate result: nothing, or a rounding to a dtype."""


def unrounded(value: Any) -> Array:
    """Intermediate results as they are."""
    return np.asarray(value)


def rounding(dtype: DType) -> Step:
    """Intermediate results rounded to a float dtype, and back in f64."""
    return lambda value: nearest(np.asarray(value), dtype).astype(np.float64)


def layer_norm(
    x: Array, gamma: Array, beta: Array, epsilon: float, axis: int, step: Step = unrounded
) -> Array:
    """Two passes: the mean, then the variance of the differences to it."""
    along = [-1 if d == axis else 1 for d in range(x.ndim)]
    count = max(x.shape[axis], 1)
    mean = step(added(x, axis, step) / count)
    centred = step(x - mean)
    variance = step(added(step(centred * centred), axis, step) / count)
    normal = step(centred / step(np.sqrt(step(variance + epsilon))))
    return step(step(normal * gamma.reshape(along)) + beta.reshape(along))


def added(x: Array, axis: int, step: Step = unrounded) -> Array:
    """The sum along an axis that stays, one element after the other."""
    rows = np.moveaxis(x, axis, 0)
    total = np.zeros(rows.shape[1:], x.dtype)
    for row in rows:
        total = step(total + row)
    return np.expand_dims(total, axis)


def softmax(x: Array, axis: int, step: Step = unrounded) -> Array:
    """Shifted by the largest element, so that nothing overflows."""
    shifted = step(x - np.max(x, axis=axis, keepdims=True, initial=-np.inf))
    exponential = step(np.exp(shifted))
    return step(exponential / added(exponential, axis, step))


def gelu(x: Array, step: Step = unrounded) -> Array:
    """0.5 x (1 + erf(x / sqrt 2))."""
    root = step(np.asarray(math.sqrt(2.0)))
    inner = step(each(math.erf, step(x / root).astype(np.float64)).astype(x.dtype))
    return step(step(x * 0.5) * step(inner + 1))


def silu(x: Array, step: Step = unrounded) -> Array:
    """x / (1 + exp(-x))."""
    return step(x / step(step(np.exp(-x)) + 1))


def multiply_matrices(lhs: Array, rhs: Array, step: Step = unrounded) -> Array:
    """The product of the last two axes, one term after the other."""
    total = np.zeros((*lhs.shape[:-1], rhs.shape[-1]), np.result_type(lhs, rhs))
    for k in range(lhs.shape[-1]):
        total = step(total + step(lhs[..., :, k : k + 1] * rhs[..., k : k + 1, :]))
    return total


def causal(rows: int, columns: int) -> Array:
    """0 where a row may see a column, -inf elsewhere; the last row sees everything."""
    row, column = np.indices((rows, columns))
    return np.where(column <= row + columns - rows, 0.0, -np.inf)


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    mask: Array | None,
    step: Step = unrounded,
    weights: Step = unrounded,
) -> Array:
    """softmax(q k^T scale + mask) v; `weights` is the rounding of the weights to the dtype of v."""
    scores = step(multiply_matrices(q, np.swapaxes(k, -1, -2), step) * step(np.asarray(scale)))
    if mask is not None:
        scores = step(scores + mask)
    return multiply_matrices(weights(softmax(scores, -1, step)), v, step)
