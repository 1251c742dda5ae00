"""Ops that stay whole, taken apart for a GPU: a kernel of their own for each step.

    order of long rows    -->  runs that a block sorts, then pairs of runs merged, run after run
    scatter of many       -->  the order of the indices, then all updates of a place one after the
                               other, each place by a thread of its own

What comes out is the same: sorting is stable, and updates are combined in the order they have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from weft.foundation.dtypes import SI64
from weft.foundation.whole_ops import Gathered, Merge, Order, Runs, Scatter, WholeOp
from weft.region.ir import Kernel, OpaqueCall, Output, Pattern, Tensor

Parts = tuple[tuple[Kernel, ...], tuple[Tensor, ...]]
LONGEST_SORTED: Final = 8192
"""Elements of a row that one block sorts."""
RUN: Final = 4096
_MANY_UPDATES: Final = 1024
"""Updates from which on sorting them is worth while."""
_SMALL_FLOAT: Final = 16


def whole_in_parts(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Parts:
    """The kernels that take the place of one that carries an op whole, and what is between them."""
    call = kernel.opaque
    if call is None or not isinstance(call.op, WholeOp):
        return (kernel,), ()
    match call.op:
        case Order(outer=outer, length=length) if length > LONGEST_SORTED and outer:
            return _order(kernel, call, call.op)
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


def _positions(name: str, outer: int, length: int) -> Tensor:
    return Tensor(name, SI64, (outer, length))


def _carried(name: str, op: WholeOp, inputs: tuple[str, ...], output: Output) -> Kernel:
    call = OpaqueCall(op, inputs, (0,))
    return Kernel(name, Pattern.OPAQUE, (), (), (output,), opaque=call)
