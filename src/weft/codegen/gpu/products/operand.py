"""An operand: a matrix in memory, windows of an image (implicit GEMM), or the filters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from weft.codegen.gpu.ir.frame import LARGEST_STEP, WINDOW_CORNERS
from weft.codegen.gpu.ir.swizzle import Major
from weft.codegen.gpu.products.walks import (
    ROW,
    Axes,
    Walk,
    filter_walk,
    image_walk,
    turned_back,
)
from weft.foundation.dtypes import DType
from weft.foundation.errors import Finding
from weft.foundation.index_expr import Expr, coefficient, constant, linear, substitute
from weft.foundation.records import dataclass
from weft.memory.ir import MemRef
from weft.region.form import Image
from weft.region.ir import Let, Read

MOST_AXES: Final = 5
"""Of a tensor that the copy engine reads."""


class Refusal(Exception):
    """Why a kernel, or a plan for it, cannot be carried out by a template."""

    def __init__(self, code: str, why: str, hint: str = "") -> None:
        self.finding = Finding(code, "", why, hint)
        super().__init__(str(self.finding))


@dataclass(frozen=True)
class Operand:
    """A[m, k] (rows are m) or B[k, n] (rows are n), in elements."""

    tensor: str
    dtype: DType
    offset: int
    outer: int
    inner: int
    batch: tuple[int, ...]
    walk: Walk | None = None
    """How it is read where it is no matrix in memory."""

    @property
    def major(self) -> Major:
        return Major.K if self.inner == 1 else Major.MN

    @property
    def pitch(self) -> int:
        """The stride of the axis that is not contiguous."""
        return self.outer if self.major is Major.K else self.inner


def image_operand(
    let: Let, refs: Mapping[str, MemRef], image: Image, axes: Axes, row: int = ROW
) -> Operand:
    """An operand that is windows of an image; `row` are the bytes of a row of its copies."""
    assert isinstance(let.expr, Read)
    ref, item = refs[let.expr.tensor], let.dtype.storage_bytes
    single = {name: constant(0) for name, size in axes.sizes.items() if size == 1}
    index = [substitute(expr, single) for expr in let.expr.index]
    walk, start = image_walk(image, index, ref, axes, row // item)
    strides = ref.strides[: image.moved[0].dim]
    follow = zip(strides, strides[1:], ref.shape[1:], strict=False)
    if ref.strides[-1] != 1 or any(a != b * size for a, b, size in follow):
        raise Refusal("OperandStride", "the image does not lie in memory as its axes say")
    if walk.whole and walk.whole % (ROW // item):
        why = f"{walk.whole} channels are not whole rows of {ROW} bytes, a tap of filters each"
        raise Refusal("ImageChannels", why)
    channels = axes.sizes[image.channels]
    if channels % (row // item) and channels != walk.sizes[0]:
        why = (
            f"{channels} channels of an image of {ref.shape[-1]} are not whole rows of {row} bytes"
        )
        raise Refusal("ImageChannels", why)
    _check_window(image, walk, axes.sizes)
    address = linear(index, ref.strides)
    batch = tuple(coefficient(address, name) for name in axes.batch)
    along_k = image.is_summed
    pitch = walk.strides[0]
    outer, inner = (pitch, 1) if along_k else (1, pitch)
    return Operand(let.expr.tensor, let.dtype, start, outer, inner, batch, walk)


def _check_window(image: Image, walk: Walk, sizes: Mapping[str, int]) -> None:
    """Windows that the copy engine has numbers for."""
    assert walk.window is not None
    rank = len(walk.sizes)
    low, high = WINDOW_CORNERS[rank]
    corners = (*walk.window.lower, *walk.window.upper)
    reach = [
        (sizes[axis.tap] - 1) * axis.dilation
        + (axis.phase.shift * (axis.phase.step - 1) if axis.phase else 0)
        for axis in image.moved
        if axis.tap
    ]
    if any(not low <= corner <= high for corner in corners) or any(r > high - low for r in reach):
        raise Refusal("ImageWindow", f"windows reach further over the image than {-low} elements")
    if max(walk.window.steps) > LARGEST_STEP:
        raise Refusal("ImageWindow", f"windows are more than {LARGEST_STEP} elements apart")


def filter_operand(
    operand: Operand, address: Expr, image: Image, axes: Axes, row: int = ROW
) -> Operand:
    """An operand whose rows are met by the windows of an image, tap by tap."""
    walk = filter_walk(image, address, axes, row // operand.dtype.storage_bytes)
    along_k = axes.sizes[image.channels] == 1 or coefficient(address, image.channels) == 1
    if len(walk.sizes) > MOST_AXES:
        raise Refusal("BatchAxes", f"filters have more than {MOST_AXES} axes")
    outer, inner = (walk.strides[0], 1) if along_k else (1, walk.strides[0])
    start = operand.offset + turned_back(image, address, axes)
    if not along_k and operand.outer != 1:
        raise Refusal("OperandStride", "neither channels nor columns of the filters are contiguous")
    return replace(operand, offset=start, outer=outer, inner=inner, walk=walk)
