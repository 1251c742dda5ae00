"""Convolutions that Winograd's F(2x2, 3x3) can compute: the roles of the kernel's operands and
axes.

The read of the image depends on a row of the result and a row of the window through their sum
alone, and likewise on a column, so that a tile of 4 x 4 elements holds all that 2 x 2 results need.
"""

from __future__ import annotations

from weft.foundation.index_expr import Expr, coefficient
from weft.region.form import Windows
from weft.region.ir import Binary, Cast, Kernel, Pattern, Read, Reduce

WINDOW = 3
STEP = 2
"""Results along each side of a tile."""
NO_CONVOLUTION = "it is not a convolution of one group"


def find_windows(kernel: Kernel) -> Windows | str:
    """The axes of a convolution, or why Winograd's algorithm is none for it."""
    roles = kernel.roles
    if kernel.pattern is not Pattern.CONV or roles is None or roles.batch:
        return NO_CONVOLUTION
    image, weight = (_plain_read(kernel, name) for name in _factor_reads(kernel))
    if image is None or weight is None:
        return "its operands are computed on the way"
    if not kernel.let(roles.contraction).dtype.is_float:
        return "it does not add up floats"
    if any(_run_together(weight, n, k) for n in roles.n for k in roles.k):
        return "its result has its channels first; they must come last"
    pairs = [(m, k) for m in roles.m for k in roles.k if _run_together(image, m, k)]
    if len(pairs) != 2 or any(kernel.sizes[k] != WINDOW for _, k in pairs):
        return "its window is not 3 x 3 at unit steps"
    if any(kernel.sizes[m] % STEP for m, _ in pairs):
        return "its result has an odd number of rows or columns"
    (rows, down), (columns, across) = pairs
    channels = tuple(k for k in roles.k if k not in (down, across))
    images = tuple(m for m in roles.m if m not in (rows, columns))
    return Windows(rows, columns, down, across, channels, images)


def _factor_reads(kernel: Kernel) -> tuple[str, str]:
    """The reads of image and window; the image is the side with the rows."""
    assert kernel.roles is not None
    made = kernel.let(kernel.roles.contraction).expr
    product = kernel.let(made.value).expr if isinstance(made, Reduce) else None
    if not isinstance(product, Binary):
        return "", ""
    return kernel.roles.lhs, kernel.roles.rhs


def _plain_read(kernel: Kernel, name: str) -> Read | None:
    """The read of an operand that is multiplied as it is, or widened."""
    if not name or kernel.roles is None:
        return None
    read = kernel.let(name).expr
    made = kernel.let(kernel.roles.contraction).expr
    product = kernel.let(made.value).expr if isinstance(made, Reduce) else None
    sides = (product.lhs, product.rhs) if isinstance(product, Binary) else ()
    multiplied = {_before_casts(kernel, side) for side in sides}
    return read if isinstance(read, Read) and not read.places and name in multiplied else None


def _before_casts(kernel: Kernel, name: str) -> str:
    while isinstance(expr := kernel.let(name).expr, Cast):
        name = expr.x
    return name


def _run_together(read: Read, one: str, other: str) -> bool:
    """Whether two axes are in an index as their sum, and nowhere else but as that."""
    exprs: list[Expr] = [*read.index, *(guard.expr for guard in read.guards)]
    steps = [(coefficient(expr, one), coefficient(expr, other)) for expr in exprs]
    return any(step == (1, 1) for step in steps) and all(a == b for a, b in steps)
