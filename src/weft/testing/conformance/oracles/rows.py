"""Coarse ops on rows: exact, and step by step in a narrower dtype."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.testing.conformance.oracles.normalisation import Step, added, unrounded

Array = NDArray[Any]


def sum_over(x: Array, axes: Sequence[int], step: Step = unrounded) -> Array:
    """The sum over several axes, which stay as 1."""
    for axis in axes:
        x = added(x, axis, step)
    return x


def log_softmax(x: Array, axis: int, step: Step = unrounded) -> Array:
    """x - max - log(sum(exp(x - max)))."""
    shifted = step(x - np.max(x, axis=axis, keepdims=True, initial=-np.inf))
    return step(shifted - step(np.log(added(step(np.exp(shifted)), axis, step))))


def layer_norm(
    x: Array,
    weight: Array,
    bias: Array,
    axes: Sequence[int],
    epsilon: float,
    outside: bool,
    step: Step = unrounded,
) -> tuple[Array, Array, Array]:
    """The result, the mean, and what the differences to it are multiplied by."""
    count = max(math.prod(x.shape[axis] for axis in axes), 1)
    mean = step(sum_over(x, axes, step) / count)
    centred = step(x - mean)
    variance = step(sum_over(step(centred * centred), axes, step) / count)
    if outside:
        length = step(step(np.sqrt(variance)) + epsilon)
    else:
        length = step(np.sqrt(step(variance + epsilon)))
    factor = step(1 / length)
    scale, shift = (spread(p, axes, x.ndim) for p in (weight, bias))
    return step(step(step(centred * factor) * scale) + shift), mean, factor


def spread(parameter: Array, axes: Sequence[int], rank: int) -> Array:
    """A parameter with axes in the order of a list, for broadcasting."""
    letters = np.argsort(axes)
    shape = [1] * rank
    for position, axis in enumerate(axes):
        shape[axis] = parameter.shape[position]
    return parameter.transpose(letters).reshape(shape)


def l2_norm(
    x: Array, axes: Sequence[int], epsilon: float, outside: bool, step: Step = unrounded
) -> Array:
    """Rows divided by their length, which has a bound below."""
    squares = sum_over(step(x * x), axes, step)
    if outside:
        return step(x / np.maximum(step(np.sqrt(squares)), step(np.asarray(epsilon))))
    return step(x / step(np.sqrt(np.maximum(squares, step(np.asarray(epsilon))))))


def gelu_tanh(x: Array, step: Step = unrounded) -> Array:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    cube = step(step(x * x) * x)
    inner = step(step(x + step(cube * 0.044715)) * math.sqrt(2 / math.pi))
    return step(step(x * 0.5) * step(step(np.tanh(inner)) + 1))
