"""torch's reductions and running sums as Weft's functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import weft
from tests.scores.opinfo_forms import OPS, along, op, part
from weft import functional

F: Any = functional
w: Any = weft
L: Any = weft.linalg


def reducing(name: str, *, home: Any = w) -> Callable[..., Any]:
    def call(x: Any, dim: Any = None, keepdim: bool = False, **more: Any) -> Any:
        more.pop("mask", None)
        wanted = None if dim in ((), []) else dim
        return along(getattr(home, name), x, wanted, keepdims=keepdim, **more)

    return call


for _ours, _theirs in (
    ("sum", "sum"), ("prod", "prod"), ("max", "amax"), ("min", "amin"), ("mean", "mean"),
    ("any", "any"), ("all", "all"),
):  # fmt: skip
    OPS[_theirs] = reducing(_ours)
OPS["logsumexp"] = reducing("logsumexp", home=F)


def spread(name: str) -> Callable[..., Any]:
    def call(
        x: Any,
        dim: Any = None,
        unbiased: Any = None,
        keepdim: bool = False,
        *,
        correction: Any = None,
    ) -> Any:
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        less = correction if correction is not None else int(unbiased is not False)
        wanted = None if dim in ((), []) else dim
        return along(getattr(w, name), x, wanted, keepdims=keepdim, correction=less)

    return call


for _name in ("std", "var"):
    OPS[_name] = OPS[f"{_name}:unbiased"] = spread(_name)


def spread_and_mean(name: str) -> Callable[..., Any]:
    def call(x: Any, dim: Any = None, *args: Any, keepdim: bool = False, **more: Any) -> Any:
        axis = None if isinstance(dim, bool) or dim in ((), []) else dim
        mean = along(w.mean, x, axis, keepdims=keepdim)
        return OPS[name](x, dim, *args, keepdim=keepdim, **more), mean

    return call


for _name in ("std", "var"):
    OPS[f"{_name}_mean"] = OPS[f"{_name}_mean:unbiased"] = spread_and_mean(_name)


def positions(name: str) -> Callable[..., Any]:
    def call(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return along(getattr(w, name), x, dim, keepdims=keepdim)

    return call


OPS |= {name: positions(name) for name in ("argmax", "argmin")}


def extreme(values: str, places: str) -> Callable[..., Any]:
    def call(x: Any, dim: int, keepdim: bool = False) -> Any:
        return (
            along(getattr(w, values), x, dim, keepdims=keepdim),
            along(getattr(w, places), x, dim, keepdims=keepdim),
        )

    return call


OPS |= {
    "max:reduction_no_dim": w.max, "min:reduction_no_dim": w.min,
    "max:binary": w.maximum, "min:binary": w.minimum,
    "max:reduction_with_dim": extreme("max", "argmax"),
    "min:reduction_with_dim": extreme("min", "argmin"),
}  # fmt: skip


@op("aminmax")
def _(x: Any, *, dim: Any = None, keepdim: bool = False) -> Any:
    return tuple(along(f, x, dim, keepdims=keepdim) for f in (w.min, w.max))


@op("count_nonzero")
def _(x: Any, dim: Any = None) -> Any:
    return along(w.count_nonzero, x, dim)


@op("nansum")
def _(x: Any, dim: Any = None, keepdim: bool = False, **more: Any) -> Any:
    return OPS["sum"](w.where(w.isnan(x), 0.0, x), dim, keepdim, **more)


@op("nanmean")
def _(x: Any, dim: Any = None, keepdim: bool = False, **more: Any) -> Any:
    count = OPS["sum"](w.logical_not(w.isnan(x)), dim, keepdim)
    return OPS["nansum"](x, dim, keepdim) / count.astype(x.dtype)


@op("quantile")
def _(
    x: Any, q: Any, dim: Any = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Any:
    share = np.asarray(q).tolist()
    given = tuple(share) if isinstance(share, list) else share
    return along(lambda x, axis, **k: w.quantile(x, given, axis, **k), x, dim, keepdims=keepdim)


@op("cumsum")
def _(x: Any, dim: int, **more: Any) -> Any:
    return along(w.cumsum, x, dim, True, **more)


@op("cumprod")
def _(x: Any, dim: int, **more: Any) -> Any:
    return along(w.cumprod, x, dim, True, **more)


for _name in ("cummax", "cummin", "logcumsumexp"):
    OPS[_name] = lambda x, dim, name=_name: along(getattr(w, name), x, dim, True)


@op("trapezoid", "trapz")
def trapezoid(y: Any, x: Any = None, *, dim: int = -1, dx: float = 1.0) -> Any:
    return w.sum(_areas(y, x, dim, dx), axis=dim)


@op("cumulative_trapezoid")
def _(y: Any, x: Any = None, *, dim: int = -1, dx: float = 1.0) -> Any:
    return w.cumsum(_areas(y, x, dim, dx), axis=dim)


def _areas(y: Any, x: Any, dim: int, dx: float) -> Any:
    first, last = (part(y, dim, *ends) for ends in ((0, -1), (1, None)))
    if x is None:
        return (first + last) * (dx / 2)
    width = w.diff(x, axis=-1) if x.ndim == 1 else w.diff(x, axis=dim)
    if x.ndim == 1:
        width = w.reshape(width, [-1 if a == dim % y.ndim else 1 for a in range(y.ndim)])
    return (first + last) / 2 * width


@op("diff")
def _(x: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    return w.diff(x, axis=dim, n=n, prepend=prepend, append=append)


@op("dist")
def _(x: Any, y: Any, p: float = 2) -> Any:
    return L.vector_norm(x - y, ord=p)


@op("cov")
def cov(x: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
    rows = w.reshape(x, (1, -1)) if x.ndim < 2 else x
    weight = w.ones((rows.shape[1],))
    for each in (fweights, aweights):
        weight = weight if each is None else weight * each
    total = w.sum(weight)
    centred = rows - w.sum(rows * weight, axis=1, keepdims=True) / total
    if aweights is None:
        less = total - correction
    else:
        less = total - correction * w.sum(weight * aweights) / total
    found = (centred * weight) @ centred.T / w.maximum(less, 0.0)
    return w.reshape(found, ()) if rows.shape[0] == 1 else found


@op("corrcoef")
def _(x: Any) -> Any:
    found = cov(x)
    if found.ndim == 0:
        return found / found
    if x.ndim == 1:
        return w.reshape(found / found, ())
    size = w.sqrt(w.diag(found))
    return found / size[:, None] / size[None, :]
