"""The kernels of an attention made one.

    scores = kernel(q, k);  weights = kernel(scores);  y = kernel(weights, v)
        ->  y = kernel(q, k, v)

Elements are handed on one to one, so the joined kernel is the Lets of all parts, with a value in
the place of each read of what another part stored, and what two parts compute alike once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from weft.foundation.index_expr import Axis, Expr, Index
from weft.region.forms.attention import find_attention
from weft.region.forms.warpgroups import suits_warpgroups
from weft.region.ir import (
    Chain,
    Kernel,
    KernelAxis,
    Let,
    Materialize,
    Module,
    Output,
    Pattern,
    Read,
)
from weft.region.structure import Names, buffers
from weft.region.writing.axes import split
from weft.target.target import Kind, Target

FEWEST: Final = 8
"""Queries and keys from which on blocks of them are worth computing together."""
Renaming: TypeAlias = dict[str, str]
"""The axes of a part as those of the whole."""


def join_attention(module: Module, target: Target) -> Module:
    """The module with the kernels of every attention made one, where that is possible."""
    for chain in module.chains:
        if chain.kind == "attention" and len(chain.kernels) > 2:
            module = _joined(module, chain, target)
    return module


def _joined(module: Module, chain: Chain, target: Target) -> Module:
    by_name = {kernel.name: kernel for kernel in module.kernels}
    if not set(chain.kernels) <= set(by_name):
        return module
    parts = tuple(by_name[name] for name in chain.kernels)
    handed = _handed_on(module, parts)
    if any(part.params or part.opaque for part in parts) or not _are_neighbours(module, parts):
        return module
    parts = _split_alike(parts, handed)
    renamings = _renamings(parts, handed)
    kernel = None if renamings is None else _merged(parts, handed, renamings)
    if kernel is None or not _is_worth_it(kernel):
        return module
    if target.kind is Kind.GPU and not suits_warpgroups(kernel, module.tensors):
        return module
    return _replaced(module, parts, kernel, handed)


def _is_worth_it(kernel: Kernel) -> bool:
    """Whether it is an attention that stores nothing for each key, with queries and keys enough."""
    found = find_attention(kernel)
    if found is None or min(kernel.sizes[found.query], kernel.sizes[found.key]) < FEWEST:
        return False
    return not any(found.key in kernel.let(output.value).axes for output in kernel.outputs)


def _handed_on(module: Module, parts: Sequence[Kernel]) -> frozenset[str]:
    """The tensors that parts write and nobody but parts reads."""
    names = {part.name for part in parts}
    written = {output.tensor for part in parts for output in part.outputs if output.base is None}
    for kernel in module.kernels:
        read = set(buffers(kernel)) - {output.tensor for output in kernel.outputs}
        based = {output.base for output in kernel.outputs}
        written -= based | ({p.tensor for p in kernel.params})
        if kernel.name not in names:
            written -= read
    return frozenset(name for name in written if module.tensors[name].role == "internal")


def _are_neighbours(module: Module, parts: Sequence[Kernel]) -> bool:
    """Whether the place of the last part suits all: no kernel before it reads what parts make, or
    writes over what they read."""
    names = [part.name for part in parts]
    made = {output.tensor for part in parts for output in part.outputs}
    read = {name for part in parts for name in part.inputs}
    begun = False
    for kernel in module.kernels:
        begun = begun or kernel.name in names
        if kernel.name == names[-1]:
            return True
        over = {output.base for output in kernel.outputs}
        if kernel.name not in names and begun and (made & set(kernel.inputs) or read & over):
            return False
    return False


# -- axes ----------------------------------------------------------------------------------------


def _renamings(parts: Sequence[Kernel], handed: frozenset[str]) -> list[Renaming] | None:
    """The axes of each part by the names of the whole; None where elements do not meet one to
    one."""
    stored: dict[str, Index] = {}
    found: list[Renaming] = []
    for number, part in enumerate(parts):
        renaming: Renaming = {}
        reads = [let.expr for let in part.body if isinstance(let.expr, Read)]
        within = [read for read in reads if read.tensor in handed]
        if not all(_meet(read, stored.get(read.tensor), renaming) for read in within):
            return None
        for axis in part.axes:
            renaming.setdefault(axis.name, f"{axis.name}{number}")
        if len(set(renaming.values())) != len(renaming):
            return None
        names = Names({}, renaming, {})
        for output in part.outputs:
            stored[output.tensor] = names.index(output.index)
        found.append(renaming)
    return found


def _meet(read: Read, stored: Index | None, renaming: Renaming) -> bool:
    """Whether a read is of the element at the same place; its axes join the renaming."""
    if stored is None or read.guards or read.places:
        return False
    for there, here in zip(stored, read.index, strict=True):
        if there.is_constant and here == there:
            continue
        pairs = _pairs(there, here)
        if pairs is None:
            return False
        for old, new in pairs:
            if renaming.setdefault(old, new) != new:
                return False
    return True


def _pairs(there: Expr, here: Expr) -> list[tuple[str, str]] | None:
    """The axes of an expression beside those of another one that is made of its own in the same
    way; None where it is made otherwise."""
    made, read = _axis_terms(there), _axis_terms(here)
    if made is None or read is None or there.constant != here.constant:
        return None
    if [factor for factor, _ in made] != [factor for factor, _ in read]:
        return None
    return [(old, new) for (_, new), (_, old) in zip(made, read, strict=True)]


def _axis_terms(expr: Expr) -> list[tuple[int, str]] | None:
    """The axes of an expression with their factors, the largest first; each factor once."""
    if not all(isinstance(term, Axis) for term, _ in expr.terms):
        return None
    found = sorted(((factor, str(term)) for term, factor in expr.terms), reverse=True)
    return found if found and len({factor for factor, _ in found}) == len(found) else None


def _split_alike(parts: Sequence[Kernel], handed: frozenset[str]) -> tuple[Kernel, ...]:
    """The parts with their axes cut where a part cuts them that stores what they read: heads that
    share keys are two axes of a product and one of the softmax."""
    stored: dict[str, tuple[Kernel, Index]] = {}
    found: list[Kernel] = []
    for whole in parts:
        part = whole
        for read in [let.expr for let in whole.body if isinstance(let.expr, Read)]:
            if read.tensor in handed and read.tensor in stored:
                maker, index = stored[read.tensor]
                for there, here in zip(index, read.index, strict=True):
                    part = _cut(part, here, there, maker.sizes)
        found.append(part)
        stored |= {output.tensor: (part, output.index) for output in part.outputs}
    return tuple(found)


def _cut(part: Kernel, here: Expr, there: Expr, sizes: Mapping[str, int]) -> Kernel:
    """A part whose axis `here` is cut as the digits of a number `there` are."""
    terms, single = _axis_terms(there), here.single_axis
    if terms is None or len(terms) == 1 or single is None or single.name not in part.sizes:
        return part
    extents = [sizes[name] for _, name in terms]
    digits = [math.prod(extents[number + 1 :]) for number, _ in enumerate(extents)]
    whole = part.sizes[single.name] == math.prod(extents) and there.constant == 0
    if not whole or digits != [factor for factor, _ in terms]:
        return part
    return split(part, single.name, extents)


def _axes_of_whole(
    parts: Sequence[Kernel], renamings: Sequence[Renaming]
) -> tuple[KernelAxis, ...] | None:
    """Every axis once: those of the softmax's rows, those of a value, the keys, the depth."""
    sizes: dict[str, int] = {}
    for part, renaming in zip(parts, renamings, strict=True):
        for axis in part.axes:
            if sizes.setdefault(renaming[axis.name], axis.size) != axis.size:
                return None
    first, last = parts[0], parts[-1]
    scores = [renamings[0][a] for a in first.let(first.outputs[0].value).axes]
    mixed = [renamings[-1][a] for a in last.let(last.outputs[0].value).axes]
    order = [*(a for a in scores if a in mixed), *(a for a in mixed if a not in scores)]
    order += [a for a in scores if a not in mixed]
    order += [a for a in sizes if a not in order]
    return tuple(KernelAxis(name, sizes[name]) for name in order)


