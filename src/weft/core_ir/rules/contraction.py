"""Type rules of sums of products: vectors, matrices, and images under a moving kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft.core_ir import suggest
from weft.core_ir.instructions import Padding, padding_of, wholes
from weft.core_ir.rules.checks import Attributes, broadcast, not_negative, same_dtype
from weft.core_ir.types import Shape, TensorType, show_shape
from weft.foundation.errors import SpecViolation


def dot(attributes: Attributes, types: Sequence[TensorType], opcode: str) -> TensorType:
    lhs, rhs = types
    for name, kind in (("first", lhs), ("second", rhs)):
        if kind.rank not in (1, 2):
            raise SpecViolation(
                "E3002",
                f"the {name} operand of Dot has rank {kind.rank}, not 1 or 2",
                "MatMul takes more axes" if kind.rank else "Mul multiplies by a scalar",
            )
    if lhs.rank == rhs.rank == 2:
        return matmul(attributes, types, opcode)
    dtype = same_dtype(types, opcode)
    if lhs.shape[-1] != rhs.shape[0]:
        raise SpecViolation(
            "E3003",
            f"the inner sizes of {show_shape(lhs.shape)} and {show_shape(rhs.shape)} "
            f"differ: {lhs.shape[-1]} and {rhs.shape[0]}",
            f"{show_shape((lhs.shape[-1], *rhs.shape[1:]))} would fit",
        )
    return TensorType(dtype, (*lhs.shape[:-1], *rhs.shape[1:]))


def matmul(attributes: Attributes, types: Sequence[TensorType], opcode: str) -> TensorType:
    lhs, rhs = types
    for name, kind in (("first", lhs), ("second", rhs)):
        if kind.rank < 2:
            raise SpecViolation(
                "E3002",
                f"the {name} operand of {opcode} has rank {kind.rank}, at least 2 is needed",
                "Dot takes vectors" if kind.rank else "Mul multiplies by a scalar",
            )
    dtype = same_dtype(types, opcode)
    if lhs.shape[-1] != rhs.shape[-2]:
        raise SpecViolation(
            "E3003",
            f"the inner sizes of {show_shape(lhs.shape)} and {show_shape(rhs.shape)} "
            f"differ: {lhs.shape[-1]} and {rhs.shape[-2]}",
            suggest.fitting_product(lhs.shape, rhs.shape),
        )
    batch = broadcast(lhs.shape[:-2], rhs.shape[:-2], opcode)
    return TensorType(dtype, (*batch, lhs.shape[-2], rhs.shape[-1]))


# -- convolution ---------------------------------------------------------------------------------


class Window(NamedTuple):
    """How a kernel moves over one spatial axis."""

    kernel: int
    stride: int
    low: int
    high: int
    positions: int


def windows(
    input_shape: Shape, filter_shape: Shape, strides: Sequence[int], padding: Padding
) -> tuple[Window, Window]:
    """The windows over height and width of a convolution that is well formed."""
    if len(strides) != 2 or any(stride < 1 for stride in strides):
        raise SpecViolation(
            "E4010",
            f"the strides {show_shape(strides)} must be two positive numbers",
            f"{show_shape([max(s, 1) for s in (*strides, 1, 1)][:2])} would do",
        )
    if padding.kind == "Custom" and (
        len(padding.pairs) != 2 or any(len(pair) != 2 or min(pair) < 0 for pair in padding.pairs)
    ):
        raise SpecViolation(
            "E4010",
            f"the padding {padding} must be two pairs of non-negative numbers",
            "Custom([[0, 0], [0, 0]]) pads nothing",
        )
    return (
        _make_window("height", input_shape[1], filter_shape[0], strides[0], padding, 0),
        _make_window("width", input_shape[2], filter_shape[1], strides[1], padding, 1),
    )


def _make_window(
    name: str, size: int, kernel: int, stride: int, padding: Padding, position: int
) -> Window:
    if kernel < 1:
        raise SpecViolation(
            "E3006", f"the filter has {name} {kernel}", "a kernel has at least one element"
        )
    low, high = _padding_around(size, kernel, stride, padding, position)
    free = size + low + high - kernel
    if free < 0 and padding.kind == "Same":
        return Window(kernel, stride, low, high, 0)
    if free < 0:
        raise SpecViolation(
            "E4010",
            f"a kernel of {name} {kernel} does not fit in {size} padded by {low} and {high}",
            "pad with Same, or with more",
        )
    return Window(kernel, stride, low, high, free // stride + 1)


def _padding_around(
    size: int, kernel: int, stride: int, padding: Padding, position: int
) -> tuple[int, int]:
    if padding.kind == "Valid":
        return 0, 0
    if padding.kind == "Custom":
        low, high = padding.pairs[position]
        return low, high
    positions = -(-size // stride)
    total = max((positions - 1) * stride + kernel - size, 0) if positions else 0
    return total // 2, total - total // 2


def _images(x: TensorType, kernel: TensorType, opcode: str) -> None:
    for name, kind, layout in (("input", x, "NHWC"), ("filter", kernel, "HWCF")):
        if kind.rank != 4:
            raise SpecViolation(
                "E3002",
                f"the {name} of {opcode} has rank {kind.rank}, not 4",
                f"its layout is {layout}",
            )
    if x.shape[3] != kernel.shape[2]:
        turned = show_shape((*kernel.shape[:2], kernel.shape[3], kernel.shape[2]))
        hint = f"channels come third: {turned} would fit"
        raise SpecViolation(
            "E4009",
            f"the input {show_shape(x.shape)} has {x.shape[3]} channels, the filter "
            f"{show_shape(kernel.shape)} takes {kernel.shape[2]}",
            hint
            if kernel.shape[3] == x.shape[3]
            else "axis 3 of the input and axis 2 of the filter are the channels",
        )


def conv2d(attributes: Attributes, types: Sequence[TensorType], opcode: str) -> TensorType:
    x, kernel = types
    dtype = same_dtype(types, opcode)
    _images(x, kernel, opcode)
    rows, columns = windows(
        x.shape, kernel.shape, wholes(attributes, "strides"), padding_of(attributes)
    )
    shape = (x.shape[0], rows.positions, columns.positions, kernel.shape[3])
    return TensorType(dtype, shape)


def conv2d_backward_input(
    attributes: Attributes, types: Sequence[TensorType], opcode: str
) -> TensorType:
    gradient, kernel = types
    shape = wholes(attributes, "shape")
    not_negative(shape, opcode)
    x = TensorType(same_dtype(types, opcode), shape)
    _agrees(conv2d(attributes, (x, kernel), "Conv2d"), gradient, opcode)
    return x


def conv2d_backward_filter(
    attributes: Attributes, types: Sequence[TensorType], opcode: str
) -> TensorType:
    x, gradient = types
    shape = wholes(attributes, "shape")
    not_negative(shape, opcode)
    kernel = TensorType(same_dtype(types, opcode), shape)
    _agrees(conv2d(attributes, (x, kernel), "Conv2d"), gradient, opcode)
    return kernel


def _agrees(forward: TensorType, gradient: TensorType, opcode: str) -> None:
    if forward.shape != gradient.shape:
        raise SpecViolation(
            "E3003",
            f"the gradient of {opcode} has the shape {show_shape(gradient.shape)}, the "
            f"convolution gives {show_shape(forward.shape)}",
            "both have one shape",
        )
