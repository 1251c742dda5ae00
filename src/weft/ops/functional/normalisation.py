"""Normalisation: layer and RMS norms over the last axes, batch, group and instance norms over
channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weft.foundation.dims import Shape
from weft.foundation.dtypes import FLOATS, DType
from weft.foundation.errors import SpecViolation, UserError
from weft.ops.arithmetic import listed
from weft.ops.array.elementwise import maximum
from weft.ops.array.manipulation import sliding_window
from weft.ops.array.norms import vector_norm
from weft.ops.array.statistics import mean
from weft.ops.custom_rules import custom_vjp
from weft.ops.functional.capture import capture, capture_several, widened
from weft.ops.functional.checks import (
    Checked,
    ensure_axis_in_bounds,
    ensure_dtype,
    ensure_known,
    ensure_positive,
    ensure_rank_at_least,
    ensure_shape,
    ensure_tensor,
    wrong_value,
)
from weft.ops.functional.rearrange import pad
from weft.ops.functional.registry import functional, implements
from weft.ops.session import Handle, Session
from weft.ops.tensor import Tensor


@dataclass(frozen=True)
class NormChecked(Checked):
    """Statistics over `axes`; parameters are laid along `along`."""

    axes: tuple[int, ...]
    along: tuple[int, ...]
    eps: float


def _eps(eps: Any) -> float:
    if isinstance(eps, bool) or not isinstance(eps, int | float) or eps < 0:
        raise wrong_value("eps", eps, "it must be a number, 0 or more")
    return float(eps)


def _parameters(x: Tensor, shape: Shape, **given: Any) -> None:
    for name, parameter in given.items():
        if parameter is not None:
            tensor = ensure_tensor(name, parameter)
            ensure_dtype(name, tensor, FLOATS, "floats")
            ensure_shape(name, tensor, shape, "one number for each feature")


def check_last_axes(
    x: Any, normalized_shape: Any, eps: Any, weight: Any, bias: Any = None
) -> NormChecked:
    tensor = ensure_tensor("x", x)
    ensure_dtype("x", tensor, FLOATS, "floats")
    ensure_rank_at_least("x", tensor, 1)
    if normalized_shape is None:
        shape = tensor.shape[-1:]
    elif hasattr(normalized_shape, "shape"):
        raise SpecViolation(
            "InvalidAttributeValue",
            f"normalized_shape is a tensor of shape {listed(normalized_shape.shape)}",
            "give the sizes of the last axes of x there, or leave it out, and pass weight=",
        )
    else:
        given = normalized_shape if isinstance(normalized_shape, Sequence) else (normalized_shape,)
        shape = tuple(given)
    if not shape or tensor.shape[-len(shape) :] != shape:
        raise SpecViolation(
            "ShapeMismatch",
            f"x {listed(tensor.shape)} does not end with the normalised shape {listed(shape)}",
            "give the sizes of the last axes of x",
        )
    for dim in shape:
        ensure_known("a normalised axis", dim)
    _parameters(tensor, shape, weight=weight, bias=bias)
    axes = tuple(range(tensor.ndim - len(shape), tensor.ndim))
    return NormChecked(axes, axes, _eps(eps))


def _scale_and_shift(
    x: Handle, checked: NormChecked, weight: Handle | None, bias: Handle | None, dtype: DType
) -> Handle:
    """Weight and bias, then the dtype of the input."""
    if weight is not None:
        x = x * _lay_parameter(weight, x, checked.along)
    if bias is not None:
        x = x + _lay_parameter(bias, x, checked.along)
    return x.cast(dtype)


def _lay_parameter(parameter: Handle, x: Handle, along: tuple[int, ...]) -> Handle:
    sizes = iter(parameter.shape)
    aligned = [next(sizes) if axis in along else 1 for axis in range(x.rank)]
    return parameter.cast(x.dtype).reshape(aligned).broadcast_to(x.shape)


def standardised(x: Handle, axes: Sequence[int], eps: float) -> Handle:
    """`(x - mean) / sqrt(var + eps)` with the biased variance, two passes over x."""
    centred = x - x.reduce_mean(axes, keepdims=True).broadcast_to(x.shape)
    variance = (centred * centred).reduce_mean(axes, keepdims=True)
    return centred / (variance + eps).sqrt().broadcast_to(x.shape)


def capture_layer_norm(
    s: Session, checked: NormChecked, x: Handle, weight: Handle | None, bias: Handle | None
) -> Handle:
    wide = widened(x)
    return _scale_and_shift(
        standardised(wide, checked.axes, checked.eps), checked, weight, bias, x.dtype
    )


@functional
def layer_norm(
    x: Tensor,
    normalized_shape: int | Sequence[int] | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """`(x - mean) / sqrt(var + eps) * weight + bias` over the last axes (the last one unless
    `normalized_shape` gives more); statistics in f32 at least."""
    checked = check_last_axes(x, normalized_shape, eps, weight, bias)
    return capture(capture_layer_norm, checked, ensure_tensor("x", x), weight, bias)


def capture_whole_layer_norm(
    s: Session, checked: NormChecked, x: Handle, weight: Handle | None, bias: Handle | None
) -> Handle:
    """PTIR's op has one feature axis and both parameters: several axes are joined to one, and ones
    and zeros stand for what is absent."""
    first = checked.axes[0]
    size = math.prod(int(x.shape[axis]) for axis in checked.axes)
    several = len(checked.axes) > 1
    joined = x.reshape((*x.shape[:first], size)) if several else x
    gamma, beta = (
        s.full(default, x.dtype, (size,)) if given is None else s.cast(given, x.dtype)
        for given, default in ((weight, 1.0), (bias, 0.0))
    )
    if several:
        gamma, beta = gamma.reshape((size,)), beta.reshape((size,))
    made = s.emit("layer_norm", joined, gamma, beta, epsilon=checked.eps, feature_axis=first)
    return made.reshape(x.shape) if several else made


@implements("layer_norm", "whole")
def layer_norm_whole(
    x: Tensor,
    normalized_shape: int | Sequence[int] | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """The same as PTIR's one `layer_norm` op, which backends may run whole."""
    checked = check_last_axes(x, normalized_shape, eps, weight, bias)
    return capture(capture_whole_layer_norm, checked, x, weight, bias)


