"""Fusion of column sums into products: partial sums over blocks of rows, in the epilogue.

    y = kernel(x, w);  s[n] = sum over m of y[m, n]

      -->  y, t[p, n] = kernel(x, w)          t: the sums of 64 rows each
           s[n] = sum over p of t[p, n]

The gradient of a bias is such a sum. A tile's results lie in shared memory when they are stored, so
that their columns are summed in next to no time there, and y is not read again. What follows the
sums stays with the second kernel, which may be that of several products of the same form.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from weft.foundation.dtypes import F32
from weft.foundation.index_expr import Expr, FloorDiv, add, axis, coefficient, linear, scale
from weft.foundation.records import dataclass, replace
from weft.region.fitting.cutting import free_name, needed
from weft.region.fitting.join_column_sums import seconds_when_cut, sums_columns
from weft.region.fitting.join_row_folds import contraction_of
from weft.region.fitting.joining import live
from weft.region.form import Problem
from weft.region.forms.multiplied import usual_atom
from weft.region.forms.part_sums import PART, SUMMED, sums_in_panels, sums_parts
from weft.region.forms.problem import find_problem
from weft.region.ir import (
    Cast,
    Kernel,
    KernelAxis,
    Let,
    Materialize,
    Module,
    Output,
    Pattern,
    Read,
    Reduce,
    Tensor,
    row_major,
)
from weft.region.writing.axes import split_axis
from weft.target.matrix_tiles import FORMS
from weft.target.matrix_time import CYCLES_A_SECOND, cycles, split_for
from weft.target.target import Target

_PART: Final = "part"


@dataclass(frozen=True)
class _Matrix:
    """How a kernel goes through a tensor: along its rows and columns."""

    shape: tuple[int, int]
    column: Expr
    """The number of a column."""


@dataclass(frozen=True)
class _Source:
    """A sum of columns, and the product that stores what is summed."""

    total: Let
    product: Kernel
    output: Output
    column: Expr
    """The number of a column in the kernel of sums."""


def join_product_sums(module: Module, target: Target) -> Module:
    """The module with sums of columns made where products store what is summed, where that takes
    less time."""
    if not target.has("wgmma"):
        return module
    made = _results_of_products(module)
    for sums in module.kernels:
        sources = _sources(sums, module, made)
        joined = None if sources is None else _join_sums(module, sums, sources, target)
        if joined is not None:
            module, made = joined, _results_of_products(joined)
    return module


def _results_of_products(module: Module) -> dict[str, tuple[Kernel, Output]]:
    """What products store that sum no columns yet, by tensors."""
    products = filter(_is_plain_product, module.kernels)
    return {output.tensor: (kernel, output) for kernel in products for output in kernel.outputs}


def _sources(
    sums: Kernel, module: Module, made: Mapping[str, tuple[Kernel, Output]]
) -> list[_Source] | None:
    """Where the summands of every sum of a kernel come from; None where it does anything else, or
    where one of them is not all rows of a product's result."""
    if not sums_columns(sums):
        return None
    found: list[_Source] = []
    for let in sums.body:
        if not isinstance(let.expr, Reduce):
            continue
        summed = sums.let(let.expr.value)
        read = sums.let(summed.expr.x).expr if isinstance(summed.expr, Cast) else summed.expr
        if not isinstance(read, Read) or read.guards or read.tensor not in made:
            return None
        product, output = made[read.tensor]
        matrix = _matrix(sums, read.index, module.tensors[read.tensor], {*let.expr.axes})
        if matrix is None or not _stores_rows(product, output, module, matrix.shape):
            return None
        found.append(_Source(let, product, output, matrix.column))
    shapes = {module.tensors[source.output.tensor].dtype for source in found}
    return found if shapes <= {*SUMMED} else None


def _is_plain_product(kernel: Kernel) -> bool:
    """Whether a kernel is a product of one matrix that sums no columns yet."""
    roles = kernel.roles
    if roles is None or kernel.pattern is not Pattern.MATMUL or kernel.params:
        return False
    one = math.prod(kernel.sizes[name] for name in roles.batch) == 1
    return one and not sums_parts(kernel) and all(o.base is None for o in kernel.outputs)


def _matrix(
    kernel: Kernel, index: tuple[Expr, ...], tensor: Tensor, rows: set[str]
) -> _Matrix | None:
    """A tensor as a matrix that a kernel goes through from end to end, along `rows` and the other
    axes; None where that is not how it lies."""
    address = linear(index, row_major(tensor.shape))
    if address.constant or any(isinstance(term, FloorDiv) for term, _ in address.terms):
        return None
    axes = [found for found in kernel.axes if coefficient(address, found.name)]
    high = _merge_axes([found for found in axes if found.name in rows], address)
    wide = _merge_axes([found for found in axes if found.name not in rows], address)
    if high is None or wide is None or wide[1] != 1 or high[1] != wide[0]:
        return None
    if rows - {found.name for found in axes} - _axes_of_one(kernel):
        return None
    terms = (scale(axis(a.name), coefficient(address, a.name)) for a in axes if a.name not in rows)
    return _Matrix((high[0], wide[0]), add(*terms))


def _axes_of_one(kernel: Kernel) -> set[str]:
    return {name for name, size in kernel.sizes.items() if size == 1}


def _merge_axes(axes: list[KernelAxis], address: Expr) -> tuple[int, int] | None:
    """The size and the stride of axes that act as one."""
    size, stride = 1, 0
    for found in sorted(axes, key=lambda found: coefficient(address, found.name)):
        step = coefficient(address, found.name)
        if size > 1 and step != stride * size:
            return None
        stride = stride if size > 1 else step
        size *= found.size
    return (size, stride) if stride > 0 else None


