"""Distributions drawn by trial: a candidate for every element, again for those that were refused.

Each trial has a key of its own. Backends draw the same distribution; where a comparison falls
within a rounding of its bound they may part. No gradient passes the parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from weft.foundation.axes import normalise_axis
from weft.foundation.dims import Shape
from weft.foundation.dtypes import F64, SI64, DType
from weft.foundation.errors import SpecViolation
from weft.ops.arithmetic import as_tensor, broadcast_shapes
from weft.ops.array.creation import asarray, full, zeros
from weft.ops.array.data_types import dtype_named
from weft.ops.array.elementwise import abs as magnitude
from weft.ops.array.elementwise import exp, floor, log, logaddexp, sqrt
from weft.ops.array.manipulation import broadcast_to
from weft.ops.array.searching import where
from weft.ops.array.utility import all as every
from weft.ops.calls import public
from weft.ops.control_flow import while_loop
from weft.ops.functional.activation import softmax
from weft.ops.promotion import DEFAULT_INTEGER
from weft.ops.random.continuous import computed_in, normal
from weft.ops.random.keys import checked_key, fold_in, sizes, split
from weft.ops.random.uniform import fitting, float_dtype, open_uniform, uniform
from weft.ops.tensor import Tensor

Trial = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From a key to candidates, and which of them are accepted."""
_SMALL_MEAN: Final = 10.0
"""Below it Poisson numbers are counted out."""


def _accept_first(key: Tensor, trial: Trial, shape: Shape, dtype: DType) -> Tensor:
    """The first accepted candidate of every element."""

    def again(state: Any) -> Any:
        number, done, found = state
        # Elements that are done are tried again with the others, and keep what they have: a
        # candidate that was refused is overwritten by the next one.
        candidate, taken = trial(fold_in(key, number))
        return number + 1, done | taken, where(done, found, candidate)

    first = (asarray(0), full(shape, False), zeros(shape, dtype=dtype))
    return while_loop(lambda state: ~every(state[1]), again, first)[2]  # type: ignore[no-any-return]


def _log_gamma_variates(key: Tensor, shape: Shape, shape_of_law: Tensor, dtype: DType) -> Tensor:
    """Logarithms of gamma variables, after Marsaglia and Tsang. Those of a law below 1 come from
    the law above, times a power of a uniform number, which only a logarithm can hold."""
    small = shape_of_law < 1.0
    raised = where(small, shape_of_law + 1.0, shape_of_law)
    d = raised - 1.0 / 3.0
    c = 1.0 / sqrt(9.0 * d)
    own, power = split(key)

    def trial(key: Tensor) -> tuple[Tensor, Tensor]:
        a, b = split(key)
        x, unit = normal(a, shape, dtype), open_uniform(b, shape, dtype)
        root = 1.0 + c * x
        size = where(root > 0.0, log(where(root > 0.0, root, 1.0)) * 3.0, 0.0)
        # With v = (1 + c x)³, of which `size` is the logarithm, d v is the gamma variable, accepted
        # where log u < x² / 2 + d - d v + d log v.
        bound = 0.5 * x * x + d - d * exp(size) + d * size
        return size, (root > 0.0) & (log(unit) < bound)

    found = log(d) + _accept_first(own, trial, shape, dtype)
    boost = log(open_uniform(power, shape, dtype)) / where(small, shape_of_law, 1.0)
    return where(small, found + boost, found)


def _positive(value: Any, shape: Shape, dtype: DType) -> Tensor:
    return broadcast_to(fitting(value, shape).astype(dtype), shape)


def _result_shape(shape: Any, *parameters: Any) -> Shape:
    if shape is not None:
        return sizes("shape", shape)
    found: Shape = ()
    for parameter in parameters:
        found = broadcast_shapes(found, asarray(parameter).shape)
    return found


@public
def gamma(key: Tensor, a: Any, shape: Any = None, dtype: Any = None) -> Tensor:
    """Gamma floats with the shape parameter `a` over 0 and scale 1; the shape is that of `a` unless
    it is given."""
    state, wanted = checked_key(key), float_dtype(dtype)
    dims, wide = _result_shape(shape, a), computed_in(wanted)
    return exp(_log_gamma_variates(state, dims, _positive(a, dims, wide), wide)).astype(wanted)


@public
def beta(key: Tensor, a: Any, b: Any, shape: Any = None, dtype: Any = None) -> Tensor:
    """Beta floats in (0, 1) with the parameters `a` and `b` over 0; the shape is that of the
    parameters unless it is given."""
    first, second = split(checked_key(key))
    wanted = float_dtype(dtype)
    dims, wide = _result_shape(shape, a, b), computed_in(wanted)
    x = _log_gamma_variates(first, dims, _positive(a, dims, wide), wide)
    y = _log_gamma_variates(second, dims, _positive(b, dims, wide), wide)
    return exp(x - logaddexp(x, y)).astype(wanted)


