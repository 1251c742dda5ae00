"""Quantisation: the coarse ops of the same meaning where there is one, else arithmetic."""

from __future__ import annotations

from typing import Any

from weft.foundation.dtypes import F32, F64, SI32, SI64, DType
from weft.interop.stablehlo.writing.calls import write_call
from weft.interop.stablehlo.writing.elementwise import cast
from weft.interop.stablehlo.writing.page import Page, Ssa, array_text
from weft.ptir.ops.constant import CustomCall
from weft.ptir.ops.quantisation import LARGEST, Dequantize, Quantize, Requantize
from weft.ptir.schema import Attr, AttrKind
from weft.ptir.types import TensorType


def write_quantisation(
    page: Page, op: Quantize | Dequantize | Requantize, x: list[Ssa], kind: TensorType
) -> Ssa:
    if isinstance(op, Requantize):
        return _requantize(page, op, x, kind)
    if _has_coarse_form(kind.dtype if isinstance(op, Quantize) else x[0].dtype):
        return _coarse(page, op, x, kind)
    if isinstance(op, Quantize):
        return _quantize(page, op, x, kind)
    return _dequantize(page, op, x, kind)


def _has_coarse_form(dtype: DType) -> bool:
    return dtype.is_integer and dtype.bits in (8, 16)


def _coarse(page: Page, op: Quantize | Dequantize, x: list[Ssa], kind: TensorType) -> Ssa:
    """The coarse op, which always has a zero point."""
    value, scale, *rest = x
    dtype = kind.dtype if isinstance(op, Quantize) else value.dtype
    zero = rest[0] if rest else page.full(0, scale.type.with_dtype(dtype))
    name = "byteir.quantize" if isinstance(op, Quantize) else "byteir.dequantize"
    attrs: tuple[tuple[str, Any], ...] = ()
    if op.axis is not None:
        attrs = (("axis", Attr(AttrKind.I64, op.axis)),)
    return write_call(page, CustomCall(name, attrs), [value, scale, zero], kind)[0]


def _quantize(page: Page, op: Quantize, x: list[Ssa], kind: TensorType) -> Ssa:
    wide = F64 if x[0].dtype is F64 else F32
    quotient = page.op("divide", x[0], _spread_parameter(page, x[1], x[0], op.axis))
    zero = _spread_parameter(page, x[2], x[0], op.axis) if len(x) > 2 else None
    return _quantise_quotient(page, cast(page, quotient, wide), zero, kind.dtype)


def _dequantize(page: Page, op: Dequantize, x: list[Ssa], kind: TensorType) -> Ssa:
    wide = F64 if F64 in (kind.dtype, x[1].dtype) else F32
    scale = _spread_parameter(page, cast(page, x[1], wide), x[0], op.axis)
    zero = _spread_parameter(page, x[2], x[0], op.axis) if len(x) > 2 else None
    return cast(page, _dequantise_steps(page, x[0], scale, zero), kind.dtype)


def _requantize(page: Page, op: Requantize, x: list[Ssa], kind: TensorType) -> Ssa:
    value, in_scale, in_zero, out_scale, out_zero = x
    wide = F64 if in_scale.dtype is F64 else F32
    scales = (cast(page, scale, wide) for scale in (in_scale, out_scale))
    before, after = (_spread_parameter(page, scale, value, op.axis) for scale in scales)
    real = _dequantise_steps(page, value, before, _spread_parameter(page, in_zero, value, op.axis))
    quotient = page.op("divide", real, after)
    return _quantise_quotient(
        page, quotient, _spread_parameter(page, out_zero, value, op.axis), kind.dtype
    )


def _spread_parameter(page: Page, parameter: Ssa, x: Ssa, axis: int | None) -> Ssa:
    """A scale or zero point over the whole of `x`."""
    if not parameter.rank or axis is None:
        return page.spread(parameter, x.shape)
    kind, dims = parameter.type.with_shape(x.shape), array_text([axis])
    if kind.is_static:
        return page.op("broadcast_in_dim", parameter, like=kind, broadcast_dimensions=dims)
    sizes = page.sizes(x.shape)
    return page.op(
        "dynamic_broadcast_in_dim", parameter, sizes, like=kind, broadcast_dimensions=dims
    )


def _quantise_quotient(page: Page, quotient: Ssa, zero: Ssa | None, dtype: DType) -> Ssa:
    steps = page.op("round_nearest_even", quotient) if dtype.is_integer else quotient
    if zero is not None:
        steps = page.op("add", steps, cast(page, zero, steps.dtype))
    if most := LARGEST.get(dtype):
        low, high = (page.scalar(bound, steps.dtype) for bound in (-most, most))
        steps = page.op("clamp", low, steps, high, like=steps.type)
    return cast(page, steps, dtype)


def _dequantise_steps(page: Page, x: Ssa, scale: Ssa, zero: Ssa | None) -> Ssa:
    """Integers of up to 16 bits are subtracted in 32, others in 64, which is exact."""
    wide = SI32 if x.dtype.bits <= 16 else SI64
    wide = scale.dtype if x.dtype.is_float else wide
    steps = cast(page, x, wide)
    if zero is not None:
        steps = page.op("subtract", steps, cast(page, zero, wide))
    return page.op("multiply", cast(page, steps, scale.dtype), scale)
