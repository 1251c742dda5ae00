"""Checks that the type rules of coarse ops share. Axes count from the front only, as the public
definitions of these ops say."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.foundation.errors import SpecViolation, clipped
from weft.ptir.op import Op
from weft.ptir.rules import invalid_attribute, violation
from weft.ptir.types import TensorType, TupleType, ValueType


def check_axis(op: Op, axis: int, rank: int, name: str = "axis") -> int:
    """An axis of an operand of this rank."""
    if axis < rank:
        return axis
    there = f"axes 0 to {rank - 1}" if rank else "no axes"
    raise invalid_attribute(
        f"{name} {axis} of {op.mnemonic} is out of range: a rank-{rank} operand has {there}"
    )


def check_axes(op: Op, axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """At least one axis, each named once."""
    found = tuple(check_axis(op, axis, rank) for axis in axes)
    if not found:
        raise invalid_attribute(f"axis of {op.mnemonic} names no axis", "name at least one")
    if len(set(found)) != len(found):
        raise invalid_attribute(f"axis {list(axes)} of {op.mnemonic} names an axis twice")
    return found


def check_epsilon(op: Op, epsilon: float) -> None:
    if not (math.isfinite(epsilon) and epsilon >= 0.0):
        raise invalid_attribute(
            f"epsilon {epsilon} of {op.mnemonic} is not a finite number of at least 0"
        )


def check_scale(op: Op, scale: float | None, name: str) -> None:
    if scale is not None and not math.isfinite(scale):
        raise invalid_attribute(f"{name} {scale} of {op.mnemonic} is not a finite number")


def check_probability(op: Op, probability: float, name: str) -> None:
    """A share that may be dropped: something must be left."""
    if not 0.0 <= probability < 1.0:
        raise invalid_attribute(f"{name} {probability} of {op.mnemonic} is not in [0, 1)")


def check_algorithms(op: Op, chosen: Sequence[str] | None, known: Sequence[str]) -> None:
    """A choice of algorithms: at least one, each known."""
    if chosen is None:
        return
    unknown = [name for name in chosen if name not in known]
    if unknown or not chosen:
        what = f"the algorithm {clipped(unknown[0], 40)!r}" if unknown else "no algorithm"
        raise invalid_attribute(
            f"algo_set of {op.mnemonic} names {what}", f"it may name {', '.join(known)}"
        )


def same_type(kind: TensorType, wanted: TensorType, what: str) -> None:
    """An operand of one particular type."""
    if kind != wanted:
        raise violation("ShapeMismatch", f"{what} is {kind}, not {wanted}")


def result_count(output: ValueType, allowed: Sequence[int], target: str) -> int:
    """How many results a declared type has; one tensor is one result."""
    count = len(output.elements) if isinstance(output, TupleType) else 1
    single = isinstance(output, TupleType) and count == 1
    if count not in allowed or single:
        some = " or ".join(map(str, allowed))
        raise SpecViolation(
            "OutputTypeMismatch", f"{target} has {some} results, but {output} is declared"
        )
    return count
