"""Softmax and its logarithm, in the stable form that is shifted by the largest element."""

from __future__ import annotations

from weft.coarse.forms import reduced
from weft.coarse.rules import check_axis
from weft.foundation.dtypes import FLOATS
from weft.foundation.numeric import wide_dtype
from weft.ptir import library
from weft.ptir.composite import Composite
from weft.ptir.op import coarse_op, op_base
from weft.ptir.schema import Usize, attr
from weft.ptir.term import Cotangents, Pullback, Term
from weft.ptir.types import TensorType


@op_base
class _AlongAxis(Composite):
    """A function of each row along one axis, of the type of its operand."""

    operands = ("input",)
    dtypes = {"input": FLOATS}

    axis: int = attr(Usize())

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        check_axis(self, self.axis, x.rank)
        return x


@coarse_op("byteir.softmax")
class ByteirSoftmax(_AlongAxis):
    """`exp(x - max) / sum(exp(x - max))` along `axis`, which counts from the front. Floats under 32
    bits are computed in f32 and rounded once. A row with NaN, or with nothing but -inf, is NaN."""

    def decompose(self, *operands: Term) -> Term:
        (x,) = operands
        return library.softmax(x, self.axis)

    def vjp(self, at: Pullback) -> Cotangents:
        wide = wide_dtype(at.cotangent.dtype)
        y, g = at.result.cast(wide), at.cotangent.cast(wide)
        inner = reduced(g * y, "sum", [self.axis]).broadcast_to(y.shape)
        return [((g - inner) * y).cast(at.cotangent.dtype)]


@coarse_op("byteir.log_softmax")
class ByteirLogSoftmax(_AlongAxis):
    """`x - max - log(sum(exp(x - max)))` along `axis`, which counts from the front. Floats under 32
    bits are computed in f32 and rounded once. A row with NaN, or with nothing but -inf, is NaN."""

    def decompose(self, *operands: Term) -> Term:
        (x,) = operands
        z = x.cast(wide_dtype(x.dtype))
        shifted = z - reduced(z, "max", [self.axis]).broadcast_to(z.shape)
        total = reduced(shifted.exp(), "sum", [self.axis])
        return (shifted - total.log().broadcast_to(z.shape)).cast(x.dtype)

    def vjp(self, at: Pullback) -> Cotangents:
        wide = wide_dtype(at.cotangent.dtype)
        y, g = at.result.cast(wide), at.cotangent.cast(wide)
        total = reduced(g, "sum", [self.axis]).broadcast_to(y.shape)
        return [(g - y.exp() * total).cast(at.cotangent.dtype)]
