"""Products of vectors and matrices. All of them are one `dot_general`; integers sum in their own
dtype or si32, whichever is wider, and saturate; narrow floats sum in f32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.foundation.axes import normalise_axes
from weft.foundation.dims import Dim, Shape
from weft.foundation.errors import OutOfRange, SpecViolation
from weft.ops.arithmetic import broadcast_shapes, listed
from weft.ops.array.operands import in_common_dtype
from weft.ops.capture_recipes import recorded
from weft.ops.session import Handle
from weft.ops.tensor import tensor_method

__all__ = ["matrix_transpose", "tensordot", "vecdot"]


@recorded
def matmul(x1: Handle, x2: Handle, /) -> Handle:
    """The matrix product; leading axes are batch axes and broadcast, a rank-1 operand is a row on
    the left and a column on the right."""
    return matrix_product(*in_common_dtype(x1, x2))


def matrix_product(x: Handle, y: Handle) -> Handle:
    """The product of two handles of one dtype."""
    _check_product(x.shape, y.shape)
    contract = (x.rank - 1,), (max(y.rank - 2, 0),)
    if y.rank <= 2 or x.rank == 1:
        return x.dot_general(y, contract=contract)
    batch = broadcast_shapes(x.shape[:-2], y.shape[:-2])
    x = stacked(x, batch)
    y = stacked(y, batch)
    axes = tuple(range(len(batch)))
    return x.dot_general(y, contract=((x.rank - 1,), (y.rank - 2,)), batch=(axes, axes))


def stacked(x: Handle, batch: Shape) -> Handle:
    """Matrices broadcast to these batch axes."""
    return x.broadcast_to((*batch, *x.shape[-2:]))


def _check_product(left: Shape, right: Shape) -> None:
    for name, shape in (("lhs", left), ("rhs", right)):
        if not shape:
            raise SpecViolation(
                "RankMismatch",
                f"{name} () has rank 0, but a vector or a matrix is wanted",
                "multiply by a number with *",
            )
    inner, outer = left[-1], right[max(len(right) - 2, 0)]
    if inner != outer:
        raise SpecViolation(
            "ShapeMismatch",
            f"lhs {listed(left)} and rhs {listed(right)}: inner sizes {inner} and {outer} differ",
            "the last axis of lhs must match the second last of rhs; transpose one with .mT",
        )


@tensor_method
@recorded
def matrix_transpose(x: Handle, /) -> Handle:
    """Every matrix of a stack with rows and columns exchanged."""
    return transposed(x)


def transposed(x: Handle) -> Handle:
    """The last two axes exchanged."""
    check_matrices(x)
    perm = list(range(x.rank))
    perm[-2:] = perm[-1], perm[-2]
    return x.transpose(perm)


def check_matrices(x: Handle, square: bool = False) -> None:
    """The last two axes form matrices, square ones where asked."""
    if x.rank < 2:
        raise SpecViolation(
            "RankMismatch",
            f"x {listed(x.shape)} has rank {x.rank}, but a matrix or a stack of them is wanted",
            "insert axes with None",
        )
    if square and x.shape[-1] != x.shape[-2]:
        raise SpecViolation(
            "ShapeMismatch",
            f"x {listed(x.shape)} holds matrices {x.shape[-2]} x {x.shape[-1]}, but square ones "
            "are wanted",
            "for others there are weft.linalg.pinv, qr and svd",
        )


@tensor_method
@recorded
def tensordot(
    x1: Handle, x2: Handle, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2
) -> Handle:
    """The sum of products over pairs of axes: the last `axes` of x1 with the first of x2, or two
    lists of axes, paired by position."""
    x, y = in_common_dtype(x1, x2)
    left, right = _find_contracted(axes, x.rank, y.rank)
    for a, b in zip(left, right, strict=True):
        if x.shape[a] != y.shape[b]:
            raise SpecViolation(
                "ShapeMismatch",
                f"lhs {listed(x.shape)} and rhs {listed(y.shape)}: axis {a} of lhs has size "
                f"{x.shape[a]} and axis {b} of rhs {y.shape[b]}",
                "contracted axes have equal sizes",
            )
    return x.dot_general(y, contract=(left, right))


def _find_contracted(axes: Any, left: int, right: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if isinstance(axes, int):
        if not 0 <= axes <= min(left, right):
            raise OutOfRange(
                "InvalidAttributeValue",
                f"axes is {axes}, but the operands have ranks {left} and {right}",
                "contract at most as many axes as each of them has",
            )
        return tuple(range(left - axes, left)), tuple(range(axes))
    first, second = (normalise_axes(tuple(a), r) for a, r in zip(axes, (left, right), strict=True))
    if len(first) != len(second):
        raise SpecViolation(
            "InvalidAttributeValue",
            f"axes names {len(first)} axes of lhs and {len(second)} of rhs",
            "they are paired by position",
        )
    return first, second


@tensor_method
@recorded
def vecdot(x1: Handle, x2: Handle, /, *, axis: int = -1) -> Handle:
    """The sum of `conj(x1) * x2` along an axis, counted in each operand before they broadcast."""
    x, y = in_common_dtype(x1, x2)
    x, y = _move_to_end(x, axis), _move_to_end(y, axis)
    if x.shape[-1] != y.shape[-1]:
        raise SpecViolation(
            "ShapeMismatch",
            f"the vectors have sizes {x.shape[-1]} and {y.shape[-1]} along axis {axis}",
            "name the axis that is the vectors' with axis=",
        )
    batch = broadcast_shapes(x.shape[:-1], y.shape[:-1])
    size: Dim = x.shape[-1]
    x, y = x.broadcast_to((*batch, size)), y.broadcast_to((*batch, size))
    if x.dtype.is_complex:
        x = x.conj()
    axes = tuple(range(len(batch)))
    along = (len(batch),)
    return x.dot_general(y, contract=(along, along), batch=(axes, axes))


def _move_to_end(x: Handle, axis: int) -> Handle:
    """The axis moved to the end."""
    (at,) = normalise_axes((axis,), x.rank, "axis")
    if at == x.rank - 1:
        return x
    return x.transpose([a for a in range(x.rank) if a != at] + [at])
