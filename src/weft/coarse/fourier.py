"""Discrete Fourier transforms of the lengths that CPUs take in steps."""

from __future__ import annotations

from math import prod

from weft.foundation.dtypes import CF32, CF64
from weft.foundation.fourier_steps import LEAST, MOST, steps_of
from weft.foundation.whole_ops import Fourier, WholeOp
from weft.ptir.composite import Composite
from weft.ptir.fourier import fourier_sums
from weft.ptir.op import coarse_op
from weft.ptir.rules import rank_at_least, violation
from weft.ptir.schema import Bool, attr
from weft.ptir.term import Cotangents, Pullback, Term
from weft.ptir.types import TensorType


@coarse_op("weft.fourier.v1", name="weft.fourier")
class FourierTransform(Composite):
    """`y[k] = sum(x[j] exp(-2 pi i j k / n))` along the last axis, of n elements; with `inverse`
    the sign is the other one, and with `divided` the sums are divided by n. n is even, from 32 to
    65536, and has no prime factor above 13."""

    operands = ("x",)
    dtypes = {"x": frozenset({CF32, CF64})}

    inverse: bool = attr(Bool(), usual=False)
    divided: bool = attr(Bool(), usual=False)

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        rank_at_least(x, 1, "x")
        size = x.shape[-1]
        if not isinstance(size, int) or not steps_of(size):
            raise violation(
                "InvalidAttributeValue",
                f"the last axis of weft.fourier has the size {size}; even sizes from {LEAST} to "
                f"{MOST} without a prime factor above 13 are possible",
            )
        return x

    def decompose(self, *operands: Term) -> Term:
        (x,) = operands
        size = x.sizes[-1]
        sums = fourier_sums(x, size, 1 if self.inverse else -1)
        return sums * (1 / size) if self.divided else sums

    def whole(self, *types: TensorType) -> WholeOp | None:
        *others, size = types[0].static_shape
        return Fourier(prod(others), size, self.inverse, self.divided) if prod(others) else None

    def vjp(self, at: Pullback) -> Cotangents:
        """The matrix is symmetric, so that its adjoint is the transform with the other sign."""
        inverse = not self.inverse
        return (at.cotangent.apply("weft.fourier", inverse=inverse, divided=self.divided),)
