"""Merging several kernels into one: the common part of these rewrites.

    x = kernel(a);  y = kernel(x, b)    ->    y = kernel(a, b)

Elements are handed on one to one, so the joined kernel is the Lets of all parts, with a value in
the place of each read of what another part stored, and what two parts compute alike once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from weft.foundation.index_expr import Axis, Expr, Index
from weft.foundation.records import replace
from weft.region.fitting.cutting import needed
from weft.region.ir import (
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
from weft.region.writing.axes import split_axis

Renaming: TypeAlias = dict[str, str]
"""The axes of a part as those of the whole."""


# -- axes ----------------------------------------------------------------------------------------


def _renamings(parts: Sequence[Kernel], handed: frozenset[str]) -> list[Renaming] | None:
    """The axes of each part by the names of the whole; None where elements do not meet one to
    one."""
    stored: dict[str, Index] = {}
    found: list[Renaming] = []
    for number, part in enumerate(parts):
        renaming: Renaming = {}
        reads = [let.expr for let in part.body if isinstance(let.expr, Read)]
        same: Renaming = {}
        for read in reads:
            if read.tensor in handed and not _reads_same_place(
                read, stored.get(read.tensor), renaming, same
            ):
                return None
        for axis in part.axes:
            renaming.setdefault(axis.name, f"{axis.name}{number}")
        found = [
            {old: same.get(new, new) for old, new in one.items()} for one in (*found, renaming)
        ]
        if any(len(set(one.values())) != len(one) for one in found):
            return None
        stored = {
            output.tensor: Names({}, one, {}).index(output.index)
            for one, known in zip(found, parts, strict=False)
            for output in known.outputs
        }
    return found


def _reads_same_place(read: Read, stored: Index | None, renaming: Renaming, same: Renaming) -> bool:
    """Whether a read is of the element at the same place; its axes join the renaming, and `same`
    says which axes of what was stored turn out to be others."""
    if stored is None or read.guards or read.places:
        return False
    for there, here in zip(stored, read.index, strict=True):
        if there.is_constant and here == there:
            continue
        pairs = same_digits(there, here)
        if pairs is None:
            return False
        for old, new in pairs:
            known = renaming.setdefault(old, same.get(new, new))
            if known != same.get(new, new) and same.setdefault(new, known) != known:
                return False
    return True


def same_digits(there: Expr, here: Expr) -> list[tuple[str, str]] | None:
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
    share keys are two axes of a product and one of the softmax. Axes of a batch are cut where a
    part cuts them that reads what they store: windows of images have one mask for each place."""
    found = [*parts]
    for number, part in enumerate(parts):
        for maker in found[:number]:
            if maker.roles is not None:
                cut = _split_batches(maker, part, handed)
                found = [cut if each is maker else each for each in found]
    stored: dict[str, tuple[Kernel, Index]] = {}
    for number, whole in enumerate(found):
        part = whole
        for read in _handed_reads(whole, handed):
            if read.tensor in stored:
                maker, index = stored[read.tensor]
                for there, here in zip(index, read.index, strict=True):
                    part = _cut_part(part, here, there, maker.sizes)
        found[number] = part
        stored |= {output.tensor: (part, output.index) for output in part.outputs}
    return tuple(found)


def _split_batches(maker: Kernel, reader: Kernel, handed: frozenset[str]) -> Kernel:
    """A contraction with the axes of its batch cut as a part reads what it stores."""
    assert maker.roles is not None
    batch = {*maker.roles.batch}
    for read in _handed_reads(reader, handed):
        for output in maker.outputs:
            if output.tensor == read.tensor and not read.guards:
                for here, there in zip(output.index, read.index, strict=True):
                    if here.single_axis is not None and here.single_axis.name in batch:
                        maker = _cut_part(maker, here, there, reader.sizes)
    return maker


def _handed_reads(part: Kernel, handed: frozenset[str]) -> list[Read]:
    """The reads of what parts hand on."""
    reads = [let.expr for let in part.body if isinstance(let.expr, Read)]
    return [read for read in reads if read.tensor in handed]


