"""Attention of a single query: an axis of one element is added, so that it has the form of
attention.

    s[h, j] = sum_d a[h, d] * b[h, j, d]      ->      s[h, q, j] = sum_d a[h, d] * b[h, j, d]

Scores have axes of matrices, of queries and of keys; with one query alone for each matrix there is
none of queries. What is made of the query lives over the axis as well.
"""

from __future__ import annotations

from weft.foundation.records import replace
from weft.region.ir import Binary, Kernel, KernelAxis, Let, Reduce, operands

_NAME = "query"


def with_one_query(kernel: Kernel) -> Kernel:
    """The kernel with an axis of queries behind those of its scores' rows; as it is where it has
    no scores of one query."""
    sums = [let for let in kernel.body if isinstance(let.expr, Reduce)]
    if len(sums) < 2 or _NAME in kernel.sizes:
        return kernel
    scores, top = sums[0], sums[1].expr
    assert isinstance(top, Reduce)
    side = _query_side(kernel, scores, top.axes)
    if side is None:
        return kernel
    rows = [name for name in scores.axes if name not in top.axes]
    names = [axis.name for axis in kernel.axes]
    place = max((names.index(name) for name in rows), default=-1) + 1
    axes = (*kernel.axes[:place], KernelAxis(_NAME, 1), *kernel.axes[place:])
    return replace(kernel, axes=axes, body=_lift_lets(kernel, side, [axis.name for axis in axes]))


def _query_side(kernel: Kernel, scores: Let, keys: tuple[str, ...]) -> str | None:
    """The factor of the scores that knows of no key, if there is one."""
    made = kernel.let(scores.expr.value).expr if isinstance(scores.expr, Reduce) else None
    if not isinstance(made, Binary) or made.fn != "mul" or len(keys) != 1:
        return None
    sides = [name for name in (made.lhs, made.rhs) if keys[0] not in kernel.let(name).axes]
    return sides[0] if len(sides) == 1 else None


def _lift_lets(kernel: Kernel, side: str, order: list[str]) -> tuple[Let, ...]:
    """The Lets, of which a value and all that is made of it live over the axis too."""
    lifted = {side}
    body = []
    for let in kernel.body:
        if let.name in lifted or lifted & set(operands(let)):
            lifted.add(let.name)
            axes = tuple(sorted((*let.axes, _NAME), key=order.index))
            body.append(replace(let, axes=axes))
        else:
            body.append(let)
    return tuple(body)
