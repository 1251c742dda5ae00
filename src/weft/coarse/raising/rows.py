"""Raising of softmax and log_softmax: shifted by the maximum, by a division or a product."""

from __future__ import annotations

from functools import partial

from weft.coarse.raising.matched import Matched, one_op
from weft.coarse.raising.search import Search, View
from weft.ptir.ir import Instruction, Operand, Ref
from weft.ptir.ops.movement import Transpose
from weft.ptir.types import Shape


def softmax(view: View, root: Instruction) -> Matched | None:
    """`exp(x - max) / sum`, or times the reciprocal of the sum."""
    search = Search(view)
    found = find_softmax(search, Ref(root.id))
    if found is None:
        return None
    x, axis = found
    return one_op(search, "byteir.softmax", (x,), axis=axis)


def find_softmax(search: Search, operand: Operand) -> tuple[Operand, int] | None:
    """What a value is the softmax of, and along which axis."""
    root = search.take(operand, "div", "mul")
    shape = search.view.shape(operand)
    if root is None or shape is None:
        return None
    left, right = root.operands
    if root.op.mnemonic == "div":
        return _weights(search, left, right, shape, inverse=False)
    return search.first(
        lambda: _weights(search, left, right, shape, inverse=True),
        lambda: _weights(search, right, left, shape, inverse=True),
    )


def _weights(
    search: Search, powers: Operand, total: Operand, shape: Shape, *, inverse: bool
) -> tuple[Operand, int] | None:
    axes = search.axes_of(total, shape, "sum")
    if axes is None or len(axes) != 1:
        return None
    if _row_sum(search, total, shape, axes[0], inverse=inverse) != powers:
        return None
    x = shifted(search, powers, shape, axes[0])
    return None if x is None else (x, axes[0])


def _row_sum(
    search: Search, operand: Operand, shape: Shape, axis: int, *, inverse: bool
) -> Operand | None:
    """What a repeated row value is the sum of, or with `inverse` one over the sum."""
    total: Operand | None = operand
    if inverse:
        total = search.first(
            lambda: search.inverted(operand),
            lambda: search.inverted(search.plain_row(operand, shape, [axis])),
        )
    return search.reduction(search.plain_row(total, shape, [axis]), "sum", [axis])


def shifted(search: Search, powers: Operand | None, shape: Shape, axis: int) -> Operand | None:
    """The x of `exp(x - max(x))`."""
    difference = search.take(search.argument(powers, "exp"), "sub")
    return None if difference is None else _undo_shift(search, difference, shape, axis)


def _undo_shift(search: Search, difference: Instruction, shape: Shape, axis: int) -> Operand | None:
    """The x of `x - max(x)`."""
    x, largest = difference.operands
    return search.first(
        lambda: x if search.row_maximum(largest, shape, axis) == x else None,
        lambda: x if _maximum_before_turn(search, x, largest, shape, axis) else None,
    )


def _maximum_before_turn(
    search: Search, x: Operand, largest: Operand, shape: Shape, axis: int
) -> bool:
    """Whether x was turned after its largest elements were taken, and they likewise."""
    outer = search.view.definition(x)
    inner = search.take(search.plain_row(largest, shape, [axis]), "transpose")
    if outer is None or inner is None or not isinstance(outer.op, Transpose):
        return False
    source, perm = outer.operands[0], outer.op.perm
    before, along = search.view.shape(source), perm[axis]
    # The same turn of rows whose reduced axis is gone: axes behind it are one less.
    kept = tuple(p - (p > along) for p in perm if p != along)
    turn = inner.op.perm if isinstance(inner.op, Transpose) else ()
    rows = inner.operands[0]
    return (
        before is not None
        and turn in (perm, kept)
        and search.row_maximum(rows, before, along) == source
    )


def log_softmax(view: View, root: Instruction) -> Matched | None:
    """`x - max - log(sum(exp(x - max)))`, the largest taken off first or together with the
    logarithm."""
    shape = view.shape(Ref(root.id))
    if root.op.mnemonic != "sub" or shape is None:
        return None
    for axis in range(len(shape)):
        search = Search(view)
        search.inside.append(root.id)
        x = search.first(
            partial(_two_steps, search, root, shape, axis),
            partial(_one_step, search, root, shape, axis),
        )
        if x is not None:
            return one_op(search, "byteir.log_softmax", (x,), axis=axis)
    return None


def _two_steps(search: Search, root: Instruction, shape: Shape, axis: int) -> Operand | None:
    """`(x - max) - log(sum(exp(x - max)))`."""
    left, right = root.operands
    powers = _logarithm(search, search.plain_row(right, shape, [axis]), shape, axis)
    difference = search.take(left, "sub")
    if difference is None or search.argument(powers, "exp") != left:
        return None
    return _undo_shift(search, difference, shape, axis)


def _one_step(search: Search, root: Instruction, shape: Shape, axis: int) -> Operand | None:
    """`x - (max + log(sum(exp(x - max))))`."""
    left, right = root.operands
    both = search.take(search.plain_row(right, shape, [axis]), "add")
    if both is None:
        return None
    for largest, logarithm in (both.operands, both.operands[::-1]):
        x = search.first(partial(_log_sum_exp, search, largest, logarithm, shape, axis))
        if x is not None:
            return x if x == left else None
    return None


def _log_sum_exp(
    search: Search, largest: Operand, logarithm: Operand, shape: Shape, axis: int
) -> Operand | None:
    powers = _logarithm(search, search.plain_row(logarithm, shape, [axis]), shape, axis)
    x = shifted(search, powers, shape, axis)
    return x if x is not None and search.row_maximum(largest, shape, axis) == x else None


def _logarithm(search: Search, operand: Operand | None, shape: Shape, axis: int) -> Operand | None:
    """What a row value is the logarithm of the sum of."""
    total = search.plain_row(search.argument(operand, "log"), shape, [axis])
    return search.reduction(total, "sum", [axis])
