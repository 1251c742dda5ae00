"""A cost estimate of kernels before planning: operations, and bytes to and from memory.

Every tensor counts once, however often it is read: a row or tile that is read again is on chip. The
exception are rows too long to keep, which are read again for each reduction over them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from weft.foundation.dtypes import F32, DType
from weft.foundation.errors import InternalError
from weft.foundation.index_expr import bounds, coefficient, linear
from weft.foundation.scalar import FUNCTIONS
from weft.region.forms.cuts import Cut, cut_of
from weft.region.forms.multiplied import multiplies_numbers
from weft.region.forms.shared_slides import SharedSlide, find_place
from weft.region.forms.slides import Slide
from weft.region.forms.sliding import Sliding
from weft.region.forms.staged import find_staged, strip_rows
from weft.region.ir import (
    AxisIndex,
    Binary,
    Cast,
    Check,
    Const,
    Fold,
    Kernel,
    Let,
    Output,
    Read,
    Reduce,
    Select,
    Tensor,
    Unary,
    Words,
    row_major,
    walk,
)
from weft.region.row_reads import longest_row, passes_over_rows, points_of, row_bytes
from weft.region.shared_price import shared_seconds, shared_shape
from weft.region.slide_price import slide_seconds, slide_shape
from weft.target.roofline import Work, time_estimate
from weft.target.target import Kind, Target

_OPERATIONS: Final = {str(fn): row.operations for fn, row in FUNCTIONS.items()}
# Ten rounds, of two products of 32 bits each of which both halves are used, for four words of which
# three are thrown away.
PHILOX: Final = 400
"""What one random word costs where its neighbours are not wanted: no vector unit multiplies so."""
_CACHED_WHOLE: Final = 1 << 20
"""Bytes of a tensor that every unit of a GPU keeps near by."""
# What is read again comes from a cache, which is no faster than this where it lies in other rows:
# see `_reread_bytes` for the measurement.
_OF_A_REREAD: Final = 0.5
"""Of the time that a byte takes from memory, what one takes that was read before."""
_OF_A_GATHER: Final = 2
"""Operations on whole vectors that take a CPU as long as gathering one element. Bilinear samples of
bilinear samples, each made anew for four others, took 29 ns an element (Emerald Rapids)."""
_SECTOR: Final = 32
"""Bytes of memory that a GPU stores at a time."""
_FREE: Final = (Read, Const, Cast, AxisIndex)
"""What costs no operation."""


def operations_of(fn: str) -> int:
    """About how many operations a function of one element takes."""
    return _OPERATIONS.get(fn, 1)


def kernel_seconds(kernel: Kernel, tensors: Mapping[str, Tensor], target: Target) -> float:
    """The time of one kernel, its launch included."""
    work = kernel_work(kernel, tensors, target)
    return time_estimate(target, work) + target.rates.launch_seconds


def nanoseconds(seconds: float) -> int:
    """An estimate as artifacts have it."""
    return min(round(seconds * 1e9), (1 << 63) - 1)


def kernel_work(kernel: Kernel, tensors: Mapping[str, Tensor], target: Target) -> Work:
    """Operations and bytes of one kernel."""
    if kernel.stages:
        return _staged_work(kernel, tensors, target)
    whole = kernel.opaque.inputs if kernel.opaque is not None else ()
    moved = sum(tensors[name].bytes for name in kernel.inputs if name in whole) if whole else 0
    moved += sum(_read_bytes(kernel, tensors).values()) + _reread_bytes(kernel, tensors, target)
    for output in kernel.outputs:
        moved += points_of(kernel, kernel.let(output.value).axes if kernel.body else ()) * (
            _stored_bytes(kernel, output, tensors, target)
        )
    if kernel.opaque is not None:
        moved += sum(tensors[output.tensor].bytes for output in kernel.outputs)
    moved *= _passes(kernel, tensors, target)
    lets = kernel.lets
    matrix = vector = 0.0
    operations = 0
    gathers = target.kind is Kind.CPU
    for let in walk(kernel.body):
        if gathers and isinstance(let.expr, Read) and let.expr.places:
            vector += _gather_seconds(kernel, let, let.expr, target)
        if not isinstance(let.expr, _FREE):
            multiplied, computed, count = _let_work(kernel, let, lets, target)
            matrix += multiplied
            vector += computed
            operations += count
    return Work(matrix, vector, moved, operations)


def _gather_seconds(kernel: Kernel, let: Let, read: Read, target: Target) -> float:
    """The time of reading elements at places that data name, on a CPU: one by one, where the places
    differ along the last axis of the results, which vectors run along."""
    results = [kernel.let(output.value).axes for output in kernel.outputs]
    last = {axes[-1] for axes in results if axes}
    if all(last.isdisjoint(kernel.let(place.value).axes) for place in read.places):
        return 0.0
    operations = points_of(kernel, let.axes) * _OF_A_GATHER * target.lanes(F32)
    return operations / target.vector_rate(F32)


def _stored_bytes(
    kernel: Kernel, output: Output, tensors: Mapping[str, Tensor], target: Target
) -> int:
    """What storing an element takes. Lanes that multiply single numbers have neighbouring columns:
    where these lie apart, each element is a store by itself."""
    tensor = tensors[output.tensor]
    if target.kind is Kind.GPU and kernel.roles is not None and multiplies_numbers(kernel, target):
        place = linear(output.index, row_major(tensor.shape))
        if kernel.roles.n and coefficient(place, kernel.roles.n[-1]) != 1:
            return _SECTOR
    return tensor.dtype.storage_bytes


def _staged_work(kernel: Kernel, tensors: Mapping[str, Tensor], target: Target) -> Work:
    """The operations of all stages, with the rows that pieces compute again, and the bytes of what
    is in memory."""
    form = find_staged(kernel)
    if isinstance(form, str):
        raise InternalError(f"the stages of kernel {kernel.name} do not slide: {form}")
    known, cut = kernel.with_locals(tensors), Cut(strip_rows(kernel, form), 0)
    if target.kind is Kind.CPU:
        cut = cut_of(kernel, form, target)
    strip = cut.rows
    place = find_place(kernel, tensors, target) if target.kind is Kind.GPU else ""
    if not isinstance(place, str):
        strip, seconds = _least_seconds(place, tensors, target)
    own = {stage.name for stage in kernel.stages}
    total, read = Work(), dict[str, int]()
    # A strip begins with rows of each stage that the strip above it computes too: those by which
    # the hull of a row reaches beyond one row; and tiles have columns that those beside them have.
    for number, part in enumerate(kernel.parts):
        ring = form.rings[number] if number < len(form.rings) else None
        again = ring.high - ring.low if ring is not None else 0
        work = kernel_work(part, known, target)
        share = (strip + again) / strip * cut.share(number)
        operations = round(work.operations * share)
        total += Work(work.matrix_seconds * share, work.vector_seconds * share, 0, operations)
        # Rows that one part has read are near when another one reads them.
        for name, size in _read_bytes(part, known).items():
            if name not in own:
                read[name] = min(known[name].bytes, read.get(name, 0) + size)
    moved = sum(read.values())
    for output in kernel.outputs:
        stored = points_of(kernel, kernel.let(output.value).axes)
        moved += stored * tensors[output.tensor].dtype.storage_bytes
    if not isinstance(place, str):
        # That model has the rows computed twice, and warps that wait, in it.
        return Work(vector_seconds=seconds, bytes=moved, operations=total.operations)
    return total + Work(bytes=moved)


def _least_seconds(
    place: Slide | SharedSlide, tensors: Mapping[str, Tensor], target: Target
) -> tuple[int, float]:
    """The rows of the best strips of a kernel on a GPU, and the time that it computes."""
    each = slide_operations(place, tensors, target)
    if isinstance(place, Slide):
        shape = slide_shape(place, each, target)
        return shape.rows, slide_seconds(place, each, target, shape)
    found = shared_shape(place, each, target)
    return found.rows, shared_seconds(place, each, target, found)


def slide_operations(slide: Sliding, tensors: Mapping[str, Tensor], target: Target) -> list[float]:
    """The operations of a point of every part of a kernel whose rows slide."""
    known, found = slide.kernel.with_locals(tensors), []
    for part in slide.kernel.parts:
        points = math.prod(a.size for a in part.axes if not a.reduce)
        work = kernel_work(part, known, target)
        found.append(work.vector_seconds * target.vector_rate(F32) / max(1, points))
    return found


def steps_of(kernel: Kernel) -> int:
    """How many elements a kernel goes through for the value that takes the most. A reduction goes
    along its axes even where its operand is the same all along them."""
    if kernel.stages:
        return max(map(steps_of, kernel.parts))
    along = (
        (*let.axes, *(let.expr.axes if isinstance(let.expr, Reduce | Fold) else ()))
        for let in kernel.body
    )
    return max((points_of(kernel, tuple(dict.fromkeys(axes))) for axes in along), default=0)


def _read_bytes(kernel: Kernel, tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Bytes read of each tensor: all of it, or fewer where fewer points are read."""
    found: dict[str, int] = {}
    for let in walk(kernel.body):
        if isinstance(let.expr, Read):
            tensor = tensors[let.expr.tensor]
            here = points_of(kernel, let.axes) * tensor.dtype.storage_bytes
            total = found.get(tensor.name, 0) + here
            found[tensor.name] = min(tensor.bytes, total)
    return found


