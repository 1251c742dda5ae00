"""tinygrad's methods as Weft's functions: their names, their arguments, their conventions.

The conventions: an axis of a scalar may be 0 or -1, indices are int32, `dim` is an axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import weft
from tests.scores.tinygrad_face import Refused, kind_of
from weft import functional

F: Any = functional


METHODS: dict[str, Callable[..., Any]] = {}


def method(function: Callable[..., Any]) -> Callable[..., Any]:
    METHODS[function.__name__.rstrip("_")] = function
    return function


def _along(function: Callable[..., Any], x: Any, axis: Any, keeps: bool, **kwargs: Any) -> Any:
    """A function along an axis; a scalar has one of size 1 for it."""
    if x.ndim or axis not in (0, -1):
        return function(x, axis=axis, **kwargs)
    found = function(weft.reshape(x, (1,)), axis=0, **kwargs)
    return found if not keeps else _reshaped(found, ())


def _reshaped(found: Any, shape: tuple[int, ...]) -> Any:
    if isinstance(found, tuple | list):
        return tuple(weft.reshape(each, shape) for each in found)
    return weft.reshape(found, shape)


# -- reductions ----------------------------------------------------------------------------------


def _axes(axis: Any) -> Any:
    return tuple(axis) if isinstance(axis, list) else axis


@method
def sum_(x: Any, axis: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    wanted = dtype if dtype is not None else x.dtype if x.dtype.is_float else None
    return _along(weft.sum, x, _axes(axis), False, keepdims=keepdim, dtype=wanted)


@method
def prod(x: Any, axis: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    return _along(weft.prod, x, _axes(axis), False, keepdims=keepdim, dtype=dtype)


def _reduction(name: str) -> Callable[..., Any]:
    def reduce(x: Any, axis: Any = None, keepdim: bool = False) -> Any:
        return _along(getattr(weft, name), x, _axes(axis), False, keepdims=keepdim)

    return reduce


for _name in ("max", "min", "mean", "any", "all"):
    METHODS[_name] = _reduction(_name)


def _deviation(name: str) -> Callable[..., Any]:
    def reduce(x: Any, axis: Any = None, keepdim: bool = False, correction: int = 1) -> Any:
        given = {"keepdims": keepdim, "correction": correction}
        return getattr(weft, name)(x, axis=_axes(axis), **given)

    return reduce


METHODS |= {name: _deviation(name) for name in ("var", "std")}


@method
def std_mean(x: Any, axis: Any = None, keepdim: bool = False, correction: int = 1) -> Any:
    spread = METHODS["std"](x, axis, keepdim, correction)
    return spread, weft.mean(x, axis=_axes(axis), keepdims=keepdim)


def _position(name: str) -> Callable[..., Any]:
    def reduce(x: Any, axis: Any = None, keepdim: bool = False) -> Any:
        if x.dtype is weft.bool:
            x = x.astype(weft.int32)
        return getattr(weft, name)(x, axis=axis, keepdims=keepdim).astype(weft.int32)

    return reduce


METHODS |= {name: _position(name) for name in ("argmax", "argmin")}


def _whole_axis(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(x: Any, axis: int = -1, **kwargs: Any) -> Any:
        return _along(function, x, axis, True, **kwargs)

    return call


METHODS |= {
    n: _whole_axis(getattr(F, n)) for n in ("softmax", "log_softmax", "softmin") if hasattr(F, n)
}
METHODS["cumsum"] = lambda x, axis=0: _along(weft.cumsum, x, axis, True)
METHODS["cumprod"] = lambda x, axis=0: _along(weft.cumprod, x, axis, True)


@method
def logsumexp(x: Any, axis: Any = None, keepdim: bool = False) -> Any:
    return _along(F.logsumexp, x, axis, False, keepdims=keepdim)


@method
def logcumsumexp(x: Any, axis: int = 0) -> Any:
    return _along(weft.logcumsumexp, x, axis, True)


def _running(name: str) -> Callable[..., Any]:
    def call(x: Any, axis: int = 0) -> Any:
        values, places = _along(getattr(weft, name), x, axis, True)
        return values, places.astype(weft.int32)

    return call


METHODS |= {name: _running(name) for name in ("cummax", "cummin")}


@method
def normalize(x: Any, p: float = 2, dim: int = 1, eps: float = 1e-12) -> Any:
    return F.normalize(x, p, axis=dim, eps=eps)


# -- numbers -------------------------------------------------------------------------------------


@method
def div(x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    return weft.divide(x, y, rounding=rounding_mode)


@method
def isinf(x: Any, detect_positive: bool = True, detect_negative: bool = True) -> Any:
    sides = (detect_positive, detect_negative)
    if sides == (True, True):
        return weft.isinf(x)
    return weft.equal(x, math.inf if detect_positive else -math.inf)


@method
def cast(x: Any, dtype: Any) -> Any:
    """Integers of one width keep their bits there, where Weft's conversion keeps to the range."""
    found = kind_of(dtype) if isinstance(dtype, str) else None
    wanted = dtype if found is None else found.own
    same = x.dtype.is_integer and wanted.is_integer and x.dtype.bits == wanted.bits
    return weft.bitcast(x, wanted) if same else x.astype(wanted)


