"""Reductions, running sums, order."""

from __future__ import annotations

import math
from typing import Any

from weft.foundation.dtypes import F32, I1, SI32, SI64, DType
from weft.interop.torch.rules.casts import cast
from weft.interop.torch.rules.promotion import floating
from weft.interop.torch.rules.table import F, Rule, along, part, product, rule, rules, w


def _none_for_all(dim: Any) -> Any:
    """No axes are all."""
    return None if dim is None or dim in ([], ()) else dim


def _total(name: str) -> Rule:
    function = getattr(w, name)

    def call(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        whole = not (x.dtype.is_float or x.dtype.is_complex)
        chosen = dtype or (SI64 if whole else x.dtype)
        return cast(along(function, cast(x, chosen), _none_for_all(dim), keepdims=keepdim), chosen)

    return call


def _reduce_mean(
    x: Any, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Any:
    return along(w.mean, cast(x, dtype or x.dtype), _none_for_all(dim), keepdims=keepdim)


def _reduce_by_name(name: str) -> Rule:
    function = getattr(w, name)
    return lambda x, dim=None, keepdim=False: along(
        function, x, _none_for_all(dim), keepdims=keepdim
    )


def _reduce_truth(name: str) -> Rule:
    function = getattr(w, name)

    def call(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        found = along(function, cast(x, I1), _none_for_all(dim), keepdims=keepdim)
        return w.astype(found, x.dtype) if x.dtype is w.uint8 else found

    return call


def _root_of_squares(squares: Any) -> Any:
    """The root of a sum of squares; where that is 0, so is the derivative."""
    none = squares == 0
    return w.where(none, 0, w.sqrt(w.where(none, 1, squares)))


def _variance(root: bool, with_mean: bool) -> Rule:
    """Variance or deviation; more is subtracted from the count than there is: infinity or NaN."""

    def call(x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
        less = 1 if correction is None else correction
        axes = range(x.ndim) if _none_for_all(dim) is None else _none_for_all(dim)
        axes = axes if isinstance(axes, list | tuple | range) else [axes]
        count = product([x.shape[a] for a in axes]) if x.ndim else 1
        mean = along(w.mean, x, _none_for_all(dim), keepdims=True)
        apart = w.abs(x - mean) if x.dtype.is_complex else x - mean
        total = along(w.sum, apart * apart, _none_for_all(dim), keepdims=keepdim)
        by = max(count - less, 0)
        found = total / by if by else total * math.inf
        found = _root_of_squares(found) if root else found
        return (
            (found, along(w.mean, x, _none_for_all(dim), keepdims=keepdim)) if with_mean else found
        )

    return call


def _best(values: str, places: str) -> Rule:
    """The largest or smallest along an axis, and where it is: the first, NaN before all."""

    def call(x: Any, dim: int, keepdim: bool = False) -> Any:
        small = cast(x, w.uint8) if x.dtype is I1 else x
        found = along(getattr(w, values), small, dim, keepdims=keepdim)
        return cast(found, x.dtype), along(getattr(w, places), small, dim, keepdims=keepdim)

    return call


def _reduce_extreme(name: str) -> Rule:
    function = getattr(w, name)

    def call(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        small = cast(x, w.uint8) if x.dtype is I1 else x
        return cast(along(function, small, _none_for_all(dim), keepdims=keepdim), x.dtype)

    return call


def _find_by_name(name: str) -> Rule:
    function = getattr(w, name)

    def call(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        small = cast(x, w.uint8) if x.dtype is I1 else x
        if dim is None and keepdim:
            return w.reshape(function(w.ravel(small)), (1,) * x.ndim)
        return along(function, small, dim, keepdims=keepdim)

    return call


def _running_rule(name: str) -> Rule:
    function = getattr(w, name)

    def call(x: Any, dim: int, *, dtype: DType | None = None) -> Any:
        whole = not (x.dtype.is_float or x.dtype.is_complex)
        chosen = dtype or (SI64 if whole else x.dtype)
        return cast(along(function, cast(x, chosen), dim, True), chosen)

    return call


def _sort_elements(x: Any, dim: int = -1, descending: bool = False, **_: Any) -> Any:
    small = cast(x, w.uint8) if x.dtype is I1 else x
    made = along(w.sort, small, dim, True, descending=descending)
    return cast(made, x.dtype), along(w.argsort, small, dim, True, descending=descending)


@rule("aten.sort.stable")
def _(x: Any, *, stable: Any = None, dim: int = -1, descending: bool = False) -> Any:
    return _sort_elements(x, dim, descending)


@rule("aten.topk")
def _(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    values, places = along(lambda x, axis: F.top_k(x, k, axis, largest=largest), x, dim, True)
    return values, w.astype(places, SI64)


@rule("aten.kthvalue")
def kth(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    def call(x: Any, axis: int, keepdims: bool) -> Any:
        found = [part(f(x, axis=axis), axis, slice(k - 1, k)) for f in (w.sort, w.argsort)]
        return tuple(each if keepdims else w.squeeze(each, axis=axis) for each in found)

    return along(call, x, dim, keepdims=keepdim)


@rule("aten.median.dim")
def _(x: Any, dim: int, keepdim: bool = False) -> Any:
    size = x.shape[dim] if x.ndim else 1
    values, places = kth(x, (size - 1) // 2 + 1, dim, keepdim)
    if not x.dtype.is_float:
        return values, places
    nan = along(w.any, w.isnan(x), dim, keepdims=keepdim)
    first = along(w.argmax, w.astype(w.isnan(x), SI32), dim, keepdims=keepdim)
    return w.where(nan, math.nan, values), w.where(nan, first, places)


@rule("aten.median.default")
def _(x: Any) -> Any:
    middle = w.sort(w.ravel(x))[(x.size - 1) // 2]
    return w.where(w.any(w.isnan(x)), math.nan, middle) if x.dtype.is_float else middle


@rule("aten.nanmedian.dim")
def _(x: Any, dim: int, keepdim: bool = False) -> Any:
    """NaN is largest, so those that are none come first."""

    def call(x: Any, axis: int, keepdims: bool) -> Any:
        kept = w.sum(w.logical_not(w.isnan(x)), axis=axis, keepdims=True)
        at = w.maximum((kept - 1) // 2, 0)
        found = [w.take_along_axis(f(x, axis=axis), at, axis) for f in (w.sort, w.argsort)]
        return tuple(each if keepdims else w.squeeze(each, axis=axis) for each in found)

    return along(call, x, dim, keepdims=keepdim)


@rule("aten.nanmedian.default")
def _(x: Any) -> Any:
    kept = w.sum(w.logical_not(w.isnan(x)))
    return w.take(w.sort(w.ravel(x)), w.reshape(w.maximum((kept - 1) // 2, 0), (1,)), axis=0)[0]


@rule("aten.mode")
def _(x: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """What stands there most often, the smallest of several; torch gives its last place."""

    def call(x: Any, axis: int, keepdims: bool) -> Any:
        rows = w.moveaxis(x, axis, -1)
        size = rows.shape[-1]
        same = rows[..., :, None] == rows[..., None, :]
        counts = w.sum(same, axis=-1)
        often = counts == w.max(counts, axis=-1, keepdims=True)
        order = w.argsort(w.argsort(rows, axis=-1), axis=-1)
        first = w.argmin(w.where(often, order, size), axis=-1, keepdims=True)
        value = w.take_along_axis(rows, first, -1)
        last = (
            size
            - 1
            - w.argmax(w.astype(w.flip(rows == value, axis=-1), SI32), axis=-1, keepdims=True)
        )
        found = [w.moveaxis(each, -1, axis) for each in (value, last)]
        return tuple(each if keepdims else w.squeeze(each, axis=axis) for each in found)

    return along(call, x, dim, keepdims=keepdim)


@rule("aten.linalg_vector_norm")
def vector_norm(
    x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    x = x if dtype is None else cast(x, dtype)
    x = cast(x, floating(x.dtype))
    return along(w.linalg.vector_norm, x, _none_for_all(dim), keepdims=keepdim, ord=ord)


@rule("aten._softmax", "aten._safe_softmax", "aten.softmax.int")
def _(x: Any, dim: int, half_to_float: Any = False, **_: Any) -> Any:
    return along(F.softmax, cast(x, F32) if half_to_float is True else x, dim, True)


@rule("aten._log_softmax", "aten.log_softmax.int")
def _(x: Any, dim: int, half_to_float: Any = False, **_: Any) -> Any:
    return along(F.log_softmax, cast(x, F32) if half_to_float is True else x, dim, True)


@rule("aten._softmax_backward_data")
def _(gradient: Any, output: Any, dim: int, input_dtype: DType) -> Any:
    made = gradient * output
    total = along(w.sum, made, dim, True, keepdims=True)
    return cast(made - output * total, input_dtype)


@rule("aten._log_softmax_backward_data")
def _(gradient: Any, output: Any, dim: int, input_dtype: DType) -> Any:
    total = along(w.sum, gradient, dim, True, keepdims=True)
    return cast(gradient - w.exp(output) * total, input_dtype)


@rule("aten.dist")
def _(x: Any, y: Any, p: Any = 2) -> Any:
    return vector_norm(w.ravel(x - y), p)


@rule("aten._cdist_forward")
def _distances(x: Any, y: Any, p: float, mode: Any = None) -> Any:
    return vector_norm(x[..., :, None, :] - y[..., None, :, :], p, [-1])


@rule("aten._cdist_backward")
def _(gradient: Any, x: Any, y: Any, p: float, found: Any) -> Any:
    return w.vjp(lambda x: _distances(x, y, p), x)[1](gradient)[0]


@rule("aten._pdist_backward")
def _(gradient: Any, x: Any, p: float, found: Any) -> Any:
    return w.vjp(lambda x: _distances_of_pairs(x, p), x)[1](gradient)[0]


@rule("aten._pdist_forward")
def _distances_of_pairs(x: Any, p: float = 2) -> Any:
    rows = [(i, j) for i in range(x.shape[0]) for j in range(i + 1, x.shape[0])]
    if not rows:
        return w.zeros((0,), dtype=x.dtype)
    first, second = (w.asarray([each[k] for each in rows]) for k in (0, 1))
    return vector_norm(w.take(x, first, axis=0) - w.take(x, second, axis=0), p, [-1])


@rule("aten.histc")
def _(x: Any, bins: int = 100, min: Any = 0, max: Any = 0) -> Any:
    low, high = (w.asarray(each, dtype=x.dtype) for each in (min, max))
    if min == max:
        low, high = w.min(x), w.max(x)
    even = low == high
    low, high = w.where(even, low - 1, low), w.where(even, high + 1, high)
    inside = w.logical_and(x >= low, x <= high)
    place = w.clip(w.floor((x - low) * bins / (high - low)), 0, bins - 1)
    share = w.astype(inside, x.dtype)
    place = w.astype(w.where(inside, place, 0), SI64)
    return F.scatter_add(w.zeros((bins,), dtype=x.dtype), w.ravel(place), w.ravel(share))


rules(
    "aten.",
    sum=_total("sum"),
    prod=_total("prod"),
    mean=_reduce_mean,
    amax=_reduce_extreme("max"),
    amin=_reduce_extreme("min"),
    any=_reduce_truth("any"),
    all=_reduce_truth("all"),
    argmax=_find_by_name("argmax"),
    argmin=_find_by_name("argmin"),
    var=_variance(False, False),
    std=_variance(True, False),
    var_mean=_variance(False, True),
    std_mean=_variance(True, True),
    cumsum=_running_rule("cumulative_sum"),
    cumprod=_running_rule("cumulative_prod"),
    cummax=lambda x, dim: along(w.cummax, x, dim, True),
    cummin=lambda x, dim: along(w.cummin, x, dim, True),
    logcumsumexp=lambda x, dim: along(w.logcumsumexp, x, dim, True),
    logsumexp=lambda x, dim, keepdim=False: along(F.logsumexp, x, dim, keepdims=keepdim),
    sort=_sort_elements,
    argsort=lambda x, dim=-1, descending=False: _sort_elements(x, dim, descending)[1],
    count_nonzero=lambda x, dim=None: along(w.count_nonzero, x, _none_for_all(dim)),
)
rules("aten.max.", default=_reduce_extreme("max"), dim=_best("max", "argmax"), other=w.maximum)
rules("aten.min.", default=_reduce_extreme("min"), dim=_best("min", "argmin"), other=w.minimum)
