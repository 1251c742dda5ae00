"""Functions beyond the array API that users of NumPy, PyTorch and JAX know; they mean what NumPy's
do. Mere aliases stand at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from typing import Any

from weft.foundation.axes import normalise_axis
from weft.foundation.calls import told
from weft.foundation.dims import Shape, shape_of
from weft.foundation.dtypes import I1, SI64
from weft.foundation.errors import OutOfRange, UserError
from weft.ops.arithmetic import TensorLike, as_tensor, listed, unary
from weft.ops.arithmetic import broadcast_shapes as broadcast_pair
from weft.ops.array import elementwise
from weft.ops.array.creation import diagonal_mask, tensor, zeros
from weft.ops.array.data_types import finfo
from weft.ops.array.elementwise import conj, equal, less_equal, logical_and, logical_or
from weft.ops.array.indexing import take
from weft.ops.array.linear_algebra import tensordot
from weft.ops.array.manipulation import axes_of, concat, permute_dims, reshape, stack
from weft.ops.array.matrices import diagonal_of
from weft.ops.array.movement import window
from weft.ops.array.operands import known
from weft.ops.array.searching import nonzero, searchsorted, where
from weft.ops.array.sets import unique_values
from weft.ops.array.sorting import sort
from weft.ops.array.statistics import Axes, cumulative_prod, cumulative_sum
from weft.ops.array.utility import all as all_of
from weft.ops.array.utility import any as any_of
from weft.ops.calls import public
from weft.ops.capture_recipes import recorded
from weft.ops.functional.linear import matmul
from weft.ops.promotion import as_float
from weft.ops.session import Handle
from weft.ops.tensor import Tensor, tensor_method

__all__ = [
    "absolute", "allclose", "argwhere", "array", "array_equal", "broadcast_shapes", "concatenate",
    "cumprod", "cumsum", "diag", "dot", "erf", "hstack", "isclose", "isin", "median", "mod",
    "nan_to_num", "power", "quantile", "ravel", "rsqrt", "split", "swapaxes", "transpose", "unique",
    "vstack",
]  # fmt: skip

_MANY = 1024


# -- shapes --------------------------------------------------------------------------------------


@public
def transpose(x: Tensor, /, axes: Sequence[int] | None = None) -> Tensor:
    """The axes in another order: axis `i` of the result is axis `axes[i]`; reversed where none are
    given."""
    value = as_tensor(x)
    return permute_dims(value, tuple(range(value.ndim))[::-1] if axes is None else axes)


@tensor_method("transpose")
@public
def _transpose_method(x: Tensor, /, *axes: Any) -> Tensor:
    """`weft.transpose`; the axes may also be written one by one."""
    one = len(axes) == 1 and not isinstance(axes[0], int)
    order = axes[0] if one else axes or None
    if x.ndim == 2 and len(axes) == 2 and [axis % 2 for axis in axes] == [0, 1]:
        raise UserError(
            f"transpose{axes} of a matrix leaves it as it is in NumPy and exchanges its axes in "
            "PyTorch; write x.T, x.swapaxes(0, 1) or x.permute_dims(axes)"
        )
    if order is not None and len(order) == 2 != x.ndim:
        raise UserError(
            f"transpose{tuple(order)} of {x.type} names two of {x.ndim} axes; x.swapaxes exchanges "
            "two, transpose takes them all"
        )
    return transpose(x, order)


@tensor_method
@public
def swapaxes(x: Tensor, axis1: int, axis2: int, /) -> Tensor:
    """Two axes exchanged."""
    value = as_tensor(x)
    first, second = (normalise_axis(axis, value.ndim) for axis in (axis1, axis2))
    order = list(range(value.ndim))
    order[first], order[second] = second, first
    return permute_dims(value, order)


@tensor_method
@public
def ravel(x: Tensor, /) -> Tensor:
    """All elements in one axis, in row-major order."""
    return reshape(x, (-1,)) if as_tensor(x).size != 0 else reshape(x, (0,))


@tensor_method
@public
def cumsum(x: Tensor, /, axis: int | None = None, dtype: Any = None) -> Tensor:
    """The sums of all elements up to each one along an axis; without one, of `x` as one axis."""
    whole, along = (ravel(x), 0) if axis is None else (x, axis)
    return cumulative_sum(whole, axis=along, dtype=dtype)


@tensor_method
@public
def cumprod(x: Tensor, /, axis: int | None = None, dtype: Any = None) -> Tensor:
    """The products of all elements up to each one along an axis; without one, of `x` as one
    axis."""
    whole, along = (ravel(x), 0) if axis is None else (x, axis)
    return cumulative_prod(whole, axis=along, dtype=dtype)


@public
def split(x: Tensor, parts: int | Sequence[int], /, axis: int = 0) -> list[Tensor]:
    """The tensor cut along an axis: into `parts` pieces of equal size, or before each of these
    positions."""
    value = as_tensor(x)
    at = normalise_axis(axis, value.ndim)
    size = known(value.shape[at], f"axis {at}")
    pieces = _cuts(value, parts, at, size)
    return list(_pieces(value, at, (0, *pieces, size)))


def _cuts(x: Tensor, parts: Any, axis: int, size: int) -> tuple[int, ...]:
    """Where the pieces after the first begin."""
    if not isinstance(parts, int):
        return tuple(slice(None, position).indices(size)[1] for position in parts)
    if parts < 1 or size % parts:
        raise OutOfRange(
            "InvalidAttributeValue",
            f"axis {axis} of x {listed(x.shape)} cannot be cut into {parts} equal parts",
            "give the positions of the cuts instead, in a list",
        )
    return tuple(range(size // parts, size, size // parts)) if size else (0,) * (parts - 1)


@recorded
def _pieces(x: Handle, axis: int, bounds: tuple[int, ...]) -> tuple[Handle, ...]:
    return tuple(window(x, axis, a, max(b - a, 0)) for a, b in pairwise(bounds))


@public
def hstack(arrays: Sequence[Tensor], /) -> Tensor:
    """Tensors side by side: joined along the second axis, vectors along their only one."""
    values = [_of_rank(as_tensor(x), 1) for x in arrays]
    return concat(values, axis=0 if values and values[0].ndim == 1 else 1)


@public
def vstack(arrays: Sequence[Tensor], /) -> Tensor:
    """Tensors one below the other: joined along the first axis, vectors as rows."""
    return concat([_of_rank(as_tensor(x), 2) for x in arrays], axis=0)


def _of_rank(x: Tensor, rank: int) -> Tensor:
    """At least of this rank, with axes of size 1 in front."""
    return x if x.ndim >= rank else reshape(x, (*(1,) * (rank - x.ndim), *x.shape))


@public
def broadcast_shapes(*shapes: Sequence[int]) -> Shape:
    """The shape that tensors of these shapes broadcast to together."""
    return reduce(broadcast_pair, [shape_of(shape) for shape in shapes], ())


# -- products and diagonals ----------------------------------------------------------------------


@tensor_method
@public
def dot(x1: Any, x2: Any, /) -> Tensor:
    """The product of numbers, vectors or matrices; of more axes, the sum over the last of `x1` and
    the second last of `x2`."""
    ranks = [getattr(x, "ndim", 0) for x in (x1, x2)]
    if 0 in ranks:
        return elementwise.multiply(x1, x2)
    if max(ranks) <= 2:
        return matmul(x1, x2)
    return tensordot(x1, x2, axes=((ranks[0] - 1,), (max(ranks[1] - 2, 0),)))


@recorded
def diag(x: Handle, /, k: int = 0) -> Handle:
    """Diagonal `k` of a matrix, or a matrix with a vector on it and zeros elsewhere."""
    if x.rank == 2:
        return diagonal_of(x, k)
    if x.rank != 1:
        raise OutOfRange(
            "RankMismatch",
            f"x {listed(x.shape)} has rank {x.rank}, but a vector or a matrix is wanted",
            "use weft.linalg.diagonal for stacks of matrices",
        )
    size = known(x.shape[0], "the vector") + abs(k)
    padding = {"low": [max(k, 0)], "high": [max(-k, 0)], "interior": [0]}
    zero = False if x.dtype is I1 else 0
    row = x.session.emit("pad", x, pad_value=zero, **padding).reshape((1, size))
    mask = diagonal_mask(x.session, (size, size), k, "equal")
    square = row.broadcast_to((size, size))
    return mask.select(square, x.session.full(zero, x.dtype, (size, size)))


# -- nearness ------------------------------------------------------------------------------------


@public
def isclose(
    x1: TensorLike, x2: TensorLike, /, rtol: float = 1e-5, atol: float = 1e-8,
    equal_nan: bool = False,
) -> Tensor:  # fmt: skip
    """Whether `|x1 - x2| <= atol + rtol |x2|`, element by element; infinities are close to
    themselves, and NaN is with `equal_nan`."""
    distance = elementwise.abs(elementwise.subtract(*_as_floats(x1, x2)))
    far = elementwise.isinf(distance)
    limit = elementwise.abs(_as_floats(x2, x1)[0]) * rtol + atol
    near = logical_and(less_equal(distance, limit), elementwise.logical_not(far))
    close = logical_or(equal(x1, x2), near)
    if not equal_nan:
        return close
    return logical_or(close, logical_and(*(elementwise.isnan(x) for x in _as_floats(x1, x2))))


def _as_floats(x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Both as tensors with fractions."""
    pair = [as_tensor(v) if hasattr(v, "shape") else tensor(v) for v in (x, y)]
    return tuple(v.astype(as_float(v.dtype)) for v in pair)  # type: ignore[return-value]


