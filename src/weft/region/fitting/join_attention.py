"""The kernels of an attention made one.

    scores = kernel(q, k);  weights = kernel(scores);  y = kernel(weights, v)
        ->  y = kernel(q, k, v)

What is stored of each query besides (the log-sum-exp of its scores) is a result too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from weft.region.fitting.choices import with_known_choices
from weft.region.fitting.in_pages import in_pages
from weft.region.fitting.joining import merged, replaced
from weft.region.fitting.one_query import with_one_query
from weft.region.fitting.shares import with_shares
from weft.region.forms.attention import find_attention, keeps_weights
from weft.region.forms.few import is_of_few, reads_pages
from weft.region.forms.warpgroups import suits_warpgroups
from weft.region.ir import (
    AxisIndex,
    Chain,
    Kernel,
    Module,
    Pattern,
)
from weft.region.structure import buffers
from weft.target.target import Kind, Target

FEWEST: Final = 8
"""Queries and keys from which on blocks of them are worth computing together."""


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
    parts = _with_rows(module, [by_name[name] for name in chain.kernels])
    handed, kept = _handed_on(module, parts)
    if any(part.params or part.opaque for part in parts) or not _are_neighbours(module, parts):
        return module
    kernel = merged(parts, handed, Pattern.ATTENTION, kept)
    if kernel is None:
        return module
    kernel = with_shares(with_known_choices(kernel))
    lean = module
    if target.kind is Kind.GPU:
        lean, kernel = in_pages(module, kernel, {part.name for part in parts})
        kernel = kernel if find_attention(kernel) is not None else with_one_query(kernel)
    if not _is_worth_it(kernel, target):
        return module
    if target.kind is Kind.GPU and not suits_warpgroups(kernel, lean.tensors):
        return module
    return replaced(lean, parts, kernel, handed - kept)


def _is_worth_it(kernel: Kernel, target: Target) -> bool:
    """Whether it is an attention that stores nothing for each key, with queries and keys enough."""
    found = find_attention(kernel)
    if found is None:
        return False
    queries, keys = kernel.sizes[found.query], kernel.sizes[found.key]
    streams = target.kind is Kind.GPU and is_of_few(kernel, found)
    if not keeps_weights(kernel, found) and (streams or target.kind is not Kind.GPU):
        return False
    if not streams and (min(queries, keys) < FEWEST or reads_pages(kernel, found)):
        return False
    return not any(found.key in kernel.let(output.value).axes for output in kernel.outputs)


def _with_rows(module: Module, parts: Sequence[Kernel]) -> list[Kernel]:
    """The parts, and what others make of the numbers of rows alone: the log-sum-exp of scores."""
    names = {part.name for part in parts}
    made = {output.tensor for part in parts[:-1] for output in part.outputs}
    rows = [
        kernel
        for kernel in module.kernels
        if kernel.name not in names
        and kernel.pattern is Pattern.MAP
        and kernel.inputs
        and not any(isinstance(let.expr, AxisIndex) for let in kernel.body)
        and set(buffers(kernel)) - {output.tensor for output in kernel.outputs} <= made
    ]
    return [*parts[:-1], *rows, parts[-1]]


def _handed_on(module: Module, parts: Sequence[Kernel]) -> tuple[frozenset[str], frozenset[str]]:
    """The tensors that parts write and parts read, and those of them that others read too."""
    names = {part.name for part in parts}
    written = {output.tensor for part in parts for output in part.outputs if output.base is None}
    kept = {name for name in written if module.tensors[name].role != "internal"}
    inside = {name for part in parts for name in part.inputs}
    for kernel in module.kernels:
        read = set(buffers(kernel)) - {output.tensor for output in kernel.outputs}
        based = {output.base for output in kernel.outputs}
        written -= based | ({p.tensor for p in kernel.params})
        if kernel.name not in names:
            kept |= read
    return frozenset(written & inside), frozenset(written & inside & kept)


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
