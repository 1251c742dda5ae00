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
                     label="-".join(names or ["upper"]) + kind)  # fmt: skip
    for m, n in ((3, 3), (4, 2), (2, 4)):
        case("qr", lambda b, x: list(b.qr(x, mode="reduced")), numbers(m, n) + 3 * np.eye(m, n),
             label=f"{m}x{n}{kind}")  # fmt: skip
        case("lu", lambda b, x: list(b.lu(x))[1:], numbers(m, n) + 3 * np.eye(m, n)[::-1],
             label=f"{m}x{n}{kind}")  # fmt: skip

case("cholesky", lambda b, x: b.cholesky(x, upper=False), np.stack([_definite(normal(3, 3)),
     _definite(normal(3, 3, seed=1))]), label="batch",
     torch=lambda t, x: t.linalg.cholesky((x + x.mT) / 2 * 1.0))  # fmt: skip
case("qr", lambda b, x: list(b.qr(x, mode="complete")), normal(2, 3), label="complete")
case("qr", lambda b, x: list(b.qr(x, mode="reduced")), normal(2, 3, 2), label="batch",
     torch=lambda t, x: t.linalg.qr(x))  # fmt: skip
case("lu", lambda b, x: list(b.lu(x))[1:], normal(2, 3, 3), label="batch")

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
case("svd", lambda b, x: b.svd(x, full_matrices=True)[1], normal(4, 2), label="full-values")
case("svd", lambda b, x: b.svd(x, full_matrices=False)[1], complex_normal(3, 2),
     label="complex-values")  # fmt: skip


def _polar(b: Any, x: Any) -> Any:
    """u times vh: the phases that both have cancel."""
    u, _, vh = b.svd(x, full_matrices=False)
    return b.matmul(u, vh)


case("svd", _polar, complex_normal(3, 2), label="complex-vectors")
case("svd", _polar, normal(3, 2), label="polar")
