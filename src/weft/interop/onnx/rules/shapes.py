"""Shapes: asking for them, changing them, and putting tensors together."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft.foundation.errors import SpecViolation
from weft.foundation.limits import check_bytes, current
from weft.interop.onnx.table import FOLDED, Call, rule
from weft.interop.onnx.tensors import dtype_numbered
from weft.interop.onnx.values import LITERAL, Array, Value, axis_in, dtype_of, value_as_tensor, wf
from weft.ops import functional
from weft.ops.functional.checks import ensure_known
from weft.ops.tensor import Tensor


@rule("Constant", raw=True)
def constant(call: Call) -> Value:
    found = call.node.attributes
    for name, dtype in (("value_float", np.float32), ("value_int", np.int64)):
        for suffix in ("", "s"):
            if name + suffix in found:
                return np.array(found[name + suffix], dtype)
    for name in ("value_string", "value_strings"):
        if name in found:
            return np.array(found[name], object)
    return call.need("value")


@rule("Shape", raw=True)
def shape(call: Call, x: Value) -> Array:
    start, end = call.attr("start", 0), call.attr("end")
    return np.array(_known_sizes(x)[slice(start, end)], np.int64).reshape(-1)


@rule("Size", raw=True)
def size(call: Call, x: Value) -> Array:
    return np.array(math.prod(_known_sizes(x)), np.int64)


def _known_sizes(x: Value) -> tuple[int, ...]:
    return tuple(ensure_known("a size of the operand", dim) for dim in x.shape)


@rule("Reshape", values=(1,))
def reshape(call: Call, x: Tensor, sizes: Array | None = None) -> Value:
    wanted = call.ints(sizes, "shape", [])
    if not call.attr("allowzero", 0):
        zeros = [i for i, size in enumerate(wanted) if size == 0]
        if any(i >= x.ndim for i in zeros):
            raise SpecViolation("ShapeMismatch", f"{wanted} keeps an axis that {x.type} lacks")
        wanted = [x.shape[i] if size == 0 else size for i, size in enumerate(wanted)]
    if -1 in wanted and 0 in wanted:
        left = math.prod(size for size in wanted if size > 0)
        wanted = [0 if size == -1 else size for size in wanted] if left else wanted
    return wf.reshape(x, tuple(wanted))


@rule("Flatten")
def flatten(call: Call, x: Tensor) -> Value:
    axis = call.attr("axis", 1)
    axis = x.ndim if axis == x.ndim else axis_in(axis, x.ndim)
    return wf.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


@rule("Squeeze", values=(1,))
def squeeze(call: Call, x: Tensor, axes: Array | None = None) -> Value:
    wanted = call.ints(axes, "axes")
    return wf.squeeze(x, axis=None if wanted is None else tuple(wanted))


@rule("Unsqueeze", values=(1,))
def unsqueeze(call: Call, x: Tensor, axes: Array | None = None) -> Value:
    wanted = call.ints(axes, "axes", [])
    rank = x.ndim + len(wanted)
    if len({axis % rank for axis in wanted}) != len(wanted) or any(
        not -rank <= axis < rank for axis in wanted
    ):
        raise SpecViolation("InvalidAttributeValue", f"the axes {wanted} are not axes of a result")
    made = {axis % rank for axis in wanted}
    sizes = iter(x.shape)
    return wf.reshape(x, tuple(1 if axis in made else next(sizes) for axis in range(rank)))


@rule("Transpose")
def transpose(call: Call, x: Tensor) -> Value:
    return wf.permute_dims(x, tuple(call.attr("perm", range(x.ndim)[::-1])))


@rule("Concat")
def concat(call: Call, *x: Tensor) -> Value:
    return wf.concat(list(x), axis=call.attr("axis", 1))


@rule("Expand", values=(1,))
def expand(call: Call, x: Tensor, sizes: Array) -> Value:
    return wf.broadcast_to(x, wf.broadcast_shapes(x.shape, tuple(map(int, sizes))))


@rule("Tile", values=(1, 2))
def tile(call: Call, x: Tensor, repeats: Array, axis: Array | None = None) -> Value:
    if axis is not None:  # version 1: how often, along which axis
        counts = [1] * x.ndim
        counts[int(axis.reshape(-1)[0])] = int(repeats.reshape(-1)[0])
        return wf.tile(x, counts)
    return wf.tile(x, [int(each) for each in repeats])


@rule("Split", values=(1,))
def split(call: Call, x: Tensor, sizes: Array | None = None) -> tuple[Tensor, ...]:
    axis = axis_in(call.attr("axis", 0), x.ndim)
    parts = call.ints(sizes, "split")
    length = int(x.shape[axis])
    if parts is None:
        count = call.attr("num_outputs", len(call.node.outputs))
        if count < 1:
            raise SpecViolation("InvalidAttributeValue", f"an axis is split into {count} parts")
        each = -(-length // count)
        parts = [max(0, min(each, length - each * i)) for i in range(count)]
    if sum(parts) != length or min(parts, default=0) < 0:
        raise SpecViolation("ShapeMismatch", f"parts {parts} of an axis of size {length}")
    return tuple(pieces(x, parts, axis))


def pieces(x: Tensor, parts: list[int], axis: int) -> list[Tensor]:
    """Pieces of an axis, of these sizes."""
    found, start = [], 0
    for part in parts:
        at = [slice(None)] * x.ndim
        at[axis] = slice(start, start + part)
        found.append(x[tuple(at)])
        start += part
    return found


@rule("Slice", values=(1, 2, 3, 4))
def slice_(
    call: Call,
    x: Tensor,
    starts: Array | None = None,
    ends: Array | None = None,
    axes: Array | None = None,
    steps: Array | None = None,
) -> Value:
    first, last = call.ints(starts, "starts"), call.ints(ends, "ends")
    along = call.ints(axes, "axes", list(range(len(first))))
    step = [1] * len(first) if steps is None else [int(each) for each in steps]
    at: list[Any] = [slice(None)] * x.ndim
    for axis, start, end, by in zip(along, first, last, step, strict=True):
        size = int(x.shape[axis_in(axis, x.ndim)])
        at[axis_in(axis, x.ndim)] = _python_slice(start, end, by, size)
    return x[tuple(at)]


def _python_slice(start: int, end: int, step: int, size: int) -> slice:
    """Where a slice begins and ends, as Python has it: an end under the first is None."""
    if step == 0:
        raise SpecViolation("InvalidAttributeValue", "a slice has a step of 0")
    first, last, by = slice(start, end, step).indices(size)
    return slice(first, None if last < 0 else last, by)


@rule("Pad", values=(1, 3))
def pad(
    call: Call,
    x: Tensor,
    pads: Array | None = None,
    value: Tensor | None = None,
    axes: Array | None = None,
) -> Value:
    widths = call.ints(pads, "pads", call.attr("paddings"))
    along = list(range(x.ndim)) if axes is None else [axis_in(int(axis), x.ndim) for axis in axes]
    both = [(0, 0)] * x.ndim
    for index, axis in enumerate(along):
        both[axis] = (widths[index], widths[index + len(along)])
    mode = call.choice("mode", "constant", ("constant", "reflect", "edge", "wrap"))
    _check_room([int(d) + low + high for d, (low, high) in zip(x.shape, both, strict=True)], x)
    if mode != "constant":
        return functional.pad(x, both, mode)
    if value is None and not call.attr("value", 0.0):
        return functional.pad(x, both)
    fill = wf.full((), call.attr("value"), dtype=x.dtype) if value is None else value.reshape(())
    inside = functional.pad(wf.ones(x.shape, dtype=wf.bool), both)
    return wf.where(inside, functional.pad(x, both), fill)


def _check_room(sizes: list[int], like: Value) -> None:
    check_bytes(math.prod(sizes) * dtype_of(like).storage_bytes, "the result", current())


@rule("Range", values=(0, 1, 2))
def range_(call: Call, start: Array, limit: Array, delta: Array) -> Value:
    first, last, step = (each.reshape(()) for each in (start, limit, delta))
    if not step:
        raise SpecViolation("InvalidAttributeValue", "a range has a step of 0")
    count = max(math.ceil((float(last) - float(first)) / float(step)), 0)
    _check_room([count], start)
    kind = start.dtype
    if count <= FOLDED:
        return (np.arange(count) * step + first).astype(kind)
    return (wf.arange(count) * step.item() + first.item()).astype(dtype_of(start))


@rule("ConstantOfShape", values=(0,))
def constant_of_shape(call: Call, sizes: Array) -> Value:
    fill = call.attr("value", np.zeros(1, np.float32))
    wanted = [int(each) for each in sizes]
    _check_room(wanted, fill)
    if math.prod(wanted) <= LITERAL:
        return np.full(wanted, fill.reshape(-1)[0], fill.dtype)
    return wf.full(tuple(wanted), fill.reshape(-1)[0].item(), dtype=dtype_of(fill))


@rule("EyeLike")
def eye_like(call: Call, x: Tensor) -> Value:
    dtype = dtype_numbered(call.attr("dtype")) if "dtype" in call.node.attributes else x.dtype
    rows, columns = x.shape
    return wf.eye(rows, columns, k=call.attr("k", 0), dtype=dtype)


@rule("Trilu", values=(1,))
def trilu(call: Call, x: Tensor, k: Array | None = None) -> Value:
    by = 0 if k is None else int(k.reshape(()))
    by = max(-int(x.shape[-2]) - 1, min(by, int(x.shape[-1]) + 1))
    return wf.triu(x, by) if call.attr("upper", 1) else wf.tril(x, by)


@rule("DepthToSpace")
def depth_to_space(call: Call, x: Tensor) -> Value:
    n, c, h, w = x.shape
    block = call.need("blocksize")
    if call.choice("mode", "DCR", ("DCR", "CRD")) == "DCR":
        parts = x.reshape((n, block, block, c // block**2, h, w))
        moved = wf.permute_dims(parts, (0, 3, 4, 1, 5, 2))
    else:
        parts = x.reshape((n, c // block**2, block, block, h, w))
        moved = wf.permute_dims(parts, (0, 1, 4, 2, 5, 3))
    return moved.reshape((n, c // block**2, h * block, w * block))


@rule("SpaceToDepth")
def space_to_depth(call: Call, x: Tensor) -> Value:
    n, c, h, w = x.shape
    block = call.need("blocksize")
    parts = x.reshape((n, c, h // block, block, w // block, block))
    order = (0, 3, 5, 1, 2, 4) if call.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    moved = wf.permute_dims(parts, order)
    return moved.reshape((n, c * block**2, h // block, w // block))


@rule("ReverseSequence", values=(1,))
def reverse_sequence(call: Call, x: Tensor, lengths: Array) -> Value:
    batch = axis_in(call.attr("batch_axis", 1), x.ndim)
    time = axis_in(call.attr("time_axis", 0), x.ndim)
    size = int(x.shape[time])
    steps = np.arange(size)[None, :]
    ends = lengths.reshape(-1, 1)
    places = np.where(steps < ends, ends - 1 - steps, steps).astype(np.int64)
    if time == 0:
        places = places.T
    wanted = [1] * x.ndim
    wanted[batch], wanted[time] = int(x.shape[batch]), size
    whole = np.broadcast_to(places.reshape(wanted), tuple(map(int, x.shape)))
    return wf.take_along_axis(x, value_as_tensor(np.ascontiguousarray(whole)), axis=time)


@rule("CenterCropPad", values=(1,))
def center_crop_pad(call: Call, x: Tensor, sizes: Array) -> Value:
    axes = [axis_in(axis, x.ndim) for axis in call.attr("axes", range(x.ndim))]
    at: list[Any] = [slice(None)] * x.ndim
    widths = [(0, 0)] * x.ndim
    for axis, wanted in zip(axes, (int(each) for each in sizes), strict=True):
        have = int(x.shape[axis])
        if wanted < have:
            start = (have - wanted) // 2
            at[axis] = slice(start, start + wanted)
        else:
            low = (wanted - have) // 2
            widths[axis] = (low, wanted - have - low)
    return functional.pad(x[tuple(at)], widths)


@rule("Optional", raw=True)
def optional(call: Call, x: Value = None) -> Value:
    return x
