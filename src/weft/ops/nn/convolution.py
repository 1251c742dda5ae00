"""Convolution layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

from weft.foundation.dtypes import DType
from weft.foundation.errors import UserError
from weft.ops.calls import public
from weft.ops.functional.convolution import (
    LAYOUTS,
    Padding,
    Sizes,
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
    per_axis,
)
from weft.ops.nn.initialise import kaiming
from weft.ops.nn.module import Module
from weft.ops.nn.settings import divides, hashable
from weft.ops.tensor import Tensor


class _Conv(Module):
    """A convolution with weight [out, in / groups, window...] and bias [out]."""

    spatial: ClassVar[int]
    convolve: ClassVar[Callable[..., Tensor]]

    @public
    def __init__(
        self,
        inputs: int,
        outputs: int,
        window: Sizes,
        stride: Sizes = 1,
        padding: Padding = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        *,
        layout: str = "",
        dtype: DType | str = "f32",
    ) -> None:
        _check_groups(type(self).__name__, inputs, outputs, groups)
        sizes = per_axis("window", window, self.spatial)
        reach = inputs // groups * math.prod(sizes)
        self.stride, self.dilation = (hashable(value) for value in (stride, dilation))
        self.padding, self.groups = hashable(padding), groups
        self.layout = layout or LAYOUTS[self.spatial][0]
        self.weight = kaiming((outputs, inputs // groups, *sizes), reach, dtype)
        self.bias = kaiming((outputs,), reach, dtype) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return type(self).convolve(
            x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups,
            layout=self.layout,
        )  # fmt: skip


class Conv1d(_Conv):
    """Convolution over one axis."""

    spatial = 1
    convolve = staticmethod(conv1d)


class Conv2d(_Conv):
    """Convolution over two axes."""

    spatial = 2
    convolve = staticmethod(conv2d)


class Conv3d(_Conv):
    """Convolution over three axes."""

    spatial = 3
    convolve = staticmethod(conv3d)


class _ConvTranspose(Module):
    """The transpose of a convolution, with weight [in, out / groups, window...] and bias [out]."""

    spatial: ClassVar[int]
    convolve: ClassVar[Callable[..., Tensor]]

    @public
    def __init__(
        self,
        inputs: int,
        outputs: int,
        window: Sizes,
        stride: Sizes = 1,
        padding: Padding = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Sizes = 1,
        *,
        layout: str = "",
        dtype: DType | str = "f32",
    ) -> None:
        _check_groups(type(self).__name__, inputs, outputs, groups)
        sizes = per_axis("window", window, self.spatial)
        reach = outputs // groups * math.prod(sizes)
        self.stride, self.dilation = hashable(stride), hashable(dilation)
        self.padding, self.output_padding = hashable(padding), hashable(output_padding)
        self.groups = groups
        self.layout = layout or LAYOUTS[self.spatial][0]
        self.weight = kaiming((inputs, outputs // groups, *sizes), reach, dtype)
        self.bias = kaiming((outputs,), reach, dtype) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return type(self).convolve(
            x, self.weight, self.bias, self.stride, self.padding, self.output_padding, self.groups,
            self.dilation, layout=self.layout,
        )  # fmt: skip


def _check_groups(name: str, inputs: Any, outputs: Any, groups: Any) -> None:
    if not divides(groups, inputs) or not divides(groups, outputs):
        raise UserError(
            f"[{name}] {inputs} inputs, {outputs} outputs and {groups} groups: "
            "they must be whole numbers over 0, and the groups divide the others"
        )


class ConvTranspose1d(_ConvTranspose):
    """The transpose of a convolution over one axis."""

    spatial = 1
    convolve = staticmethod(conv_transpose1d)


class ConvTranspose2d(_ConvTranspose):
    """The transpose of a convolution over two axes."""

    spatial = 2
    convolve = staticmethod(conv_transpose2d)


class ConvTranspose3d(_ConvTranspose):
    """The transpose of a convolution over three axes."""

    spatial = 3
    convolve = staticmethod(conv_transpose3d)
