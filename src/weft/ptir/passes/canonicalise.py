"""Rules that bring a program into its simplest form without changing one bit of any result.

Every rule is exact for every dtype it applies to: signed zeros, infinities, NaN (but for its sign
and payload, which PTIR does not define), wrapping integers and roundings included. What looks like
algebra but is not exact is not here: `x * 0` and `x - x` for floats, `x + 0` for the wrong zero, `x
* 1` for complex numbers (an infinite part times the zero part is NaN), casts that round twice.
"""

from __future__ import annotations

from typing import Any, TypeVar

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import I1, DType
from weft.ptir.ir import Operand, Program
from weft.ptir.literal import literal
from weft.ptir.op import Op
from weft.ptir.ops.complex_parts import PART
from weft.ptir.ops.elementwise import Cast, ElementwiseUnary, StopGradient, UnaryFn
from weft.ptir.ops.indexing import DynamicSlice, DynamicUpdateSlice
from weft.ptir.ops.movement import BroadcastTo, Concat, Pad, Reshape, Slice, Tile, Transpose
from weft.ptir.passes.log import PassLog
from weft.ptir.passes.put_together import RULE as TOGETHER
from weft.ptir.passes.rewrite import Match, New, Replacement, Rule, rewrite
from weft.ptir.types import Shape, Symbol, TensorType

SomeOp = TypeVar("SomeOp", bound=Op)


def canonicalise(program: Program, log: PassLog | None = None) -> Program:
    """Apply `RULES` everywhere until none applies."""
    return rewrite(program, RULES, log)


def _inner(match: Match, kind: type[SomeOp]) -> tuple[SomeOp, Operand] | None:
    """The op and operand of the instruction that makes the only operand, if it is of that kind."""
    definition = match.definition(match.operands[0])
    if definition is None or not isinstance(definition.op, kind):
        return None
    return definition.op, definition.operands[0]


def _op_as(match: Match, kind: type[SomeOp]) -> SomeOp:
    """The op of the match, as the class that the rule was written for."""
    if not isinstance(match.op, kind):
        raise TypeError(f"{match.op.mnemonic} is not {kind.__name__}")
    return match.op


def _drop_if_same_type(match: Match) -> Replacement | None:
    """The operand, where it has the type of the result."""
    return match.operands[0] if match.type(match.operands[0]) == match.output else None


# -- cast ----------------------------------------------------------------------------------------


def embeds(source: DType, target: DType) -> bool:
    """Whether every value of `source` is a value of `target`, so that a cast loses nothing."""
    if source is target or source is I1:
        return True
    if target is I1:
        return False
    if target.is_complex:
        return embeds(PART.get(source, source), PART[target])
    if source.is_complex:
        return False
    if source.is_float:
        return target.is_float and _float_embeds(source, target)
    if target.is_float:
        # Whole numbers up to 2^precision are numbers of a float. Of a signed dtype the lowest is a
        # power of two.
        return source.bits - source.is_signed <= target.precision
    return _range_within(source, target)


def _range_within(inner: DType, outer: DType) -> bool:
    return outer.lowest <= inner.lowest and inner.highest <= outer.highest


def _float_embeds(source: DType, target: DType) -> bool:
    finfo: Any = ml_dtypes.finfo
    small, large = finfo(source.numpy), finfo(target.numpy)
    return (
        source.precision <= target.precision
        and float(small.max) <= float(large.max)
        and float(small.smallest_subnormal) >= float(large.smallest_subnormal)
    )


def composes(first: DType, middle: DType, last: DType) -> bool:
    """Whether casting through `middle` is the same as casting directly.

    It is where `middle` holds every value of `first`. It also is where both steps saturate and the
    second range lies within the first one: what the first step clips the second clips anyway.
    """
    if embeds(first, middle):
        return True
    return middle.is_integer and last.is_integer and _range_within(last, middle)


def _cast_of_cast(match: Match) -> Replacement | None:
    inner = _inner(match, Cast)
    if inner is None:
        return None
    middle, x = inner
    op = _op_as(match, Cast)
    fits = composes(match.tensor(x).dtype, middle.dtype, op.dtype)
    return New(op, (x,)) if fits else None


# -- movement ------------------------------------------------------------------------------------


def _output_shape(match: Match) -> Shape:
    return match.output.shape if isinstance(match.output, TensorType) else ()


def _reshape_of_reshape(match: Match) -> Replacement | None:
    inner = _inner(match, Reshape)
    # A dim that this very instruction binds is computed from its operand: leave that one alone.
    if inner is None or not match.is_bound(_output_shape(match)):
        return None
    return New(Reshape(_output_shape(match)), (inner[1],))


def _transpose_identity(match: Match) -> Replacement | None:
    perm = _op_as(match, Transpose).perm
    return match.operands[0] if perm == tuple(range(len(perm))) else None


def _transpose_of_transpose(match: Match) -> Replacement | None:
    inner = _inner(match, Transpose)
    if inner is None:
        return None
    perm = _op_as(match, Transpose).perm
    return New(Transpose(tuple(inner[0].perm[axis] for axis in perm)), (inner[1],))


