"""Numbers of the usual distributions, each a function of one draw. They are computed in f32 at
least; backends agree up to their logarithms and sines."""

from __future__ import annotations

from typing import Any

from weft.foundation.axes import normalise_axis
from weft.foundation.dtypes import F32, F64, DType
from weft.foundation.errors import SpecViolation
from weft.ops.arithmetic import as_tensor, listed
from weft.ops.array.elementwise import abs as magnitude
from weft.ops.array.elementwise import log, log1p, sign
from weft.ops.array.searching import argmax
from weft.ops.calls import public
from weft.ops.promotion import as_float
from weft.ops.random.keys import checked_key, draw, sizes
from weft.ops.random.uniform import float_dtype, open_uniform, uniform
from weft.ops.tensor import Tensor


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
