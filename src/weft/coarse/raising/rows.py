"""softmax and log_softmax: shifted by the largest element, by a division or a product."""

from __future__ import annotations

from weft.coarse.raising.matched import Matched, one_op
from weft.coarse.raising.search import Search, View
from weft.ptir.ir import Instruction, Operand, Ref
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
    found = search.row(operand, shape, [axis])
    if found is None or found[0] != 1.0:
        return None
    total: Operand | None = found[1]
    if inverse:
        total = search.inverted(found[1])
        inner = None if total is None else search.row(total, shape, [axis])
        total = inner[1] if inner is not None and inner[0] == 1.0 else None
    return None if total is None else search.reduction(total, "sum", [axis])


def shifted(search: Search, powers: Operand, shape: Shape, axis: int) -> Operand | None:
    """The x of `exp(x - max(x))`."""
    exponential = search.take(powers, "exp")
    difference = search.take(exponential.operands[0], "sub") if exponential is not None else None
    return None if difference is None else _unshifted(search, difference, shape, axis)


def _unshifted(search: Search, difference: Instruction, shape: Shape, axis: int) -> Operand | None:
    """The x of `x - max(x)`."""
    x, largest = difference.operands
    return x if search.row_maximum(largest, shape, axis) == x else None


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
            lambda s=search, a=axis: _two_steps(s, root, shape, a),
            lambda s=search, a=axis: _one_step(s, root, shape, a),
        )
        if x is not None:
            return one_op(search, "byteir.log_softmax", (x,), axis=axis)
    return None


def _two_steps(search: Search, root: Instruction, shape: Shape, axis: int) -> Operand | None:
    """`(x - max) - log(sum(exp(x - max)))`."""
    left, right = root.operands
    found = search.row(right, shape, [axis])
    if found is None or found[0] != 1.0:
        return None
    powers = _logarithm(search, found[1], axis)
    difference = search.take(left, "sub")
    if powers is None or difference is None:
        return None
    exponential = search.take(powers, "exp")
    if exponential is None or exponential.operands[0] != left:
        return None
    return _unshifted(search, difference, shape, axis)


def _one_step(search: Search, root: Instruction, shape: Shape, axis: int) -> Operand | None:
    """`x - (max + log(sum(exp(x - max))))`."""
    left, right = root.operands
    found = search.row(right, shape, [axis])
    if found is None or found[0] != 1.0:
        return None
    both = search.take(found[1], "add")
    if both is None:
        return None
    for largest, logarithm in (both.operands, both.operands[::-1]):
        x = search.first(lambda m=largest, n=logarithm: _log_sum_exp(search, m, n, shape, axis))
        if x is not None:
            return x if x == left else None
    return None


def _log_sum_exp(
    search: Search, largest: Operand, logarithm: Operand, shape: Shape, axis: int
) -> Operand | None:
    inner = search.row(logarithm, shape, [axis])
    powers = None if inner is None else _logarithm(search, inner[1], axis)
    x = None if powers is None else shifted(search, powers, shape, axis)
    return x if x is not None and search.row_maximum(largest, shape, axis) == x else None


def _logarithm(search: Search, operand: Operand, axis: int) -> Operand | None:
    """What a row value is the logarithm of the sum of."""
    definition = search.take(operand, "log")
    return None if definition is None else search.reduction(definition.operands[0], "sum", [axis])
