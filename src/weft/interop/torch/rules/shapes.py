"""Ops that place elements and compute nothing."""

from __future__ import annotations

from typing import Any

from weft.foundation.dims import UNKNOWN, Symbol
from weft.interop.torch.rules.casts import cast
from weft.interop.torch.rules.promotion import common
from weft.interop.torch.rules.table import F, part, product, rule, rules, w

END = 1 << 62
"""An end of a slice from which on torch means the end of the axis."""


def _return_operand(x: Any, *_: Any, **__: Any) -> Any:
    return x


def _expand_to(x: Any, size: Any, **_: Any) -> Any:
    """-1 keeps a size."""
    new = len(size) - x.ndim
    shape = [x.shape[at - new] if n == -1 else n for at, n in enumerate(size)]
    return w.broadcast_to(x, tuple(shape))


def reshaped(x: Any, size: Any) -> Any:
    """One size may be open and without a name: it follows from the others."""
    if sum(n == UNKNOWN for n in size) == 1 and -1 not in size:
        size = [-1 if n == UNKNOWN else n for n in size]
    return w.reshape(x, tuple(size))


def _squeeze_dims(x: Any, dim: Any = None) -> Any:
    named = range(x.ndim) if dim is None else dim if isinstance(dim, list | tuple) else [dim]
    axes = tuple(a % x.ndim for a in named if x.ndim and x.shape[a] == 1)
    return w.squeeze(x, axis=axes) if axes else x


def bounds(size: int, start: Any, end: Any) -> tuple[int, int]:
    """Where a slice of torch begins and ends."""
    first = 0 if start is None else start
    last = size if end is None or end >= END else end
    first, last = (n + size if n < 0 else n for n in (first, last))
    first = min(max(first, 0), size)
    return first, min(max(last, first), size)


