"""What the FMA template takes: which products and operands, and which plans it refuses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Final

from weft.codegen.gpu.body.accept import refuse, too_many
from weft.codegen.gpu.ir.formats import held_bytes
from weft.codegen.gpu.products.fma_registers import LANE_GRID, LaneRegisters
from weft.codegen.gpu.products.refusals import field_refusals, order_refusals, unused_field_refusals
from weft.codegen.gpu.products.tiles import TileOrder
from weft.foundation.errors import Finding
from weft.plan.ir import MmaPlan
from weft.region.forms.codes import made_of
from weft.region.ir import Binary, Fold, Kernel, Let, Read, Reduce, epilogue_of
from weft.target.target import Target

PADDING: Final = 4
"""Elements between the rows of a slice, so that they begin in different banks."""
_USED: Final = frozenset({
    "header", "tile", "stages", "warp_tile", "cache", "order", "epilogue", "local_edges", "arch",
    "algo_choice",
})  # fmt: skip
_FIXED: Final = {"roles": "single"}


def refusals(kernel: Kernel, plan: MmaPlan, target: Target) -> Iterator[Finding]:
    """Why the template cannot carry out a kernel, or not with the plan."""
    form = list(_form(kernel))
    yield from form
    if not form:
        yield from _fma_field_refusals(kernel, plan)
        yield from _tile(kernel, plan, target)


def _form(kernel: Kernel) -> Iterator[Finding]:
    """The kernel is one sum of products, of a factor over rows and one over columns."""
    reductions = [let for let in kernel.body if isinstance(let.expr, Reduce | Fold)]
    if kernel.roles is None or [let.name for let in reductions] != [kernel.roles.contraction]:
        yield refuse("NotAContraction", f"{kernel.name} is not one contraction and its epilogue")
        return
    roles, total = kernel.roles, reductions[0].expr
    product = kernel.let(total.value) if isinstance(total, Reduce) else reductions[0]
    if not isinstance(total, Reduce) or total.fn != "sum" or not isinstance(product.expr, Binary):
        yield refuse("NotAContraction", "what is summed is not a product")
        return
    a, b = (set(kernel.let(name).axes) for name in factors(kernel))
    if a & set(roles.n) or b & set(roles.m):
        yield refuse("NotAContraction", "a factor lives over rows and columns")
    over_k = [o for o in kernel.outputs if set(kernel.let(o.value).axes) & set(roles.k)]
    if over_k or set(total.axes) != set(roles.k):
        yield refuse("NotAContraction", "a result lives over what is summed")
    sides = (roles.batch, roles.m, roles.n, roles.k)
    yield from too_many(*(points_along(kernel, axes) for axes in sides))


def points_along(kernel: Kernel, names: Sequence[str]) -> int:
    """How many points such axes have together."""
    return prod(kernel.sizes[name] for name in names)


def order_of(kernel: Kernel, plan: MmaPlan) -> TileOrder:
    """The tiles of the result, and in which order blocks take them."""
    roles = kernel.roles
    assert roles is not None
    batches, m, n = (points_along(kernel, axes) for axes in (roles.batch, roles.m, roles.n))
    rows, columns, _ = plan.tile
    return TileOrder(-(-m // rows), -(-n // columns), batches, plan.order)


def factors(kernel: Kernel) -> tuple[str, str]:
    """The values that are multiplied, that over the rows first."""
    assert kernel.roles is not None
    total = kernel.let(kernel.roles.contraction).expr
    assert isinstance(total, Reduce)
    product = kernel.let(total.value).expr
    assert isinstance(product, Binary)
    turned = bool(
        set(kernel.let(product.lhs).axes) & set(kernel.roles.n)
        or set(kernel.let(product.rhs).axes) & set(kernel.roles.m)
    )
    return (product.rhs, product.lhs) if turned else (product.lhs, product.rhs)


def _fma_field_refusals(kernel: Kernel, plan: MmaPlan) -> Iterator[Finding]:
    yield from unused_field_refusals(plan, _USED, _FIXED, "the FMA template")
    yield from field_refusals(kernel, plan)


def _tile(kernel: Kernel, plan: MmaPlan, target: Target) -> Iterator[Finding]:
    (rows, columns, depth), (warp_rows, warp_columns) = plan.tile, plan.warp_tile
    if rows % warp_rows or columns % warp_columns:
        yield refuse("Tile", f"warp_tile does not divide the tile {rows}x{columns}")
        return
    threads = (rows // warp_rows) * (columns // warp_columns) * 32
    if warp_rows % LANE_GRID[0] or warp_columns % LANE_GRID[1] or threads > 1024:
        shape = f"{warp_rows}x{warp_columns}"
        yield refuse("Tile", f"a warp tile of {shape} is not shared by 4x8 lanes of 32 warps")
    elif rows * depth % threads or columns * depth % threads or depth > 64:
        shape = "x".join(map(str, plan.tile))
        yield refuse("Tile", f"the slices of tile {shape} are not shared by {threads} threads")
    else:
        yield from registers_of(kernel, plan).refusals(target)
    yield from order_refusals(order_of(kernel, plan))
    size = plan.stages * depth * (rows + columns + 2 * PADDING)
    size *= max(held_bytes(kernel.let(name).dtype) for name in factors(kernel))
    if size > target.limits.shared_bytes_per_block:
        why = f"{plan.stages} slices of both operands take {size} bytes"
        yield refuse("SharedMemory", why, "use fewer stages or a smaller tile")


def registers_of(kernel: Kernel, plan: MmaPlan) -> LaneRegisters:
    """What a plan for the kernel asks of each lane."""
    roles = kernel.roles
    assert roles is not None
    a, b = factors(kernel)
    dtypes = (kernel.let(a).dtype, kernel.let(b).dtype)
    gathered = (_is_gathered(kernel, a, roles.m), _is_gathered(kernel, b, roles.n))
    sums, epilogue = kernel.let(roles.contraction).dtype, epilogue_of(kernel)
    return LaneRegisters(plan, sums, dtypes, gathered, has_epilogue=bool(epilogue))


def _is_gathered(kernel: Kernel, factor: str, across: Sequence[str]) -> bool:
    """Whether places of a factor's elements are worked out of several axes, or may not exist."""
    assert kernel.roles is not None
    taken_apart = (
        sum(kernel.sizes[name] > 1 for name in axes) > 1 for axes in (across, kernel.roles.k)
    )
    return any(taken_apart) or any(_has_guards(let) for let in made_of(kernel, factor))


def _has_guards(let: Let) -> bool:
    return isinstance(let.expr, Read) and bool(let.expr.guards)
