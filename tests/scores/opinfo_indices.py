"""torch's functions of order and of indices as Weft's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import weft
from tests.scores.opinfo_forms import OPS, along, op, part
from tests.scores.opinfo_shapes import diagonal
from weft import functional

F: Any = functional
w: Any = weft
L: Any = weft.linalg


@op("sort")
def _(x: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
    more = {"descending": descending}
    return tuple(along(f, x, dim, True, **more) for f in (w.sort, w.argsort))


@op("msort")
def _(x: Any) -> Any:
    return along(w.sort, x, 0, True)


@op("argsort")
def _(x: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
    return along(w.argsort, x, dim, True, descending=descending)


@op("topk")
def _(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    return along(lambda x, axis: F.top_k(x, k, axis, largest=largest), x, dim, True)


@op("kthvalue")
def _(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    def kth(x: Any, axis: int, keepdims: bool) -> Any:
        found = [part(f(x, axis=axis), axis, k - 1, k) for f in (w.sort, w.argsort)]
        return tuple(each if keepdims else w.squeeze(each, axis=axis) for each in found)

    return along(kth, x, dim, keepdims=keepdim)


@op("median")
def _(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    if dim is None:
        return w.sort(w.ravel(x))[(x.size - 1) // 2]
    size = x.shape[dim] if x.ndim else 1
    return OPS["kthvalue"](x, (size - 1) // 2 + 1, dim, keepdim)


@op("searchsorted")
def _(
    row: Any,
    x: Any,
    *,
    right: bool = False,
    side: Any = None,
    out_int32: bool = False,
    sorter: Any = None,
) -> Any:
    where = side or ("right" if right else "left")
    given = {} if sorter is None else {"sorter": sorter}
    return w.searchsorted(row, x, side=where, **given).astype(w.int32 if out_int32 else w.int64)


@op("bucketize")
def _(x: Any, row: Any, *, right: bool = False, out_int32: bool = False) -> Any:
    found = w.searchsorted(row, x, side="right" if right else "left")
    return found.astype(w.int32 if out_int32 else w.int64)


@op("gather")
def _(x: Any, dim: int, index: Any, **_: Any) -> Any:
    if not x.ndim:
        return w.reshape(w.reshape(x, (1,))[w.reshape(index, (-1,))], index.shape)
    return (
        F.gather(x, index, axis=dim)
        if index.ndim == x.ndim
        else w.zeros(index.shape, dtype=x.dtype)
    )


def scattered(reduce_: str) -> Callable[..., Any]:
    def call(
        x: Any, dim: int, index: Any, src: Any, *, reduce: Any = None, include_self: bool = True
    ) -> Any:
        if not hasattr(src, "shape"):
            src = w.full(index.shape, src, dtype=x.dtype)
        words = {None: reduce_, "add": "add", "multiply": "prod", "sum": "add", "amax": "max",
                 "amin": "min", "prod": "prod", "mean": "mean"}  # fmt: skip
        how = words[reduce]
        if not x.ndim:
            one = [w.reshape(v, (-1,)) for v in (x, index, src)]
            return w.reshape(F.scatter(*one, axis=0, reduce=how, include_self=include_self), ())
        if not index.size:
            return x
        cut = src[tuple(slice(0, size) for size in index.shape)]
        return F.scatter(x, index, cut, axis=dim, reduce=how, include_self=include_self)

    return call


OPS |= {"scatter": scattered("replace"), "scatter_add": scattered("add")}


@op("scatter_reduce:amax", "scatter_reduce:amin", "scatter_reduce:mean", "scatter_reduce:prod",
    "scatter_reduce:sum")  # fmt: skip
def _(x: Any, dim: int, index: Any, src: Any, reduce: str, include_self: bool = True) -> Any:
    return scattered("")(x, dim, index, src, reduce=reduce, include_self=include_self)


def _spread_index(x: Any, dim: int, index: Any, source: Any) -> Any:
    """An index for each row as one for each element."""
    at = dim % x.ndim
    column = w.reshape(index, [-1 if a == at else 1 for a in range(x.ndim)])
    return w.broadcast_to(column, source.shape)


@op("index_select")
def _(x: Any, dim: int, index: Any) -> Any:
    return along(lambda x, axis: w.take(x, w.reshape(index, (-1,)), axis=axis), x, dim, True)


def placing(how: str) -> Callable[..., Any]:
    def call(
        x: Any,
        dim: int,
        index: Any,
        source: Any,
        *rest: Any,
        alpha: Any = 1,
        include_self: bool = True,
    ) -> Any:
        if not x.ndim:
            more = {"alpha": alpha, "include_self": include_self}
            one = call(
                w.reshape(x, (1,)), 0, w.reshape(index, (-1,)), w.reshape(source, (-1,)), **more
            )
            return w.reshape(one, ())
        source = source if alpha == 1 else source * alpha
        places = _spread_index(x, dim, index, source)
        return F.scatter(x, places, source, axis=dim, reduce=how, include_self=include_self)

    return call


OPS |= {"index_add": placing("add"), "index_copy": placing("replace")}
for _theirs, _ours in (("amax", "max"), ("amin", "min"), ("mean", "mean"), ("prod", "prod")):
    OPS[f"index_reduce:{_theirs}"] = placing(_ours)


@op("index_fill")
def _(x: Any, dim: int, index: Any, value: Any) -> Any:
    shape = list(x.shape) or [1]
    flat = w.reshape(index, (-1,))
    shape[dim] = flat.shape[0]
    rows = w.broadcast_to(w.asarray(value).astype(x.dtype), tuple(shape))
    return OPS["index_copy"](x, dim, flat, rows)


@op("index_put")
def _(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    if not accumulate:
        x = x.copy()
        x[tuple(indices)] = values
        return x
    numbers = w.reshape(w.arange(x.size), x.shape)[tuple(indices)]
    added = w.ravel(w.broadcast_to(values, numbers.shape))
    return w.reshape(F.scatter_add(w.ravel(x), w.ravel(numbers), added), x.shape)


@op("take")
def _(x: Any, index: Any) -> Any:
    return w.take(w.ravel(x), index, axis=0)


@op("put")
def _(x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    how = "add" if accumulate else "replace"
    places = w.ravel(w.where(index < 0, index + x.size, index))
    found = F.scatter(w.ravel(x), places, w.ravel(source), reduce=how)
    return w.reshape(found, x.shape)


@op("take_along_dim")
def _(x: Any, index: Any, dim: Any = None) -> Any:
    if dim is None:
        return w.take(w.ravel(x), w.ravel(index), axis=0)
    return w.take_along_axis(x, index, axis=dim)


@op("masked_fill")
def _(x: Any, mask: Any, value: Any) -> Any:
    return w.where(mask, value if not hasattr(value, "dtype") else value.astype(x.dtype), x)


@op("masked_select")
def _(x: Any, mask: Any) -> Any:
    x, mask = w.broadcast_arrays(x, mask)
    return w.ravel(x)[w.ravel(mask)]


@op("masked_scatter")
def _(x: Any, mask: Any, source: Any) -> Any:
    x, mask = w.broadcast_arrays(x, mask)
    numbers = w.cumsum(w.ravel(mask).astype(w.int64), axis=0) - 1
    taken = w.take(w.ravel(source), w.maximum(numbers, 0), axis=0)
    return w.where(mask, w.reshape(taken, x.shape), x)


@op("nonzero")
def _(x: Any, *, as_tuple: bool = False) -> Any:
    if not x.ndim:
        return w.zeros((int(bool(x)), 0), dtype=w.int64)
    return tuple(w.nonzero(x)) if as_tuple else w.argwhere(x)


@op("argwhere")
def _(x: Any) -> Any:
    return OPS["nonzero"](x)


@op("diagonal_scatter")
def _(x: Any, source: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    numbers = diagonal(w.reshape(w.arange(x.size), x.shape), offset, dim1, dim2)
    found = F.scatter(w.ravel(x), w.ravel(numbers), w.ravel(source))
    return w.reshape(found, x.shape)


@op("select_scatter")
def _(x: Any, source: Any, dim: int, index: int) -> Any:
    found = x.copy()
    found[tuple(index if a == dim % x.ndim else slice(None) for a in range(x.ndim))] = source
    return found


@op("slice_scatter")
def _(x: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    found = x.copy()
    cut = slice(start, end, step)
    found[tuple(cut if a == dim % x.ndim else slice(None) for a in range(x.ndim))] = source
    return found


@op("slice")
def _(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    cut = slice(start, end, step)
    return x[tuple(cut if a == dim % x.ndim else slice(None) for a in range(x.ndim))]


@op("repeat_interleave")
def _(x: Any, repeats: Any, dim: Any = None, **_: Any) -> Any:
    if x.ndim == 0:
        x = w.reshape(x, (1,))
    return w.repeat(x if dim is not None else w.ravel(x), repeats, axis=0 if dim is None else dim)


@op("isin")
def _(x: Any, y: Any, *, assume_unique: bool = False, invert: bool = False) -> Any:
    return w.isin(x, y, invert=invert)


@op("unique")
def _(
    x: Any,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: Any = None,
) -> Any:
    assert dim is None
    found = w.unique_all(x)
    more = (found.inverse_indices,) * return_inverse + (found.counts,) * return_counts
    return (found.values, *more) if more else found.values


@op("bincount")
def _(x: Any, weights: Any = None, minlength: int = 0) -> Any:
    size = max(minlength, int(w.max(x).item()) + 1 if x.size else 0)
    ones = w.ones(x.shape, dtype=w.int64) if weights is None else weights
    return F.scatter_add(w.zeros((size,), dtype=ones.dtype), x.astype(w.int64), ones)


@op("unravel_index")
def _(x: Any, shape: Any) -> Any:
    found: list[Any] = []
    for size in reversed(shape):
        found.insert(0, x % size)
        x = x // size
    return tuple(found)


@op("histc")
def _(x: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    low, high = (min, max) if min != max else (w.min(x).item(), w.max(x).item())
    low, high = (low - 1, high + 1) if low == high else (low, high)
    inside = w.logical_and(x >= low, x <= high)
    place = w.clip(w.floor((x - low) / (high - low) * bins), 0, bins - 1).astype(w.int64)
    share = w.where(inside, 1.0, 0.0)
    return F.scatter_add(w.zeros((bins,)), w.ravel(place), w.ravel(share))
