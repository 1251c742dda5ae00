"""The decomposition of each op that has an exact one, in ops of the public contract.

A rule is a function of an emitter and the instruction; it answers the value that takes the
instruction's place (or one for each element of a tuple), or None where this instance has no exact
form (a complex operand, an axis of dynamic size). Every rule gives exactly the elements of the op's
own meaning, with the freedoms that the contract leaves to the simpler ops as well: which zero
`maximum(-0, +0)` is and how a float sum adds up. Only `layer_norm` differs in its last bits,
because the contract has `rsqrt` and not `sqrt`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from weft.foundation.axes import normalise_axis
from weft.foundation.dtypes import COMPLEX, F32, F64, FP8_E4M3, I1, SI32, SI64, DType
from weft.foundation.errors import InternalError
from weft.ptir.ir import Instruction
from weft.ptir.op import Op
from weft.ptir.ops.bits import BitwiseAnd, BitwiseNot, BitwiseOr, BitwiseXor
from weft.ptir.ops.complex_parts import PART, Real
from weft.ptir.ops.custom import CustomGradient
from weft.ptir.ops.elementwise import Clamp
from weft.ptir.ops.functions import (
    Ceil,
    Floor,
    Fmod,
    IsFinite,
    IsInf,
    IsNan,
    Round,
    Sign,
    Trunc,
)
from weft.ptir.ops.normalisation import LayerNorm
from weft.ptir.ops.ordering import Argsort, Searchsorted, Side, Sort
from weft.ptir.ops.reduction import (
    ArgMin,
    CumulativeMax,
    CumulativeMin,
    CumulativeSum,
    ReduceAll,
    ReduceAny,
)
from weft.ptir.ops.scheduling import Barrier
from weft.ptir.passes.emitter import Emitter, Handle
from weft.ptir.types import Symbol

Rule: TypeAlias = Callable[[Emitter, Instruction], Handle | tuple[Handle, ...] | None]
SomeOp = TypeVar("SomeOp", bound=Op)


def _attributes(instruction: Instruction, kind: type[SomeOp]) -> SomeOp:
    if not isinstance(instruction.op, kind):
        raise InternalError(f"{instruction.op.mnemonic} has the rule of {kind.__name__}")
    return instruction.op


# -- selection, tests, sign ----------------------------------------------------------------------


def _clamp(b: Emitter, instruction: Instruction) -> Handle:
    """minimum(maximum(x, lo), hi)."""
    x, lo, hi = b.values(instruction)
    return b.emit("minimum", b.emit("maximum", x, lo), hi)


def _is_nan(b: Emitter, instruction: Instruction) -> Handle:
    """x != x."""
    (x,) = b.values(instruction)
    return b.emit("compare", x, x, op="not_equal")


def _finite(b: Emitter, x: Handle) -> Handle:
    """x - x is zero exactly for finite values: an infinity gives NaN, in either part."""
    difference = b.emit("sub", x, x)
    return b.emit("compare", difference, difference, op="equal")


def _is_finite(b: Emitter, instruction: Instruction) -> Handle:
    """(x - x) == (x - x)."""
    (x,) = b.values(instruction)
    return _finite(b, x)


def _is_inf(b: Emitter, instruction: Instruction) -> Handle:
    """|x| == inf; of complex values only where x is not finite, because |x| may overflow."""
    (x,) = b.values(instruction)
    if x.dtype is FP8_E4M3:
        return b.full(False, I1, x.shape)
    infinite = b.emit("compare", b.emit("abs", x), math.inf, op="equal")
    if x.dtype not in COMPLEX:
        return infinite
    return b.emit("select", _finite(b, x), b.full(False, I1, x.shape), infinite)


def _sign(b: Emitter, instruction: Instruction) -> Handle | None:
    """x > 0 ? 1 : (x < 0 ? -1 : x): zeros and NaN fall through."""
    (x,) = b.values(instruction)
    if x.dtype.is_complex:
        return None
    rest = x
    if x.dtype.is_float or x.dtype.is_signed:
        below = b.emit("compare", x, 0, op="less")
        rest = b.emit("select", below, _like(b, -1, x), x)
    return b.emit("select", b.emit("compare", x, 0, op="greater"), _like(b, 1, x), rest)


def _like(b: Emitter, number: float, x: Handle) -> Handle:
    return b.full(number, x.dtype, x.shape)


# -- rounding ------------------------------------------------------------------------------------


def _wide(dtype: DType) -> DType:
    """Where narrow floats are computed; whole numbers near a narrow one are exact there."""
    return F64 if dtype is F64 else F32


def _whole(b: Emitter, z: Handle) -> tuple[Handle, Handle]:
    """`z` toward zero, as an integer where it is small and as a float with the sign of z."""
    integer = b.cast(z, SI64 if z.dtype is F64 else SI32)
    t = b.cast(integer, z.dtype)
    zero = b.emit("compare", t, 0.0, op="equal")
    signed = b.emit("select", zero, b.emit("mul", z, 0.0), t)
    # From 2^(p-1) on every float is whole; NaN and infinities are not below it either.
    small = b.emit("compare", b.emit("abs", z), 2.0 ** (z.dtype.precision - 1), op="less")
    return integer, b.emit("select", small, signed, z)


def _trunc(b: Emitter, instruction: Instruction) -> Handle:
    """Through an integer where |x| is small, with the sign of x on a zero."""
    (x,) = b.values(instruction)
    return b.cast(_whole(b, b.cast(x, _wide(x.dtype)))[1], x.dtype)


def _floor(b: Emitter, instruction: Instruction) -> Handle:
    """t = trunc(x); t > x ? t - 1 : t."""
    (x,) = b.values(instruction)
    z = b.cast(x, _wide(x.dtype))
    _, t = _whole(b, z)
    above = b.emit("compare", t, z, op="greater")
    return b.cast(b.emit("select", above, b.emit("sub", t, 1.0), t), x.dtype)


def _ceil(b: Emitter, instruction: Instruction) -> Handle:
    """t = trunc(x); t < x ? t + 1 : t."""
    (x,) = b.values(instruction)
    z = b.cast(x, _wide(x.dtype))
    _, t = _whole(b, z)
    below = b.emit("compare", t, z, op="less")
    return b.cast(b.emit("select", below, b.emit("add", t, 1.0), t), x.dtype)


def _round(b: Emitter, instruction: Instruction) -> Handle:
    """t = trunc(x); one step away from zero where |x - t| is over a half, or a half and t odd."""
    (x,) = b.values(instruction)
    z = b.cast(x, _wide(x.dtype))
    integer, t = _whole(b, z)
    fraction = b.emit("abs", b.emit("sub", z, t))
    even = b.emit("mul", b.emit("div", integer, 2), 2)
    odd = b.emit("compare", integer, even, op="not_equal")
    tie = b.emit("minimum", b.emit("compare", fraction, 0.5, op="equal"), odd)
    away = b.emit("maximum", b.emit("compare", fraction, 0.5, op="greater"), tie)
    negative = b.emit("compare", z, 0.0, op="less")
    step = b.emit("select", negative, _like(b, -1.0, z), _like(b, 1.0, z))
    return b.cast(b.emit("select", away, b.emit("add", t, step), t), x.dtype)


# -- integers and bits ---------------------------------------------------------------------------


def _flipped(b: Emitter, x: Handle) -> Handle:
    """Every bit flipped: -1 - x, highest - x, or not x. It also reverses the order."""
    if x.dtype is I1:
        return b.emit("compare", x, False, op="equal")
    ones = -1 if x.dtype.is_signed else int(x.dtype.highest)
    return b.emit("sub", _like(b, ones, x), x)


def _bitwise_not(b: Emitter, instruction: Instruction) -> Handle:
    """-1 - x for signed, highest - x for unsigned integers, x == false for i1."""
    return _flipped(b, b.values(instruction)[0])


def _logic(name: str, **attrs: str) -> Rule:
    """A bitwise op on i1 as another op; integers have none."""

    def rule(b: Emitter, instruction: Instruction) -> Handle | None:
        lhs, rhs = b.values(instruction)
        return b.emit(name, lhs, rhs, **attrs) if lhs.dtype is I1 else None

    return rule


def _fmod(b: Emitter, instruction: Instruction) -> Handle | None:
    """x - (x / y) * y for integers."""
    x, y = b.values(instruction)
    if x.dtype.is_float:
        return None
    return b.emit("sub", x, b.emit("mul", b.emit("div", x, y), y))


def _barrier(b: Emitter, instruction: Instruction) -> Handle:
    """x: an order of computation is not a part of the contract."""
    return b.values(instruction)[0]


def _custom_gradient(b: Emitter, instruction: Instruction) -> Handle | tuple[Handle, ...]:
    """The results: gradients are taken before."""
    count = _attributes(instruction, CustomGradient).results
    values = b.values(instruction)[:count]
    return values[0] if count == 1 else tuple(values)


def _real(b: Emitter, instruction: Instruction) -> Handle:
    """cast(x)."""
    (x,) = b.values(instruction)
    return b.cast(x, PART[x.dtype])


# -- reductions and order ------------------------------------------------------------------------


def _reduce_any(b: Emitter, instruction: Instruction) -> Handle:
    """reduce_max of i1."""
    op = _attributes(instruction, ReduceAny)
    (x,) = b.values(instruction)
    return b.emit("reduce_max", x, axes=op.axes, keepdims=op.keepdims)


def _reduce_all(b: Emitter, instruction: Instruction) -> Handle:
    """reduce_min of i1."""
    op = _attributes(instruction, ReduceAll)
    (x,) = b.values(instruction)
    return b.emit("reduce_min", x, axes=op.axes, keepdims=op.keepdims)


def _argmin(b: Emitter, instruction: Instruction) -> Handle:
    """arg_max(-x) for floats, arg_max(not x) for integers and i1: NaN and ties are as there."""
    op = _attributes(instruction, ArgMin)
    (x,) = b.values(instruction)
    turned = b.emit("neg", x) if x.dtype.is_float else _flipped(b, x)
    return b.emit(
        "arg_max", turned, axis=op.axis, keepdims=op.keepdims, output_dtype=op.output_dtype
    )


def _ordered(b: Emitter, x: Handle, axis: int, descending: bool, dtype: DType) -> Handle | None:
    """All elements along an axis by `top_k`, whose order is that of `sort`."""
    extent = x.shape[axis]
    if isinstance(extent, Symbol):
        return None
    return b.emit("top_k", x, k=extent, axis=axis, largest=descending, indices_dtype=dtype)


def _sort(b: Emitter, instruction: Instruction) -> Handle | None:
    """The values of top_k with k = extent."""
    op = _attributes(instruction, Sort)
    (x,) = b.values(instruction)
    found = _ordered(b, x, op.axis, op.descending, SI64)
    return None if found is None else found[0]


def _argsort(b: Emitter, instruction: Instruction) -> Handle | None:
    """The indices of top_k with k = extent."""
    op = _attributes(instruction, Argsort)
    (x,) = b.values(instruction)
    found = _ordered(b, x, op.axis, op.descending, op.output_dtype)
    return None if found is None else found[1]


def _searchsorted(b: Emitter, instruction: Instruction) -> Handle:
    """For each value the count of elements before it, in the order in which NaN is largest."""
    op = _attributes(instruction, Searchsorted)
    ascending, values = b.values(instruction)
    shape = (*values.shape, *ascending.shape)
    element = b.broadcast_to(ascending, shape)
    value = b.broadcast_to(b.emit("reshape", values, new_shape=(*values.shape, 1)), shape)
    left = op.side is Side.LEFT
    before = b.emit("compare", element, value, op="less" if left else "less_equal")
    if values.dtype.is_float:
        beyond = b.emit("compare", value, value, op="not_equal")
        if left:
            number = b.emit("compare", element, element, op="equal")
            beyond = b.emit("minimum", beyond, number)
        before = b.emit("maximum", before, beyond)
    return b.emit(
        "reduce_sum", before, axes=[values.rank], keepdims=False,
        accum_dtype=SI64, out_dtype=op.output_dtype,
    )  # fmt: skip


def _running(kind: str) -> Rule:
    """A running reduction as `reduce_window`: each window reaches back to the beginning."""

    def rule(b: Emitter, instruction: Instruction) -> Handle | None:
        op = instruction.op
        if not isinstance(op, CumulativeSum | CumulativeMax | CumulativeMin):
            raise InternalError(f"{op.mnemonic} is not a running reduction")
        (x,) = b.values(instruction)
        axis = normalise_axis(op.axis, x.rank)
        extent = x.shape[axis]
        if isinstance(extent, Symbol):
            return None
        if extent == 0:
            return x
        ones = [1] * x.rank
        reach = (0, extent - 1) if op.reverse else (extent - 1, 0)
        return b.emit(
            "reduce_window", x, strides=ones, base_dilation=ones, window_dilation=ones, reduce=kind,
            window_dims=[extent if d == axis else 1 for d in range(x.rank)],
            padding=[reach if d == axis else (0, 0) for d in range(x.rank)],
        )  # fmt: skip

    return rule


# -- layer norm ----------------------------------------------------------------------------------


def _layer_norm(b: Emitter, instruction: Instruction) -> Handle:
    """Two passes: the mean, then the variance of the differences to it; in f32 at least."""
    op = _attributes(instruction, LayerNorm)
    x, gamma, beta = b.values(instruction)
    z = b.cast(x, _wide(x.dtype))
    axis = normalise_axis(op.feature_axis, z.rank)
    count = _count(b, gamma, z, axis)
    centred = b.emit("sub", z, b.broadcast_to(_mean(b, z, axis, count), z.shape))
    variance = _mean(b, b.emit("mul", centred, centred), axis, count)
    scale = b.emit("rsqrt", b.emit("add", variance, op.epsilon))
    normal = b.emit("mul", centred, b.broadcast_to(scale, z.shape))
    scaled = b.emit("mul", normal, _along(b, gamma, z, axis))
    return b.cast(b.emit("add", scaled, _along(b, beta, z, axis)), x.dtype)


def _count(b: Emitter, feature: Handle, z: Handle, axis: int) -> Handle:
    """The extent of the feature axis (at least 1) in the shape of a mean; counted if dynamic."""
    (extent,) = feature.shape
    shape = tuple(1 if d == axis else dim for d, dim in enumerate(z.shape))
    if not isinstance(extent, Symbol):
        return b.full(float(max(extent, 1)), z.dtype, shape)
    ones = b.full(1, SI64, (extent,))
    total = b.emit("maximum", b.emit("reduce_sum", ones, axes=[0], keepdims=False), 1)
    return b.broadcast_to(b.cast(total, z.dtype), shape)


def _mean(b: Emitter, z: Handle, axis: int, count: Handle) -> Handle:
    return b.emit("div", b.emit("reduce_sum", z, axes=[axis], keepdims=True), count)


def _along(b: Emitter, feature: Handle, z: Handle, axis: int) -> Handle:
    """A rank-1 parameter laid along one axis of z and repeated over the others."""
    column = (*feature.shape, *[1] * (z.rank - 1 - axis))
    wide = b.cast(feature, z.dtype)
    laid = wide if column == feature.shape else b.emit("reshape", wide, new_shape=column)
    return b.broadcast_to(laid, z.shape)


# Packages that bring their own ops (coarse ops) add their rules here.
DECOMPOSITIONS: dict[type[Op], Rule] = {
    Clamp: _clamp,
    LayerNorm: _layer_norm,
    IsNan: _is_nan,
    IsInf: _is_inf,
    IsFinite: _is_finite,
    Sign: _sign,
    Trunc: _trunc,
    Floor: _floor,
    Ceil: _ceil,
    Round: _round,
    BitwiseNot: _bitwise_not,
    BitwiseAnd: _logic("minimum"),
    BitwiseOr: _logic("maximum"),
    BitwiseXor: _logic("compare", op="not_equal"),
    Fmod: _fmod,
    Real: _real,
    Barrier: _barrier,
    CustomGradient: _custom_gradient,
    ReduceAny: _reduce_any,
    ReduceAll: _reduce_all,
    ArgMin: _argmin,
    Sort: _sort,
    Argsort: _argsort,
    Searchsorted: _searchsorted,
    CumulativeSum: _running("sum"),
    CumulativeMax: _running("max"),
    CumulativeMin: _running("min"),
}