def capture_rms_norm(s: Session, checked: NormChecked, x: Handle, weight: Handle | None) -> Handle:
    wide = widened(x)
    mean_square = (wide * wide).reduce_mean(checked.axes, keepdims=True)
    factor = (mean_square + checked.eps).rsqrt().broadcast_to(wide.shape)
    return _scale_and_shift(wide * factor, checked, weight, None, x.dtype)


@functional
def rms_norm(
    x: Tensor,
    normalized_shape: int | Sequence[int] | None = None,
    weight: Tensor | None = None,
    eps: float = 1e-6,
) -> Tensor:
    """`x / sqrt(mean(x²) + eps) * weight` over the last axes."""
    checked = check_last_axes(x, normalized_shape, eps, weight)
    return capture(capture_rms_norm, checked, ensure_tensor("x", x), weight)


@dataclass(frozen=True)
class GroupNormChecked(Checked):
    """Channels in groups: x is seen as [N, groups, channels / groups, ...]."""

    groups: int
    channel: int
    eps: float


def check_group_norm(
    x: Any, groups: Any, weight: Any, bias: Any, eps: Any, axis: Any
) -> GroupNormChecked:
    tensor = ensure_tensor("x", x)
    ensure_dtype("x", tensor, FLOATS, "floats")
    ensure_rank_at_least("x", tensor, 2)
    channel = ensure_axis_in_bounds("x", tensor, axis)
    size = ensure_known("the channel axis", tensor.shape[channel])
    count = ensure_positive("num_groups", groups)
    if channel == 0 or size % count:
        raise SpecViolation(
            "InvalidAttributeValue",
            f"{size} channels of x {listed(tensor.shape)} cannot be parted into {count} groups",
            "the number of groups must divide the number of channels",
        )
    _parameters(tensor, (size,), weight=weight, bias=bias)
    return GroupNormChecked(count, channel, _eps(eps))


