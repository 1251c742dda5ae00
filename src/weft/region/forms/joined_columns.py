"""Rows with several axes (columns and channels), flattened into one.

    h[i, j, c] = x[i, j, c] + x[i, j + 1, c]    ->    h[i, k] = x[i, k] + x[i, k + 4],   c < 4

What the axes beside the first of a row are long is the same in all parts of a kernel, so that a
step along columns is as many elements in each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from weft.foundation.index_expr import Expr, Guard, axis, constant, floordiv, substitute
from weft.region.form import Staged
from weft.region.ir import AxisIndex, Check, Fold, Kernel, KernelAxis, Let, Read, Stage, Words


def with_joined_columns(kernel: Kernel, form: Staged) -> tuple[Kernel, tuple[str, ...]] | None:
    """A kernel with stages with one axis inside of the rows of each part, and these axes; None
    where that cannot be."""
    inside = [
        _inside(stage.outer, {ring.axis, *ring.batch})
        for stage, ring in zip(kernel.stages, form.rings, strict=True)
    ]
    outer = [found for found in kernel.axes if not found.reduce]
    inside.append(_inside(outer, {form.slide, *form.batch}))
    rows = [row for row in inside if row]
    if len(rows) < len(inside) or len({tuple(a.size for a in row[1:]) for row in rows}) > 1:
        return None
    columns = tuple(row[0].name for row in rows)
    if len(rows[0]) == 1:
        return kernel, columns
    if kernel.params or any(_is_numbered(let) for let in kernel.every_let()):
        return None
    own = frozenset(stage.name for stage in kernel.stages)
    stages = []
    for stage, row in zip(kernel.stages, rows, strict=False):
        axes, moved = _joined_axes(stage.axes, row)
        shape = stage.local.shape
        local = replace(stage.local, shape=(*shape[: -len(row)], prod(shape[-len(row) :])))
        body = tuple(_move_let(let, row, moved, own) for let in stage.body)
        stages.append(Stage(local, axes, body, stage.value))
    axes, moved = _joined_axes(kernel.axes, rows[-1])
    body = tuple(_move_let(let, rows[-1], moved, own) for let in kernel.body)
    outputs = tuple(
        replace(output, index=tuple(substitute(e, moved) for e in output.index))
        for output in kernel.outputs
    )
    made = replace(kernel, axes=axes, body=body, outputs=outputs, stages=tuple(stages))
    return made, columns


def _inside(outer: Sequence[KernelAxis], outside: set[str]) -> list[KernelAxis]:
    """The axes of a row, if they come after all others."""
    found = [each for each in outer if each.name not in outside]
    return found if list(outer[len(outer) - len(found) :]) == found else []


def _is_numbered(let: Let) -> bool:
    """Whether a value knows more of the axes than what it reads."""
    if isinstance(let.expr, Read):
        return bool(let.expr.places)
    return isinstance(let.expr, Check | Words | Fold)


def _joined_axes(
    axes: Sequence[KernelAxis], row: Sequence[KernelAxis]
) -> tuple[tuple[KernelAxis, ...], dict[str, Expr]]:
    """The axes with one in the place of a row's, called like the first of them, and what becomes of
    those that there were."""
    whole, moved = axis(row[0].name), {}
    for place, found in enumerate(row):
        step = prod(a.size for a in row[place + 1 :])
        here = floordiv(whole, step) if step > 1 else whole
        moved[found.name] = (
            here - floordiv(whole, step * found.size) * found.size if place else here
        )
    names = {found.name for found in row[1:]}
    size = prod(found.size for found in row)
    joined = tuple(
        replace(found, size=size) if found.name == row[0].name else found
        for found in axes
        if found.name not in names
    )
    return joined, moved


def _move_let(
    let: Let,
    row: Sequence[KernelAxis],
    moved: Mapping[str, Expr],
    own: frozenset[str],
) -> Let:
    """A Let of a part whose row is one axis. `own` are the stages, whose rows are too."""
    names, first = {found.name for found in row}, row[0].name
    axes = tuple(dict.fromkeys(first if name in names else name for name in let.axes))
    expr = let.expr
    if isinstance(expr, AxisIndex):
        expr = AxisIndex(substitute(expr.expr, moved))
    elif isinstance(expr, Read):
        index = [substitute(e, moved) for e in expr.index]
        if expr.tensor in own:
            whole = constant(0)
            for found, place in zip(row, index[-len(row) :], strict=True):
                whole = whole * found.size + place
            index[-len(row) :] = [whole]
        guards = tuple(Guard(substitute(g.expr, moved), g.size) for g in expr.guards)
        expr = replace(expr, index=tuple(index), guards=guards)
    return replace(let, axes=axes, expr=expr)
