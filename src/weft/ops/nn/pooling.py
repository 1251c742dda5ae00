"""Pooling, resampling and rearranging as layers."""

from __future__ import annotations

from weft.foundation.axes import normalise_axis
from weft.ops.arithmetic import as_tensor
from weft.ops.array.manipulation import reshape
from weft.ops.calls import public
from weft.ops.functional.pooling import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
)
from weft.ops.functional.rearrange import pixel_shuffle
from weft.ops.functional.resampling import interpolate
from weft.ops.nn.applied import Applied
from weft.ops.nn.module import Module
from weft.ops.tensor import Tensor


class MaxPool1d(Applied):
    """The largest element of every window over one axis."""

    function = staticmethod(max_pool1d)


class MaxPool2d(Applied):
    """The largest element of every window over two axes."""

    function = staticmethod(max_pool2d)


class MaxPool3d(Applied):
    """The largest element of every window over three axes."""

    function = staticmethod(max_pool3d)


class AvgPool1d(Applied):
    """The mean of every window over one axis."""

    function = staticmethod(avg_pool1d)


class AvgPool2d(Applied):
    """The mean of every window over two axes."""

    function = staticmethod(avg_pool2d)


class AvgPool3d(Applied):
    """The mean of every window over three axes."""

    function = staticmethod(avg_pool3d)


class AdaptiveMaxPool1d(Applied):
    """The largest element of each of a given number of parts of one axis."""

    function = staticmethod(adaptive_max_pool1d)


class AdaptiveMaxPool2d(Applied):
    """The largest element of each of a given number of parts of two axes."""

    function = staticmethod(adaptive_max_pool2d)


class AdaptiveMaxPool3d(Applied):
    """The largest element of each of a given number of parts of three axes."""

    function = staticmethod(adaptive_max_pool3d)


class AdaptiveAvgPool1d(Applied):
    """The mean of each of a given number of parts of one axis."""

    function = staticmethod(adaptive_avg_pool1d)


class AdaptiveAvgPool2d(Applied):
    """The mean of each of a given number of parts of two axes."""

    function = staticmethod(adaptive_avg_pool2d)


class AdaptiveAvgPool3d(Applied):
    """The mean of each of a given number of parts of three axes."""

    function = staticmethod(adaptive_avg_pool3d)


class PixelShuffle(Applied):
    """Channels to pixels: [B, C r², H, W] becomes [B, C, H r, W r]."""

    function = staticmethod(pixel_shuffle)


class Upsample(Applied):
    """Another size by interpolation."""

    function = staticmethod(interpolate)


class Flatten(Module):
    """The axes from `start` to `end` as one."""

    @public
    def __init__(self, start: int = 1, end: int = -1) -> None:
        self.start, self.end = start, end

    def __call__(self, x: Tensor) -> Tensor:
        x = as_tensor(x)
        first, last = (normalise_axis(axis, x.ndim) for axis in (self.start, self.end))
        return reshape(x, (*x.shape[:first], -1, *x.shape[last + 1 :]))
