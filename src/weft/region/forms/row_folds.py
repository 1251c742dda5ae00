"""Row reductions in the epilogue of a product.

y[m, n] = sum_k a[m, k] * b[k, n]
t[m] = max_n f(y)[m, n],  l[m] = sum_n g(y, t)[m, n]        folds of rows
z[m, n] = h(y, t, l)[m, n]

Columns may be two axes, n = (parts, within): numbers are then those of a part of a row each, which
are all that is stored.
"""

from __future__ import annotations

from math import prod
from typing import Final

from weft.foundation.dtypes import F32
from weft.region.ir import Kernel, Let, Reduce, Roles, operands
from weft.target.matrix_tiles import Form

WIDEST: Final = 256
"""Columns of a tile that a group of warps holds whole rows of."""
_MOST_SUMS: Final = 64 * 256
"""Sums of a group of warps beside which its registers hold what is folded."""
_MOST_OF_PARTS: Final = 128 * 192
"""The same, where nothing but numbers of rows is made of them."""
PART_WIDTHS: Final = (256, 192, 128)
"""Columns of parts of rows."""
FOLDS: Final = ("sum", "max")


def holds_rows(form: Form, columns: int) -> bool:
    """Whether a group of warps has rows of so many columns whole in a form of SM90's kernels, with
    registers for what is folded."""
    return not form.swap and columns <= form.warp_tile[1] and form.sums <= _MOST_SUMS


def holds_part(form: Form, columns: int) -> bool:
    """Whether the columns of a group of warps are those of one part of a row."""
    return not form.swap and columns == form.warp_tile[1] and form.sums <= _MOST_OF_PARTS


def is_row_fold(let: Let, roles: Roles) -> bool:
    """Whether a Let makes a number of each row of a contraction, of all its columns or of those of
    a part."""
    expr = let.expr
    if let.name == roles.contraction or not isinstance(expr, Reduce):
        return False
    whole = {*expr.axes} == {*roles.n} or (len(roles.n) == 2 and expr.axes == roles.n[1:])
    return expr.fn in FOLDS and whole and not {*let.axes} & {*roles.k}


def part_width(kernel: Kernel) -> int:
    """The columns that numbers of rows are made of; 0 where none are."""
    widths = {prod(kernel.sizes[name] for name in axes) for axes in _folded_axes(kernel)}
    return max(widths, default=0)


def folds_parts(kernel: Kernel) -> bool:
    """Whether a contraction makes numbers of parts of rows."""
    roles = kernel.roles
    return roles is not None and any({*axes} != {*roles.n} for axes in _folded_axes(kernel))


def _folded_axes(kernel: Kernel) -> list[tuple[str, ...]]:
    """The axes of columns of each number of rows."""
    roles = kernel.roles
    if roles is None:
        return []
    folds = (let.expr for let in kernel.body if is_row_fold(let, roles))
    return [fold.axes for fold in folds if isinstance(fold, Reduce)]


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
    # `around`: what is made of the contraction on a way that does not lead through the middle;
    # `rows`: what is made of a fold.
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
