"""Sampling at computed places."""

from __future__ import annotations

import math
from itertools import product
from typing import Final

import numpy as np

from weft.foundation.dtypes import SI64
from weft.foundation.errors import SpecViolation, Unimplemented
from weft.interop.onnx.rules.convolution import per_axis
from weft.interop.onnx.rules.elementwise import scalar_like
from weft.interop.onnx.table import Call, rule
from weft.interop.onnx.values import Array, Value, array, value_as_tensor, wf
from weft.interop.sampling import grid_sampled, sampled
from weft.ops.tensor import Tensor

_MODES: Final = {"bilinear": "linear", "bicubic": "cubic", "linear": "linear", "cubic": "cubic"}
_MODES["nearest"] = "nearest"
_PADDING: Final = ("zeros", "border", "reflection")


@rule("GridSample")
def grid_sample(call: Call, x: Tensor, grid: Tensor) -> Value:
    mode = _MODES[call.choice("mode", "linear", _MODES)]
    padding = call.choice("padding_mode", "zeros", _PADDING)
    corners = bool(call.attr("align_corners", 0))
    return grid_sampled(x, grid, mode, padding, corners, moved=True)


# -- regions ---------------------------------------------------------------------------------------


@rule("RoiAlign")
def roi_align(call: Call, x: Tensor, rois: Tensor, batches: Tensor) -> Value:
    default = "half_pixel" if call.version >= 16 else "output_half_pixel"
    words = ("half_pixel", "output_half_pixel")
    half = call.choice("coordinate_transformation_mode", default, words) == "half_pixel"
    boxes = rois * call.attr("spatial_scale", 1.0) - (0.5 if half else 0.0)
    ends = boxes[:, :2], boxes[:, 2:] - boxes[:, :2]
    extent = ends[1] if half else wf.maximum(ends[1], scalar_like(x, 1.0))
    high, wide = call.attr("output_height", 1), call.attr("output_width", 1)
    ratio = call.attr("sampling_ratio", 0)
    if ratio > 0:
        return _sample_regions(call, x, ends[0], extent, batches, (high, wide), (ratio, ratio))
    spans = array(extent, "the regions, which say how many samples are taken,")
    rows = [(max(math.ceil(h / high), 0), max(math.ceil(w / wide), 0)) for w, h in spans]
    parts: list[Tensor] = []
    order: list[int] = []
    for counts in sorted(set(rows)):
        own = [index for index, row in enumerate(rows) if row == counts]
        at = value_as_tensor(np.array(own, np.int64))
        given = [wf.take(each, at, axis=0) for each in (ends[0], extent, batches)]
        parts.append(_sample_regions(call, x, given[0], given[1], given[2], (high, wide), counts))
        order += own
    if not parts:
        return wf.zeros((0, x.shape[1], high, wide), dtype=x.dtype)
    whole = wf.concat(parts, axis=0)
    return wf.take(whole, value_as_tensor(np.argsort(np.array(order)).astype(np.int64)), axis=0)


def _sample_regions(
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
            + size * value_as_tensor(steps.reshape(1, -1).astype(x.dtype.numpy))
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
        kept = wf.where(out, scalar_like(weight, 0), weight)
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
        found.append(value_as_tensor(whole.astype(x.dtype.numpy)))
    return found
