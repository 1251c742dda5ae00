"""Sums of parts that another kernel only picks from, summed up where they are picked.

    t[m, c] = sum over part of s[part, m, c];  y[b, m, c] = f(t[8*b + m, 8*b + c])
        -->  y[b, m, c] = f(sum over part of s[part, 8*b + m, 8*b + c])

The products of joined groups, and those that are put in order afterwards, are such sums: a launch
less, and what is not picked is not added up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from weft.foundation.index_expr import substitute
from weft.region.ir import Kernel, KernelAxis, Let, Pattern, Read, Reduce, Tensor


def with_sums_in_place(kernels: Sequence[Kernel], between: Mapping[str, Tensor]) -> list[Kernel]:
    """The kernels in the place of one other, with sums where they are picked from. Nobody else
    reads what is `between` them."""
    made: list[Kernel] = []
    for number, kernel in enumerate(kernels):
        picked = None
        if made and not any(_is_read(made[-1], later) for later in kernels[number + 1 :]):
            picked = _pick_parts(made[-1], kernel, between)
        if picked is not None:
            made[-1] = picked
        else:
            made.append(kernel)
    return made


def _is_read(total: Kernel, later: Kernel) -> bool:
    return any(output.tensor in later.inputs for output in total.outputs)


def _pick_parts(total: Kernel, kernel: Kernel, between: Mapping[str, Tensor]) -> Kernel | None:
    """A map that reads sums by their parts; None where these are no sums, or it reads some of them
    again and again."""
    if len(total.body) != 2 or len(total.outputs) != 1 or total.params or kernel.stages:
        return None
    (first, last), (output,) = total.body, total.outputs
    read, summed = first.expr, last.expr
    if not isinstance(read, Read) or read.guards or read.places or not isinstance(summed, Reduce):
        return None
    plain = [expr.single_axis for expr in output.index]
    if output.value != last.name or output.base or None in plain or summed.fn != "sum":
        return None
    reads = [let for let in kernel.body if _reads_tensor(let, output.tensor)]
    if kernel.pattern is not Pattern.MAP or kernel.params or len(reads) != 1:
        return None
    if output.tensor not in between:
        return None
    (let,) = reads
    assert isinstance(let.expr, Read)
    points = math.prod(kernel.sizes.values())
    if let.expr.guards or let.expr.places or points > math.prod(between[output.tensor].shape):
        return None
    if {*summed.axes} & {*kernel.sizes}:
        return None
    names = [found.name for found in plain if found is not None]
    if len({*names}) < len(names) or {*names} != {*last.axes}:
        return None
    moved = dict(zip(names, let.expr.index, strict=True))
    place = tuple(substitute(expr, moved) for expr in read.index)
    part = f"{let.name}_part"
    if any(found.name == part for found in kernel.body):
        return None
    parts = (
        Let(part, first.dtype, (*let.axes, *summed.axes), Read(read.tensor, place)),
        replace(let, expr=Reduce("sum", summed.axes, part)),
    )
    body = tuple(new for found in kernel.body for new in (parts if found is let else (found,)))
    gone = (KernelAxis(name, total.sizes[name], reduce=True) for name in summed.axes)
    return replace(kernel, pattern=Pattern.ROW, axes=(*kernel.axes, *gone), body=body)


def _reads_tensor(let: Let, tensor: str) -> bool:
    return isinstance(let.expr, Read) and let.expr.tensor == tensor
