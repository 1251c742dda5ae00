"""Activations: softmax and its relatives, and the pointwise functions between layers.

Where a formula adds 1 to something small or rounds on its way, f16 and bf16 would lose their small
values: such functions are computed in f32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeAlias, TypeVar

from weft.foundation.dtypes import FLOATS
from weft.foundation.errors import SpecViolation
from weft.ops.arithmetic import listed
from weft.ops.array.movement import window
from weft.ops.functional.capture import capture, widened
from weft.ops.functional.checks import (
    Checked,
    ensure_axes,
    ensure_axis_in_bounds,
    ensure_choice,
    ensure_dtype,
    ensure_known,
    ensure_tensor,
    wrong_value,
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


C = TypeVar("C", bound=Checked)
Formula: TypeAlias = Callable[[Session, C, Handle], Handle]


def rounded_once(formula: Formula[C]) -> Formula[C]:
    """The formula computed in f32 at least, and its result in the dtype of x."""

    @wraps(formula)
    def in_f32(s: Session, checked: C, x: Handle) -> Handle:
        return s.cast(formula(s, checked, widened(x)), x.dtype)

    return in_f32


def check_along_axis(x: Any, axis: Any) -> AxisChecked:
    tensor = ensure_tensor("x", x)
    ensure_dtype("x", tensor, FLOATS, "floats")
    return AxisChecked(ensure_axis_in_bounds("x", tensor, axis))


def check_pointwise(x: Any, first: float = 0.0, second: float = 0.0) -> PointwiseChecked:
    ensure_dtype("x", ensure_tensor("x", x), FLOATS, "floats")
    return PointwiseChecked(float(first), float(second))


# -- along an axis -------------------------------------------------------------------------------


def capture_softmax(s: Session, checked: AxisChecked, x: Handle) -> Handle:
    return library.softmax(x, checked.axis)


@tensor_method
@functional
def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """`exp(x - max) / sum(exp(x - max))` along an axis; f16 and bf16 are computed in f32."""
    return capture(capture_softmax, check_along_axis(x, axis), ensure_tensor("x", x))


@tensor_method
@functional
def softmin(x: Tensor, axis: int = -1) -> Tensor:
    """`softmax(-x)`: the smallest element counts most."""
    value = ensure_tensor("x", x)
    return capture(capture_softmax, check_along_axis(x, axis), -value)


@rounded_once
def capture_log_softmax(s: Session, checked: AxisChecked, x: Handle) -> Handle:
    largest = x.reduce_max([checked.axis], keepdims=True).broadcast_to(x.shape)
    # log(softmax(x)) by way of the quotient would be -Inf where the quotient is too small for a
    # float.
    shifted = x - largest
    total = shifted.exp().reduce_sum([checked.axis], keepdims=True)
    return shifted - total.log().broadcast_to(x.shape)


@tensor_method
@functional
def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """`log(softmax(x))`, computed directly as `x - max - log(sum(exp(x - max)))`."""
    return capture(capture_log_softmax, check_along_axis(x, axis), ensure_tensor("x", x))


@dataclass(frozen=True)
class LogSumExpChecked(Checked):
    """Which axes are summed, and whether they stay with size 1."""

    axes: tuple[int, ...]
    keepdims: bool


def check_logsumexp(x: Any, axis: Any, keepdims: Any) -> LogSumExpChecked:
    tensor = ensure_tensor("x", x)
    ensure_dtype("x", tensor, FLOATS, "floats")
    return LogSumExpChecked(ensure_axes("x", tensor, axis), bool(keepdims))


@rounded_once
def capture_logsumexp(s: Session, checked: LogSumExpChecked, x: Handle) -> Handle:
    largest = x.reduce_max(checked.axes, keepdims=True)
    # Where the largest is infinite, the difference to itself would be NaN.
    finite = largest.isfinite()
    shift = s.select(finite, largest, s.full(0.0, x.dtype, largest.shape))
    total = (x - shift.broadcast_to(x.shape)).exp().reduce_sum(checked.axes, keepdims=True)
    found = total.log() + shift
    if checked.keepdims:
        return found
    return found.reshape([d for a, d in enumerate(x.shape) if a not in checked.axes])


@tensor_method
@functional
def logsumexp(x: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """`log(sum(exp(x)))` over some axes or all, without overflow; -Inf for no elements."""
    checked = check_logsumexp(x, axis, keepdims)
    return capture(capture_logsumexp, checked, ensure_tensor("x", x))


# -- one element at a time -----------------------------------------------------------------------


def _rectify_by_choice(s: Session, x: Handle) -> Handle:
    """`max(x, 0)` as a choice: the derivative at 0 is 0, where `maximum` would give half of it."""
    return s.select(x.compare("less_equal", 0.0), s.full(0.0, x.dtype, x.shape), x)


def _up_to_six(s: Session, x: Handle) -> Handle:
    """`min(max(x, 0), 6)`, with the derivative 0 at both ends."""
    six = s.full(6.0, x.dtype, x.shape)
    return s.select(x.compare("greater_equal", six), six, _rectify_by_choice(s, x))


def capture_relu(s: Session, checked: PointwiseChecked, x: Handle) -> Handle:
    return _rectify_by_choice(s, x)


@tensor_method
@functional
def relu(x: Tensor) -> Tensor:
    """`max(x, 0)`, +0 for -0; NaN stays NaN. The derivative at 0 is 0."""
    return capture(capture_relu, check_pointwise(x), ensure_tensor("x", x))


def capture_relu6(s: Session, checked: PointwiseChecked, x: Handle) -> Handle:
    return _up_to_six(s, x)


@tensor_method
@functional
def relu6(x: Tensor) -> Tensor:
    """`min(max(x, 0), 6)`."""
    return capture(capture_relu6, check_pointwise(x), ensure_tensor("x", x))


@rounded_once
def capture_gelu(s: Session, checked: PointwiseChecked, x: Handle) -> Handle:
    return library.gelu(x)


@rounded_once
def capture_gelu_tanh(s: Session, checked: PointwiseChecked, x: Handle) -> Handle:
    inner = (x + x * x * x * 0.044715) * math.sqrt(2.0 / math.pi)
    return x * 0.5 * (inner.tanh() + 1.0)


@tensor_method
@functional
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """`0.5 * x * (1 + erf(x / sqrt(2)))`, or with `approximate="tanh"`
    `0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x³)))`; f16 and bf16 are computed in f32."""
    form = ensure_choice("approximate", approximate, ("none", "tanh"))
    emit = capture_gelu if form == "none" else capture_gelu_tanh
    return capture(emit, check_pointwise(x), ensure_tensor("x", x))


@rounded_once
def capture_silu(s: Session, checked: PointwiseChecked, x: Handle) -> Handle:
    return library.silu(x)


@tensor_method
@functional
def silu(x: Tensor) -> Tensor:
    """`x / (1 + exp(-x))`; f16 and bf16 are computed in f32."""
    return capture(capture_silu, check_pointwise(x), ensure_tensor("x", x))


def _sigmoid(x: Handle) -> Handle:
    return ((-x).exp() + 1.0).reciprocal()


@rounded_once
def capture_sigmoid(s: Session, checked: PointwiseChecked, x: Handle) -> Handle:
    return _sigmoid(x)


@tensor_method
@functional
def sigmoid(x: Tensor) -> Tensor:
    """`1 / (1 + exp(-x))`; f16 and bf16 are computed in f32."""
    return capture(capture_sigmoid, check_pointwise(x), ensure_tensor("x", x))


def _softplus(x: Handle) -> Handle:
    """`max(x, 0) + log1p(exp(-|x|))`: no overflow on either side."""
    return x.session.emit("maximum", x, 0.0) + (-x.abs()).exp().log1p()


@rounded_once
def capture_softplus(s: Session, checked: PointwiseChecked, x: Handle) -> Handle:
    beta = checked.first
    # Not log(1 + exp(x)) itself: of a large x the exponential overflows, of a small one adding 1
    # drops it.
    soft = _softplus(x * beta) / beta
    linear = (x * beta).compare("greater", checked.second)
    return s.select(linear, x, soft)


@tensor_method
@functional
def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """`log(1 + exp(beta * x)) / beta`, and x itself where `beta * x` is over the threshold."""
    checked = check_pointwise(x, _nonzero("beta", beta), threshold)
    return capture(capture_softplus, checked, ensure_tensor("x", x))


def _nonzero(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value == 0:
        raise wrong_value(name, value, "it must be a number other than 0")
    return float(value)


@rounded_once
def capture_log_sigmoid(s: Session, checked: PointwiseChecked, x: Handle) -> Handle:
    return -_softplus(-x)


@tensor_method
@functional
def log_sigmoid(x: Tensor) -> Tensor:
    """`log(1 / (1 + exp(-x)))`, without overflow."""
    return capture(capture_log_sigmoid, check_pointwise(x), ensure_tensor("x", x))


def capture_leaky_relu(s: Session, checked: PointwiseChecked, x: Handle) -> Handle:
    return s.select(x.compare("greater", 0.0), x, x * checked.first)


@tensor_method
@functional
def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """x where it is positive, and `negative_slope * x` elsewhere."""
    return capture(capture_leaky_relu, check_pointwise(x, negative_slope), ensure_tensor("x", x))


@rounded_once
def capture_elu(s: Session, checked: PointwiseChecked, x: Handle) -> Handle:
    alpha, scale = checked.first, checked.second
    positive = x.compare("greater", 0.0)
    # Where x is large, exp(x) - 1 overflows: what is not chosen is kept finite.
    below = s.select(positive, s.full(0.0, x.dtype, x.shape), x).expm1() * alpha
    return s.select(positive, x, below) * scale


@tensor_method
@functional
def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x where it is positive, and `alpha * (exp(x) - 1)` elsewhere."""
    return capture(capture_elu, check_pointwise(x, alpha, 1.0), ensure_tensor("x", x))


