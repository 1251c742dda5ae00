"""Linear quantisation as in ONNX: `real = (quantised - zero_point) * scale`.

Scale and zero point are rank 0 (per tensor) or, where the op has an axis, rank 1 with one entry per
position of that axis.
"""

from __future__ import annotations

import numpy as np

from weft.foundation import numeric
from weft.foundation.axes import normalise_axis
from weft.foundation.dtypes import (
    F32,
    F64,
    FLOATS,
    FP8_E4M3,
    FP8_E5M2,
    SI4,
    SI8,
    SI16,
    SI32,
    UI4,
    UI8,
    UI16,
    DType,
    as_dtype,
)
from weft.ptir.op import Array, EvalContext, Op, core_op
from weft.ptir.rules import rank_is, same_dim, same_dtype, same_shape, violation
from weft.ptir.schema import OPTIONAL_DTYPE, DTypeOf, Maybe, Usize, attr
from weft.ptir.term import Cotangents, Pullback, Term
from weft.ptir.types import TensorType

WHOLE = frozenset({SI4, UI4, SI8, UI8, SI16, UI16})
"""The integers that quantisation makes."""

LARGEST = {FP8_E4M3: 448.0, FP8_E5M2: 57344.0}
"""The floats that quantisation makes, with the number at which each saturates."""

QUANTISED = WHOLE | frozenset(LARGEST)
"""What quantisation makes. si32, the accumulator of quantised dots, can only be read."""


@core_op(tag=33)
class Quantize(Op):
    """`saturate(round(x / scale) + zero_point)` in `output_dtype`, rounding halves to even. `scale`
    has the dtype of x and `zero_point` (default 0) the output dtype; both are rank 0, or with
    `axis` rank 1 of that axis's extent. The quotient is rounded to the dtype of the scale, as in
    ONNX without a `precision`; to divide more precisely, cast both first. NaN becomes 0.

    fp8 keeps fractions: `saturate(x / scale + zero_point)`, rounded once, to nearest even. ONNX
    has no zero point there, or one of 0. Infinities saturate too, at 448 or 57344; NaN stays."""

    operands = ("x", "scale", "zero_point?")
    dtypes = {"x": FLOATS, "scale": FLOATS, "zero_point": QUANTISED, "output_dtype": QUANTISED}
    relative_axes = {"axis": 0}
    no_gradient = "it is piecewise constant"

    output_dtype: DType = attr(DTypeOf())
    axis: int | None = attr(Maybe(Usize()))

    def infer(self, *types: TensorType) -> TensorType:
        x, scale, *rest = types
        same_dtype(x, scale, "x and scale")
        _check_parameter(scale, x, self.axis, "scale")
        for zero_point in rest:
            _check_zero_point(zero_point, scale, self.output_dtype, "zero_point", "scale")
        return x.with_dtype(self.output_dtype)

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        x, *parameters = args
        scale, *rest = (_shape_for_broadcast(a, x.ndim, self.axis) for a in parameters)
        quotient = numeric.compute(np.divide, as_dtype(x.dtype), x, scale)
        zero_point = _real(rest[0]) if rest else None
        return _round_to_steps(_real(quotient), zero_point, self.output_dtype)


@core_op(tag=34)
class Dequantize(Op):
    """`(x - zero_point) * scale` in `output_dtype` (default: the dtype of `scale`). `zero_point`
    (default 0) has the dtype of x; both parameters are rank 0, or with `axis` rank 1 of that axis's
    extent. The difference is exact for integers; that of fp8 and the product are taken in f32, or
    in f64 where the scale or the result is f64, and the product is rounded to the output dtype."""

    operands = ("x", "scale", "zero_point?")
    dtypes = {
        "x": QUANTISED | {SI32},
        "scale": FLOATS,
        "zero_point": QUANTISED | {SI32},
        "output_dtype": FLOATS,
    }
    relative_axes = {"axis": 0}

    axis: int | None = attr(Maybe(Usize()))
    output_dtype: DType | None = attr(OPTIONAL_DTYPE)

    def infer(self, *types: TensorType) -> TensorType:
        x, scale, *rest = types
        _check_parameter(scale, x, self.axis, "scale")
        for zero_point in rest:
            _check_zero_point(zero_point, scale, x.dtype, "zero_point", "scale")
        return x.with_dtype(self.output_dtype or scale.dtype)

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        x, scale, *rest = args
        output = self.output_dtype or as_dtype(scale.dtype)
        wide = F64 if F64 in (output, as_dtype(scale.dtype)) else F32
        scale, *rest = (_shape_for_broadcast(a, x.ndim, self.axis) for a in (scale, *rest))
        real = _dequantise(x, scale.astype(wide.numpy), rest[0] if rest else None)
        return numeric.cast(real, wide, output)

    def vjp(self, at: Pullback) -> Cotangents:
        """The scale has a gradient; x and its zero point have one if they are fp8."""
        x, scale, *rest = at.operands
        wide = F64 if F64 in (at.result.dtype, scale.dtype) else F32
        cotangent = at.cotangent.cast(wide)
        steps = x.cast(wide)
        if rest:
            steps = steps - _term_along(rest[0].cast(wide), x, self.axis)
        others = [d for d in range(x.rank) if d != self.axis]
        by_scale = (cotangent * steps).sum(others).cast(scale.dtype)
        if not x.dtype.is_float:
            return (None, by_scale, *(None for _ in rest))
        by_steps = cotangent * _term_along(scale.cast(wide), x, self.axis)
        by_zero = (-by_steps.sum(others)).cast(x.dtype)
        return (by_steps.cast(x.dtype), by_scale, *(by_zero for _ in rest))


