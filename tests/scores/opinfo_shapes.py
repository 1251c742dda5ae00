"""torch's functions that place elements and compute nothing, as Weft's."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

import weft
from tests.scores.opinfo_forms import OPS, along, op, padded, part, sizes, tupled

w: Any = weft
L: Any = weft.linalg


OPS |= {
    "T": lambda x: w.transpose(x), "t": lambda x: w.transpose(x),
    "t_copy": lambda x: w.transpose(x),
    "mT": w.matrix_transpose, "mH": lambda x: w.conj(w.matrix_transpose(x)),
    "H": lambda x: w.conj(w.transpose(x)),
    "alias_copy": w.positive, "clone": w.positive, "contiguous": w.positive,
    "broadcast_shapes": lambda *shapes: tuple(w.broadcast_shapes(*shapes)),
    "broadcast_tensors": lambda *x: tuple(w.broadcast_arrays(*x)),
    "broadcast_to": lambda x, shape: w.broadcast_to(x, shape),
    "cat": lambda xs, dim=0: w.concat([x for x in xs if x.shape != (0,)] or list(xs), axis=dim),
    "stack": lambda xs, dim=0: w.stack(list(xs), axis=dim),
    "hstack": lambda xs: w.hstack([x if x.ndim else w.reshape(x, (1,)) for x in xs]),
    "vstack": lambda xs: w.vstack(list(xs)),
    "expand": lambda x, *shape: w.broadcast_to(x, _kept(x, sizes(shape))),
    "expand_copy": lambda x, *shape: w.broadcast_to(x, _kept(x, sizes(shape))),
    "expand_as": lambda x, y: w.broadcast_to(x, y.shape),
    "flip": lambda x, dims: w.flip(x, axis=tuple(dims)),
    "fliplr": lambda x: w.flip(x, axis=1), "flipud": lambda x: w.flip(x, axis=0),
    "permute": lambda x, *order: w.permute_dims(x, sizes(order)),
    "permute_copy": lambda x, *order: w.permute_dims(x, sizes(order)),
    "movedim": lambda x, a, b: w.moveaxis(x, a, b),
    "ravel": w.ravel,
    "repeat": lambda x, *counts: w.tile(x, sizes(counts)),
    "tile": lambda x, *counts: w.tile(x, sizes(counts)),
    "unflatten": lambda x, dim, shape: _unflat(x, dim, shape),
    "view": lambda x, *shape: w.reshape(x, sizes(shape)),
    "view_copy": lambda x, *shape: w.reshape(x, sizes(shape)),
    "reshape": lambda x, *shape: w.reshape(x, sizes(shape)),
    "reshape_as": lambda x, y: w.reshape(x, y.shape), "view_as": lambda x, y: w.reshape(x, y.shape),
    "unsqueeze": lambda x, dim: w.expand_dims(x, axis=dim),
    "unsqueeze_copy": lambda x, dim: w.expand_dims(x, axis=dim),
    "diag": lambda x, k=0: w.diag(x, k), "diagflat": lambda x, k=0, **m: w.diag(w.ravel(x), m.get("offset", k)),  # noqa: E501
    "tril": lambda x, k=0: w.tril(x, k=k), "triu": lambda x, k=0: w.triu(x, k=k),
    "trace": lambda x: L.trace(x),
    "zeros_like": lambda x, **m: w.zeros_like(x, **m),
    "ones_like": lambda x, **m: w.ones_like(x, **m),
    "full_like": lambda x, value, **m: w.full_like(x, value, **m),
    "new_zeros": lambda x, shape, dtype=None: w.zeros(shape, dtype=dtype or x.dtype),
    "new_ones": lambda x, shape, dtype=None: w.ones(shape, dtype=dtype or x.dtype),
    "new_full": lambda x, shape, value, dtype=None: w.full(shape, value, dtype=dtype or x.dtype),
    "zeros": lambda *shape, dtype=w.float32: w.zeros(sizes(shape), dtype=dtype),
    "ones": lambda *shape, dtype=w.float32: w.ones(sizes(shape), dtype=dtype),
    "full": lambda shape, value, dtype=None: w.full(shape, value, dtype=dtype),
    "scalar_tensor": lambda x, dtype=w.float32: w.asarray(x, dtype=dtype),
    "eye": lambda n, m=None, dtype=w.float32: w.eye(n, m, dtype=dtype),
    "arange": lambda *ends, dtype=None, **m: w.arange(*ends, *m.values(), dtype=dtype),
    "linspace": lambda a, b, steps, dtype=w.float32: w.linspace(a, b, steps, dtype=dtype),
    "linspace:tensor_overload": lambda a, b, steps, dtype=w.float32: w.linspace(
        np.asarray(a).item(), np.asarray(b).item(), steps, dtype=dtype
    ),
    "logspace": lambda a, b, steps, base=10.0, dtype=w.float32: logspace(a, b, steps, base, dtype),
    "logspace:tensor_overload": lambda a, b, steps, base=10.0, dtype=w.float32: logspace(
        np.asarray(a).item(), np.asarray(b).item(), steps, base, dtype
    ),
    "meshgrid:list_of_tensors": lambda xs, indexing="ij": meshgrid(xs, indexing),
    "meshgrid:variadic_tensors": lambda *xs, indexing="ij": meshgrid(xs, indexing),
    "sum_to_size": lambda x, *shape: sum_to(x, sizes(shape)),
    "select": lambda x, dim, index: w.take(x, w.asarray(index), axis=dim),
    "narrow": lambda x, dim, start, length: narrow(x, dim, start, length),
    "narrow_copy": lambda x, dim, start, length: narrow(x, dim, start, length),
    "unbind": lambda x, dim=0: tuple(w.unstack(x, axis=dim)),
    "unbind_copy": lambda x, dim=0: tuple(w.unstack(x, axis=dim)),
    "atleast_1d": lambda *xs: at_least(1, xs), "atleast_2d": lambda *xs: at_least(2, xs),
    "atleast_3d": lambda *xs: at_least(3, xs),
    "column_stack": lambda xs: w.concat([_column(x) for x in xs], axis=1),
    "dstack": lambda xs: w.concat([deep(x) for x in xs], axis=2),
    "rot90": lambda x, k=1, dims=(0, 1): rot90(x, k, dims),
    "roll": lambda x, shifts, dims=None: w.roll(x, tupled(shifts), axis=tupled(dims)),
    "unfold": lambda x, dim, size, step: along(
        lambda x, axis: w.sliding_window(x, size, step, axis=axis), x, dim
    )[... if x.ndim else 0],
    "unfold_copy": lambda x, dim, size, step: OPS["unfold"](x, dim, size, step),
    "constant_pad_nd": lambda x, pad, value=0: padded(x, pad, value),
    "tril_indices": lambda rows, columns, offset=0, **_: np.stack(np.tril_indices(rows, offset, columns)),  # noqa: E501
    "__getitem__": lambda x, key: x[tuple(key) if isinstance(key, list) else key],
    "complex": lambda re, im: re + w.asarray(1j) * im,
}  # fmt: skip
del OPS["tril_indices"]  # NumPy's, not ours


def _kept(x: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    new = len(shape) - x.ndim
    return tuple(x.shape[i - new] if size == -1 else size for i, size in enumerate(shape))


def _unflat(x: Any, dim: int, shape: Any) -> Any:
    at = dim % x.ndim
    return w.reshape(x, (*x.shape[:at], *shape, *x.shape[at + 1 :]))


def logspace(a: Any, b: Any, steps: int, base: float, dtype: Any) -> Any:
    found = w.pow(w.asarray(float(base), dtype=w.float64), w.linspace(a, b, steps, dtype=w.float64))
    return found.astype(dtype)


def meshgrid(xs: Any, indexing: str) -> Any:
    return tuple(w.meshgrid(*[w.ravel(x) for x in xs], indexing=indexing))


def sum_to(x: Any, shape: tuple[int, ...]) -> Any:
    found = w.sum(x, axis=tuple(range(x.ndim - len(shape))), dtype=x.dtype)
    ones = [a for a, size in enumerate(shape) if size == 1 != found.shape[a]]
    return w.sum(found, axis=tuple(ones), keepdims=True, dtype=x.dtype) if ones else found


def narrow(x: Any, dim: int, start: Any, length: int) -> Any:
    first = (
        int(np.asarray(start)) % x.shape[dim]
        if int(np.asarray(start)) < 0
        else int(np.asarray(start))
    )
    return part(x, dim, first, first + length)


def at_least(rank: int, xs: Any) -> Any:
    found = []
    for x in xs[0] if len(xs) == 1 and isinstance(xs[0], tuple | list) else xs:
        y = deep(x) if rank == 3 else w.reshape(x, (*(1,) * (rank - x.ndim), *x.shape))
        found.append(y)
    return tuple(found) if len(found) > 1 or isinstance(xs[0], tuple | list) else found[0]


def deep(x: Any) -> Any:
    """Of rank 3 at least, as NumPy's `dstack` has it."""
    if x.ndim == 0:
        return w.reshape(x, (1, 1, 1))
    if x.ndim == 1:
        return x[None, :, None]
    return x[..., None] if x.ndim == 2 else x


