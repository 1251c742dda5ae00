"""Quantised tensors: exact integers, scales in their own dtype, ties to the even neighbour."""

from __future__ import annotations

from weft.foundation.dtypes import F32, F64, SI32, UI8, DType
from weft.foundation.errors import SpecViolation
from weft.interop.onnx.rules.convolution import convolve, less_zero_point
from weft.interop.onnx.rules.elementwise import converted
from weft.interop.onnx.table import Call, rule
from weft.interop.onnx.tensors import dtype_numbered
from weft.interop.onnx.values import Value, axis_in, wf
from weft.ops.tensor import Tensor


def _shape_to_meet(call: Call, value: Tensor, x: Tensor) -> Value:
    """A scale or zero point in a shape that meets x: one for all, for each place along an axis, or
    for each block of them."""
    if value.size == 1 and value.ndim < 2:
        return value.reshape(())
    axis = axis_in(call.attr("axis", 1), x.ndim)
    block = call.attr("block_size", 0)
    if value.ndim == 1 and not block:
        return value.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    if not block or value.ndim != x.ndim:
        raise SpecViolation("ShapeMismatch", f"scales {value.type} for {x.type}")
    parts = (*value.shape[: axis + 1], block, *value.shape[axis + 1 :])
    wide = wf.broadcast_to(wf.expand_dims(value, axis + 1), parts)
    shape = list(value.shape)
    shape[axis] = int(value.shape[axis]) * block
    whole = wide.reshape(tuple(shape))
    at = [slice(None)] * x.ndim
    at[axis] = slice(0, int(x.shape[axis]))
    return whole[tuple(at)]


def _saturate_to(x: Tensor, to: DType) -> Value:
    """Whole floats in an integer dtype: what does not fit is the nearest that does."""
    return wf.clip(x, float(to.lowest), float(to.highest)).astype(SI32).astype(to)


@rule("QuantizeLinear")
def quantize_linear(call: Call, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Value:
    number = call.attr("output_dtype", 0)
    to = zero.dtype if zero is not None else dtype_numbered(number) if number else UI8
    wide = dtype_numbered(call.attr("precision")) if call.attr("precision", 0) else scale.dtype
    ratio = x.astype(wide) / _shape_to_meet(call, scale, x).astype(wide)
    if to.is_float:
        return converted(ratio, to, bool(call.attr("saturate", 1)))
    steps = wf.round(ratio).astype(F64)
    if zero is not None:
        steps = steps + _shape_to_meet(call, zero, x).astype(F64)
    return _saturate_to(steps, to)


@rule("DequantizeLinear")
def dequantize_linear(call: Call, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Value:
    number = call.attr("output_dtype", 0)
    to = dtype_numbered(number) if number else scale.dtype
    steps = x.astype(F32) if x.dtype.is_float else x.astype(F64)
    if zero is not None:
        steps = steps - _shape_to_meet(call, zero, x).astype(steps.dtype)
    wide = scale.dtype if scale.dtype.bits > 16 else F32
    return (steps.astype(wide) * _shape_to_meet(call, scale, x).astype(wide)).astype(to)


@rule("MatMulInteger")
def mat_mul_integer(
    call: Call, a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Value:
    left = less_zero_point(a, a_zero, max(a.ndim - 2, 0))
    return wf.matmul(left, less_zero_point(b, b_zero, b.ndim - 1)).astype(SI32)


def _requantise_sum(total: Tensor, scale: Tensor, y_scale: Tensor, zero: Tensor) -> Value:
    """An exact sum of products in steps of the result."""
    wide = wf.divide(scale.astype(F32), y_scale.reshape(()).astype(F32))
    steps = wf.round(total.astype(F32) * wide).astype(F64)
    return _saturate_to(steps + zero.reshape(()).astype(F64), zero.dtype)


@rule("QLinearMatMul")
def qlinear_mat_mul(
    call: Call, a: Tensor, a_scale: Tensor, a_zero: Tensor, b: Tensor, b_scale: Tensor,
    b_zero: Tensor, y_scale: Tensor, y_zero: Tensor,
) -> Value:  # fmt: skip
    left = less_zero_point(a, a_zero, max(a.ndim - 2, 0))
    right = less_zero_point(b, b_zero, b.ndim - 1)
    rows = a_scale.reshape((-1, 1)) if a_scale.size != 1 else a_scale.reshape(())
    columns = b_scale.reshape((1, -1)) if b_scale.size != 1 else b_scale.reshape(())
    scale = rows.astype(F32) * columns.astype(F32)
    return _requantise_sum(wf.matmul(left, right), scale, y_scale, y_zero)


@rule("QLinearConv")
def qlinear_conv(
    call: Call, x: Tensor, x_scale: Tensor, x_zero: Tensor, weight: Tensor, w_scale: Tensor,
    w_zero: Tensor, y_scale: Tensor, y_zero: Tensor, bias: Tensor | None = None,
) -> Value:  # fmt: skip
    made = convolve(call, less_zero_point(x, x_zero), less_zero_point(weight, w_zero))
    each = [-1 if axis == 1 else 1 for axis in range(x.ndim)]
    if bias is not None:
        made = made + bias.astype(F64).reshape(each)
    scales = w_scale.reshape(each) if w_scale.size != 1 else w_scale.reshape(())
    return _requantise_sum(made, x_scale.reshape(()) * scales, y_scale, y_zero)


@rule("DynamicQuantizeLinear")
def dynamic_quantize_linear(call: Call, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    zero = wf.full((), 0.0, dtype=x.dtype)
    low, high = wf.minimum(wf.min(x), zero), wf.maximum(wf.max(x), zero)
    scale = (high - low) / 255.0
    # Zeros alone have the scale 0, and any other makes 0 of them.
    safe = wf.where(wf.equal(scale, 0), wf.ones_like(scale), scale)
    offset = _saturate_to(wf.round(wf.clip(-low / safe, 0.0, 255.0)), UI8)
    steps = wf.round(x / safe) + offset.astype(x.dtype)
    return _saturate_to(steps, UI8), scale, offset