def _reread_bytes(kernel: Kernel, tensors: Mapping[str, Tensor], target: Target) -> int:
    """What reading large tensors at several places takes on a GPU, as bytes of memory: they come
    out of caches, which are no faster than this where elements lie in other rows. A pool's gradient
    that reads three tensors at nine places each took seven times the time of its bytes."""
    if target.kind is not Kind.GPU or kernel.roles is not None:
        return 0
    taken: dict[str, int] = {}
    for let in walk(kernel.body):
        if isinstance(let.expr, Read) and tensors[let.expr.tensor].bytes >= _CACHED_WHOLE:
            tensor = tensors[let.expr.tensor]
            here = points_of(kernel, let.axes) * tensor.dtype.storage_bytes
            if let.expr.guards:
                here = round(here * share_inside(kernel, let.expr))
            taken[tensor.name] = taken.get(tensor.name, 0) + here
    more = sum(max(0, count - tensors[name].bytes) for name, count in taken.items())
    return round(more * _OF_A_REREAD)


def share_inside(kernel: Kernel, read: Read) -> float:
    """Of the points of a guarded read, about how many are inside."""
    share, ranges = 1.0, kernel.ranges_of(read)
    for guard in read.guards:
        low, high = bounds(guard.expr, ranges)
        inside = min(high, guard.size - 1) - max(low, 0) + 1
        share *= max(0, inside) / (high - low + 1)
    return share