_SELU_ALPHA = 1.6732632423543772
_SELU_SCALE = 1.0507009873554805


@tensor_method
@functional
def selu(x: Tensor) -> Tensor:
    """`scale * elu(x, alpha)` with the two constants that keep mean and variance."""
    checked = check_pointwise(x, _SELU_ALPHA, _SELU_SCALE)
    return capture(capture_elu, checked, ensure_tensor("x", x))


@rounded_once
def capture_hardsigmoid(s: Session, checked: PointwiseChecked, x: Handle) -> Handle:
    return _up_to_six(s, x + 3.0) / 6.0


@tensor_method
@functional
def hardsigmoid(x: Tensor) -> Tensor:
    """`min(max(x + 3, 0), 6) / 6`."""
    return capture(capture_hardsigmoid, check_pointwise(x), ensure_tensor("x", x))


@rounded_once
def capture_hardswish(s: Session, checked: PointwiseChecked, x: Handle) -> Handle:
    # The product before the division could be infinite.
    return x * (_up_to_six(s, x + 3.0) / 6.0)


@tensor_method
@functional
def hardswish(x: Tensor) -> Tensor:
    """`x * min(max(x + 3, 0), 6) / 6`."""
    return capture(capture_hardswish, check_pointwise(x), ensure_tensor("x", x))


