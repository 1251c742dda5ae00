"""The kernels of an attention made one.

    scores = kernel(q, k);  weights = kernel(scores);  y = kernel(weights, v)
        ->  y = kernel(q, k, v)

Elements are handed on one to one, so the joined kernel is the Lets of all three, with a value in
the place of each read of what another one stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from weft.region.attention import attention_of
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

FEWEST: Final = 8
"""Queries and keys from which on blocks of them are worth computing together."""
_Link: TypeAlias = tuple[str, dict[str, str]]
"""The tensor that two kernels share, and which axis of the first is which of the second."""


def join_attention(module: Module) -> Module:
    """The module with the three kernels of every attention made one, where that is possible."""
    for chain in module.chains:
        if chain.kind == "attention" and len(chain.kernels) == 3:
            module = _joined(module, chain)
    return module


def _joined(module: Module, chain: Chain) -> Module:
    by_name = {kernel.name: kernel for kernel in module.kernels}
    if not set(chain.kernels) <= set(by_name):
        return module
    scores, row, mix = (by_name[name] for name in chain.kernels)
    links = _link(module, scores, row), _link(module, row, mix)
    if links[0] is None or links[1] is None or not _are_neighbours(module, scores, row, mix):
        return module
    kernel = _merged((scores, row, mix), (links[0], links[1]))
    found = None if kernel is None else attention_of(kernel)
    if kernel is None or found is None:
        return module
    if kernel.sizes[found.query] < FEWEST or kernel.sizes[found.key] < FEWEST:
        return module
    if any(found.key in kernel.let(output.value).axes for output in kernel.outputs):
        return module
    return _replaced(module, (scores, row, mix), kernel, {link[0] for link in links if link})


def _link(module: Module, first: Kernel, second: Kernel) -> _Link | None:
    """The tensor that only hands values from one kernel to the next, and which axis of the first
    is which of the second; None where elements do not meet one to one."""
    for output in first.outputs:
        reads = [
            let.expr
            for kernel in module.kernels
            for let in kernel.body
            if isinstance(let.expr, Read) and let.expr.tensor == output.tensor
        ]
        own = [let.expr for let in second.body if isinstance(let.expr, Read)]
        if module.tensors[output.tensor].role != "internal" or len(reads) != 1:
            continue
        if reads[0] in own and not _read_elsewhere(module, output.tensor):
            pairs = _pairs(output, reads[0])
            if pairs is not None and output.base is None:
                return output.tensor, pairs
    return None


def _read_elsewhere(module: Module, tensor: str) -> bool:
    """Whether a tensor is read other than by a Read: whole, as an index, or as a base."""
    return any(
        tensor in (*(p.tensor for p in k.params), *(o.base for o in k.outputs))
        or (k.opaque is not None and tensor in k.opaque.inputs)
        for k in module.kernels
    )


def _pairs(output: Output, read: Read) -> dict[str, str] | None:
    if read.guards or read.places or len(read.index) != len(output.index):
        return None
    found: dict[str, str] = {}
    for stored, wanted in zip(output.index, read.index, strict=True):
        if stored.is_constant and wanted == stored:
            continue
        if stored.single_axis is None or wanted.single_axis is None:
            return None
        found[stored.single_axis.name] = wanted.single_axis.name
    return found if len(set(found.values())) == len(found) else None


def _are_neighbours(module: Module, *parts: Kernel) -> bool:
    """Whether nothing between the first and the last needs, or makes, what only the parts know:
    everything the parts read exists before the first of them."""
    names = [kernel.name for kernel in module.kernels]
    places = [names.index(part.name) for part in parts]
    own = {output.tensor for part in parts for output in part.outputs}
    between = [
        kernel
        for place, kernel in enumerate(module.kernels)
        if places[0] < place < places[-1] and place not in places
    ]
    return not any(own & set(kernel.inputs) for kernel in between)


def _merged(parts: tuple[Kernel, Kernel, Kernel], links: tuple[_Link, _Link]) -> Kernel | None:
    scores, row, mix = parts
    if any(part.params or part.opaque for part in parts):
        return None
    to_row = links[0][1]
    from_mix = {new: old for old, new in links[1][1].items()}
    if set(to_row) != {n for o in scores.outputs for n in scores.let(o.value).axes}:
        return None
    renames = [
        {a.name: to_row.get(a.name, f"d{number}") for number, a in enumerate(scores.axes)},
        {a.name: a.name for a in row.axes},
        {a.name: from_mix.get(a.name, f"e{number}") for number, a in enumerate(mix.axes)},
    ]
    axes = _joined_axes(parts, renames)
    if axes is None:
        return None
    body: list[Let] = []
    outputs: list[Output] = []
    handed: dict[str, str] = {}
    labels: dict[str, str] = {}
    for prefix, part, names in zip(("s_", "w_", "y_"), parts, renames, strict=True):
        renamed = _Part(part, prefix, names, [found.name for found in axes])
        body += renamed.body(part, handed)
        labels.update((prefix + name, label) for name, label in part.labels.items())
        for output in map(renamed.output, part.outputs):
            if output.tensor in (links[0][0], links[1][0]):
                handed[output.tensor] = output.value
            else:
                outputs.append(replace(output, materialize=Materialize.GMEM))
    lives = {let.name: let.axes for let in body}
    stored = {name for output in outputs for name in lives[output.value]}
    marked = tuple(replace(found, reduce=found.name not in stored) for found in axes)
    return Kernel("", Pattern.ATTENTION, marked, tuple(body), tuple(outputs), labels=labels)


def _joined_axes(
    parts: tuple[Kernel, ...], renames: list[dict[str, str]]
) -> tuple[KernelAxis, ...] | None:
    """The axes of all parts, each once: batch, query, values, keys, depth."""
    sizes: dict[str, int] = {}
    for part, names in zip(parts, renames, strict=True):
        for found in part.axes:
            new = names[found.name]
            if sizes.setdefault(new, found.size) != found.size:
                return None
    stored = parts[2].let(parts[2].outputs[0].value).axes
    first = [renames[1][a.name] for a in parts[1].axes]
    value = [renames[2][name] for name in stored if renames[2][name] not in first]
    key = [name for name in first if name not in {renames[2][n] for n in stored}]
    order = [*(n for n in first if n not in key), *value, *key]
    order += [name for name in sizes if name not in order]
    return tuple(KernelAxis(name, sizes[name]) for name in order)


class _Part(Names):
    """One part's names in the whole: Lets get a prefix, axes are those of the whole, and reads of
    what an earlier part hands on are the value that it stored."""

    def __init__(
        self, part: Kernel, prefix: str, axes: dict[str, str], order: Sequence[str]
    ) -> None:
        tensors = {name: name for name in buffers(part)}
        super().__init__(tensors, axes, {})
        self.prefix, self.order = prefix, order

    def fresh(self, name: str) -> str:
        return self.lets.setdefault(name, self.prefix + name)

    def axis_names(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(sorted(super().axis_names(names), key=self.order.index))

    def body(self, part: Kernel, handed: Mapping[str, str]) -> list[Let]:
        found = []
        for let in part.body:
            if isinstance(let.expr, Read) and let.expr.tensor in handed:
                self.lets[let.name] = handed[let.expr.tensor]
            else:
                found.append(self.let(let))
        return found


def _replaced(
    module: Module, parts: tuple[Kernel, ...], kernel: Kernel, handed: set[str]
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