def _slice_of_slice(match: Match) -> Replacement | None:
    inner = _inner(match, Slice)
    if inner is None:
        return None
    op = _op_as(match, Slice)
    starts = tuple(a + b for a, b in zip(inner[0].starts, op.starts, strict=True))
    return New(Slice(starts, op.sizes), (inner[1],))


def _broadcast_of_broadcast(match: Match) -> Replacement | None:
    inner = _inner(match, BroadcastTo)
    return None if inner is None else New(match.op, (inner[1],))


def _concat_one(match: Match) -> Replacement | None:
    return match.operands[0] if len(match.operands) == 1 else None


def _concat_empty(match: Match) -> Replacement | None:
    axis = _op_as(match, Concat).axis
    kept = tuple(x for x in match.operands if match.tensor(x).shape[axis] != 0)
    # One operand stays at least: it says which dtype and which other sizes there are.
    return New(match.op, kept) if 0 < len(kept) < len(match.operands) else None


def _pad_nothing(match: Match) -> Replacement | None:
    op = _op_as(match, Pad)
    return None if any((*op.low, *op.high, *op.interior)) else match.operands[0]


def _tile_once(match: Match) -> Replacement | None:
    return match.operands[0] if set(_op_as(match, Tile).repeats) <= {1} else None


# -- dynamic slices ------------------------------------------------------------------------------


def _clamped_start(
    match: Match, x: Operand, start: Operand, sizes: tuple[int, ...]
) -> tuple[int, ...] | None:
    """A constant start moved into range; None where it is not constant or the range is unknown."""
    found = match.literal(start)
    if found is None:
        return None
    clamped = []
    for at, dim, size in zip(found.array.tolist(), match.tensor(x).shape, sizes, strict=True):
        # 0 is in range whatever the size is, and what is below 0 becomes 0.
        if isinstance(dim, Symbol) and at > 0:
            return None
        clamped.append(min(max(at, 0), dim - size) if isinstance(dim, int) else 0)
    return tuple(clamped)


def _dynamic_slice_constant(match: Match) -> Replacement | None:
    x, start = match.operands
    sizes = _op_as(match, DynamicSlice).sizes
    at = _clamped_start(match, x, start, sizes)
    return None if at is None else New(Slice(at, sizes), (x,))


def _dynamic_update_all(match: Match) -> Replacement | None:
    update = match.operands[1]
    return update if match.type(update) == match.output else None


def _dynamic_update_clamp(match: Match) -> Replacement | None:
    x, update, start = match.operands
    at = _clamped_start(match, x, start, _op_as(match, DynamicUpdateSlice).sizes)
    found = match.literal(start)
    if at is None or found is None or list(at) == found.array.tolist():
        return None
    return New(match.op, (x, update, literal(list(at), found.type.dtype)))


# -- arithmetic ----------------------------------------------------------------------------------


def _neg_of_neg(match: Match) -> Replacement | None:
    inner = _inner(match, ElementwiseUnary)
    return inner[1] if inner is not None and inner[0].fn is UnaryFn.NEG else None


def _is_zero(value: NDArray[Any], *, negative: bool) -> bool:
    """Whether a scalar is the zero that adding (negative) or subtracting (positive) ignores."""
    if value.dtype.kind == "c":
        return _is_zero(value.real, negative=negative) and _is_zero(value.imag, negative=negative)
    if value.dtype.kind in "iu" or value.dtype in _NIBBLES:
        return not value
    # x + 0.0 would turn a -0.0 into +0.0, and x + -0.0 is x whatever x is; with differences it is
    # the other way round.
    wide = value.astype(np.float64)
    return bool(wide == 0.0 and np.signbit(wide) == negative)


_NIBBLES = (np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.uint4))


def _add_zero(match: Match) -> Replacement | None:
    for zero, x in (match.operands, match.operands[::-1]):
        value = match.splat(zero)
        if value is not None and _is_zero(value, negative=True):
            return x
    return None


def _sub_zero(match: Match) -> Replacement | None:
    x, zero = match.operands
    value = match.splat(zero)
    return x if value is not None and _is_zero(value, negative=False) else None


def _is_one(match: Match, operand: Operand) -> bool:
    value = match.splat(operand)
    return value is not None and value.dtype.kind != "c" and bool(value == value.dtype.type(1))


def _mul_one(match: Match) -> Replacement | None:
    lhs, rhs = match.operands
    if _is_one(match, rhs):
        return lhs
    return rhs if _is_one(match, lhs) else None


def _div_one(match: Match) -> Replacement | None:
    lhs, rhs = match.operands
    return lhs if _is_one(match, rhs) else None


def _mul_zero(match: Match) -> Replacement | None:
    for zero in match.operands:
        value = match.splat(zero) if match.tensor(zero).dtype.is_integer else None
        if value is not None and not value:
            return zero
    return None


def _extremum_same(match: Match) -> Replacement | None:
    lhs, rhs = match.operands
    return lhs if lhs == rhs else None