for _method, _kind in {
    "half": "float16",
    "float": "float32",
    "int": "int32",
    "bool": "bool",
}.items():
    METHODS[_method] = partial(lambda kind, x: x.astype(getattr(weft, kind)), _kind)


@method
def bitcast(x: Any, dtype: Any) -> Any:
    return weft.bitcast(x, dtype)


@method
def where(x: Any, a: Any, b: Any) -> Any:
    return weft.where(x, *[_narrow(v, a, b) for v in (a, b)])


def _narrow(value: Any, *both: Any) -> Any:
    """Two Python integers are int32 there."""
    if all(isinstance(v, int) and not isinstance(v, bool) for v in both):
        return weft.asarray(np.int32(value))
    return value


@method
def masked_fill(x: Any, mask: Any, value: Any) -> Any:
    return weft.where(mask, value, x)


@method
def masked_select(x: Any, mask: Any, size: int | None = None, fill_value: Any = 0) -> Any:
    flat = weft.ravel(x)[weft.ravel(weft.broadcast_to(mask, x.shape))]
    return flat if size is None else _sized(flat, size, fill_value)


def _sized(x: Any, size: int, fill: Any) -> Any:
    missing = max(0, size - x.shape[0])
    rest = weft.full((missing, *x.shape[1:]), int(fill) if x.dtype.is_integer else fill)
    return weft.concat([x[:size], rest.astype(x.dtype)], axis=0)


@method
def nonzero(x: Any, size: int | None = None, fill_value: Any = 0) -> Any:
    if not x.ndim:
        found = weft.zeros((int(bool(x)), 0), dtype=weft.int32)
    else:
        found = weft.argwhere(x).astype(weft.int32)
    return found if size is None else _sized(found, size, fill_value)


@method
def detach(x: Any) -> Any:
    return weft.stop_gradient(x)


for _method in ("clone", "contiguous"):
    METHODS[_method] = weft.positive

# -- shapes --------------------------------------------------------------------------------------


