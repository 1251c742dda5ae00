"""Batch normalisation and its gradient: statistics of each feature over all other axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from weft.interop.stablehlo.reading.extents import count
from weft.interop.stablehlo.reading.shapes import broadcast_in_dim
from weft.interop.stablehlo.reading.site import Lowering, Site
from weft.ptir.builder import Value


def _along_feature(at: Site, x: Value, model: Value) -> Value:
    return broadcast_in_dim(at, x, [int(at.attr("feature_index"))], model.shape)


def _batch_norm_inference(at: Site) -> Value:
    x, scale, offset, mean, variance = at.x
    deviation = _deviation(at, variance)
    scale, offset, mean, deviation = (
        _along_feature(at, v, x) for v in (scale, offset, mean, deviation)
    )
    return (x - mean) / deviation * scale + offset


def _deviation(at: Site, variance: Value) -> Value:
    return at.b.emit("sqrt", variance + float(at.attr("epsilon")))


def _statistic_axes(at: Site, x: Value) -> tuple[list[int], Value]:
    """The axes that statistics run over, and how many elements each has."""
    axes = [axis for axis in range(x.rank) if axis != int(at.attr("feature_index"))]
    total = count(at, [x.shape[axis] for axis in axes])
    if isinstance(total, int):
        return axes, at.b.literal(float(total), x.dtype)
    return axes, at.b.cast(total, x.dtype)


def _per(at: Site, x: Value, number: Value) -> Value:
    return x / at.spread(number, x.shape)


def _batch_norm_training(at: Site) -> list[Value]:
    x, scale, offset = at.x
    axes, total = _statistic_axes(at, x)
    mean = _per(at, at.b.reduce_sum(x, axes), total)
    centred = x - _along_feature(at, mean, x)
    variance = _per(at, at.b.reduce_sum(centred * centred, axes), total)
    deviation = _deviation(at, variance)
    scale, offset, deviation = (_along_feature(at, v, x) for v in (scale, offset, deviation))
    return [centred / deviation * scale + offset, mean, variance]


def _batch_norm_grad(at: Site) -> list[Value]:
    """The gradients of the operand, the scale and the offset of training."""
    x, scale, mean, variance, gradient = at.x
    axes, total = _statistic_axes(at, x)
    deviation = _deviation(at, variance)
    normal = (x - _along_feature(at, mean, x)) / _along_feature(at, deviation, x)
    to_scale = at.b.reduce_sum(gradient * normal, axes)
    to_offset = at.b.reduce_sum(gradient, axes)
    through = _along_feature(at, to_offset, x) + normal * _along_feature(at, to_scale, x)
    factor = _along_feature(at, scale / deviation, x)
    return [factor * (gradient - _per(at, through, total)), to_scale, to_offset]


NORMALISATION: Final[Mapping[str, Lowering]] = {
    "batch_norm_inference": _batch_norm_inference,
    "batch_norm_training": _batch_norm_training,
    "batch_norm_grad": _batch_norm_grad,
}
