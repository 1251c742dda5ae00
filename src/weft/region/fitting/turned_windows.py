"""Windows whose elements lie across their results, as a pool that hands out planes of channels
which a convolution has stored point by point.

    y[c, p] = max_w x[p + w, c]    ->    t[p, c] = max_w x[p + w, c];  y[c, p] = t[p, c]

A GPU that goes along the results would read each element from a line of its own, as often as there
are elements in a window. Results are fewer: they are made as the operands lie, and turned once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Final, NamedTuple

from weft.foundation.index_expr import axis, coefficient, linear
from weft.region.form import Crossing
from weft.region.forms.crossing import is_across
from weft.region.ir import (
    Kernel,
    Let,
    Output,
    Pattern,
    Read,
    Reduce,
    Tensor,
    row_major,
)

_LONGEST: Final = 256
"""Elements of a window."""
_WIDE: Final = 16
"""Elements of both axes at least."""
_MANY: Final = 1 << 16
"""Results, and elements of an operand, that are worth another kernel."""


class Turned(NamedTuple):
    """Windows as their operands lie, the tensor of their results, and what turns it."""

    kernel: Kernel
    tensor: Tensor
    copy: Kernel


def with_turned_windows(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Turned | None:
    """The two kernels in the place of one; None where operands lie like results."""
    crossing = _crossing(kernel, tensors)
    if crossing is None:
        return None
    (output,) = kernel.outputs
    outer = [found for found in kernel.axes if not found.reduce]
    order = [found for found in outer if found.name != crossing.rows]
    order += [found for found in outer if found.name == crossing.rows]
    name = f"{kernel.name}_turned"
    value = kernel.let(output.value)
    tensor = Tensor(name, value.dtype, tuple(found.size for found in order))
    place = tuple(axis(found.name) for found in order)
    axes = (*order, *(found for found in kernel.axes if found.reduce))
    ranks = {found.name: number for number, found in enumerate(axes)}
    body = tuple(
        replace(let, axes=tuple(sorted(let.axes, key=ranks.__getitem__))) for let in kernel.body
    )
    made = replace(kernel, axes=axes, body=body, outputs=(Output(name, output.value, place),))
    read = Let("v0", value.dtype, tuple(found.name for found in outer), Read(name, place))
    copy = Kernel(
        f"{name}_copy", Pattern.MAP, tuple(outer), (read,), (replace(output, value="v0"),)
    )
    return Turned(made, tensor, copy)


def _crossing(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Crossing | None:
    """The axis that results lie along, and the one that all operands do."""
    if kernel.pattern is not Pattern.ROW or len(kernel.outputs) != 1 or kernel.params:
        return None
    (output,) = kernel.outputs
    outer = {found.name: found.size for found in kernel.axes if not found.reduce}
    windows = {found.name: found.size for found in kernel.axes if found.reduce}
    reduced = [let.expr.axes for let in kernel.body if isinstance(let.expr, Reduce)]
    whole = set(kernel.let(output.value).axes) == set(outer)
    if output.base is not None or not whole or not reduced or prod(windows.values()) > _LONGEST:
        return None
    stored = linear(output.index, row_major(tensors[output.tensor].shape))
    columns = next((a for a, n in outer.items() if n > 1 and coefficient(stored, a) == 1), None)
    reads = [let.expr for let in kernel.body if isinstance(let.expr, Read)]
    large = [read for read in reads if prod(tensors[read.tensor].shape) >= _MANY]
    if columns is None or not large or any(read.places for read in reads):
        return None
    places = [linear(read.index, row_major(tensors[read.tensor].shape)) for read in large]
    for rows, size in outer.items():
        found = Crossing(columns, rows)
        if all(is_across(place, found) for place in places):
            wide = min(size, outer[columns]) >= _WIDE and prod(outer.values()) >= _MANY
            return found if wide else None
    return None
