"""Structural keys of kernels: `structure_key` forgets names and keeps everything else.

Tensors, axes, params and Lets are renamed by position, so equal layers of a model have one key and
are planned and compiled once. Whether a tensor is an input, a parameter or internal is forgotten
too; its dtype and shape are not, and neither is which tensors are the same one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Mapping
from typing import Final

from weft.foundation.index_expr import Axis as AxisTerm
from weft.foundation.index_expr import (
    Expr,
    FloorDiv,
    Guard,
    Index,
    add,
    axis,
    floordiv,
    param,
    scale,
)
from weft.foundation.memo import forgettable
from weft.foundation.records import replace
from weft.region.ir import (
    AxisIndex,
    Binary,
    Carry,
    Cast,
    Check,
    Const,
    Fold,
    Kernel,
    Let,
    Output,
    Read,
    Reduce,
    Roles,
    Select,
    Stage,
    Tensor,
    Unary,
    ValueExpr,
    Words,
)
from weft.region.text import kernel_to_json

_MOST: Final = 1 << 12
_DIGESTS: Final[dict[Hashable, str]] = {}
"""Digests of kernels by what they are but for the names of their tensors, `_MOST` of them."""
forgettable(_DIGESTS.clear)


def structure_key(kernel: Kernel, tensors: Mapping[str, Tensor]) -> str:
    """A digest that is equal for kernels which differ in names alone. The planner asks for it, and
    code generation again, so a kernel keeps its own."""
    given = tuple(tensors[name] for name in buffers(kernel))
    if given not in kernel.structures:
        alike = without_tensors(kernel, tensors)
        found = None if alike is None else _DIGESTS.get(alike)
        if found is None:
            found = _structure_key(kernel, tensors)
            if len(_DIGESTS) >= _MOST:
                _DIGESTS.clear()
            if alike is not None:
                _DIGESTS[alike] = found
        kernel.structures[given] = found
    return kernel.structures[given]


def _structure_key(kernel: Kernel, tensors: Mapping[str, Tensor]) -> str:
    plain, order = canonical(kernel)
    shapes = {new: replace(tensors[old], name=new, role="") for old, new in order.items()}
    document = kernel_to_json(plain, shapes, repr)
    document["tensors"] = {
        name: [tensor.dtype.name, *tensor.shape, *[f"room {tensor.room}"] * bool(tensor.room)]
        for name, tensor in shapes.items()
    }
    text = json.dumps(document, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def buffers(kernel: Kernel) -> tuple[str, ...]:
    """The tensors of a kernel by position: what it reads, what it writes, what that is based on."""
    return kernel.buffers


def without_tensors(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Hashable | None:
    """All of a kernel but its name, with its tensors by their places: the same for kernels that
    differ in what these are called, as those of equal layers do. None for kernels with more than a
    body."""
    if kernel.stages or kernel.params or kernel.opaque is not None:
        return None
    names = buffers(kernel)
    places = {name: place for place, name in enumerate(names)}

    def told(let: Let) -> Hashable:
        expr = let.expr
        if isinstance(expr, Read):
            own = places[expr.tensor], expr.index, expr.guards, repr(expr.fill), expr.places
            return let.name, let.dtype, let.axes, own
        # Numbers of different types are equal, which their texts are not.
        text = repr(expr) if isinstance(expr, Const | Fold) else expr
        return let.name, let.dtype, let.axes, text

    given = tuple((tensors[name].dtype, tensors[name].shape, tensors[name].room) for name in names)
    outputs = tuple(
        (places[o.tensor], o.value, o.index, places.get(o.base or ""), o.materialize)
        for o in kernel.outputs
    )
    body = tuple(map(told, kernel.body))
    return kernel.pattern, kernel.axes, kernel.roles, kernel.form, given, body, outputs


def on_tensors(kernel: Kernel, names: Mapping[str, str]) -> Kernel:
    """The same kernel on other tensors."""
    return replace(
        kernel,
        body=tuple(_rename_tensors(let, names) for let in kernel.body),
        outputs=tuple(
            replace(o, tensor=names[o.tensor], base=None if o.base is None else names[o.base])
            for o in kernel.outputs
        ),
        params=tuple(replace(p, tensor=names[p.tensor]) for p in kernel.params),
    )


def _rename_tensors(let: Let, names: Mapping[str, str]) -> Let:
    match let.expr:
        case Read(tensor, index, guards, fill, places):
            read = Read(names[tensor], index, guards, fill, places)
            return Let(let.name, let.dtype, let.axes, read)
        case Fold(step=step, combine=combine):
            bodies = [
                tuple(_rename_tensors(inner, names) for inner in body) for body in (step, combine)
            ]
            return replace(let, expr=replace(let.expr, step=bodies[0], combine=bodies[1]))
        case _:
            return let


def canonical(kernel: Kernel) -> tuple[Kernel, dict[str, str]]:
    """The kernel with every name replaced by position, and the new names of its tensors."""
    tensors = {name: f"t{number}" for number, name in enumerate(buffers(kernel))}
    stages = []
    known = dict(tensors)
    for number, stage in enumerate(kernel.stages):
        stages.append(_canonical_stage(stage, known, f"s{number}"))
        known[stage.name] = f"s{number}"
    names = Names(
        known,
        {found.name: f"i{number}" for number, found in enumerate(kernel.axes)},
        {found.name: f"p{number}" for number, found in enumerate(kernel.params)},
    )
    body = tuple(names.let(let) for let in kernel.body)
    opaque = kernel.opaque
    if opaque is not None:
        opaque = replace(opaque, inputs=tuple(tensors[name] for name in opaque.inputs))
    renamed = Kernel(
        "",
        kernel.pattern,
        tuple(replace(found, name=names.axes[found.name]) for found in kernel.axes),
        body,
        tuple(names.output(output) for output in kernel.outputs),
        tuple(
            replace(found, name=names.params[found.name], tensor=tensors[found.tensor])
            for found in kernel.params
        ),
        names.roles(kernel.roles),
        opaque,
        stages=tuple(stages),
    )
    return renamed, tensors


def _canonical_stage(stage: Stage, tensors: Mapping[str, str], name: str) -> Stage:
    axes = {found.name: f"i{number}" for number, found in enumerate(stage.axes)}
    names = Names(dict(tensors), axes, {})
    body = tuple(names.let(let) for let in stage.body)
    renamed = tuple(replace(found, name=axes[found.name]) for found in stage.axes)
    return Stage(replace(stage.local, name=name), renamed, body, names.lets[stage.value])


class Names:
    """New names for everything in one kernel; Lets get theirs as they are met."""

    def __init__(
        self, tensors: dict[str, str], axes: dict[str, str], params: dict[str, str]
    ) -> None:
        self.tensors = tensors
        self.axes = axes
        self.params = params
        self.lets: dict[str, str] = {}

    def let(self, let: Let) -> Let:
        expr = self.value(let.expr)
        name = self.fresh(let.name)
        return Let(name, let.dtype, self.axis_names(let.axes), expr)

    def fresh(self, name: str) -> str:
        return self.lets.setdefault(name, f"v{len(self.lets)}")

    def axis_names(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(self.axes[name] for name in names)

    def expr(self, expr: Expr) -> Expr:
        parts: list[Expr | int] = [expr.constant]
        for term, factor in expr.terms:
            match term:
                case AxisTerm(name=name):
                    new = axis(self.axes[name])
                case FloorDiv(value=inner, divisor=divisor):
                    new = floordiv(self.expr(inner), divisor)
                case _:
                    new = param(self.params.get(term.name, term.name))
            parts.append(scale(new, factor))
        return add(*parts)

    def index(self, index: Index) -> Index:
        return tuple(map(self.expr, index))

    def value(self, value: ValueExpr) -> ValueExpr:
        match value:
            case Read():
                return self.read(value)
            case Check(x=x, element=element):
                return replace(value, x=self.lets[x], element=self.expr(element))
            case Words(seed=seed, offset=offset, element=element):
                return Words(self.lets[seed], self.lets[offset], self.expr(element))
            case AxisIndex(expr=expr):
                return AxisIndex(self.expr(expr))
            case Const():
                return value
            case Unary(fn=fn, x=x):
                return Unary(fn, self.lets[x])
            case Cast(x=x):
                return Cast(self.lets[x])
            case Binary(fn=fn, lhs=lhs, rhs=rhs):
                return Binary(fn, self.lets[lhs], self.lets[rhs])
            case Select(pred=pred, x=x, y=y):
                return Select(self.lets[pred], self.lets[x], self.lets[y])
            case Reduce(fn=fn, axes=axes, value=name):
                return Reduce(fn, self.axis_names(axes), self.lets[name])
            case Fold():
                return self.fold(value)

    def read(self, read: Read) -> Read:
        # The params of places are called by the values they stand for.
        self.params |= {place.param: f"j_{self.lets[place.value]}" for place in read.places}
        places = tuple(
            replace(place, param=self.params[place.param], value=self.lets[place.value])
            for place in read.places
        )
        limits = tuple(Guard(self.expr(guard.expr), guard.size) for guard in read.guards)
        return Read(self.tensors[read.tensor], self.index(read.index), limits, read.fill, places)

    def fold(self, fold: Fold) -> Fold:
        for carry in fold.carries:
            new = self.fresh(carry.name)
            self.lets[f"{carry.name}.a"] = f"{new}.a"
            self.lets[f"{carry.name}.b"] = f"{new}.b"
        step = tuple(map(self.let, fold.step))
        combine = tuple(map(self.let, fold.combine))
        carries = tuple(map(self.carry, fold.carries))
        axes = self.axis_names(fold.axes)
        return Fold(axes, carries, step, combine, self.lets[fold.result])

    def carry(self, carry: Carry) -> Carry:
        return replace(
            carry,
            name=self.lets[carry.name],
            axes=self.axis_names(carry.axes),
            next=self.lets[carry.next],
            merged=self.lets[carry.merged],
        )

    def output(self, output: Output) -> Output:
        return replace(
            output,
            tensor=self.tensors[output.tensor],
            value=self.lets.get(output.value, ""),
            index=self.index(output.index),
            base=None if output.base is None else self.tensors[output.base],
        )

    def roles(self, roles: Roles | None) -> Roles | None:
        if roles is None:
            return None
        batch, m, n, k = map(self.axis_names, (roles.batch, roles.m, roles.n, roles.k))
        contraction, lhs, rhs = (self.lets[x] for x in (roles.contraction, roles.lhs, roles.rhs))
        return Roles(batch, m, n, k, contraction, lhs, rhs)
