"""Ops that take and place elements by their positions. A negative position counts from the end."""

from __future__ import annotations

from typing import Any

from weft.foundation.dtypes import I1, SI32, SI64
from weft.foundation.errors import Unimplemented
from weft.interop.torch.rules.casts import cast
from weft.interop.torch.rules.creation import filled
from weft.interop.torch.rules.promotion import common
from weft.interop.torch.rules.shapes import bounds, diagonal
from weft.interop.torch.rules.table import F, Rule, along, is_tensor, part, product, rule, rules, w

WORDS = {"add": "add", "multiply": "prod", "sum": "add", "amax": "max", "amin": "min",
         "prod": "prod", "mean": "mean"}  # fmt: skip
"""torch's words for what becomes of elements that meet."""


def _count_from_start(index: Any, size: int) -> Any:
    """Positions from 0 on."""
    index = w.astype(index, SI64) if index.dtype is not SI64 else index
    return w.where(index < 0, index + size, index)


def _element_numbers(x: Any, indices: Any) -> tuple[Any, list[int]]:
    """The number of every chosen element among all of `x`, given an index tensor for some axes."""
    if any(is_tensor(each) and each.dtype in (I1, w.uint8) for each in indices):
        raise Unimplemented("index", "a mask gives a size that depends on the data")
    given = list(indices) + [None] * (x.ndim - len(indices))
    axes = [axis for axis, each in enumerate(given) if each is not None]
    shape = tuple(w.broadcast_shapes(*[given[a].shape for a in axes]))
    apart = axes != list(range(axes[0], axes[-1] + 1))
    front = 0 if apart else axes[0]
    rest = [axis for axis in range(x.ndim) if axis not in axes]
    before = rest[:front]
    final = [x.shape[a] for a in before] + list(shape) + [x.shape[a] for a in rest[front:]]
    total: Any = w.zeros((), dtype=SI64)
    for axis in range(x.ndim):
        step = product(x.shape[axis + 1 :])
        if axis in axes:
            place = _count_from_start(given[axis], x.shape[axis])
            after = len(final) - front - len(shape)
            row = w.reshape(
                w.broadcast_to(place, shape), (1,) * front + shape + (1,) * after
            )  # fmt: skip
        else:
            at = before.index(axis) if axis in before else rest.index(axis) + len(shape)
            row = w.reshape(
                w.arange(x.shape[axis]), [-1 if a == at else 1 for a in range(len(final))]
            )  # fmt: skip
        total = total + row * step
    return w.broadcast_to(total, tuple(final)), final


@rule("aten.index.Tensor", "aten._unsafe_index.Tensor")
def _(x: Any, indices: Any) -> Any:
    axes = [axis for axis, each in enumerate(indices) if each is not None]
    if not axes:
        return x
    if len(axes) == 1 and indices[axes[0]].dtype not in (I1, w.uint8):
        index = indices[axes[0]]
        return w.take(x, _count_from_start(index, x.shape[axes[0]]), axis=axes[0])
    places, shape = _element_numbers(x, indices)
    return w.reshape(w.take(w.ravel(x), w.ravel(places), axis=0), tuple(shape))


