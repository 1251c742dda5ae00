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
    if lhs.rank == rhs.rank and all(
        a == b or isinstance(a, Symbol) or isinstance(b, Symbol)
        for a, b in zip(lhs.shape, rhs.shape, strict=True)
    ):
        code = "DynamicDimensionMismatch"
    raise violation(
        code,
        f"{what} have shapes {show(lhs.shape)} and {show(rhs.shape)}",
        "insert broadcast_to" if code != "DynamicDimensionMismatch" else "give the dims one name",
    )


def same_dim(a: Dim, b: Dim, what: str, code: str = "ShapeMismatch") -> None:
    """Two dims are equal; the message starts with `what`."""
    if a != b:
        dynamic = isinstance(a, Symbol) or isinstance(b, Symbol)
        raise violation("DynamicDimensionMismatch" if dynamic else code, f"{what}: {a} and {b}")


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
