"""Assembling a kernel from chosen blocks: is it one that a template can carry out, which pattern,
which names for its axes.

A kernel has one of three shapes. *Map*: no reduction. *Row*: all reductions run over the same axes
for the same rows, and rows and reduced axes are all there is. *Contraction*: one sum of products,
whose rows are all the axes that results are stored over, and no other reduction.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.foundation.index_expr import Expr
from weft.foundation.records import replace
from weft.region.ir import (
    Cast,
    Kernel,
    KernelAxis,
    Let,
    Materialize,
    Output,
    Pattern,
    Read,
    Roles,
)
from weft.region.writing.axes import coalesce, rename_axes
from weft.region.writing.emit import Emitter, Reduction, Root, Stop, View


def assemble(view: View, roots: Sequence[Root], inlined: frozenset[str]) -> Kernel:
    """The kernel that stores `roots` and computes the inlined blocks they need on the way."""
    return _named_axes(coalesce(draft(view, roots, inlined)))


def draft(view: View, roots: Sequence[Root], inlined: frozenset[str]) -> Kernel:
    """The kernel over its atoms, good enough to be costed. Raises `Stop` where it is no kernel of
    a known shape."""
    emitter = Emitter(view, inlined)
    emitter.run(roots)
    return drafted(emitter)


def drafted(emitter: Emitter) -> Kernel:
    """The kernel of what an emitter has written. Raises `Stop` as `draft` does."""
    view, outputs = emitter.view, emitter.outputs
    stored = {a for output in outputs for a in emitter.body.known[output.value][1]}
    _check_shape(emitter.reductions, emitter.own, tuple(emitter.sizes))
    if any(found.contraction for found in emitter.reductions) and any(o.base for o in outputs):
        raise Stop("a contraction is not stored into a window of another tensor")
    axes = tuple(KernelAxis(n, size, n not in stored) for n, size in emitter.sizes.items())
    roles = _find_roles(view, emitter)
    return Kernel(
        "",
        _find_pattern(view, emitter, roles),
        axes,
        tuple(emitter.body.lets),
        tuple(_materialize(output, roles) for output in outputs),
        emitter.params(),
        roles,
        labels=_labels(view, emitter),
    )


# -- shapes --------------------------------------------------------------------------------------


def _check_shape(
    reductions: Sequence[Reduction], own: tuple[str, ...], every: tuple[str, ...]
) -> None:
    products = [found for found in reductions if found.contraction]
    if len({found.block for found in products}) > 1:
        raise Stop("a kernel has one contraction")
    if len(products) > 1:
        raise Stop("a contraction is computed once, and it is read at two places of a result")
    if products and len(reductions) > 1:
        raise Stop("a contraction and another reduction need kernels of their own")
    for found in reductions:
        if found.guarded:
            raise Stop("a reduction in it is not needed everywhere")
        if _single_axes(found.rows) is None:
            raise Stop("a reduction in it would be computed more than once for a row")
    if products:
        if set(_single_axes(products[0].rows) or ()) != set(own):
            raise Stop("its contraction is not read at every element once")
        return
    rows = {frozenset(_single_axes(found.rows) or ()) for found in reductions}
    axes = {frozenset(found.axes) for found in reductions}
    if len(rows) > 1 or len(axes) > 1:
        raise Stop("the reductions run over different rows")
    if reductions and set(every) != set().union(*rows, *axes):
        raise Stop("the result has axes that are neither rows nor reduced")


def _single_axes(rows: tuple[Expr, ...]) -> tuple[str, ...] | None:
    """The axes that row expressions are, if each is one axis and no two are the same."""
    names = [expr.single_axis.name for expr in rows if expr.single_axis is not None]
    # x[i, i] would be one row read at two axes.
    distinct = len(names) == len(rows) and len(set(names)) == len(names)
    return tuple(names) if distinct else None


def _find_pattern(view: View, emitter: Emitter, roles: Roles | None) -> Pattern:
    if roles is not None:
        (product,) = emitter.reductions
        attrs = view.blocks[product.block].attrs
        return Pattern.CONV if attrs is not None and attrs.pattern == "conv" else Pattern.MATMUL
    return Pattern.ROW if emitter.reductions else Pattern.MAP


# -- contractions --------------------------------------------------------------------------------


def _find_roles(view: View, emitter: Emitter) -> Roles | None:
    """The roles of the axes, where the kernel is a contraction with rows and columns."""
    if len(emitter.reductions) != 1 or not emitter.reductions[0].contraction:
        return None
    found = emitter.reductions[0]
    block = view.blocks[found.block]
    attrs = block.attrs
    lets = {let.name: let for let in emitter.body.lets}
    sides = [_read_of(lets, side) for side in found.sides]
    if attrs is None or None in sides:
        return None
    where = dict(zip((a.name for a in block.out_axes), _single_axes(found.rows) or (), strict=True))
    batch, rows, columns = (
        _order_axes(emitter, [where[name] for name in names])
        for names in (attrs.batch_idx, attrs.lhs_idx, attrs.rhs_idx)
    )
    if not rows or not columns:
        return None
    lhs, rhs = (str(side) for side in sides)
    # The side whose axis is stored innermost gives the columns.
    if emitter.own and emitter.own[-1] in rows:
        rows, columns, lhs, rhs = columns, rows, rhs, lhs
    return Roles(batch, rows, columns, found.axes, found.let, lhs, rhs)


def _order_axes(emitter: Emitter, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in emitter.sizes if name in names)


def _read_of(lets: dict[str, Let], name: str) -> str | None:
    """The read that an operand of a contraction is, through widening casts."""
    expr = lets[name].expr
    while isinstance(expr, Cast):
        name = expr.x
        expr = lets[name].expr
    return name if isinstance(expr, Read) else None


def _materialize(output: Output, roles: Roles | None) -> Output:
    if roles is None or output.value == roles.contraction:
        return output
    return replace(output, materialize=Materialize.DEFERRED)


# -- names ---------------------------------------------------------------------------------------


def _labels(view: View, emitter: Emitter) -> dict[str, str]:
    """Names from the program for the Lets of blocks that have one."""
    found = {}
    for name, let in emitter.members.items():
        block = view.blocks[name]
        if block.value_id and block.name != block.value_id:
            found[let] = block.name
    return found


def _named_axes(kernel: Kernel) -> Kernel:
    """Axes called by role in contractions (b, m, n, k), by position elsewhere."""
    names = {found.name: f"i{number}" for number, found in enumerate(kernel.axes)}
    if kernel.roles is not None:
        groups = zip(
            "bmnk",
            (kernel.roles.batch, kernel.roles.m, kernel.roles.n, kernel.roles.k),
            strict=True,
        )
        for letter, group in groups:
            for number, name in enumerate(group):
                names[name] = letter if len(group) == 1 else f"{letter}{number}"
    return rename_axes(kernel, names)
