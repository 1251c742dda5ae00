"""Fusion of a product and the row reductions of its result, where a tile holds whole rows.

    y = kernel(x, w);  z = softmax kernel(y)        ->        z = kernel(x, w)

Numbers of rows, the greatest element or a sum, are then made of the sums of a tile, which never
reach memory. Forms of SM90's kernels in which a group of warps has whole rows may multiply more
slowly, and the folds are not hidden: both are weighed against the kernel that is spared. Of rows
that are longer than a tile nothing but numbers of whole rows can be made so, in two kernels
(`join_row_parts.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from math import prod
from typing import Final

from weft.foundation.dtypes import BF16, F16, F32
from weft.foundation.index_expr import Expr, FloorDiv, params_of
from weft.foundation.records import replace
from weft.region.cost import kernel_seconds, operations_of
from weft.region.fitting.cutting import needed
from weft.region.fitting.join_row_parts import RowParts, row_parts, unchecked
from weft.region.fitting.joining import merged, replaced
from weft.region.form import Problem
from weft.region.forms.multiplied import usual_atom
from weft.region.forms.problem import find_problem
from weft.region.forms.row_folds import (
    PART_WIDTHS,
    WIDEST,
    folded_value,
    holds_part,
    holds_rows,
    is_row_fold,
    part_width,
)
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

ELEMENTS: Final = (Read, Const, AxisIndex, Unary, Cast, Binary, Select)
"""What is done for each element beside folds."""
_AT_ONCE: Final = 150
"""Operations on elements in a cycle of a group of warps, whose 128 lanes do one each and hide some
behind the next tile: with this number the choice was right for ten sizes that were timed both ways
on an H200, softmaxes and norms of 64 to 256 columns."""
_PRODUCTS_A_CYCLE: Final = 2048
"""Of 16-bit numbers, that a unit adds up."""
_STORED: Final = frozenset({BF16, F16, F32})
_MOST_BATCHES: Final = 2
"""Axes of matrices that the copy engine goes through."""


def join_row_folds(module: Module, target: Target) -> Module:
    """The module with rows folded behind the products that they are the results of, where that is
    possible and takes less time."""
    if not target.has("wgmma"):
        return module
    users = users_of(module)
    for product in module.kernels:
        rows = sole_reader(module, product, users)
        kernel = None if rows is None else behind_product(product, rows)
        if rows is None or kernel is None:
            continue
        body = tuple(map(unchecked, kernel.body))
        if not _folds_rows_alone(replace(kernel, body=body)):
            continue
        handed = frozenset({product.outputs[0].tensor})
        if (
            body == kernel.body
            and _folds_whole_rows(kernel)
            and _pays(module, rows, kernel, target)
        ):
            module = replaced(module, [product, rows], kernel, handed)
            users = users_of(module)
            continue
        parts = _parts_that_pay(module, product, rows, kernel, target)
        if parts is not None:
            module = _in_parts(module, product, rows, parts)
            users = users_of(module)
    return module


def _in_parts(module: Module, product: Kernel, rows: Kernel, parts: RowParts) -> Module:
    """The module with both kernels of parts in the place of the second."""
    made = (replace(parts.product, name=product.name), replace(parts.rows, name=rows.name))
    kernels = [kernel for kernel in module.kernels if kernel is not product]
    place = kernels.index(rows)
    kernels[place : place + 1] = made
    gone = product.outputs[0].tensor
    tensors = {name: tensor for name, tensor in module.tensors.items() if name != gone}
    tensors |= {tensor.name: tensor for tensor in parts.between}
    origin, both = dict(module.origin), (product.name, rows.name)
    origin[product.name] = tuple(sorted({i for n in both for i in origin.get(n, ())}))
    return replace(module, tensors=tensors, kernels=tuple(kernels), origin=origin)


def users_of(module: Module) -> dict[str, list[Kernel]]:
    """The kernels that read or write each tensor."""
    found: dict[str, list[Kernel]] = {}
    for kernel in module.kernels:
        for name in buffers(kernel):
            found.setdefault(name, []).append(kernel)
    return found


def sole_reader(
    module: Module, product: Kernel, every: Mapping[str, list[Kernel]]
) -> Kernel | None:
    """The kernel of rows that alone reads what a product stores, and can do so in its place."""
    if product.roles is None or product.pattern is not Pattern.MATMUL or product.params:
        return None
    if len(product.outputs) != 1 or product.outputs[0].base is not None:
        return None
    made = product.outputs[0].tensor
    users = [kernel for kernel in every[made] if kernel is not product]
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


def behind_product(product: Kernel, rows: Kernel) -> Kernel | None:
    """A product and the kernel of its rows as one; None where elements do not meet one to one."""
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
    return replace(made, roles=roles, outputs=outputs)


def _folds_whole_rows(kernel: Kernel) -> bool:
    """Whether all results have an element for each sum, of one size."""
    assert kernel.roles is not None
    sums = kernel.let(kernel.roles.contraction)
    stored = [kernel.let(output.value) for output in kernel.outputs]
    dtypes = {let.dtype for let in stored}
    whole = all({*let.axes} == {*sums.axes} for let in stored)
    return whole and dtypes <= _STORED and len({dtype.storage_bytes for dtype in dtypes}) == 1


def _folds_rows_alone(kernel: Kernel) -> bool:
    """Whether nothing follows the contraction but folds of rows and functions of elements."""
    roles = kernel.roles
    assert roles is not None
    if kernel.let(roles.contraction).dtype is not F32:
        return False
    for let in kernel.body:
        if {*let.axes} & {*roles.k} or let.name == roles.contraction:
            continue
        if is_row_fold(let, roles):
            assert isinstance(let.expr, Reduce)
            if let.dtype is not F32 or kernel.let(let.expr.value).dtype is not F32:
                return False
        elif not isinstance(let.expr, ELEMENTS) or not is_plain(kernel, let.expr):
            return False
        elif isinstance(let.expr, Read) and {*let.axes} & {*roles.m} and {*let.axes} & {*roles.n}:
            # Threads would fetch it element by element, which the kernel of rows does not.
            return False
    return True


def is_plain(kernel: Kernel, expr: object) -> bool:
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
    problem = _warpgroup_problem(kernel, module.tensors)
    if problem is None:
        return False
    found = contraction_of(problem)
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


def contraction_of(problem: Problem) -> Contraction:
    depth = -(-problem.k * problem.dtype.storage_bytes // 2)
    first, second = problem.grains
    return Contraction(
        Extent(problem.batch, problem.m, problem.n, depth),
        Operand(problem.layouts[0] == "row", first),
        Operand(problem.layouts[1] == "col", second),
    )


def _parts_that_pay(
    module: Module, product: Kernel, rows: Kernel, kernel: Kernel, target: Target
) -> RowParts | None:
    """Two kernels that make numbers of rows by way of parts of them, of the width that takes the
    least time, where that is less than a product and the kernel of its rows take."""
    (made,) = (output.tensor for output in product.outputs)
    best, chosen = _seconds_apart(module, product, rows, target), None
    for width in PART_WIDTHS:
        parts = row_parts(kernel, width, f"{made}_parts")
        if parts is None or any(t.name in module.tensors for t in parts.between):
            continue
        tensors = {**module.tensors, **{tensor.name: tensor for tensor in parts.between}}
        problem = _warpgroup_problem(parts.product, tensors)
        if problem is None:
            continue
        seconds = _seconds_of_parts(parts.product, problem, target)
        seconds += kernel_seconds(parts.rows, tensors, target)
        if seconds < best:
            best, chosen = seconds, parts
    return chosen


def _seconds_apart(module: Module, product: Kernel, rows: Kernel, target: Target) -> float:
    """The time of a product and of the kernel of its rows; 0 where it suits no matrix unit."""
    seconds = product_seconds(product, module.tensors, target)
    return 0.0 if seconds is None else seconds + kernel_seconds(rows, module.tensors, target)


def product_seconds(
    product: Kernel, tensors: Mapping[str, Tensor], target: Target, *, light: bool = True
) -> float | None:
    """The time of a product on matrix units, of which what follows the sums may be `light`; None
    where they do not take it as it is."""
    problem, atom = find_problem(product, tensors), usual_atom(product, "sm90")
    if problem is None or atom is None or not problem.aligned or problem.image is not None:
        return None
    found = contraction_of(problem)
    forms = (form for form in FORMS if found.suits(form))
    return min(cycles(form, found, target, light=light) for form in forms) / CYCLES_A_SECOND


def _seconds_of_parts(kernel: Kernel, problem: Problem, target: Target) -> float:
    """The time of a product that stores numbers of parts of its rows alone. Where groups of warps
    take tiles in turn, one makes them while the other multiplies."""
    found, each = contraction_of(problem), _operations(kernel)
    width = part_width(kernel)

    def time(form: Form) -> float:
        turns = -(-found.extent.tiles(form) // target.limits.units)
        work = each * form.sums / _AT_ONCE
        tile = found.extent.k * form.rows * form.columns / _PRODUCTS_A_CYCLE
        shown = max(0.0, work - tile) / 2 if form.roles == "pingpong" else work
        return cycles(form, found, target) + turns * shown + work

    holding = [form for form in FORMS if found.suits(form) and holds_part(form, width)]
    return min(map(time, holding), default=math.inf) / CYCLES_A_SECOND


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


def _warpgroup_problem(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Problem | None:
    """What the matrix units of warpgroups are asked for; None where they cannot hold rows."""
    atom, roles = usual_atom(kernel, "sm90"), kernel.roles
    if atom is None or atom.in_parts or roles is None:
        return None
    found = find_problem(kernel, tensors)
    columns = prod(kernel.sizes[name] for name in roles.n)
    if found is None or found.image is not None or found.scattered or not found.aligned:
        return None
    if found.n != columns or len(found.axes.batch) > _MOST_BATCHES:
        return None
    if part_width(kernel) > WIDEST:
        return None
    return found if not atom.along_k or found.layouts == ("row", "col") else None
