"""Activations: softmax and its relatives, and the pointwise functions between layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weft.foundation.dtypes import F32, FLOATS
from weft.ops.functional.capture import capture
from weft.ops.functional.checks import (
    Checked,
    ensure_axis_in_bounds,
    ensure_dtype,
    ensure_tensor,
)
from weft.ops.functional.registry import functional
from weft.ops.session import Handle, Session
from weft.ops.tensor import Tensor, tensor_method
from weft.ptir import library


@dataclass(frozen=True)
class AxisChecked(Checked):
    """An op along one axis."""

    axis: int


@dataclass(frozen=True)
class PointwiseChecked(Checked):
    """A pointwise op with up to two numbers."""

    first: float = 0.0
    second: float = 0.0


def check_along_axis(x: Any, axis: Any) -> AxisChecked:
    tensor = ensure_tensor("x", x)
    ensure_dtype("x", tensor, FLOATS, "floats")
    return AxisChecked(ensure_axis_in_bounds("x", tensor, axis))


def check_pointwise(x: Any, first: float = 0.0, second: float = 0.0) -> PointwiseChecked:
    ensure_dtype("x", ensure_tensor("x", x), FLOATS, "floats")
    return PointwiseChecked(float(first), float(second))


# -- along an axis -------------------------------------------------------------------------------


def capture_softmax(s: Session, checked: AxisChecked, x: Handle) -> Handle:
    return library.softmax(s, x, checked.axis)


@tensor_method
@functional
def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """`exp(x - max) / sum(exp(x - max))` along an axis; f16 and bf16 are computed in f32."""
    return capture(capture_softmax, check_along_axis(x, axis), ensure_tensor("x", x))


def capture_log_softmax(s: Session, checked: AxisChecked, x: Handle) -> Handle:
    wide = s.cast(x, x.dtype if x.dtype.bits >= 32 else F32)
    largest = wide.reduce_max([checked.axis], keepdims=True).broadcast_to(wide.shape)
    shifted = wide - largest
    total = shifted.exp().reduce_sum([checked.axis], keepdims=True)
    return s.cast(shifted - total.log().broadcast_to(wide.shape), x.dtype)


@tensor_method
@functional
def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """`log(softmax(x))`, computed without the detour: `x - max - log(sum(exp(x - max)))`."""
    return capture(capture_log_softmax, check_along_axis(x, axis), ensure_tensor("x", x))
