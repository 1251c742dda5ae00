"""What was probably meant: the hints that the verifier gives beside its complaints."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.core_ir.types import Shape, show_shape
from weft.foundation.limits import Limits


def likely_axis(axis: int, rank: int, last: int | None = None) -> str:
    """The axis inside the range that is nearest; `last` is the largest allowed, if not rank-1."""
    highest = rank - 1 if last is None else last
    if highest < 0:
        return "a scalar has no axes"
    nearest = highest if axis > 0 else 0
    which = "the last" if nearest == highest else "the first"
    return f"did you mean {nearest}, {which} axis?"


def nearest_shape(count: int, wanted: Sequence[int]) -> str:
    """A shape with `count` elements that differs from `wanted` in as little as possible."""
    if count == 0:
        return "an empty tensor can only be reshaped with a -1 in new_shape"
    found: list[tuple[float, Shape]] = []
    for axis in range(len(wanted) if len(wanted) <= Limits.rank else 0):
        others = math.prod(dim for i, dim in enumerate(wanted) if i != axis)
        if others > 0 and count % others == 0:
            fitting = count // others
            distance = abs(math.log(fitting / max(wanted[axis], 1)))
            found.append((distance, (*wanted[:axis], fitting, *wanted[axis + 1 :])))
    if not found:
        return f"[{count}] or [-1] would do"
    return f"{show_shape(min(found)[1])} would do"


def broadcast_partner(shape: Shape, other: Shape, axis_from_end: int) -> str:
    """The second shape changed where it does not broadcast with the first."""
    at = len(other) - axis_from_end
    dim = shape[len(shape) - axis_from_end]
    fitting = (*other[:at], dim, *other[at + 1 :])
    single = (*other[:at], 1, *other[at + 1 :])
    return f"{show_shape(fitting)} or {show_shape(single)} would broadcast"


def completed_permutation(given: Sequence[int], rank: int) -> str:
    """The permutation that keeps as many of the given entries as possible."""
    kept: list[int | None] = []
    for axis in list(given[:rank]) + [-1] * (rank - len(given)):
        kept.append(axis if 0 <= axis < rank and axis not in kept else None)
    free = iter(sorted(set(range(rank)) - {axis for axis in kept if axis is not None}))
    return f"{show_shape(next(free) if axis is None else axis for axis in kept)} is one"


def single_axes(shape: Shape) -> str:
    """The axes that could be squeezed."""
    found = [axis for axis, dim in enumerate(shape) if dim == 1]
    return f"the axes of size 1 are {show_shape(found)}" if found else "no axis has size 1"


def fitting_product(lhs: Shape, rhs: Shape) -> str:
    """How matrices whose inner sizes differ could be multiplied after all."""
    if lhs[-1] == rhs[-1]:
        return f"transpose the second operand: {show_shape((*rhs[:-2], rhs[-1], rhs[-2]))} fits"
    if lhs[-2] == rhs[-2]:
        return f"transpose the first operand: {show_shape((*lhs[:-2], lhs[-1], lhs[-2]))} fits"
    return f"{show_shape((*rhs[:-2], lhs[-1], rhs[-1]))} would fit"
