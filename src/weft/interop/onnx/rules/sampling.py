"""Sampling at computed places: between the elements of a grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, Final

import numpy as np

from weft.foundation.dtypes import SI64
from weft.foundation.errors import SpecViolation, Unimplemented
from weft.interop.onnx.rules.convolution import per_axis
from weft.interop.onnx.rules.elementwise import scalar, widened
from weft.interop.onnx.table import Call, rule
from weft.interop.onnx.values import Array, Value, array, tensor, wf
from weft.ops.tensor import Tensor

_MODES: Final = {"bilinear": "linear", "bicubic": "cubic", "linear": "linear", "cubic": "cubic"}
_MODES["nearest"] = "nearest"
_PADDING: Final = ("zeros", "border", "reflection")
Taps = list[tuple[Tensor, Tensor | None]]
"""Places along an axis, each with its weight; None is 1."""


def _taps(at: Tensor, mode: str) -> Taps:
    """The neighbours that count."""
    if mode == "nearest":
        return [(at, None)]
    first = wf.floor(at)
    t = at - first
    if mode == "linear":
        return [(first, 1 - t), (first + 1, t)]
    a = -0.75
    weights = [
        ((a * (t + 1) - 5 * a) * (t + 1) + 8 * a) * (t + 1) - 4 * a,
        ((a + 2) * t - (a + 3)) * t * t + 1,
        ((a + 2) * (1 - t) - (a + 3)) * (1 - t) * (1 - t) + 1,
        ((a * (2 - t) - 5 * a) * (2 - t) + 8 * a) * (2 - t) - 4 * a,
    ]
    return [(first + (index - 1), weight) for index, weight in enumerate(weights)]


def _reflected(at: Tensor, low: float, high: float) -> Value:
    """Places mirrored at the borders until they are between them."""
    span = high - low
    if span <= 0:
        return wf.full_like(at, low)
    apart = wf.remainder(wf.abs(at - low), scalar(at, 2 * span))
    return wf.where(apart > span, 2 * span - apart, apart) + low


def sampled(
    x: Tensor, places: Sequence[Tensor], mode: str, padding: str, corners: bool = False
) -> Value:
    """x [N, C, sizes...] at places, one tensor [N, Q] for each axis of sizes: [N, C, Q]."""
    sizes = [int(size) for size in x.shape[2:]]
    count = math.prod(sizes)
    flat = x.reshape((*x.shape[:2], count))
    axes = [_taps(at, mode) for at in places]
    total: Any = None
    for combination in product(*axes):
        index: Any = None
        weight: Any = None
        for (at, part), size in zip(combination, sizes, strict=True):
            kept, inside = _kept(at, size, padding, corners)
            index = kept if index is None else index * size + kept
            for factor in (part, inside):
                if factor is not None:
                    weight = factor if weight is None else weight * factor
        where = wf.broadcast_to(wf.expand_dims(index, 1), (*x.shape[:2], index.shape[-1]))
        value = wf.take_along_axis(flat, where, axis=2)
        if weight is not None:
            # What is outside counts for nothing, also where it stands for an infinity.
            part = wf.expand_dims(weight, 1)
            value = wf.where(wf.equal(part, 0), scalar(value, 0), value * part.astype(x.dtype))
        total = value if total is None else total + value
    return total


def _kept(at: Tensor, size: int, padding: str, corners: bool) -> tuple[Tensor, Tensor | None]:
    """A place that is there, and 0 or 1 for whether it is meant where nothing is around."""
    if padding == "reflection":
        low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
        return wf.clip(wf.trunc(_reflected(at, low, high)), 0, size - 1).astype(SI64), None
    kept = wf.clip(at, 0, size - 1).astype(SI64)
    if padding == "border":
        return kept, None
    return kept, wf.logical_and(at >= 0, at <= size - 1).astype(at.dtype)


@rule("GridSample")
def grid_sample(call: Call, x: Tensor, grid: Tensor) -> Value:
    mode = _MODES[call.choice("mode", "linear", _MODES)]
    padding = call.choice("padding_mode", "zeros", _PADDING)
    corners = bool(call.attr("align_corners", 0))
    if 0 in (x.size, grid.size):
        return wf.zeros((*x.shape[:2], *grid.shape[1:-1]), dtype=x.dtype)
    rank, wide = x.ndim - 2, widened(x)
    rows = grid.reshape((grid.shape[0], -1, rank)).astype(wide.dtype)
    places = []
    for axis, size in enumerate(map(int, x.shape[2:])):
        near = rows[..., rank - 1 - axis]
        at = (near + 1) / 2 * (size - 1) if corners else ((near + 1) * size - 1) / 2
        at = wf.round(at) if mode == "nearest" else at
        low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
        if padding == "border":
            at = wf.where(wf.logical_or(at < low, at > high), wf.clip(at, 0, size - 1), at)
        elif padding == "reflection":
            at = _reflected(at, low, high)
        places.append(at)
    made = sampled(wide, places, mode, padding, corners)
    return made.reshape((*x.shape[:2], *grid.shape[1:-1])).astype(x.dtype)


# -- regions ---------------------------------------------------------------------------------------


@rule("RoiAlign")
def roi_align(call: Call, x: Tensor, rois: Tensor, batches: Tensor) -> Value:
    default = "half_pixel" if call.version >= 16 else "output_half_pixel"
    words = ("half_pixel", "output_half_pixel")
    half = call.choice("coordinate_transformation_mode", default, words) == "half_pixel"
    boxes = rois * call.attr("spatial_scale", 1.0) - (0.5 if half else 0.0)
    ends = boxes[:, :2], boxes[:, 2:] - boxes[:, :2]
    extent = ends[1] if half else wf.maximum(ends[1], scalar(x, 1.0))
    high, wide = call.attr("output_height", 1), call.attr("output_width", 1)
    ratio = call.attr("sampling_ratio", 0)
    if ratio > 0:
        return _aligned(call, x, ends[0], extent, batches, (high, wide), (ratio, ratio))
    spans = array(extent, "the regions, which say how many samples are taken,")
    rows = [(max(math.ceil(h / high), 0), max(math.ceil(w / wide), 0)) for w, h in spans]
    parts: list[Tensor] = []
    order: list[int] = []
    for counts in sorted(set(rows)):
        own = [index for index, row in enumerate(rows) if row == counts]
        at = tensor(np.array(own, np.int64))
        given = [wf.take(each, at, axis=0) for each in (ends[0], extent, batches)]
        parts.append(_aligned(call, x, given[0], given[1], given[2], (high, wide), counts))
        order += own
    if not parts:
        return wf.zeros((0, x.shape[1], high, wide), dtype=x.dtype)
    whole = wf.concat(parts, axis=0)
    return wf.take(whole, tensor(np.argsort(np.array(order)).astype(np.int64)), axis=0)


def _aligned(
    call: Call, x: Tensor, start: Tensor, extent: Tensor, batches: Tensor, bins: tuple[int, int],
    counts: tuple[int, int],
) -> Value:  # fmt: skip
    """Regions that take the same number of samples in every bin."""
    rows, channels = int(start.shape[0]), int(x.shape[1])
    if 0 in counts:
        return wf.zeros((rows, channels, *bins), dtype=x.dtype)
    places = []
    for axis in (0, 1):  # rows lie along the second number of a corner
        bin_, count = bins[axis], counts[axis]
        steps = np.arange(bin_)[:, None] + (np.arange(count)[None, :] + 0.5) / count
        size = extent[:, 1 - axis : 2 - axis] / bin_
        places.append(
            start[:, 1 - axis : 2 - axis]
            + size * tensor(steps.reshape(1, -1).astype(x.dtype.numpy))
        )
    y = wf.expand_dims(places[0], 2) + wf.zeros_like(wf.expand_dims(places[1], 1))
    z = wf.zeros_like(wf.expand_dims(places[0], 2)) + wf.expand_dims(places[1], 1)
    values = _corners(
        call, wf.take(x, batches.astype(SI64), axis=0), y.reshape((rows, -1)), z.reshape((rows, -1))
    )
    parts = values.reshape((rows, channels, bins[0], counts[0], bins[1], counts[1]))
    if call.choice("mode", "avg", ("avg", "max")) == "avg":
        return wf.mean(parts, axis=(3, 5))
    return wf.max(parts, axis=(3, 5))


def _corners(call: Call, x: Tensor, y: Tensor, z: Tensor) -> Value:
    """Between the four neighbours: their weighted sum, or with "max" the largest weighted one."""
    height, width = int(x.shape[2]), int(x.shape[3])
    out = wf.logical_or(wf.logical_or(y < -1.0, y > height), wf.logical_or(z < -1.0, z > width))
    flat = x.reshape((*x.shape[:2], height * width))
    y, z = wf.clip(y, 0, height - 1), wf.clip(z, 0, width - 1)
    low_y, low_z = wf.floor(y), wf.floor(z)
    parts = []
    for dy, dz in product((0, 1), (0, 1)):
        weight = (y - low_y if dy else 1 - (y - low_y)) * (z - low_z if dz else 1 - (z - low_z))
        at = wf.clip(low_y + dy, 0, height - 1) * width + wf.clip(low_z + dz, 0, width - 1)
        where = wf.broadcast_to(wf.expand_dims(at.astype(SI64), 1), (*x.shape[:2], at.shape[-1]))
        kept = wf.where(out, scalar(weight, 0), weight)
        parts.append(wf.take_along_axis(flat, where, axis=2) * wf.expand_dims(kept, 1))
    if call.attr("mode", "avg") == "avg":
        return parts[0] + parts[1] + parts[2] + parts[3]
    return wf.max(wf.stack(parts, axis=0), axis=0)


@rule("DeformConv")
def deform_conv(
    call: Call, x: Tensor, weight: Tensor, offset: Tensor, bias: Tensor | None = None,
    mask: Tensor | None = None,
) -> Value:  # fmt: skip
    """A convolution whose window takes its elements at places of their own."""
    if x.ndim != 4:
        raise Unimplemented("DeformConv", "only images are convolved with places of their own")
    n, channels = int(x.shape[0]), int(x.shape[1])
    kernel, out = [int(k) for k in weight.shape[2:]], [int(o) for o in offset.shape[2:]]
    strides, dilations = per_axis(call, "strides", 2, 1), per_axis(call, "dilations", 2, 1)
    pads, groups = call.attr("pads") or [0] * 4, call.attr("group", 1)
    parts, taps, cells = call.attr("offset_group", 1), math.prod(kernel), math.prod(out)
    if int(offset.shape[1]) != parts * taps * 2 or channels % parts:
        raise SpecViolation("ShapeMismatch", f"offsets {offset.type} for {x.type}")
    moved = offset.reshape((n, parts, taps, 2, cells))
    bases = _bases(kernel, out, strides, dilations, pads, x)
    columns = []
    for part in range(parts):
        places = [(moved[:, part, :, i] + base).reshape((n, -1)) for i, base in enumerate(bases)]
        each = channels // parts
        values = sampled(x[:, part * each : (part + 1) * each], places, "linear", "zeros")
        values = values.reshape((n, each, taps, cells))
        if mask is not None:
            values = values * mask.reshape((n, parts, 1, taps, cells))[:, part]
        columns.append(values)
    whole = wf.concat(columns, axis=1).reshape((n, groups, channels // groups * taps, cells))
    rows = weight.reshape((groups, int(weight.shape[0]) // groups, -1))
    made = wf.matmul(rows, whole).reshape((n, int(weight.shape[0]), *out))
    return made if bias is None else made + bias.reshape((1, -1, 1, 1))


def _bases(
    kernel: list[int], out: list[int], strides: list[int], dilations: list[int], pads: list[int],
    x: Tensor,
) -> list[Tensor]:  # fmt: skip
    """Where the windows would take their elements without the offsets: [taps, cells] each."""
    found = []
    for axis in (0, 1):
        taps = np.arange(kernel[axis]) * dilations[axis]
        cells = np.arange(out[axis]) * strides[axis] - pads[axis]
        shape: Array = taps.reshape(-1, 1) if axis == 0 else taps.reshape(1, -1)
        grid = np.broadcast_to(shape, kernel).reshape(-1, 1)
        steps = cells.reshape(-1, 1) if axis == 0 else cells.reshape(1, -1)
        whole = grid + np.broadcast_to(steps, out).reshape(1, -1)
        found.append(tensor(whole.astype(x.dtype.numpy)))
    return found