@rule("aten.index_put", "aten._unsafe_index_put")
def _(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    masks = [each for each in indices if each is not None and each.dtype in (I1, w.uint8)]
    if masks and values.ndim == 0 and not accumulate and len(indices) == 1:
        mask = w.reshape(masks[0], masks[0].shape + (1,) * (x.ndim - masks[0].ndim))
        return w.where(cast(mask, I1), values, x)
    places, shape = _element_numbers(x, indices)
    given = w.ravel(w.broadcast_to(cast(values, x.dtype), tuple(shape)))
    how = "add" if accumulate else "replace"
    if x.dtype is I1:
        found = F.scatter(cast(w.ravel(x), SI32), w.ravel(places), cast(given, SI32), reduce=how)
        return cast(w.reshape(found, x.shape), I1)
    return w.reshape(F.scatter(w.ravel(x), w.ravel(places), given, reduce=how), x.shape)


@rule("aten.gather")
def _(x: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Any:
    if not x.ndim:
        flat = w.take(w.reshape(x, (1,)), w.reshape(index, (-1,)), axis=0)
        return w.reshape(flat, index.shape)
    if not index.ndim:
        return w.reshape(w.take(x, w.reshape(index, (1,)), axis=0), ())
    if not index.size:
        return w.zeros(index.shape, dtype=x.dtype)
    return F.gather(x, w.astype(index, SI64), axis=dim)


def scattered(x: Any, dim: int, index: Any, src: Any, how: str, include_self: bool = True) -> Any:
    """Elements placed along an axis; what the index does not reach of `src` is left out."""
    if not is_tensor(src):
        src = filled(index.shape, src, x.dtype)
    if not index.size:
        return x
    if not x.ndim:
        one = [w.reshape(v, (-1,)) for v in (x, index, src)]
        return w.reshape(scattered(one[0], 0, one[1], one[2], how, include_self), ())
    if not index.ndim:
        index, src = w.reshape(index, (1,)), w.reshape(src, (1,))
    cut = src[tuple(slice(0, size) for size in index.shape)]
    index = w.astype(index, SI64)
    if x.dtype is I1:
        made = F.scatter(cast(x, SI32), index, cast(cut, SI32), axis=dim, reduce=how,
                         include_self=include_self)  # fmt: skip
        return cast(made, I1)
    return F.scatter(x, index, cut, axis=dim, reduce=how, include_self=include_self)


@rule("aten.scatter")
def _(x: Any, dim: int, index: Any, src: Any, *, reduce: Any = None) -> Any:
    return scattered(x, dim, index, src, WORDS[reduce] if reduce else "replace")


@rule("aten.scatter_reduce")
def _(x: Any, dim: int, index: Any, src: Any, reduce: str, include_self: bool = True) -> Any:
    return scattered(x, dim, index, src, WORDS[reduce], include_self)


@rule("aten.scatter_add")
def _(x: Any, dim: int, index: Any, src: Any) -> Any:
    return scattered(x, dim, index, src, "add")


def _place_rows(how: str) -> Rule:
    """Rows placed along an axis, which an index names."""

    def call(x: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Any:
        return _place_elements(x, dim, index, source if alpha == 1 else source * alpha, how)

    return call


def _place_elements(
    x: Any, dim: int, index: Any, source: Any, how: str, include: bool = True
) -> Any:
    if not x.ndim:
        flat = [w.reshape(each, (-1,)) for each in (x, index, source)]
        return w.reshape(_place_elements(flat[0], 0, flat[1], flat[2], how, include), ())
    at = dim % x.ndim
    if source.ndim < x.ndim:
        source = w.reshape(source, (1,) * (x.ndim - source.ndim) + tuple(source.shape))
    flat = _count_from_start(w.reshape(index, (-1,)), x.shape[at])
    column = w.reshape(flat, [-1 if a == at else 1 for a in range(x.ndim)])
    return scattered(x, at, w.broadcast_to(column, source.shape), source, how, include)


@rule("aten.index_reduce")
def _(x: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool = True) -> Any:
    return _place_elements(x, dim, index, source, WORDS[reduce], include_self)


@rule("aten.index_fill")
def _(x: Any, dim: int, index: Any, value: Any) -> Any:
    shape = list(x.shape) or [1]
    flat = w.reshape(index, (-1,))
    shape[dim] = flat.shape[0]
    return _place_elements(x, dim, flat, filled(shape, value, x.dtype), "replace")


@rule("aten.index_select")
def _(x: Any, dim: int, index: Any) -> Any:
    flat = w.reshape(index, (-1,))
    return along(lambda x, axis: w.take(x, flat, axis=axis), x, dim, True)


@rule("aten.take")
def _(x: Any, index: Any) -> Any:
    return w.take(w.ravel(x), _count_from_start(index, x.size), axis=0)


@rule("aten.put")
def _(x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    how = "add" if accumulate else "replace"
    places = w.ravel(_count_from_start(index, x.size))
    return w.reshape(scattered(w.ravel(x), 0, places, w.ravel(source), how), x.shape)


@rule("aten.embedding")
def _(table: Any, indices: Any, *_: Any, **__: Any) -> Any:
    return F.embedding(indices, table)


@rule("aten.embedding_dense_backward")
def _(
    gradient: Any, indices: Any, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Any:
    if scale_grad_by_freq:
        raise Unimplemented("embedding_dense_backward", "gradients are not scaled by frequency")
    width = gradient.shape[-1]
    rows, flat = w.reshape(gradient, (-1, width)), w.ravel(w.astype(indices, SI64))
    if padding_idx >= 0:
        rows = w.where((flat == padding_idx)[:, None], w.zeros((), dtype=rows.dtype), rows)
    table = w.zeros((num_weights, width), dtype=gradient.dtype)
    return _place_elements(table, 0, flat, rows, "add")


@rule("aten.masked_scatter")
def _(x: Any, mask: Any, source: Any) -> Any:
    x, mask = w.broadcast_arrays(x, mask)
    numbers = w.cumulative_sum(w.astype(w.ravel(mask), SI64), axis=0) - 1
    taken = w.take(w.ravel(source), w.clip(numbers, 0, max(source.size - 1, 0)), axis=0)
    return w.where(mask, w.reshape(taken, x.shape), x)


def _write_elements(x: Any, numbers: Any, source: Any) -> Any:
    """Elements written at numbers among all of `x`."""
    source = w.broadcast_to(cast(source, x.dtype), numbers.shape)
    flat = scattered(w.ravel(x), 0, w.ravel(numbers), w.ravel(source), "replace")
    return w.reshape(flat, x.shape)


def _number_elements(x: Any) -> Any:
    return w.reshape(w.arange(x.size), x.shape)


@rule("aten.diagonal_scatter")
def _(x: Any, source: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    return _write_elements(x, diagonal(_number_elements(x), offset, dim1, dim2), source)


@rule("aten.select_scatter")
def _(x: Any, source: Any, dim: int, index: int) -> Any:
    found = w.expand_dims(source, axis=dim)
    at = index + x.shape[dim] if index < 0 else index
    return _replace_between(x, found, dim, at, at + 1)


@rule("aten.slice_scatter")
def _(x: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    first, last = bounds(x.shape[dim], start, end)
    if step == 1:
        return _replace_between(x, source, dim, first, last)
    return _write_elements(x, part(_number_elements(x), dim, slice(first, last, step)), source)


def _replace_between(x: Any, source: Any, dim: int, first: int, last: int) -> Any:
    """`x` with other elements from `first` to `last` along an axis."""
    shape = [last - first if a == dim % x.ndim else n for a, n in enumerate(x.shape)]
    middle = w.broadcast_to(cast(source, x.dtype), tuple(shape))
    around = [part(x, dim, slice(0, first)), middle, part(x, dim, slice(last, x.shape[dim]))]
    return w.concat([each for each in around if each.shape[dim]] or [x], axis=dim)


@rule("aten.searchsorted")
def _(
    row: Any, x: Any, *, out_int32: bool = False, right: bool = False, side: Any = None,
    sorter: Any = None,
) -> Any:  # fmt: skip
    dtype = common((row, x))
    row, x = (cast(each, dtype) if is_tensor(each) else w.asarray(each, dtype=dtype)
              for each in (row, x))  # fmt: skip
    if sorter is not None:
        row = w.take_along_axis(row, sorter, -1)
    where = side or ("right" if right else "left")
    found = w.searchsorted(row, x, side=where) if row.ndim == 1 else _by_row(row, x, where)
    return w.astype(found, SI32 if out_int32 else SI64)


def _by_row(row: Any, x: Any, side: str) -> Any:
    """Rows of their own: how many elements are before each."""
    pairs = (row[..., None, :], x[..., :, None])
    before = w.less_equal(*pairs) if side == "right" else w.less(*pairs)
    return w.sum(w.astype(before, SI64), axis=-1)


rules("aten.", index_add=_place_rows("add"), index_copy=_place_rows("replace"))
