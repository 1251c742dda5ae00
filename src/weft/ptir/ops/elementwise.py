"""Elementwise arithmetic, comparison and selection: one result element per index, no
broadcasting."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np

from weft.foundation import functions, numeric
from weft.foundation.dtypes import ANY, BOOL, I1, ORDERED, DType, as_dtype
from weft.foundation.scalar import FUNCTIONS, Fn
from weft.ptir.op import Array, EvalContext, Op, core_op
from weft.ptir.rules import same_dtype, same_shape
from weft.ptir.schema import Choice, DTypeOf, WireEnum, attr
from weft.ptir.term import Cotangents, Pullback, Term
from weft.ptir.types import TensorType


class UnaryFn(WireEnum):
    """The unary functions of the contract."""

    NEG = "Neg"
    ABS = "Abs"
    EXP = "Exp"
    LOG = "Log"
    TANH = "Tanh"
    ERF = "Erf"
    RSQRT = "Rsqrt"
    RECIPROCAL = "Reciprocal"


class BinaryFn(WireEnum):
    """The binary functions of the contract."""

    ADD = "Add"
    SUB = "Sub"
    MUL = "Mul"
    DIV = "Div"
    MAXIMUM = "Maximum"
    MINIMUM = "Minimum"


class CompareFn(WireEnum):
    """The comparisons, in wire order."""

    LESS = "Less"
    LESS_EQUAL = "LessEqual"
    EQUAL = "Equal"
    GREATER_EQUAL = "GreaterEqual"
    GREATER = "Greater"
    NOT_EQUAL = "NotEqual"


SCALARS: Final[Mapping[UnaryFn | BinaryFn | CompareFn, Fn]] = {
    UnaryFn.NEG: Fn.NEG,
    UnaryFn.ABS: Fn.ABS,
    UnaryFn.EXP: Fn.EXP,
    UnaryFn.LOG: Fn.LOG,
    UnaryFn.TANH: Fn.TANH,
    UnaryFn.ERF: Fn.ERF,
    UnaryFn.RSQRT: Fn.RSQRT,
    UnaryFn.RECIPROCAL: Fn.RECIP,
    BinaryFn.ADD: Fn.ADD,
    BinaryFn.SUB: Fn.SUB,
    BinaryFn.MUL: Fn.MUL,
    BinaryFn.DIV: Fn.DIV,
    BinaryFn.MAXIMUM: Fn.MAX,
    BinaryFn.MINIMUM: Fn.MIN,
    CompareFn.LESS: Fn.LT,
    CompareFn.LESS_EQUAL: Fn.LE,
    CompareFn.EQUAL: Fn.EQ,
    CompareFn.GREATER_EQUAL: Fn.GE,
    CompareFn.GREATER: Fn.GT,
    CompareFn.NOT_EQUAL: Fn.NE,
}
"""The functions of the contract by the names that Weft has for them."""

Derivative: TypeAlias = Callable[[Term, Term], Term]
"""The derivative of a function at `x`, where its value is `y`."""

_DERIVATIVES: Mapping[UnaryFn, Derivative] = {
    UnaryFn.ABS: lambda x, y: x.sign(),
    UnaryFn.EXP: lambda x, y: y,
    UnaryFn.LOG: lambda x, y: x.reciprocal(),
    UnaryFn.TANH: lambda x, y: 1 - y * y,
    UnaryFn.ERF: lambda x, y: 2 / math.sqrt(math.pi) * (-(x * x)).exp(),
    UnaryFn.RSQRT: lambda x, y: -0.5 * y * y * y,
    UnaryFn.RECIPROCAL: lambda x, y: -(y * y),
}


@core_op(tag=1, spec=None, newtype=True)
class ElementwiseUnary(Op):
    """`out[i] = fn(x[i])`. Integers wrap: `neg` of an unsigned value is its two's complement, `abs`
    of the lowest value is itself. `abs` of a complex value keeps the dtype, with a zero imaginary
    part."""

    operands = ("x",)
    elementwise = True

    fn: UnaryFn = attr(Choice(UnaryFn))

    @classmethod
    def spellings(cls) -> Mapping[str, Mapping[str, Any]]:
        return {str(fn): {"fn": fn} for fn in UnaryFn}

    @property
    def mnemonic(self) -> str:
        return str(self.fn)

    @classmethod
    def rows(cls) -> Mapping[str, Mapping[str, frozenset[DType]]]:
        return {str(fn): {"x": FUNCTIONS[SCALARS[fn]].dtypes} for fn in UnaryFn}

    @property
    def dtype_table(self) -> Mapping[str, frozenset[DType]]:
        return {"x": FUNCTIONS[SCALARS[self.fn]].dtypes}

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        return x

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        (x,) = args
        return functions.unary(str(SCALARS[self.fn]), as_dtype(x.dtype), x)

    def vjp(self, at: Pullback) -> Cotangents:
        """`abs` has the derivative 0 at 0."""
        g, (x,) = at.cotangent, at.operands
        if self.fn is UnaryFn.NEG:
            return (-g,)
        if self.fn is UnaryFn.ABS and x.dtype.is_complex:
            # The imaginary part of the result is zero whatever x is.
            return (g.real().cast(x.dtype) * x.sign(),)
        return (g * _DERIVATIVES[self.fn](x, at.result).conj(),)


_BINARY_OPERANDS: Mapping[BinaryFn, Mapping[str, frozenset[DType]]] = {
    fn: dict.fromkeys(("lhs", "rhs"), FUNCTIONS[SCALARS[fn]].dtypes) for fn in BinaryFn
}


@core_op(tag=2, spec=None, newtype=True)
class ElementwiseBinary(Op):
    """`out[i] = fn(lhs[i], rhs[i])`. Integers wrap; integer division truncates toward zero, and a
    zero divisor is rejected when the program runs. `maximum` and `minimum` propagate NaN; on i1
    they are or and and. Which zero they return for `(-0, +0)` is not specified."""

    operands = ("lhs", "rhs")
    elementwise = True

    fn: BinaryFn = attr(Choice(BinaryFn))

    @classmethod
    def spellings(cls) -> Mapping[str, Mapping[str, Any]]:
        return {str(fn): {"fn": fn} for fn in BinaryFn}

    @property
    def mnemonic(self) -> str:
        return str(self.fn)

    @classmethod
    def rows(cls) -> Mapping[str, Mapping[str, frozenset[DType]]]:
        return {str(fn): row for fn, row in _BINARY_OPERANDS.items()}

    @property
    def dtype_table(self) -> Mapping[str, frozenset[DType]]:
        return _BINARY_OPERANDS[self.fn]

    def infer(self, *types: TensorType) -> TensorType:
        lhs, rhs = types
        same_dtype(lhs, rhs, f"the operands of {self.mnemonic}")
        same_shape(lhs, rhs, f"the operands of {self.mnemonic}")
        return lhs

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        lhs, rhs = args
        return functions.binary(str(SCALARS[self.fn]), as_dtype(lhs.dtype), lhs, rhs)

    def vjp(self, at: Pullback) -> Cotangents:
        """Where the operands of `maximum` or `minimum` are equal, each gets half."""
        g, (lhs, rhs) = at.cotangent, at.operands
        match self.fn:
            case BinaryFn.ADD:
                return g, g
            case BinaryFn.SUB:
                return g, -g
            case BinaryFn.MUL:
                return g * rhs.conj(), g * lhs.conj()
            case BinaryFn.DIV:
                left = g / rhs.conj()
                return left, -(left * at.result.conj())
            case BinaryFn.MAXIMUM:
                return _share_of_winner(g, lhs, rhs, "less"), _share_of_winner(g, rhs, lhs, "less")
            case BinaryFn.MINIMUM:
                return _share_of_winner(g, lhs, rhs, "greater"), _share_of_winner(
                    g, rhs, lhs, "greater"
                )


def _share_of_winner(g: Term, own: Term, other: Term, loses: str) -> Term:
    """All of `g` where `own` was chosen, half of it at a tie."""
    shared = (g * 0.5).where(own.compare(other, "equal"), g)
    return g.like(0).where(own.compare(other, loses), shared)


@core_op(tag=6)
class Compare(Op):
    """`out[i] = lhs[i] op rhs[i]` as i1. Any comparison with NaN is false, except `not_equal`.
    Complex values are not ordered: only `equal` and `not_equal` are defined for them."""

    operands = ("lhs", "rhs")
    dtypes = {"lhs": ANY, "rhs": ANY}
    elementwise = True
    no_gradient = "truth values have no derivative"

    op: CompareFn = attr(Choice(CompareFn))

    @property
    def dtype_table(self) -> Mapping[str, frozenset[DType]]:
        equality = self.op in (CompareFn.EQUAL, CompareFn.NOT_EQUAL)
        return self.dtypes if equality else {"lhs": ORDERED, "rhs": ORDERED}

    def infer(self, *types: TensorType) -> TensorType:
        lhs, rhs = types
        same_dtype(lhs, rhs, "the operands of compare", "CompareDTypePromotionInvalid")
        same_shape(lhs, rhs, "the operands of compare", "CompareOperandsMustMatchShape")
        return lhs.with_dtype(I1)

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        lhs, rhs = args
        return functions.binary(str(SCALARS[self.op]), as_dtype(lhs.dtype), lhs, rhs)


@core_op(tag=7, spec=None)
class Select(Op):
    """`out[i] = pred[i] ? on_true[i] : on_false[i]`. The value that is not chosen has no effect."""

    operands = ("pred", "on_true", "on_false")
    dtypes = {"on_true": ANY, "on_false": ANY, "pred": BOOL}
    elementwise = True

    def infer(self, *types: TensorType) -> TensorType:
        pred, on_true, on_false = types
        same_dtype(on_true, on_false, "on_true and on_false")
        same_shape(on_true, on_false, "on_true and on_false")
        same_shape(pred, on_true, "pred and on_true")
        return on_true

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        pred, on_true, on_false = args
        return np.asarray(np.where(pred, on_true, on_false))

    def vjp(self, at: Pullback) -> Cotangents:
        g, pred = at.cotangent, at.operands[0]
        return None, g.where(pred), g.like(0).where(pred, g)


@core_op(tag=8)
class Cast(Op):
    """Elementwise conversion. Float to int truncates and saturates, NaN becomes 0; int to int
    saturates; to float rounds to nearest even; to i1 is `!= 0`; complex to real takes the real
    part."""

    operands = ("x",)
    dtypes = {"x": ANY}
    elementwise = True

    dtype: DType = attr(DTypeOf())

    def infer(self, *types: TensorType) -> TensorType:
        return types[0].with_dtype(self.dtype)

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        (x,) = args
        return numeric.cast(x, as_dtype(x.dtype), self.dtype)

    def vjp(self, at: Pullback) -> Cotangents:
        """The cotangent is cast back; integers and booleans on either side stop it."""
        return (at.cotangent.cast(at.operands[0].dtype),)


@core_op(tag=9, spec=None)
class StopGradient(Op):
    """The value of `x`, as a constant for gradients."""

    operands = ("x",)
    dtypes = {"x": ANY}
    elementwise = True
    no_gradient = "its purpose is to stop gradients"

    def infer(self, *types: TensorType) -> TensorType:
        return types[0]

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        return args[0]


@core_op(tag=38, spec=None)
class Clamp(Op):
    """`out[i] = min(max(x[i], lo[i]), hi[i])`; NaN propagates."""

    operands = ("x", "lo", "hi")
    dtypes = {"x": ORDERED, "lo": ORDERED, "hi": ORDERED}
    elementwise = True

    def infer(self, *types: TensorType) -> TensorType:
        x, lo, hi = types
        for bound, name in ((lo, "lo"), (hi, "hi")):
            same_dtype(x, bound, f"x and {name}")
            same_shape(x, bound, f"x and {name}")
        return x

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        def clamp(x: Array, lo: Array, hi: Array) -> Any:
            return np.minimum(np.maximum(x, lo), hi)

        return numeric.compute(clamp, as_dtype(args[0].dtype), *args)

    def vjp(self, at: Pullback) -> Cotangents:
        """At a bound `x` gets the whole cotangent; where the bounds cross, `hi` does."""
        g, (x, lo, hi) = at.cotangent, at.operands
        below, crossed = x.compare(lo, "less"), lo.compare(hi, "greater_equal")
        above = x.compare(hi, "greater")
        zero = g.like(0)
        inside = zero.where(below, zero.where(above, g))
        low = zero.where(crossed, g.where(below))
        return inside, low, g.where(above.maximum(crossed.minimum(below)))