def _extremum_identity(match: Match) -> Replacement | None:
    dtype = match.tensor(match.operands[0]).dtype
    bound = dtype.lowest if match.op.mnemonic == "maximum" else dtype.highest
    for neutral, x in (match.operands, match.operands[::-1]):
        value = match.splat(neutral)
        if value is not None and value == np.asarray(bound).astype(value.dtype):
            return x
    return None


# -- selection and the rest ----------------------------------------------------------------------


def _select_constant(match: Match) -> Replacement | None:
    pred, on_true, on_false = match.operands
    value = match.splat(pred)
    if value is None:
        return None
    return on_true if value else on_false


def _select_same(match: Match) -> Replacement | None:
    _, on_true, on_false = match.operands
    return on_true if on_true == on_false else None


def _stop_gradient_twice(match: Match) -> Replacement | None:
    return match.operands[0] if _inner(match, StopGradient) is not None else None


RULES: tuple[Rule, ...] = (
    Rule("cast-same", "cast(x: t, t)", "x", ("cast",), _drop_if_same_type),
    Rule(
        "cast-of-cast",
        "cast(cast(x, t), u), where t holds every x or saturates no more than u",
        "cast(x, u)",
        ("cast",),
        _cast_of_cast,
    ),
    Rule("reshape-same", "reshape(x: t[s], s)", "x", ("reshape",), _drop_if_same_type),
    Rule(
        "reshape-of-reshape",
        "reshape(reshape(x, r), s)",
        "reshape(x, s)",
        ("reshape",),
        _reshape_of_reshape,
    ),
    Rule("transpose-identity", "transpose(x, 0..n-1)", "x", ("transpose",), _transpose_identity),
    Rule(
        "transpose-of-transpose",
        "transpose(transpose(x, p), q)",
        "transpose(x, p[q])",
        ("transpose",),
        _transpose_of_transpose,
    ),
    Rule("slice-all", "slice(x: t[s], 0, s)", "x", ("slice",), _drop_if_same_type),
    Rule(
        "slice-of-slice",
        "slice(slice(x, a, m), b, n)",
        "slice(x, a + b, n)",
        ("slice",),
        _slice_of_slice,
    ),
    Rule("broadcast-same", "broadcast_to(x: t[s], s)", "x", ("broadcast_to",), _drop_if_same_type),
    Rule(
        "broadcast-of-broadcast",
        "broadcast_to(broadcast_to(x, r), s)",
        "broadcast_to(x, s)",
        ("broadcast_to",),
        _broadcast_of_broadcast,
    ),
    Rule("concat-one", "concat(x)", "x", ("concat",), _concat_one),
    Rule("concat-empty", "concat(x, empty, y)", "concat(x, y)", ("concat",), _concat_empty),
    TOGETHER,
    Rule("pad-nothing", "pad(x, 0, 0, 0)", "x", ("pad",), _pad_nothing),
    Rule("tile-once", "tile(x, 1)", "x", ("tile",), _tile_once),
    Rule(
        "dynamic-slice-all",
        "dynamic_slice(x: t[s], i, s)",
        "x",
        ("dynamic_slice",),
        _drop_if_same_type,
    ),
    Rule(
        "dynamic-slice-constant",
        "dynamic_slice(x, c, n)",
        "slice(x, clamp(c), n)",
        ("dynamic_slice",),
        _dynamic_slice_constant,
    ),
    Rule(
        "dynamic-update-all",
        "dynamic_update_slice(x: t[s], y: t[s], i)",
        "y",
        ("dynamic_update_slice",),
        _dynamic_update_all,
    ),
    Rule(
        "dynamic-update-clamp",
        "dynamic_update_slice(x, y, c), where c is out of range",
        "dynamic_update_slice(x, y, clamp(c))",
        ("dynamic_update_slice",),
        _dynamic_update_clamp,
    ),
    Rule("neg-of-neg", "-(-x)", "x", ("neg",), _neg_of_neg),
    Rule("add-zero", "x + 0 for integers, x + -0.0 for floats", "x", ("add",), _add_zero),
    Rule("sub-zero", "x - 0 for integers, x - +0.0 for floats", "x", ("sub",), _sub_zero),
    Rule("mul-one", "x * 1, x real", "x", ("mul",), _mul_one),
    Rule("div-one", "x / 1, x real", "x", ("div",), _div_one),
    Rule("mul-zero", "x * 0, x an integer", "0", ("mul",), _mul_zero),
    Rule("extremum-same", "maximum(x, x)", "x", ("maximum", "minimum"), _extremum_same),
    Rule(
        "extremum-identity",
        "maximum(x, lowest), minimum(x, highest)",
        "x",
        ("maximum", "minimum"),
        _extremum_identity,
    ),
    Rule("select-constant", "select(true, x, y)", "x", ("select",), _select_constant),
    Rule("select-same", "select(p, x, x)", "x", ("select",), _select_same),
    Rule(
        "stop-gradient-twice",
        "stop_gradient(stop_gradient(x))",
        "stop_gradient(x)",
        ("stop_gradient",),
        _stop_gradient_twice,
    ),
)
