"""Column sums of a product's result, over blocks of its rows.

y[p, r, n] = f(sum_k a[p, r, k] * b[k, n])
t[p, n] = sum_r y[p, r, n]

The last axis of rows goes through a part, m = (..., within). The sums are of y as it is stored, in
f32; a kernel of its own adds up the parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from weft.foundation.dtypes import BF16, F16, F32
from weft.region.ir import Cast, Kernel, Let, Output, Reduce, Roles
from weft.target.matrix_tiles import Form

PART: Final = 64
"""Rows of a part: those of a matrix instruction of a group of warps, whatever the tile."""
SUMMED: Final = (BF16, F16)
"""Dtypes of results whose columns are summed: matrix instructions do it."""

PIECE: Final = 16
"""Columns that a warp sums at a time."""


def sums_in_panels(form: Form) -> bool:
    """Whether a form of SM90's kernels can sum the columns of its results."""
    return not form.swap and form.warp_tile[1] % PIECE == 0


def is_part_sum(let: Let, roles: Roles) -> bool:
    """Whether a Let sums the columns of parts of rows behind a contraction."""
    expr = let.expr
    if let.name == roles.contraction or not isinstance(expr, Reduce) or let.dtype is not F32:
        return False
    parts = len(roles.m) > 1 and expr.axes == roles.m[-1:]
    return expr.fn == "sum" and parts and not {*let.axes} & {*roles.k}


def summed_value(let: Let, lets: Mapping[str, Let]) -> str:
    """What a sum is of, before it was cast to the dtype of the sum."""
    assert isinstance(let.expr, Reduce)
    made = lets[let.expr.value].expr
    return made.x if isinstance(made, Cast) else let.expr.value


def sums_parts(kernel: Kernel) -> bool:
    """Whether a contraction sums columns of parts of its rows."""
    return len(whole_results(kernel)) < len(kernel.outputs)


def whole_results(kernel: Kernel) -> tuple[Output, ...]:
    """The outputs of a contraction that are no such sums."""
    roles = kernel.roles
    if roles is None:
        return kernel.outputs
    return tuple(o for o in kernel.outputs if not is_part_sum(kernel.let(o.value), roles))
