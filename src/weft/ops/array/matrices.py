"""Stacks of matrices as the factorisations take them, and pieces that several functions share."""

from __future__ import annotations

from weft.foundation.dtypes import F32, DType
from weft.ops.arithmetic import broadcast_shapes
from weft.ops.array.creation import diagonal_mask
from weft.ops.array.linear_algebra import check_matrices, stacked, transposed
from weft.ops.array.movement import pad_axis_end, window
from weft.ops.array.operands import known
from weft.ops.promotion import as_float
from weft.ops.session import Handle


def matrices(x: Handle, square: bool = False) -> tuple[Handle, DType]:
    """A stack of matrices in a dtype of 32 bits or more, and the dtype that results have."""
    check_matrices(x, square)
    dtype = as_float(x.dtype)
    return x.cast(computed_in(dtype)), dtype


def computed_in(dtype: DType) -> DType:
    """The dtype in which a factorisation of matrices of this one is carried out."""
    return F32 if dtype.is_float and dtype.bits < F32.bits else dtype


def magnitude(x: Handle) -> Handle:
    """The absolute values, real."""
    size = x.abs()
    return size.real() if x.dtype.is_complex else size


def adjoint(x: Handle) -> Handle:
    """Transposed and conjugated."""
    flipped = transposed(x)
    return flipped.conj() if x.dtype.is_complex else flipped


def diagonal_of(x: Handle, offset: int = 0) -> Handle:
    """A diagonal as the last axis. Rows of a square, each one element longer, put it in a column:
    only movements."""
    row, column = max(0, -offset), max(0, offset)
    height, width = (known(dim, "a size of the matrices") for dim in x.shape[-2:])
    size = max(0, min(height - row, width - column))
    batch = x.shape[:-2]
    x = window(x, x.rank - 2, row if size else 0, size)
    x = window(x, x.rank - 1, column if size else 0, size)
    if size < 2:
        return x.reshape((*batch, size))
    flat = pad_axis_end(x.reshape((*batch, size * size)), len(batch), size)
    return window(flat.reshape((*batch, size, size + 1)), len(batch) + 1, 0, 1).reshape(
        (*batch, size)
    )


def solved(a: Handle, b: Handle) -> Handle:
    """`op(a) @ x = b` by elimination with row exchanges, for stacks that broadcast."""
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    permutation, lower, upper = a.lu()
    b = stacked(b, batch)
    rows = permutation.reshape((*permutation.shape, 1)).broadcast_to(b.shape)
    b = b.gather(rows, axis=b.rank - 2)
    options = {"transpose": False}
    b = stacked(lower, batch).triangular_solve(b, lower=True, unit_diagonal=True, **options)
    return stacked(upper, batch).triangular_solve(b, lower=False, unit_diagonal=False, **options)


def identity_like(like: Handle) -> Handle:
    mask = diagonal_mask(like.session, like.shape[-2:], 0, "equal")
    return mask.cast(like.dtype).broadcast_to(like.shape)


def turned(x: Handle, axis: int, by: int) -> Handle:
    """The three components along an axis, beginning with another."""
    return window(x, axis, by, 3 - by).concat(window(x, axis, 0, by), axis)