@core_op(tag=35)
class Requantize(Op):
    """The value `(q - in_zero_point) * in_scale` quantised again with `out_scale` and
    `out_zero_point` to `output_dtype`. The two scales have one float dtype; the zero points have
    the dtypes of q and of the result. With `axis` each scale and its zero point may be rank 1 of
    that axis's extent. The intermediate value is not rounded further than by f32 arithmetic (f64
    for f64 scales)."""

    operands = ("q", "in_scale", "in_zero_point", "out_scale", "out_zero_point")
    dtypes = {
        "q": WHOLE | {SI32},
        "in_scale": FLOATS,
        "in_zero_point": WHOLE | {SI32},
        "out_scale": FLOATS,
        "out_zero_point": WHOLE,
        "output_dtype": WHOLE,
    }
    relative_axes = {"axis": 0}
    no_gradient = "integers have no derivative"

    output_dtype: DType = attr(DTypeOf())
    axis: int | None = attr(Maybe(Usize()))

    def infer(self, *types: TensorType) -> TensorType:
        q, in_scale, in_zero, out_scale, out_zero = types
        same_dtype(in_scale, out_scale, "in_scale and out_scale")
        if self.axis is not None:
            normalise_axis(self.axis, q.rank)
        for scale, name in ((in_scale, "in_scale"), (out_scale, "out_scale")):
            _check_parameter(scale, q, self.axis if scale.rank else None, name)
        _check_zero_point(in_zero, in_scale, q.dtype, "in_zero_point", "in_scale")
        _check_zero_point(out_zero, out_scale, self.output_dtype, "out_zero_point", "out_scale")
        return q.with_dtype(self.output_dtype)

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        q, *parameters = args
        in_scale, in_zero, out_scale, out_zero = (
            _shape_for_broadcast(a, q.ndim, self.axis) for a in parameters
        )
        real = _dequantise(q, _real(in_scale), in_zero)
        return _round_to_steps(real / _real(out_scale), _real(out_zero), self.output_dtype)


def _check_parameter(scale: TensorType, x: TensorType, axis: int | None, name: str) -> None:
    if axis is None:
        rank_is(scale, 0, f"{name} (there is no axis)")
        return
    axis = normalise_axis(axis, x.rank)
    rank_is(scale, 1, f"{name} along axis {axis}")
    same_dim(scale.shape[0], x.shape[axis], f"{name} and axis {axis} differ in extent")


def _check_zero_point(
    zero_point: TensorType, scale: TensorType, dtype: DType, name: str, scale_name: str
) -> None:
    if zero_point.dtype is not dtype:
        raise violation("DTypeMismatch", f"{name} has dtype {zero_point.dtype}, not {dtype}")
    same_shape(zero_point, scale, f"{name} and {scale_name}")


def _shape_for_broadcast(parameter: Array, rank: int, axis: int | None) -> Array:
    """A rank-1 parameter as an array that broadcasts along `axis`; rank 0 broadcasts as it is."""
    if axis is None or parameter.ndim == 0:
        return parameter
    return parameter.reshape([-1 if position == axis else 1 for position in range(rank)])


def _term_along(parameter: Term, x: Term, axis: int | None) -> Term:
    """A parameter as a term of the shape of x."""
    return parameter.broadcast_to(x.shape) if axis is None else parameter.along(axis, x.shape)


def _real(array: Array) -> Array:
    """Floats, and integers of up to 16 bits, in at least f32; exact."""
    return array if array.dtype == np.float64 else array.astype(np.float32, copy=False)


def _round_to_steps(quotient: Array, zero_point: Array | None, dtype: DType) -> Array:
    steps = np.rint(quotient) if dtype.is_integer else quotient
    if zero_point is not None:
        # Of integers inexact only beyond 2^24, where every quantised dtype saturates.
        steps = steps + zero_point
    if dtype in LARGEST:
        steps = np.clip(steps, -LARGEST[dtype], LARGEST[dtype])
    return numeric.cast(np.asarray(steps), as_dtype(steps.dtype), dtype)


def _dequantise(x: Array, scale: Array, zero_point: Array | None) -> Array:
    wide = scale.dtype if as_dtype(x.dtype).is_float else np.int64
    steps = x.astype(wide)
    if zero_point is not None:
        steps = steps - zero_point.astype(wide)
    return np.asarray(steps.astype(scale.dtype) * scale)
