"""`weft.linalg`: factorisations, and what follows from them, of matrices and stacks of matrices.

The last two axes are the matrices, all others batch axes that broadcast. Integers are converted to
the default float; floats under 32 bits are computed in f32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.foundation.axes import normalise_axis
from weft.foundation.dtypes import SI64
from weft.foundation.errors import OutOfRange, SpecViolation, UserError
from weft.foundation.lines import user_line
from weft.ops.arithmetic import as_tensor, broadcast_shapes, listed
from weft.ops.array.data_types import finfo
from weft.ops.array.determinants import det, slogdet
from weft.ops.array.linear_algebra import (
    check_matrices,
    matrix_product,
    matrix_transpose,
    tensordot,
    vecdot,
)
from weft.ops.array.matrices import (
    adjoint,
    computed_in,
    diagonal_of,
    identity_like,
    matrices,
    solved,
    turned,
)
from weft.ops.array.norms import matrix_norm, real_dtype, singular_values, vector_norm
from weft.ops.array.operands import in_common_dtype, known
from weft.ops.array.statistics import summed, total_dtype
from weft.ops.calls import public
from weft.ops.capture_recipes import captured, recorded
from weft.ops.functional.linear import matmul
from weft.ops.other_names import missing
from weft.ops.promotion import as_float
from weft.ops.session import Handle
from weft.ops.tensor import Tensor, tensor_method

__all__ = [
    "cholesky", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "matmul", "matrix_norm",
    "matrix_power", "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet", "solve",
    "svd", "svdvals", "tensordot", "trace", "vecdot", "vector_norm",
]  # fmt: skip


class EighResult(NamedTuple):
    """Eigenvalues, ascending, and eigenvectors as columns."""

    eigenvalues: Any
    eigenvectors: Any


class QRResult(NamedTuple):
    """Orthonormal columns and an upper triangle."""

    Q: Any
    R: Any


class SVDResult(NamedTuple):
    """Left singular vectors, singular values, right singular vectors as rows."""

    U: Any
    S: Any
    Vh: Any


# -- factorisations ------------------------------------------------------------------------------


@recorded
def cholesky(x: Handle, /, *, upper: bool = False) -> Handle:
    """The triangle `l` with `l @ l^H = x`, or `u` with `u^H @ u = x`. A matrix that is not positive
    definite is an error when the result is computed."""
    value, dtype = matrices(x, square=True)
    return value.cholesky(upper=bool(upper)).cast(dtype)


@recorded
def qr(x: Handle, /, *, mode: str = "reduced") -> QRResult:
    """`q @ r = x`; q has as many columns as x has, or as it has rows with "complete"."""
    if mode not in ("reduced", "complete"):
        raise UserError(f"mode is {mode!r}; it can be 'reduced' or 'complete'")
    value, dtype = matrices(x)
    q, r = value.qr(mode=mode)
    return QRResult(q.cast(dtype), r.cast(dtype))


@recorded
def svd(x: Handle, /, *, full_matrices: bool = True) -> SVDResult:
    """`(u * s) @ vh = x` with singular values in descending order."""
    value, dtype = matrices(x)
    u, s, vh = value.svd(full_matrices=bool(full_matrices))
    return SVDResult(u.cast(dtype), s.cast(real_dtype(dtype)), vh.cast(dtype))


@recorded
def svdvals(x: Handle, /) -> Handle:
    """The singular values in descending order."""
    value, dtype = matrices(x)
    return singular_values(value).cast(real_dtype(dtype))


@recorded
def eigh(x: Handle, /) -> EighResult:
    """Eigenvalues and eigenvectors of Hermitian matrices, whose lower triangle is read."""
    value, dtype = matrices(x, square=True)
    values, vectors = value.eigh()
    return EighResult(values.cast(real_dtype(dtype)), vectors.cast(dtype))


@recorded
def eigvalsh(x: Handle, /) -> Handle:
    """The eigenvalues of Hermitian matrices, ascending."""
    value, dtype = matrices(x, square=True)
    return value.eigh()[0].cast(real_dtype(dtype))


# -- systems of equations ------------------------------------------------------------------------


@recorded
def solve(x1: Handle, x2: Handle, /) -> Handle:
    """The x with `x1 @ x = x2`; an x2 of rank 1 is a vector, all others are stacks of matrices. A
    singular matrix gives infinities or NaN."""
    a, b = in_common_dtype(x1, x2)
    check_matrices(a, square=True)
    dtype = as_float(a.dtype)
    wide = computed_in(dtype)
    a, b = a.cast(wide), b.cast(wide)
    vector = b.rank == 1
    b = b.reshape((*b.shape, 1)) if vector else b
    if b.rank < 2 or b.shape[-2] != a.shape[-1]:
        raise SpecViolation(
            "ShapeMismatch",
            f"x1 {listed(a.shape)} and x2 {listed(x2.shape)}: x2 must have {a.shape[-1]} rows",
            "the rows of x2 are its second last axis, or its only one",
        )
    result = solved(a, b)
    return (result.reshape(result.shape[:-1]) if vector else result).cast(dtype)


@recorded
def inv(x: Handle, /) -> Handle:
    """The inverse of each matrix; a singular one gives infinities or NaN."""
    value, dtype = matrices(x, square=True)
    return solved(value, identity_like(value)).cast(dtype)


@public
def pinv(x: Tensor, /, *, rtol: Any = None) -> Tensor:
    """The pseudo-inverse: singular values up to `rtol` times the largest count as zero."""
    return _with_tolerance(_pseudo_inverse, x, rtol)


def _with_tolerance(emit: Callable[..., Handle], x: Tensor, rtol: Any) -> Tensor:
    """A capture whose tolerance is a number, or a tensor with one for each matrix."""
    operands = [as_tensor(x), *([rtol] if isinstance(rtol, Tensor) else [])]
    number = None if rtol is None or isinstance(rtol, Tensor) else float(rtol)
    found: Tensor = captured(emit, operands, user_line(), number)
    return found


def _pseudo_inverse(x: Handle, *rtol: Any) -> Handle:
    value, dtype = matrices(x)
    u, s, vh = value.svd(full_matrices=False)
    significant = s.compare("greater", _cutoff(value, s, rtol))
    inverse = significant.select(s.reciprocal(), s.session.full(0.0, s.dtype, s.shape))
    scaled = adjoint(u)
    factor = inverse.cast(value.dtype).reshape((*inverse.shape, 1)).broadcast_to(scaled.shape)
    return matrix_product(adjoint(vh), scaled * factor).cast(dtype)


@public
def matrix_rank(x: Tensor, /, *, rtol: Any = None) -> Tensor:
    """How many singular values are above `rtol` times the largest."""
    return _with_tolerance(_rank, x, rtol)


def _rank(x: Handle, *rtol: Any) -> Handle:
    value, _ = matrices(x)
    s = singular_values(value)
    above = s.compare("greater", _cutoff(value, s, rtol))
    return above.cast(SI64).reduce_sum([s.rank - 1])


def _cutoff(x: Handle, s: Handle, rtol: tuple[Any, ...]) -> Handle:
    """The largest singular value that counts as zero, in the shape of `s`. `rtol` is a number or
    None, or a handle and None."""
    if s.shape[-1] == 0:
        return s
    largest = s.reduce_max([s.rank - 1], keepdims=True)
    factor = rtol[0]
    if factor is None:
        height, width = (known(dim, "a size of the matrices") for dim in x.shape[-2:])
        factor = max(height, width) * finfo(s.dtype).eps
    if isinstance(factor, Handle):
        factor = factor.cast(s.dtype).reshape((*factor.shape, 1)).broadcast_to(largest.shape)
    limit: Handle = largest * factor
    return limit.broadcast_to(s.shape)


# -- products ------------------------------------------------------------------------------------


@recorded
def matrix_power(x: Handle, n: int, /) -> Handle:
    """Each matrix multiplied by itself: `n` times, its inverse for a negative `n`."""
    check_matrices(x, square=True)
    if n < 0:
        value, dtype = matrices(x)
        return _matrix_power(solved(value, identity_like(value)), -n).cast(dtype)
    return _matrix_power(x, n)


def _matrix_power(x: Handle, n: int) -> Handle:
    result = None
    square = x
    while n:
        if n & 1:
            result = square if result is None else matrix_product(result, square)
        n >>= 1
        square = matrix_product(square, square) if n else square
    return identity_like(x) if result is None else result


@recorded
def outer(x1: Handle, x2: Handle, /) -> Handle:
    """Every product of an element of one vector and one of the other."""
    x, y = in_common_dtype(x1, x2)
    for name, value in (("x1", x), ("x2", y)):
        if value.rank != 1:
            raise SpecViolation(
                "RankMismatch",
                f"{name} {listed(value.shape)} has rank {value.rank}, but a vector is wanted",
                "flatten it with reshape(-1)",
            )
    shape = (*x.shape, *y.shape)
    return x.reshape((*x.shape, 1)).broadcast_to(shape) * y.broadcast_to(shape)


@recorded
def cross(x1: Handle, x2: Handle, /, *, axis: int = -1) -> Handle:
    """The vector product along an axis of size 3, counted in each operand before they broadcast."""
    sizes = [x1.shape, x2.shape]
    for shape in sizes:
        if not -len(shape) <= axis < len(shape) or shape[axis] != 3:
            raise OutOfRange(
                "ShapeMismatch",
                f"x1 {listed(sizes[0])} and x2 {listed(sizes[1])} must have size 3 on axis {axis}",
                "a vector product is defined for three components",
            )
    if axis >= 0 and x1.rank != x2.rank:
        raise UserError("operands of different ranks need a negative axis")
    shape = broadcast_shapes(*sizes)
    x, y = (side.broadcast_to(shape) for side in in_common_dtype(x1, x2))
    at = normalise_axis(axis, len(shape))
    return turned(x, at, 1) * turned(y, at, 2) - turned(x, at, 2) * turned(y, at, 1)


# -- diagonals -----------------------------------------------------------------------------------


@tensor_method
@recorded
def diagonal(x: Handle, /, *, offset: int = 0) -> Handle:
    """A diagonal of each matrix, above the main one where `offset` is positive."""
    check_matrices(x)
    return diagonal_of(x, offset)


@tensor_method
@recorded
def trace(x: Handle, /, *, offset: int = 0, dtype: Any = None) -> Handle:
    """The sum of a diagonal of each matrix."""
    check_matrices(x)
    elements = diagonal_of(x, offset)
    return summed(elements, [elements.rank - 1], False, total_dtype(x.dtype, dtype))


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise missing("weft.linalg", name, __all__)


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