@public
def dirichlet(key: Tensor, alpha: Any, shape: Any = None, dtype: Any = None) -> Tensor:
    """Dirichlet floats: rows that sum to 1, along the last axis of the parameters `alpha` over 0.
    `shape`, if given, is that of the result without this axis."""
    state, wanted = checked_key(key), float_dtype(dtype)
    weights = as_tensor(alpha) if not isinstance(alpha, list | tuple) else asarray(alpha)
    if not weights.ndim:
        raise SpecViolation("RankMismatch", "alpha is a scalar", "give a weight for each category")
    last = weights.shape[-1]
    lead = weights.shape[:-1] if shape is None else sizes("shape", shape)
    wide = computed_in(wanted)
    dims = (*lead, last)
    drawn = _log_gamma_variates(state, dims, _positive(weights, dims, wide), wide)
    return softmax(drawn, normalise_axis(-1, len(dims))).astype(wanted)


# -- Poisson -------------------------------------------------------------------------------------


@public
def poisson(key: Tensor, mean: Any, shape: Any = None, dtype: Any = None) -> Tensor:
    """Poisson integers with the given mean; the shape is that of the mean unless it is given. Where
    the mean is negative or no number the result is -1."""
    state = checked_key(key)
    wanted = DEFAULT_INTEGER if dtype is None else dtype_named(dtype)
    if not wanted.is_integer:
        raise SpecViolation(
            "DTypeNotSupported", f"{wanted} is not an integer", "use an integer dtype"
        )
    dims = _result_shape(shape, mean)
    given = _positive(mean, dims, F64)
    small = given < _SMALL_MEAN
    few, many = split(state)
    low = _counted_out(few, dims, where((given >= 0.0) & small, given, 0.0))
    high = _draw_transformed(many, dims, where(small | ~(given >= 0.0), _SMALL_MEAN, given))
    found = where(small, low, high)
    return where(given >= 0.0, found, -1.0).astype(SI64).astype(wanted)


def _counted_out(key: Tensor, shape: Shape, mean: Tensor) -> Tensor:
    """The number whose share a uniform number falls into, counted from 0."""
    unit = uniform(key, shape, F64)

    def further(state: Any) -> Any:
        number, share, total = state
        more = share * mean / (number + 1.0)
        short = unit >= total
        return (
            where(short, number + 1.0, number),
            where(short, more, share),
            where(short, total + more, total),
        )

    def some(state: Any) -> Any:
        _, share, total = state
        # Where the shares are too small to count, rounding has left the total below 1.
        return ~every((unit < total) | (share < 1e-30))

    share = exp(-mean)
    return while_loop(some, further, (zeros(shape, dtype=F64), share, share))[0]  # type: ignore[no-any-return]


def _draw_transformed(key: Tensor, shape: Shape, mean: Tensor) -> Tensor:
    """Transformed rejection, after Hörmann's PTRS (1993), for means of 10 and more."""
    b = 0.931 + 2.53 * sqrt(mean)
    a = -0.059 + 0.02483 * b
    inverse = 1.1239 + 1.1328 / (b - 3.4)
    bound = 0.9277 - 3.6224 / (b - 2.0)

    def trial(key: Tensor) -> tuple[Tensor, Tensor]:
        first, second = split(key)
        u, v = open_uniform(first, shape, F64) - 0.5, open_uniform(second, shape, F64)
        room = 0.5 - magnitude(u)
        k = floor((2.0 * a / room + b) * u + mean + 0.43)
        inside = where(k < 0.0, 0.0, k)
        height = log(v) + log(inverse) - log(a / (room * room) + b)
        level = inside * log(mean) - mean - _log_factorial(inside)
        sure = (room >= 0.07) & (v <= bound)
        refused = (k < 0.0) | ((room < 0.013) & (v > room))
        return inside, sure | (~refused & (height <= level))

    return _accept_first(key, trial, shape, F64)


def _log_factorial(k: Tensor) -> Tensor:
    """log(k!) by Stirling's series, eight numbers further on."""
    z, product = k + 1.0, k + 1.0
    for step in range(1, 8):
        product = product * (z + float(step))
    # log gamma(k + 9), less the logarithm of (k + 1) ... (k + 8): from 9 on the first term of the
    # series that is left out, 1 / (1188 z^9), is below 2.2e-12.
    z = z + 8.0
    inverse = 1.0 / z
    square = inverse * inverse
    series = inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680)))
    return (z - 0.5) * log(z) - z + 0.5 * math.log(2 * math.pi) + series - log(product)
