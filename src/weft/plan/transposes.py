"""Blocks of two axes, for elementwise kernels whose operands lie along another axis than their
results (`region.forms.crossing`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from weft.foundation.index_expr import coefficient, linear
from weft.region.form import Crossing, Map
from weft.region.ir import Kernel, Read, Tensor, form_of, row_major

BLOCK: Final = 64
"""Edge of a block: its operands and results fit in a first-level cache, and their pages in a table
of recent ones."""


def crossing_of(kernel: Kernel) -> Crossing | None:
    """The two axes that a kernel goes along at once, if it does."""
    form = form_of(kernel)
    return form.crossing if isinstance(form, Map) else None


def row_axes(kernel: Kernel, tensors: Mapping[str, Tensor], crossing: Crossing) -> tuple[str, ...]:
    """The axes that, with the rows as the last, are one in all tensors: rows are counted on where
    one of them ends."""
    places = [
        (let.expr.tensor, let.expr.index) for let in kernel.body if isinstance(let.expr, Read)
    ]
    places += [(output.tensor, output.index) for output in kernel.outputs]
    addresses = [linear(index, row_major(tensors[name].shape)) for name, index in places]
    found, size = [crossing.rows], kernel.sizes[crossing.rows]
    for name in [a.name for a in reversed(kernel.axes) if a.name not in crossing and a.size > 1]:
        if all(coefficient(e, name) == size * coefficient(e, crossing.rows) for e in addresses):
            found.insert(0, name)
            size *= kernel.sizes[name]
    return tuple(found)


def block_for(kernel: Kernel) -> int:
    """The block that a kernel is best cut into; 1 for none."""
    found = crossing_of(kernel)
    if found is None or min(kernel.sizes[found.columns], kernel.sizes[found.rows]) < BLOCK // 4:
        return 1
    return BLOCK if math.prod(kernel.sizes.values()) >= BLOCK * BLOCK else 1
