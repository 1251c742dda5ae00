"""Fusion of a bias or a residual into the epilogue of a product, if a row kernel adds it.

    y = kernel(x, w);  z = rows(y + b + r)    ->    s = kernel(x, w, b, r);  z = rows(s)

A sum that only the row kernel needs is normally inlined there, which is right if it is computed
from one tensor. From two tensors, the row kernel would read both, and it is bound by memory; the
product is bound by arithmetic, and its copy engine has time to load the second tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from weft.foundation.index_expr import axis
from weft.foundation.records import replace
from weft.region.cost import kernel_seconds
from weft.region.fitting.cutting import computed_from, needed
from weft.region.fitting.join_row_folds import (
    ELEMENTS,
    behind_product,
    is_plain,
    product_seconds,
    sole_reader,
    users_of,
)
from weft.region.fitting.joining import live
from weft.region.ir import (
    Kernel,
    Let,
    Materialize,
    Module,
    Output,
    Pattern,
    Read,
    Tensor,
    operands,
)
from weft.target.target import Target

_LINE: Final = 16
"""Bytes that rows begin at multiples of, which the copy engine brings."""


def with_elements_behind(module: Module, target: Target) -> Module:
    """The module with products that store what rows make of their results and of one matrix more,
    where that takes less time."""
    if not target.has("wgmma"):
        return module
    users = users_of(module)
    for product in module.kernels:
        rows = sole_reader(module, product, users)
        if rows is None or not _reads_alike(rows, product, module):
            continue
        whole = behind_product(product, rows)
        if whole is None:
            continue
        value = _last_element(whole, product, module)
        if value is None:
            continue
        (old,) = product.outputs
        first, second = _split_kernel(whole, value, old.tensor)
        tensors = {**module.tensors, old.tensor: _tensor_for_value(whole, value, old.tensor)}
        if not _pays(module.tensors, (product, rows), tensors, (first, second), target):
            continue
        made = (replace(first, name=product.name), replace(second, name=rows.name))
        kernels = [kernel for kernel in module.kernels if kernel is not product]
        place = kernels.index(rows)
        kernels[place : place + 1] = made
        origin, both = dict(module.origin), (product.name, rows.name)
        origin[product.name] = tuple(sorted({i for n in both for i in origin.get(n, ())}))
        module = replace(module, tensors=tensors, kernels=tuple(kernels), origin=origin)
        users = users_of(module)
    return module


def _reads_alike(rows: Kernel, product: Kernel, module: Module) -> bool:
    """Whether rows read another tensor that is as large as the product's result."""
    own = module.tensors[product.outputs[0].tensor]
    others = (module.tensors[name] for name in rows.inputs if name != own.name)
    return any(found.dtype is own.dtype and found.bytes == own.bytes for found in others)


def _pays(
    before: Mapping[str, Tensor],
    old: tuple[Kernel, Kernel],
    after: Mapping[str, Tensor],
    new: tuple[Kernel, Kernel],
    target: Target,
) -> bool:
    """Whether a product and its rows take less time, by what they compute and move, and by the
    model of matrix units, which knows that results with more to do are not stored on the side."""
    whole = [
        sum(kernel_seconds(k, known, target) for k in pair)
        for known, pair in ((before, old), (after, new))
    ]
    first = product_seconds(old[0], before, target)
    second = product_seconds(new[0], after, target, light=False)
    if first is None or second is None or whole[1] >= whole[0]:
        return False
    first += kernel_seconds(old[1], before, target)
    return second + kernel_seconds(new[1], after, target) < first


def _last_element(kernel: Kernel, product: Kernel, module: Module) -> str | None:
    """The last value, of the size of the product's result and with all of its axes, that everything
    is made of, by way of one matrix of the same dtype; None where there is none."""
    roles = kernel.roles
    assert roles is not None
    whole = {*kernel.let(roles.contraction).axes}
    dtype = module.tensors[product.outputs[0].tensor].dtype
    stored = {output.value for output in kernel.outputs}
    found = None
    for let in _values_all_pass(kernel, roles.contraction):
        if {*let.axes} != whole or let.dtype is not dtype or let.name in stored:
            continue
        own = needed([let.name], kernel, [roles.contraction]) - {roles.contraction}
        lets = [kernel.let(name) for name in own]
        if not all(
            isinstance(made.expr, ELEMENTS) and is_plain(kernel, made.expr) for made in lets
        ):
            break
        beside = [made for made in lets if isinstance(made.expr, Read) and {*made.axes} == whole]
        if len(beside) == 1 and beside[0].dtype is dtype and _in_lines(beside[0], module):
            found = let.name
    return found


def _in_lines(let: Let, module: Module) -> bool:
    """Whether the copy engine brings a tensor: its rows begin at multiples of 16 bytes."""
    assert isinstance(let.expr, Read)
    shape = module.tensors[let.expr.tensor].shape
    return bool(shape) and shape[-1] * let.dtype.storage_bytes % _LINE == 0


def _values_all_pass(kernel: Kernel, start: str) -> Iterator[Let]:
    """The values by way of each of which alone everything is made of the first, in order."""
    ends, made = {output.value for output in kernel.outputs}, computed_from(kernel, {start})
    for middle in (let for let in kernel.body if let.name in made):
        around = {start} - {middle.name}
        for let in kernel.body:
            if let.name != middle.name and around.intersection(operands(let)):
                around.add(let.name)
        if not around & ends:
            yield middle


def _split_kernel(kernel: Kernel, value: str, tensor: str) -> tuple[Kernel, Kernel]:
    """The product up to a value, which it stores in a tensor, and the rows of what is stored."""
    let = kernel.let(value)
    index = tuple(map(axis, let.axes))
    output = Output(tensor, value, index, materialize=Materialize.DEFERRED)
    first = live(replace(kernel, outputs=(output,), labels={}))
    body = tuple(
        replace(let, expr=Read(tensor, index)) if found is let else found for found in kernel.body
    )
    outputs = (replace(found, materialize=Materialize.GMEM) for found in kernel.outputs)
    rows = replace(kernel, pattern=Pattern.ROW, roles=None, labels={}, outputs=tuple(outputs))
    return first, live(replace(rows, body=body))


def _tensor_for_value(kernel: Kernel, value: str, name: str) -> Tensor:
    let = kernel.let(value)
    return Tensor(name, let.dtype, tuple(kernel.sizes[a] for a in let.axes), "internal")
