"""Axes and permutations: the checks that every op with an axis shares."""

from __future__ import annotations

from collections.abc import Sequence

from weft.foundation.errors import OutOfRange, SpecViolation, brief


def normalise_axis(axis: int, rank: int, name: str = "axis") -> int:
    """`axis` in [0, rank), counting from the end when negative."""
    if not hasattr(axis, "__index__"):
        raise SpecViolation(
            "InvalidAttributeValue", f"{name} is {brief(axis)}", "one whole number is wanted"
        )
    if -rank <= axis < rank:
        return axis + rank if axis < 0 else axis
    allowed = f"[{-rank}, {rank})" if rank else "nothing, the operand is a scalar"
    raise OutOfRange(
        "InvalidAttributeValue",
        f"{name} {axis} is out of range; a rank-{rank} operand has {allowed}",
        "negative ones count from the end" if rank else "leave it out",
    )


def normalise_axes(axes: Sequence[int], rank: int, name: str = "axes") -> tuple[int, ...]:
    """Every axis normalised; a repeated one is a violation."""
    found = tuple(normalise_axis(axis, rank, name) for axis in axes)
    if len(set(found)) != len(found):
        raise SpecViolation(
            "InvalidAttributeValue",
            f"{name} {list(axes)} names an axis twice",
            "name each axis once",
        )
    return found


def check_permutation(perm: Sequence[int], rank: int, name: str = "perm") -> None:
    """`perm` holds each of 0..rank-1 exactly once."""
    if sorted(perm) != list(range(rank)):
        raise SpecViolation(
            "InvalidAttributeValue",
            f"{name} {list(perm)} is not a permutation of the {rank} axes of the operand",
            "name each axis once",
        )


def inverse(perm: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes `perm`."""
    result = [0] * len(perm)
    for position, axis in enumerate(perm):
        result[axis] = position
    return tuple(result)
