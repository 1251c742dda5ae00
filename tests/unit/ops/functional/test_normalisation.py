"""Norms against mean and variance in f64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import weft
from tests.support.cases import each
from tests.support.tensors import DTYPES, Array, agrees, data, wide
from weft import functional
from weft.foundation.dtypes import DType

F: Any = functional
"""Arrays and wrong arguments are tried too, which the types would not allow."""

Shape = tuple[int, ...]


def standardised(x: Array, axes: tuple[int, ...], eps: float) -> Array:
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return np.asarray((x - mean) / np.sqrt(variance + eps))


def laid(parameter: Array | None, rank: int, axis: int) -> Array | float:
    """Channels along one axis."""
    if parameter is None:
        return np.nan
    shape = [1] * rank
    shape[axis] = -1
    return wide(parameter).reshape(shape)


def tensor(array: Array | None) -> Any:
    return None if array is None else weft.asarray(array)


def parameters(shape: Shape, dtype: DType, which: str) -> tuple[Array | None, Array | None]:
    weight = data(shape, dtype, 1) if "w" in which else None
    bias = data(shape, dtype, 2) if "b" in which else None
    return weight, bias


@each("dtype", DTYPES)
@each("which", ["", "w", "wb", "b"])
@each(
    ("shape", "given"),
    [((5,), None), ((3, 7), None), ((3, 7), 7), ((2, 3, 5), (3, 5)), ((0, 4), 4), ((2, 3, 1), [1])],
)
def test_layer_norm(shape: Shape, given: Any, which: str, dtype: DType) -> None:
    last = shape[-1:] if given is None else tuple(np.atleast_1d(given).tolist())
    x = data(shape, dtype, scale=3.0) + np.asarray(2).astype(dtype.numpy)
    weight, bias = parameters(last, dtype, which)
    axes = tuple(range(len(shape) - len(last), len(shape)))
    exact = standardised(wide(x), axes, 1e-3)
    exact = exact * (1 if weight is None else wide(weight)) + (0 if bias is None else wide(bias))
    call = (weft.asarray(x), given, tensor(weight), tensor(bias), 1e-3)
    agrees(F.layer_norm(*call), exact, dtype)
    with F.overrides({"layer_norm": "force=whole"}):
        agrees(F.layer_norm(*call), exact, dtype)


def test_the_variance_survives_a_large_mean() -> None:
    x = data((2, 64)) + np.float32(4096)
    agrees(F.layer_norm(weft.asarray(x)), standardised(wide(x), (1,), 1e-5), ulps=2048)


@each("dtype", DTYPES)
@each("which", ["", "w"])
@each(("shape", "given"), [((3, 8), None), ((2, 3, 5), (3, 5)), ((0, 4), 4)])
def test_rms_norm(shape: Shape, given: Any, which: str, dtype: DType) -> None:
    last = shape[-1:] if given is None else tuple(np.atleast_1d(given).tolist())
    x = data(shape, dtype, scale=3.0)
    weight, _ = parameters(last, dtype, which)
    axes = tuple(range(len(shape) - len(last), len(shape)))
    exact = wide(x) / np.sqrt((wide(x) ** 2).mean(axes, keepdims=True) + 1e-2)
    exact = exact * (1 if weight is None else wide(weight))
    agrees(F.rms_norm(weft.asarray(x), given, tensor(weight), 1e-2), exact, dtype)


@each("dtype", DTYPES)
@each("which", ["", "wb"])
@each("running", [False, True])
@each(("shape", "axis"), [((4, 3), 1), ((2, 3, 4, 5), 1), ((2, 4, 5, 3), -1)])
def test_batch_norm(shape: Shape, axis: int, running: bool, which: str, dtype: DType) -> None:
    x = data(shape, dtype, scale=2.0)
    channels = (shape[axis],)
    weight, bias = parameters(channels, dtype, which)
    mean = data(channels, dtype, 3) if running else None
    variance = np.abs(data(channels, dtype, 4)) if running else None
    axes = tuple(a for a in range(len(shape)) if a != axis % len(shape))
    rank = len(shape)
    if running:
        exact = (wide(x) - laid(mean, rank, axis)) / np.sqrt(laid(variance, rank, axis) + 1e-3)
    else:
        exact = standardised(wide(x), axes, 1e-3)
    if weight is not None:
        exact = exact * laid(weight, rank, axis) + laid(bias, rank, axis)
    tensors = [tensor(a) for a in (mean, variance, weight, bias)]
    agrees(F.batch_norm(weft.asarray(x), *tensors, eps=1e-3, axis=axis), exact, dtype, ulps=12)


def grouped(x: Array, groups: int, axis: int, eps: float) -> Array:
    """Channels moved to the front of each sample, cut into groups."""
    first = np.moveaxis(wide(x), axis, 1)
    size = math.prod(first.shape[1:]) // groups
    rows = first.reshape(x.shape[0], groups, size)
    return np.moveaxis(standardised(rows, (2,), eps).reshape(first.shape), 1, axis)


@each("dtype", DTYPES)
@each("which", ["", "wb"])
@each(
    ("shape", "groups", "axis"),
    [
        ((2, 6, 5), 3, 1),
        ((2, 6, 3, 2), 1, 1),
        ((2, 3, 5, 4), 2, -1),
        ((2, 4), 2, 1),
        ((0, 4, 3), 2, 1),
    ],
)
def test_group_norm(shape: Shape, groups: int, axis: int, which: str, dtype: DType) -> None:
    x = data(shape, dtype, scale=2.0)
    weight, bias = parameters((shape[axis],), dtype, which)
    exact = grouped(x, groups, axis, 1e-3)
    if weight is not None:
        exact = exact * laid(weight, len(shape), axis) + laid(bias, len(shape), axis)
    found = F.group_norm(weft.asarray(x), groups, tensor(weight), tensor(bias), 1e-3, axis)
    agrees(found, exact, dtype, ulps=12)


@each("dtype", DTYPES)
@each("which", ["", "wb"])
@each(("shape", "axis"), [((2, 3, 5), 1), ((2, 3, 4, 3), 1), ((2, 4, 3, 5), -1)])
def test_instance_norm(shape: Shape, axis: int, which: str, dtype: DType) -> None:
    x = data(shape, dtype, scale=2.0)
    weight, bias = parameters((shape[axis],), dtype, which)
    exact = grouped(x, shape[axis], axis, 1e-3)
    if weight is not None:
        exact = exact * laid(weight, len(shape), axis) + laid(bias, len(shape), axis)
    found = F.instance_norm(weft.asarray(x), tensor(weight), tensor(bias), 1e-3, axis)
    agrees(found, exact, dtype, ulps=12)
