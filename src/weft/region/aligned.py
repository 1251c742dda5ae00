"""Operands that a matrix unit's copy engine can read: rows that begin at multiples of 16 bytes.

An operand whose rows do not is first copied into a tensor whose rows do, padded with zeros:

    a[m, k], k odd    -->    t[m, q] = k-th element where q < k, else 0;  then t instead of a
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from weft.foundation.dtypes import BF16, F16
from weft.foundation.index_expr import Expr, Guard, axis, coefficient, linear
from weft.region.ir import (
    Kernel,
    KernelAxis,
    Let,
    Output,
    Pattern,
    Read,
    Tensor,
    row_major,
)
from weft.target.target import Target

LINE: Final = 16
"""Bytes that rows must begin at multiples of."""
ROW: Final = 128
"""Bytes that rows of copies begin at multiples of: the copy engine reads so many at a time."""
_WORTH: Final = 1 << 22
"""Products from which copying the operands pays."""


def is_aligned(address: Expr, item: int) -> bool:
    """Whether an address of elements of `item` bytes has neighbours, and rows at whole lines."""
    steps = [factor for _, factor in address.terms]
    if 1 not in steps:
        return False
    steps.remove(1)
    return all(number * item % LINE == 0 for number in (*steps, address.constant))


def with_aligned_operands(
    kernel: Kernel, tensors: Mapping[str, Tensor], target: Target
) -> tuple[tuple[Kernel, ...], tuple[Tensor, ...]]:
    """A contraction behind copies of those operands that need one, and the copies' tensors."""
    roles = kernel.roles
    if roles is None or kernel.pattern is not Pattern.MATMUL or not target.has("wgmma"):
        return (kernel,), ()
    if math.prod(kernel.sizes.values()) < _WORTH or kernel.params:
        return (kernel,), ()
    copies: list[Kernel] = []
    made: list[Tensor] = []
    for number, name in enumerate(dict.fromkeys((roles.lhs, roles.rhs))):
        let = kernel.let(name)
        if _wants_copy(let, tensors):
            copy, tensor, read = _copied(kernel, let, tensors, f"{kernel.name}_operand{number}")
            copies.append(copy)
            made.append(tensor)
            body = tuple(read if found.name == name else found for found in kernel.body)
            kernel = replace(kernel, body=body)
    return (*copies, kernel), tuple(made)


def _wants_copy(let: Let, tensors: Mapping[str, Tensor]) -> bool:
    read = let.expr
    if let.dtype not in (BF16, F16) or not isinstance(read, Read) or read.guards or read.places:
        return False
    address = linear(read.index, row_major(tensors[read.tensor].shape))
    return not is_aligned(address, let.dtype.storage_bytes)


def _copied(
    kernel: Kernel, let: Let, tensors: Mapping[str, Tensor], name: str
) -> tuple[Kernel, Tensor, Let]:
    """The copy, its tensor, and the Let that reads it."""
    read, sizes = let.expr, kernel.sizes
    assert isinstance(read, Read)
    address = linear(read.index, row_major(tensors[read.tensor].shape))
    last = next((a for a in let.axes if coefficient(address, a) == 1), let.axes[-1])
    order = [a for a in let.axes if a != last] + [last]
    line = ROW // let.dtype.storage_bytes
    padded = -(-sizes[last] // line) * line
    axes = [KernelAxis(a, padded if a == last else sizes[a]) for a in order]
    guards = (Guard(axis(last), sizes[last]),) if padded > sizes[last] else ()
    fill = 0.0 if guards else None
    place = tuple(axis(a) for a in order)
    tensor = Tensor(name, let.dtype, tuple(found.size for found in axes))
    value = Let("v0", let.dtype, tuple(order), Read(read.tensor, read.index, guards, fill))
    outputs = (Output(name, "v0", place),)
    copy = Kernel(f"{name}_copy", Pattern.MAP, tuple(axes), (value,), outputs)
    return copy, tensor, replace(let, expr=Read(name, place))
