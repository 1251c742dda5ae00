"""Resizing of images, signals and volumes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.foundation.dtypes import F32, FLOATS, UI8
from weft.foundation.errors import SpecViolation, UserError
from weft.ops.arithmetic import listed
from weft.ops.array.movement import rows_at
from weft.ops.functional.capture import capture
from weft.ops.functional.checks import (
    Checked,
    ensure_choice,
    ensure_dtype,
    ensure_known,
    ensure_tensor,
    wrong_value,
)
from weft.ops.functional.convolution import LAYOUTS, per_axis
from weft.ops.functional.pooling import AdaptiveChecked, capture_adaptive_avg
from weft.ops.functional.registry import functional
from weft.ops.session import Handle, Session
from weft.ops.tensor import Tensor

MODES = ("nearest", "nearest-exact", "linear", "cubic", "area")
PLURAL = {1: {}, 2: {"bilinear": "linear", "bicubic": "cubic"}, 3: {"trilinear": "linear"}}
"""What interpolation is also called, by the number of axes."""
_BEND = -0.75
"""The slope of the cubic kernel at distance 1."""


@dataclass(frozen=True)
class ResampleChecked(Checked):
    """For every spatial axis: the axis, its size, its new size, and old elements per new one."""

    axes: tuple[tuple[int, int, int, float], ...]
    mode: str
    align_corners: bool


def check_interpolate(
    x: Any, size: Any, scale_factor: Any, mode: Any, align_corners: Any, layout: Any
) -> ResampleChecked:
    tensor = ensure_tensor("x", x)
    ensure_dtype("x", tensor, {*FLOATS, UI8}, "floats (or bytes)")
    spatial = tensor.ndim - 2
    if spatial not in LAYOUTS:
        raise SpecViolation(
            "RankMismatch",
            f"x {listed(tensor.shape)} has rank {tensor.ndim}",
            "interpolate takes one to three spatial axes beside batch and channels",
        )
    where = ensure_choice("layout", layout or LAYOUTS[spatial][0], LAYOUTS[spatial])
    mode = ensure_choice("mode", PLURAL[spatial].get(mode, mode), MODES)
    if (size is None) == (scale_factor is None):
        raise UserError("give either size or scale_factor")
    axes = range(1, spatial + 1) if where.endswith("C") else range(2, spatial + 2)
    old = [ensure_known("x", tensor.shape[axis]) for axis in axes]
    if size is not None:
        new = per_axis("size", size, spatial)
        steps = [o / n for o, n in zip(old, new, strict=True)]
    else:
        factors = _check_factors(scale_factor, spatial)
        new = tuple(math.floor(o * f) for o, f in zip(old, factors, strict=True))
        steps = [1.0 / f for f in factors]
    if 0 in old or 0 in new:
        raise SpecViolation(
            "ShapeMismatch", f"x {listed(tensor.shape)} cannot become {listed(new)}", "no axis is 0"
        )
    return ResampleChecked(
        tuple(zip(axes, old, new, steps, strict=True)), mode, bool(align_corners)
    )


def _check_factors(given: Any, count: int) -> list[float]:
    factors = [given] * count if isinstance(given, int | float) else list(given)
    if len(factors) != count or any(not isinstance(f, int | float) or f <= 0 for f in factors):
        raise wrong_value("scale_factor", given, "give one number over 0, or one for each axis")
    return [float(f) for f in factors]


def capture_interpolate(s: Session, checked: ResampleChecked, x: Handle) -> Handle:
    if checked.mode.startswith("nearest"):
        for axis, old, new, step in checked.axes:
            middle = 0.5 if checked.mode == "nearest-exact" else 0.0
            # In f32, as in other frameworks: it decides where a place falls between two elements.
            starts = (np.arange(new, dtype=np.float32) + np.float32(middle)) * np.float32(step)
            places = np.minimum(np.floor(starts), old - 1)
            x = _pick_places(s, x, axis, places)
        return x
    if x.dtype is UI8:
        # Bytes are interpolated as floats, and rounded once.
        found = _resample_by_weights(s, checked, x.cast(F32)).round()
        return s.emit("minimum", s.emit("maximum", found, 0.0), 255.0).cast(UI8)
    return _resample_by_weights(s, checked, x)


def _resample_by_weights(s: Session, checked: ResampleChecked, x: Handle) -> Handle:
    if checked.mode == "area":
        cuts = tuple((axis, old, new) for axis, old, new, _ in checked.axes)
        return capture_adaptive_avg(s, AdaptiveChecked(cuts), x)
    for axis, old, new, step in checked.axes:
        if checked.mode == "cubic":
            x = _blend_four(s, x, axis, _coordinates(checked, old, new, step), old)
        else:
            x = _blend_two(s, x, axis, _coordinates(checked, old, new, step), old)
    return x


def _coordinates(checked: ResampleChecked, old: int, new: int, step: float) -> Any:
    """Where each new element lies among the old ones."""
    if checked.align_corners:
        return np.arange(new) * ((old - 1) / (new - 1) if new > 1 else 0.0)
    found = (np.arange(new) + 0.5) * step - 0.5
    return found if checked.mode == "cubic" else np.clip(found, 0.0, None)


def _pick_places(s: Session, x: Handle, axis: int, places: Any) -> Handle:
    return rows_at(x, s.literal(places.astype(np.int32), "si32"), axis)


def _blend_two(s: Session, x: Handle, axis: int, coordinates: Any, old: int) -> Handle:
    """The two neighbours of each coordinate, weighted by how near they are."""
    low = np.minimum(np.floor(coordinates), old - 1)
    high = np.minimum(low + 1, old - 1)
    share = (coordinates - low).astype(x.dtype.numpy)
    first, second = _pick_places(s, x, axis, low), _pick_places(s, x, axis, high)
    aligned = [1] * x.rank
    aligned[axis] = len(share)
    weight = s.literal(share.reshape(aligned), x.dtype).broadcast_to(first.shape)
    return first + (second - first) * weight


def _blend_four(s: Session, x: Handle, axis: int, coordinates: Any, old: int) -> Handle:
    """The four neighbours of each coordinate, weighed by a cubic of their distance; beyond the ends
    the last element is repeated."""
    low = np.floor(coordinates)
    total = None
    for offset in (-1, 0, 1, 2):
        weight = cubic_kernel(np.abs(coordinates - low - offset), _BEND).astype(x.dtype.numpy)
        neighbour = _pick_places(s, x, axis, np.clip(low + offset, 0, old - 1))
        aligned = [1] * x.rank
        aligned[axis] = len(weight)
        part = neighbour * s.literal(weight.reshape(aligned), x.dtype).broadcast_to(neighbour.shape)
        total = part if total is None else total + part
    assert total is not None
    return total


def cubic_kernel(distance: Any, bend: float) -> Any:
    """The kernel of cubic convolution: two cubics that meet at distance 1, with the slope `bend`,
    and end at 2."""
    near = ((bend + 2) * distance - (bend + 3)) * distance * distance + 1
    far = bend * (((distance - 5) * distance + 8) * distance - 4)
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))


@functional
def interpolate(
    x: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    *,
    align_corners: bool = False,
    layout: str | None = None,
) -> Tensor:
    """x with another size on its spatial axes: "nearest" takes the element at the start of each new
    element, "nearest-exact" the one at its middle; "linear" interpolates between two neighbours on
    each axis (also called bilinear for two axes, trilinear for three), "cubic" between four
    (bicubic), and "area" takes the mean of the elements that a new one covers. Bytes are
    interpolated as floats and rounded. `layout` as for convolutions."""
    checked = check_interpolate(x, size, scale_factor, mode, align_corners, layout)
    return capture(capture_interpolate, checked, ensure_tensor("x", x))
