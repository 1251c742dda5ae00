"""Paged attention: keys and values are read through the page table instead of from a gathered copy.

    k = gather(cache, table);  y = attention(q, k, ...)   ->   y = attention(q, cache, table, ...)

A gather into memory writes as much as the attention reads, and is read again. What it makes of the
table, the numbers of pages that were checked, is all that is left of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.foundation.index_expr import (
    Expr,
    Guard,
    axes_of,
    axis,
    floordiv,
    param,
    substitute,
)
from weft.foundation.records import replace
from weft.region.fitting.joining import live, same_digits
from weft.region.ir import (
    AxisIndex,
    Cast,
    Check,
    Kernel,
    Let,
    Module,
    Output,
    Pattern,
    Place,
    Read,
    Reduce,
    Tensor,
)


def in_pages(module: Module, kernel: Kernel, parts: set[str]) -> tuple[Module, Kernel]:
    """The module and a kernel that takes the place of `parts`, which reads what a gather of theirs
    reads; as they are where there is none."""
    keys = _keys(kernel)
    if keys is None:
        return module, kernel
    rewriting = _Rewriting(module, kernel, parts)
    body: list[Let] = []
    for let in kernel.body:
        read = rewriting.paged(let) if set(keys) <= set(let.axes) else None
        body += [let] if read is None else read
    if not rewriting.makers:
        return module, kernel
    joined = _with_one_axis(replace(kernel, body=tuple(body)), *keys)
    return rewriting.module_without(), joined


def _keys(kernel: Kernel) -> tuple[str, str] | None:
    """The axes of pages and of the rows of a page that scores have in the place of one of keys."""
    sums = [let.expr for let in kernel.body if isinstance(let.expr, Reduce)]
    if len(sums) != 4 or len(sums[1].axes) != 2:
        return None
    outer, inner = sums[1].axes
    return outer, inner


@dataclass
class _Rewriting:
    module: Module
    kernel: Kernel
    parts: set[str]

    def __post_init__(self) -> None:
        self.makers: dict[str, Kernel] = {}
        """The gathers whose results are read no more, by name."""
        self.tables: dict[str, tuple[Tensor, Output] | None] = {}
        """What is kept of each of them, if anything: the numbers of pages."""
        self.lets: dict[object, str] = {}

    def paged(self, let: Let) -> list[Let] | None:
        """The Lets in the place of one that reads what a gather made; None where it does not."""
        read = let.expr
        maker = self.maker(read.tensor) if isinstance(read, Read) else None
        if maker is None or not isinstance(read, Read) or read.guards or read.places:
            return None
        output = next(found for found in maker.outputs if found.tensor == read.tensor)
        gathered = maker.let(output.value).expr
        renamed = _match_axes(output.index, read.index)
        if renamed is None or not isinstance(gathered, Read):
            return None
        places = {name: axis(new) for name, new in renamed.items()}
        table, lets = self.table(maker, gathered.places[0], places)
        name = f"j_{table}"
        place = replace(gathered.places[0], param=name, value=table)
        moved = {gathered.places[0].param: param(name)}
        index = tuple(substitute(e, places, moved) for e in gathered.index)
        self.makers[maker.name] = maker
        return [*lets, replace(let, expr=Read(gathered.tensor, index, places=(place,)))]

    def maker(self, tensor: str) -> Kernel | None:
        """The kernel that gathers a tensor that these parts alone read."""
        found = [k for k in self.module.kernels if tensor in {o.tensor for o in k.outputs}]
        if len(found) != 1 or found[0].pattern is not Pattern.MAP or found[0].params:
            return None
        maker = found[0]
        made = {output.tensor for output in maker.outputs}
        if any(self.module.tensors[name].role != "internal" for name in made):
            return None
        readers = {k.name for k in self.module.kernels if made & set(k.inputs)}
        values = [maker.let(output.value).expr for output in maker.outputs]
        sources = {value.tensor for value in values if isinstance(value, Read)}
        plain = all(
            isinstance(value, Read) and len(value.places) == 1 and not value.guards
            for value in values
        )
        if not plain or not readers <= self.parts or self.is_written(sources):
            return None
        based = any(output.base is not None for output in maker.outputs)
        return None if based or len({self.page_value(v) for v in values}) != 1 else maker

    def page_value(self, value: object) -> str:
        return value.places[0].value if isinstance(value, Read) else ""

    def is_written(self, names: set[str]) -> bool:
        """Whether some kernel writes over one of these tensors."""
        bases = {output.base for k in self.module.kernels for output in k.outputs}
        return bool(names & bases)

    def table(
        self, maker: Kernel, place: Place, places: Mapping[str, Expr]
    ) -> tuple[str, list[Let]]:
        """The Let of a page's number, and what it takes to have it."""
        value = maker.let(place.value)
        meaning = _value_meaning(maker, value, places)
        if meaning in self.lets:
            self.tables.setdefault(maker.name, None)
            return self.lets[meaning], []
        if isinstance(value.expr, Read) and not value.expr.places and not value.expr.guards:
            self.tables[maker.name] = None
            tensor, index = value.expr.tensor, value.expr.index
        else:
            tensor, index = f"{maker.name}_pages", tuple(axis(name) for name in value.axes)
            shape = tuple(maker.sizes[name] for name in value.axes)
            kept = Tensor(tensor, value.dtype, shape, "internal")
            self.tables[maker.name] = (kept, Output(tensor, value.name, index))
        read = Read(tensor, tuple(substitute(e, places) for e in index))
        name = f"page{len(self.lets)}"
        self.lets[meaning] = name
        used = {found for expr in read.index for found in axes_of(expr)}
        axes = tuple(found.name for found in self.kernel.axes if found.name in used)
        return name, [Let(name, value.dtype, axes, read)]

    def module_without(self) -> Module:
        """The module without the gathers, but for the numbers of pages that they check."""
        kernels: list[Kernel] = []
        tensors = dict(self.module.tensors)
        for kernel in self.module.kernels:
            if kernel.name not in self.makers:
                kernels.append(kernel)
                continue
            for output in kernel.outputs:
                del tensors[output.tensor]
            kept = self.tables[kernel.name]
            if kept is not None:
                tensor, output = kept
                tensors[tensor.name] = tensor
                kernels.append(live(replace(kernel, outputs=(output,))))
        return replace(self.module, kernels=tuple(kernels), tensors=tensors)


