"""Normalisation over a feature axis."""

from __future__ import annotations

import math

import numpy as np

from weft.foundation import numeric
from weft.foundation.axes import normalise_axis
from weft.foundation.dtypes import F32, F64, FLOATS, as_dtype
from weft.ptir.op import Array, EvalContext, Op, core_op
from weft.ptir.rules import invalid_attribute, rank_is, same_dim, same_dtype
from weft.ptir.schema import Float, Isize, attr
from weft.ptir.term import Cotangents, Pullback, Term
from weft.ptir.types import TensorType


@core_op(tag=37, spec=None)
class LayerNorm(Op):
    """`(x - mean) / sqrt(variance + epsilon) * gamma + beta` along `feature_axis`: mean and
    variance are taken over that axis alone, the variance is biased (divided by the extent) and
    computed from the differences to the mean. `gamma` and `beta` have the shape `[extent of
    feature_axis]`. Floats under 32 bits are computed in f32 throughout and rounded once."""

    operands = ("x", "gamma", "beta")
    dtypes = {"x": FLOATS, "gamma": FLOATS, "beta": FLOATS}

    epsilon: float = attr(Float(), usual=1e-5)
    feature_axis: int = attr(Isize(), usual=-1)

    def infer(self, *types: TensorType) -> TensorType:
        x, gamma, beta = types
        if not (math.isfinite(self.epsilon) and self.epsilon >= 0.0):
            raise invalid_attribute(
                f"epsilon {self.epsilon} of layer_norm is not a finite number of at least 0"
            )
        axis = normalise_axis(self.feature_axis, x.rank, "feature_axis")
        for parameter, name in ((gamma, "gamma"), (beta, "beta")):
            same_dtype(x, parameter, f"x and {name}")
            rank_is(parameter, 1, name)
            what = f"{name} and feature axis {axis} of x differ in extent"
            same_dim(parameter.shape[0], x.shape[axis], what)
        return x

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        x = args[0]
        axis = normalise_axis(self.feature_axis, x.ndim)

        def layer_norm(x: Array, gamma: Array, beta: Array) -> Array:
            along = [-1 if position == axis else 1 for position in range(x.ndim)]
            count = max(x.shape[axis], 1)
            centred = x - np.sum(x, axis=axis, keepdims=True) / count
            variance = np.sum(centred * centred, axis=axis, keepdims=True) / count
            normal = centred / np.sqrt(variance + self.epsilon)
            return np.asarray(normal * gamma.reshape(along) + beta.reshape(along))

        return numeric.compute(layer_norm, as_dtype(x.dtype), *args)

    def vjp(self, at: Pullback) -> Cotangents:
        x, gamma, _ = at.operands
        axis = normalise_axis(self.feature_axis, x.rank)
        wide = F64 if x.dtype is F64 else F32
        z, g = x.cast(wide), at.cotangent.cast(wide)
        count = z.extent(axis, wide).maximum(1.0)

        def mean(term: Term) -> Term:
            total = term.sum([axis])
            return (total / count.broadcast_to(total.shape)).restored([axis], x.shape)

        centred = z - mean(z)
        scale = (mean(centred * centred) + self.epsilon).rsqrt()
        normal = centred * scale
        inner = g * gamma.cast(wide).along(axis, x.shape)
        by_x = scale * (inner - mean(inner) - normal * mean(inner * normal))
        others = [d for d in range(x.rank) if d != axis]
        by_gamma, by_beta = (g * normal).sum(others), g.sum(others)
        return by_x.cast(x.dtype), by_gamma.cast(x.dtype), by_beta.cast(x.dtype)
