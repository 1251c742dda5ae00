"""Layers that normalise."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.axes import normalise_axis
from weft.foundation.dtypes import DType
from weft.foundation.errors import UserError, a_type
from weft.ops.arithmetic import as_tensor
from weft.ops.array.elementwise import maximum, sqrt
from weft.ops.array.manipulation import moveaxis, reshape
from weft.ops.array.statistics import mean, var
from weft.ops.array.statistics import sum as total
from weft.ops.calls import public
from weft.ops.differentiate import stop_gradient
from weft.ops.functional.normalisation import (
    batch_norm,
    group_norm,
    instance_norm,
    layer_norm,
    rms_norm,
)
from weft.ops.nn.initialise import constant
from weft.ops.nn.module import Module
from weft.ops.nn.settings import is_positive_whole
from weft.ops.nn.training import is_training
from weft.ops.tensor import Tensor, from_array


def _shape_tuple(shape: int | Sequence[int]) -> tuple[int, ...]:
    return tuple(shape) if isinstance(shape, Sequence) else (shape,)


class LayerNorm(Module):
    """Layer norm over the last axes, with weight and bias."""

    @public
    def __init__(
        self, shape: int | Sequence[int], eps: float = 1e-5, *, dtype: DType | str = "f32"
    ) -> None:
        self.shape = _shape_tuple(shape)
        self.eps = eps
        self.weight = constant(self.shape, 1.0, dtype)
        self.bias = constant(self.shape, 0.0, dtype)

    def __call__(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.shape, self.weight, self.bias, self.eps)


class RMSNorm(Module):
    """RMS norm over the last axes, with a weight."""

    @public
    def __init__(
        self, shape: int | Sequence[int], eps: float = 1e-6, *, dtype: DType | str = "f32"
    ) -> None:
        self.shape = _shape_tuple(shape)
        self.eps = eps
        self.weight = constant(self.shape, 1.0, dtype)

    def __call__(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.shape, self.weight, self.eps)


class GroupNorm(Module):
    """Group norm over channels, with weight and bias."""

    @public
    def __init__(
        self,
        groups: int,
        channels: int,
        eps: float = 1e-5,
        *,
        axis: int = 1,
        dtype: DType | str = "f32",
    ) -> None:
        self.groups, self.eps, self.axis = groups, eps, axis
        self.weight = constant((channels,), 1.0, dtype)
        self.bias = constant((channels,), 0.0, dtype)

    def __call__(self, x: Tensor) -> Tensor:
        return group_norm(x, self.groups, self.weight, self.bias, self.eps, self.axis)


class InstanceNorm(Module):
    """Every channel of every sample normalised by itself; with `affine` it has weight and bias."""

    @public
    def __init__(
        self,
        channels: int,
        eps: float = 1e-5,
        *,
        affine: bool = False,
        axis: int = 1,
        dtype: DType | str = "f32",
    ) -> None:
        self.eps, self.axis = eps, axis
        self.weight = constant((channels,), 1.0, dtype) if affine else None
        self.bias = constant((channels,), 0.0, dtype) if affine else None

    def __call__(self, x: Tensor) -> Tensor:
        return instance_norm(x, self.weight, self.bias, self.eps, self.axis)


class BatchNorm(Module):
    """Batch norm over channels. In training it normalises by the batch and moves its running
    statistics a part `momentum` of the way to those of the batch; in evaluation it normalises by
    the running statistics."""

    buffers = ("running_mean", "running_var")

    @public
    def __init__(
        self,
        channels: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        *,
        axis: int = 1,
        dtype: DType | str = "f32",
    ) -> None:
        self.eps, self.momentum, self.axis = eps, momentum, axis
        self.weight = constant((channels,), 1.0, dtype)
        self.bias = constant((channels,), 0.0, dtype)
        self.running_mean = constant((channels,), 0.0, dtype).detach()
        self.running_var = constant((channels,), 1.0, dtype).detach()

    def __call__(self, x: Tensor, *, training: bool | None = None) -> Tensor:
        if not is_training(training):
            centre, spread = map(stop_gradient, (self.running_mean, self.running_var))
            return batch_norm(x, centre, spread, self.weight, self.bias, self.eps, self.axis)
        made = batch_norm(x, None, None, self.weight, self.bias, self.eps, self.axis)
        self._see(as_tensor(x))
        return made

    def _see(self, x: Tensor) -> None:
        """Move the running statistics. The variance is the unbiased one, as that of everything seen
        should be."""
        axis = normalise_axis(self.axis, x.ndim)
        others = tuple(i for i in range(x.ndim) if i != axis)
        wide = stop_gradient(x if x.dtype.bits > 16 else x.astype("f32"))
        alone = all(x.shape[i] == 1 for i in others)
        spread = var(wide, axis=others, correction=0.0 if alone else 1.0)
        self.running_mean = self._move_average(self.running_mean, mean(wide, axis=others))
        self.running_var = self._move_average(self.running_var, spread)

    def _move_average(self, old: Tensor, new: Tensor) -> Tensor:
        return stop_gradient(old + (new.astype(old.dtype) - old) * self.momentum)


class SpectralNorm(Module):
    """A layer whose weight is divided by its largest singular value. In training `steps` rounds of
    the power method follow the weight; `axis` is the weight's axis of outputs."""

    buffers = ("left", "right")

    @public
    def __init__(
        self,
        layer: Module,
        name: str = "weight",
        steps: int = 1,
        *,
        axis: int = 0,
        eps: float = 1e-12,
    ) -> None:
        weight = getattr(layer, name, None)
        if not isinstance(weight, Tensor) or weight.ndim < 2:
            raise UserError(
                f"[SpectralNorm] {name} of {a_type(layer)} is not a tensor of two axes or more; "
                "name the weight of the layer"
            )
        if not is_positive_whole(steps):
            raise UserError(f"[SpectralNorm] steps is {steps!r}; it must be a whole number over 0")
        self.layer, self.name, self.steps = layer, name, steps
        self.axis, self.eps = axis, eps
        self.left, self.right = (
            from_array(x.astype(weight.dtype.numpy))
            for x in _singular(np.asarray(self._matrix()).astype(np.float64), eps)
        )

    def __call__(self, *args: Any, training: bool | None = None, **kwargs: Any) -> Any:
        if is_training(training):
            for _ in range(self.steps):
                self._turn()
        left, right = map(stop_gradient, (self.left, self.right))
        largest = total(left * (self._matrix() @ right))
        layer = copy(self.layer)
        setattr(layer, self.name, getattr(self.layer, self.name) / largest)
        return layer(*args, **kwargs)

    def _matrix(self) -> Tensor:
        turned = moveaxis(getattr(self.layer, self.name), self.axis, 0)
        return reshape(turned, (turned.shape[0], -1))

    def _turn(self) -> None:
        """One round of the power method."""
        matrix = stop_gradient(self._matrix())
        self.left = self._unit(matrix @ self.right)
        self.right = self._unit(self.left @ matrix)

    def _unit(self, vector: Tensor) -> Tensor:
        return stop_gradient(vector / maximum(sqrt(total(vector * vector)), self.eps))


def _singular(matrix: NDArray[np.float64], eps: float) -> tuple[Any, Any]:
    """The vectors of a matrix's largest singular value, near enough to begin with."""
    right = matrix.sum(0) + eps
    for _ in range(15):
        left = matrix @ right
        left = left / max(float(np.linalg.norm(left)), eps)
        right = left @ matrix
        right = right / max(float(np.linalg.norm(right)), eps)
    return left, right
