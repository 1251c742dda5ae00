"""Resize: along each axis every new element is a sum of a few old ones, whose places and weights
are known when the model is read."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.foundation.errors import SpecViolation
from weft.foundation.limits import check_bytes, current
from weft.interop.onnx.table import Call, rule
from weft.interop.onnx.values import Array, Value, axis_in, value_as_tensor, wf
from weft.ops.functional.resampling import cubic_kernel
from weft.ops.tensor import Tensor

_MODES = ("nearest", "linear", "cubic")
_ROUNDED: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
_WHERE = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
    "tf_half_pixel_for_nn", "tf_crop_and_resize",
)  # fmt: skip


@rule("Resize", values=(1, 2, 3))
def resize(
    call: Call, x: Tensor, roi: Array | None = None, scales: Array | None = None,
    sizes: Array | None = None,
) -> Value:  # fmt: skip
    if call.version == 10:
        roi, scales = None, roi
    axes = [axis_in(axis, x.ndim) for axis in call.attr("axes") or range(x.ndim)]
    if scales is not None and not scales.size:
        scales = None
    if scales is None and (sizes is None or not sizes.size):
        raise SpecViolation("MalformedModel", "neither scales nor sizes are given")
    given = [int(x.shape[axis]) for axis in axes]
    factors, wanted = _scales_and_sizes(call, given, scales, sizes)
    check_bytes(8 * math.prod(wanted), "the result", current())
    made = x if x.dtype.is_float and x.dtype.bits >= 32 else x.astype(wf.float32)
    outside: Any = None
    for index, axis in enumerate(axes):
        ends = None
        if roi is not None and roi.size:
            ends = (float(roi[index]), float(roi[index + len(axes)]))
        at = _coordinates(call, given[index], wanted[index], factors[index], ends)
        if given[index] == wanted[index] and np.array_equal(at, np.arange(wanted[index])):
            continue
        made = _resize_axis(call, made, axis, at, factors[index])
        if _where(call) == "tf_crop_and_resize":
            beyond = (at < 0) | (at > given[index] - 1)
            shape = [-1 if i == axis else 1 for i in range(x.ndim)]
            outside = beyond.reshape(shape) | (False if outside is None else outside)
    if outside is not None:
        fill = wf.full((), call.attr("extrapolation_value", 0.0), dtype=made.dtype)
        made = wf.where(value_as_tensor(np.asarray(outside)), fill, made)
    if x.dtype.is_integer:
        made = wf.round(made)
    return made.astype(x.dtype)


@rule("Upsample", values=(1,))
def upsample(call: Call, x: Tensor, scales: Array | None = None) -> Value:
    factors = call.attr("scales") if scales is None else scales
    if factors is None:
        factors = [1.0, 1.0, call.need("height_scale"), call.need("width_scale")]
    return resize(call, x, None, np.asarray(factors, np.float32))


def _where(call: Call) -> str:
    default = "asymmetric" if call.version == 10 or call.node.op == "Upsample" else "half_pixel"
    return call.choice("coordinate_transformation_mode", default, _WHERE)


def _scales_and_sizes(
    call: Call, given: list[int], scales: Array | None, sizes: Array | None
) -> tuple[list[float], list[int]]:
    """The scale and the new size of every axis."""
    if scales is not None:
        found = [float(each) for each in scales]
        if not all(0 < each < 2**31 for each in found) or len(found) != len(given):
            raise SpecViolation("InvalidAttributeValue", f"the scales are {found}")
        return found, [math.floor(n * f) for n, f in zip(given, found, strict=True)]
    assert sizes is not None
    wanted = [int(each) for each in sizes]
    if len(wanted) != len(given) or min(wanted, default=0) < 0:
        raise SpecViolation("InvalidAttributeValue", f"the sizes are {wanted}")
    ratios = [w / n if n else 1.0 for w, n in zip(wanted, given, strict=True)]
    policy = call.choice(
        "keep_aspect_ratio_policy", "stretch", ("stretch", "not_larger", "not_smaller")
    )
    if policy == "stretch":
        return ratios, wanted
    one = min(ratios) if policy == "not_larger" else max(ratios)
    return [one] * len(given), [math.floor(one * n + 0.5) for n in given]


def _coordinates(
    call: Call, size: int, wanted: int, scale: float, ends: tuple[float, float] | None
) -> Array:
    """Where every new element lies among the old ones."""
    at = np.arange(wanted, dtype=np.float64)
    how, length = _where(call), scale * size
    if how == "half_pixel":
        return (at + 0.5) / scale - 0.5
    if how == "half_pixel_symmetric":
        adjusted = wanted / length
        return size / 2 * (1 - adjusted) + (at + 0.5) / scale - 0.5
    if how == "pytorch_half_pixel":
        return (at + 0.5) / scale - 0.5 if length > 1 else np.zeros_like(at)
    if how == "align_corners":
        return at * (size - 1) / (length - 1) if length != 1 else np.zeros_like(at)
    if how == "asymmetric":
        return at / scale
    if how == "tf_half_pixel_for_nn":
        return (at + 0.5) / scale
    start, end = ends or (0.0, 1.0)
    if length > 1:
        return start * (size - 1) + at * (end - start) * (size - 1) / (length - 1)
    return np.full_like(at, 0.5 * (start + end) * (size - 1))


def _resize_axis(call: Call, x: Tensor, axis: int, at: Array, scale: float) -> Value:
    """The new elements along one axis: a sum over old ones, each with its places and weights."""
    size = int(x.shape[axis])
    mode = call.choice("mode", "nearest", _MODES)
    if mode == "nearest":
        default = (
            "floor" if call.version == 10 or call.node.op == "Upsample" else "round_prefer_floor"
        )
        near = _ROUNDED[call.choice("nearest_mode", default, _ROUNDED)](at)
        return wf.take(x, value_as_tensor(np.clip(near, 0, size - 1).astype(np.int64)), axis=axis)
    places, weights = _taps(call, mode, at, size, scale)
    shape = [-1 if i == axis else 1 for i in range(x.ndim)]
    total: Any = None
    for place, weight in zip(places, weights, strict=True):
        part = wf.take(x, value_as_tensor(place), axis=axis)
        part = part * value_as_tensor(weight.astype(x.dtype.numpy).reshape(shape))
        total = part if total is None else total + part
    return total


def _taps(call: Call, mode: str, at: Array, size: int, scale: float) -> tuple[Array, Array]:
    """For each neighbour that counts, one row: its place and its weight for every new element."""
    narrow = min(scale, 1.0) if call.attr("antialias", 0) else 1.0
    reach = (1.0 if mode == "linear" else 2.0) / narrow
    first = np.floor(at - reach).astype(np.int64) + 1
    count = math.ceil(2 * reach)
    places = first[None, :] + np.arange(count)[:, None]
    apart = np.abs(at[None, :] - places) * narrow
    if mode == "linear":
        weights = np.maximum(1 - apart, 0)
    else:
        weights = cubic_kernel(apart, float(call.attr("cubic_coeff_a", -0.75)))
    inside = (places >= 0) & (places < size)
    if call.attr("exclude_outside", 0) or narrow < 1:
        weights = np.where(inside, weights, 0) if call.attr("exclude_outside", 0) else weights
        weights = weights / weights.sum(0, keepdims=True)
    return np.clip(places, 0, size - 1), weights
