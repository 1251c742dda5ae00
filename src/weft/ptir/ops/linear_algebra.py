"""Matrix factorisations and triangular systems, over the last two axes; all others are batch axes.

Signs and phases that the mathematics leaves open (of a column of q, of an eigenvector, of a pair of
singular vectors) are not promised, nor the basis chosen where values coincide: two backends may
differ there. What is promised is the product, the shape of the factors, and orthogonality, each to
a small multiple of `n` ulp.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from weft.foundation.dtypes import BF16, CF32, CF64, F16, F32, F64, SI32, DType
from weft.foundation.errors import InternalError, SpecViolation, Unimplemented
from weft.ptir.op import Array, EvalContext, Op, extension_op
from weft.ptir.ops.complex_parts import PART
from weft.ptir.rules import rank_at_least, rank_is, same_dim, same_dtype, violation
from weft.ptir.schema import Bool, Choice, WireEnum, attr
from weft.ptir.term import Cotangents, Pullback, Term, unknown_size
from weft.ptir.types import UNKNOWN, Dim, Symbol, TensorType, TupleType, leaves

MATRIX: frozenset[DType] = frozenset({F32, F64, CF32, CF64})
NARROW: frozenset[DType] = frozenset({F16, BF16})
"""What LAPACK has: cast narrower floats first."""

Parts: TypeAlias = tuple[Array, ...]


class QrMode(WireEnum):
    """How many columns of q there are."""

    REDUCED = "Reduced"
    COMPLETE = "Complete"


class Factorisation(Op):
    """An op on the matrices of one operand `x`, of shape [..., m, n]."""

    operands = ("x",)
    dtypes = {"x": MATRIX}
    square: ClassVar[bool] = False

    def infer(self, *types: TensorType) -> TensorType | TupleType:
        (x,) = types
        rank_at_least(x, 2, f"the operand of {self.mnemonic}")
        if self.square:
            same_dim(x.shape[-2], x.shape[-1], f"the matrices of {self.mnemonic} are not square")
        return self.factors(x, *x.shape[-2:])

    def factors(self, x: TensorType, m: Dim, n: Dim) -> TensorType | TupleType:
        """The result type for matrices with `m` rows and `n` columns."""
        raise InternalError(f"{self.name} does not say what its factors are")

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array | Parts:
        """The factors. LAPACK is not asked for those of no matrices: the work space for one, or a
        loop over its rows, may be huge where `x` itself takes no memory."""
        kinds = list(leaves(ctx.output))
        if any(kind.size for kind in kinds):
            return self.factorise(args[0])
        empty = tuple(np.empty(kind.static_shape, kind.dtype.numpy) for kind in kinds)
        return empty if isinstance(ctx.output, TupleType) else empty[0]

    def factorise(self, x: Array) -> Array | Parts:
        """The factors of at least one matrix."""
        raise InternalError(f"{self.name} has no reference meaning")


def _with_matrix(x: TensorType, *dims: Dim) -> TensorType:
    """The batch of `x` with `dims` in place of its matrices."""
    return x.with_shape((*x.shape[:-2], *dims))


def _smaller(m: Dim, n: Dim) -> Dim:
    if isinstance(m, int) and isinstance(n, int):
        return min(m, n)
    return m if m == n else UNKNOWN


def _real(x: TensorType) -> TensorType:
    return x.with_dtype(PART.get(x.dtype, x.dtype))


def _stack(x: Array) -> Array:
    """The matrices along one batch axis."""
    return x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:])


def _unstack(parts: Parts, like: Array) -> Parts:
    """Results for a stack of matrices, back along the batch axes of `like`."""
    return tuple(part.reshape(*like.shape[:-2], *part.shape[1:]) for part in parts)


def _where_finite(factorise: Callable[[Array], Any], stack: Array) -> Parts:
    """The factors of each matrix; NaN for a matrix that has an element which is not finite."""
    finite = np.asarray(np.isfinite(stack).all(axis=(-2, -1)))
    parts = _where_convergent(factorise, np.where(finite[:, None, None], stack, 0))
    return tuple(np.where(finite.reshape(-1, *[1] * (p.ndim - 1)), p, np.nan) for p in parts)


def _where_convergent(factorise: Callable[[Array], Any], stack: Array) -> Parts:
    """The factors of each matrix; NaN where the iteration does not end. NumPy gives up on the whole
    stack when one matrix fails, so a failing stack is halved."""
    try:
        return tuple(factorise(stack))
    except np.linalg.LinAlgError:
        if len(stack) == 1:
            return tuple(np.full_like(p, np.nan) for p in factorise(np.zeros_like(stack)))
        # One matrix in n that fails costs log2 n more calls, and not n.
        halves = [_where_convergent(factorise, half) for half in np.array_split(stack, 2)]
        return tuple(np.concatenate(parts) for parts in zip(*halves, strict=True))


def _cholesky(stack: Array, upper: bool) -> Array | None:
    """The factors, or None unless every matrix is positive definite."""
    try:
        factor = np.linalg.cholesky(stack, upper=upper)
    except np.linalg.LinAlgError:
        return None
    # LAPACK compares pivots with zero, which NaN passes in some versions.
    pivots = np.diagonal(factor, axis1=-2, axis2=-1).real
    return factor if np.all(pivots > 0) else None


def _first_indefinite(stack: Array, upper: bool) -> int:
    """Where the first matrix without a factor is, found by halving; there is one."""
    low, high = 0, len(stack)
    while high - low > 1:
        middle = (low + high) // 2
        if _cholesky(stack[low:middle], upper) is None:
            high = middle
        else:
            low = middle
    return low


def not_positive_definite(number: int, batch: tuple[int, ...]) -> SpecViolation:
    """What is wrong with one matrix of a stack."""
    index = np.unravel_index(number, batch) if batch else ()
    which = f"matrix {[int(i) for i in index]}" if batch else "the matrix"
    return violation("NotPositiveDefinite", f"{which} of cholesky is not positive definite")


@extension_op("cholesky")
class Cholesky(Factorisation):
    """The Cholesky factor of each Hermitian positive definite matrix of `x`: the lower triangular
    `l` with `l @ l^H = x`, or with `upper` the upper triangular `u` with `u^H @ u = x`; its
    diagonal is positive and the other triangle zero. Only the triangle of `x` that is returned is
    read, of its diagonal only the real part. A matrix that is not positive definite, NaN included,
    is rejected when the program runs (NotPositiveDefinite)."""

    square = True

    upper: bool = attr(Bool(), usual=False)

    def factors(self, x: TensorType, m: Dim, n: Dim) -> TensorType:
        return x

    def factorise(self, x: Array) -> Array:
        stack = _stack(x)
        factor = _cholesky(stack, self.upper)
        if factor is None:
            raise not_positive_definite(_first_indefinite(stack, self.upper), x.shape[:-2])
        return factor.reshape(x.shape)

    def vjp(self, at: Pullback) -> Cotangents:
        """Only the triangle that is read gets anything."""
        g, factor = at.cotangent, at.result
        if self.upper:
            return (_cholesky_vjp(g.adjoint(), factor.adjoint()).adjoint(),)
        return (_cholesky_vjp(g, factor),)


@extension_op("qr")
class Qr(Factorisation):
    """`(q, r)` with `q @ r = x`, `q` with orthonormal columns and `r` upper triangular. For
    matrices m x n, `reduced` gives `q` m x min(m, n) and `r` min(m, n) x n; `complete` gives `q` m
    x m and `r` m x n. The signs of the diagonal of `r` are not specified."""

    mode: QrMode = attr(Choice(QrMode), usual=QrMode.REDUCED)

    def factors(self, x: TensorType, m: Dim, n: Dim) -> TupleType:
        inner = _smaller(m, n) if self.mode is QrMode.REDUCED else m
        return TupleType((_with_matrix(x, m, inner), _with_matrix(x, inner, n)))

    def factorise(self, x: Array) -> Parts:
        if self.mode is QrMode.REDUCED:
            return tuple(np.linalg.qr(x, mode="reduced"))
        return tuple(np.linalg.qr(x, mode="complete"))

    def vjp(self, at: Pullback) -> Cotangents:
        """Defined for full rank; not for a completed `q`, whose last columns are arbitrary."""
        (x,), (q, r) = at.operands, _result_factors(at.result)
        m, n = x.shape[-2:]
        if self.mode is QrMode.COMPLETE and not _at_most(m, n):
            raise Unimplemented(
                "the gradient of qr",
                "the last columns of a completed q are arbitrary; use the reduced mode",
            )
        by_q, by_r = at.of_elements
        if not _at_most(m, n) or m == n:
            return (_qr_vjp(q, r, by_q, by_r),)
        # The columns beyond the square part are q times what r has there.
        square, rest = _slice_columns(r, 0, m), _slice_columns(by_r, m, n)
        by_q = by_q + _slice_columns(x, m, n) @ rest.adjoint()
        first = _qr_vjp(q, square, by_q, _slice_columns(by_r, 0, m))
        return (first.concat(q @ rest, axis=x.rank - 1),)


@extension_op("eigh")
class Eigh(Factorisation):
    """`(values, vectors)` of each Hermitian matrix of `x`: the eigenvalues as floats in ascending
    order, and a unitary matrix whose column `i` belongs to value `i`, so that `x @ vectors =
    vectors * values`. Only the lower triangle is read, of the diagonal only the real part. Where
    one of the elements read is infinite or NaN, all results of that matrix are NaN. The sign or
    phase of each vector is not specified."""

    square = True

    def factors(self, x: TensorType, m: Dim, n: Dim) -> TupleType:
        return TupleType((_real(_with_matrix(x, n)), x))

    def factorise(self, x: Array) -> Parts:
        return _unstack(_where_finite(np.linalg.eigh, np.tril(_stack(x))), x)

    def vjp(self, at: Pullback) -> Cotangents:
        """Only the lower triangle has a gradient. The gradient through the vectors is not defined
        for equal values; the result must not depend on the phases of complex vectors."""
        (x,), (w, v) = at.operands, _result_factors(at.result)
        by_w, by_v = at.cotangents
        inner = x.like(0)
        if by_w is not None:
            # x = v w v^H. A change e of v^H x v moves value i by e[i, i], and turns vector j
            # towards vector i by e[i, j] / (w[j] - w[i]).
            inner = _diagonal(by_w.cast(x.dtype))
        if by_v is not None:
            inner = inner + _over_gaps(v.adjoint() @ by_v, w.cast(x.dtype))
        return (_lower_only(v @ inner @ v.adjoint()),)


@extension_op("svd")
class Svd(Factorisation):
    """`(u, s, vh)` of each matrix of `x`: the singular values `s` as floats, not negative, in
    descending order, and `u`, `vh` with orthonormal columns and rows, so that `(u * s) @ vh = x`.
    For matrices m x n and k = min(m, n), `u` is m x k and `vh` k x n; with `full_matrices` they are
    completed to m x m and n x n. Where an element is infinite or NaN, all results of that matrix
    are NaN. The signs or phases of the vectors are not specified."""

    full_matrices: bool = attr(Bool(), usual=True)

    def factors(self, x: TensorType, m: Dim, n: Dim) -> TupleType:
        k = _smaller(m, n)
        rows, columns = (m, n) if self.full_matrices else (k, k)
        s = _real(_with_matrix(x, k))
        return TupleType((_with_matrix(x, m, rows), s, _with_matrix(x, columns, n)))

    def factorise(self, x: Array) -> Parts:
        def svd(stack: Array) -> Any:
            return np.linalg.svd(stack, full_matrices=self.full_matrices)

        return _unstack(_where_finite(svd, _stack(x)), x)

    def vjp(self, at: Pullback) -> Cotangents:
        """The gradient through the vectors is not defined for equal or zero values, nor for
        completed vectors; the result must not depend on the common phase of complex vectors."""
        (x,), (u, s, vh) = at.operands, _result_factors(at.result)
        by_u, by_s, by_vh = at.cotangents
        m, n = x.shape[-2:]
        if self.full_matrices and m != n:
            if by_u is not None or by_vh is not None:
                raise Unimplemented(
                    "the gradient of svd",
                    "completed singular vectors are arbitrary; use full_matrices=false",
                )
            u, s, vh = _result_factors(x.svd(full_matrices=False))
        return (_svd_vjp(_Svd(u, s.cast(x.dtype), vh), by_u, by_s, by_vh),)


def _eliminate(work: Array) -> Array:
    """Gaussian elimination of a stack of matrices in place: `u` and, below its diagonal, `l`. The
    result is the order in which the rows were taken."""
    count, m, n = work.shape
    each = np.arange(count)
    order = np.tile(np.arange(m, dtype=np.int32), (count, 1))
    for j in range(min(m, n)):
        column = work[:, j:, j]
        pivot = j + np.argmax(np.abs(column.real) + np.abs(column.imag), axis=1)
        for rows in (work, order):
            rows[each, pivot], rows[:, j] = rows[:, j].copy(), rows[each, pivot]
        # A zero pivot has only zeros below it: nothing is left to eliminate.
        divisor = np.where(work[:, j, j] == 0, 1, work[:, j, j])
        work[:, j + 1 :, j] /= divisor[:, None]
        work[:, j + 1 :, j + 1 :] -= work[:, j + 1 :, j, None] * work[:, None, j, j + 1 :]
    return order


@extension_op("lu")
class Lu(Factorisation):
    """`(permutation, l, u)` of each matrix of `x` with partial pivoting: `x[permutation] = l @ u`.
    For matrices m x n and k = min(m, n), `permutation` holds the m row numbers as si32, `l` is m x
    k, lower triangular with a unit diagonal, and `u` is k x n, upper triangular. Each pivot is the
    largest of its column in `|re| + |im|`, the first of equals. A singular matrix gives a zero on
    the diagonal of `u` and is not an error."""

    def factors(self, x: TensorType, m: Dim, n: Dim) -> TupleType:
        k = _smaller(m, n)
        permutation = _with_matrix(x, m).with_dtype(SI32)
        return TupleType((permutation, _with_matrix(x, m, k), _with_matrix(x, k, n)))

    def factorise(self, x: Array) -> Parts:
        work = _stack(x).copy()
        order = _eliminate(work)
        k = min(x.shape[-2:])
        l_factor = np.tril(work[:, :, :k], -1)
        l_factor[:, range(k), range(k)] = 1
        return _unstack((order, l_factor, np.triu(work[:, :k])), x)

    def vjp(self, at: Pullback) -> Cotangents:
        """Defined if no pivot is zero; the permutation is treated as a constant."""
        (x,), (order, lower, upper) = at.operands, _result_factors(at.result)
        _, by_l, by_u = at.of_elements
        m, n = x.shape[-2:]
        if m == n:
            found = _lu_vjp(lower, upper, lower.adjoint() @ by_l, by_u @ upper.adjoint())
        elif _at_most(m, n):
            square, rest = _slice_columns(upper, 0, m), _slice_columns(by_u, m, n)
            left = lower.adjoint() @ by_l - rest @ _slice_columns(upper, m, n).adjoint()
            first = _lu_vjp(lower, square, left, _slice_columns(by_u, 0, m) @ square.adjoint())
            found = first.concat(_solve(lower, rest, lower=True, unit=True), axis=x.rank - 1)
        else:
            square, rest = _slice_rows(lower, 0, n), _slice_rows(by_l, n, m)
            right = by_u @ upper.adjoint() - _slice_rows(lower, n, m).adjoint() @ rest
            first = _lu_vjp(square, upper, square.adjoint() @ _slice_rows(by_l, 0, n), right)
            found = first.concat(_divide(rest, upper), axis=x.rank - 2)
        rows = order.reshape([*order.shape, 1]).broadcast_to(x.shape)
        return (x.like(0).scatter_reduce(rows, found, axis=x.rank - 2, reduce="add"),)


@extension_op("triangular_solve")
class TriangularSolve(Op):
    """The `x` with `op(a) @ x = b` by substitution, for each matrix `a` [..., n, n] and its `b`
    [..., n, k]; the batch axes agree. `op(a)` is `a`, or with `transpose` its transpose (not
    conjugated). `lower` says which triangle of `a` itself is read, the other counts as zero; with
    `unit_diagonal` the diagonal counts as ones and is not read. A zero on the diagonal divides as
    IEEE says: infinities and NaN. f16 and bf16 are solved in f32 and rounded once."""

    operands = ("a", "b")
    dtypes = {"a": MATRIX | NARROW, "b": MATRIX | NARROW}

    lower: bool = attr(Bool())
    transpose: bool = attr(Bool(), usual=False)
    unit_diagonal: bool = attr(Bool(), usual=False)

    def infer(self, *types: TensorType) -> TensorType:
        a, b = types
        same_dtype(a, b, "the operands of triangular_solve")
        rank_at_least(a, 2, "a of triangular_solve")
        rank_is(b, a.rank, "b of triangular_solve")
        same_dim(a.shape[-2], a.shape[-1], "the matrices a of triangular_solve are not square")
        same_dim(a.shape[-1], b.shape[-2], "a and b of triangular_solve differ in rows")
        for left, right in zip(a.shape[:-2], b.shape[:-2], strict=True):
            same_dim(left, right, "a and b of triangular_solve differ in a batch axis")
        return b

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        if not args[1].size:
            # The loop below would still visit every row.
            return np.empty(args[1].shape, args[1].dtype)
        narrow = args[1].dtype not in {dtype.numpy for dtype in MATRIX}
        wide = [x.astype(np.float32) if narrow else x for x in args]
        a, b = _stack(wide[0]), _stack(wide[1])
        if self.transpose:
            a = np.swapaxes(a, -2, -1)
        downward = self.lower != self.transpose
        n = a.shape[-1]
        x = np.empty_like(b, order="C")
        for row in range(n) if downward else reversed(range(n)):
            done = slice(0, row) if downward else slice(row + 1, n)
            rest = b[:, row] - (a[:, row : row + 1, done] @ x[:, done])[:, 0]
            x[:, row] = rest if self.unit_diagonal else rest / a[:, row, row, None]
        return x.reshape(args[1].shape).astype(args[1].dtype, copy=False)

    def vjp(self, at: Pullback) -> Cotangents:
        """Only the triangle that is read gets anything."""
        a, _ = at.operands
        by_b = a.conj().triangular_solve(
            at.cotangent, lower=self.lower, transpose=not self.transpose,
            unit_diagonal=self.unit_diagonal,
        )  # fmt: skip
        if not at.wanted[0]:
            return None, by_b
        # a x = b, so that da x + a dx = db: what moves b by a step moves a x the other way.
        by_a = -(by_b @ at.result.adjoint())
        if self.transpose:
            by_a = by_a.matrix_transpose()
        read = "greater" if self.lower else "less"
        if not self.unit_diagonal:
            read += "_equal"
        return by_a.where(by_a.mask(read)), by_b


# -- gradients -----------------------------------------------------------------------------------


def _result_factors(result: Term) -> list[Term]:
    """The factors that an op returns."""
    return [result[index] for index, _ in enumerate(leaves(result.type))]


def _at_most(m: Dim, n: Dim) -> bool:
    for dim in (m, n):
        if isinstance(dim, Symbol) and m != n:
            raise unknown_size(dim)
    return m == n or (isinstance(m, int) and isinstance(n, int) and m < n)


def _slice_columns(x: Term, start: Dim, stop: Dim) -> Term:
    return x.part(x.rank - 1, *_start_and_size(start, stop))


def _slice_rows(x: Term, start: Dim, stop: Dim) -> Term:
    return x.part(x.rank - 2, *_start_and_size(start, stop))


def _start_and_size(start: Dim, stop: Dim) -> tuple[int, int]:
    if isinstance(start, Symbol) or isinstance(stop, Symbol):
        raise unknown_size(stop if isinstance(stop, Symbol) else Symbol(str(start)))
    return start, stop - start


def _solve(a: Term, b: Term, *, lower: bool, unit: bool = False) -> Term:
    """The x with a^H x = b for a triangular a."""
    return a.conj().triangular_solve(b, lower=lower, transpose=True, unit_diagonal=unit)


def _divide(b: Term, upper: Term) -> Term:
    """The x with x u^H = b for an upper triangular u."""
    turned = upper.triangular_solve(b.adjoint(), lower=False, transpose=False, unit_diagonal=False)
    return turned.adjoint()


def _diagonal(values: Term) -> Term:
    """Matrices with these diagonals."""
    n = values.shape[-1]
    wide = values.reshape([*values.shape, 1]).broadcast_to([*values.shape, n])
    return wide.where(wide.mask("equal"))


def _lower_only(s: Term) -> Term:
    """The gradient by the lower triangle of a Hermitian matrix, from the one by all of it."""
    # An element below the diagonal stands for its mirror image, too; one on it is there once.
    both = s + s.adjoint()
    below = both.where(both.mask("greater"))
    return below + (both * 0.5).where(both.mask("equal"))


def _cholesky_vjp(g: Term, factor: Term) -> Term:
    # With x = l l^H and P = l^H g: of P only what is below the diagonal and half of the diagonal
    # count, since l has nothing above, and l^-H (that) l^-1 is the cotangent of x before its
    # symmetry.
    product = factor.adjoint() @ g
    half = (product * 0.5).where(product.mask("equal"), product.where(product.mask("greater")))
    left = _solve(factor, half, lower=True)
    return _lower_only(_solve(factor, left.adjoint(), lower=True).adjoint())


def _qr_vjp(q: Term, r: Term, by_q: Term, by_r: Term) -> Term:
    """`(by_q + q t) r^-H`, where the Hermitian t has the upper triangle of the matrix below."""
    upper = by_r @ r.adjoint() - q.adjoint() @ by_q
    strict = upper.where(upper.mask("less"))
    both = upper + upper.conj() if upper.dtype.is_complex else upper * 2
    middle = strict + strict.adjoint() + (both * 0.5).where(upper.mask("equal"))
    return _divide(by_q + q @ middle, r)


def _over_gaps(x: Term, values: Term) -> Term:
    """`x[i, j] / (values[j] - values[i])` off the diagonal, zero on it."""
    column = values.reshape([*values.shape, 1]).broadcast_to(x.shape)
    row = values.reshape([*values.shape[:-1], 1, values.shape[-1]]).broadcast_to(x.shape)
    same = x.mask("equal")
    gaps = x.like(1).where(same, row - column)
    return x.like(0).where(same, x / gaps)


class _Svd(NamedTuple):
    u: Term
    s: Term
    vh: Term

    def scaled(self, x: Term) -> Term:
        """x times the diagonal matrix of the singular values."""
        row = self.s.reshape([*self.s.shape[:-1], 1, self.s.shape[-1]])
        return x * row.broadcast_to(x.shape)

    def unscaled(self, x: Term) -> Term:
        """x divided by it."""
        row = self.s.reshape([*self.s.shape[:-1], 1, self.s.shape[-1]])
        return x / row.broadcast_to(x.shape)


def _svd_vjp(factors: _Svd, by_u: Term | None, by_s: Term | None, by_vh: Term | None) -> Term:
    """Through the values, the left vectors and the right vectors, each where it is asked for."""
    u, s, vh = factors
    squares = s * s
    inner = (s.full(0, [*s.shape, s.shape[-1]])) if by_s is None else _diagonal(by_s.cast(s.dtype))
    beyond: Term | None = None
    if by_u is not None:
        turned = u.adjoint() @ by_u
        inner = inner + factors.scaled(_over_gaps(turned - turned.adjoint(), squares))
        if s.dtype.is_complex:
            phase = (turned - turned.conj()) * 0.5
            inner = inner + factors.unscaled(phase).where(phase.mask("equal"))
        beyond = factors.unscaled(by_u - u @ turned) @ vh
    if by_vh is not None:
        turned = vh @ by_vh.adjoint()
        gaps = _over_gaps(turned - turned.adjoint(), squares)
        inner = inner + factors.scaled(gaps.adjoint()).adjoint()
        rest = by_vh - turned.adjoint() @ vh
        right = u @ factors.unscaled(rest.adjoint()).adjoint()
        beyond = right if beyond is None else beyond + right
    total = u @ inner @ vh
    return total if beyond is None else total + beyond


def _lu_vjp(lower: Term, upper: Term, left: Term, right: Term) -> Term:
    """`l^-H (strict lower part of left + upper part of right) u^-H` for square factors."""
    inner = left.where(left.mask("greater"), right.where(right.mask("less_equal")))
    return _divide(_solve(lower, inner, lower=True, unit=True), upper)
