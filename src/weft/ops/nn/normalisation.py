"""Layers that normalise."""

from __future__ import annotations

from collections.abc import Sequence

from weft.foundation.axes import normalise_axis
from weft.foundation.dtypes import DType
from weft.ops.array.statistics import mean, var
from weft.ops.calls import public
from weft.ops.differentiate import stop_gradient
from weft.ops.functional.normalisation import batch_norm, group_norm, layer_norm, rms_norm
from weft.ops.nn.initialise import constant
from weft.ops.nn.module import Module
from weft.ops.tensor import Tensor


def _sizes(shape: int | Sequence[int]) -> tuple[int, ...]:
    return tuple(shape) if isinstance(shape, Sequence) else (shape,)


class LayerNorm(Module):
    """Layer norm over the last axes, with weight and bias."""

    @public
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

    @public
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


class BatchNorm(Module):
    """Batch norm over channels. In training it normalises by the batch; `updated(x)` is the layer
    with the running statistics moved towards those of the batch, for evaluation."""

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

    def __call__(self, x: Tensor, *, training: bool = False) -> Tensor:
        known = () if training else (self.running_mean, self.running_var)
        centre, spread = map(stop_gradient, known) if known else (None, None)
        return batch_norm(x, centre, spread, self.weight, self.bias, self.eps, self.axis)

    def updated(self, x: Tensor) -> BatchNorm:
        """The layer after it has seen the batch x: each running statistic a part `momentum` of the
        way to that of x. The variance is the unbiased one, as that of everything seen should be."""
        axis = normalise_axis(self.axis, x.ndim)
        others = tuple(i for i in range(x.ndim) if i != axis)
        wide = stop_gradient(x if x.dtype.bits > 16 else x.astype("f32"))
        alone = all(x.shape[i] == 1 for i in others)
        made = self.map(lambda tensor: tensor)
        spread = var(wide, axis=others, correction=0.0 if alone else 1.0)
        made.running_mean = self._moved(self.running_mean, mean(wide, axis=others))
        made.running_var = self._moved(self.running_var, spread)
        return made

    def _moved(self, old: Tensor, new: Tensor) -> Tensor:
        return old + (new.astype(old.dtype) - old) * self.momentum
