"""Verification of what a kernel claims about its body: pattern, roles of the axes, reduced axes,
epilogue outputs. Plans and templates rely on it.
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.foundation.index_expr import axes_of
from weft.region.forms.attention import find_attention
from weft.region.forms.part_sums import is_part_sum
from weft.region.forms.planes import is_pool
from weft.region.forms.row_folds import is_row_fold
from weft.region.forms.staged import find_staged
from weft.region.forms.stream import find_stream
from weft.region.ir import (
    Binary,
    Cast,
    Fold,
    Kernel,
    Let,
    Materialize,
    Pattern,
    Read,
    Reduce,
    Roles,
)

Problem = tuple[str, str]
"""A code and the reason."""
_CONTRACTIONS = (Pattern.MATMUL, Pattern.CONV)


def claim_problems(kernel: Kernel) -> Iterator[Problem]:
    """What is wrong with the claims of a kernel whose body is right."""
    yield from _pattern_problems(kernel)
    yield from _check_reduced(kernel)
    if kernel.roles is not None:
        yield from _role_problems(kernel, kernel.roles)
    for output in kernel.outputs:
        ends = kernel.roles is not None and output.value != kernel.roles.contraction
        wanted = Materialize.DEFERRED if ends else Materialize.GMEM
        if output.materialize is not wanted:
            yield (
                "RegionMaterialize",
                f"{output.tensor} is {output.materialize.value}, but {output.value} is "
                f"{'what follows the contraction' if ends else 'stored as it is'}: "
                f"{wanted.value}",
            )


def _pattern_problems(kernel: Kernel) -> Iterator[Problem]:
    pattern = kernel.pattern
    if pattern in _CONTRACTIONS:
        if kernel.roles is None:
            yield "RegionRoles", f"a {pattern.value} kernel needs roles"
        return
    if kernel.roles is not None:
        yield "RegionRoles", f"a {pattern.value} kernel has no roles"
    if pattern is Pattern.ATTENTION:
        if find_attention(kernel) is None:
            yield "RegionPattern", "it is called attention, but its body is none"
        return
    if pattern is Pattern.STREAM:
        if find_stream(kernel) is None:
            yield "RegionPattern", "it is called stream, but its body is none"
        return
    if pattern is Pattern.STAGED:
        why = find_staged(kernel)
        if isinstance(why, str):
            yield "RegionPattern", f"it is called staged, but its stages do not slide: {why}"
        return
    if kernel.stages:
        yield "RegionPattern", f"it is called {pattern.value}, but it has stages: staged"
        return
    reduces = any(isinstance(let.expr, Reduce | Fold) for let in kernel.body)
    wanted = Pattern.ROW if reduces else Pattern.MAP
    if pattern is not wanted:
        yield "RegionPattern", f"it is called {pattern.value}, but its body is a {wanted.value}"


def _check_reduced(kernel: Kernel) -> Iterator[Problem]:
    stored = {name for output in kernel.outputs for name in kernel.let(output.value).axes}
    for axis in kernel.axes:
        if axis.reduce is (axis.name in stored):
            is_not = "" if axis.reduce else "not "
            yield (
                "RegionAxis",
                f"axis {axis.name} is {is_not}marked as reduced, but an output is "
                f"{'' if axis.reduce else 'not '}stored over it",
            )


def _role_problems(kernel: Kernel, roles: Roles) -> Iterator[Problem]:
    named = [*roles.batch, *roles.m, *roles.n, *roles.k]
    if len(set(named)) != len(named) or not set(named) <= set(kernel.sizes):
        yield "RegionRoles", f"the roles {named} are not axes, each in one role"
    if not (roles.m and roles.n and roles.k):
        yield "RegionRoles", "rows, columns and summed axes need an axis each at least"
    lets = {let.name: let for let in kernel.body}
    total = lets.get(roles.contraction)
    if total is None or not isinstance(total.expr, Reduce) or total.expr.fn != "sum":
        yield "RegionRoles", f"{roles.contraction} is not a sum over {list(roles.k)}"
        return
    if total.expr.axes != roles.k or set(total.axes) != {*roles.batch, *roles.m, *roles.n}:
        yield "RegionRoles", f"{roles.contraction} is not a sum over {list(roles.k)}"
    elif any(
        not (is_row_fold(let, roles) or is_part_sum(let, roles) or is_pool(kernel, let))
        for let in _other_folds(kernel, roles)
    ):
        yield "RegionRoles", "beside its contraction it reduces something else"
    else:
        yield from _side_problems(lets, total.expr, roles)


def _other_folds(kernel: Kernel, roles: Roles) -> Iterator[Let]:
    """What a contraction reduces beside its sums."""
    for let in kernel.body:
        if isinstance(let.expr, Reduce | Fold) and let.name != roles.contraction:
            yield let


def _side_problems(lets: dict[str, Let], total: Reduce, roles: Roles) -> Iterator[Problem]:
    """The contraction sums a product of the two sides, which are read, or computed of what is, and
    depend on the axes of their roles."""
    product = lets[total.value].expr
    if isinstance(product, Cast):
        product = lets[product.x].expr
    factors = (product.lhs, product.rhs) if isinstance(product, Binary) else ()
    if not isinstance(product, Binary) or product.fn != "mul":
        yield "RegionRoles", f"{roles.contraction} does not sum a product"
    elif {_side_below(lets, name, roles) for name in factors} != {roles.lhs, roles.rhs}:
        yield "RegionRoles", f"{roles.lhs} and {roles.rhs} are not the reads that it multiplies"
    else:
        for side, own, other in ((roles.lhs, roles.m, roles.n), (roles.rhs, roles.n, roles.m)):
            read = lets[side].expr
            if isinstance(read, Read):
                exprs = (*read.index, *(guard.expr for guard in read.guards))
                used = frozenset[str]().union(*(axes_of(expr) for expr in exprs))
            else:
                used = frozenset(lets[side].axes)
            if not used >= {*own, *roles.k, *roles.batch} or used & {*other}:
                yield "RegionRoles", f"{side} is not read along the axes of its role"


def _side_below(lets: dict[str, Let], name: str, roles: Roles) -> str:
    """The side that a factor is, through casts: a read, or what is computed of one (codes may be
    nothing but converted); nothing where it is neither."""
    passed = [name]
    while isinstance(expr := lets[passed[-1]].expr, Cast):
        passed.append(expr.x)
    return next((found for found in passed if found in (roles.lhs, roles.rhs)), "")
