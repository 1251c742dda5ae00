"""Programs with a convolution in them, of all usual forms, for tests with and without a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from weft.ptir import Builder, Program, Value
from weft.ptir.gradient import gradient


@dataclass(frozen=True)
class Case:
    """A convolution of images of some `size` with the channels last, in channels `inputs` and
    `outputs`."""

    size: tuple[int, ...] = (6, 6)
    window: tuple[int, ...] = (3, 3)
    inputs: int = 64
    outputs: int = 64
    images: int = 2
    pad: int | tuple[int, ...] = 1
    """Zeros at both ends of every axis, or at all low ends and then all high ends."""
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    dtype: str = "bf16"
    layout: str = ""
    """Channels last in image and filters; first in both, or in filters that are turned before they
    are used (filters first)."""
    epilogue: str = ""
    """bias, residual, or both results (two)."""

    @property
    def axes(self) -> int:
        return len(self.size)

    @property
    def padding(self) -> tuple[int, ...]:
        return self.pad if isinstance(self.pad, tuple) else (self.pad,) * (2 * self.axes)

    @property
    def places(self) -> tuple[int, ...]:
        """The size of the result."""
        low, high = self.padding[: self.axes], self.padding[self.axes :]
        ends = zip(self.size, self.window, low, high, strict=True)
        return tuple(
            (n + a + b - (w - 1) * self.dilation - 1) // self.stride + 1 for n, w, a, b in ends
        )

    def program(self) -> Program:
        b = Builder("convolution")
        x, w = self._operands(b)
        more = [b.param(self.dtype, [self.outputs])] if self.epilogue == "bias" else []
        shape = self._shape(self.places, self.outputs)
        beside = [b.param(self.dtype, shape)] if self.epilogue == "residual" else []
        y = self._convolution(b, x, w, *more)
        if self.epilogue == "residual":
            y = b.emit("maximum", y + beside[0], b.full(shape, 0.0, self.dtype))
        return b.build(y, b.tanh(y)) if self.epilogue == "two" else b.build(y)

    def gradient(self, of: int) -> Program:
        """The gradient of the image (0) or of the filters (1), for any cotangent, after the sum of
        the products with it."""
        b = Builder("gradient")
        x, w = self._operands(b)
        g = b.param(self.dtype, self._shape(self.places, self.outputs))
        total = b.reduce_sum(self._convolution(b, x, w) * g, list(range(self.axes + 2)))
        return gradient(b.build(total), wrt=of)

    def _shape(self, size: tuple[int, ...], channels: int) -> list[int]:
        last = [self.images, *size, channels]
        return [self.images, channels, *size] if self.layout == "first" else last

    def _operands(self, b: Builder) -> tuple[Value, Value]:
        share = self.inputs // self.groups
        filters = [*self.window, share, self.outputs]
        if self.layout:
            filters = [self.outputs, share, *self.window]
        x = b.param(self.dtype, self._shape(self.size, self.inputs))
        return x, b.param(self.dtype, filters)

    def _convolution(self, b: Builder, x: Value, w: Value, *more: Value) -> Value:
        layout = {1: "NWC", 2: "NHWC", 3: "NDHWC"}[self.axes]
        if self.layout == "first":
            layout = f"NC{layout[1:-1]}"
        elif self.layout == "filters first":
            w = b.transpose(w, [*range(2, self.axes + 2), 1, 0])
        made = b.emit(
            "weft.conv", x, w, *more, layout=layout, stride=[self.stride] * self.axes,
            pad=list(self.padding), dilation=[self.dilation] * self.axes, groups=self.groups,
        )  # fmt: skip
        assert isinstance(made, Value)
        return made


CASES: Final[dict[str, Case]] = {
    "3x3": Case(),
    "3x3, f16": Case(dtype="f16", size=(5, 7)),
    "no padding": Case(pad=0),
    "padding of its own at every end": Case(pad=(1, 0, 2, 1)),
    "one image": Case(images=1, size=(12, 12)),
    "stride 2": Case(size=(9, 7), stride=2),
    "stride 3 over few elements": Case(size=(4, 8), stride=3, pad=2),
    "dilated": Case(size=(9, 9), dilation=2, pad=2),
    "1x1, stride 2": Case(size=(8, 8), window=(1, 1), stride=2, pad=0),
    "1x5": Case(window=(1, 5), pad=(0, 2, 0, 2)),
    "5x1": Case(window=(5, 1), pad=(2, 0, 2, 0)),
    "channels that fill no row": Case(inputs=40, outputs=48),
    "channels of half a row": Case(inputs=32, outputs=32, size=(5, 7)),
    "channels of less than half a row": Case(inputs=24, outputs=40, size=(9, 7), stride=2),
    "channels of a row and a half": Case(inputs=96, outputs=72, size=(5, 7)),
    "two groups": Case(inputs=128, outputs=128, groups=2),
    "1-D": Case(size=(70,), window=(9,), pad=4),
    "3-D": Case(size=(4, 5, 6), window=(3, 3, 3), images=1),
    "3-D, stride 2": Case(size=(4, 5, 6), window=(3, 2, 1), stride=2, images=2, pad=0),
    "bias": Case(epilogue="bias"),
    "residual": Case(epilogue="residual", size=(9, 9)),
    "two results": Case(epilogue="two"),
}
"""By what is special about each."""

COPIED: Final[dict[str, Case]] = {
    "channels first": Case(size=(8, 8), layout="first"),
    "channels first, stride 2, dilated": Case(size=(17, 18), layout="first", stride=2, pad=2),
    "filters first": Case(size=(8, 8), layout="filters first"),
    "odd channels": Case(size=(8, 8), inputs=65, outputs=63),
    "groups of some channels": Case(size=(12, 12), inputs=96, outputs=96, groups=2),
    "three channels": Case(size=(20, 20), window=(7, 7), inputs=3, images=6, stride=2, pad=3),
    "four channels, no zeros around": Case(
        size=(26, 23), window=(7, 5), inputs=4, images=12, stride=3, pad=0
    ),
    "three channels first": Case(
        size=(19, 20), window=(5, 5), inputs=3, images=10, stride=2, pad=2, layout="first"
    ),
    "channels first, 1-D": Case(size=(200,), window=(5,), pad=2, layout="first"),
}
"""Those of which an operand is copied first."""

GROUPED: Final[dict[str, Case]] = {
    "8 channels": Case(inputs=32, outputs=32, groups=4),
    "8 channels, f16, stride 2": Case(
        inputs=24, outputs=24, groups=3, size=(7, 5), stride=2, images=3, dtype="f16"
    ),
    "4 channels, more groups than a block has": Case(inputs=40, outputs=40, groups=10),
    "3 channels, bias": Case(inputs=9, outputs=15, groups=3, size=(5, 5), epilogue="bias"),
    "6 channels": Case(inputs=12, outputs=12, groups=2, size=(4, 5)),
    "16 channels, more results, dilated": Case(
        inputs=48, outputs=96, groups=3, size=(5, 21), images=1, dilation=2, pad=2
    ),
    "24 channels": Case(inputs=72, outputs=72, groups=3, size=(4, 5), pad=(1, 0, 2, 1)),
    "32 channels": Case(inputs=64, outputs=64, groups=2, window=(2, 1), pad=0),
    "many results": Case(inputs=16, outputs=112, groups=2, size=(3, 4)),
    "filters first, residual": Case(
        inputs=32, outputs=32, groups=4, layout="filters first", epilogue="residual"
    ),
    "two results": Case(inputs=16, outputs=16, groups=2, epilogue="two"),
    "1-D": Case(inputs=32, outputs=32, groups=4, size=(300,), window=(3,), images=1),
    "3-D": Case(inputs=16, outputs=16, groups=2, size=(3, 4, 5), window=(3, 2, 3), images=2),
}
"""In groups of few channels."""

PATCHES: Final = Case(
    size=(32, 32), window=(8, 8), inputs=3, outputs=128, images=16, stride=8, pad=0
)
"""Windows that do not overlap."""

GRADIENTS: Final[dict[str, tuple[Case, int]]] = {
    "of the image": (Case(), 0),
    "of the image, dilated, 1-D": (Case(size=(40,), window=(3,), dilation=2, pad=2), 0),
    "of the image, two groups": (Case(inputs=128, outputs=128, groups=2, size=(4, 4)), 0),
    "of the filters": (Case(size=(7, 6)), 1),
    "of the filters, stride 2": (Case(size=(9, 9), stride=2), 1),
    "of the filters, channels on both sides": (Case(inputs=128, outputs=72, size=(4, 4)), 1),
    "of the filters, two groups": (Case(inputs=128, outputs=128, groups=2, size=(4, 4)), 1),
    "of the filters, groups of few channels": (
        Case(inputs=64, outputs=64, groups=4, size=(16, 16)),
        1,
    ),
    "of the filters, groups of few channels and more results, dilated": (
        Case(inputs=64, outputs=128, groups=8, size=(16, 16), dilation=2, pad=2),
        1,
    ),
    "of the image, stride 2": (Case(size=(8, 8), stride=2), 0),
    "of the image, channels first": (Case(size=(8, 8), layout="first"), 0),
    "of filters that were turned": (Case(size=(8, 8), layout="filters first"), 1),
    "of filters that were turned, two rows of groups of few channels": (
        Case(inputs=128, outputs=128, groups=16, size=(16, 16), layout="filters first"),
        1,
    ),
    "of the filters, channels first": (Case(size=(8, 8), layout="first"), 1),
    "of the filters, 1-D": (Case(size=(70,), window=(5,), pad=2), 1),
    "of the filters, 3-D": (Case(size=(4, 3, 5), window=(2, 2, 2), pad=0), 1),
}
"""Cases, and the parameter whose gradient is taken."""

_STEPS_OF_TWO: Final = Case(size=(8, 8), stride=2)
PHASES: Final[dict[str, Case]] = {
    "3x3": _STEPS_OF_TWO,
    "4x4": replace(_STEPS_OF_TWO, window=(4, 4)),
    "whole windows": replace(_STEPS_OF_TWO, window=(2, 2), pad=0),
    "one tap down, two across": replace(_STEPS_OF_TWO, window=(2, 3), pad=(0, 1, 0, 1)),
    "more images than a tile, some channels": Case(
        size=(10, 6), stride=2, window=(5, 3), pad=(2, 1, 2, 1), images=5, inputs=72, outputs=40
    ),
    "whole windows in steps of three": Case(size=(9, 9), stride=3, pad=0),
    "two groups": Case(inputs=128, outputs=128, groups=2, stride=2, size=(4, 8)),
    "1-D": Case(size=(40,), window=(5,), stride=2, pad=2),
    "3-D": Case(size=(4, 4, 6), window=(3, 3, 3), stride=2, images=1),
}
"""Convolutions with strides, whose images have gradients in phases."""

_FIRST: Final = Case(inputs=3, size=(8, 7), window=(3, 3), stride=2, images=3)
FIRST_LAYERS: Final[dict[str, Case]] = {
    "channels last": _FIRST,
    "channels first": replace(_FIRST, layout="first"),
    "odd": replace(_FIRST, inputs=5, window=(2, 4), dtype="f16"),
    "1-D": Case(inputs=4, size=(40,), window=(9,), pad=4),
    "cut": Case(layout="first", inputs=3, size=(16, 16), window=(4, 4), stride=4, pad=0),
}
"""Convolutions of few channels, whose filters' gradients are products with their windows."""

