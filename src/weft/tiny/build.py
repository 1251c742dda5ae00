"""Tiny values by name: constructors that leave out what does nothing, and the composed forms.

A product, a concatenation or a window is not a node of Tiny; it is a few nodes, written here once.
Everything takes and gives Tiny values with static shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation import functions
from weft.foundation.axes import inverse
from weft.foundation.dims import Dim, Shape, static, static_shape
from weft.foundation.dtypes import I1, SI32, SI64, DType
from weft.foundation.index_expr import Expr, axis
from weft.foundation.scalar import COMPARISONS, Fn
from weft.tiny.ir import (
    Barrier,
    Binary,
    Cast,
    Check,
    Const,
    Expand,
    Flip,
    Iota,
    Pad,
    Permute,
    Reduce,
    ReduceFn,
    Reshape,
    Rule,
    Scalar,
    Shrink,
    Unary,
    Value,
    View,
    Where,
)

_FOLD_DEPTH = 64
"""How far `element` looks into a value; start indices are a few nodes deep."""


# -- constructors without empty work -------------------------------------------------------------


def const(value: Scalar, dtype: DType) -> Const:
    """A scalar with the Python type that its dtype asks for."""
    if dtype is I1:
        return Const(bool(value), dtype)
    if dtype.is_complex:
        return Const(complex(value), dtype)
    if isinstance(value, complex):
        raise TypeError(f"{value} is complex, {dtype} is not")
    return Const(float(value) if dtype.is_float else int(value), dtype)


def scalar(array: NDArray[Any], dtype: DType) -> Const:
    """A rank-0 array of `dtype` as a constant; every dtype fits a Python number exactly."""
    wide = array.astype(np.float64) if dtype.is_float else array
    return const(wide.item() if dtype.bits > 4 else int(wide), dtype)


def reshape(x: Value, shape: Sequence[Dim]) -> Value:
    """`x` under another shape; a reshape of a reshape is one."""
    wanted = tuple(shape)
    while isinstance(x, Reshape):
        x = x.x
    return x if x.shape == wanted else Reshape(x, wanted)


def permute(x: Value, perm: Sequence[int]) -> Value:
    """The axes in another order; a permutation of a permutation is one."""
    while isinstance(x, Permute):
        perm = [x.perm[k] for k in perm]
        x = x.x
    return x if tuple(perm) == tuple(range(len(x.shape))) else Permute(x, tuple(perm))


def expand(x: Value, shape: Sequence[Dim]) -> Value:
    """Axes of size 1 repeated; missing leading axes are added first."""
    wanted = tuple(shape)
    ones = (1,) * (len(wanted) - len(x.shape))
    x = reshape(x, (*ones, *x.shape))
    return x if x.shape == wanted else Expand(x, wanted)


def splat(value: Scalar, dtype: DType, shape: Sequence[Dim]) -> Value:
    """The same number everywhere."""
    return expand(const(value, dtype), shape)


def pad(x: Value, low: Sequence[int], high: Sequence[int], value: Const) -> Value:
    return Pad(x, tuple(low), tuple(high), value) if any(low) or any(high) else x


def shrink(x: Value, start: Sequence[int], size: Sequence[Dim]) -> Value:
    return x if tuple(size) == x.shape else Shrink(x, tuple(start), tuple(size))


def every(x: Value, start: int, step: int, count: int) -> Value:
    """Every `step`-th of the elements along the first axis, from `start` on."""
    others = (axis(f"i{k}") for k in range(1, len(x.shape)))
    return View(x, (count, *x.shape[1:]), (axis("i0") * step + start, *others))


def flip(x: Value, axes: Sequence[int]) -> Value:
    return Flip(x, tuple(sorted(axes))) if axes else x


def cast(x: Value, dtype: DType) -> Value:
    return x if x.dtype is dtype else Cast(x, dtype)


def barrier(x: Value, after: Value) -> Value:
    """`x` behind `after`; a repeated number or a counter waits for nothing."""
    source = x
    while isinstance(source, Expand | Reshape | Barrier):
        source = source.x
    return x if isinstance(source, Const | Iota) else Barrier(x, after)


def check(x: Value, rule: Rule, code: str, size: int = 0) -> Value:
    """`x` with a rule for its elements; no elements break none."""
    return x if 0 in x.shape else Check(x, rule, code, size)


def reduce(fn: ReduceFn, x: Value, axes: Sequence[int], acc: DType) -> Value:
    """`x`, converted to `acc`, reduced over `axes`; axes of size 1 just disappear."""
    wide = cast(x, acc)
    if any(x.shape[k] != 1 for k in axes):
        return Reduce(fn, wide, tuple(sorted(axes)), acc)
    return reshape(wide, [d for k, d in enumerate(x.shape) if k not in axes])


def keep_dims(reduced: Value, shape: Shape, axes: Sequence[int]) -> Value:
    """A reduction of a value of `shape` with its axes put back as 1."""
    return reshape(reduced, [1 if k in axes else dim for k, dim in enumerate(shape)])


def binary(fn: Fn, lhs: Value, rhs: Value | Scalar) -> Value:
    """`fn` of two values, or of a value and a number of its dtype."""
    if isinstance(rhs, bool | int | float | complex):
        rhs = splat(rhs, lhs.dtype, lhs.shape)
    return Binary(fn, lhs, rhs)


# -- composed forms ------------------------------------------------------------------------------


def product(
    lhs: Value,
    rhs: Value,
    batch: tuple[Sequence[int], Sequence[int]],
    contract: tuple[Sequence[int], Sequence[int]],
    acc: DType,
) -> Value:
    """Sums of products over the contracted axes, in `acc`: axes (batch, free of lhs, free of rhs).

    The product is a value over (batch, free of lhs, free of rhs, contracted), of which later stages
    build nothing.
    """
    # One order of the summed axes for both: the left operand's keep theirs.
    pairs = sorted(zip(*contract, strict=True))
    sides = []
    for side, x in enumerate((lhs, rhs)):
        summed = [pair[side] for pair in pairs]
        taken = {*batch[side], *summed}
        free = [k for k in range(len(x.shape)) if k not in taken]
        turned = permute(cast(x, acc), [*batch[side], *free, *summed])
        sides.append((turned, len(free)))
    (left, rows), (right, columns) = sides
    first, depth = len(batch[0]), len(pairs)
    left = _insert_ones(left, first + rows, columns)
    right = _insert_ones(right, first, rows)
    shape = (*left.shape[: first + rows], *right.shape[first + rows :])
    total = Binary(Fn.MUL, expand(left, shape), expand(right, shape))
    return reduce(ReduceFn.SUM, total, range(len(shape) - depth, len(shape)), acc)


def _insert_ones(x: Value, at: int, count: int) -> Value:
    """`count` axes of size 1 inserted before axis `at`."""
    return reshape(x, (*x.shape[:at], *(1,) * count, *x.shape[at:]))


_MOST_CHOICES = 32
"""Values that one choice by index is among, at most."""
_GROUP = 8
"""How many of more than those are put together first."""


def concat(values: Sequence[Value], along: int) -> Value:
    """Values one after the other: a choice by index among the values, each padded to the whole.

    Many values are put together in groups first, and those groups then: a choice among hundreds is
    longer than what one kernel holds. What reads a group waits for it, so that it is stored: groups
    of the same shapes are one kernel, which is cut where the choice changes.
    """
    parts = [v for v in values if v.shape[along] != 0] or list(values[:1])
    if len(parts) <= _MOST_CHOICES:
        return _concat_by_choice(parts, along)
    while len(parts) > 1:
        groups = range(0, len(parts), _GROUP)
        joined = (_concat_by_choice(parts[n : n + _GROUP], along) for n in groups)
        parts = [barrier(group, group) for group in joined]
    return parts[0]


def _concat_by_choice(parts: Sequence[Value], along: int) -> Value:
    """The same for a few values."""
    total = sum(static(v.shape[along]) for v in parts)
    shape = (*parts[0].shape[:along], total, *parts[0].shape[along + 1 :])
    ends = np.cumsum([static(v.shape[along]) for v in parts]).tolist()
    counter = SI32 if total <= SI32.highest else SI64
    position = Iota(counter, shape, along)
    result = _pad_to_place(parts[-1], along, ends[-1], total)
    # From the last back: a position before several ends belongs to the first of their parts, whose
    # choice is then the outermost.
    for part, end in zip(parts[-2::-1], ends[-2::-1], strict=True):
        inside = binary(Fn.LT, position, end)
        result = Where(inside, _pad_to_place(part, along, end, total), result)
    return result


def _pad_to_place(x: Value, along: int, end: int, total: int) -> Value:
    """`x` padded along one axis so that it ends at `end` of `total`."""
    low, high = [0] * len(x.shape), [0] * len(x.shape)
    low[along], high[along] = end - static(x.shape[along]), total - end
    return pad(x, low, high, const(0, x.dtype))


def pad_between(x: Value, between: Sequence[int], value: Const) -> Value:
    """`between[k]` elements of `value` between each two neighbours of axis k.

    Each axis gets a companion of size 1 that is padded and merged; the tail is cut off.
    """
    sizes = [static(d) for d in x.shape]
    split = [part for size in sizes for part in (size, 1)]
    gaps = [part for gap in between for part in (0, gap)]
    spread = pad(reshape(x, split), [0] * len(split), gaps, value)
    merged = reshape(spread, [n * (gap + 1) for n, gap in zip(sizes, between, strict=True)])
    wanted = [(n - 1) * (gap + 1) + 1 if n else 0 for n, gap in zip(sizes, between, strict=True)]
    return shrink(merged, [0] * len(sizes), wanted)


def tile(x: Value, repeats: Sequence[int]) -> Value:
    """`x` repeated as a whole along each axis."""
    sizes = [static(d) for d in x.shape]
    split = [part for size in sizes for part in (1, size)]
    wide = [part for pair in zip(repeats, sizes, strict=True) for part in pair]
    repeated = expand(reshape(x, split), wide)
    return reshape(repeated, [r * n for r, n in zip(repeats, sizes, strict=True)])


def windows(
    x: Value, window: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> Value:
    """Every window of `x` along its axes: the result has one axis per axis of x that counts the
    windows, then one per axis that counts inside the window."""
    rank = len(x.shape)
    shape: list[int] = []
    index: list[Expr] = []
    for k, dim in enumerate(x.shape):
        span = (window[k] - 1) * dilation[k] + 1
        shape.append(max((static(dim) - span) // strides[k] + 1, 0))
        index.append(axis(f"i{k}") * strides[k] + axis(f"i{rank + k}") * dilation[k])
    shape += window
    return View(x, tuple(shape), tuple(index))


def layer_norm(x: Value, gamma: Value, beta: Value, epsilon: float, along: int) -> Value:
    """`(x - mean) * rsqrt(variance + epsilon) * gamma + beta`, the variance from the differences.

    What is the same for a whole row is computed once, before it is spread over the row.
    """
    count = float(max(static(x.shape[along]), 1))

    def mean(value: Value) -> Value:
        return binary(Fn.DIV, reduce(ReduceFn.SUM, value, [along], value.dtype), count)

    def over_rows(row: Value) -> Value:
        return expand(keep_dims(row, x.shape, [along]), x.shape)

    def laid(parameter: Value) -> Value:
        column = [x.shape[along] if k == along else 1 for k in range(len(x.shape))]
        return expand(reshape(parameter, column), x.shape)

    centred = binary(Fn.SUB, x, over_rows(mean(x)))
    variance = mean(binary(Fn.MUL, centred, centred))
    scale = Unary(Fn.RSQRT, binary(Fn.ADD, variance, epsilon))
    normal = binary(Fn.MUL, centred, over_rows(scale))
    return binary(Fn.ADD, binary(Fn.MUL, normal, laid(gamma)), laid(beta))


# -- one element of a value ----------------------------------------------------------------------


def element(x: Value, index: Sequence[int]) -> Value:
    """The scalar `x[index]`, with everything computed that is known: counters, comparisons of them,
    and choices by such comparisons. Start indices built from constants become constants."""
    return _fold_element(x, tuple(index), _FOLD_DEPTH)


def _fold_element(x: Value, at: tuple[int, ...], depth: int) -> Value:
    match x:
        case Const():
            return x
        case Iota(dtype=dtype, axis=along):
            return const(at[along], dtype)
        case Reshape() | Permute() | Expand() | Pad() | Shrink() if depth:
            return _moved_element(x, at, depth)
        case Where(pred=pred) if depth:
            chosen = _fold_element(pred, at, depth - 1)
            if isinstance(chosen, Const):
                return _fold_element(x.x if chosen.value else x.y, at, depth - 1)
        case Binary(fn=fn, lhs=lhs, rhs=rhs) if depth and fn is not Fn.DIV:
            left, right = _fold_element(lhs, at, depth - 1), _fold_element(rhs, at, depth - 1)
            if isinstance(left, Const) and isinstance(right, Const):
                return _fold_constants(fn, left, right)
    size = (1,) * len(at)
    return reshape(shrink(x, at, size), ())


def _moved_element(
    x: Reshape | Permute | Expand | Pad | Shrink, at: tuple[int, ...], depth: int
) -> Value:
    match x:
        case Reshape(x=inner):
            flat = int(np.ravel_multi_index(at, static_shape(x.shape))) if at else 0
            source: Sequence[int] = [
                int(i) for i in np.unravel_index(flat, static_shape(inner.shape))
            ]
        case Permute(x=inner, perm=perm):
            source = [at[k] for k in inverse(perm)]
        case Expand(x=inner):
            source = [0 if dim == 1 else k for k, dim in zip(at, inner.shape, strict=True)]
        case Shrink(x=inner, start=start):
            source = [k + s for k, s in zip(at, start, strict=True)]
        case Pad(x=inner, low=low, value=value):
            source = [k - s for k, s in zip(at, low, strict=True)]
            inside = all(0 <= k < static(d) for k, d in zip(source, inner.shape, strict=True))
            if not inside:
                return value
    return _fold_element(inner, tuple(source), depth - 1)


def _fold_constants(fn: Fn, lhs: Const, rhs: Const) -> Const:
    dtype = lhs.dtype
    sides = (np.asarray(side.value).astype(dtype.numpy) for side in (lhs, rhs))
    with np.errstate(**functions.QUIET):
        result = functions.binary(str(fn), dtype, *sides)
    return scalar(result, I1 if fn in COMPARISONS else dtype)


def size_of(x: Value) -> int:
    """Number of elements."""
    return prod(static_shape(x.shape))
