"""Images in other sizes, and at computed places."""

from __future__ import annotations

from typing import Any, Final

from weft.foundation.errors import Unimplemented
from weft.interop.sampling import grid_sampled
from weft.interop.torch.rules.table import F, Rule, rule, rules, w


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
