"""Padding of operands to rows that begin at multiples of 16 bytes, as TMA needs.

An operand whose rows do not, or that has zeros between its elements, is first copied into a tensor
whose rows do, padded with zeros:

    a[m, k], k odd    -->    t[m, q] = k-th element where q < k, else 0;  then t instead of a

So is one whose contracted axes lie in another order, or apart: rows that the other operand has one
after the other must be that here, too.

Copies of 8-bit operands lie along k, as their matrix instructions want it; those of 8-bit floats
are f16 where their own instruction would lose digits that the result shows, or there is none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from weft.foundation.dtypes import BF16, F16, F32, DType
from weft.foundation.index_expr import Expr, Guard, axis, coefficient, linear
from weft.foundation.records import replace
from weft.region.forms.alignment import ROW, is_aligned
from weft.region.forms.multiplied import multiplies_reads, usual_atom
from weft.region.forms.runs import longest_run
from weft.region.ir import (
    Cast,
    Kernel,
    KernelAxis,
    Let,
    Output,
    Pattern,
    Read,
    Tensor,
    row_major,
)
from weft.target.matrix_atoms import TINY
from weft.target.target import Target

WORTH: Final = 1 << 22
"""Products from which copying the operands pays."""


def with_aligned_operands(
    kernel: Kernel, tensors: Mapping[str, Tensor], target: Target
) -> tuple[tuple[Kernel, ...], tuple[Tensor, ...]]:
    """A contraction behind copies of those operands that need one, and the copies' tensors."""
    roles = kernel.roles
    if roles is None or kernel.pattern is not Pattern.MATMUL:
        return (kernel,), ()
    if math.prod(kernel.sizes.values()) < WORTH or kernel.params:
        return (kernel,), ()
    copies: list[Kernel] = []
    made: list[Tensor] = []
    wanted = _Wanted(kernel, target)
    for number, name in enumerate(dict.fromkeys((roles.lhs, roles.rhs))):
        let = kernel.let(name)
        if wanted.copy_of(let, tensors):
            copied = f"{kernel.name}_operand{number}"
            copy, tensor, read = _copy_operand(kernel, let, tensors, copied, wanted)
            copies.append(copy)
            made.append(tensor)
            body = tuple(read if found.name == name else found for found in kernel.body)
            kernel = replace(kernel, body=body)
    return (*copies, kernel), tuple(made)


class _Wanted:
    """What a contraction wants of its operands on a target."""

    def __init__(self, kernel: Kernel, target: Target) -> None:
        assert kernel.roles is not None
        self.warpgroups = target.has("wgmma")
        self.atom = usual_atom(kernel, "sm90" if self.warpgroups else "sm80")
        self.sizes, self.batch = kernel.sizes, kernel.roles.batch
        own = {*kernel.roles.k}
        self.k = tuple(a.name for a in kernel.axes if a.name in own and a.size > 1)
        dtypes = {kernel.let(name).dtype for name in (kernel.roles.lhs, kernel.roles.rhs)}
        floats = kernel.let(kernel.roles.contraction).dtype is F32 and multiplies_reads(kernel)
        self.widened = floats and dtypes <= {*TINY} and self.atom is None
        """Whether 8-bit floats are multiplied as f16, which holds them all."""

    def copy_of(self, let: Let, tensors: Mapping[str, Tensor]) -> bool:
        """Whether an operand must be copied first."""
        read = let.expr
        if not isinstance(read, Read) or read.places:
            return False
        if read.guards:
            # Elements that are apart, as in the gradient of rows that were taken here and there.
            halves = self.warpgroups and self.atom is not None and let.dtype in (BF16, F16)
            return halves and read.fill == 0
        address = linear(read.index, row_major(tensors[read.tensor].shape))
        even = is_aligned(address, let.dtype.storage_bytes)
        if self.widened:
            return True
        if self.atom is not None and self.atom.along_k:
            return not even or not (self.k and coefficient(address, self.k[-1]) == 1)
        if let.dtype not in (BF16, F16):
            return False
        # No matrix instruction takes rows in pieces; only the copy engine asks where they begin.
        apart = self.atom is not None and self.is_apart(let, address)
        return apart or (self.warpgroups and not even)

    def is_apart(self, let: Let, address: Expr) -> bool:
        """Whether contracted axes do not follow one another in memory."""
        return {*self.k} <= {*let.axes} and bool(longest_run(self.k, [address], self.sizes)[0])

    def order(self, let: Let, address: Expr) -> list[str]:
        """The axes of a copy, outermost first."""
        last = self.last(let, address)
        rest = [a for a in let.axes if a != last]
        if self.is_apart(let, address):
            # What is summed over next to one another, and so are rows.
            rest.sort(key=lambda a: (a not in self.batch, (a in self.k) == (last in self.k)))
        return [*rest, last]

    def dtype(self, let: Let) -> DType:
        return F16 if self.widened else let.dtype

    def last(self, let: Let, address: Expr) -> str:
        """The axis along which a copy lies."""
        if self.atom is not None and self.atom.along_k and self.k:
            return self.k[-1]
        return next((a for a in let.axes if coefficient(address, a) == 1), let.axes[-1])


def _copy_operand(
    kernel: Kernel, let: Let, tensors: Mapping[str, Tensor], name: str, wanted: _Wanted
) -> tuple[Kernel, Tensor, Let]:
    """The copy, its tensor, and the Let that reads it."""
    read, sizes = let.expr, kernel.sizes
    assert isinstance(read, Read)
    address = linear(read.index, row_major(tensors[read.tensor].shape))
    order, dtype = wanted.order(let, address), wanted.dtype(let)
    last = order[-1]
    line = ROW // dtype.storage_bytes
    # Padding would part what is summed over again.
    runs_on = last in wanted.k and len(order) > 1 and order[-2] in wanted.k
    padded = sizes[last] if runs_on else -(-sizes[last] // line) * line
    axes = [KernelAxis(a, padded if a == last else sizes[a]) for a in order]
    guards = (*read.guards, *[Guard(axis(last), sizes[last])] * (padded > sizes[last]))
    zero = 0.0 if let.dtype.is_float else 0
    place = tuple(axis(a) for a in order)
    tensor = Tensor(name, dtype, tuple(found.size for found in axes))
    fill = zero if guards else None
    body = [Let("v0", let.dtype, tuple(order), Read(read.tensor, read.index, guards, fill))]
    if dtype is not let.dtype:
        body.append(Let("v1", dtype, tuple(order), Cast("v0")))
    outputs = (Output(name, body[-1].name, place),)
    copy = Kernel(f"{name}_copy", Pattern.MAP, tuple(axes), tuple(body), outputs)
    return copy, tensor, replace(let, dtype=dtype, expr=Read(name, place))