def _value_meaning(kernel: Kernel, let: Let, places: Mapping[str, Expr]) -> object:
    """What a value is, whatever it is called: equal for values that are made alike. The axes of
    its kernel have other names."""
    match let.expr:
        case Read(tensor=tensor, index=index, guards=(), places=()):
            return tensor, tuple(substitute(expr, places) for expr in index)
        case Check(x=x, rule=rule, size=size, code=code):
            return rule, size, code, _value_meaning(kernel, kernel.let(x), places)
        case Cast(x=x):
            return let.dtype, _value_meaning(kernel, kernel.let(x), places)
    return kernel.name, let.name


def _match_axes(there: tuple[Expr, ...], here: tuple[Expr, ...]) -> dict[str, str] | None:
    """The axes of what was stored by the names of those that read it; None where elements do not
    meet one to one."""
    found: dict[str, str] = {}
    for stored, read in zip(there, here, strict=True):
        if stored.is_constant and read == stored:
            continue
        pairs = same_digits(stored, read)
        if pairs is None:
            return None
        for new, old in pairs:
            if found.setdefault(old, new) != new:
                return None
    return found


def _with_one_axis(kernel: Kernel, outer: str, inner: str) -> Kernel:
    """The kernel with an axis of keys, named like that of pages, in the place of two."""
    size = kernel.sizes[inner]
    page = floordiv(axis(outer), size)
    moved = {outer: page, inner: axis(outer) - page * size}

    def without(names: tuple[str, ...]) -> tuple[str, ...]:
        # What knows of a row knows of its page.
        return tuple(dict.fromkeys(outer if name == inner else name for name in names))

    order = [found.name for found in kernel.axes]

    def changed(let: Let) -> Let:
        expr = let.expr
        match expr:
            case Read():
                guards = tuple(Guard(substitute(g.expr, moved), g.size) for g in expr.guards)
                index = tuple(substitute(e, moved) for e in expr.index)
                expr = replace(expr, index=index, guards=guards)
            case AxisIndex():
                expr = AxisIndex(substitute(expr.expr, moved))
            case Reduce():
                expr = replace(expr, axes=without(expr.axes))
        axes = tuple(sorted(without(let.axes), key=order.index))
        return replace(let, axes=axes, expr=expr)

    axes = tuple(
        replace(found, size=found.size * size) if found.name == outer else found
        for found in kernel.axes
        if found.name != inner
    )
    outputs = tuple(
        replace(output, index=tuple(substitute(e, moved) for e in output.index))
        for output in kernel.outputs
    )
    return replace(kernel, axes=axes, body=tuple(map(changed, kernel.body)), outputs=outputs)
