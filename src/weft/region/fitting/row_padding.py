"""Padding of intermediate tensors between products and row kernels, so that every row begins at a
full cache line.

    logits[m, n], n odd    -->    logits[m, n + room], of which nobody reads the room

The copy engine of matrix units reads and writes such rows as they are, where others are copied
first, and kernels over rows take whole vectors of them. What a program is given and hands out stays
as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, TypeAlias

from weft.foundation.dtypes import BF16, F16
from weft.foundation.index_expr import Index, axis
from weft.foundation.records import replace
from weft.region.fitting.aligned import WORTH
from weft.region.forms.alignment import LINE
from weft.region.ir import Kernel, Module, Pattern, Read, Tensor, walk
from weft.region.structure import buffers
from weft.target.target import Target

_LARGE: Final = 1 << 20
"""Bytes of a tensor from which room pays."""
_PATTERNS: Final = (Pattern.MATMUL, Pattern.ROW, Pattern.MAP)
Access: TypeAlias = tuple[Kernel, Index]


def with_room(module: Module, target: Target) -> Module:
    """The module with room in those tensors that products read or write, and beside them only
    kernels that take them row by row."""
    if not target.has("wgmma"):
        return module
    accesses: dict[str, list[Access]] = {}
    fixed = set(module.outputs)
    for kernel in module.kernels:
        if kernel.pattern not in _PATTERNS or kernel.stages:
            fixed.update(buffers(kernel))
        for output in kernel.outputs:
            fixed.update([output.tensor, output.base] if output.base is not None else ())
        fixed.update(param.tensor for param in kernel.params)
        for name, index in _accesses(kernel):
            accesses.setdefault(name, []).append((kernel, index))
    roomy = {
        name: _with_room(module.tensors[name])
        for name, found in accesses.items()
        if name not in fixed and _gains(module.tensors[name], found)
    }
    return replace(module, tensors=module.tensors | roomy)


def _accesses(kernel: Kernel) -> Iterator[tuple[str, Index]]:
    for let in walk(kernel.body):
        if isinstance(let.expr, Read):
            yield let.expr.tensor, () if let.expr.places else let.expr.index
    for output in kernel.outputs:
        yield output.tensor, output.index


def _gains(tensor: Tensor, accesses: list[Access]) -> bool:
    """Whether rows that do not begin at whole lines are in the way of a product, and all kernels
    take them along one axis, from the first element to the last."""
    odd = len(tensor.shape) > 1 and tensor.shape[-1] * tensor.dtype.storage_bytes % LINE
    if not odd or tensor.role != "internal" or tensor.dtype not in (BF16, F16):
        return False
    if tensor.bytes < _LARGE or not all(_is_row(tensor, *access) for access in accesses):
        return False
    products = [kernel for kernel, _ in accesses if kernel.pattern is Pattern.MATMUL]
    return any(math.prod(kernel.sizes.values()) >= WORTH for kernel in products)


def _is_row(tensor: Tensor, kernel: Kernel, index: Index) -> bool:
    # An index that is an axis as long as the row: no neighbour beyond its end is asked for, so that
    # what lies in the room is never read.
    long = [a.name for a in kernel.axes if a.size == tensor.shape[-1]]
    return bool(index) and any(index[-1] == axis(name) for name in long)


def _with_room(tensor: Tensor) -> Tensor:
    room = -tensor.shape[-1] % (LINE // tensor.dtype.storage_bytes)
    return replace(tensor, shape=(*tensor.shape[:-1], tensor.shape[-1] + room), room=room)