_UNEVEN: Final = Case(size=(12, 11), inputs=24, outputs=40, images=4)
UNEVEN: Final[dict[str, Case]] = {
    "24 channels": _UNEVEN,
    "40 channels, stride 2": replace(
        _UNEVEN, size=(24, 19), inputs=40, outputs=24, stride=2, images=5
    ),
    "96 channels, dilated, one axis": Case(
        size=(70,), window=(5,), inputs=96, outputs=72, images=2, dilation=2, pad=4
    ),
    "both odd": replace(_UNEVEN, size=(13, 13), inputs=17, outputs=33, images=6),
    "three axes, two of them without taps": Case(
        size=(4, 7, 6), window=(3, 1, 1), inputs=48, outputs=32, images=12, pad=0
    ),
    "channels first": replace(_UNEVEN, layout="first"),
    "two groups": replace(_UNEVEN, inputs=96, outputs=96, groups=2, size=(8, 8)),
}
"""Convolutions whose channels make no whole rows of matrix units, whose filters have gradients."""

_DEPTHWISE: Final = Case(inputs=8, outputs=8, groups=8, size=(6, 9))
DEPTHWISE: Final[dict[str, tuple[Case, int | None, int]]] = {
    "3x3": (_DEPTHWISE, None, 7),
    "7x7": (replace(_DEPTHWISE, window=(7, 7), size=(5, 14), pad=3), None, 14),
    "stride 2": (replace(_DEPTHWISE, stride=2, size=(9, 11)), None, 4),
    "odd channels": (replace(_DEPTHWISE, inputs=7, outputs=7, groups=7, size=(5, 13)), None, 8),
    "37 vectors": (replace(_DEPTHWISE, inputs=148, outputs=148, groups=148, size=(3, 5)), None, 5),
    "dilated": (replace(_DEPTHWISE, dilation=2, pad=2), None, 7),
    "channels first": (replace(_DEPTHWISE, layout="first", size=(9, 10)), None, 4),
    "filters first": (replace(_DEPTHWISE, layout="filters first"), None, 3),
    "f32, bias": (replace(_DEPTHWISE, dtype="f32", epilogue="bias"), None, 8),
    "residual": (replace(_DEPTHWISE, epilogue="residual"), None, 8),
    "two results": (replace(_DEPTHWISE, epilogue="two"), None, 8),
    "1-D": (replace(_DEPTHWISE, size=(40,), window=(5,), pad=2), None, 11),
    "3-D": (replace(_DEPTHWISE, size=(3, 4, 5), window=(3, 3, 3), images=1), None, 5),
    "of the image": (_DEPTHWISE, 0, 6),
    "of the image, stride 2": (replace(_DEPTHWISE, stride=2), 0, 8),
    "of the filters": (_DEPTHWISE, 1, 9),
    "of the filters, stride 2": (replace(_DEPTHWISE, stride=2, size=(9, 9)), 1, 9),
    "of the filters, 7x7": (replace(_DEPTHWISE, window=(7, 7), pad=3, size=(7, 7)), 1, 7),
    "of filters that were turned": (replace(_DEPTHWISE, layout="filters first"), 1, 9),
    "of the filters, channels first": (
        replace(_DEPTHWISE, layout="first", inputs=2, outputs=2, groups=2, size=(32, 66)),
        1,
        9,
    ),
}
"""Convolutions of single channels, the parameter whose gradient is taken, and how many places, or
taps, a thread may take together."""


def depthwise(name: str) -> Program:
    case, of, _ = DEPTHWISE[name]
    return case.program() if of is None else case.gradient(of)
