"""Arithmetic, comparisons, logic, bits, casts: one element at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, Final

import numpy as np

from weft.foundation.dtypes import BF16, F16, F32, F64, FP8_E4M3, FP8_E5M2, I1, DType, as_dtype
from weft.foundation.errors import Unimplemented
from weft.interop.onnx.table import Call, rule
from weft.interop.onnx.tensors import dtype_numbered
from weft.interop.onnx.values import Value, array, axis_in, dtype_of, is_array, value_as_tensor, wf
from weft.ops.tensor import Tensor

_UNARY: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "Abs": wf.abs, "Neg": wf.negative, "Ceil": wf.ceil, "Floor": wf.floor, "Round": wf.round,
    "Sqrt": wf.sqrt, "Exp": wf.exp, "Log": wf.log, "Sin": wf.sin, "Cos": wf.cos, "Tan": wf.tan,
    "Asin": wf.asin, "Acos": wf.acos, "Atan": wf.atan, "Sinh": wf.sinh, "Cosh": wf.cosh,
    "Tanh": wf.tanh, "Asinh": wf.asinh, "Acosh": wf.acosh, "Atanh": wf.atanh, "Erf": wf.erf,
    "Reciprocal": wf.reciprocal, "Not": wf.logical_not, "BitwiseNot": wf.bitwise_invert,
    "IsNaN": wf.isnan,
}  # fmt: skip
_BINARY: Final[dict[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "Add": wf.add, "Sub": wf.subtract, "Mul": wf.multiply, "Equal": wf.equal, "Less": wf.less,
    "LessOrEqual": wf.less_equal, "Greater": wf.greater, "GreaterOrEqual": wf.greater_equal,
    "And": wf.logical_and, "Or": wf.logical_or, "Xor": wf.logical_xor,
    "BitwiseAnd": wf.bitwise_and, "BitwiseOr": wf.bitwise_or, "BitwiseXor": wf.bitwise_xor,
}  # fmt: skip


def _enter_unary(name: str, function: Callable[[Tensor], Tensor]) -> None:
    @rule(name)
    def unary(call: Call, x: Tensor) -> Value:
        return function(x)


def _enter_binary(name: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
    @rule(name)
    def binary(call: Call, x: Tensor, y: Tensor) -> Value:
        return function(x, _align_second(call, x, y))


for _name, _function in _UNARY.items():
    _enter_unary(_name, _function)
for _name, _pair in _BINARY.items():
    _enter_binary(_name, _pair)


def _align_second(call: Call, x: Tensor, y: Tensor) -> Value:
    """The second operand; before version 7 it may begin at an axis of the first."""
    if call.version >= 7 or not call.attr("broadcast", 0) or "axis" not in call.node.attributes:
        return y
    axis = axis_in(call.attr("axis"), x.ndim)
    return y.reshape((*y.shape, *[1] * (x.ndim - axis - y.ndim)))


@rule("Identity", raw=True)
def identity(call: Call, x: Value) -> Value:
    return x


@rule("Sign")
def sign(call: Call, x: Tensor) -> Value:
    return wf.sign(x)


@rule("Div")
def div(call: Call, x: Tensor, y: Tensor) -> Value:
    y = _align_second(call, x, y)
    return wf.divide(x, y) if x.dtype.is_float else wf.divide(x, y, rounding="trunc")


@rule("Mod")
def mod(call: Call, x: Tensor, y: Tensor) -> Value:
    return wf.fmod(x, y) if call.attr("fmod", 0) else wf.remainder(x, y)


@rule("Pow")
def power(call: Call, x: Tensor, y: Tensor) -> Value:
    y = _align_second(call, x, y)
    if x.dtype is y.dtype:
        return wf.pow(x, y)
    if x.dtype.is_float:
        wide = x.dtype if y.dtype.is_integer or y.dtype.bits <= x.dtype.bits else y.dtype
        return wf.pow(x.astype(wide), y.astype(wide)).astype(x.dtype)
    if y.dtype.is_float:
        return wf.pow(x.astype(F64), y.astype(F64)).astype(x.dtype)
    return wf.pow(x, wrapped(y, x.dtype))


@rule("Max")
def largest(call: Call, *x: Tensor) -> Value:
    return reduce(wf.maximum, x)


@rule("Min")
def smallest(call: Call, *x: Tensor) -> Value:
    return reduce(wf.minimum, x)


@rule("Sum")
def total(call: Call, *x: Tensor) -> Value:
    return reduce(wf.add, x)


@rule("Mean")
def mean(call: Call, *x: Tensor) -> Value:
    return reduce(wf.add, x) / len(x)


@rule("Where")
def where(call: Call, condition: Tensor, x: Tensor, y: Tensor) -> Value:
    return wf.where(condition, x, y)


@rule("IsInf")
def is_inf(call: Call, x: Tensor) -> Value:
    found = wf.isinf(x)
    if not call.attr("detect_negative", 1):
        found = wf.logical_and(found, x > 0)
    if not call.attr("detect_positive", 1):
        found = wf.logical_and(found, x < 0)
    return found


@rule("BitShift")
def bit_shift(call: Call, x: Tensor, y: Tensor) -> Value:
    """A shift under 0, or by the width or more, leaves nothing but the sign."""
    left = call.choice("direction", "", ("LEFT", "RIGHT")) == "LEFT"
    over = wf.greater_equal(y, wf.full_like(y, x.dtype.bits))
    over = wf.logical_or(over, y < 0) if y.dtype.is_signed else over
    if left:
        made = wf.bitwise_left_shift(x, wf.where(over, wf.zeros_like(y), y))
        return wf.where(over, wf.zeros_like(made), made)
    last = wf.full_like(y, x.dtype.bits - 1)
    made = wf.bitwise_right_shift(x, wf.where(over, last, y))
    return made if x.dtype.is_signed else wf.where(over, wf.zeros_like(made), made)


@rule("BitCast")
def bit_cast(call: Call, x: Tensor) -> Value:
    to = dtype_numbered(call.need("to"))
    if I1 in (x.dtype, to):  # a byte that is 0 or 1
        return wf.not_equal(x, 0) if to is I1 else wf.bitcast(x.astype(as_dtype("ui8")), to)
    return wf.bitcast(x, to)


# -- casts -----------------------------------------------------------------------------------------


@rule("Cast", raw=True)
def cast(call: Call, x: Value) -> Value:
    return _cast(call, x, call.need("to"))


@rule("CastLike", raw=True)
def cast_like(call: Call, x: Value, like: Value) -> Value:
    if is_array(like) and like.dtype == object:
        raise Unimplemented("CastLike", "there are no tensors of strings")
    return _cast(call, x, dtype_of(like))


def _cast(call: Call, x: Value, to: int | DType) -> Value:
    wanted = dtype_numbered(to) if isinstance(to, int) else to
    saturate = bool(call.attr("saturate", 1))
    if not is_array(x):
        return converted(value_as_tensor(x), wanted, saturate)
    if x.dtype == object:
        if not wanted.is_float:
            raise Unimplemented("Cast", "strings are not read as integers")
        return np.array([float(each) for each in x.reshape(-1)], wanted.numpy).reshape(x.shape)
    with wf.graph(backend="reference"):
        return array(converted(value_as_tensor(x), wanted, saturate))


def converted(x: Tensor, to: DType, saturate: bool = True) -> Value:
    """ONNX's cast: integers wrap, and floats of eight bits saturate."""
    if to is x.dtype:
        return x
    if to is I1:
        return wf.not_equal(x, 0)
    if to in (FP8_E4M3, FP8_E5M2) and not x.dtype.is_integer and saturate and x.dtype is not I1:
        most = 448.0 if to is FP8_E4M3 else 57344.0
        if x.dtype in (FP8_E4M3, FP8_E5M2):
            x = x.astype(F32)
        x = wf.clip(x, -most, most)
    if to.is_integer and x.dtype.is_integer:
        return wrapped(x, to)
    if to.is_integer and to.bits == 4 and x.dtype.is_float:
        return wrapped(x.astype(as_dtype("si32")), to)
    return x.astype(to)


