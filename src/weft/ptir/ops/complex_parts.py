"""Taking complex values apart and putting them together."""

from __future__ import annotations

import numpy as np

from weft.foundation.dtypes import CF32, CF64, COMPLEX, F32, F64, DType
from weft.ptir.op import Array, EvalContext, Op, extension_op
from weft.ptir.rules import same_dtype, same_shape
from weft.ptir.term import Cotangents, Pullback
from weft.ptir.types import TensorType

PART: dict[DType, DType] = {CF32: F32, CF64: F64}
"""The dtype of the two parts of each complex dtype."""
WHOLE: dict[DType, DType] = {part: whole for whole, part in PART.items()}


class Part(Op):
    """One part of each element, as a float of half the width."""

    operands = ("x",)
    dtypes = {"x": COMPLEX}
    elementwise = True

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        return x.with_dtype(PART[x.dtype])


@extension_op("real")
class Real(Part):
    """The real part: f32 of cf32, f64 of cf64."""

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        return args[0].real.copy()

    def vjp(self, at: Pullback) -> Cotangents:
        return (at.cotangent.cast(at.operands[0].dtype),)


@extension_op("imag")
class Imag(Part):
    """The imaginary part: f32 of cf32, f64 of cf64."""

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        return args[0].imag.copy()

    def vjp(self, at: Pullback) -> Cotangents:
        g = at.cotangent
        return (g.like(0).complex(g),)


@extension_op("conj")
class Conj(Op):
    """The complex conjugate: the imaginary part with its sign flipped, of zeros and NaN too."""

    operands = ("x",)
    dtypes = {"x": COMPLEX}
    elementwise = True

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        return x

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        return np.asarray(np.conjugate(args[0]))

    def vjp(self, at: Pullback) -> Cotangents:
        return (at.cotangent.conj(),)


@extension_op("complex")
class Complex(Op):
    """`real + i imag`: cf32 from f32 parts, cf64 from f64 parts. The parts are stored as they are,
    so zero signs, infinities and NaN of one part never touch the other."""

    operands = ("real", "imag")
    dtypes = {"real": frozenset(WHOLE), "imag": frozenset(WHOLE)}
    elementwise = True

    def infer(self, *types: TensorType) -> TensorType:
        real, imag = types
        same_dtype(real, imag, "the operands of complex")
        same_shape(real, imag, "the operands of complex")
        return real.with_dtype(WHOLE[real.dtype])

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        real, imag = args
        result = np.empty(real.shape, np.result_type(real.dtype, np.complex64))
        result.real, result.imag = real, imag
        return result

    def vjp(self, at: Pullback) -> Cotangents:
        return at.cotangent.real(), at.cotangent.imag()