def capture_group_norm(
    s: Session, checked: GroupNormChecked, x: Handle, weight: Handle | None, bias: Handle | None
) -> Handle:
    wide = widened(x)
    channel, groups = checked.channel, checked.groups
    size = x.shape[channel]
    assert isinstance(size, int)
    parted = (*x.shape[:channel], groups, size // groups, *x.shape[channel + 1 :])
    axes = [a for a in range(1, len(parted)) if a != channel]
    normal = standardised(wide.reshape(parted), axes, checked.eps).reshape(x.shape)
    own = NormChecked((), (channel,), checked.eps)
    return _scale_and_shift(normal, own, weight, bias, x.dtype)


@functional
def group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    axis: int = 1,
) -> Tensor:
    """Statistics over each group of channels and all positions of one sample; `axis` is the channel
    axis (1 for NCHW, -1 for NHWC)."""
    checked = check_group_norm(x, num_groups, weight, bias, eps, axis)
    return capture(capture_group_norm, checked, ensure_tensor("x", x), weight, bias)


@functional
def instance_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    axis: int = 1,
) -> Tensor:
    """Statistics over all positions of one channel of one sample."""
    tensor = ensure_tensor("x", x)
    ensure_rank_at_least("x", tensor, 3)
    channels = tensor.shape[ensure_axis_in_bounds("x", tensor, axis)]
    checked = check_group_norm(x, channels, weight, bias, eps, axis)
    return capture(capture_group_norm, checked, tensor, weight, bias)


def check_batch_norm(
    x: Any, mean: Any, variance: Any, weight: Any, bias: Any, eps: Any, axis: Any
) -> NormChecked:
    tensor = ensure_tensor("x", x)
    ensure_dtype("x", tensor, FLOATS, "floats")
    ensure_rank_at_least("x", tensor, 2)
    channel = ensure_axis_in_bounds("x", tensor, axis)
    shape = tensor.shape[channel : channel + 1]
    if (mean is None) != (variance is None):
        raise UserError("give both running_mean and running_var, or neither")
    _parameters(tensor, shape, weight=weight, bias=bias, running_mean=mean, running_var=variance)
    axes = tuple(a for a in range(tensor.ndim) if a != channel)
    return NormChecked(axes, (channel,), _eps(eps))


def capture_batch_norm(
    s: Session,
    checked: NormChecked,
    x: Handle,
    mean: Handle,
    variance: Handle,
    weight: Handle | None,
    bias: Handle | None,
) -> Handle:
    """By statistics that are given."""
    wide = widened(x)
    centred = wide - _lay_parameter(mean, wide, checked.along)
    return _by_factor(
        checked, centred, _inverse_deviation(variance, wide, checked), weight, bias, x.dtype
    )


def capture_batch_norm_by_batch(
    s: Session, checked: NormChecked, x: Handle, weight: Handle | None, bias: Handle | None
) -> tuple[Handle, ...]:
    """By the statistics of the batch; and these: the mean, and what centred numbers are multiplied
    with before the weight."""
    wide = widened(x)
    mean = wide.reduce_mean(checked.axes)
    centred = wide - _lay_parameter(mean, wide, checked.along)
    scale = _inverse_deviation((centred * centred).reduce_mean(checked.axes), wide, checked)
    return _by_factor(checked, centred, scale, weight, bias, x.dtype), mean, scale


def _inverse_deviation(variance: Handle, wide: Handle, checked: NormChecked) -> Handle:
    return (variance.cast(wide.dtype) + checked.eps).rsqrt()


