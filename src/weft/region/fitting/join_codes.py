"""Fusion of dequantisation into the product: packed weights are unpacked where they are multiplied.

    w = map(codes, scales);  y = product(x, w)    ->    y = product(x, codes, scales)

A product of few rows waits for its weights: to make them in memory first takes three times as long
as to read them, and reading codes a half or a quarter as long. Products of many rows multiply each
weight so often that making it once pays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from weft.foundation.index_expr import (
    Expr,
    Guard,
    axes_of,
    axis,
    coefficient,
    constant,
    simplify,
    substitute,
)
from weft.foundation.records import replace
from weft.region.fitting.joining import live, same_digits
from weft.region.fitting.one_row import as_one_row
from weft.region.forms.codes import find_codes, made_of
from weft.region.forms.small_integers import integer_range
from weft.region.ir import (
    AxisIndex,
    Binary,
    Cast,
    Check,
    Const,
    Kernel,
    Let,
    Module,
    Output,
    Pattern,
    Read,
    Reduce,
    Select,
    Tensor,
    Unary,
    ValueExpr,
    operands,
)
from weft.region.writing.axes import split_axis
from weft.target.target import Target

# 64 rows of bf16 times 14336x4096 codes of 8 bits take 45.5 µs, and 32.3 with bf16 weights: x is
# read once for each warp's columns, from a cache. Making those weights first takes 42 µs more
# (H200).
MOST_ROWS: Final = 64
"""Rows of x up to which products wait for their weights."""
_SMALLER: Final = 0.625
"""Bytes that weights are made of, in parts of their own, from which on reading these pays."""
_WORTH: Final = 1 << 16
"""Weights from which on it does."""
_OF_ELEMENTS: Final = (Read, Const, AxisIndex, Unary, Cast, Binary, Select)
_ORDERED: Final = ("lt", "ge")
"""Comparisons with a bound that hold for whole parts of an axis or for none."""


def join_codes(module: Module, target: Target) -> Module:
    """The module with weights of few bits made in the products that read them."""
    if not target.has("cp.async"):
        return module
    module = replace(module, kernels=tuple(map(_without_known_checks, module.kernels)))
    for kernel in module.kernels:
        apart = _with_sums_apart(module, kernel)
        if apart is not None:
            module = apart
    for maker in module.kernels:
        found = _join_maker(module, maker)
        module = module if found is None else found
    return module


def _with_sums_apart(module: Module, kernel: Kernel) -> Module | None:
    """The module with a kernel for each of the sums of one that multiplies a row with several
    weights; None where it does not, or somebody needs the weights in memory."""
    if kernel.pattern is not Pattern.ROW or kernel.params:
        return None
    sums = [let for let in kernel.body if isinstance(let.expr, Reduce)]
    if len(sums) < 2:
        return None
    makers = {
        maker.name: maker
        for maker in module.kernels
        if maker.outputs[0].tensor in kernel.inputs and _makes_weights(module, maker)
    }
    if len(sums) != len(makers):
        return None
    parts: list[Kernel] = []
    tensors, rest = dict(module.tensors), kernel
    for number, let in enumerate(sums[:-1]):
        name = f"{kernel.name}_{let.name}"
        if name in tensors:
            return None
        shape = (1, *(kernel.sizes[axis] for axis in let.axes))
        tensors[name] = Tensor(name, let.dtype, shape, "internal")
        place = (constant(0), *map(axis, let.axes))
        own = replace(
            kernel, name=f"{kernel.name}_{number}", outputs=(Output(name, let.name, place),)
        )
        parts.append(live(own))
        body = (replace(x, expr=Read(name, place)) if x is let else x for x in rest.body)
        rest = live(replace(rest, body=tuple(body)))
    kernels = [
        part
        for found in module.kernels
        for part in ((*parts, rest) if found is kernel else (found,))
    ]
    origin = module.origin | {part.name: module.origin.get(kernel.name, ()) for part in parts}
    apart = replace(module, kernels=tuple(kernels), tensors=tensors, origin=origin)
    return (
        apart if all(_join_maker(apart, maker) is not None for maker in makers.values()) else None
    )


def _join_maker(module: Module, maker: Kernel) -> Module | None:
    """The module without a kernel that makes weights; None where it does not, or somebody needs
    them in memory."""
    if not _makes_weights(module, maker):
        return None
    output = maker.outputs[0]
    readers = [kernel for kernel in module.kernels if output.tensor in kernel.inputs]
    made: dict[str, Kernel] = {}
    for reader in readers:
        found = _with_weights(reader, maker, output, module.tensors)
        if found is None:
            return None
        made[reader.name] = found
    if not made:
        return None
    left = [kernel for kernel in module.kernels if kernel.name != maker.name]
    origin = dict(module.origin)
    own = origin.pop(maker.name, ())
    for name in made:
        origin[name] = tuple(sorted({*origin.get(name, ()), *own}))
    return replace(
        module,
        kernels=tuple(made.get(kernel.name, kernel) for kernel in left),
        tensors={n: found for n, found in module.tensors.items() if n != output.tensor},
        origin=origin,
    )


def _without_known_checks(kernel: Kernel) -> Kernel:
    """A map that does not look whether places of bits are negative which cannot be: words hold
    their codes at multiples of an axis."""
    if kernel.pattern is not Pattern.MAP:
        return kernel
    for let in kernel.body:
        match let.expr:
            case Check(x=x, rule="nonnegative") if integer_range(kernel, x)[0] >= 0:
                body = [_rename_operand(other, let.name, x) for other in kernel.body]
                kernel = live(replace(kernel, body=tuple(body)))
    return kernel


def _makes_weights(module: Module, maker: Kernel) -> bool:
    """Whether a kernel does nothing but make one tensor of others that are fewer bytes, which
    nobody writes over."""
    if maker.pattern is not Pattern.MAP or maker.params or len(maker.outputs) != 1:
        return False
    output = maker.outputs[0]
    made = module.tensors[output.tensor]
    if made.role != "internal" or output.base is not None:
        return False
    if not all(isinstance(let.expr, _OF_ELEMENTS) for let in maker.body):
        return False
    if any(isinstance(let.expr, Read) and let.expr.places for let in maker.body):
        return False
    over = {found.base for kernel in module.kernels for found in kernel.outputs}
    chained = {name for chain in module.chains for name in chain.kernels}
    if over & {*maker.inputs, output.tensor} or maker.name in chained:
        return False
    elements = math.prod(made.shape)
    read = sum(module.tensors[name].bytes for name in maker.inputs)
    return elements >= _WORTH and read <= _SMALLER * made.bytes


# -- a reader ------------------------------------------------------------------------------------


def _with_weights(
    reader: Kernel, maker: Kernel, output: Output, tensors: Mapping[str, Tensor]
) -> Kernel | None:
    """A product that makes the weights that it reads; None where it is none, or has many rows."""
    kernel = as_one_row(reader, tensors) if reader.pattern is Pattern.ROW else reader
    if kernel is None or kernel.roles is None or kernel.pattern is not Pattern.MATMUL:
        return None
    reads = [
        let for let in kernel.body
        if isinstance(let.expr, Read) and let.expr.tensor == output.tensor
    ]  # fmt: skip
    if len(reads) != 1 or reads[0].name not in (kernel.roles.lhs, kernel.roles.rhs):
        return None
    for number, there in enumerate(output.index):
        read = kernel.let(reads[0].name).expr
        assert isinstance(read, Read)
        kernel = _cut_alike(kernel, read.index[number], there, maker.sizes)
    made = _inline_maker(kernel, kernel.let(reads[0].name), maker, output)
    if made is None:
        return None
    made = live(_by_halves(made))
    found = find_codes(made, tensors)
    if found is None or math.prod(made.sizes[name] for name in found.rows) > MOST_ROWS:
        return None
    return made


def _cut_alike(kernel: Kernel, here: Expr, there: Expr, sizes: Mapping[str, int]) -> Kernel:
    """A kernel whose axis is cut as the number is that another one stores at."""
    single = here.single_axis
    if single is None or len(there.terms) < 2 or there.constant:
        return kernel
    terms = sorted(((factor, str(term)) for term, factor in there.terms), reverse=True)
    if any(name not in sizes for _, name in terms):
        return kernel
    extents = [sizes[name] for _, name in terms]
    digits = [math.prod(extents[number + 1 :]) for number, _ in enumerate(extents)]
    whole = kernel.sizes[single.name] == math.prod(extents)
    if not whole or digits != [factor for factor, _ in terms]:
        return kernel
    return split_axis(kernel, single.name, extents)


def _inline_maker(kernel: Kernel, read: Let, maker: Kernel, output: Output) -> Kernel | None:
    """The kernel with what another one computes in the place of a read of it."""
    assert isinstance(read.expr, Read)
    assert kernel.roles is not None
    if read.expr.guards or read.expr.places:
        return None
    moved: dict[str, Expr] = {}
    for there, here in zip(output.index, read.expr.index, strict=True):
        pairs = _match_axes(there, here)
        if pairs is None or any(moved.setdefault(name, to) is not to for name, to in pairs):
            return None
    moved |= {found.name: constant(0) for found in maker.axes if found.size == 1}
    if any(found.name not in moved for found in maker.axes):
        return None
    inlining = _Inlining(kernel, maker, moved)
    lets = inlining.lets()
    value = inlining.names[output.value]
    body: list[Let] = []
    for let in kernel.body:
        body += lets if let.name == read.name else [_rename_operand(let, read.name, value)]
    lhs, rhs = (value if n == read.name else n for n in (kernel.roles.lhs, kernel.roles.rhs))
    labels = {**kernel.labels}
    labels |= {inlining.names[name]: label for name, label in maker.labels.items()}
    roles = replace(kernel.roles, lhs=lhs, rhs=rhs)
    return replace(kernel, body=tuple(body), roles=roles, labels=labels)


def _match_axes(there: Expr, here: Expr) -> list[tuple[str, Expr]] | None:
    """What stands for each axis of a stored number in the one that is read; None where these are
    made otherwise."""
    if there.is_constant:
        return [] if here is there else None
    single = there.single_axis
    if single is not None:
        return [(single.name, here)]
    pairs = same_digits(there, here)
    return None if pairs is None else [(new, axis(old)) for old, new in pairs]


def _rename_operand(let: Let, old: str, new: str) -> Let:
    """A Let that has another operand."""
    if old not in operands(let):
        return let
    expr: ValueExpr = let.expr
    match expr:
        case Cast():
            expr = Cast(new)
        case Binary(fn=fn, lhs=lhs, rhs=rhs):
            expr = Binary(fn, new if lhs == old else lhs, new if rhs == old else rhs)
    return replace(let, expr=expr)


@dataclass
class _Inlining:
    """The Lets of a kernel inside of another one, whose axes take the place of its own."""

    kernel: Kernel
    maker: Kernel
    moved: Mapping[str, Expr]

    def __post_init__(self) -> None:
        taken = {let.name for let in self.kernel.body}
        prefix = "w_"
        while any(prefix + let.name in taken for let in self.maker.body):
            prefix = f"w{prefix}"
        self.names = {let.name: prefix + let.name for let in self.maker.body}
        self.order = [found.name for found in self.kernel.axes]

    def lets(self) -> list[Let]:
        return [
            Let(self.names[let.name], let.dtype, self.axes(let.axes), self.value(let.expr))
            for let in self.maker.body
        ]

    def axes(self, names: tuple[str, ...]) -> tuple[str, ...]:
        found = {new for name in names for new in axes_of(self.moved[name])}
        return tuple(sorted(found, key=self.order.index))

    def at(self, expr: Expr) -> Expr:
        return simplify(substitute(expr, self.moved), self.kernel.ranges)

    def value(self, expr: ValueExpr) -> ValueExpr:
        name = self.names
        match expr:
            case Read():
                guards = tuple(Guard(self.at(guard.expr), guard.size) for guard in expr.guards)
                return replace(expr, index=tuple(map(self.at, expr.index)), guards=guards)
            case AxisIndex(expr=index):
                return AxisIndex(self.at(index))
            case Unary(fn=fn, x=x):
                return Unary(fn, name[x])
            case Cast(x=x):
                return Cast(name[x])
            case Binary(fn=fn, lhs=lhs, rhs=rhs):
                return Binary(fn, name[lhs], name[rhs])
            case Select(pred=pred, x=x, y=y):
                return Select(name[pred], name[x], name[y])
            case _:
                return expr


# -- halves --------------------------------------------------------------------------------------


def _by_halves(kernel: Kernel) -> Kernel:
    """The kernel with summed axes cut where reads of codes begin and end: of a group, one half lies
    in the lower bits of bytes and the other in the upper ones, and both are one half of bytes."""
    assert kernel.roles is not None
    for name in kernel.roles.k:
        step = _grain(kernel, name)
        if 1 < step < kernel.sizes[name]:
            kernel = split_axis(kernel, name, [kernel.sizes[name] // step, step])
            kernel = _in_parts(kernel, f"{name}_0", f"{name}_1", step)
    return _pin_reads(kernel)


def _weight_reads(kernel: Kernel) -> list[tuple[Let, Read]]:
    """What weights are read from."""
    assert kernel.roles is not None
    sides = (kernel.roles.lhs, kernel.roles.rhs)
    lets = {let.name: let for name in sides for let in made_of(kernel, name)}
    return [(let, let.expr) for let in lets.values() if isinstance(let.expr, Read)]


def _grain(kernel: Kernel, name: str) -> int:
    """The length of parts of an axis, of which each is read whole or not at all; 0 where nothing
    is."""
    found = 0
    for _, read in _weight_reads(kernel):
        for guard in kernel.open_guards(read):
            if name not in axes_of(guard.expr):
                continue
            if (guard.expr - guard.expr.constant).single_axis is None:
                return 0
            found = math.gcd(found, guard.size, guard.expr.constant, kernel.sizes[name])
    return found


def _in_parts(kernel: Kernel, outer: str, inner: str, step: int) -> Kernel:
    """The kernel with guards and comparisons of an axis that was cut as such of its parts."""

    def part(expr: Expr) -> Expr | None:
        """The number of the part that a place is in, where it is one of them."""
        if (coefficient(expr, outer), coefficient(expr, inner)) != (step, 1):
            return None
        rest = expr - axis(outer) * step - axis(inner)
        whole = rest.is_constant and rest.constant % step == 0
        return axis(outer) + rest.constant // step if whole else None

    body: list[Let] = []
    known = {let.name: let for let in kernel.body}
    for let in kernel.body:
        expr = let.expr
        if isinstance(expr, Read):
            guards = tuple(
                guard if (number := part(guard.expr)) is None or guard.size % step
                else Guard(number, guard.size // step)
                for guard in expr.guards
            )  # fmt: skip
            body.append(replace(let, expr=replace(expr, guards=guards)))
            continue
        compared = _place_and_bound(expr, known) if isinstance(expr, Binary) else None
        number = part(compared[0]) if compared is not None else None
        if compared is None or number is None or compared[1] % step or not isinstance(expr, Binary):
            body.append(let)
            continue
        place, bound = f"{let.name}_part", f"{let.name}_bound"
        dtype = known[expr.lhs].dtype
        body += [
            Let(place, dtype, (outer,), AxisIndex(number)),
            Let(bound, dtype, (), Const(compared[1] // step)),
            replace(let, axes=(outer,), expr=Binary(expr.fn, place, bound)),
        ]
    return replace(kernel, body=tuple(body))


def _place_and_bound(expr: Binary, known: Mapping[str, Let]) -> tuple[Expr, int] | None:
    """A place and the bound that it is compared with."""
    if expr.fn not in _ORDERED:
        return None
    place, bound = known[expr.lhs].expr, known[expr.rhs].expr
    if not isinstance(place, AxisIndex) or not isinstance(bound, Const):
        return None
    return (place.expr, bound.value) if type(bound.value) is int else None


def _pin_reads(kernel: Kernel) -> Kernel:
    """The kernel with reads that are there for one point of an axis alone as reads at that
    point."""
    body: list[Let] = []
    for let in kernel.body:
        expr = let.expr
        if isinstance(expr, Read):
            at = {
                str(guard.expr.terms[0][0]): constant(-guard.expr.constant)
                for guard in kernel.open_guards(expr)
                if guard.size == 1 and (guard.expr - guard.expr.constant).single_axis is not None
            }
            expr = replace(expr, index=tuple(substitute(index, at) for index in expr.index))
        body.append(replace(let, expr=expr))
    return replace(kernel, body=tuple(body))
