"""Transposed pooling: a pool of channels-last images with channels-first results is computed in the
order of its operand, and its result is transposed.

    y[c, p] = max_w x[p + w, c]    ->    t[p, c] = max_w x[p + w, c];  y[c, p] = t[p, c]

A GPU that goes along the results would read each element from a line of its own, as often as there
are elements in a window. Results are fewer: they are made as the operands lie, and turned once.

    y[c, p] = max(x[2*p, c], x[2*p + 1, c])

Of few elements they are written out: a kernel without reductions makes blocks of results as the
operands lie, and turns each block on chip.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Final, NamedTuple

from weft.foundation.dtypes import F32
from weft.foundation.index_expr import axis, coefficient, constant, linear
from weft.foundation.records import replace
from weft.region.cost import kernel_seconds
from weft.region.fitting.cutting import free_name, placed, renamed
from weft.region.form import Crossing
from weft.region.forms.crossing import is_across
from weft.region.ir import (
    AxisIndex,
    Binary,
    Cast,
    Const,
    Kernel,
    KernelAxis,
    Let,
    Output,
    Pattern,
    Read,
    Reduce,
    Select,
    Tensor,
    Unary,
    row_major,
)
from weft.target.target import Target

_LONGEST: Final = 256
"""Elements of a window."""
_FEW: Final = 9
"""Elements of a window that is written out."""
_WIDE: Final = 16
"""Elements of both axes at least."""
_MANY: Final = 1 << 16
"""Results, and elements of an operand, that are worth another kernel."""


_JOINED: Final = {"sum": "add", "max": "max", "min": "min"}


class Turned(NamedTuple):
    """Windows as their operands lie, the tensor of their results, and what turns it."""

    kernel: Kernel
    tensor: Tensor
    copy: Kernel


def with_turned_windows(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Turned | None:
    """The two kernels in the place of one; None where operands lie like results."""
    crossing = _find_crossing(kernel, tensors)
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


def with_written_windows(
    kernel: Kernel, tensors: Mapping[str, Tensor], target: Target
) -> Kernel | None:
    """A kernel without reductions in the place of windows of few elements that lie across their
    results; None where there are none, or where two kernels take less time."""
    turned = with_turned_windows(kernel, tensors)
    windows = [found for found in kernel.axes if found.reduce]
    if turned is None or not 1 < prod(found.size for found in windows) <= _FEW:
        return None
    if not all(_is_written(kernel, let) for let in kernel.body):
        return None
    made = _write_out_windows(kernel, windows)
    known = {**tensors, turned.tensor.name: turned.tensor}
    apart = sum(kernel_seconds(each, known, target) for each in (turned.kernel, turned.copy))
    return made if kernel_seconds(made, tensors, target) < apart else None


def _is_written(kernel: Kernel, let: Let) -> bool:
    """Whether a value can be made for one element of a window after the other, with the same
    result: sums of few digits are added up in more."""
    if isinstance(let.expr, Reduce):
        windows = {found.name for found in kernel.axes if found.reduce}
        value = kernel.let(let.expr.value)
        whole = windows == {*let.expr.axes} <= {*value.axes} and value.dtype is let.dtype
        return whole and let.expr.fn in _JOINED and (let.expr.fn != "sum" or let.dtype is F32)
    return isinstance(let.expr, Read | Const | AxisIndex | Unary | Binary | Cast | Select)


def _write_out_windows(kernel: Kernel, windows: Sequence[KernelAxis]) -> Kernel:
    """The kernel with what is made for each element of a window under a name of its own."""
    inner = {found.name for found in windows}
    points = list(product(*(range(found.size) for found in windows)))
    body: list[Let] = []
    taken = {let.name for let in kernel.body}
    names: list[dict[str, str]] = [{} for _ in points]
    for let in kernel.body:
        if isinstance(let.expr, Reduce):
            body += _join_elements(let, [own[let.expr.value] for own in names], taken)
        elif not inner & {*let.axes}:
            body.append(let)
        else:
            own_axes = tuple(name for name in let.axes if name not in inner)
            for number, (point, own) in enumerate(zip(points, names, strict=True)):
                at = {a.name: constant(n) for a, n in zip(windows, point, strict=True)}
                own[let.name] = free_name(f"{let.name}_{number}", taken)
                taken.add(own[let.name])
                expr = renamed(placed(let.expr, at), own)
                body.append(Let(own[let.name], let.dtype, own_axes, expr))
    axes = tuple(found for found in kernel.axes if not found.reduce)
    return replace(kernel, pattern=Pattern.MAP, axes=axes, body=tuple(body))


def _join_elements(total: Let, names: Sequence[str], taken: set[str]) -> Iterator[Let]:
    """A reduction as a function of two after the other."""
    assert isinstance(total.expr, Reduce)
    fn, left = _JOINED[total.expr.fn], names[0]
    for number, name in enumerate(names[1:], 1):
        last = number == len(names) - 1
        made = total.name if last else free_name(f"{total.name}_to_{number}", taken)
        taken.add(made)
        yield Let(made, total.dtype, total.axes, Binary(fn, left, name))
        left = made


def _find_crossing(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Crossing | None:
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
