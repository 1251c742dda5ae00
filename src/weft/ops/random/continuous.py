"""Numbers of the usual distributions, each a function of one draw. They are computed in f32 at
least; backends agree up to their logarithms and sines."""

from __future__ import annotations

import math
from typing import Any, Final

from weft.foundation.axes import normalise_axis
from weft.foundation.dtypes import F32, F64, DType
from weft.foundation.errors import SpecViolation
from weft.ops.arithmetic import as_tensor, broadcast_shapes, listed
from weft.ops.array.beyond import erf
from weft.ops.array.creation import asarray
from weft.ops.array.elementwise import abs as magnitude
from weft.ops.array.elementwise import clip, log, log1p, maximum, minimum, sign
from weft.ops.array.searching import argmax, where
from weft.ops.array.special.errors import ndtr, normal_quantile
from weft.ops.calls import public
from weft.ops.promotion import as_float
from weft.ops.random.keys import checked_key, draw, sizes
from weft.ops.random.uniform import fitting, float_dtype, open_uniform, uniform
from weft.ops.tensor import Tensor

_FAR: Final = 37.0
"""The share of a normal variable beyond more deviations is too small for a normal float."""
_INVERSE_E: Final = {
    F32: (0.3678794503211975, -9.149755188170102e-09),
    F64: (0.36787944117144233, -1.2428753672788363e-17),
}
"""1/e as a number of the dtype, and what is left."""


def computed_in(dtype: DType) -> DType:
    """The dtype that a distribution is computed in."""
    return F64 if dtype is F64 else F32


@public
def normal(key: Tensor, shape: Any = (), dtype: Any = None) -> Tensor:
    """Standard normal floats: mean 0, deviation 1."""
    return draw("philox_normal", checked_key(key), sizes("shape", shape), float_dtype(dtype))


@public
def exponential(key: Tensor, shape: Any = (), dtype: Any = None) -> Tensor:
    """Exponential floats with mean 1."""
    wanted = float_dtype(dtype)
    return (-log1p(-uniform(key, shape, computed_in(wanted)))).astype(wanted)


@public
def gumbel(key: Tensor, shape: Any = (), dtype: Any = None) -> Tensor:
    """Gumbel floats: `-log(-log(u))` of uniform u."""
    wanted = float_dtype(dtype)
    unit = open_uniform(checked_key(key), sizes("shape", shape), computed_in(wanted))
    # The inner logarithm is near -1 where u is near 1/e, and the outer one would see its rounding.
    # There u - 1/e is exact with 1/e in two parts, and log(u) = log1p(e * (u - 1/e)) - 1.
    near = (unit > 0.125) & (unit < 0.625)
    inverse, rest = _INVERSE_E[unit.dtype]
    beside = (where(near, unit, 0.5) - inverse) - rest
    return where(near, -log1p(-log1p(beside * math.e)), -log(-log(unit))).astype(wanted)


@public
def laplace(key: Tensor, shape: Any = (), dtype: Any = None) -> Tensor:
    """Laplace floats with mean 0 and scale 1."""
    wanted = float_dtype(dtype)
    unit = open_uniform(checked_key(key), sizes("shape", shape), computed_in(wanted)) * 2.0 - 1.0
    return (-sign(unit) * log1p(-magnitude(unit))).astype(wanted)


@public
def categorical(key: Tensor, logits: Any, axis: int = -1, shape: Any = None) -> Tensor:
    """Categories along an axis, each with a probability proportional to the exponential of its
    logit. `shape`, if given, ends with the shape of the logits without that axis."""
    scores = as_tensor(logits)
    scores = scores.astype(as_float(scores.dtype))
    at = normalise_axis(axis, scores.ndim)
    batch = scores.shape[:at] + scores.shape[at + 1 :]
    dims = batch if shape is None else sizes("shape", shape)
    more = len(dims) - len(batch)
    if more < 0 or dims[more:] != batch:
        raise SpecViolation(
            "ShapeMismatch",
            f"shape is {listed(dims)}, but the logits have batch axes {listed(batch)}",
            "shape must end with them",
        )
    noise = gumbel(key, (*dims[:more], *scores.shape), scores.dtype)
    return argmax(noise + scores, axis=at + more)


@public
def truncated_normal(
    key: Tensor, lower: Any = -2.0, upper: Any = 2.0, shape: Any = None, dtype: Any = None
) -> Tensor:
    """Standard normal floats that lie between `lower` and `upper`, numbers or tensors; the shape is
    that of the bounds unless it is given. Bounds further out than 37 deviations on one side count
    as 37."""
    wanted = float_dtype(dtype)
    bounds = broadcast_shapes(asarray(lower).shape, asarray(upper).shape)
    dims = bounds if shape is None else sizes("shape", shape)
    low, high = (fitting(bound, dims).astype(F64) for bound in (lower, upper))
    drawn = _normal_between(low, high, open_uniform(checked_key(key), dims, F64))
    found = minimum(maximum(drawn, low), high).astype(wanted)
    # Rounding to the dtype must not lead out of the bounds again.
    return minimum(maximum(found, low.astype(wanted)), high.astype(wanted))


def _normal_between(low: Tensor, high: Tensor, unit: Tensor) -> Tensor:
    """The normal number that has a share `unit` of those between the bounds below it. The shares
    are sums of small numbers in the tails, and a difference from a half in between."""
    start, end = (clip(bound, -_FAR, _FAR) for bound in (low, high))
    first, last = (erf(bound * math.sqrt(0.5)) * 0.5 for bound in (start, end))
    below, above = ndtr(start), ndtr(-end)
    one_side = (start > 0.0) | (end < 0.0)
    tails = magnitude(ndtr(-magnitude(start)) - ndtr(-magnitude(end)))
    mass = where(one_side, tails, last - first)
    rest = minimum(below + unit * mass, above + (1.0 - unit) * mass)
    return normal_quantile((first + last) * 0.5 + (unit - 0.5) * mass, rest)