def wrapped(x: Tensor, to: DType) -> Value:
    """An integer in another dtype; one that does not fit keeps its low bits."""
    if to.bits > x.dtype.bits and not (x.dtype.is_signed and not to.is_signed):
        return x.astype(to)
    if to.bits == x.dtype.bits:
        return wf.bitcast(x, to)
    if to.bits > x.dtype.bits:  # a negative number in a wider dtype without a sign
        return wf.bitcast(x.astype(as_dtype(f"si{to.bits}")), to)
    unsigned = as_dtype(f"ui{x.dtype.bits}")
    low = wf.bitcast(x, unsigned) if x.dtype.is_signed else x
    mask = (1 << to.bits) - 1
    low = wf.bitwise_and(low, value_as_tensor(np.array(mask, unsigned.numpy)))
    if to.is_signed and to.bits < 8:
        small = low.astype(as_dtype("si8"))
        return wf.where(small >= 1 << (to.bits - 1), small - (1 << to.bits), small).astype(to)
    narrow = low.astype(as_dtype(f"ui{to.bits}"))
    return wf.bitcast(narrow, to) if to.is_signed else narrow


# -- numbers from attributes -----------------------------------------------------------------------


def scalar_like(x: Tensor, value: Any) -> Value:
    """A number as a tensor of the dtype of x."""
    return wf.full((), value, dtype=x.dtype)


def widened(x: Tensor) -> Value:
    """Floats of 16 and 8 bits as f32."""
    return x.astype(F32) if x.dtype in (F16, BF16, FP8_E4M3, FP8_E5M2) else x
