"""Random orders, and elements taken at random."""

from __future__ import annotations

import math
from typing import Any

from weft.foundation.axes import normalise_axis
from weft.foundation.dims import Shape
from weft.foundation.errors import SpecViolation, UserError
from weft.ops.arithmetic import TensorLike, as_tensor, listed
from weft.ops.array.creation import arange
from weft.ops.array.elementwise import log, minimum
from weft.ops.array.indexing import take, take_along_axis
from weft.ops.array.operands import known
from weft.ops.array.searching import searchsorted
from weft.ops.array.sorting import argsort
from weft.ops.array.statistics import cumulative_sum
from weft.ops.calls import public
from weft.ops.promotion import as_float
from weft.ops.random.continuous import gumbel
from weft.ops.random.keys import checked_key, sizes, wide_bits
from weft.ops.random.uniform import randint, uniform
from weft.ops.tensor import Tensor


@public
def permutation(key: Tensor, x: Any, axis: int = 0, *, independent: bool = False) -> Tensor:
    """The slices of `x` along an axis in random order; of a number n, the numbers below it. With
    `independent` every row along the axis gets an order of its own."""
    state = checked_key(key)
    if isinstance(x, int) and not isinstance(x, bool):
        return _random_order(state, sizes("x", x))
    values = as_tensor(x)
    if not values.ndim:
        raise UserError(f"x is {values.type}, which has no axis; give a number or a tensor")
    at = normalise_axis(axis, values.ndim)
    if independent:
        return take_along_axis(values, argsort(wide_bits(state, values.shape), at), at)
    return take(values, _random_order(state, (values.shape[at],)), at)


@public
def shuffle(key: Tensor, x: TensorLike, axis: int = 0) -> Tensor:
    """The slices of `x` along an axis in random order: a new tensor, as `permutation` makes it."""
    return permutation(key, as_tensor(x), axis)


def _random_order(key: Tensor, shape: Shape) -> Tensor:
    """The numbers below a size in random order: the places that sort random bits. Two of n numbers
    have the same bits with probability n^2 / 2^65."""
    return argsort(wide_bits(key, shape), 0)


@public
def choice(
    key: Tensor, x: Any, shape: Any = (), *, replace: bool = True, p: Any = None, axis: int = 0
) -> Tensor:
    """Slices of `x` along an axis, taken at random; of a number n, numbers below it. Their shape
    takes the place of the axis. `replace` allows to take one twice, `p` are the weights of the
    slices, which need not sum to 1."""
    state, dims = checked_key(key), sizes("shape", shape)
    whole = isinstance(x, int) and not isinstance(x, bool)
    values = arange(x) if whole else as_tensor(x)
    if not values.ndim:
        raise UserError(f"x is {values.type}, which has no axis; give a number or a tensor")
    at = normalise_axis(axis, values.ndim)
    size = known(values.shape[at], "the axis to choose from")
    count = math.prod(known(dim, "a size of shape") for dim in dims)
    _check_counts(size, count, replace)
    if p is not None:
        places = _draw_by_weight(state, dims, count, replace, _weights(p, size))
    elif replace:
        places = randint(state, dims, 0, size) if size else arange(0).reshape(dims)
    else:
        places = _random_order(state, (size,))[:count].reshape(dims)
    return places if whole else take(values, places, at)


def _check_counts(size: int, count: int, replace: bool) -> None:
    if count and not size:
        raise UserError(f"{count} slices are wanted, but there are none to choose from")
    if not replace and count > size:
        raise UserError(f"{count} of {size} slices cannot be taken without replacement")


def _weights(p: Any, size: int) -> Tensor:
    weights = as_tensor(p)
    if weights.shape != (size,):
        raise SpecViolation(
            "ShapeMismatch",
            f"p has shape {listed(weights.shape)}, but there are {size} slices",
            "give one weight for each of them",
        )
    return weights.astype(as_float(weights.dtype))


def _draw_by_weight(key: Tensor, dims: Shape, count: int, replace: bool, weights: Tensor) -> Tensor:
    """Places by weight: where a uniform number falls among the sums of the weights; without
    replacement, those where the logarithm of the weight and a Gumbel variable is largest."""
    if not replace:
        scores = gumbel(key, weights.shape, weights.dtype) + log(weights)
        return argsort(scores, descending=True)[:count].reshape(dims)
    sums = cumulative_sum(weights)
    last = sums.shape[0]
    assert isinstance(last, int)
    drawn = uniform(key, dims, weights.dtype) * sums[-1]
    # A number near 1 times the sum may be rounded to the sum itself, behind which no slice is.
    return minimum(searchsorted(sums, drawn.reshape(-1), side="right"), last - 1).reshape(dims)