def listed(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape


@method
def reshape(x: Any, *shape: Any) -> Any:
    wanted = [x.shape[i] if s is None else s for i, s in enumerate(listed(shape))]
    return weft.reshape(x, tuple(wanted))


METHODS["view"] = reshape


@method
def permute(x: Any, *order: Any) -> Any:
    return weft.permute_dims(x, listed(order))


@method
def transpose(x: Any, a: int = 1, b: int = 0) -> Any:
    return weft.swapaxes(x, a, b)


@method
def flip(x: Any, *axes: Any) -> Any:
    return weft.flip(x, axis=listed(axes))


@method
def expand(x: Any, *shape: Any) -> Any:
    return weft.broadcast_to(x, listed(shape))


@method
def squeeze(x: Any, dim: int | None = None) -> Any:
    if dim is None:
        return weft.squeeze(x)
    if not x.ndim and dim in (0, -1):
        return x
    if not -x.ndim <= dim < x.ndim:
        raise Refused(f"axis {dim}")
    return weft.squeeze(x, axis=dim) if x.shape[dim] == 1 else x


@method
def unsqueeze(x: Any, dim: int) -> Any:
    return weft.expand_dims(x, axis=dim)


@method
def flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    if not x.ndim:
        return weft.reshape(x, (1,))
    first, last = start_dim % x.ndim, end_dim % x.ndim
    joined = math.prod(x.shape[first : last + 1])
    return weft.reshape(x, (*x.shape[:first], joined, *x.shape[last + 1 :]))


@method
def unflatten(x: Any, dim: int, sizes: Any) -> Any:
    at = dim % x.ndim
    return weft.reshape(x, (*x.shape[:at], *sizes, *x.shape[at + 1 :]))


@method
def diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    if dim1 % x.ndim == dim2 % x.ndim:
        raise Refused("one axis twice")
    return weft.linalg.diagonal(weft.moveaxis(x, (dim1, dim2), (-2, -1)), offset=offset)


@method
def roll(x: Any, shifts: Any, dims: Any = None) -> Any:
    if isinstance(shifts, tuple) and dims is None and len(shifts) == 1:
        shifts = shifts[0]
    if dims is not None and np.ndim(shifts) != np.ndim(dims):
        raise Refused("as many shifts as axes")
    return weft.roll(x, shifts, axis=dims)


@method
def repeat(x: Any, *repeats: Any) -> Any:
    counts = listed(repeats)
    if len(counts) < x.ndim:
        raise Refused(f"{len(counts)} counts for {x.ndim} axes")
    return weft.tile(x, counts)


@method
def repeat_interleave(x: Any, repeats: int, dim: int | None = None) -> Any:
    return weft.repeat(x, repeats, axis=dim)


@method
def split(x: Any, sizes: Any, dim: int = 0) -> Any:
    size = x.shape[dim]
    if isinstance(sizes, int):
        return tuple(weft.split(x, list(range(sizes, size, sizes)), axis=dim))
    cuts = np.cumsum(sizes)[:-1]
    return tuple(weft.split(x, [int(c) for c in cuts], axis=dim))


@method
def chunk(x: Any, chunks: int, dim: int = 0) -> Any:
    return split(x, math.ceil(x.shape[dim] / chunks), dim)


@method
def unfold(x: Any, dim: int, size: int, step: int) -> Any:
    return weft.sliding_window(x, size, step, axis=dim)


@method
def meshgrid(x: Any, *others: Any, indexing: str = "ij") -> Any:
    return tuple(weft.meshgrid(*[weft.ravel(each) for each in (x, *others)], indexing=indexing))


@method
def cat(x: Any, *others: Any, dim: int = 0) -> Any:
    return weft.concat([x, *others], axis=dim)


@method
def stack(x: Any, *others: Any, dim: int = 0) -> Any:
    both = isinstance(x, tuple | list)
    if both and others:
        raise Refused("a sequence and more tensors")
    return weft.stack(list(x) if both else [x, *others], axis=dim)


@method
def pad(x: Any, padding: Any, mode: str = "constant", value: float = 0.0) -> Any:
    if all(isinstance(each, int) for each in padding):
        if len(padding) % 2 or len(padding) > 2 * x.ndim:
            raise Refused(f"{len(padding)} widths for {x.ndim} axes")
        around = list(zip(padding[::2], padding[1::2], strict=True))[::-1]
        around = [(0, 0)] * (x.ndim - len(around)) + around
    else:
        around = [(0, 0) if each is None else each for each in padding]
    names = {"replicate": "edge", "circular": "wrap"}
    return F.pad(x, around, names.get(mode, mode), value)


METHODS["tril"] = lambda x, diagonal=0: weft.tril(x, k=diagonal)
METHODS["triu"] = lambda x, diagonal=0: weft.triu(x, k=diagonal)
METHODS["diag"] = weft.diag
METHODS["dot"] = METHODS["matmul"] = weft.matmul

# -- order ---------------------------------------------------------------------------------------


@method
def sort(x: Any, dim: int = -1, descending: bool = False) -> Any:
    order = weft.argsort(x, axis=dim, descending=descending)
    values = weft.sort(x, axis=dim, descending=descending)
    return values, order.astype(weft.int32)


@method
def argsort(x: Any, dim: int = -1, descending: bool = False) -> Any:
    return weft.argsort(x, axis=dim, descending=descending).astype(weft.int32)


@method
def topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted_: bool = True) -> Any:
    values, places = F.top_k(x, k, dim, largest=largest)
    return values, places.astype(weft.int32)


@method
def gather(x: Any, dim: int, index: Any) -> Any:
    return F.gather(x, index, axis=dim)


@method
def scatter(x: Any, dim: int, index: Any, src: Any, reduce: str | None = None) -> Any:
    if reduce is not None and not isinstance(src, int | float):
        raise Refused("a tensor is not reduced here")
    if isinstance(src, int | float):
        src = weft.full(index.shape, src, dtype=x.dtype)
    words = {None: "replace", "add": "add", "multiply": "prod"}
    return F.scatter(x, index, _cut(src, index), axis=dim, reduce=words[reduce])


def _cut(updates: Any, index: Any) -> Any:
    """Updates are read where there is an index."""
    if any(u < i for u, i in zip(updates.shape, index.shape, strict=True)):
        raise Refused("an index without an update")
    return updates[tuple(slice(0, size) for size in index.shape)]


@method
def scatter_reduce(
    x: Any, dim: int, index: Any, src: Any, reduce: str, include_self: bool = True
) -> Any:
    words = {"sum": "add", "amax": "max", "amin": "min"}
    return F.scatter(
        x, index, _cut(src, index), axis=dim, reduce=words.get(reduce, reduce),
        include_self=include_self,
    )  # fmt: skip


@method
def one_hot(x: Any, num_classes: int) -> Any:
    return F.one_hot(x, num_classes, dtype=weft.int32)
