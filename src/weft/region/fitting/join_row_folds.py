"""A product and the kernel of its rows made one, where tiles hold rows whole.

    y = kernel(x, w);  z = softmax kernel(y)        ->        z = kernel(x, w)

Numbers of rows, the greatest element or a sum, are then made of the sums of a tile, which never
reach memory. Forms of SM90's kernels in which a group of warps has whole rows may multiply more
slowly, and the folds are not hidden: both are weighed against the kernel that is spared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Final

from weft.foundation.dtypes import BF16, F16, F32
from weft.foundation.index_expr import Expr, FloorDiv, params_of
from weft.region.cost import kernel_seconds, operations_of
from weft.region.fitting.cutting import needed
from weft.region.fitting.joining import merged, replaced
from weft.region.form import Problem
from weft.region.forms.multiplied import usual_atom
from weft.region.forms.problem import find_problem
from weft.region.forms.row_folds import WIDEST, folded_value, holds_rows, is_row_fold
from weft.region.ir import (
    AxisIndex,
    Binary,
    Cast,
    Const,
    Kernel,
    Materialize,
    Module,
    Pattern,
    Read,
    Reduce,
    Roles,
    Select,
    Tensor,
    Unary,
)
from weft.region.structure import buffers
from weft.target.matrix_tiles import FORMS, Extent, Form
from weft.target.matrix_time import CYCLES_A_SECOND, Contraction, Operand, cycles
from weft.target.target import Target

_ELEMENTS: Final = (Read, Const, AxisIndex, Unary, Cast, Binary, Select)
"""What is done for each element beside folds."""
_AT_ONCE: Final = 150
"""Operations on elements in a cycle of a group of warps, whose 128 lanes do one each and hide some
behind the next tile: with this number the choice was right for ten sizes that were timed both ways
on an H200, softmaxes and norms of 64 to 256 columns."""
_STORED: Final = frozenset({BF16, F16, F32})
_MOST_BATCHES: Final = 2
"""Axes of matrices that the copy engine goes through."""


def join_row_folds(module: Module, target: Target) -> Module:
    """The module with rows folded behind the products that they are the results of, where that is
    possible and takes less time."""
    if not target.has("wgmma"):
        return module
    for product in module.kernels:
        rows = _reader(module, product)
        kernel = None if rows is None else _joined(product, rows)
        if rows is None or kernel is None:
            continue
        if _pays(module, rows, kernel, target):
            handed = frozenset({product.outputs[0].tensor})
            module = replaced(module, [product, rows], kernel, handed)
    return module


def _reader(module: Module, product: Kernel) -> Kernel | None:
    """The kernel of rows that alone reads what a product stores, and can do so in its place."""
    if product.roles is None or product.pattern is not Pattern.MATMUL or product.params:
        return None
    if len(product.outputs) != 1 or product.outputs[0].base is not None:
        return None
    made = product.outputs[0].tensor
    users = [kernel for kernel in module.kernels if kernel is not product and made in _used(kernel)]
    if module.tensors[made].role != "internal" or len(users) != 1:
        return None
    rows = users[0]
    plain = rows.pattern is Pattern.ROW and not rows.params and not rows.stages
    if not plain or any(output.base is not None for output in rows.outputs):
        return None
    names = [kernel.name for kernel in module.kernels]
    between = module.kernels[names.index(product.name) + 1 : names.index(rows.name)]
    over = {output.base for kernel in between for output in kernel.outputs}
    return None if over & set(product.inputs) else rows


def _used(kernel: Kernel) -> set[str]:
    bases = {output.base for output in kernel.outputs if output.base is not None}
    return {*buffers(kernel), *bases}


def _joined(product: Kernel, rows: Kernel) -> Kernel | None:
    """The product with its rows folded; None where it is none."""
    old = product.roles
    assert old is not None
    made = merged([product, rows], frozenset({product.outputs[0].tensor}), Pattern.MATMUL)
    if made is None:
        return None

    def axes(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(f"{name}0" for name in names)

    lets = (f"p0_{name}" for name in (old.contraction, old.lhs, old.rhs))
    roles = Roles(axes(old.batch), axes(old.m), axes(old.n), axes(old.k), *lets)
    if {*roles.batch, *roles.m, *roles.n, *roles.k} != {*made.sizes}:
        return None
    if not {roles.contraction, roles.lhs, roles.rhs} <= {let.name for let in made.body}:
        return None
    outputs = tuple(replace(output, materialize=Materialize.DEFERRED) for output in made.outputs)
    kernel = replace(made, roles=roles, outputs=outputs)
    return kernel if _folds_whole_rows(kernel, roles) else None


def _folds_whole_rows(kernel: Kernel, roles: Roles) -> bool:
    """Whether nothing follows the contraction but folds of rows and functions of elements, and all
    results have an element for each sum, of one size."""
    sums = kernel.let(roles.contraction)
    stored = [kernel.let(output.value) for output in kernel.outputs]
    dtypes = {let.dtype for let in stored}
    whole = all({*let.axes} == {*sums.axes} for let in stored)
    alike = dtypes <= _STORED and len({dtype.storage_bytes for dtype in dtypes}) == 1
    if not whole or not alike or sums.dtype is not F32:
        return False
    for let in kernel.body:
        if {*let.axes} & {*roles.k} or let.name == roles.contraction:
            continue
        if is_row_fold(let, roles):
            assert isinstance(let.expr, Reduce)
            if let.dtype is not F32 or kernel.let(let.expr.value).dtype is not F32:
                return False
        elif not isinstance(let.expr, _ELEMENTS) or not _is_plain(kernel, let.expr):
            return False
        elif isinstance(let.expr, Read) and {*let.axes} & {*roles.m} and {*let.axes} & {*roles.n}:
            # Threads would fetch it element by element, which the kernel of rows does not.
            return False
    return True


def _is_plain(kernel: Kernel, expr: object) -> bool:
    """Whether what is read of memory, or of indices, lies at regular distances."""
    match expr:
        case Read():
            return not expr.places and not kernel.open_guards(expr) and _affine(expr.index)
        case AxisIndex(expr=index):
            return _affine((index,))
        case _:
            return True


def _affine(index: Sequence[Expr]) -> bool:
    terms = [term for expr in index for term, _ in expr.terms]
    return not any(isinstance(term, FloorDiv) for term in terms) and not any(map(params_of, index))


# -- what it takes -------------------------------------------------------------------------------


def _pays(module: Module, rows: Kernel, kernel: Kernel, target: Target) -> bool:
    """Whether the kernel takes less time than a product and the kernel of its rows."""
    problem = _problem(kernel, module.tensors)
    if problem is None:
        return False
    depth = -(-problem.k * problem.dtype.storage_bytes // 2)
    first, second = problem.grains
    found = Contraction(
        Extent(problem.batch, problem.m, problem.n, depth),
        Operand(problem.layouts[0] == "row", first),
        Operand(problem.layouts[1] == "col", second),
    )
    suiting = [form for form in FORMS if found.suits(form)]
    holding = [form for form in suiting if holds_rows(form, problem.n)]
    if not holding:
        return False
    each = _operations(kernel)

    def together(form: Form) -> float:
        turns = -(-found.extent.tiles(form) // target.limits.units)
        return cycles(form, found, target) + turns * each * form.sums / _AT_ONCE

    apart = min(cycles(form, found, target) for form in suiting) / CYCLES_A_SECOND
    apart += kernel_seconds(rows, module.tensors, target)
    return min(map(together, holding)) / CYCLES_A_SECOND < apart


def _operations(kernel: Kernel) -> int:
    """What is done for an element of a tile: each fold, and each result, goes back to the sums."""
    roles = kernel.roles
    assert roles is not None
    folds = [let for let in kernel.body if is_row_fold(let, roles)]
    stop = {roles.contraction, *(let.name for let in folds)}
    ends = [*map(folded_value, folds), *(output.value for output in kernel.outputs)]
    done = len(folds)
    for end in ends:
        own = (kernel.let(name) for name in needed([end], kernel, stop) if name not in stop)
        exprs = (let.expr for let in own if {*let.axes} & {*roles.n})
        done += sum(operations_of(getattr(expr, "fn", "")) for expr in exprs)
    return done


def _problem(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Problem | None:
    """What the matrix units of warpgroups are asked for; None where they cannot hold rows."""
    atom, roles = usual_atom(kernel, "sm90"), kernel.roles
    if atom is None or atom.in_parts or roles is None:
        return None
    found = find_problem(kernel, tensors)
    columns = prod(kernel.sizes[name] for name in roles.n)
    if found is None or found.image is not None or found.scattered or not found.aligned:
        return None
    if found.n != columns or columns > WIDEST or len(found.axes.batch) > _MOST_BATCHES:
        return None
    return found if not atom.along_k or found.layouts == ("row", "col") else None
