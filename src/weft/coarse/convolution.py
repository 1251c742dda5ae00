"""Convolution over one to three spatial axes, with the channels last or first."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.coarse.rules import check_algorithms
from weft.foundation.axes import inverse
from weft.foundation.dtypes import NUMBERS, DType
from weft.foundation.numeric import dot_accumulator_dtype
from weft.ptir.composite import Composite
from weft.ptir.convolution import back_to_image, times_kernel
from weft.ptir.literal import scalar_literal
from weft.ptir.op import coarse_op
from weft.ptir.ops.window import ExtractPatches
from weft.ptir.rules import (
    all_positive,
    invalid_attribute,
    length_is,
    rank_is,
    same_dim,
    same_dtype,
)
from weft.ptir.schema import USIZES, Choice, ListOf, Maybe, String, Usize, WireEnum, attr
from weft.ptir.term import Cotangents, Pullback, Term, known_size
from weft.ptir.types import Dim, Symbol, TensorType

ALGORITHMS = ("implicit_gemm", "winograd_3x3", "fft_conv")


class Layout(WireEnum):
    """The axes of the input and of the result, in order."""

    NWC = "NWC"
    NHWC = "NHWC"
    NDHWC = "NDHWC"
    NCW = "NCW"
    NCHW = "NCHW"
    NCDHW = "NCDHW"

    def __str__(self) -> str:
        return str(self.value)

    @property
    def spatial(self) -> int:
        """How many axes the window moves over."""
        return len(self.value) - 2

    @property
    def channels_last(self) -> bool:
        return bool(self.value.endswith("C"))

    def to_last(self) -> tuple[int, ...]:
        """The permutation that puts the channels of an operand last."""
        rank = self.spatial + 2
        return tuple(range(rank)) if self.channels_last else (0, *range(2, rank), 1)

    def from_last(self) -> tuple[int, ...]:
        """The permutation that puts them back."""
        rank = self.spatial + 2
        return tuple(range(rank)) if self.channels_last else (0, rank - 1, *range(1, rank - 1))

    def weight_to_last(self) -> tuple[int, ...]:
        """The permutation of a weight to (window..., input channels, output channels)."""
        rank = self.spatial + 2
        return tuple(range(rank)) if self.channels_last else (*range(2, rank), 1, 0)


@coarse_op("weft.conv.v1", "weft.conv")
class Conv(Composite):
    """The convolution (without flipping) of `input` with `weight`, plus `bias` for each output
    channel. `layout` names the axes of the input and of the result. With the channels last the
    weight is `[window..., C / groups, O]`, with the channels first `[O, C / groups, window...]`.

    On each spatial axis the window moves by `stride` (default 1) over the input with `pad` zeros
    around it (all low ends, then all high ends; default none), its elements `dilation` apart
    (default 1): `out = (in + low + high - ((window - 1) * dilation + 1)) / stride + 1`, rounded
    down. With `groups`, output channel o sees the input channels of its group only, o / (O /
    groups). Products accumulate as in `dot_general`, and the bias is added there, before the result
    is cast to the dtype of the input. `algo_set` names the algorithms that a compiler may choose
    from (`implicit_gemm`, `winograd_3x3`, `fft_conv`); it does not change the meaning."""

    operands = ("input", "weight", "bias?")
    dtypes = {"input": NUMBERS, "weight": NUMBERS, "bias": NUMBERS}

    layout: Layout = attr(Choice(Layout))
    stride: tuple[int, ...] | None = attr(Maybe(USIZES), default=None)
    pad: tuple[int, ...] | None = attr(Maybe(USIZES), default=None)
    dilation: tuple[int, ...] | None = attr(Maybe(USIZES), default=None)
    groups: int = attr(Usize(), default=1)
    algo_set: tuple[str, ...] | None = attr(Maybe(ListOf(String())), default=None)

    @property
    def strides(self) -> tuple[int, ...]:
        return self.stride if self.stride is not None else (1,) * self.layout.spatial

    @property
    def dilations(self) -> tuple[int, ...]:
        return self.dilation if self.dilation is not None else (1,) * self.layout.spatial

    @property
    def padding(self) -> tuple[tuple[int, int], ...]:
        """(low, high) of each spatial axis."""
        count = self.layout.spatial
        ends = self.pad if self.pad is not None else (0,) * (2 * count)
        return tuple(zip(ends[:count], ends[count:], strict=True))

    def infer(self, *types: TensorType) -> TensorType:
        x, weight, *bias = types
        self._check_attributes()
        for kind, name in ((x, "input"), (weight, "weight")):
            rank_is(kind, self.layout.spatial + 2, f"{name} of {self.mnemonic} in {self.layout}")
            same_dtype(x, kind, f"input and {name}")
        image = _permute_type(x, self.layout.to_last())
        kernel = _permute_type(weight, self.layout.weight_to_last())
        self._check_channels(image.shape[-1], kernel)
        for kind in bias:
            same_dtype(x, kind, "input and bias")
            rank_is(kind, 1, "bias")
            same_dim(kind.shape[0], kernel.shape[-1], "bias and the output channels differ")
        window = [self._window(dim) for dim in kernel.shape[:-2]]
        for axis, dim in enumerate(image.shape[1:-1]):
            self._check_room(axis, dim, window[axis])
        patches = self._patches(window, x).infer(image)
        result = image.with_shape((*patches.shape[:-1], kernel.shape[-1]))
        return _permute_type(result, self.layout.from_last())

    def _check_attributes(self) -> None:
        count = self.layout.spatial
        for name, length in (("stride", count), ("dilation", count), ("pad", 2 * count)):
            values = getattr(self, name)
            if values is not None:
                length_is(values, length, f"{name} of {self.mnemonic} in {self.layout}")
        all_positive(self.strides, f"stride of {self.mnemonic}")
        all_positive(self.dilations, f"dilation of {self.mnemonic}")
        if self.groups < 1:
            raise invalid_attribute(f"groups {self.groups} of {self.mnemonic} is not at least 1")
        check_algorithms(self, self.algo_set, ALGORITHMS)

    def _check_channels(self, channels: Dim, kernel: TensorType) -> None:
        for dim, name in ((channels, "input"), (kernel.shape[-1], "output")):
            if self.groups > 1 and (isinstance(dim, Symbol) or dim % self.groups):
                raise invalid_attribute(
                    f"the {dim} {name} channels of {self.mnemonic} do not make {self.groups} groups"
                )
        share = channels if isinstance(channels, Symbol) else channels // self.groups
        same_dim(kernel.shape[-2], share, "weight and the input channels of a group differ")

    def _window(self, dim: Dim) -> int:
        if isinstance(dim, Symbol) or not dim:
            raise invalid_attribute(f"the window of {self.mnemonic} has the extent {dim}")
        return dim

    def _check_room(self, axis: int, dim: Dim, size: int) -> None:
        """A window fits into the padded input."""
        span = (size - 1) * self.dilations[axis] + 1
        places = dim + sum(self.padding[axis]) if isinstance(dim, int) else span
        if places and span > places:
            name = str(self.layout).replace("N", "").replace("C", "")[axis]
            raise invalid_attribute(
                f"the window of {self.mnemonic} spans {span} places along {name}, more than the "
                f"{places} of the padded input"
            )

    def _patches(self, window: Sequence[int], x: TensorType) -> ExtractPatches:
        zero = scalar_literal(0, x.dtype)
        return ExtractPatches(tuple(window), self.strides, self.dilations, self.padding, zero)

    def decompose(self, *operands: Term) -> Term:
        x, weight, *bias = operands
        image = x.transpose(self.layout.to_last())
        kernel = weight.transpose(self.layout.weight_to_last())
        patches = self._patches_of(image, [known_size(dim) for dim in kernel.shape[:-2]])
        found = times_kernel(patches, kernel, self.groups, None, dot_accumulator_dtype(x.dtype))
        for shift in bias:
            found = found + shift.cast(found.dtype).along(found.rank - 1, found.shape)
        return found.cast(x.dtype).transpose(self.layout.from_last())

    def _patches_of(self, image: Term, window: Sequence[int]) -> Term:
        return image.extract_patches(
            window=tuple(window), strides=self.strides, dilation=self.dilations,
            padding=self.padding, pad_value=scalar_literal(0, image.dtype),
        )  # fmt: skip

    def vjp(self, at: Pullback) -> Cotangents:
        """The gradient of the input is a convolution of the result's cotangent, dilated by the
        stride; that of the weight is a product of patches."""
        x, weight, *bias = at.operands
        wide = dot_accumulator_dtype(x.dtype)
        g = at.cotangent.transpose(self.layout.to_last())
        kernel = weight.transpose(self.layout.weight_to_last())
        image = x.transpose(self.layout.to_last())
        found: list[Term | None] = [None, None]
        if at.wanted[0]:
            taken = self._patches(kernel.tensor.static_shape[:-2], x.tensor)
            dimage = back_to_image(taken, g, kernel, self.groups, image)
            found[0] = dimage.transpose(self.layout.from_last())
        if at.wanted[1]:
            dkernel = self._back_to_kernel(g, kernel, image.conj(), wide)
            found[1] = dkernel.cast(x.dtype).transpose(inverse(self.layout.weight_to_last()))
        for shift in bias:
            found.append(g.cast(wide).sum(range(g.rank - 1)).cast(shift.dtype))
        return found

    def _back_to_kernel(self, g: Term, kernel: Term, image: Term, dtype: DType) -> Term:
        """The product of the patches with g over all places."""
        *window, share, outputs = map(known_size, kernel.shape)
        patches, size = self._patches_of(image, window), math.prod(window)
        places = list(range(g.rank - 1))
        if self.groups == 1:
            found = patches.dot(g, (places, places), out_dtype=dtype)
            return found.reshape(kernel.shape)
        each, last = outputs // self.groups, g.rank - 1
        rows = patches.reshape((*patches.shape[:-1], size, self.groups, share))
        columns = g.reshape((*g.shape[:-1], self.groups, each))
        found = rows.dot(columns, (places, places), ([last + 1], [last]), out_dtype=dtype)
        return found.transpose((1, 2, 0, 3)).reshape(kernel.shape)


def _permute_type(kind: TensorType, order: Sequence[int]) -> TensorType:
    return kind.with_shape(kind.shape[axis] for axis in order)