@rounded_once
def capture_mish(s: Session, checked: PointwiseChecked, x: Handle) -> Handle:
    return x * _softplus(x).tanh()


@tensor_method
@functional
def mish(x: Tensor) -> Tensor:
    """`x * tanh(log(1 + exp(x)))`."""
    return capture(capture_mish, check_pointwise(x), ensure_tensor("x", x))


def check_gated(x: Any, axis: Any) -> AxisChecked:
    checked = check_along_axis(x, axis)
    size = ensure_known("the gated axis", ensure_tensor("x", x).shape[checked.axis])
    if size % 2:
        raise SpecViolation(
            "ShapeMismatch",
            f"axis {checked.axis} of x {listed(x.shape)} has size {size}",
            "a gate needs two halves of equal size",
        )
    return checked


def _split_in_half(x: Handle, axis: int) -> tuple[Handle, Handle]:
    size = x.shape[axis]
    assert isinstance(size, int)
    half = size // 2
    return window(x, axis, 0, half), window(x, axis, half, half)


@rounded_once
def capture_glu(s: Session, checked: AxisChecked, x: Handle) -> Handle:
    value, gate = _split_in_half(x, checked.axis)
    return value * _sigmoid(gate)


@tensor_method
@functional
def glu(x: Tensor, axis: int = -1) -> Tensor:
    """The first half of an axis times the sigmoid of the second."""
    return capture(capture_glu, check_gated(x, axis), ensure_tensor("x", x))


@rounded_once
def capture_swiglu(s: Session, checked: AxisChecked, x: Handle) -> Handle:
    gate, value = _split_in_half(x, checked.axis)
    return library.silu(gate) * value


@tensor_method
@functional
def swiglu(x: Tensor, axis: int = -1) -> Tensor:
    """The silu of the first half of an axis times the second."""
    return capture(capture_swiglu, check_gated(x, axis), ensure_tensor("x", x))
