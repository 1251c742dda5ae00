"""Products and factorisations of matrices, and Fourier transforms. Where torch gives factors whose
signs or order are its own choice, a rule gives None for them: nothing may use them."""

from __future__ import annotations

from functools import reduce
from typing import Any

from weft.foundation.dtypes import SI32
from weft.foundation.errors import Unimplemented
from weft.interop.torch.rules.table import F, Rule, rule, rules, w

L: Any = w.linalg


def _plus(product: Rule) -> Rule:
    """`beta * x + alpha * product`; with `beta` 0 what stands in `x` does not count."""

    def call(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        made = product(a, b)
        made = made if alpha == 1 else made * alpha
        if beta == 0:
            return w.broadcast_to(made, w.broadcast_shapes(x.shape, made.shape))
        return made + (x if beta == 1 else x * beta)

    return call


def _outer(a: Any, b: Any) -> Any:
    return a[:, None] * b[None, :]


rules(
    "aten.",
    mm=w.matmul,
    bmm=w.matmul,
    matmul=w.matmul,
    mv=w.matmul,
    dot=w.matmul,
    vdot=lambda x, y: w.matmul(w.conj(x), y),
    addmm=_plus(w.matmul),
    addmv=_plus(w.matmul),
    baddbmm=_plus(w.matmul),
    addbmm=_plus(lambda a, b: w.sum(a @ b, axis=0)),
    addr=_plus(_outer),
    linear=lambda x, weight, bias=None: w.functional.linear(x, weight, bias),
    cholesky=lambda x, upper=False: _lower(x, upper),
)


def _lost_matrices(found: Any, count: int) -> Any:
    """1 for each matrix that has no inverse: then there are infinities or NaN in the result."""
    lost = w.logical_not(w.isfinite(found))
    axes = tuple(range(count, found.ndim))
    return w.astype(w.any(lost, axis=axes) if axes else lost, SI32)


def _transpose_conjugate(x: Any) -> Any:
    made = w.matrix_transpose(x)
    return w.conj(made) if x.dtype.is_complex else made


def _lower(x: Any, upper: bool) -> Any:
    return L.cholesky(x, upper=upper)


@rule("aten.linalg_solve_triangular")
def triangular(
    a: Any, b: Any, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    half = w.triu(a) if upper else w.tril(a)
    if unitriangular:
        eye = w.eye(a.shape[-1], dtype=a.dtype)
        half = half * (1 - eye) + eye
    return solved(half, b, left)


def solved(a: Any, b: Any, left: bool = True) -> Any:
    if not left:
        return w.matrix_transpose(solved(w.matrix_transpose(a), w.matrix_transpose(b)))
    shape = w.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a = w.broadcast_to(a, (*shape, *a.shape[-2:]))
    return L.solve(a, w.broadcast_to(b, (*shape, *b.shape[-2:])))


@rule("aten.triangular_solve")
def _(
    b: Any, a: Any, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Any:
    turned = w.matrix_transpose(a) if transpose else a
    return triangular(turned, b, upper=upper != transpose, unitriangular=unitriangular), a


@rule("aten.cholesky_solve")
def _(b: Any, factor: Any, upper: bool = False) -> Any:
    return solved(_gram(factor, upper), b)


@rule("aten.cholesky_inverse")
def _(factor: Any, upper: bool = False) -> Any:
    return L.inv(_gram(factor, upper))


def _gram(x: Any, upper: bool) -> Any:
    half = w.triu(x) if upper else w.tril(x)
    return _transpose_conjugate(half) @ half if upper else half @ _transpose_conjugate(half)


def _norm_of_rows(x: Any) -> Any:
    return w.max(w.sum(w.abs(x), axis=-1), axis=-1)


@rule("aten.linalg_matrix_exp")
def _(x: Any) -> Any:
    """Scaled until it is small, by a series, and squared again."""
    if not x.size:
        return x
    steps = w.astype(w.clip(w.ceil(w.log2(w.maximum(_norm_of_rows(x), 1e-30))) + 4, 0, 60), w.int64)
    small = (
        x
        / w.exp2(w.astype(steps, x.dtype if not x.dtype.is_complex else w.float32))[..., None, None]
    )
    eye = w.broadcast_to(w.eye(x.shape[-1], dtype=x.dtype), x.shape)
    total, term = eye + small, small
    for order in range(2, 13):
        term = term @ small / order
        total = total + term

    def square(held: Any) -> Any:
        done, made = held
        return done + 1, w.where((done < steps)[..., None, None], made @ made, made)

    most = w.max(steps)
    start = (w.zeros((), dtype=w.int64), total)
    return w.while_loop(lambda held: held[0] < most, square, start)[1]


@rule("aten._linalg_det")
def _(x: Any) -> Any:
    return L.det(x), None, None


@rule("aten.linalg_cholesky_ex")
def _(x: Any, upper: bool = False, check_errors: bool = False) -> Any:
    found = _lower(x, upper)
    return found, _lost_matrices(found, x.ndim - 2)


@rule("aten.linalg_inv_ex")
def _(x: Any, check_errors: bool = False) -> Any:
    found = L.inv(x)
    return found, _lost_matrices(found, x.ndim - 2)


@rule("aten._linalg_slogdet")
def _(x: Any) -> Any:
    sign, size = L.slogdet(x)
    return sign, size, None, None


@rule("aten._linalg_solve_ex")
def _(a: Any, b: Any, *, left: bool = True, check_errors: bool = False) -> Any:
    row = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    if row and not left:
        raise Unimplemented("_linalg_solve_ex", "rows are solved for from the left only")
    found = L.solve(a, b[..., None])[..., 0] if row else solved(a, b, left)
    return found, None, None, _lost_matrices(found, a.ndim - 2)


@rule("aten._linalg_svd")
def _(x: Any, full_matrices: bool = False, compute_uv: bool = True, *, driver: Any = None) -> Any:
    return None, L.svdvals(x), None


@rule("aten._linalg_eigh")
def _(x: Any, UPLO: str = "L", compute_v: bool = True) -> Any:  # noqa: N803
    half = w.tril(x) if UPLO == "L" else w.triu(x)
    eye = w.eye(x.shape[-1], dtype=x.dtype)
    return L.eigvalsh(half + _transpose_conjugate(half) - half * eye), None


@rule("aten._trilinear")
def _(
    a: Any, b: Any, c: Any, expand1: Any, expand2: Any, expand3: Any, sumdim: Any,
    unroll_dim: int = 1,
) -> Any:  # fmt: skip
    parts = []
    for x, places in ((a, expand1), (b, expand2), (c, expand3)):
        for place in sorted(places):
            x = w.expand_dims(x, axis=place)  # noqa: PLW2901
        parts.append(x)
    return w.sum(reduce(lambda x, y: x * y, parts), axis=tuple(sumdim))


def _transform(x: Any, axes: Any, norm: int, inverse: bool) -> Any:
    """torch's number for the scale: 0 none, 1 by the root of the count, 2 by the count."""
    function = w.fft.ifftn if inverse else w.fft.fftn
    none, all_of_it = ("forward", "backward") if inverse else ("backward", "forward")
    how = {0: none, 1: "ortho", 2: all_of_it}[norm]
    return function(x, axes=tuple(axes), norm=how)


@rule("aten._fft_c2c")
def _(x: Any, dim: Any, normalization: int, forward: bool) -> Any:
    return _transform(x, dim, normalization, not forward) if dim else x


@rule("aten._fft_r2c")
def _(x: Any, dim: Any, normalization: int, onesided: bool) -> Any:
    how = {0: "backward", 1: "ortho", 2: "forward"}[normalization]
    if onesided:
        return w.fft.rfftn(x, axes=tuple(dim), norm=how)
    wide = w.complex128 if x.dtype is w.float64 else w.complex64
    return w.fft.fftn(w.astype(x, wide), axes=tuple(dim), norm=how)


@rule("aten._fft_c2r")
def _(x: Any, dim: Any, normalization: int, last_dim_size: int) -> Any:
    how = {0: "forward", 1: "ortho", 2: "backward"}[normalization]
    *rest, last = dim
    if rest:
        x = _transform(x, rest, normalization, True)
    return w.fft.irfft(x, n=last_dim_size, axis=last, norm=how)


@rule("aten.linalg_pinv.atol_rtol_tensor", "aten.linalg_pinv")
def _(x: Any, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Any:
    if atol is not None or hermitian:
        raise Unimplemented("linalg_pinv", "an absolute bound, or half a matrix")
    return L.pinv(x) if rtol is None else L.pinv(x, rtol=rtol)


@rule("aten._grouped_mm", "transformers.grouped_mm_fallback")
def _(x: Any, weight: Any, offs: Any, bias: Any = None, out_dtype: Any = None) -> Any:
    """Rows in groups, which end where `offs` says, times a matrix for each group; rows after the
    last group are 0."""
    if x.ndim != 2 or weight.ndim != 3 or bias is not None or out_dtype is not None:
        raise Unimplemented("_grouped_mm", "rows in groups times a matrix each, and nothing else")
    return F.grouped_matmul(x, weight, offs)
