"""Coarse elementwise activations, and the sum of several tensors."""

from __future__ import annotations

import math

from weft.foundation.dtypes import FLOATS, NUMBERS
from weft.foundation.numeric import wide_dtype
from weft.ptir import library
from weft.ptir.composite import Composite
from weft.ptir.op import coarse_op
from weft.ptir.rules import same_dtype, same_shape
from weft.ptir.schema import Choice, WireEnum, attr
from weft.ptir.term import Cotangents, Pullback, Term
from weft.ptir.types import TensorType

CUBIC = 0.044715
"""The coefficient of x^3 in the tanh form of gelu."""


class Approximation(WireEnum):
    """How gelu computes the normal distribution; the first two are the same."""

    NONE = "none"
    ERF = "erf"
    TANH = "tanh"


@coarse_op("byteir.gelu")
class ByteirGelu(Composite):
    """`x / 2 * (1 + erf(x / sqrt(2)))`, or with the approximation `tanh` `x / 2 * (1 +
    tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`. Floats under 32 bits are computed in f32 and rounded
    once."""

    operands = ("input",)
    dtypes = {"input": FLOATS}
    elementwise = True

    approximate: Approximation = attr(Choice(Approximation), default=Approximation.NONE)

    def infer(self, *types: TensorType) -> TensorType:
        return types[0]

    def decompose(self, *operands: Term) -> Term:
        (x,) = operands
        z = x.cast(wide_dtype(x.dtype))
        if self.approximate is not Approximation.TANH:
            return library.gelu(z).cast(x.dtype)
        inner = (z + z * z * z * CUBIC) * math.sqrt(2.0 / math.pi)
        return (z * 0.5 * (inner.tanh() + 1.0)).cast(x.dtype)

    def vjp(self, at: Pullback) -> Cotangents:
        (x,) = at.operands
        z, g = (term.cast(wide_dtype(x.dtype)) for term in (x, at.cotangent))
        if self.approximate is Approximation.TANH:
            root, square = math.sqrt(2.0 / math.pi), z * z
            t = ((z + z * square * CUBIC) * root).tanh()
            steepness = (square * (3.0 * CUBIC) + 1.0) * root
            slope = (t + 1.0) * 0.5 + z * 0.5 * (1.0 - t * t) * steepness
        else:
            density = (z * z * -0.5).exp() * (1.0 / math.sqrt(2.0 * math.pi))
            slope = ((z / math.sqrt(2.0)).erf() + 1.0) * 0.5 + z * density
        return [(g * slope).cast(x.dtype)]


@coarse_op("byteir.erf")
class ByteirErf(Composite):
    """The error function of each element, as `erf`."""

    operands = ("input",)
    dtypes = {"input": FLOATS}
    elementwise = True

    def infer(self, *types: TensorType) -> TensorType:
        return types[0]

    def decompose(self, *operands: Term) -> Term:
        return operands[0].erf()


@coarse_op("byteir.addn")
class ByteirAddn(Composite):
    """The sum of tensors of one type, added from the first to the last. Integers wrap; floats under
    32 bits add up in f32 and are rounded once."""

    operands = ("*inputs",)
    dtypes = {"inputs": NUMBERS}
    elementwise = True

    def infer(self, *types: TensorType) -> TensorType:
        first = types[0]
        for other in types[1:]:
            same_dtype(first, other, f"the operands of {self.mnemonic}")
            same_shape(first, other, f"the operands of {self.mnemonic}")
        return first

    def decompose(self, *operands: Term) -> Term:
        first = operands[0]
        dtype = wide_dtype(first.dtype) if first.dtype.is_float else first.dtype
        total = first.cast(dtype)
        for other in operands[1:]:
            total = total + other.cast(dtype)
        return total.cast(first.dtype)

    def vjp(self, at: Pullback) -> Cotangents:
        return [at.cotangent] * len(at.operands)
