"""Factorisations and triangular systems.

The sign of a factor's column is open, and stays the same over a small step: real factors can be
compared as they are. The phases of complex eigenvectors and singular vectors may move with the
matrix, so there something is computed in which they cancel."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.derivatives.case import Array, case, complex_normal, normal


def _definite(x: Array) -> Array:
    """Hermitian, with eigenvalues well apart from zero and from each other."""
    n = x.shape[-1]
    return np.asarray(x @ np.swapaxes(x.conj(), -1, -2) * 0.1 + np.diag(np.arange(1.0, n + 1)))


def _adjoint(b: Any, x: Any) -> Any:
    turned = b.transpose(x, [*range(x.rank - 2), x.rank - 1, x.rank - 2])
    return b.conj(turned) if x.dtype.is_complex else turned


for kind, numbers in (("", normal), ("-complex", complex_normal)):
    for upper in (False, True):
        case("cholesky", lambda b, x, u=upper: b.cholesky(x, upper=u), _definite(numbers(3, 3)),
             label=("upper" if upper else "lower") + kind)  # fmt: skip
    for lower in (False, True):
        for transpose in (False, True):
            for unit in (False, True):
                names = [n for n, on in (("lower", lower), ("turned", transpose), ("unit", unit))
                         if on]  # fmt: skip
                case("triangular_solve",
                     lambda b, a, y, lo=lower, tr=transpose, un=unit: b.triangular_solve(
                         a, y, lower=lo, transpose=tr, unit_diagonal=un),
                     numbers(2, 3, 3) + 3 * np.eye(3), numbers(2, 3, 2),
                     label="-".join(names or ["upper"]) + kind,
                     torch=None if transpose else
                     lambda t, a, y, lo=lower, un=unit: t.linalg.solve_triangular(
                         a, y, upper=not lo, unitriangular=un))  # fmt: skip
    for m, n in ((3, 3), (4, 2), (2, 4)):
        case("qr", lambda b, x: list(b.qr(x, mode="reduced")), numbers(m, n) + 3 * np.eye(m, n),
             label=f"{m}x{n}{kind}")  # fmt: skip
        case("lu", lambda b, x: list(b.lu(x))[1:], numbers(m, n) + 3 * np.eye(m, n)[::-1],
             label=f"{m}x{n}{kind}")  # fmt: skip

case("cholesky", lambda b, x: b.cholesky(x, upper=False), np.stack([_definite(normal(3, 3)),
     _definite(normal(3, 3, seed=1))]), label="batch")  # fmt: skip


def _gram(b: Any, x: Any) -> Any:
    """A definite matrix whatever x is: its gradient does not depend on which triangle is read."""
    n = x.shape[0]
    one = b.literal(3.0 * np.eye(n) + np.diag(np.arange(n)), "f64")
    return b.dot_general(x, x, contract=([1], [1])) + one


def _torch_gram(t: Any, x: Any) -> Any:
    n = len(x)
    return x @ x.mT + 3.0 * t.eye(n).to(x) + t.diag(t.arange(n)).to(x)


case("cholesky", lambda b, x: b.cholesky(_gram(b, x), upper=False), normal(3, 3), label="gram",
     torch=lambda t, x: t.linalg.cholesky(_torch_gram(t, x)))  # fmt: skip
case("eigh", lambda b, x: b.eigh(_gram(b, x))[0], normal(3, 3), label="gram",
     torch=lambda t, x: t.linalg.eigvalsh(_torch_gram(t, x)))  # fmt: skip
case("qr", lambda b, x: list(b.qr(x, mode="complete")), normal(2, 3), label="complete")
case("qr", lambda b, x: list(b.qr(x, mode="reduced")), normal(2, 3, 2), label="batch",
     torch=lambda t, x: t.linalg.qr(x))  # fmt: skip
case("lu", lambda b, x: list(b.lu(x))[1:], normal(2, 3, 3), label="batch",
     torch=lambda t, x: t.linalg.lu(x)[1:])  # fmt: skip

case("eigh", lambda b, x: list(b.eigh(x)), _definite(normal(3, 3)))
case("eigh", lambda b, x: b.eigh(x)[0], _definite(complex_normal(3, 3)), label="complex-values")


def _projections(b: Any, x: Any) -> Any:
    """The projections onto the first two eigenvectors: no phase is left in them."""
    v = b.slice(b.eigh(x)[1], [0, 0], [3, 2])
    return b.matmul(v, _adjoint(b, v))


case("eigh", _projections, _definite(complex_normal(3, 3)), label="complex-vectors")

for m, n in ((3, 3), (4, 2), (2, 4)):
    case("svd", lambda b, x: list(b.svd(x, full_matrices=False)),
         normal(m, n) + np.diag([1.0, 3.0, 6.0, 9.0])[:m, :n], label=f"{m}x{n}")  # fmt: skip
case("svd", lambda b, x: b.svd(x, full_matrices=True)[1], normal(4, 2), label="full-values",
     torch=lambda t, x: t.linalg.svdvals(x))  # fmt: skip
case("svd", lambda b, x: b.svd(x, full_matrices=False)[1], complex_normal(3, 2),
     label="complex-values")  # fmt: skip


def _polar(b: Any, x: Any) -> Any:
    """u times vh: the phases that both have cancel."""
    u, _, vh = b.svd(x, full_matrices=False)
    return b.matmul(u, vh)


def _torch_polar(t: Any, x: Any) -> Any:
    u, _, vh = t.linalg.svd(x, full_matrices=False)
    return u @ vh


case("svd", _polar, complex_normal(3, 2), label="complex-vectors", torch=_torch_polar)
case("svd", _polar, normal(3, 2), label="polar", torch=_torch_polar)
