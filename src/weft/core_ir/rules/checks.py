"""Checks that several type rules share. Each raises a `SpecViolation` without a place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from weft.core_ir import suggest
from weft.core_ir.instructions import Attribute, wholes
from weft.core_ir.types import Shape, TensorType, dtype_name, show_shape
from weft.foundation.dtypes import DType
from weft.foundation.errors import SpecViolation

Attributes: TypeAlias = Mapping[str, Attribute]
Rule: TypeAlias = Callable[[Attributes, Sequence[TensorType], str], TensorType]
"""From the attributes, the operand types and the opcode to the type of the result."""


def positive_dims(shape: Sequence[int], what: str) -> None:
    """Declared dims are at least 1."""
    for axis, dim in enumerate(shape):
        if dim < 1:
            fixed = show_shape(max(d, 1) for d in shape)
            raise SpecViolation(
                "E3006",
                f"{what} {show_shape(shape)} has the dim {dim} at axis {axis}; declared "
                "dims are positive",
                f"{fixed} would be valid; a scalar has the shape []",
            )


def not_negative(shape: Shape, opcode: str) -> None:
    if any(dim < 0 for dim in shape):
        fixed = show_shape(max(dim, 0) for dim in shape)
        raise SpecViolation(
            "E3006",
            f"the shape {show_shape(shape)} of {opcode} has a negative dim",
            f"{fixed} is none",
        )


# -- axes ----------------------------------------------------------------------------------------


def normal_axes(axes: Sequence[int], rank: int, opcode: str) -> tuple[int, ...]:
    """Every axis in [0, rank), negative ones counted from the end; none twice."""
    for axis in axes:
        if not -rank <= axis < rank:
            allowed = f"[{-rank}, {rank})" if rank else "no axes at all"
            raise SpecViolation(
                "E3004",
                f"axis {axis} of {opcode} is out of range; a tensor of rank {rank} has {allowed}",
                suggest.likely_axis(axis, rank),
            )
    return _check_distinct(axes, tuple(axis % rank for axis in axes), opcode)


def new_axes(axes: Sequence[int], rank: int, opcode: str) -> tuple[int, ...]:
    """Where `ExpandDims` puts axes: positions in the result, ascending."""
    result_rank = rank + len(axes)
    for axis in axes:
        if not -result_rank <= axis < result_rank:
            raise SpecViolation(
                "E3004",
                f"axis {axis} of {opcode} is out of range; the result has rank "
                f"{result_rank} and axes [{-result_rank}, {result_rank})",
                suggest.likely_axis(axis, result_rank),
            )
    return tuple(sorted(_check_distinct(axes, tuple(axis % result_rank for axis in axes), opcode)))


def _check_distinct(axes: Sequence[int], normal: tuple[int, ...], opcode: str) -> tuple[int, ...]:
    seen: set[int] = set()
    for axis in normal:
        if axis in seen:
            once = show_shape(dict.fromkeys(normal))
            raise SpecViolation(
                "E3005",
                f"{opcode} names axis {axis} twice in {show_shape(axes)}",
                f"{once} is each once",
            )
        seen.add(axis)
    return normal


def reduced_axes(attributes: Attributes, rank: int, opcode: str) -> tuple[int, ...]:
    """The axes that a reduction takes away, ascending; all of them for an empty list."""
    axes = wholes(attributes, "axes")
    return tuple(sorted(normal_axes(axes, rank, opcode))) if axes else tuple(range(rank))


# -- dtypes and broadcasting ---------------------------------------------------------------------


def same_dtype(types: Sequence[TensorType], opcode: str) -> DType:
    lhs, rhs = types
    if lhs.dtype is not rhs.dtype:
        raise SpecViolation(
            "E2004",
            f"the operands of {opcode} have dtypes {dtype_name(lhs.dtype)} and "
            f"{dtype_name(rhs.dtype)}",
            "Core IR has no casts: declare both with one dtype",
        )
    return lhs.dtype


def floats_only(kind: TensorType, opcode: str) -> None:
    if not kind.dtype.is_float:
        raise SpecViolation(
            "E2005", f"{opcode} is not defined for {dtype_name(kind.dtype)}", "use f32 or f64"
        )


def broadcast(lhs: Shape, rhs: Shape, opcode: str) -> Shape:
    """The shape to which both shapes broadcast, aligned at the right."""
    rank = max(len(lhs), len(rhs))
    result: list[int] = []
    for from_end in range(rank, 0, -1):
        a = lhs[-from_end] if from_end <= len(lhs) else 1
        b = rhs[-from_end] if from_end <= len(rhs) else 1
        if a != b and 1 not in (a, b):
            raise SpecViolation(
                "E3001",
                f"the shapes {show_shape(lhs)} and {show_shape(rhs)} of {opcode} do not "
                f"broadcast: {a} and {b} at dimension {rank - from_end}",
                suggest.broadcast_partner(lhs, rhs, from_end),
            )
        result.append(b if a == 1 else a)
    return tuple(result)
