"""Type rules of instructions that read or write at positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft.core_ir.instructions import wholes
from weft.core_ir.rules.checks import Attributes, not_negative
from weft.core_ir.types import Shape, TensorType, dtype_name, scalar, show_shape
from weft.foundation.errors import SpecViolation


def index(attributes: Attributes, types: Sequence[TensorType], opcode: str) -> TensorType:
    (x,) = types
    indices = wholes(attributes, "indices")
    if len(indices) != x.rank:
        raise SpecViolation(
            "E4006",
            f"{len(indices)} indices for {show_shape(x.shape)}, which has rank {x.rank}",
            f"give one index for each of the {x.rank} axes",
        )
    return scalar(x.dtype)


class Range(NamedTuple):
    """What a slice reads along one axis, clamped to the axis."""

    start: int
    step: int
    size: int


def sliced(attributes: Attributes, shape: Shape) -> list[Range]:
    """The range of every axis of a slice."""
    lists = [wholes(attributes, name) for name in ("starts", "ends", "steps")]
    if any(len(values) != len(shape) for values in lists):
        raise SpecViolation(
            "E4007",
            f"starts, ends and steps have {'/'.join(str(len(v)) for v in lists)} entries "
            f"for {show_shape(shape)}",
            f"give each {len(shape)} entries",
        )
    return [
        _check_range(axis, dim, *bounds)
        for axis, (dim, bounds) in enumerate(zip(shape, zip(*lists, strict=True), strict=True))
    ]


def _check_range(axis: int, dim: int, start: int, end: int, step: int) -> Range:
    if step < 1:
        which = "zero" if step == 0 else "negative"
        raise SpecViolation(
            "E4008", f"the step {step} at axis {axis} is {which}", "steps are positive; 1 takes all"
        )
    first, last = min(max(start, 0), dim), min(max(end, 0), dim)
    return Range(first, step, max(0, -((first - last) // step)))


def slice_(attributes: Attributes, types: Sequence[TensorType], opcode: str) -> TensorType:
    (x,) = types
    return x.with_shape(r.size for r in sliced(attributes, x.shape))


def _indices_dtype(indices: TensorType, opcode: str) -> None:
    if not indices.dtype.is_integer:
        raise SpecViolation(
            "E4011",
            f"the indices of {opcode} are {dtype_name(indices.dtype)}",
            "indices are i32 or i64",
        )


def gather(attributes: Attributes, types: Sequence[TensorType], opcode: str) -> TensorType:
    x, indices = types
    _indices_dtype(indices, opcode)
    if x.rank == 0:
        raise SpecViolation(
            "E3002",
            f"{opcode} takes rows of its input, and a scalar has none",
            "reshape it to [1] first",
        )
    return x.with_shape((*indices.shape, *x.shape[1:]))


def slice_backward(attributes: Attributes, types: Sequence[TensorType], opcode: str) -> TensorType:
    (gradient,) = types
    shape = wholes(attributes, "shape")
    not_negative(shape, opcode)
    starts, steps = wholes(attributes, "starts"), wholes(attributes, "steps")
    if not len(shape) == len(starts) == len(steps) == gradient.rank:
        raise SpecViolation(
            "E4007",
            f"shape, starts and steps have {len(shape)}/{len(starts)}/{len(steps)} entries "
            f"for {show_shape(gradient.shape)}",
            f"give each {gradient.rank} entries",
        )
    places = zip(gradient.shape, shape, starts, steps, strict=True)
    for axis, (count, dim, start, step) in enumerate(places):
        if step < 1:
            raise SpecViolation("E4008", f"the step {step} at axis {axis} is not positive", "use 1")
        if start < 0 or (count and start + (count - 1) * step >= dim):
            raise SpecViolation(
                "E3003",
                f"{count} elements from {start} in steps of {step} do not fit in the "
                f"{dim} of axis {axis}",
                "they go where Slice would read them",
            )
    return gradient.with_shape(shape)


def gather_backward(attributes: Attributes, types: Sequence[TensorType], opcode: str) -> TensorType:
    gradient, indices = types
    _indices_dtype(indices, opcode)
    rows = attributes["rows"]
    if not isinstance(rows, int) or rows < 0:
        raise SpecViolation("E3006", f"{rows} is not a number of rows", "it is 0 or more")
    if gradient.shape[: indices.rank] != indices.shape:
        raise SpecViolation(
            "E3003",
            f"the gradient {show_shape(gradient.shape)} does not begin with the shape "
            f"{show_shape(indices.shape)} of the indices",
            "it has the shape of what Gather gives",
        )
    return gradient.with_shape((rows, *gradient.shape[indices.rank :]))
