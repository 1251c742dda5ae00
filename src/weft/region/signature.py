"""What makes two choices of blocks the same kernel: everything but names.

A signature lists the blocks of a kernel from its roots down, with other blocks and tensors by
number. Equal layers have equal signatures, so that a kernel is drafted, costed and written out
once, and the tensors of the others are put in by position.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from weft.foundation.index_expr import params_of
from weft.poly_view.ir import PolyBlock
from weft.region.emit import Root, View
from weft.region.ir import Fold, Kernel, Let, Read
from weft.tiny.ir import Cast, Const, Iota, Reduce


def signature(
    view: View, roots: Sequence[Root], inlined: frozenset[str]
) -> tuple[Hashable, tuple[str, ...]]:
    """A key that equal kernels share, and the tensors of this one in the order of the key."""
    numbers: dict[str, int] = {}
    tensors: dict[str, None] = {}
    parts: list[Hashable] = []
    stack = []
    for root in roots:
        parts.append(("root", _number(numbers, root.block), root.env))
        parts.append(_tensor(view, root.block, tensors))
        stack.append(root.block)
    done: set[str] = set()
    while stack:
        name = stack.pop()
        if name in done:
            continue
        done.add(name)
        block = view.blocks[name]
        parts.append(_block(block))
        for access in block.accesses:
            inside = access.tensor in inlined
            parts.append((_number(numbers, access.tensor), inside, replace(access, tensor="")))
            parts.append(repr(access.fill))
            if inside:
                stack.append(access.tensor)
            else:
                parts.append(_tensor(view, access.tensor, tensors))
        parts.extend(_around(view, block, tensors))
    return tuple(parts), tuple(tensors)


def _number(numbers: dict[str, int], name: str) -> int:
    return numbers.setdefault(name, len(numbers))


def _tensor(view: View, name: str, tensors: dict[str, None]) -> Hashable:
    source = view.sources[name]
    tensors.setdefault(source.tensor.name)
    place = list(tensors).index(source.tensor.name)
    return ("tensor", place, source.tensor.dtype, source.tensor.shape, source.atoms, source.order)


def _block(block: PolyBlock) -> Hashable:
    """What a block computes, without its name."""
    detail: Hashable = None
    match block.value:
        case Const(value=value):
            detail = repr(value)
        case Iota(axis=axis, shape=shape):
            detail = (axis, shape)
        case Reduce(x=Cast(dtype=dtype)):
            detail = dtype
    return (block.kind, block.fn, block.axes, block.dtype, block.attrs, detail)


def _around(view: View, block: PolyBlock, tensors: dict[str, None]) -> list[Hashable]:
    """The base of an update, where it writes, and the params of the block."""
    found: list[Hashable] = [block.write]
    if block.base is not None:
        found.append(_tensor(view, block.base, tensors))
    names = sorted({name for expr in block.expressions for name in params_of(expr)})
    for name in names:
        known = view.params[name]
        found.append((name, known.low, known.high, known.access.map))
        found.append(_tensor(view, known.access.tensor, tensors))
    return found


def on_tensors(kernel: Kernel, names: Mapping[str, str]) -> Kernel:
    """The same kernel on other tensors."""
    return replace(
        kernel,
        body=tuple(_let(let, names) for let in kernel.body),
        outputs=tuple(
            replace(o, tensor=names[o.tensor], base=None if o.base is None else names[o.base])
            for o in kernel.outputs
        ),
        params=tuple(replace(p, tensor=names[p.tensor]) for p in kernel.params),
    )


def _let(let: Let, names: Mapping[str, str]) -> Let:
    match let.expr:
        case Read(tensor=tensor):
            return replace(let, expr=replace(let.expr, tensor=names[tensor]))
        case Fold(step=step, combine=combine):
            bodies = [tuple(_let(inner, names) for inner in body) for body in (step, combine)]
            return replace(let, expr=replace(let.expr, step=bodies[0], combine=bodies[1]))
        case _:
            return let