def _stores_rows(product: Kernel, output: Output, module: Module, shape: tuple[int, int]) -> bool:
    """Whether a product stores a matrix of a shape in rows, an element for each of its sums, and
    its last axis of rows consists of whole parts."""
    roles = product.roles
    assert roles is not None
    every = {*product.let(roles.contraction).axes}
    if {*product.let(output.value).axes} != every:
        return False
    found = _matrix(product, output.index, module.tensors[output.tensor], {*roles.m})
    if found is None or found.shape != shape:
        return False
    address = linear(output.index, row_major(module.tensors[output.tensor].shape))
    last = roles.m[-1]
    whole = coefficient(address, last) == shape[1] and product.sizes[last] % PART == 0
    problem, atom = find_problem(product, module.tensors), usual_atom(product, "sm90")
    plain = problem is not None and problem.image is None and problem.aligned
    return whole and plain and atom is not None and not atom.in_parts


# -- the kernels ---------------------------------------------------------------------------------


def _join_sums(
    module: Module, sums: Kernel, sources: list[_Source], target: Target
) -> Module | None:
    """The module with products that sum in parts; None where that takes longer."""
    kernels = {kernel.name: kernel for kernel in module.kernels}
    tensors, parts = dict(module.tensors), dict[str, str]()
    for source in sources:
        name = free_name(f"{source.output.tensor}_sums", tensors)
        rows, columns = _extents(source, module)
        tensors[name] = Tensor(name, F32, (rows // PART, columns))
        parts[source.total.name] = name
        product = kernels[source.product.name]
        kernels[product.name] = _with_sums(product, source, tensors, name)
    second = _sums_of_parts(sums, sources, tensors, parts)
    before = seconds_when_cut(sums, module.tensors, target)
    after = seconds_when_cut(second, tensors, target)
    for name in dict.fromkeys(source.product.name for source in sources):
        (old,) = (kernel for kernel in module.kernels if kernel.name == name)
        alone, summing = find_problem(old, module.tensors), find_problem(kernels[name], tensors)
        if alone is None or summing is None or not summing.aligned or summing.axes.batch:
            return None
        # Such a product becomes two kernels, and the one with matrix instructions stores no
        # results.
        if split_for(contraction_of(alone).extent, target) > 1:
            return None
        before += _time_of_product(alone, target)
        after += _time_of_product(summing, target, summing=True)
    if after >= before:
        return None
    kernels[sums.name] = second
    return replace(module, tensors=tensors, kernels=tuple(kernels[k.name] for k in module.kernels))


def _extents(source: _Source, module: Module) -> tuple[int, int]:
    """Rows and columns of what is summed."""
    shape = module.tensors[source.output.tensor].shape
    roles = source.product.roles
    assert roles is not None
    rows = math.prod(source.product.sizes[name] for name in roles.m)
    return rows, math.prod(shape) // rows


def _with_sums(
    product: Kernel, source: _Source, tensors: Mapping[str, Tensor], name: str
) -> Kernel:
    """A product that also stores the sums of each part of its rows."""
    assert product.roles is not None
    last = product.roles.m[-1]
    # A result before may have cut the rows.
    cut = product if sums_parts(product) else _cut_rows(product, last)
    assert cut.roles is not None
    within = cut.roles.m[-1]
    (output,) = (o for o in cut.outputs if o.tensor == source.output.tensor)
    address = linear(output.index, row_major(tensors[output.tensor].shape))
    width = tensors[name].shape[1]
    value = cut.let(output.value)
    wide, total = (free_name(f"{value.name}_{end}", cut.lets) for end in ("wide", "summed"))
    kept = tuple(found for found in value.axes if found != within)
    rows = [found for found in kept if found in cut.roles.m]
    columns = [found for found in kept if found not in cut.roles.m]
    index = (
        add(*(scale(axis(a), coefficient(address, a) // (PART * width)) for a in rows)),
        add(*(scale(axis(a), coefficient(address, a)) for a in columns)),
    )
    body = (
        *cut.body,
        Let(wide, F32, value.axes, Cast(value.name)),
        Let(total, F32, kept, Reduce("sum", (within,), wide)),
    )
    made = Output(name, total, index, materialize=Materialize.DEFERRED)
    return replace(cut, body=body, outputs=(*cut.outputs, made))


def _cut_rows(product: Kernel, last: str) -> Kernel:
    return split_axis(product, last, (product.sizes[last] // PART, PART))


def _sums_of_parts(
    sums: Kernel, sources: list[_Source], tensors: Mapping[str, Tensor], parts: Mapping[str, str]
) -> Kernel:
    """The kernel of sums, adding up those of parts."""
    (count,) = {tensors[name].shape[0] for name in parts.values()}
    part = KernelAxis(free_name(_PART, sums.sizes), count, reduce=True)
    body: list[Let] = []
    for source in sources:
        let = source.total
        read = free_name(f"{let.name}_part", sums.lets)
        place = (axis(part.name), source.column)
        body.append(Let(read, F32, (*let.axes, part.name), Read(parts[let.name], place)))
        body.append(replace(let, expr=Reduce("sum", (part.name,), read)))
    names = {source.total.name for source in sources}
    wanted = needed((output.value for output in sums.outputs), sums, names) - names
    body += [let for let in sums.body if let.name in wanted]
    return live(replace(sums, axes=(*sums.axes, part), body=tuple(body), labels={}))


def _time_of_product(problem: Problem, target: Target, *, summing: bool = False) -> float:
    """The time of a product."""
    found = contraction_of(problem)
    forms = (form for form in FORMS if found.suits(form) and (not summing or sums_in_panels(form)))
    times = (cycles(form, found, target) for form in forms)
    return min(times, default=math.inf) / CYCLES_A_SECOND
