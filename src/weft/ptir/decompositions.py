"""The decomposition of each op that has an exact one, in ops of the public contract.

A rule is a function of the op and its operands as terms; it answers the term that takes the place
of the result (or one for each element of a tuple), or None where this instance has no exact form (a
complex operand, an axis of dynamic size). Every rule gives exactly the elements of the op's own
meaning, with the freedoms that the contract leaves to the simpler ops as well: which zero
`maximum(-0, +0)` is and how a float sum adds up. Only `layer_norm` differs in its last bits,
because the contract has `rsqrt` and not `sqrt`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from weft.foundation.axes import normalise_axis
from weft.foundation.dtypes import COMPLEX, F64, FP8_E4M3, I1, SI32, SI64, DType
from weft.foundation.numeric import wide_dtype
from weft.ptir.library import spread_feature
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
from weft.ptir.term import Parts, Term
from weft.ptir.types import Symbol

Rule: TypeAlias = Callable[..., Parts | None]


# -- selection, tests, sign ----------------------------------------------------------------------


def _clamp(op: Clamp, x: Term, lo: Term, hi: Term) -> Term:
    """minimum(maximum(x, lo), hi)."""
    return x.maximum(lo).minimum(hi)


def _is_nan(op: IsNan, x: Term) -> Term:
    """x != x."""
    return x.compare(x, "not_equal")


def _finite_test(x: Term) -> Term:
    """x - x is zero exactly for finite values: an infinity gives NaN, in either part."""
    difference = x - x
    return difference.compare(difference, "equal")


def _is_finite(op: IsFinite, x: Term) -> Term:
    """(x - x) == (x - x)."""
    return _finite_test(x)


def _is_inf(op: IsInf, x: Term) -> Term:
    """|x| == inf; of complex values only where x is not finite, because |x| may overflow."""
    if x.dtype is FP8_E4M3:
        return x.full(False, x.shape, I1)
    infinite = x.abs().compare(math.inf, "equal")
    if x.dtype not in COMPLEX:
        return infinite
    finite = _finite_test(x)
    return x.full(False, x.shape, I1).where(finite, infinite)


def _sign(op: Sign, x: Term) -> Term | None:
    """x > 0 ? 1 : (x < 0 ? -1 : x): zeros and NaN fall through."""
    if x.dtype.is_complex:
        return None
    rest = x
    if x.dtype.is_float or x.dtype.is_signed:
        below = x.compare(0, "less")
        rest = x.like(-1).where(below, x)
    above = x.compare(0, "greater")
    return x.like(1).where(above, rest)


# -- rounding ------------------------------------------------------------------------------------


def _truncate(z: Term) -> tuple[Term, Term]:
    """`z` toward zero, as an integer where it is small and as a float with the sign of z."""
    integer = z.cast(SI64 if z.dtype is F64 else SI32)
    t = integer.cast(z.dtype)
    zero = t.compare(0.0, "equal")
    signed = (z * 0.0).where(zero, t)
    # From 2^(p-1) on every float is whole; NaN and infinities are not below it either.
    small = z.abs().compare(2.0 ** (z.dtype.precision - 1), "less")
    return integer, signed.where(small, z)


def _trunc(op: Trunc, x: Term) -> Term:
    """Through an integer where |x| is small, with the sign of x on a zero."""
    return _truncate(x.cast(wide_dtype(x.dtype)))[1].cast(x.dtype)


def _floor(op: Floor, x: Term) -> Term:
    """t = trunc(x); t > x ? t - 1 : t."""
    z = x.cast(wide_dtype(x.dtype))
    _, t = _truncate(z)
    above = t.compare(z, "greater")
    return (t - 1.0).where(above, t).cast(x.dtype)


def _ceil(op: Ceil, x: Term) -> Term:
    """t = trunc(x); t < x ? t + 1 : t."""
    z = x.cast(wide_dtype(x.dtype))
    _, t = _truncate(z)
    below = t.compare(z, "less")
    return (t + 1.0).where(below, t).cast(x.dtype)


def _round(op: Round, x: Term) -> Term:
    """t = trunc(x); one step away from zero where |x - t| is over a half, or a half and t odd."""
    z = x.cast(wide_dtype(x.dtype))
    integer, t = _truncate(z)
    fraction = (z - t).abs()
    odd = integer.compare(integer / 2 * 2, "not_equal")
    tie = fraction.compare(0.5, "equal").minimum(odd)
    away = fraction.compare(0.5, "greater").maximum(tie)
    negative = z.compare(0.0, "less")
    step = z.like(-1.0).where(negative, z.like(1.0))
    return (t + step).where(away, t).cast(x.dtype)


# -- integers and bits ---------------------------------------------------------------------------


def _flip_bits(x: Term) -> Term:
    """Every bit flipped: -1 - x, highest - x, or not x. It also reverses the order."""
    if x.dtype is I1:
        return x.compare(False, "equal")
    return (-1 if x.dtype.is_signed else int(x.dtype.highest)) - x


def _bitwise_not(op: BitwiseNot, x: Term) -> Term:
    """-1 - x for signed, highest - x for unsigned integers, x == false for i1."""
    return _flip_bits(x)


def _logic(name: str, **attrs: str) -> Rule:
    """A bitwise op on i1 as another op; integers have none."""

    def rule(op: Op, lhs: Term, rhs: Term) -> Term | None:
        return lhs.emitter.emit(name, lhs, rhs, **attrs) if lhs.dtype is I1 else None

    return rule


def _fmod(op: Fmod, x: Term, y: Term) -> Term | None:
    """x - (x / y) * y for integers."""
    return None if x.dtype.is_float else x - x / y * y


def _barrier(op: Barrier, x: Term, *others: Term) -> Term:
    """x: an order of computation is not a part of the contract."""
    return x


def _custom_gradient(op: CustomGradient, *values: Term) -> Parts:
    """The results: gradients are taken before."""
    return values[0] if op.results == 1 else values[: op.results]


def _real(op: Real, x: Term) -> Term:
    """cast(x)."""
    return x.cast(PART[x.dtype])


# -- reductions and order ------------------------------------------------------------------------


def _reduce_any(op: ReduceAny, x: Term) -> Term:
    """reduce_max of i1."""
    return x.reduce_max(axes=op.axes, keepdims=op.keepdims)


def _reduce_all(op: ReduceAll, x: Term) -> Term:
    """reduce_min of i1."""
    return x.reduce_min(axes=op.axes, keepdims=op.keepdims)


def _argmin(op: ArgMin, x: Term) -> Term:
    """arg_max(-x) for floats, arg_max(not x) for integers and i1: NaN and ties are as there."""
    turned = -x if x.dtype.is_float else _flip_bits(x)
    return turned.arg_max(axis=op.axis, keepdims=op.keepdims, output_dtype=op.output_dtype)


def _order_elements(x: Term, axis: int, descending: bool, dtype: DType) -> Term | None:
    """All elements along an axis by `top_k`, whose order is that of `sort`."""
    extent = x.shape[axis]
    if isinstance(extent, Symbol):
        return None
    return x.top_k(k=extent, axis=axis, largest=descending, indices_dtype=dtype)


def _sort(op: Sort, x: Term) -> Term | None:
    """The values of top_k with k = extent."""
    found = _order_elements(x, op.axis, op.descending, SI64)
    return None if found is None else found[0]


def _argsort(op: Argsort, x: Term) -> Term | None:
    """The indices of top_k with k = extent."""
    found = _order_elements(x, op.axis, op.descending, op.output_dtype)
    return None if found is None else found[1]


def _searchsorted(op: Searchsorted, ascending: Term, values: Term) -> Term:
    """For each value the count of elements before it, in the order in which NaN is largest."""
    shape = (*values.shape, *ascending.shape)
    element = ascending.broadcast_to(shape)
    value = values.reshape((*values.shape, 1)).broadcast_to(shape)
    left = op.side is Side.LEFT
    before = element.compare(value, "less" if left else "less_equal")
    if values.dtype.is_float:
        beyond = value.compare(value, "not_equal")
        if left:
            beyond = beyond.minimum(element.compare(element, "equal"))
        before = before.maximum(beyond)
    return before.reduce_sum(
        axes=[values.rank], keepdims=False, accum_dtype=SI64, out_dtype=op.output_dtype
    )


def _reduce_running(kind: str) -> Rule:
    """A running reduction as `reduce_window`: each window reaches back to the beginning."""

    def rule(op: CumulativeSum | CumulativeMax | CumulativeMin, x: Term) -> Term | None:
        axis = normalise_axis(op.axis, x.rank)
        extent = x.shape[axis]
        if isinstance(extent, Symbol):
            return None
        if extent == 0:
            return x
        ones = [1] * x.rank
        reach = (0, extent - 1) if op.reverse else (extent - 1, 0)
        return x.reduce_window(
            strides=ones, base_dilation=ones, window_dilation=ones, reduce=kind,
            window_dims=[extent if d == axis else 1 for d in range(x.rank)],
            padding=[reach if d == axis else (0, 0) for d in range(x.rank)],
        )  # fmt: skip

    return rule


# -- layer norm ----------------------------------------------------------------------------------


def _layer_norm(op: LayerNorm, x: Term, gamma: Term, beta: Term) -> Term:
    """Two passes: the mean, then the variance of the differences to it; in f32 at least."""
    z = x.cast(wide_dtype(x.dtype))
    axis = normalise_axis(op.feature_axis, z.rank)
    count = _feature_extent(gamma, z, axis)
    centred = z - _mean(z, axis, count).broadcast_to(z.shape)
    variance = _mean(centred * centred, axis, count)
    normal = centred * (variance + op.epsilon).rsqrt().broadcast_to(z.shape)
    scaled = normal * spread_feature(gamma, z, axis)
    return (scaled + spread_feature(beta, z, axis)).cast(x.dtype)


def _feature_extent(feature: Term, z: Term, axis: int) -> Term:
    """The extent of the feature axis (at least 1) in the shape of a mean; counted if dynamic."""
    (extent,) = feature.shape
    shape = tuple(1 if d == axis else dim for d, dim in enumerate(z.shape))
    if not isinstance(extent, Symbol):
        return z.full(float(max(extent, 1)), shape)
    return feature.extent(0, SI64).maximum(1).cast(z.dtype).broadcast_to(shape)


def _mean(z: Term, axis: int, count: Term) -> Term:
    return z.reduce_sum(axes=[axis], keepdims=True) / count


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
    CumulativeSum: _reduce_running("sum"),
    CumulativeMax: _reduce_running("max"),
    CumulativeMin: _reduce_running("min"),
}
