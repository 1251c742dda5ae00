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
from weft.ops.array.elementwise import clip, exp, log, log1p, maximum, minimum, sign, sqrt
from weft.ops.array.searching import argmax
from weft.ops.calls import public
from weft.ops.promotion import as_float
from weft.ops.random.keys import checked_key, draw, sizes
from weft.ops.random.uniform import fitting, float_dtype, open_uniform, uniform
from weft.ops.tensor import Tensor

_FAR: Final = 8.0
"""The error function of more deviations is 1."""
_LAST: Final = 1.0 - 2.0**-53


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
    return (-log(-log(unit))).astype(wanted)


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
    that of the bounds unless it is given. Bounds further out than 8 deviations on one side count
    as 8."""
    wanted = float_dtype(dtype)
    bounds = broadcast_shapes(asarray(lower).shape, asarray(upper).shape)
    dims = bounds if shape is None else sizes("shape", shape)
    low, high = (fitting(bound, dims).astype(F64) for bound in (lower, upper))
    first, last = (erf(clip(bound, -_FAR, _FAR) * math.sqrt(0.5)) for bound in (low, high))
    share = first + (last - first) * open_uniform(checked_key(key), dims, F64)
    drawn = _inverse_erf(clip(share, -_LAST, _LAST)) * math.sqrt(2.0)
    found = minimum(maximum(drawn, low), high).astype(wanted)
    # Rounding to the dtype must not lead out of the bounds again.
    return minimum(maximum(found, low.astype(wanted)), high.astype(wanted))


def _inverse_erf(y: Tensor) -> Tensor:
    """The number whose error function is y: an approximation of Winitzki's, and three steps of
    Halley's towards the root."""
    level = log1p(-(y * y))
    part = 2.0 / (math.pi * 0.147) + level * 0.5
    x = sign(y) * sqrt(sqrt(part * part - level / 0.147) - part)
    for _ in range(3):
        error = erf(x) - y
        x = x - error / (2.0 / math.sqrt(math.pi) * exp(-(x * x)) + x * error)
    return x
