"""torch's linear algebra and spectra as Weft's functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

import weft
from tests.scores.opinfo_forms import OPS, along, op, tupled

w: Any = weft
L: Any = weft.linalg


OPS |= {
    "matmul": w.matmul, "mm": w.matmul, "bmm": w.matmul, "bmm:triton_optimized": w.matmul,
    "mv": w.matmul, "__rmatmul__": lambda x, y: y @ x, "dot": lambda x, y: w.sum(x * y),
    "vdot": lambda x, y: w.sum(w.conj(x) * y), "linalg.vecdot": lambda x, y, dim=-1: w.vecdot(x, y, axis=dim),  # noqa: E501
    "inner": lambda x, y: (
        x * y if 0 in (x.ndim, y.ndim) else w.tensordot(x, y, axes=((-1,), (-1,)))
    ),
    "outer": lambda x, y: x[:, None] * y[None, :],
    "einsum": lambda first, *rest: einsum(first, *rest),
    "tensordot": lambda x, y, dims=2: w.tensordot(
        x, y, axes=tuple(map(tuple, dims)) if isinstance(dims, tuple | list) else dims
    ),
    "addmm": lambda m, a, b, *, beta=1, alpha=1: m * beta + (a @ b) * alpha,
    "addmm:decomposed": lambda m, a, b, *, beta=1, alpha=1: m * beta + (a @ b) * alpha,
    "addmv": lambda m, a, b, *, beta=1, alpha=1: m * beta + (a @ b) * alpha,
    "baddbmm": lambda m, a, b, *, beta=1, alpha=1: m * beta + (a @ b) * alpha,
    "addbmm": lambda m, a, b, *, beta=1, alpha=1: m * beta + w.sum(a @ b, axis=0) * alpha,
    "addr": lambda m, a, b, *, beta=1, alpha=1: m * beta + a[:, None] * b[None, :] * alpha,
    "cholesky": lambda x, upper=False: cholesky(x, upper),
    "linalg.cholesky": lambda x, upper=False: cholesky(x, upper),
    "linalg.det": lambda x: L.det(x), "linalg.slogdet": lambda x: tuple(L.slogdet(x)),
    "logdet": lambda x: logdet(x),
    "linalg.inv": lambda x: L.inv(x),
    "linalg.inv_ex": lambda x, check_errors=False: (L.inv(x), w.zeros(x.shape[:-2], dtype=w.int32)),
    "linalg.cholesky_ex": lambda x, upper=False, check_errors=False: (
        cholesky(x, upper), w.zeros(x.shape[:-2], dtype=w.int32)
    ),
    "cholesky_inverse": lambda x, upper=False: L.inv(_gram(x, upper)),
    "cholesky_solve": lambda b, x, upper=False: L.solve(_gram(x, upper), b),
    "linalg.solve": lambda a, b, left=True: solve(a, b, left),
    "linalg.solve_ex": lambda a, b, left=True, check_errors=False: (
        solve(a, b, left), w.zeros(a.shape[:-2], dtype=w.int32)
    ),
    "linalg.svdvals": lambda x: L.svdvals(x),
    "linalg.eigvalsh": lambda x, UPLO="L": L.eigvalsh(_hermitian(x, UPLO)),
    "linalg.matrix_power": lambda x, n: L.matrix_power(x, n),
    "linalg.matrix_rank": lambda x, tol=None, hermitian=False, **m: L.matrix_rank(x),
    "linalg.matrix_norm": lambda x, *how, **more: _matrix_norm(x, *how, **more),
    "linalg.vector_norm": lambda x, *how, **more: _vector_norm(x, *how, **more),
    "linalg.pinv": lambda x, *_, **__: L.pinv(x),
    "pinverse": lambda x, rcond=1e-15: L.pinv(x),
    "linalg.pinv:singular": lambda a, b: L.pinv(a @ w.matrix_transpose(b)),
    "linalg.pinv:hermitian": lambda x, *_, **__: L.pinv(x),
    "linalg.multi_dot": lambda xs: reduce(lambda a, b: a @ b, xs),
    "linalg.cross": lambda x, y, dim=-1: w.linalg.cross(x, y, axis=dim),
    "cross": lambda x, y, dim=None: w.linalg.cross(x, y, axis=_three(x) if dim is None else dim),
    "linalg.cond": lambda x, p=None: cond(x, p),
    "linalg.vander": lambda x, N=None: vander(x if x.ndim else x[None], N),
    "linalg.tensorinv": lambda x, ind=2: tensorinv(x, ind),
    "linalg.tensorsolve": lambda a, b, dims=None: tensorsolve(a, b, dims),
    "linalg.solve_triangular": lambda a, b, *, upper, left=True, unitriangular=False: triangular(
        a, b, upper, left, unitriangular
    ),
    "matrix_exp": lambda x: w.linalg.expm(x),
}  # fmt: skip
del OPS["matrix_exp"]


def vander(x: Any, count: int | None) -> Any:
    return x[..., None] ** w.arange(count or x.shape[-1], dtype=x.dtype)


def _vector_norm(x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    return along(L.vector_norm, x, dim, keepdims=keepdim, ord=ord)


def _matrix_norm(
    x: Any,
    ord: Any = "fro",
    dim: Any = (-2, -1),
    keepdim: bool = False,
    **_: Any,
) -> Any:
    return matrix_norm(x, ord, dim, keepdim)


def _three(x: Any) -> int:
    return next(axis for axis, size in enumerate(x.shape) if size == 3)


def einsum(first: Any, *rest: Any) -> Any:
    if isinstance(first, str):
        operands = rest[0] if len(rest) == 1 and isinstance(rest[0], tuple | list) else rest
        return w.einsum(first, *operands)
    return w.einsum(rest[0], *first)


def cholesky(x: Any, upper: bool) -> Any:
    found = L.cholesky(x)
    return w.matrix_transpose(found) if upper else found


def _gram(x: Any, upper: bool) -> Any:
    half = w.triu(x) if upper else w.tril(x)
    turned = w.matrix_transpose(half)
    return turned @ half if upper else half @ turned


def _hermitian(x: Any, half: str) -> Any:
    kept = w.tril(x) if half == "L" else w.triu(x)
    return kept + w.matrix_transpose(kept) - kept * w.eye(x.shape[-1])


def logdet(x: Any) -> Any:
    sign, size = L.slogdet(x)
    return w.where(sign > 0, size, w.where(sign == 0, -math.inf, math.nan))


def solve(a: Any, b: Any, left: bool = True) -> Any:
    row = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    if not left:
        return w.matrix_transpose(solve(w.matrix_transpose(a), w.matrix_transpose(b)))
    if not row:
        shape = w.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a = w.broadcast_to(a, (*shape, *a.shape[-2:]))
        return L.solve(a, w.broadcast_to(b, (*shape, *b.shape[-2:])))
    return L.solve(a, b[..., None])[..., 0]


def triangular(a: Any, b: Any, upper: bool, left: bool, unit: bool) -> Any:
    half = w.triu(a) if upper else w.tril(a)
    if unit:
        half = half * (1 - w.eye(a.shape[-1])) + w.eye(a.shape[-1])
    return solve(half, b, left)


def matrix_norm(x: Any, ord: Any, dim: Any, keepdim: bool) -> Any:
    axes = [d % x.ndim for d in dim]
    moved = w.moveaxis(x, tuple(axes), (-2, -1))
    found = L.matrix_norm(moved, ord=ord)
    return w.expand_dims(found, axis=tuple(sorted(axes))) if keepdim else found


def cond(x: Any, p: Any) -> Any:
    if p in (None, 2, -2):
        values = L.svdvals(x)
        big, small = values[..., 0], values[..., -1]
        return small / big if p == -2 else big / small
    return L.matrix_norm(x, ord=p) * L.matrix_norm(L.inv(x), ord=p)


def tensorinv(x: Any, ind: int) -> Any:
    front, back = x.shape[:ind], x.shape[ind:]
    found = L.inv(w.reshape(x, (math.prod(front), math.prod(back))))
    return w.reshape(found, (*back, *front))


def tensorsolve(a: Any, b: Any, dims: Any) -> Any:
    if dims is not None:
        a = w.moveaxis(a, tuple(dims), tuple(range(a.ndim - len(dims), a.ndim)))
    rest = a.shape[b.ndim :]
    found = L.solve(w.reshape(a, (b.size, math.prod(rest))), w.reshape(b, (b.size, 1)))
    return w.reshape(found, rest)


@op("linalg.norm", "linalg.norm:subgradients_at_zero")
def norm(x: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    pair = isinstance(dim, tuple | list) and len(dim) == 2
    if ord is not None and (pair or (dim is None and x.ndim == 2)):
        return matrix_norm(x, ord, dim if pair else (-2, -1), keepdim)
    if ord is not None and not isinstance(ord, str):
        return along(L.vector_norm, x, dim, keepdims=keepdim, ord=ord)
    return along(L.vector_norm, x, dim, keepdims=keepdim)


@op("norm", "norm:fro", "norm:inf", "norm:nuc")
def _(x: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    if p == "nuc":
        return matrix_norm(x, p, (-2, -1) if dim is None else dim, keepdim)
    return along(L.vector_norm, x, dim, keepdims=keepdim, ord=2 if p in ("fro", None) else p)


def spectrum(name: str) -> Callable[..., Any]:
    base = name.removesuffix("2").removesuffix("n")

    def call(x: Any, n: Any = None, dim: Any = None, norm: Any = None, **more: Any) -> Any:
        n, how = more.get("s", n), norm or "backward"
        if name == base:
            return getattr(w.fft, name)(x, n=n, axis=-1 if dim is None else dim, norm=how)
        axes = (-2, -1) if dim is None and name.endswith("2") else dim
        if axes is not None and not isinstance(axes, tuple | list):
            axes = (axes,)
        given = {"s": None if n is None else tuple(np.atleast_1d(n).tolist()), "norm": how}
        return getattr(w.fft, f"{base}n")(x, axes=tupled(axes), **given)

    return call


for _name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"):
    OPS[f"fft.{_name}"] = spectrum(_name)
for _name in ("fft", "ifft", "rfft", "irfft"):
    OPS |= {f"fft.{_name}{end}": spectrum(f"{_name}{end}") for end in ("2", "n")}
for _name in ("fftshift", "ifftshift"):
    OPS[f"fft.{_name}"] = lambda x, dim=None, name=_name: getattr(w.fft, name)(x, axes=tupled(dim))
