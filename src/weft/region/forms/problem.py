"""The problem that a contraction poses to matrix units: sizes, and how its operands lie.

A kernel's axes are made of atoms; here rows, columns and contracted axes each become one again.
They can, where in every tensor that they index the strides follow one another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft.foundation.index_expr import Expr, coefficient, linear
from weft.region.form import MatrixAxes, Problem
from weft.region.forms.alignment import grain, is_aligned
from weft.region.forms.runs import longest_run
from weft.region.ir import AxisIndex, Kernel, Let, Read, Roles

Strides = Mapping[str, Sequence[int]]


def find_problem(kernel: Kernel, strides: Strides) -> Problem | None:
    """The problem of a contraction kernel; None where an operand is computed or padded."""
    roles = kernel.roles
    if roles is None:
        return None
    sides = [kernel.let(roles.lhs), kernel.let(roles.rhs)]
    found = [address for let in sides if (address := _address(kernel, let, strides)) is not None]
    if len(found) < len(sides):
        return None
    axes = _axes(kernel, roles, strides, found)
    sizes = kernel.sizes
    batch, m, n, k = (math.prod(sizes[a] for a in names) for names in _groups(axes, roles))
    contiguous = [_runs_along(address, roles.k, sizes) for address in found]
    layouts = ("row" if contiguous[0] else "col", "col" if contiguous[1] else "row")
    items = [let.dtype.storage_bytes for let in sides]
    aligned = all(is_aligned(*side) for side in zip(found, items, strict=True))
    first, second = (grain(*side) for side in zip(found, items, strict=True))
    return Problem(batch, m, n, k, sides[0].dtype, layouts, aligned, (first, second), axes)


def _groups(axes: MatrixAxes, roles: Roles) -> tuple[tuple[str, ...], ...]:
    return axes.batch, axes.m, axes.n, roles.k


def _axes(kernel: Kernel, roles: Roles, strides: Strides, sides: Sequence[Expr]) -> MatrixAxes:
    """Matrices, rows and columns: those that act as one; outer ones that do not are matrices."""
    sizes = kernel.sizes
    order = {axis.name: number for number, axis in enumerate(kernel.axes)}
    others = _beside(kernel, roles, strides)
    m, n, k = (sorted(names, key=order.__getitem__) for names in (roles.m, roles.n, roles.k))
    outer_m, rows = longest_run(m, [sides[0], *others], sizes)
    outer_n, columns = longest_run(n, [sides[1], *others], sizes)
    _, summed = longest_run(k, sides, sizes)
    batch = sorted({*roles.batch, *outer_m, *outer_n}, key=order.__getitem__)
    return MatrixAxes(tuple(a for a in batch if sizes[a] != 1), rows, columns, summed)


def _beside(kernel: Kernel, roles: Roles, strides: Strides) -> list[Expr]:
    """The addresses and numbers of everything but the operands."""
    beside = [
        let.expr
        for let in kernel.body
        if let.name not in (roles.lhs, roles.rhs) and not {*let.axes} & {*roles.k}
    ]
    places = [(e.tensor, e.index) for e in beside if isinstance(e, Read)]
    places += [(output.tensor, output.index) for output in kernel.outputs]
    found = [linear(index, strides[name]) for name, index in places]
    return found + [e.expr for e in beside if isinstance(e, AxisIndex)]


def _address(kernel: Kernel, let: Let, strides: Strides) -> Expr | None:
    if not isinstance(let.expr, Read) or kernel.open_guards(let.expr):
        return None
    return linear(let.expr.index, strides[let.expr.tensor])


def _runs_along(address: Expr, axes: Sequence[str], sizes: Mapping[str, int]) -> bool:
    """Whether neighbours along the last of these axes are neighbours in memory. Where no axis has
    two elements, nobody can tell: they are."""
    last = next((name for name in reversed(axes) if sizes[name] != 1), None)
    return last is None or coefficient(address, last) == 1
