"""Picking and placing by index."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from weft.foundation.dtypes import SI32, SI64
from weft.foundation.errors import SpecViolation
from weft.interop.onnx.rules.elementwise import wrapped
from weft.interop.onnx.table import Call, rule
from weft.interop.onnx.values import Array, Value, axis_in, value_as_tensor, wf
from weft.ops import functional
from weft.ops.tensor import Tensor

_REDUCE: Final = {"none": "replace", "add": "add", "mul": "prod", "max": "max", "min": "min"}


def places(indices: Tensor, size: Any) -> Value:
    """Indices from 0, of those that may count from the end."""
    found = indices if indices.dtype in (SI32, SI64) else wrapped(indices, SI64)
    return wf.where(found < 0, found + int(size), found)


@rule("Gather")
def gather(call: Call, x: Tensor, indices: Tensor) -> Value:
    axis = call.attr("axis", 0)
    if not -x.ndim <= axis < x.ndim:
        raise SpecViolation("InvalidAttributeValue", f"{x.type} has no axis {axis}")
    axis %= x.ndim
    flat = places(indices, x.shape[axis]).reshape((-1,) if indices.size else (0,))
    made = wf.take(x, flat, axis=axis)
    return made.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


@rule("GatherElements")
def gather_elements(call: Call, x: Tensor, indices: Tensor) -> Value:
    axis = axis_in(call.attr("axis", 0), x.ndim)
    return functional.gather(x, places(indices, x.shape[axis]), axis)


def _flat_index(indices: Tensor, sizes: list[int]) -> Value:
    """The number of the element that the last axis of the indices names."""
    found: Any = wf.zeros(indices.shape[:-1], dtype=SI64)
    for number, size in enumerate(sizes):
        found = found * size + places(indices[..., number], size)
    return found


@rule("GatherND")
def gather_nd(call: Call, x: Tensor, indices: Tensor) -> Value:
    batch, width = call.attr("batch_dims", 0), int(indices.shape[-1])
    sizes = [int(size) for size in x.shape]
    groups, rest = math.prod(sizes[:batch]), sizes[batch + width :]
    indexed = sizes[batch : batch + width]
    elements = math.prod(indexed)
    flat = _flat_index(indices, indexed).reshape(
        (groups, -1) if groups and indices.size else (0, 0)
    )
    start = value_as_tensor(np.arange(groups, dtype=np.int64)[:, None] * elements)
    rows = x.reshape((groups * elements, *rest))
    made = wf.take(rows, (flat + start).reshape((-1,) if flat.size else (0,)), axis=0)
    return made.reshape((*indices.shape[:-1], *rest))


@rule("ScatterElements", "Scatter")
def scatter_elements(call: Call, x: Tensor, indices: Tensor, updates: Tensor) -> Value:
    axis = axis_in(call.attr("axis", 0), x.ndim)
    how = _REDUCE[call.choice("reduction", "none", _REDUCE)]
    if indices.size == 0:
        return x
    return functional.scatter(x, places(indices, x.shape[axis]), updates, axis, reduce=how)


@rule("ScatterND")
def scatter_nd(call: Call, x: Tensor, indices: Tensor, updates: Tensor) -> Value:
    width = int(indices.shape[-1])
    sizes = [int(size) for size in x.shape]
    rest = math.prod(sizes[width:])
    how = _REDUCE[call.choice("reduction", "none", _REDUCE)]
    count = math.prod(map(int, indices.shape[:-1]))
    if not count * rest:
        return x
    flat = _flat_index(indices, sizes[:width]).reshape((count, 1))
    rows = x.reshape((math.prod(sizes[:width]), rest))
    where = wf.broadcast_to(flat, (count, rest))
    made = functional.scatter(rows, where, updates.reshape((count, rest)), 0, reduce=how)
    return made.reshape(x.shape)


@rule("OneHot", values=(1,))
def one_hot(call: Call, indices: Tensor, depth: Array, values: Tensor) -> Value:
    count = int(depth.reshape(-1)[0])
    whole = indices.astype(SI64) if indices.dtype.is_float else wrapped(indices, SI64)
    hot = functional.one_hot(
        wf.where(whole < 0, whole + count, whole), count, axis=call.attr("axis", -1), dtype="i1"
    )
    return wf.where(hot, values[1], values[0])


@rule("TensorScatter")
def tensor_scatter(
    call: Call, cache: Tensor, update: Tensor, starts: Tensor | None = None
) -> Value:
    axis = axis_in(call.attr("axis", -2), cache.ndim)
    length, count = int(cache.shape[axis]), int(update.shape[axis])
    steps = value_as_tensor(np.arange(count, dtype=np.int64))
    first = wf.zeros((int(cache.shape[0]),), dtype=SI64) if starts is None else starts
    where = first.astype(SI64).reshape((-1, 1)) + steps.reshape((1, -1))
    if call.choice("mode", "linear", ("linear", "circular")) == "circular":
        where = wf.remainder(where, length)
    shape = [1] * cache.ndim
    shape[0], shape[axis] = int(cache.shape[0]), count
    return functional.scatter(
        cache, wf.broadcast_to(where.reshape(shape), update.shape), update, axis
    )
