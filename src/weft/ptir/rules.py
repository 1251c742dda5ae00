"""Checks that several type rules share. Each raises a `SpecViolation` without a place; the verifier
and the builder, who know the place, fill it in."""

from __future__ import annotations

from collections.abc import Sequence

from weft.foundation.dtypes import DType
from weft.foundation.errors import SpecViolation
from weft.ptir.op import Scope
from weft.ptir.types import Dim, Shape, Symbol, TensorType, listed


def violation(code: str, why: str, hint: str = "") -> SpecViolation:
    return SpecViolation(code, why, hint)


class SizesDiffer(SpecViolation):
    """Two sizes must be one and are not known to be: whoever named them may know better."""

    dims: tuple[Dim, Dim]

    @classmethod
    def between(cls, a: Dim, b: Dim, why: str, hint: str = "", where: str = "") -> SizesDiffer:
        found = cls("DynamicDimensionMismatch", why, hint, where)
        found.dims = (a, b)
        return found

    def at(self, where: str) -> SizesDiffer:
        return self.between(*self.dims, self.why, self.hint, self.where or where)


def invalid_attribute(why: str, hint: str = "") -> SpecViolation:
    return SpecViolation("InvalidAttributeValue", why, hint)


def same_dtype(lhs: TensorType, rhs: TensorType, what: str, code: str = "DTypeMismatch") -> None:
    """Both operands have one dtype: PTIR never promotes."""
    if lhs.dtype is not rhs.dtype:
        raise violation(
            code, f"{what} have dtypes {lhs.dtype} and {rhs.dtype}", "cast one of them first"
        )


def same_shape(lhs: TensorType, rhs: TensorType, what: str, code: str = "ShapeMismatch") -> None:
    """Both operands have one shape: only broadcast_to broadcasts."""
    if lhs.shape == rhs.shape:
        return
    why = f"{what} have shapes {show(lhs.shape)} and {show(rhs.shape)}"
    if lhs.rank == rhs.rank:
        differing = [dims for dims in zip(lhs.shape, rhs.shape, strict=True) if dims[0] != dims[1]]
        if all(isinstance(a, Symbol) or isinstance(b, Symbol) for a, b in differing):
            raise SizesDiffer.between(*differing[0], why, "give the dims one name")
    raise violation(code, why, "insert broadcast_to")


def same_dim(a: Dim, b: Dim, what: str, code: str = "ShapeMismatch") -> None:
    """Two dims are equal; the message starts with `what`."""
    if a == b:
        return
    why = f"{what}: {a} and {b}"
    if isinstance(a, Symbol) or isinstance(b, Symbol):
        raise SizesDiffer.between(a, b, why)
    raise violation(code, why)


def rank_is(kind: TensorType, rank: int, what: str) -> None:
    if kind.rank != rank:
        raise violation("RankMismatch", f"{what} has rank {kind.rank}, not {rank}")


def rank_at_least(kind: TensorType, rank: int, what: str) -> None:
    if kind.rank < rank:
        raise violation("RankMismatch", f"{what} has rank {kind.rank}, at least {rank} is needed")


def length_is(values: Sequence[object], length: int, what: str) -> None:
    """An attribute list has one entry per axis."""
    if len(values) != length:
        raise invalid_attribute(f"{what} has {len(values)} entries, not {length}")


def all_positive(values: Sequence[int], what: str) -> None:
    if any(value < 1 for value in values):
        raise invalid_attribute(f"{what} {list(values)} must be at least 1 everywhere")


def accumulator(operand: DType, accum: DType | None, what: str) -> None:
    """An explicit accumulator is of the operand's class and at least as wide."""
    if accum is None or accum is operand:
        return
    if accum.kind is not operand.kind or accum.bits < operand.bits or (accum.bits == operand.bits):
        raise violation(
            "InvalidAccumDTypeOverride",
            f"{what} of {operand} cannot accumulate in {accum}",
            "the accumulator must be of the same class and at least as wide",
        )


def index_range(positions: Dim, dtype: DType, what: str) -> None:
    """Every position from 0 to `positions - 1` is a value of the dtype of the indices."""
    if isinstance(positions, int) and positions - 1 > dtype.highest:
        raise invalid_attribute(
            f"{what} has {positions} positions, more than {dtype} can number", "use si64"
        )


def bound_symbols(shape: Shape, scope: Scope, what: str) -> None:
    """Every symbol of an attribute's shape already has a size."""
    for dim in shape:
        if isinstance(dim, Symbol) and not scope.is_bound(dim):
            raise violation(
                "DynamicDimensionMismatch",
                f"{what} uses {dim}, which no parameter or earlier instruction binds",
            )


def show(shape: Sequence[object]) -> str:
    """A shape for messages."""
    return f"[{listed(shape)}]"