def _cut_part(part: Kernel, here: Expr, there: Expr, sizes: Mapping[str, int]) -> Kernel:
    """A part whose axis `here` is cut as the digits of a number `there` are."""
    terms, single = _axis_terms(there), here.single_axis
    if terms is None or len(terms) == 1 or single is None or single.name not in part.sizes:
        return part
    extents = [sizes[name] for _, name in terms]
    digits = [math.prod(extents[number + 1 :]) for number, _ in enumerate(extents)]
    whole = part.sizes[single.name] == math.prod(extents) and there.constant == 0
    if not whole or digits != [factor for factor, _ in terms]:
        return part
    return split_axis(part, single.name, extents)


def _axes_of_whole(
    parts: Sequence[Kernel], handed: frozenset[str], renamings: Sequence[Renaming]
) -> tuple[KernelAxis, ...] | None:
    """Every axis once: those of the first part that results have, the others of results, what is
    left of the first part, and the rest."""
    sizes: dict[str, int] = {}
    for part, renaming in zip(parts, renamings, strict=True):
        for axis in part.axes:
            if sizes.setdefault(renaming[axis.name], axis.size) != axis.size:
                return None
    scores = [renamings[0][a] for a in parts[0].let(parts[0].outputs[0].value).axes]
    stored = [
        renaming[name]
        for part, renaming in zip(parts, renamings, strict=True)
        for output in part.outputs
        if output.tensor not in handed
        for name in part.let(output.value).axes
    ]
    order = [*(a for a in scores if a in stored), *(a for a in stored if a not in scores)]
    order = [*dict.fromkeys(order), *(a for a in scores if a not in stored)]
    order += [a for a in sizes if a not in order]
    return tuple(KernelAxis(name, sizes[name]) for name in order)


# -- bodies --------------------------------------------------------------------------------------


@dataclass
class _Whole:
    """The joined kernel under construction."""

    handed: frozenset[str]
    kept: frozenset[str]
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
            if output.tensor in self.kept or output.tensor not in self.handed:
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


def merged(
    parts: Sequence[Kernel],
    handed: frozenset[str],
    pattern: Pattern,
    kept: frozenset[str] = frozenset(),
) -> Kernel | None:
    """The kernel that does what its parts do; None where elements are not handed on one to one.
    Those of `kept` are stored all the same."""
    parts = _split_alike(parts, handed)
    renamings = _renamings(parts, handed)
    axes = None if renamings is None else _axes_of_whole(parts, handed - kept, renamings)
    if renamings is None or axes is None:
        return None
    whole = _Whole(handed, kept, [axis.name for axis in axes])
    for number, (part, renaming) in enumerate(zip(parts, renamings, strict=True)):
        whole.add(part, f"p{number}_", renaming)
    outputs = tuple(whole.outputs)
    return live(Kernel("", pattern, axes, tuple(whole.body), outputs, labels=whole.labels))


def live(kernel: Kernel) -> Kernel:
    """A kernel without what no result needs, its axes marked as results have them."""
    names = needed((output.value for output in kernel.outputs), kernel)
    body = tuple(let for let in kernel.body if let.name in names)
    lives: Mapping[str, tuple[str, ...]] = {let.name: let.axes for let in body}
    used = {name for axes in lives.values() for name in axes}
    stored = {name for output in kernel.outputs for name in lives[output.value]}
    axes = tuple(
        replace(axis, reduce=axis.name not in stored) for axis in kernel.axes if axis.name in used
    )
    labels = {name: label for name, label in kernel.labels.items() if name in names}
    return replace(kernel, axes=axes, body=body, labels=labels)


def replaced(
    module: Module, parts: Sequence[Kernel], kernel: Kernel, handed: frozenset[str]
) -> Module:
    """The module with one kernel in the place of the last of its parts."""
    names = [part.name for part in parts]
    name = f"{kernel.pattern.value}{names[-1].lstrip('abcdefghijklmnopqrstuvwxyz_')}"
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