@public
def allclose(
    x1: TensorLike, x2: TensorLike, /, rtol: float = 1e-5, atol: float = 1e-8,
    equal_nan: bool = False,
) -> Tensor:  # fmt: skip
    """Whether all elements are close, as `isclose` says."""
    return all_of(isclose(x1, x2, rtol, atol, equal_nan))


@public
def array_equal(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Whether two tensors have one shape and equal elements."""
    first, second = (as_tensor(x) if hasattr(x, "shape") else tensor(x) for x in (x1, x2))
    if first.shape != second.shape:
        return tensor(False)
    return all_of(equal(first, second))


@public
def nan_to_num(
    x: Tensor, /, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """NaN as a number, and infinities as the largest and smallest finite ones or those given."""
    value = as_tensor(x)
    if not value.dtype.is_float:
        return value.copy()
    most = finfo(value.dtype).max
    result = where(elementwise.isnan(value), nan, value)
    result = where(equal(value, math.inf), most if posinf is None else posinf, result)
    return where(equal(value, -math.inf), -most if neginf is None else neginf, result)


# -- functions -----------------------------------------------------------------------------------


@tensor_method
@told
def erf(x: Tensor, /) -> Tensor:
    """The error function, as in SciPy and PyTorch."""
    return unary("erf", x, floating=True)


@tensor_method
@told
def rsqrt(x: Tensor, /) -> Tensor:
    """One over the square root, as in PyTorch and JAX."""
    return unary("rsqrt", x, floating=True)


# -- order ---------------------------------------------------------------------------------------


@tensor_method
@recorded
def quantile(
    x: Handle, /, q: float | Sequence[float], axis: Axes = None, *, keepdims: bool = False
) -> Handle:
    """The element that a share `q` of all lies below, linearly between neighbours; NaN where there
    is one. Several shares, in a list, come along a new first axis."""
    shares = q if isinstance(q, tuple) else (q,)
    if not all(isinstance(s, int | float) and 0 <= s <= 1 for s in shares):
        raise OutOfRange("InvalidAttributeValue", f"q is {q!r}", "give numbers from 0 to 1")
    axes = axes_of(axis, x.rank)
    rest = [a for a in range(x.rank) if a not in axes]
    size = math.prod(known(x.shape[a], f"axis {a}") for a in axes)
    if size == 0:
        raise OutOfRange(
            "ShapeMismatch",
            f"x {listed(x.shape)} has no elements along axes {axes} to choose from",
            "check for an empty tensor first",
        )
    rows = x.transpose([*rest, *axes]).reshape((*[x.shape[a] for a in rest], size))
    ordered = rows.cast(as_float(x.dtype)).sort(axis=len(rest), descending=False)
    shape = [1 if a in axes else d for a, d in enumerate(x.shape) if keepdims or a in rest]
    found = [_at_share(ordered, float(share)).reshape(shape) for share in shares]
    if not isinstance(q, tuple):
        return found[0]
    lined = [f.reshape((1, *shape)) for f in found]
    return lined[0] if len(lined) == 1 else x.session.concat(lined, 0)


def _at_share(ordered: Handle, share: float) -> Handle:
    """One element of each sorted row, between its neighbours; NaN is the largest of a row."""
    last = ordered.rank - 1
    size = known(ordered.shape[last], "a row")
    place = share * (size - 1)
    low = math.floor(place)
    first, second = window(ordered, last, low, 1), window(ordered, last, min(low + 1, size - 1), 1)
    between = first + (second - first) * (place - low) if place > low else first
    largest = window(ordered, last, size - 1, 1)
    return largest.isnan().select(largest, between)


@tensor_method
@public
def median(x: Tensor, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """The middle element, or the mean of the two in the middle; NaN where there is one."""
    return quantile(x, 0.5, axis, keepdims=keepdims)


@public
def isin(x1: TensorLike, x2: TensorLike, /, *, invert: bool = False) -> Tensor:
    """Whether each element of `x1` is an element of `x2`."""
    first, second = (as_tensor(x) if hasattr(x, "shape") else tensor(x) for x in (x1, x2))
    searched = _has_many(first) and _has_many(second)
    found = _searched_in(first, second) if searched else _compared_with_all(first, second)
    return elementwise.logical_not(found) if invert else found


def _has_many(x: Tensor) -> bool:
    """Whether x is known to have so many elements, in an order, that comparing all pairs of them
    takes longer than sorting and searching."""
    sizes = [size for size in x.shape if isinstance(size, int)]
    ordered = x.dtype.is_integer or x.dtype.is_float
    return ordered and len(sizes) == x.ndim and math.prod(sizes) >= _MANY


def _searched_in(first: Tensor, second: Tensor) -> Tensor:
    """The element that each would stand before, in order, is equal to it or none is."""
    row = sort(reshape(second, (-1,)))
    places = searchsorted(row, first)
    last = math.prod(second.shape) - 1
    return equal(take(row, elementwise.minimum(places, last)), first)


def _compared_with_all(first: Tensor, second: Tensor) -> Tensor:
    held = reshape(second, (*(1,) * first.ndim, -1))
    return any_of(equal(reshape(first, (*first.shape, 1)), held), axis=-1)


@public
def argwhere(x: Tensor, /) -> Tensor:
    """The positions of the elements that are not zero, one row each. This reads `x`."""
    value = as_tensor(x)
    if not value.ndim:
        return zeros((int(bool(value)), 0), dtype=SI64)
    return stack(list(nonzero(value)), axis=1)


# -- other spellings -----------------------------------------------------------------------------

absolute = elementwise.abs
array = tensor
concatenate = concat
mod = elementwise.remainder
power = elementwise.pow
unique = unique_values

tensor_method("conjugate")(conj)
tensor_method("copy")(elementwise.positive)
tensor_method("flatten")(ravel)
