"""Layers that normalise."""

from __future__ import annotations

from collections.abc import Sequence

from weft.foundation.dtypes import DType
from weft.ops.functional.normalisation import batch_norm, group_norm, layer_norm, rms_norm
from weft.ops.nn.initialise import constant
from weft.ops.nn.module import Module
from weft.ops.tensor import Tensor


def _sizes(shape: int | Sequence[int]) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


class LayerNorm(Module):
    """Layer norm over the last axes, with weight and bias."""

    def __init__(
        self, shape: int | Sequence[int], eps: float = 1e-5, *, dtype: DType | str = "f32"
    ) -> None:
        self.shape = _sizes(shape)
        self.eps = eps
        self.weight = constant(self.shape, 1.0, dtype)
        self.bias = constant(self.shape, 0.0, dtype)

    def __call__(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.shape, self.weight, self.bias, self.eps)


class RMSNorm(Module):
    """RMS norm over the last axes, with a weight."""

    def __init__(
        self, shape: int | Sequence[int], eps: float = 1e-6, *, dtype: DType | str = "f32"
    ) -> None:
        self.shape = _sizes(shape)
        self.eps = eps
        self.weight = constant(self.shape, 1.0, dtype)

    def __call__(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.shape, self.weight, self.eps)


class GroupNorm(Module):
    """Group norm over channels, with weight and bias."""

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


class BatchNorm(Module):
    """Batch norm over channels. In training it normalises by the batch; `updated(x)` is the layer
    with the running statistics moved towards those of the batch, for evaluation."""

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

    def __call__(self, x: Tensor, *, training: bool = False) -> Tensor:
        mean = None if training else self.running_mean
        variance = None if training else self.running_var
        return batch_norm(x, mean, variance, self.weight, self.bias, self.eps, self.axis)
