"""Ops that stay whole, taken apart for a GPU: a kernel of their own for each step.

    order of long rows    -->  runs that a block sorts, then pairs of runs merged, run after run
    running, of long columns -->  each part by itself, then their ends, then both together
    scatter of many       -->  the order of the indices, then all updates of a place one after the
                               other, each place by a thread of its own

What comes out is the same: sorting is stable, and updates are combined in the order they have. Of
running sums in parts the last digits differ from those of one long sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from weft.foundation.dtypes import SI64, DType
from weft.foundation.whole_ops import (
    Continued,
    Ends,
    Gathered,
    Merge,
    Order,
    Running,
    Runs,
    Scatter,
    WholeOp,
)
from weft.region.ir import Kernel, OpaqueCall, Output, Pattern, Tensor

Parts = tuple[tuple[Kernel, ...], tuple[Tensor, ...]]
LONGEST_SORTED: Final = 8192
"""Elements of a row that one block sorts."""
RUN: Final = 4096
_MANY_UPDATES: Final = 1024
"""Updates from which on sorting them is worth while."""
_SMALL_FLOAT: Final = 16
_LONG_COLUMN: Final = 1 << 14
"""Elements from which on a column is cut."""
_FEW_COLUMNS: Final = 256
_CHUNK: Final = 1024
"""Elements of a part, at least."""
_MOST_PARTS: Final = 1024
"""Of all columns together."""


def whole_in_parts(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Parts:
    """The kernels that take the place of one that carries an op whole, and what is between them."""
    call = kernel.opaque
    if call is None or not isinstance(call.op, WholeOp):
        return (kernel,), ()
    match call.op:
        case Order(outer=outer, length=length) if length > LONGEST_SORTED and outer:
            return _order(kernel, call, call.op)
        case Running() if _parts_of(call.op, tensors[call.inputs[0]].dtype) > 1:
            return _running(kernel, call, call.op, tensors[call.inputs[0]].dtype)
        case Scatter() if _is_worth_sorting(call.op, tensors[call.inputs[0]]):
            return _scatter(kernel, call, call.op)
    return (kernel,), ()


def _is_worth_sorting(op: Scatter, x: Tensor) -> bool:
    """Whether updates are many, or are combined in a wider dtype than the result's; those with an
    index of their own for each column have no order in common."""
    if (op.each and op.width > 1) or not op.count or not math.prod(x.shape):
        return False
    rounded = op.fn == "add" and x.dtype.is_float and x.dtype.bits <= _SMALL_FLOAT
    return rounded or op.count >= _MANY_UPDATES


def _order(kernel: Kernel, call: OpaqueCall, op: Order) -> Parts:
    (x,) = call.inputs
    # What a CPU would sort in, a GPU does not need.
    (result,) = (o for o, n in zip(kernel.outputs, call.results, strict=True) if n == 0)
    made: list[Kernel] = []
    between: list[Tensor] = []
    run = RUN
    steps: list[tuple[WholeOp, tuple[str, ...]]] = [
        (Runs(op.outer, op.length, run, op.descending), (x,))
    ]
    while run < op.length:
        last = 2 * run >= op.length
        count = op.count if last else op.length
        between.append(_positions(f"{kernel.name}_runs{len(between)}", op.outer, op.length))
        merge = Merge(op.outer, op.length, run, count, op.descending)
        steps.append((merge, (x, between[-1].name)))
        run *= 2
    targets = [Output(tensor.name, "", ()) for tensor in between] + [result]
    for number, ((step, inputs), output) in enumerate(zip(steps, targets, strict=True)):
        name = kernel.name if output is result else f"{kernel.name}_step{number}"
        made.append(_carried(name, step, inputs, output))
    return tuple(made), tuple(between)


def _scatter(kernel: Kernel, call: OpaqueCall, op: Scatter) -> Parts:
    x, index, update = call.inputs
    order = _positions(f"{kernel.name}_order", op.outer, op.count)
    sorting = _carried(
        f"{kernel.name}_sorting",
        Order(op.outer, op.count, op.count),
        (index,),
        Output(order.name, "", ()),
    )
    assert sorting.opaque is not None
    sorted_by, between = whole_in_parts(sorting, {})
    gathered = Gathered(op.fn, op.outer, op.rows, op.width, op.count)
    whole = replace(call, op=gathered, inputs=(x, index, update, order.name))
    return (*sorted_by, replace(kernel, opaque=whole)), (order, *between)


def _parts_of(op: Running, dtype: DType) -> int:
    """Into how many parts long columns are cut: a divisor of their length. Narrow floats, each of
    whose results is rounded once, are not."""
    columns = op.outer * op.width
    narrow = dtype.is_float and dtype.bits <= _SMALL_FLOAT
    if narrow or op.length < _LONG_COLUMN or not 0 < columns <= _FEW_COLUMNS:
        return 1
    most = op.length // _CHUNK
    return max(n for n in range(1, most + 1) if op.length % n == 0 and n * columns <= _MOST_PARTS)


def _running(kernel: Kernel, call: OpaqueCall, op: Running, dtype: DType) -> Parts:
    (x,), parts = call.inputs, _parts_of(op, dtype)
    chunk = op.length // parts
    shape = (op.outer, parts, op.width)
    each = Tensor(f"{kernel.name}_each", dtype, (op.outer, parts, chunk, op.width))
    ends = Tensor(f"{kernel.name}_ends", dtype, shape)
    before = Tensor(f"{kernel.name}_before", dtype, shape)
    steps: list[tuple[WholeOp, tuple[str, ...], Tensor]] = [
        (Running(op.fn, op.outer * parts, chunk, op.width, op.reverse), (x,), each),
        (Ends(op.outer, parts, chunk, op.width, op.reverse), (each.name,), ends),
        (Running(op.fn, op.outer, parts, op.width, op.reverse), (ends.name,), before),
    ]
    made = [
        _carried(f"{kernel.name}_step{number}", step, inputs, Output(tensor.name, "", ()))
        for number, (step, inputs, tensor) in enumerate(steps)
    ]
    last = Continued(op.fn, op.outer, parts, chunk, op.width, op.reverse)
    whole = replace(call, op=last, inputs=(each.name, before.name))
    return (*made, replace(kernel, opaque=whole)), (each, ends, before)


def _positions(name: str, outer: int, length: int) -> Tensor:
    return Tensor(name, SI64, (outer, length))


def _carried(name: str, op: WholeOp, inputs: tuple[str, ...], output: Output) -> Kernel:
    call = OpaqueCall(op, inputs, (0,))
    return Kernel(name, Pattern.OPAQUE, (), (), (output,), opaque=call)