def sliced(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    whole = end is None or _ends_with_axis(x.shape[dim], end)
    if (start is None or start == 0) and whole and step == 1:
        return x
    first, last = bounds(x.shape[dim], start, end)
    return part(x, dim, slice(first, last, step))


def _ends_with_axis(size: Any, end: Any) -> bool:
    """Whether a slice up to here ends where the axis does."""
    if isinstance(end, Symbol):
        return end != UNKNOWN and end == size
    return bool(end >= END)


def _split_by_sizes(x: Any, sizes: Any, dim: int = 0) -> Any:
    at, found = 0, []
    for size in sizes:
        found.append(part(x, dim, slice(at, at + size)))
        at += size
    return tuple(found)


def _split_evenly(x: Any, size: int, dim: int = 0) -> Any:
    total = x.shape[dim]
    return _split_by_sizes(
        x, [min(size, total - at) for at in range(0, max(total, 1), max(size, 1))], dim
    )


def _join_tensors(tensors: Any, dim: int = 0) -> Any:
    dtype = common(list(tensors))
    kept = [t for t in tensors if t.shape != (0,)] or list(tensors)[:1]
    return w.concat([cast(each, dtype) for each in kept], axis=dim)


def diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    moved = w.moveaxis(x, (dim1 % x.ndim, dim2 % x.ndim), (-2, -1))
    return w.linalg.diagonal(moved, offset=offset)


def _pad_pairs(x: Any, pad: Any, value: Any = 0) -> Any:
    """Pairs of widths, from the last axis on; under 0 they cut elements off."""
    around = list(zip(pad[::2], pad[1::2], strict=True))[::-1]
    widths = [(0, 0)] * (x.ndim - len(around)) + around
    for axis, (low, high) in enumerate(widths):
        if low < 0 or high < 0:
            x = part(x, axis, slice(max(-low, 0), x.shape[axis] - max(-high, 0)))
    widths = [(max(low, 0), max(high, 0)) for low, high in widths]
    if not any(low or high for low, high in widths):
        return x
    kinds = (bool, int, float)
    plain = value if x.dtype.is_float or x.dtype.is_complex else kinds[x.dtype.is_integer](value)
    return F.pad(x, widths, "constant", plain)


def strided(x: Any, size: Any, stride: Any, storage_offset: Any = None) -> Any:
    """Elements by their place in memory, in which the tensor lies in order."""
    shape = tuple(size)
    places = w.zeros((), dtype=w.int64) + (storage_offset or 0)
    for axis, (count, step) in enumerate(zip(shape, stride, strict=True)):
        row = w.reshape(w.arange(count) * step, [-1 if a == axis else 1 for a in range(len(shape))])
        places = places + row
    if not shape:
        return w.ravel(x)[storage_offset or 0]
    return w.take(w.ravel(x), w.ravel(w.broadcast_to(places, shape)), axis=0).reshape(shape)


def is_ordered(size: Any, stride: Any) -> bool:
    """Whether strides are those of a tensor whose elements lie in order, without gaps."""
    wanted = 1
    for count, step in zip(reversed(list(size)), reversed(list(stride)), strict=True):
        if count != 1 and step != wanted:
            return False
        wanted *= count
    return True


@rule("aten.as_strided", "aten.as_strided_copy")
def _(x: Any, size: Any, stride: Any, storage_offset: Any = None) -> Any:
    if not storage_offset and product(size) == x.size and is_ordered(size, stride):
        return w.reshape(x, tuple(size))
    return strided(x, size, stride, storage_offset)


@rule("aten.as_strided_scatter")
def _(x: Any, source: Any, size: Any, stride: Any, storage_offset: Any = None) -> Any:
    numbers = strided(w.reshape(w.arange(x.size), x.shape), size, stride, storage_offset)
    flat = F.scatter(w.ravel(x), w.ravel(numbers), w.ravel(source))
    return w.reshape(flat, x.shape)


def _unfold_axis(x: Any, dimension: int, size: int, step: int) -> Any:
    if not x.ndim:
        return w.reshape(x, (1,)) if size else w.zeros((0,), dtype=x.dtype)
    return w.sliding_window(x, size, step, axis=dimension)


def _flip_dims(x: Any, dims: Any) -> Any:
    return w.flip(x, axis=tuple(dims)) if x.ndim and dims else x


def _tile_repeats(x: Any, repeats: Any) -> Any:
    more = len(repeats) - x.ndim
    return w.tile(w.reshape(x, (1,) * more + tuple(x.shape)), tuple(repeats))


def _select_index(x: Any, dim: int, index: Any) -> Any:
    at = index + x.shape[dim] if isinstance(index, int) and index < 0 else index
    return part(x, dim, at)


def _roll_dims(x: Any, shifts: Any, dims: Any = ()) -> Any:
    return w.roll(x, tuple(shifts), tuple(dims)) if dims else w.roll(x, shifts[0])


@rule(
    "aten.replication_pad1d_backward",
    "aten.replication_pad2d_backward",
    "aten.replication_pad3d_backward",
)
def _(gradient: Any, x: Any, padding: Any) -> Any:
    """Of edges that are repeated; a padding below 0 cuts."""
    pairs = list(zip(padding[::2], padding[1::2], strict=True))[::-1]

    def pad(x: Any) -> Any:
        for axis, (low, high) in enumerate(pairs, x.ndim - len(pairs)):
            size = x.shape[axis]
            places = w.clip(w.arange(-low, size + high), 0, size - 1)
            x = w.take(x, places, axis=axis)
        return x

    return w.vjp(pad, x)[1](gradient)[0]


rules(
    "aten.",
    view=reshaped,
    _unsafe_view=reshaped,
    view_copy=reshaped,
    reshape=reshaped,
    alias=_return_operand,
    alias_copy=_return_operand,
    clone=_return_operand,
    contiguous=_return_operand,
    detach=w.stop_gradient,
    detach_copy=w.stop_gradient,
    lift_fresh=_return_operand,
    lift_fresh_copy=_return_operand,
    permute=lambda x, dims: w.permute_dims(x, tuple(d % x.ndim for d in dims)),
    permute_copy=lambda x, dims: w.permute_dims(x, tuple(d % x.ndim for d in dims)),
    t=w.transpose,
    transpose=lambda x, a, b: w.swapaxes(x, a, b) if x.ndim else x,
    unsqueeze=lambda x, dim: w.expand_dims(x, axis=dim),
    squeeze=_squeeze_dims,
    expand=_expand_to,
    select=_select_index,
    slice=sliced,
    split=_split_evenly,
    split_with_sizes=_split_by_sizes,
    unbind=lambda x, dim=0: tuple(part(x, dim, at) for at in range(x.shape[dim])),
    unbind_copy=lambda x, dim=0: tuple(part(x, dim, at) for at in range(x.shape[dim])),
    cat=_join_tensors,
    stack=lambda tensors, dim=0: w.stack(list(tensors), axis=dim),
    repeat=_tile_repeats,
    flip=_flip_dims,
    roll=_roll_dims,
    diagonal=diagonal,
    diagonal_copy=diagonal,
    constant_pad_nd=_pad_pairs,
    unfold=_unfold_axis,
    narrow_copy=lambda x, dim, start, length: part(x, dim, slice(start, start + length)),
    pixel_shuffle=F.pixel_shuffle,
    pixel_unshuffle=F.pixel_unshuffle,
    tril=lambda x, diagonal=0: w.tril(x, k=diagonal),
    triu=lambda x, diagonal=0: w.triu(x, k=diagonal),
    copy=lambda x, source, non_blocking=False: w.broadcast_to(cast(source, x.dtype), x.shape),
)
rules("aten.view.", default=reshaped)