def _by_factor(
    checked: NormChecked,
    centred: Handle,
    scale: Handle,
    weight: Handle | None,
    bias: Handle | None,
    dtype: DType,
) -> Handle:
    """One factor for each channel: what is left for each element are a difference and a product."""
    factor = scale if weight is None else scale * weight.cast(centred.dtype)
    normal = centred * _lay_parameter(factor, centred, checked.along)
    return _scale_and_shift(normal, checked, None, bias, dtype)


def capture_batch_norm_gradient(
    s: Session,
    checked: NormChecked,
    cotangent: Handle,
    x: Handle,
    mean: Handle,
    scale: Handle,
    weight: Handle | None,
) -> tuple[Handle, ...]:
    """The cotangents of x, the weight and the bias, from two sums over each channel: of the
    cotangents, and of their products with centred numbers. That all centred numbers of a channel
    have the sum 0 spares a third."""
    wide, axes = widened(x), checked.axes
    given = cotangent.cast(wide.dtype)

    def laid(parameter: Handle) -> Handle:
        return _lay_parameter(parameter, wide, checked.along)

    centred = wide - laid(mean)
    product = given * centred
    along = product.reduce_mean(axes) * scale * scale
    factor = scale if weight is None else scale * weight.cast(wide.dtype)
    by_x = laid(factor) * (given - laid(given.reduce_mean(axes)) - centred * laid(along))
    return by_x.cast(x.dtype), product.reduce_sum(axes) * scale, given.reduce_sum(axes)


def _by_batch(x: Tensor, weight: Tensor | None, bias: Tensor | None, checked: NormChecked) -> Any:
    return _by_batch_forward(x, weight, bias, checked)[0]


def _by_batch_forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, checked: NormChecked
) -> tuple[Tensor, Any]:
    made, *statistics = capture_several(capture_batch_norm_by_batch, checked, x, weight, bias)
    return made, (x, *statistics, weight, bias)


def _by_batch_backward(checked: NormChecked, kept: Any, cotangent: Tensor) -> tuple[Any, ...]:
    x, mean, scale, weight, bias = kept
    found = capture_several(capture_batch_norm_gradient, checked, cotangent, x, mean, scale, weight)
    by_x, by_weight, by_bias = found
    return by_x, None if weight is None else by_weight, None if bias is None else by_bias


_BY_BATCH = custom_vjp(_by_batch, nondiff_argnums=3)
_BY_BATCH.defvjp(_by_batch_forward, _by_batch_backward)


@functional
def batch_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    axis: int = 1,
) -> Tensor:
    """Normalises each channel by the running statistics if they are given (inference), and
    otherwise by those of the batch (training)."""
    checked = check_batch_norm(x, running_mean, running_var, weight, bias, eps, axis)
    tensor = ensure_tensor("x", x)
    if running_mean is None:
        made: Tensor = _BY_BATCH(tensor, weight, bias, checked)
        return made
    return capture(capture_batch_norm, checked, tensor, running_mean, running_var, weight, bias)


@functional
def normalize(x: Tensor, p: float = 2.0, axis: int = 1, eps: float = 1e-12) -> Tensor:
    """x divided by its norm of order p along an axis, or by `eps` where that is larger."""
    tensor, least = ensure_tensor("x", x), _eps(eps)
    ensure_dtype("x", tensor, FLOATS, "floats")
    at = ensure_axis_in_bounds("x", tensor, axis)
    return tensor / maximum(vector_norm(tensor, axis=at, keepdims=True, ord=p), least)


@functional
def local_response_norm(
    x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """x divided by `(k + alpha * mean of x² over size neighbouring channels) ^ beta`, for
    [N, C, ...]."""
    tensor = ensure_tensor("x", x)
    ensure_dtype("x", tensor, FLOATS, "floats")
    ensure_rank_at_least("x", tensor, 3)
    count = ensure_positive("size", size)
    widths = [(0, 0)] * tensor.ndim
    widths[1] = (count // 2, (count - 1) // 2)
    squares = sliding_window(pad(tensor * tensor, widths), count, axis=1)
    return tensor / (mean(squares, axis=-1) * alpha + k) ** beta
