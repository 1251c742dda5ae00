"""Stacks of many tensors: two special cases in which a program does not need an operand for each of
hundreds.

`stack([x[i] for i in order])` puts parts of one tensor together. Where nobody has computed them and
they stand at known places, one instruction takes them all. The places are its operand, so that
others are the same program, and a gradient adds all parts up in one instruction too.

`stack(losses)` puts together what was computed before. Where that lies in the host's memory, it is
copied at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.foundation.axes import normalise_axis
from weft.foundation.dims import Shape
from weft.foundation.dtypes import SI64
from weft.foundation.lines import user_line
from weft.ops.array.movement import moved, permuted
from weft.ops.capture_recipes import captured
from weft.ops.graph.context import arena_for
from weft.ops.graph.node import Node
from weft.ops.session import Handle
from weft.ops.tensor import Tensor, from_array
from weft.ptir.literal import TensorLiteral, literal
from weft.ptir.ops.indexing import DynamicSlice
from weft.ptir.ops.movement import Reshape, Slice

_FEWEST: Final = 8
"""So many tensors are put together in these ways at least; of fewer each is an operand."""


Join = Callable[[Sequence[NDArray[Any]]], NDArray[Any]]


def joined_data(tensors: Sequence[Tensor], join: Join) -> Tensor | None:
    """What NumPy makes of many tensors of one dtype that are computed; None where they are not, or
    are somewhere else than in the host's memory."""
    nodes = [tensor._node for tensor in tensors]
    arena = arena_for(nodes[0])
    here = all(node.arena.backend is arena.backend for node in nodes)
    alike = len({node.tensor.dtype for node in nodes}) == 1
    if len(nodes) < _FEWEST or arena.tracing or not here or not alike:
        return None
    arrays = [_array_of_node(node) for node in nodes]
    known = [array for array in arrays if array is not None]
    if len(known) < len(arrays):
        return None
    return from_array(join(known), arena, any(tensor.requires_grad for tensor in tensors))


def _array_of_node(node: Node) -> NDArray[Any] | None:
    storage = node.storage
    if isinstance(storage, TensorLiteral):
        return storage.array
    return storage if isinstance(storage, np.ndarray) else None


class _Part(NamedTuple):
    """A window of a tensor."""

    source: Node
    start: tuple[int, ...]
    sizes: tuple[int, ...]


def stacked_parts(tensors: Sequence[Tensor], axis: int) -> Tensor | None:
    """Tensors along a new axis, where they are parts of one tensor that one instruction
    can read; None where they are not."""
    if len(tensors) < _FEWEST or len({id(tensor._node.type) for tensor in tensors}) > 1:
        return None
    found = _windows_of_tensors(tensors)
    if found is None:
        return None
    source, sizes = found[0].source, found[0].sizes
    shape = [dim for dim in source.tensor.shape if isinstance(dim, int)]
    chosen = tuple(k for k, (size, dim) in enumerate(zip(sizes, shape, strict=True)) if size < dim)
    if not chosen or any(sizes[k] != 1 for k in chosen):
        return None
    starts = np.array([part.start for part in found], np.int64)[:, list(chosen)]
    places = np.ravel_multi_index(tuple(starts.T), [shape[k] for k in chosen])
    wanted = any(tensor.requires_grad for tensor in tensors)
    arena = arena_for(source)
    operands = [
        Tensor(source, wanted),
        Tensor(arena.constant(literal(places.tolist(), SI64))),
    ]
    at = normalise_axis(axis, tensors[0].ndim + 1)
    made: Tensor = captured(_take_windows, operands, user_line(), chosen, tensors[0].shape, at)
    return made


def _windows_of_tensors(tensors: Sequence[Tensor]) -> list[_Part] | None:
    """The windows that the tensors are; None where one is none, or they are unlike one another."""
    found: list[_Part] = []
    for tensor in tensors:
        part = _window_of_node(tensor._node)
        if part is None or (found and (part.source, part.sizes) != found[0][::2]):
            return None
        found.append(part)
    return found


def _window_of_node(node: Node) -> _Part | None:
    """The window that a node is, if it stands at a known place and nobody has computed it."""
    operands, form = node.operands, node.form
    while form is not None and isinstance(form.op, Reshape) and operands:
        node = operands[0]
        operands, form = node.operands, node.form
    if form is None or not operands or node.storage is not None:
        return None
    source = operands[0]
    if not all(isinstance(dim, int) for dim in source.tensor.shape):
        return None
    if isinstance(form.op, Slice):
        return _Part(source, form.op.starts, form.op.sizes)
    start = operands[1].storage if isinstance(form.op, DynamicSlice) else None
    if not isinstance(start, TensorLiteral) or not isinstance(form.op, DynamicSlice):
        return None
    sizes = form.op.sizes
    return _Part(source, _in_range(start.array.tolist(), source.tensor.shape, sizes), sizes)


def _in_range(start: list[int], shape: Shape, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """A start as `dynamic_slice` takes it: moved to where the window fits."""
    limits = [int(dim) - size for dim, size in zip(shape, sizes, strict=True)]
    return tuple(min(max(at, 0), limit) for at, limit in zip(start, limits, strict=True))


def _take_windows(
    x: Handle, places: Handle, chosen: tuple[int, ...], shape: Shape, axis: int
) -> Handle:
    """The windows at some places of the chosen axes, each in a shape, along a new axis."""
    others = [k for k in range(x.rank) if k not in chosen]
    sizes = [int(x.shape[k]) for k in chosen]
    table = permuted(x, [*chosen, *others]).reshape(
        (math.prod(sizes), *(x.shape[k] for k in others))
    )
    count = places.shape[0]
    return moved(table.take(places).reshape((count, *shape)), [0], axis)
