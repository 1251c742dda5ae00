"""Where the elements of a tensor lie in a buffer, and what ops that compute nothing make of it."""

from __future__ import annotations

from dataclasses import dataclass

from weft.ptir.op import Op
from weft.ptir.ops.elementwise import StopGradient
from weft.ptir.ops.movement import BroadcastTo, Reshape, Slice, Transpose
from weft.ptir.ops.scheduling import Barrier
from weft.ptir.types import TensorType

MOVES = (StopGradient, Barrier, Reshape, Slice, Transpose, BroadcastTo)
"""The ops whose result may lie where their operand does."""


@dataclass(frozen=True, slots=True)
class View:
    """Where a tensor lies: element `i` begins at byte `offset + sum(i * strides)` of a buffer."""

    buffer: int
    offset: int
    strides: tuple[int, ...]


def _dense_strides(kind: TensorType) -> tuple[int, ...]:
    strides: list[int] = []
    step = kind.dtype.storage_bytes
    for dim in reversed(kind.static_shape):
        strides.append(step)
        step *= dim
    return tuple(reversed(strides))


def whole_view(buffer: int, kind: TensorType) -> View:
    """A tensor that fills a buffer from its beginning."""
    return View(buffer, 0, _dense_strides(kind))


def is_dense(view: View, kind: TensorType) -> bool:
    """Whether the elements lie in row-major order without gaps; the stride of a dim of size 1 does
    not matter."""
    if 0 in kind.shape:
        return True
    wanted = zip(kind.shape, view.strides, _dense_strides(kind), strict=True)
    return all(dim == 1 or found == dense for dim, found, dense in wanted)


def move_view(op: Op, view: View, source: TensorType, result: TensorType) -> View | None:
    """Where the result of an op that computes nothing lies; None where it must be copied."""
    match op:
        case StopGradient() | Barrier():
            return view
        case Reshape():
            dense = View(view.buffer, view.offset, _dense_strides(result))
            return dense if is_dense(view, source) else None
        case Slice():
            begin = sum(s * step for s, step in zip(op.starts, view.strides, strict=True))
            return View(view.buffer, view.offset + begin, view.strides)
        case Transpose():
            return View(view.buffer, view.offset, tuple(view.strides[axis] for axis in op.perm))
        case BroadcastTo():
            return View(view.buffer, view.offset, _repeated_strides(view, source, result))
    return None


def _repeated_strides(view: View, source: TensorType, result: TensorType) -> tuple[int, ...]:
    added = result.rank - source.rank
    kept = zip(source.shape, result.shape[added:], view.strides, strict=True)
    return (*(0 for _ in range(added)), *(s if dim == size else 0 for dim, size, s in kept))
