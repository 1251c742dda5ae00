"""Lines of the GPU benchmark for convolutions: `conv` and `conv_epilogue` of the frozen list in
`gpu2.json`.

Images have their channels last and filters are (out, window..., in), which torch calls
channels_last; its convolutions are cuDNN's, which chooses by trying (`cudnn.benchmark`). Three
passes: the convolution (fprop), the gradient of its image (dgrad), that of its filters (wgrad).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.gpu_line import Line, Tensor
from weft.ptir import Builder, Program, Value
from weft.ptir.gradient import gradient

LIST: Final = json.loads((Path(__file__).parent / "gpu2.json").read_text())
_LAYOUTS: Final = {1: "NWC", 2: "NHWC", 3: "NDHWC"}


@dataclass(frozen=True)
class GradientLine(Line):
    """A line for the gradient of one operand: the program's first result is a number whose gradient
    it is, and is left out."""

    of: int = 0

    def program(self) -> Program:
        found = gradient(super().program(), wrt=self.of)
        main = found.functions[0]
        only = replace(main, results=main.results[1:], result_ids=main.result_ids[1:])
        return replace(found, functions=(only, *found.functions[1:]))


@dataclass(frozen=True)
class Shape:
    """A convolution of `batch` images, one to three axes."""

    batch: int
    size: tuple[int, ...]
    inputs: int
    outputs: int
    window: int
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    first: bool = False
    """Whether channels come first, in image and filters."""
    transposed: bool = False
    dtype: str = "bf16"

    @property
    def axes(self) -> int:
        return len(self.size)

    @property
    def pad(self) -> int:
        """Results are as large as images, or as many times smaller as the stride says."""
        if self.transposed:
            return (self.window - self.stride) // 2
        return 0 if self.stride == self.window else self.dilation * (self.window // 2)

    @property
    def places(self) -> tuple[int, ...]:
        if self.transposed:
            return tuple(n * self.stride for n in self.size)
        reach = (self.window - 1) * self.dilation + 1
        return tuple((n + 2 * self.pad - reach) // self.stride + 1 for n in self.size)

    @property
    def name(self) -> str:
        size = "x".join(map(str, self.size)) if self.axes == 3 else f"{self.size[0]}^{self.axes}"
        parts = [f"b{self.batch} {size} {self.inputs}->{self.outputs} k{self.window}"]
        parts += [f"stride {self.stride}"] if self.stride > 1 else []
        parts += [f"dilation {self.dilation}"] if self.dilation > 1 else []
        parts += [f"groups {self.groups}"] if self.groups > 1 else []
        parts += ["transposed"] if self.transposed else []
        parts += ["NCHW"] if self.first else []
        return " ".join(parts)

    @property
    def flops(self) -> float:
        places = math.prod(self.size if self.transposed else self.places)
        taps = math.prod((self.window,) * self.axes)
        return 2.0 * self.batch * places * taps * self.inputs * self.outputs / self.groups

    def tensor(self, size: tuple[int, ...], channels: int) -> Tensor:
        last = (self.batch, *size, channels)
        return Tensor((self.batch, channels, *size) if self.first else last, self.dtype)

    @property
    def operands(self) -> tuple[Tensor, Tensor]:
        window, share = (self.window,) * self.axes, self.inputs // self.groups
        scale = 1 / math.sqrt(share * self.window**self.axes)
        shape = (self.outputs, share, *window) if self.first else (self.outputs, *window, share)
        return self.tensor(self.size, self.inputs), Tensor(shape, self.dtype, scale=scale)

    # In Weft

    def in_weft(self, b: Builder, x: Value, w: Value, *more: Value) -> Value:
        if self.transposed:
            return self.upward(b, x, w)
        layout = _LAYOUTS[self.axes]
        if self.first:
            layout = f"NC{layout[1:-1]}"
        else:
            w = b.transpose(w, [*range(1, self.axes + 2), 0])
        axes = self.axes
        made = b.emit(
            "weft.conv", x, w, *more, layout=layout, stride=[self.stride] * axes,
            pad=[self.pad] * 2 * axes, dilation=[self.dilation] * axes, groups=self.groups,
        )  # fmt: skip
        assert isinstance(made, Value)
        return made

    def upward(self, b: Builder, x: Value, w: Value) -> Value:
        """A transposed convolution: one of the image with zeros between its elements."""
        around = self.window - 1 - self.pad
        apart = [0, *[self.stride - 1] * self.axes, 0]
        board = b.pad(x, interior=apart, pad_value=0.0)
        turned = b.transpose(w, [*range(1, self.axes + 2), 0])
        high = self.places[0] - ((self.size[0] - 1) * self.stride + 1) + self.window - 1 - around
        made = b.emit(
            "weft.conv", board, turned, layout=_LAYOUTS[self.axes],
            pad=[around] * self.axes + [high] * self.axes,
        )  # fmt: skip
        assert isinstance(made, Value)
        return made

    def product_with(self, b: Builder, x: Value, w: Value, g: Value) -> Value:
        return b.reduce_sum(self.in_weft(b, x, w) * g, list(range(self.axes + 2)))

    # In torch

    def to_torch(self, x: Any) -> Any:
        """Channels where torch has them, without moving anything."""
        return x if self.first else x.movedim(-1, 1)

    def from_torch(self, x: Any) -> Any:
        return x if self.first else x.movedim(1, -1)

    def in_torch(self, torch: Any, x: Any, w: Any, *more: Any) -> Any:
        torch.backends.cudnn.benchmark = True
        image, filters = self.to_torch(x), self.to_torch(w)
        if self.transposed:
            # torch's are (in, out, window...), turned around.
            turned = filters.transpose(0, 1).flip(list(range(2, self.axes + 2)))
            call = getattr(torch.nn.functional, f"conv_transpose{self.axes}d")
            return self.from_torch(call(image, turned, stride=self.stride, padding=self.pad))
        call = getattr(torch.nn.functional, f"conv{self.axes}d")
        made = call(
            image, filters, *more,
            stride=self.stride, padding=self.pad, dilation=self.dilation, groups=self.groups,
        )  # fmt: skip
        return self.from_torch(made)

    def back_in_torch(self, torch: Any, x: Any, w: Any, g: Any, of: int) -> Any:
        torch.backends.cudnn.benchmark = True
        each = [[number] * self.axes for number in (self.stride, self.pad, self.dilation)]
        found = torch.ops.aten.convolution_backward(
            self.to_torch(g), self.to_torch(x), self.to_torch(w), None, *each, False,
            [0] * self.axes, self.groups, [of == 0, of == 1, False],
        )  # fmt: skip
        return self.from_torch(found[of])

    # Lines

    def line(self, family: str = "conv") -> Line:
        def in_weft(b: Builder, x: Value, w: Value) -> Value:
            return self.in_weft(b, x, w)

        return Line(
            family, f"fprop {self.name}", self.dtype, self.operands, in_weft, self.in_torch,
            flops=self.flops,
        )  # fmt: skip

    def back(self, of: int, family: str = "conv") -> Line:
        def in_torch(torch: Any, x: Any, w: Any, g: Any) -> Any:
            return self.back_in_torch(torch, x, w, g, of)

        given = (*self.operands, self.tensor(self.places, self.outputs))
        name = f"{('dgrad', 'wgrad')[of]} {self.name}"
        return GradientLine(
            family, name, self.dtype, given, self.product_with, in_torch, flops=self.flops, of=of
        )


FURTHER: Final = {
    "b16 56^2 256->256 k3": Shape(16, (56, 56), 256, 256, 3),
    "b8 128^2 128->128 k3": Shape(8, (128, 128), 128, 128, 3),
    "b8 64^2 320->320 k3 NCHW": Shape(8, (64, 64), 320, 320, 3, first=True),
    "b32 56^2 64->64 k3 NCHW": Shape(32, (56, 56), 64, 64, 3, first=True),
    "b64 14^2 384 depthwise k7": Shape(64, (14, 14), 384, 384, 7, groups=384),
    "b32 112^2 64 depthwise k3": Shape(32, (112, 112), 64, 64, 3, groups=64),
    "b32 56^2 144 depthwise k3 stride 2": Shape(32, (56, 56), 144, 144, 3, 2, groups=144),
    "b4 16x32x32 64->64 k3 (3-D)": Shape(4, (16, 32, 32), 64, 64, 3),
    "b16 4096 256->256 k9 (1-D)": Shape(16, (4096,), 256, 256, 9),
    "b8 32^2 256->128 k4 stride 2 transposed": Shape(8, (32, 32), 256, 128, 4, 2, transposed=True),
    "b16 28^2 256->256 k3 dilation 2": Shape(16, (28, 28), 256, 256, 3, dilation=2),
    "b32 28^2 256->256 k3 groups 32": Shape(32, (28, 28), 256, 256, 3, groups=32),
    "b32 28^2 128->128 k3 f16": Shape(32, (28, 28), 128, 128, 3, dtype="f16"),
    "b64 224^2 3->768 k16 stride 16 (patch)": Shape(64, (224, 224), 3, 768, 16, 16),
    "b32 28^2 65->127 k3 (odd)": Shape(32, (28, 28), 65, 127, 3),
}
"""Lines of the list by their text there."""


def conv_lines() -> Iterator[Line]:
    """Every layer of ResNet-50, three passes each, then the others."""
    chosen = LIST["conv"]
    for size, inputs, outputs, window, stride in chosen["resnet50"]:
        shape = Shape(chosen["batch"], (size, size), inputs, outputs, window, stride)
        yield shape.line()
        if inputs > 3:
            yield shape.back(0)
        yield shape.back(1)
    for text in chosen["further"]:
        yield FURTHER[text].line()


FEW_CHANNELS: Final = (
    Shape(128, (224, 224), 3, 64, 7, 2),
    Shape(32, (224, 224), 3, 64, 7, 2, first=True),
    Shape(32, (224, 224), 3, 64, 3),
    Shape(32, (224, 224), 3, 32, 3, 2),
    Shape(4, (512, 512), 3, 128, 3),
    Shape(32, (224, 224), 3, 64, 11, 4),
    Shape(8, (64, 64), 4, 320, 3),
    Shape(64, (112, 112), 2, 32, 5),
    Shape(32, (256, 256), 6, 48, 5),
    Shape(2, (32, 112, 112), 3, 64, 7, 2),
)
"""First layers of networks."""

UNEVEN_CHANNELS: Final = (
    Shape(32, (56, 56), 24, 24, 3),
    Shape(32, (56, 56), 32, 64, 3),
    Shape(32, (28, 28), 48, 48, 3),
    Shape(32, (28, 28), 80, 80, 3),
    Shape(32, (28, 28), 96, 96, 3),
    Shape(32, (28, 28), 96, 192, 3, 2),
    Shape(32, (14, 14), 130, 130, 3),
)
"""Convolutions whose channels are no multiple of 64, of which gradients of filters are timed."""


def few_channel_lines() -> Iterator[Line]:
    for shape in FEW_CHANNELS:
        yield shape.line("few_channels")
    for shape in UNEVEN_CHANNELS:
        yield shape.back(1, "few_channels")


DEPTHWISE: Final = (
    Shape(64, (14, 14), 384, 384, 7, groups=384),
    Shape(64, (56, 56), 96, 96, 7, groups=96),
    Shape(32, (112, 112), 64, 64, 3, groups=64),
    Shape(32, (56, 56), 144, 144, 3, 2, groups=144),
    Shape(64, (28, 28), 192, 192, 3, groups=192),
    Shape(32, (56, 56), 144, 144, 3, groups=144, first=True),
)
"""Convolutions of single channels, whose gradients are timed beside them."""


def depthwise_lines() -> Iterator[Line]:
    """Three passes each."""
    for shape in DEPTHWISE:
        yield from (shape.line("depthwise"), shape.back(0, "depthwise"), shape.back(1, "depthwise"))


GROUPS: Final = (
    Shape(32, (56, 56), 128, 128, 3, groups=32),
    Shape(32, (28, 28), 256, 256, 3, groups=32),
    Shape(32, (56, 56), 256, 256, 3, 2, groups=32),
    Shape(32, (14, 14), 512, 512, 3, groups=32),
    Shape(32, (7, 7), 1024, 1024, 3, groups=32),
    Shape(32, (28, 28), 192, 192, 3, groups=8),
    Shape(16, (56, 56), 96, 192, 5, groups=12),
    Shape(16, (4096,), 256, 256, 9, groups=16),
)
"""Convolutions in groups of few channels: ResNeXt's, and others."""