def _passes(kernel: Kernel, tensors: Mapping[str, Tensor], target: Target) -> int:
    """How often the rows are read: once if they fit on chip, else as often as they are needed."""
    if kernel.roles is not None:
        return 1
    # A GPU keeps rows in registers, and of tensors that are made of one another only one.
    kept = longest_row if target.kind is Kind.GPU else row_bytes
    return 1 if kept(kernel, tensors) <= target.row_bytes else passes_over_rows(kernel)


def _let_work(
    kernel: Kernel, let: Let, lets: Mapping[str, Let], target: Target
) -> tuple[float, float, int]:
    """The seconds of matrix units and of others that a value takes, and its operations."""
    points = points_of(kernel, let.axes)
    match let.expr:
        case Unary(fn=fn) | Binary(fn=fn):
            roles = kernel.roles
            if roles is not None and fn == "mul" and _is_product(let, kernel):
                return 0.0, 0.0, 0
            return _vector_cost(points * operations_of(fn), let.dtype, target)
        case Select() | Check():
            return _vector_cost(points, let.dtype, target)
        case Words():
            return _vector_cost(points * PHILOX, let.dtype, target)
        case Reduce(axes=axes, value=value):
            count = points * points_of(kernel, axes)
            if kernel.roles is not None and kernel.roles.contraction == let.name:
                dtype = lets[kernel.roles.lhs].dtype
                # A product and an addition for each point. The product's own value is left out
                # above.
                seconds = 2 * count / target.matrix_rate(dtype)
                return seconds, 0.0, 2 * count
            return _vector_cost(count, lets[value].dtype, target)
        case Fold(axes=axes, step=step):
            each = sum(operations_of(getattr(inner.expr, "fn", "")) for inner in step)
            return _vector_cost(points * points_of(kernel, axes) * each, let.dtype, target)
        case _:
            return 0.0, 0.0, 0


def _is_product(let: Let, kernel: Kernel) -> bool:
    return set(kernel.roles.k if kernel.roles else ()) <= set(let.axes)


def _vector_cost(operations: int, dtype: DType, target: Target) -> tuple[float, float, int]:
    return 0.0, operations / target.vector_rate(dtype), operations
