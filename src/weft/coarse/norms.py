"""Normalisation of rows: by mean and variance, or by length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.coarse.forms import laid_along, length, mean, reduced, summed_to
from weft.coarse.rules import check_axes, check_epsilon, result_count
from weft.foundation.dtypes import FLOATS, DType
from weft.foundation.errors import SpecViolation
from weft.foundation.numeric import wide_dtype
from weft.ptir.composite import Composite
from weft.ptir.op import coarse_op
from weft.ptir.rules import invalid_attribute, rank_is, same_dim, same_dtype
from weft.ptir.schema import OPTIONAL_DTYPE, USIZES, Bool, Float, Maybe, Usize, attr
from weft.ptir.term import Cotangents, Parts, Pullback, Term
from weft.ptir.types import TensorType, TupleType, ValueType


@coarse_op("byteir.layer_norm")
class ByteirLayerNorm(Composite):
    """`(x - mean) / sqrt(variance + epsilon) * weight + bias`, or with `eps_outside_sqrt`
    `(x - mean) / (sqrt(variance) + epsilon) * weight + bias`. Mean and variance are taken over the
    axes in `axis`, which count from the front; the variance is biased and computed from the
    differences to the mean. `weight` and `bias` have the extents of those axes, in the order of the
    list.

    With 3 `results` (the declared type says how many) the mean and the factor by which the
    differences are multiplied are returned too, with the reduced axes as 1 and the dtype
    `statistics`: that of the input (the default) or the one it is computed in. Floats under 32 bits
    are computed in f32 and rounded once."""

    operands = ("input", "weight", "bias")
    dtypes = {"input": FLOATS, "weight": FLOATS, "bias": FLOATS}

    epsilon: float = attr(Float())
    axis: tuple[int, ...] = attr(USIZES)
    eps_outside_sqrt: bool | None = attr(Maybe(Bool()), default=None)
    results: int = attr(Usize(), declared=True, default=1)
    statistics: DType | None = attr(OPTIONAL_DTYPE, declared=True, default=None)

    @classmethod
    def declared_attributes(cls, output: ValueType) -> Mapping[str, Any]:
        count = result_count(output, (1, 3), "byteir.layer_norm")
        if not isinstance(output, TupleType):
            return {"results": count}
        result, kept, _ = output.elements
        if not isinstance(result, TensorType) or not isinstance(kept, TensorType):
            raise SpecViolation("OutputTypeMismatch", f"the results are declared as {output}")
        own = kept.dtype is result.dtype
        return {"results": count, "statistics": None if own else kept.dtype}

    def infer(self, *types: TensorType) -> ValueType:
        x, weight, bias = types
        check_epsilon(self, self.epsilon)
        axes = check_axes(self, self.axis, x.rank)
        for parameter, name in ((weight, "weight"), (bias, "bias")):
            same_dtype(x, parameter, f"input and {name}")
            rank_is(parameter, len(axes), f"{name} of {self.mnemonic} over {len(axes)} axes")
            for position, axis in enumerate(axes):
                what = f"axis {position} of {name} and axis {axis} of input differ in extent"
                same_dim(parameter.shape[position], x.shape[axis], what)
        if self.results == 1:
            return x
        return TupleType((x, *[self._statistics(x)] * 2))

    def _statistics(self, x: TensorType) -> TensorType:
        dtype = self.statistics or x.dtype
        if self.results != 3:
            raise invalid_attribute(f"{self.mnemonic} has 1 or 3 results, not {self.results}")
        if dtype not in (x.dtype, wide_dtype(x.dtype)):
            some = " or ".join(map(str, dict.fromkeys([x.dtype, wide_dtype(x.dtype)])))
            raise invalid_attribute(f"statistics of {x.dtype} are of dtype {some}, not {dtype}")
        kept = (1 if axis in self.axis else dim for axis, dim in enumerate(x.shape))
        return TensorType(dtype, tuple(kept))

    def decompose(self, *operands: Term) -> Parts:
        x, weight, bias = operands
        z = x.cast(wide_dtype(x.dtype))
        centre = mean(z, self.axis)
        centred = z - centre.broadcast_to(z.shape)
        variance = mean(centred * centred, self.axis)
        if self.eps_outside_sqrt:
            factor = (length(variance) + self.epsilon).reciprocal()
        else:
            factor = (variance + self.epsilon).rsqrt()
        normal = centred * factor.broadcast_to(z.shape)
        scale, shift = (laid_along(p.cast(z.dtype), self.axis, z) for p in (weight, bias))
        result = (normal * scale + shift).cast(x.dtype)
        if self.results == 1:
            return result
        kept = self.statistics or x.dtype
        return result, centre.cast(kept), factor.cast(kept)

    def vjp(self, at: Pullback) -> Cotangents:
        if self.results != 1 or self.eps_outside_sqrt:
            return super().vjp(at)
        x, weight, _ = at.operands
        z, g = (term.cast(wide_dtype(x.dtype)) for term in (x, at.cotangent))
        centred = z - mean(z, self.axis).broadcast_to(z.shape)
        factor = (mean(centred * centred, self.axis) + self.epsilon).rsqrt().broadcast_to(z.shape)
        normal = centred * factor
        inner = g * laid_along(weight.cast(z.dtype), self.axis, z)
        drift = mean(inner, self.axis).broadcast_to(z.shape)
        stretch = mean(inner * normal, self.axis).broadcast_to(z.shape)
        # What moves all of a row alike changes its mean, and what moves it along itself its
        # deviation: neither changes the result, and both are taken out of the cotangent.
        dx = factor * (inner - drift - normal * stretch)
        parameters = (summed_to(term, self.axis) for term in (g * normal, g))
        return [term.cast(x.dtype) for term in (dx, *parameters)]


@coarse_op("byteir.l2_norm")
class ByteirL2Norm(Composite):
    """`x / sqrt(max(sum(x^2), epsilon))` over the axes in `axis`, which count from the front, or
    with `eps_outside_sqrt` `x / max(sqrt(sum(x^2)), epsilon)`: a bound below, not an addition.
    Floats under 32 bits are computed in f32 and rounded once."""

    operands = ("input",)
    dtypes = {"input": FLOATS}

    epsilon: float = attr(Float())
    axis: tuple[int, ...] = attr(USIZES)
    eps_outside_sqrt: bool | None = attr(Maybe(Bool()), default=None)

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        check_epsilon(self, self.epsilon)
        check_axes(self, self.axis, x.rank)
        return x

    def decompose(self, *operands: Term) -> Term:
        (x,) = operands
        z = x.cast(wide_dtype(x.dtype))
        squares = reduced(z * z, "sum", self.axis)
        if self.eps_outside_sqrt:
            divisor = length(squares).maximum(self.epsilon)
            return (z / divisor.broadcast_to(z.shape)).cast(x.dtype)
        factor = squares.maximum(self.epsilon).rsqrt()
        return (z * factor.broadcast_to(z.shape)).cast(x.dtype)
