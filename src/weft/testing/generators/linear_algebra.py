"""Factorisations, of matrices that are far from singular.

What PTIR promises of a factorisation is not the factors themselves (their signs are open) but what
they make: random programs go on with the product of the factors and with the values that are
unique. The factors stay hidden; where the ops that multiply them are not allowed, nothing goes on
with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from weft.foundation.dtypes import DType
from weft.ptir.ops import linear_algebra as la
from weft.ptir.ops.complex_parts import Conj
from weft.ptir.ops.elementwise import BinaryFn, Cast, ElementwiseBinary
from weft.ptir.ops.movement import BroadcastTo, Reshape
from weft.ptir.types import Dim, Shape
from weft.testing.data import Array
from weft.testing.draft import Item
from weft.testing.facts import Facts, within
from weft.testing.generator import Generator, Skip
from weft.testing.generators.contraction import Axes, dot
from weft.testing.generators.registry import generates

_ORTHOGONAL = Facts(-1.5, 1.5, None)
_SIZES = (1, 2, 3, 4, 0)


def _batch(g: Generator) -> Shape:
    return g.shape(0, 2) if g.choices.chance(0.5) else ()


def _matrices(
    g: Generator, dtype: DType, m: Dim, n: Dim, change: Callable[[Array], Array], bound: float
) -> Item:
    """Fresh matrices: whole numbers from -2 to 2, changed."""
    shape = (*_batch(g), m, n)
    facts = Facts(-2.0, 2.0, 1.0)

    def fill(sizes: tuple[int, ...]) -> Array:
        return change(g.data.array(dtype, sizes, facts)).astype(dtype.numpy)

    if g.depth and not all(isinstance(dim, int) for dim in shape):
        raise Skip
    return g.given(dtype, shape, fill, Facts(-bound, bound, 1.0))


def _draw_dtype(g: Generator) -> DType:
    return g.dtype(la.MATRIX)


def _adjoint(a: Array) -> Array:
    return np.asarray(np.conjugate(np.swapaxes(a, -2, -1)))


def _dominant(a: Array) -> Array:
    """Twelve times the identity on top: no pivot is in doubt."""
    return np.asarray(a + 12 * np.eye(*a.shape[-2:], dtype=a.dtype))


def _hermitian(a: Array) -> Array:
    return a + _adjoint(a)


def _turn_rows(a: Array) -> Array:
    """Dominant elements, but not on the diagonal: the rows come in another order."""
    return np.roll(_dominant(a), 1, axis=-2)


@generates(la.Cholesky)
def cholesky(g: Generator) -> None:
    dtype = _draw_dtype(g)
    n = g.choices.choose(_SIZES)
    if g.choices.chance(0.4):
        x = _gram(g, dtype)
    else:
        x = _matrices(g, dtype, n, n, lambda a: _hermitian(_dominant(a)), 28)
    facts = Facts(-8, 8, None)
    g.emit(la.Cholesky(g.choices.chance(0.5)), x, facts=facts)


def _gram(g: Generator, dtype: DType) -> Item:
    """`a @ a^H + 4` of a computed value: positive definite."""

    def matrices(item: Item) -> bool:
        static = item.rank >= 2 and isinstance(item.shape[-2], int)
        return static and max(item.sizes[-1], item.sizes[-2]) <= 8

    a = g.pick({dtype}, within(1), matrices, lambda: (3, 4))
    other = g.emit(Conj(), a, facts=Facts(-1, 1, None)) if dtype.is_complex else a
    batch = [(axis, axis) for axis in range(a.rank - 2)]
    square = dot(g, a, other, Axes(batch, [(a.rank - 1, a.rank - 1)]))
    if square.dtype is not dtype:
        raise Skip
    size = square.sizes[-1]
    diagonal = Facts(0, 4, 4.0)
    eye = g.given(dtype, (size, size), lambda n: _eye(n, dtype), diagonal)
    spread = g.emit(BroadcastTo(square.shape), eye, facts=diagonal)
    facts = Facts(-40, 40, None)
    return g.emit(ElementwiseBinary(BinaryFn.ADD), square, spread, facts=facts)


def _eye(sizes: tuple[int, ...], dtype: DType) -> Array:
    return np.asarray(4 * np.eye(sizes[-1] if sizes else 1)).reshape(sizes).astype(dtype.numpy)


def _times_columns(g: Generator, vectors: Item, values: Item) -> Item:
    """`vectors * values`, each column times its own value."""
    if values.dtype is not vectors.dtype:
        values = g.emit(Cast(vectors.dtype), values, facts=values.facts)
    row = g.emit(Reshape((*values.shape[:-1], 1, values.shape[-1])), values, facts=values.facts)
    spread = g.emit(BroadcastTo(vectors.shape), row, facts=values.facts)
    facts = Facts(-2 * values.facts.bound, 2 * values.facts.bound, None)
    return g.emit(ElementwiseBinary(BinaryFn.MUL), vectors, spread, facts=facts)


def _multiply_matrices(g: Generator, lhs: Item, rhs: Item, *, adjoint: bool = False) -> Item:
    """`lhs @ rhs`, or `lhs @ rhs^H`."""
    if adjoint and rhs.dtype.is_complex:
        rhs = g.emit(Conj(), rhs, facts=rhs.facts)
    batch = [(axis, axis) for axis in range(lhs.rank - 2)]
    return dot(g, lhs, rhs, Axes(batch, [(lhs.rank - 1, rhs.rank - (1 if adjoint else 2))]))


def _may_scale(g: Generator, dtype: DType) -> bool:
    """Whether the ops of `vectors * values @ more` are allowed."""
    more = ("cast", "conj") if dtype.is_complex else ()
    return g.allows("reshape", "broadcast_to", "mul", "dot_general", *more)


@generates(la.Qr)
def qr(g: Generator) -> None:
    dtype = _draw_dtype(g)
    m, n = g.choices.choose(_SIZES), g.choices.choose(_SIZES)
    x = _matrices(g, dtype, m, n, _dominant, 14)
    mode = g.choices.choose(list(la.QrMode))
    facts = [_ORTHOGONAL, Facts(-32, 32, None)]
    q, r = g.emit_tuple(la.Qr(mode), x, facts=facts, hidden=True)
    if g.allows("dot_general"):
        _multiply_matrices(g, q, r)


@generates(la.Eigh)
def eigh(g: Generator) -> None:
    dtype = _draw_dtype(g)
    n = g.choices.choose(_SIZES)
    x = _matrices(g, dtype, n, n, _hermitian, 4)
    facts = [Facts(-32, 32, None), _ORTHOGONAL]
    values, vectors = g.emit_tuple(la.Eigh(), x, facts=facts, hidden=True)
    g.draft.items.append(values)
    if _may_scale(g, dtype):
        _multiply_matrices(g, _times_columns(g, vectors, values), vectors, adjoint=True)


@generates(la.Svd)
def svd(g: Generator) -> None:
    dtype = _draw_dtype(g)
    m, n = g.choices.choose(_SIZES), g.choices.choose(_SIZES)
    x = _matrices(g, dtype, m, n, _dominant, 14)
    full = g.choices.chance(0.3)
    facts = [_ORTHOGONAL, Facts(0, 32, None), _ORTHOGONAL]
    u, s, vh = g.emit_tuple(la.Svd(full), x, facts=facts, hidden=True)
    g.draft.items.append(s)
    if (not full or m == n) and _may_scale(g, dtype):
        _multiply_matrices(g, _times_columns(g, u, s), vh)


@generates(la.Lu)
def lu(g: Generator) -> None:
    dtype = _draw_dtype(g)
    m, n = g.choices.choose(_SIZES), g.choices.choose(_SIZES)
    change = g.choices.choose((_dominant, _turn_rows)) if m == n else _dominant
    x = _matrices(g, dtype, m, n, change, 14)
    last = max(m - 1, 0)
    facts = [Facts(0, last), Facts(-1.5, 1.5, None), Facts(-32, 32, None)]
    g.emit_tuple(la.Lu(), x, facts=facts)


@generates(la.TriangularSolve)
def triangular_solve(g: Generator) -> None:
    dtype = _draw_dtype(g)
    b = g.pick(
        {dtype},
        within(8),
        lambda item: item.rank >= 2 and item.sizes[-2] <= 8,
        lambda: (*_batch(g), g.choices.choose(_SIZES), g.choices.choose(_SIZES)),
    )
    n = b.sizes[-2]
    if g.depth or b.shape[-2] != n:
        raise Skip

    def fill(sizes: tuple[int, ...]) -> Array:
        return _dominant(g.data.array(dtype, sizes, Facts(-1.0, 1.0, 1.0))).astype(dtype.numpy)

    a = g.given(dtype, (*b.shape[:-2], n, n), fill, Facts(-14.0, 14.0, 1.0))
    unit = g.choices.chance(0.2)
    op = la.TriangularSolve(g.choices.chance(0.5), g.choices.chance(0.5), unit)
    growth = 3.0**n if unit else 1.5**n
    bound = 2.0 ** math.ceil(math.log2(8 * growth))
    g.emit(op, a, b, facts=Facts(-bound, bound, None))
