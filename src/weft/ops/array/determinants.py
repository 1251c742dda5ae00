"""Determinants, and their gradients: the matrix of cofactors, which singular matrices have too."""

from __future__ import annotations

from typing import Any, NamedTuple

from weft.foundation.dtypes import SI64, DType
from weft.ops.array.creation import diagonal_mask
from weft.ops.array.linear_algebra import matrix_product
from weft.ops.array.matrices import (
    adjoint,
    diagonal_of,
    identity_like,
    magnitude,
    matrices,
    solved,
    turned,
)
from weft.ops.array.movement import window
from weft.ops.array.norms import real_dtype
from weft.ops.array.searching import where
from weft.ops.array.utility import any as any_of
from weft.ops.calls import public
from weft.ops.capture_recipes import recorded
from weft.ops.control_flow import cond
from weft.ops.custom_rules import custom_vjp
from weft.ops.session import Handle
from weft.ops.tensor import Tensor

_WRITTEN_OUT = 3
"""Up to this size cofactors are sums of a few products."""


class SlogdetResult(NamedTuple):
    """The sign of a determinant and the logarithm of its absolute value."""

    sign: Any
    logabsdet: Any


@public
def det(x: Tensor, /) -> Tensor:
    """The determinant of each matrix. Its gradient is the matrix of cofactors, of singular matrices
    too; second derivatives at a singular matrix of four rows or more may be NaN."""
    return _DETERMINANT(x)  # type: ignore[no-any-return]


@recorded
def slogdet(x: Handle, /) -> SlogdetResult:
    """The sign (or direction) of each determinant, and the logarithm of its absolute value; 0 and
    -inf for a singular matrix, where the gradient is infinite or NaN."""
    value, dtype = matrices(x, square=True)
    permutation, _, upper = value.lu()
    pivots = diagonal_of(upper)
    last = [pivots.rank - 1]
    sign = _parity(permutation, value.dtype) * pivots.sign().reduce_prod(axes=last)
    size = magnitude(pivots).log().reduce_sum(last)
    return SlogdetResult(sign.cast(dtype), size.cast(real_dtype(dtype)))


@recorded
def _det(x: Handle, /) -> Handle:
    value, dtype = matrices(x, square=True)
    return _unscaled_determinant(value).cast(dtype)


def _unscaled_determinant(value: Handle) -> Handle:
    permutation, _, upper = value.lu()
    pivots = diagonal_of(upper)
    product = pivots.reduce_prod(axes=[pivots.rank - 1])
    return _parity(permutation, value.dtype) * product


def _parity(permutation: Handle, dtype: DType) -> Handle:
    """1 for an even permutation, -1 for an odd one: the pairs out of order are counted."""
    *batch, size = permutation.shape
    square = (*batch, size, size)
    before = permutation.reshape((*batch, size, 1)).broadcast_to(square)
    after = permutation.reshape((*batch, 1, size)).broadcast_to(square)
    later = diagonal_mask(permutation.session, (size, size), 0, "greater").broadcast_to(square)
    wrong = before.compare("greater", after).bitwise_and(later).cast(SI64)
    odd = wrong.reduce_sum([len(batch), len(batch) + 1]).bitwise_and(1)
    return (1 - odd * 2).cast(dtype)


# -- cofactors -----------------------------------------------------------------------------------


def _pulled_back(x: Tensor, cotangent: Tensor) -> tuple[Tensor]:
    found = _few(x) if x.shape[-1] <= _WRITTEN_OUT else _cofactors_of_large(x)
    return (cotangent.reshape((*cotangent.shape, 1, 1)).astype(found.dtype) * found,)


def _cofactors_of_large(x: Tensor) -> Tensor:
    """The cofactors, conjugated: by the inverse, or by singular values where there is none."""
    singular = (_det(x) == 0).reshape((*x.shape[:-2], 1, 1))
    inverted = _by_inverse(where(singular, _distinct(x), x), _det(x))

    def some() -> Tensor:
        # What is not taken is of a matrix whose singular values differ, and has derivatives.
        return where(singular, _by_singular_values(where(singular, x, _distinct(x))), inverted)

    return cond(any_of(singular), some, lambda: inverted)  # type: ignore[no-any-return]


@recorded
def _few(x: Handle, /) -> Handle:
    value, _ = matrices(x, square=True)
    batch, size = value.rank - 2, value.shape[-1]
    plain = value.conj() if value.dtype.is_complex else value
    if size == 3:
        rows = [turned(plain, batch, by) for by in (1, 2)]
        crossed = [[turned(row, batch + 1, by) for by in (1, 2)] for row in rows]
        return crossed[0][0] * crossed[1][1] - crossed[0][1] * crossed[1][0]
    if size == 2:
        swapped = _swap_pair(_swap_pair(plain, batch), batch + 1)
        signs = plain.session.literal([[1, -1], [-1, 1]], plain.dtype)
        return swapped * signs.broadcast_to(swapped.shape)
    return plain.session.full(1, plain.dtype, plain.shape)


def _swap_pair(x: Handle, axis: int) -> Handle:
    return window(x, axis, 1, 1).concat(window(x, axis, 0, 1), axis)


@recorded
def _distinct(x: Handle, /) -> Handle:
    """Diagonal matrices of 1, 2, 3, ... in the shape of x."""
    value, _ = matrices(x, square=True)
    kind, rank = value.dtype, value.rank
    real = real_dtype(kind)
    count = (value.session.iota(real, value.shape, rank - 1) + 1).cast(kind)
    return (count * identity_like(value)).cast(x.dtype)


@recorded
def _by_inverse(x: Handle, determinant: Handle, /) -> Handle:
    value, _ = matrices(x, square=True)
    product = determinant.cast(value.dtype)
    product = product.conj() if value.dtype.is_complex else product
    scale = product.reshape((*product.shape, 1, 1)).broadcast_to(value.shape)
    return scale * adjoint(solved(value, identity_like(value)))


@recorded
def _by_singular_values(x: Handle, /) -> Handle:
    """`det(u) det(v^H) u p v^H`, conjugated but for u and v, where p are the products of all
    singular values but one."""
    value, _ = matrices(x, square=True)
    u, s, vh = value.svd(full_matrices=True)
    turn = _unscaled_determinant(u) * _unscaled_determinant(vh)
    turn = turn.conj() if value.dtype.is_complex else turn
    axis, ones = s.rank - 1, s.session.full(1, s.dtype, (*s.shape[:-1], 1))
    size = value.shape[-1] - 1
    before = ones.concat(window(s, axis, 0, size).cumulative_prod(axis=axis, reverse=False), axis)
    after = window(s, axis, 1, size).cumulative_prod(axis=axis, reverse=True).concat(ones, axis)
    others = (before * after).cast(value.dtype)
    columns = others.reshape((*others.shape[:-1], 1, others.shape[-1])).broadcast_to(u.shape)
    scale = turn.reshape((*turn.shape, 1, 1)).broadcast_to(value.shape)
    return scale * matrix_product(u * columns, vh)


_DETERMINANT = custom_vjp(_det)
_DETERMINANT.defvjp(lambda x: (_det(x), x), _pulled_back)