def _column(x: Any) -> Any:
    return x if x.ndim > 1 else w.reshape(x, (-1, 1))


def rot90(x: Any, k: int, dims: Any) -> Any:
    a, b = (dim % x.ndim for dim in dims)
    for _ in range(k % 4):
        x = w.swapaxes(w.flip(x, axis=b), a, b)
    return x


@op("squeeze", "squeeze:multiple", "squeeze_copy")
def _(x: Any, dim: Any = None) -> Any:
    if dim is None:
        return w.squeeze(x)
    wanted = [d % max(x.ndim, 1) for d in (dim if isinstance(dim, tuple | list) else (dim,))]
    ones = tuple(d for d in wanted if x.ndim and x.shape[d] == 1)
    return w.squeeze(x, axis=ones) if ones else x


@op("transpose", "transpose_copy")
def _(x: Any, a: int, b: int) -> Any:
    return w.swapaxes(x, a, b) if x.ndim else x


@op("flatten")
def _(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    if not x.ndim:
        return w.reshape(x, (1,))
    first, last = start_dim % x.ndim, end_dim % x.ndim
    joined = math.prod(x.shape[first : last + 1])
    return w.reshape(x, (*x.shape[:first], joined, *x.shape[last + 1 :]))


@op("split", "split:list_args", "split_with_sizes", "split_with_sizes_copy", "unsafe_split")
def split(x: Any, parts: Any, dim: int = 0) -> Any:
    if isinstance(parts, int):
        return tuple(w.split(x, list(range(parts, x.shape[dim], parts)), axis=dim))
    return tuple(w.split(x, [int(c) for c in np.cumsum(parts)[:-1]], axis=dim))


@op("chunk", "unsafe_chunk")
def _(x: Any, chunks: int, dim: int = 0) -> Any:
    return split(x, max(1, math.ceil(x.shape[dim] / chunks)), dim)


@op("tensor_split")
def tensor_split(x: Any, parts: Any, dim: int = 0) -> Any:
    if hasattr(parts, "shape"):
        parts = np.asarray(parts).tolist()
    size = x.shape[dim]
    if isinstance(parts, int):
        short, longer = divmod(size, parts)
        parts = [i * short + min(i, longer) for i in range(1, parts)]
    return tuple(w.split(x, list(parts), axis=dim))


for _name, _axis in (("hsplit", 1), ("vsplit", 0), ("dsplit", 2)):
    OPS[_name] = lambda x, parts, axis=_axis: tensor_split(x, parts, axis if x.ndim > 1 else 0)


@op("diagonal", "diagonal_copy", "linalg.diagonal")
def diagonal(x: Any, offset: int = 0, dim1: Any = None, dim2: Any = None, **_: Any) -> Any:
    a, b = (0, 1) if dim1 is None else (dim1, dim2)
    return L.diagonal(w.moveaxis(x, (a, b), (-2, -1)), offset=offset)


OPS["linalg.diagonal"] = lambda x, offset=0, dim1=-2, dim2=-1: diagonal(x, offset, dim1, dim2)


@op("diag_embed")
def diag_embed(x: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    size = x.shape[-1] + abs(offset)
    wide = padded(x, (max(offset, 0), max(-offset, 0)))
    square = w.broadcast_to(wide[..., None, :], (*x.shape[:-1], size, size))
    found = w.where(w.eye(size, k=offset, dtype=w.bool), square, w.zeros_like(square))
    return w.moveaxis(found, (-2, -1), (dim1, dim2))


@op("block_diag")
def _(*xs: Any) -> Any:
    blocks = [w.reshape(x, (*(1,) * (2 - x.ndim), *x.shape)) for x in xs]
    wide = sum(x.shape[1] for x in blocks)
    rows, at = [], 0
    for x in blocks:
        rows.append(padded(x, (at, wide - at - x.shape[1])))
        at += x.shape[1]
    return w.concat(rows, axis=0)


@op("cartesian_prod")
def _(*xs: Any) -> Any:
    if len(xs) == 1:
        return xs[0]
    return w.stack([w.ravel(x) for x in w.meshgrid(*xs, indexing="ij")], axis=1)


@op("combinations")
def _(x: Any, r: int = 2, with_replacement: bool = False) -> Any:
    pick = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = np.array(list(pick(range(x.shape[0]), r)), np.int64).reshape(-1, r)
    return w.take(x, w.asarray(places), axis=0)


@op("kron")
def _(x: Any, y: Any) -> Any:
    rank = max(x.ndim, y.ndim)
    a, b = (w.reshape(v, (*(1,) * (rank - v.ndim), *v.shape)) for v in (x, y))
    shape = tuple(p * q for p, q in zip(a.shape, b.shape, strict=True))
    wide = tuple(v for p in a.shape for v in (p, 1)), tuple(v for q in b.shape for v in (1, q))
    return w.reshape(w.reshape(a, wide[0]) * w.reshape(b, wide[1]), shape)
