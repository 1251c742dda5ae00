"""Piecewise pointwise functions: a select chooses the piece of each element, and the gradient is
that of the chosen piece, so that it exists at every element."""

from __future__ import annotations

from typing import Any

from weft.foundation.errors import SpecViolation
from weft.ops.arithmetic import listed
from weft.ops.functional.activation import PointwiseChecked, check_pointwise, rounded_once
from weft.ops.functional.capture import capture
from weft.ops.functional.checks import (
    ensure_axis_in_bounds,
    ensure_same_dtype,
    ensure_tensor,
    wrong_value,
)
from weft.ops.functional.registry import functional
from weft.ops.session import Handle, Session
from weft.ops.tensor import Tensor, tensor_method


def _checked_number(name: str, value: Any, least: float | None = None) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_value(name, value, "it must be a number")
    if least is not None and not value >= least:
        raise wrong_value(name, value, f"it must be at least {least:g}")
    return float(value)


@rounded_once
def capture_celu(s: Session, checked: PointwiseChecked, x: Handle) -> Handle:
    alpha, positive = checked.first, x.compare("greater", 0.0)
    # Where x is large, exp(x) - 1 overflows: what is not chosen is kept finite.
    below = (s.select(positive, s.full(0.0, x.dtype, x.shape), x) / alpha).expm1() * alpha
    return s.select(positive, x, below)


@tensor_method
@functional
def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x where it is positive, and `alpha * (exp(x / alpha) - 1)` elsewhere."""
    if _checked_number("alpha", alpha) == 0:
        raise wrong_value("alpha", alpha, "it must be a number other than 0")
    return capture(capture_celu, check_pointwise(x, alpha), ensure_tensor("x", x))


def capture_hardtanh(s: Session, checked: PointwiseChecked, x: Handle) -> Handle:
    low, high = (s.full(bound, x.dtype, x.shape) for bound in (checked.first, checked.second))
    above = s.select(x.compare("greater_equal", high), high, x)
    return s.select(x.compare("less_equal", low), low, above)


@tensor_method
@functional
def hardtanh(x: Tensor, low: float = -1.0, high: float = 1.0) -> Tensor:
    """x between the two bounds, and the nearer bound elsewhere; the gradient is 0 at the bounds."""
    checked = check_pointwise(x, _checked_number("low", low), _checked_number("high", high, low))
    return capture(capture_hardtanh, checked, ensure_tensor("x", x))


def capture_threshold(s: Session, checked: PointwiseChecked, x: Handle) -> Handle:
    value = s.full(checked.second, x.dtype, x.shape)
    return s.select(x.compare("less_equal", checked.first), value, x)


@tensor_method
@functional
def threshold(x: Tensor, threshold: float, value: float) -> Tensor:
    """x where it is above the threshold, and `value` elsewhere."""
    checked = check_pointwise(
        x, _checked_number("threshold", threshold), _checked_number("value", value)
    )
    return capture(capture_threshold, checked, ensure_tensor("x", x))


def capture_hardshrink(s: Session, checked: PointwiseChecked, x: Handle) -> Handle:
    small = x.abs().compare("less_equal", checked.first)
    return s.select(small, s.full(0.0, x.dtype, x.shape), x)


@tensor_method
@functional
def hardshrink(x: Tensor, width: float = 0.5) -> Tensor:
    """0 where `|x|` is at most `width`, and x elsewhere."""
    checked = check_pointwise(x, _checked_number("width", width))
    return capture(capture_hardshrink, checked, ensure_tensor("x", x))


def capture_softshrink(s: Session, checked: PointwiseChecked, x: Handle) -> Handle:
    width, zero = checked.first, s.full(0.0, x.dtype, x.shape)
    below = s.select(x.compare("less", -width), x + width, s.select(x.isnan(), x, zero))
    return s.select(x.compare("greater", width), x - width, below)


@tensor_method
@functional
def softshrink(x: Tensor, width: float = 0.5) -> Tensor:
    """x moved towards 0 by `width`, and 0 where it would pass."""
    checked = check_pointwise(x, _checked_number("width", width, 0))
    return capture(capture_softshrink, checked, ensure_tensor("x", x))


@rounded_once
def capture_tanhshrink(s: Session, checked: PointwiseChecked, x: Handle) -> Handle:
    return x - x.tanh()


@tensor_method
@functional
def tanhshrink(x: Tensor) -> Tensor:
    """`x - tanh(x)`."""
    return capture(capture_tanhshrink, check_pointwise(x), ensure_tensor("x", x))


@rounded_once
def capture_softsign(s: Session, checked: PointwiseChecked, x: Handle) -> Handle:
    return x / (x.abs() + 1.0)


@tensor_method
@functional
def softsign(x: Tensor) -> Tensor:
    """`x / (1 + |x|)`."""
    return capture(capture_softsign, check_pointwise(x), ensure_tensor("x", x))


@rounded_once
def capture_quick_gelu(s: Session, checked: PointwiseChecked, x: Handle) -> Handle:
    return x * ((x * -1.702).exp() + 1.0).reciprocal()


@tensor_method
@functional
def quick_gelu(x: Tensor) -> Tensor:
    """`x * sigmoid(1.702 * x)`, an approximation of gelu."""
    return capture(capture_quick_gelu, check_pointwise(x), ensure_tensor("x", x))


def capture_prelu(s: Session, checked: PointwiseChecked, x: Handle, slope: Handle) -> Handle:
    shape = [1] * x.rank
    if slope.rank:
        shape[int(checked.first)] = slope.tensor.static_shape[0]
    wide = slope.reshape(shape).broadcast_to(x.shape)
    return s.select(x.compare("greater", 0.0), x, x * wide)


@tensor_method
@functional
def prelu(x: Tensor, slope: Tensor, axis: int = 1) -> Tensor:
    """x where it is positive, and `slope * x` elsewhere: one slope, or one for each channel along
    `axis`."""
    tensor, slopes = ensure_tensor("x", x), ensure_tensor("slope", slope)
    checked = check_pointwise(x)
    ensure_same_dtype("x", tensor, "slope", slopes)
    one = slopes.shape in ((), (1,))
    at = 0 if one else ensure_axis_in_bounds("x", tensor, axis)
    if not one and (slopes.ndim != 1 or slopes.shape[0] != tensor.shape[at]):
        raise SpecViolation(
            "ShapeMismatch",
            f"slope {listed(slopes.shape)} does not go with axis {at} of x {listed(tensor.shape)}",
            "give one slope, or one for each channel",
        )
    checked = PointwiseChecked(float(at))
    return capture(capture_prelu, checked, tensor, slopes.reshape(()) if one else slopes)