# -- bodies --------------------------------------------------------------------------------------


@dataclass
class _Whole:
    """The joined kernel under construction."""

    handed: frozenset[str]
    order: list[str]
    body: list[Let] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    """What stands for each tensor that is handed on."""
    known: dict[tuple[object, ...], str] = field(default_factory=dict)

    def add(self, part: Kernel, prefix: str, renaming: Renaming) -> None:
        names = _PartNames(part, prefix, renaming, self.order)
        for let in part.body:
            if isinstance(let.expr, Read) and let.expr.tensor in self.values:
                names.lets[let.name] = self.values[let.expr.tensor]
                continue
            made = names.let(let)
            key = (made.dtype, made.axes, made.expr)
            if key in self.known:
                names.lets[let.name] = self.known[key]
            else:
                self.known[key] = made.name
                self.body.append(made)
        self.labels.update((names.lets[n], label) for n, label in part.labels.items())
        for output in map(names.output, part.outputs):
            if output.tensor in self.handed:
                self.values[output.tensor] = output.value
            else:
                self.outputs.append(replace(output, materialize=Materialize.GMEM))


class _PartNames(Names):
    """One part's names in the whole: Lets get a prefix, axes the order of the whole."""

    def __init__(self, part: Kernel, prefix: str, axes: Renaming, order: Sequence[str]) -> None:
        super().__init__({name: name for name in buffers(part)}, dict(axes), {})
        self.prefix, self.order = prefix, order

    def fresh(self, name: str) -> str:
        return self.lets.setdefault(name, self.prefix + name)

    def axis_names(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(sorted(super().axis_names(names), key=self.order.index))


def _merged(
    parts: Sequence[Kernel], handed: frozenset[str], renamings: Sequence[Renaming]
) -> Kernel | None:
    axes = _axes_of_whole(parts, renamings)
    if axes is None:
        return None
    whole = _Whole(handed, [axis.name for axis in axes])
    for number, (part, renaming) in enumerate(zip(parts, renamings, strict=True)):
        whole.add(part, f"p{number}_", renaming)
    lives: Mapping[str, tuple[str, ...]] = {let.name: let.axes for let in whole.body}
    stored = {name for output in whole.outputs for name in lives[output.value]}
    marked = tuple(replace(axis, reduce=axis.name not in stored) for axis in axes)
    body, outputs = tuple(whole.body), tuple(whole.outputs)
    return Kernel("", Pattern.ATTENTION, marked, body, outputs, labels=whole.labels)


def _replaced(
    module: Module, parts: Sequence[Kernel], kernel: Kernel, handed: frozenset[str]
) -> Module:
    """The module with one kernel in the place of the last of its parts."""
    names = [part.name for part in parts]
    name = f"{Pattern.ATTENTION.value}{names[-1].lstrip('abcdefghijklmnopqrstuvwxyz_')}"
    kernel = replace(kernel, name=name)
    kernels = tuple(
        kernel if k.name == names[-1] else k for k in module.kernels if k.name not in names[:-1]
    )
    origin = {k: v for k, v in module.origin.items() if k not in names}
    origin[name] = tuple(sorted({i for n in names for i in module.origin.get(n, ())}))
    renamed = dict.fromkeys(names, name)
    chains = tuple(
        replace(c, kernels=tuple(dict.fromkeys(renamed.get(k, k) for k in c.kernels)))
        for c in module.chains
    )
    tensors = {n: t for n, t in module.tensors.items() if n not in handed}
    return replace(module, tensors=tensors, kernels=kernels, origin=origin, chains=chains)
