"""Numbers of whole rows behind a contraction.

y[m, n] = sum_k a[m, k] * b[k, n]
t[m] = max_n f(y)[m, n],  l[m] = sum_n g(y, t)[m, n]        folds of rows
z[m, n] = h(y, t, l)[m, n]
"""

from __future__ import annotations

from typing import Final

from weft.foundation.dtypes import F32
from weft.region.ir import Kernel, Let, Reduce, Roles, operands
from weft.target.matrix_tiles import Form

WIDEST: Final = 256
"""Columns of a tile that a group of warps holds whole rows of."""
_MOST_SUMS: Final = 64 * 256
"""Sums of a group of warps beside which its registers hold what is folded."""
FOLDS: Final = ("sum", "max")


def holds_rows(form: Form, columns: int) -> bool:
    """Whether a group of warps has rows of so many columns whole in a form of SM90's kernels, with
    registers for what is folded."""
    return not form.swap and columns <= form.warp_tile[1] and form.sums <= _MOST_SUMS


def is_row_fold(let: Let, roles: Roles) -> bool:
    """Whether a Let makes a number of each row of a contraction, of all its columns."""
    expr = let.expr
    if let.name == roles.contraction or not isinstance(expr, Reduce):
        return False
    return expr.fn in FOLDS and {*expr.axes} == {*roles.n} and not {*let.axes} & {*roles.k}


def folded_value(let: Let) -> str:
    """What a fold of rows folds."""
    assert isinstance(let.expr, Reduce)
    return let.expr.value


def common_start(kernel: Kernel, roles: Roles) -> str:
    """The last value of f32 that all that follows a contraction is made of, with nothing of it
    beside: the contraction itself, or what a bias and a rounding make of it."""
    found = roles.contraction
    for let in kernel.body:
        behind = let.dtype is F32 and not {*let.axes} & {*roles.k}
        if behind and _passes_through(kernel, roles, let.name):
            found = let.name
    return found


def _passes_through(kernel: Kernel, roles: Roles, middle: str) -> bool:
    """Whether every result and fold is made of the contraction by way of a value alone, which is
    made of no fold."""
    folds = {let.name for let in kernel.body if is_row_fold(let, roles)}
    ends = {output.value for output in kernel.outputs}
    ends |= {folded_value(kernel.let(name)) for name in folds}
    around, rows = {roles.contraction}, set(folds)
    for let in kernel.body:
        used = {*operands(let)}
        if let.name not in folds and used & rows:
            rows.add(let.name)
        if let.name not in folds and let.name != middle and used & around:
            around.add(let.name)
    return middle not in rows and not around & ends


def folds_rows(kernel: Kernel) -> bool:
    """Whether a contraction makes numbers of whole rows."""
    roles = kernel.roles
    return roles is not None and any(is_row_fold(let, roles) for let in kernel.body)
