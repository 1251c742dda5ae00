"""ONNX operators whose results have data-dependent sizes: their operands are read, so a traced
function cannot have them, unless they are constants.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.foundation.errors import SpecViolation
from weft.interop.onnx.table import Call, rule
from weft.interop.onnx.values import Array, Value, array, is_array, value_as_tensor, wf


@rule("NonZero", raw=True)
def non_zero(call: Call, x: Value) -> Array:
    found = array(x, "the operand of NonZero")
    return np.array(np.nonzero(np.atleast_1d(found)), np.int64).reshape(max(found.ndim, 1), -1)


@rule("Compress", raw=True)
def compress(call: Call, x: Value, condition: Value) -> Value:
    kept = np.flatnonzero(array(condition, "the condition of Compress")).astype(np.int64)
    axis = call.attr("axis")
    size = int(np.prod(x.shape)) if axis is None else int(x.shape[axis])
    if kept.size and kept[-1] >= size:
        raise SpecViolation("GatherIndexOutOfBounds", f"place {kept[-1]} of an axis of size {size}")
    if is_array(x):
        return np.take(x, kept, axis=axis)
    flat = x.reshape((size,)) if axis is None else x
    return wf.take(flat, value_as_tensor(kept), axis=axis or 0)


@rule("Unique", raw=True)
def unique(call: Call, x: Value) -> tuple[Value, ...]:
    axis = call.attr("axis")
    elements = array(x, "the operand of Unique")
    rows = elements.reshape(-1) if axis is None else elements
    along = 0 if axis is None else axis
    _, first, inverse, counts = np.unique(
        rows, return_index=True, return_inverse=True, return_counts=True, axis=along
    )
    inverse = inverse.reshape(-1)
    if not call.attr("sorted", 1):
        order = np.argsort(first, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        first, inverse, counts = first[order], rank[inverse], counts[order]
    whole = tuple(each.astype(np.int64) for each in (first, inverse, counts))
    if is_array(x):
        return np.take(rows, first, axis=along), *whole
    source = x.reshape((-1,) if elements.size else (0,)) if axis is None else x
    return wf.take(source, value_as_tensor(whole[0]), axis=along), *whole


# -- boxes -----------------------------------------------------------------------------------------


@rule("NonMaxSuppression", raw=True)
def non_max_suppression(
    call: Call, boxes: Value, scores: Value, most: Value = None, overlap: Value = None,
    least: Value = None,
) -> Array:  # fmt: skip
    def number(value: Value, default: Any) -> Any:
        return default if value is None else array(value).reshape(-1)[0]

    if len(boxes.shape) != 3 or len(scores.shape) != 3 or int(boxes.shape[-1]) != 4:
        raise SpecViolation("RankMismatch", "boxes are [batch, box, 4], scores [batch, class, box]")
    limit, share, floor = int(number(most, 0)), number(overlap, 0.0), number(least, None)
    corners = _corners(array(boxes, "boxes"), bool(call.attr("center_point_box", 0)))
    found = []
    for batch, table in enumerate(array(scores, "scores")):
        for kind, row in enumerate(table):
            for box in _keep_boxes(corners[batch], row, limit, share, floor):
                found.append([batch, kind, box])
    return np.array(found, np.int64).reshape(-1, 3)


def _corners(boxes: Array, centred: bool) -> Array:
    """Boxes as their low and high corners."""
    if centred:
        x, y, w, h = np.moveaxis(boxes, -1, 0)
        return np.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], -1)
    low = np.minimum(boxes[..., :2], boxes[..., 2:])
    return np.concatenate([low, np.maximum(boxes[..., :2], boxes[..., 2:])], -1)


def _keep_boxes(boxes: Array, scores: Array, limit: int, share: Any, floor: Any) -> list[int]:
    order = np.argsort(-scores, kind="stable")
    if floor is not None:
        order = order[scores[order] > floor]
    found: list[int] = []
    for box in order:
        if len(found) == limit:
            break
        if not found or not np.any(_overlaps(boxes[box], boxes[found]) > share):
            found.append(int(box))
    return found


def _overlaps(box: Array, others: Array) -> Array:
    """The part of both together that two boxes share."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    shared = np.prod(np.maximum(high - low, 0), axis=-1)
    areas = np.prod(others[:, 2:] - others[:, :2], axis=-1) + np.prod(box[2:] - box[:2])
    return np.asarray(np.where(shared > 0, shared / np.maximum(areas - shared, 1e-30), 0.0))