def group_lines() -> Iterator[Line]:
    """Three passes each."""
    for shape in GROUPS:
        yield from (shape.line("groups"), shape.back(0, "groups"), shape.back(1, "groups"))


@dataclass(frozen=True)
class Ending:
    """A convolution with what follows it, in one of the ways of `conv_epilogue`."""

    shape: Shape
    case: str

    @property
    def line(self) -> Line:
        channels = Tensor((self.shape.outputs,), self.shape.dtype)
        whole = self.shape.tensor(self.shape.places, self.shape.outputs)
        more = {"scale+shift+relu": (channels, channels), "bias+residual+relu": (channels, whole)}
        given = (*self.shape.operands, *more.get(self.case, (channels,)))
        name = f"{self.shape.name} {self.case}"
        return Line(
            "conv_epilogue", name, self.shape.dtype, given, self.in_weft, self.in_torch,
            flops=self.shape.flops,
        )  # fmt: skip

    def in_weft(self, b: Builder, x: Value, w: Value, *more: Value) -> Value:
        y, first = self.shape.in_weft(b, x, w), more[0]
        shape = list(self.shape.tensor(self.shape.places, self.shape.outputs).shape)
        along = b.broadcast_to(first, shape)
        if self.case == "scale+shift+relu":
            y = y * along + b.broadcast_to(more[1], shape)
        else:
            y = y + along
        if self.case == "bias+residual+relu":
            y = y + more[1]
        if self.case == "bias+silu":
            # In f32, as torch's is and as `weft.silu` is.
            return b.cast(b.silu(b.cast(y, "f32")), self.shape.dtype)
        made = b.emit("maximum", y, b.full(shape, 0.0, self.shape.dtype))
        assert isinstance(made, Value)
        return made

    def in_torch(self, torch: Any, x: Any, w: Any, *more: Any) -> Any:
        y = self.shape.in_torch(torch, x, w)
        y = y * more[0] + more[1] if self.case == "scale+shift+relu" else y + more[0]
        if self.case == "bias+residual+relu":
            y = y + more[1]
        silu = torch.nn.functional.silu
        return silu(y) if self.case == "bias+silu" else torch.relu(y)


def conv_epilogue_lines() -> Iterator[Line]:
    """Layers of the list with each of its endings."""
    chosen = LIST["conv_epilogue"]
    for size, inputs, outputs, window, stride in chosen["layers"]:
        shape = Shape(LIST["conv"]["batch"], (size, size), inputs, outputs, window, stride)
        for case in chosen["cases"]:
            yield Ending(shape, case).line
