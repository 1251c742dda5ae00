"""Images in other sizes, and at computed places."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import F32
from weft.foundation.errors import Unimplemented
from weft.interop.sampling import grid_sampled
from weft.interop.torch.rules.casts import cast
from weft.interop.torch.rules.table import F, Rule, rule, rules, w
from weft.ops.functional.checks import ensure_known
from weft.ops.functional.resampling import cubic_kernel

Array = NDArray[Any]


def _resize_images(mode: str) -> Rule:
    def call(x: Any, size: Any, *settings: Any) -> Any:
        # A size and a number for each axis, or one list of numbers and no size.
        align_corners, *scales = (False, *settings) if "nearest" in mode else settings
        given = scales[0] if scales and isinstance(scales[0], list | tuple) else scales
        factors = [float(scale) for scale in given if scale is not None] or None
        if size is not None and factors is not None:
            made = [int(n * scale) for n, scale in zip(x.shape[2:], factors, strict=True)]
            if made != list(size):
                raise Unimplemented(f"{mode} images", f"the scales {factors} beside {size}")
        # Places are computed from the scales, if there are any: sizes are rounded.
        sizes = tuple(size) if factors is None else None
        return F.interpolate(x, sizes, factors, mode, align_corners=bool(align_corners))

    return call


def _resampling_gradient(forward: Rule) -> Rule:
    def call(gradient: Any, output_size: Any, input_size: Any, *settings: Any) -> Any:
        zeros = w.zeros(tuple(input_size), dtype=gradient.dtype)
        _, back = w.vjp(lambda x: forward(x, output_size, *settings), zeros)
        made = back(gradient)
        return made[0] if isinstance(made, tuple | list) else made

    return call


for _theirs, _mode in (
    *((f"upsample_nearest{k}d", "nearest") for k in (1, 2, 3)),
    *((f"_upsample_nearest_exact{k}d", "nearest-exact") for k in (1, 2, 3)),
    ("upsample_linear1d", "linear"), ("upsample_bilinear2d", "bilinear"),
    ("upsample_trilinear3d", "trilinear"), ("upsample_bicubic2d", "bicubic"),
):  # fmt: skip
    _made = _resize_images(_mode)
    rules("aten.", **{_theirs: _made, f"{_theirs}_backward": _resampling_gradient(_made)})


def _smooth_images(reach: float, kernel: Callable[[Array], Array]) -> Rule:
    """Images in another size, where a new element is a mean of all that lie under a kernel: it is
    as wide as `reach` old elements on each side, or new ones where they are wider."""

    def call(x: Any, size: Any, align_corners: bool, rows: Any = None, columns: Any = None) -> Any:
        if not x.dtype.is_float:
            raise Unimplemented("antialiased images", f"elements of {x.dtype}; convert to floats")
        wide = cast(x, F32) if x.dtype.bits < 32 else x
        for axis, new, scale in ((-1, size[1], columns), (-2, size[0], rows)):
            old = ensure_known("x", x.shape[axis])
            step = 1 / scale if scale else old / new
            if align_corners:
                step = (old - 1) / (new - 1) if new > 1 else 0.0
            shares = w.asarray(_shares(old, new, step).astype(wide.dtype.numpy))
            wide = wide @ shares.mT if axis == -1 else shares @ wide
        return cast(wide, x.dtype)

    def _shares(old: int, new: int, step: float) -> Array:
        """For every new element, the share that each old one has in it."""
        width = max(step, 1.0)
        middles = step * (np.arange(new)[:, None] + 0.5)
        places = np.arange(old)
        first = np.maximum(np.trunc(middles - reach * width + 0.5), 0)
        last = np.minimum(np.trunc(middles + reach * width + 0.5), old)
        shares = kernel(np.abs(places - middles + 0.5) / width)
        shares = np.where((places >= first) & (places < last), shares, 0.0)
        return np.asarray(shares / shares.sum(1, keepdims=True))

    return call


def _tent(distance: Array) -> Array:
    return np.asarray(np.clip(1 - distance, 0, None))


for _theirs, _made in (
    ("_upsample_bilinear2d_aa", _smooth_images(1.0, _tent)),
    ("_upsample_bicubic2d_aa", _smooth_images(2.0, partial(cubic_kernel, bend=-0.5))),
):
    rules("aten.", **{_theirs: _made, f"{_theirs}_backward": _resampling_gradient(_made)})


_MODES: Final = ("linear", "nearest", "cubic")
_PADDING: Final = ("zeros", "border", "reflection")


@rule("aten.grid_sampler_2d", "aten.grid_sampler_3d")
def grid_sampler(
    x: Any, grid: Any, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Any:
    mode, padding = _MODES[interpolation_mode], _PADDING[padding_mode]
    return grid_sampled(x, grid, mode, padding, bool(align_corners))


@rule("aten.grid_sampler_2d_backward", "aten.grid_sampler_3d_backward")
def grid_sampler_backward(
    gradient: Any, x: Any, grid: Any, interpolation_mode: int, padding_mode: int,
    align_corners: bool, output_mask: Any,
) -> Any:  # fmt: skip
    settings = (interpolation_mode, padding_mode, align_corners)
    _, back = w.vjp(lambda x, grid: grid_sampler(x, grid, *settings), x, grid)
    found = back(gradient)
    return [each if wanted else None for each, wanted in zip(found, output_mask, strict=True)]
