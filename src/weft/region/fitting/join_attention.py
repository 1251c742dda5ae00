"""Fusion of the kernels of an attention into one.

    scores = kernel(q, k);  weights = kernel(scores);  y = kernel(weights, v)
        ->  y = kernel(q, k, v)

What is stored of each query besides (the log-sum-exp of its scores) is a result too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from weft.foundation.dtypes import BF16, F16, F32, DType
from weft.foundation.index_expr import axis
from weft.foundation.records import replace
from weft.region.fitting.choices import with_known_choices
from weft.region.fitting.cutting import needed
from weft.region.fitting.in_pages import in_pages
from weft.region.fitting.joining import live, merged, replaced
from weft.region.fitting.natural_powers import with_natural_powers
from weft.region.fitting.one_query import with_one_query
from weft.region.fitting.row_factors import with_row_factors
from weft.region.fitting.shares import with_shares
from weft.region.forms.attention import (
    find_attention,
    keeps_weights,
    score_sides,
    source,
    value_side,
    weight_side,
)
from weft.region.forms.few_queries import is_of_few, reads_pages
from weft.region.forms.multiplied import hides_digits
from weft.region.forms.stream import is_narrow
from weft.region.forms.warpgroups import is_regular, suits_warpgroups
from weft.region.ir import (
    AxisIndex,
    Binary,
    Cast,
    Chain,
    Check,
    Const,
    Kernel,
    Let,
    Materialize,
    Module,
    Output,
    Pattern,
    Read,
    Select,
    Tensor,
    Unary,
)
from weft.region.structure import buffers
from weft.target.target import Kind, Target

FEWEST: Final = 8
"""Queries and keys from which on blocks of them are worth computing together."""
_RESULTS: Final = (BF16, F16, F32)
_OF_ELEMENTS: Final = (Read, Const, AxisIndex, Unary, Cast, Binary, Select)


def join_attention(module: Module, target: Target) -> Module:
    """The module with the kernels of every attention made one, where that is possible."""
    for chain in module.chains:
        if chain.kind == "attention" and len(chain.kernels) > 2:
            apart = _with_one_result(module, chain) if target.kind is Kind.GPU else module
            joined = _join_chain(apart, chain, target)
            module = module if joined is apart else joined
    return module


def _with_one_result(module: Module, chain: Chain) -> Module:
    """The module with what is made of the attention's result apart, in a map that reads it, where
    the product of weights and values stores both, or several things that are made of one."""
    last = next((k for k in module.kernels if k.name == chain.kernels[-1]), None)
    if last is None or len(last.outputs) < 2 or last.params or any(o.base for o in last.outputs):
        return module
    for chosen in (*last.outputs, *_outputs_for_all(last)):
        rest = _map_of_others(last, chosen)
        if rest is not None:
            return _replace_by_two(module, last, live(replace(last, outputs=(chosen,))), rest)
    return module


def _outputs_for_all(kernel: Kernel) -> Iterator[Output]:
    """Values that could be stored in the place of all results, the last of them first, narrow ones
    before others."""
    lets = [let for let in reversed(kernel.body) if let.dtype in _RESULTS]
    for let in sorted(lets, key=lambda let: let.dtype.storage_bytes):
        if let.axes == kernel.let(kernel.outputs[0].value).axes:
            yield Output(f"{kernel.name}_{let.name}", let.name, tuple(map(axis, let.axes)))


def _replace_by_two(module: Module, whole: Kernel, own: Kernel, rest: Kernel) -> Module:
    """The module with two kernels in the place of one."""
    tensors, (chosen,) = dict(module.tensors), own.outputs
    if chosen.tensor not in tensors:
        let = own.let(chosen.value)
        shape = tuple(own.sizes[name] for name in let.axes)
        tensors[chosen.tensor] = Tensor(chosen.tensor, let.dtype, shape, "internal")
    kernels = (part for k in module.kernels for part in ((own, rest) if k is whole else (k,)))
    origin = module.origin | {rest.name: module.origin.get(whole.name, ())}
    return replace(module, kernels=tuple(kernels), tensors=tensors, origin=origin)


def _map_of_others(kernel: Kernel, chosen: Output) -> Kernel | None:
    """The map of other results from one that is stored; None where they need more of what the
    kernel sums up."""
    stored = kernel.let(chosen.value)
    others = tuple(output for output in kernel.outputs if output is not chosen)
    names = needed((output.value for output in others), kernel, stop=[stored.name])
    lets = [let for let in kernel.body if let.name in names]
    alone = all(let is stored or isinstance(let.expr, _OF_ELEMENTS) for let in lets)
    if stored not in lets or not alone:
        return None
    read = replace(stored, expr=Read(chosen.tensor, chosen.index))
    body = tuple(read if let is stored else let for let in lets)
    results = tuple(replace(output, materialize=Materialize.GMEM) for output in others)
    return live(
        Kernel(f"map_{kernel.name}", Pattern.MAP, kernel.axes, body, results, labels=kernel.labels)
    )


def _join_chain(module: Module, chain: Chain, target: Target) -> Module:
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
    kernel = with_shares(with_natural_powers(with_known_choices(kernel)))
    lean = module
    if target.kind is Kind.GPU:
        kernel = with_row_factors(kernel)
        if target.has("tma"):
            lean, kernel = in_pages(module, kernel, {part.name for part in parts})
        kernel = kernel if find_attention(kernel) is not None else with_one_query(kernel)
    if not _is_worth_it(kernel, target):
        return module
    if target.kind is Kind.GPU and not _may_round_weights(kernel, module):
        return module
    if target.kind is Kind.GPU and not suits_warpgroups(kernel, lean.tensors):
        lean, kernel = _with_stored_sides(lean, kernel, parts[-1].name)
        if not suits_warpgroups(kernel, lean.tensors):
            return module
    return replaced(lean, parts, kernel, handed - kept)


def _with_stored_sides(module: Module, kernel: Kernel, last: str) -> tuple[Module, Kernel]:
    """An attention whose queries, keys or values are computed from what is read (they are stored
    with 8 bits, say), or lie in another order, or that picks what it adds to scores from a table,
    reading all this from tensors that maps before it store, and the module with these before its
    kernel `last`: a map moves each element once, an attention of many queries that is not one
    kernel the scores of all pairs. That of few queries moves little more than its keys and values,
    and is left as it is."""
    found = find_attention(kernel)
    if found is None or is_of_few(kernel, found):
        return module, kernel
    dtype = _before_widening(kernel, weight_side(kernel, found)).dtype
    columns = (found.depth, found.depth, found.value)
    sides = (*score_sides(kernel, found), value_side(kernel, found))
    wanted: list[tuple[Let, DType, tuple[str, ...]]] = []
    for side, inner in zip(sides, columns, strict=True):
        let = _before_widening(kernel, side)
        if not is_regular(kernel, let, inner, module.tensors) and dtype in (BF16, F16):
            wanted.append((let, dtype, (*(name for name in let.axes if name not in inner), *inner)))
    known = {source(kernel, side).name for side in sides}
    wanted += [
        (let, let.dtype, let.axes)
        for let in kernel.body
        if isinstance(let.expr, Read) and let.expr.places and let.name not in known and let.axes
    ]
    for let, kept, axes in wanted:
        made = _store_narrow(kernel, let, kept, axes, f"{last}_{let.name}")
        if made is None:
            continue
        own, kernel = made
        (output,) = own.outputs
        shape = tuple(kernel.sizes[name] for name in axes)
        stored = Tensor(output.tensor, own.let(output.value).dtype, shape, "internal")
        kernels = (each for k in module.kernels for each in ((own, k) if k.name == last else (k,)))
        module = replace(
            module,
            kernels=tuple(kernels),
            tensors=dict(module.tensors) | {stored.name: stored},
            origin=module.origin | {own.name: module.origin.get(last, ())},
        )
    return module, kernel


def _store_narrow(
    kernel: Kernel, let: Let, dtype: DType, axes: Sequence[str], tensor: str
) -> tuple[Kernel, Kernel] | None:
    """A map that stores a value with 16 bits, and the kernel reading it from there; None where it
    is no value of single elements, or loses something by being stored."""
    lets = [each for each in kernel.body if each.name in needed([let.name], kernel)]
    if not all(isinstance(each.expr, (*_OF_ELEMENTS, Check)) for each in lets):
        return None
    read, kept = replace(let, expr=Read(tensor, tuple(map(axis, axes)))), let
    after = [read]
    if let.dtype is not dtype:
        # A byte is a value of either format of 16 bits, so that it is the same one on the way.
        if not isinstance(let.expr, Cast) or kernel.let(let.expr.x).dtype.storage_bytes != 1:
            return None
        kept = Let(f"{let.name}_kept", dtype, let.axes, let.expr)
        lets[-1] = kept
        after = [replace(read, name=kept.name, dtype=dtype), replace(let, expr=Cast(kept.name))]
    own = Kernel(
        f"map_{tensor}", Pattern.MAP, kernel.axes, tuple(lets),
        (Output(tensor, kept.name, tuple(map(axis, axes))),), labels=kernel.labels,
    )  # fmt: skip
    body = [each for old in kernel.body for each in (after if old is let else [old])]
    return live(own), live(replace(kernel, body=tuple(body)))


def _before_widening(kernel: Kernel, name: str) -> Let:
    """A value, or what it was with 16 bits before it was converted."""
    found = let = kernel.let(name)
    while isinstance(let.expr, Cast):
        let = kernel.let(let.expr.x)
        found = let if let.dtype in (BF16, F16) else found
    return found


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


def _may_round_weights(kernel: Kernel, module: Module) -> bool:
    """Whether weights may have the few digits that matrix units multiply: they have no more, or
    what is made of their sums has as few before anything shows what these lack."""
    found = find_attention(kernel)
    assert found is not None
    dtype = source(kernel, value_side(kernel, found)).dtype
    if is_narrow(kernel, weight_side(kernel, found), dtype):
        return True
    return all(
        hides_digits(kernel, found.mixed, [output]) or _readers_hide_digits(module, output.tensor)
        for output in kernel.outputs
    )


def _readers_hide_digits(module: Module, name: str) -> bool:
    """Whether what kernels make of the sums that a tensor stores has few digits before anything
    shows what they lack. Sums of a row of them may be stored for other kernels: with them gradients
    are made, which end as numbers of few digits."""
    readers = [kernel for kernel in module.kernels if name in kernel.inputs]
    if module.tensors[name].role != "internal" or any(kernel.opaque for kernel in readers):
        return False
    for kernel in readers:
        reads = [x for x in kernel.body if isinstance(x.expr, Read) and x.expr.tensor == name]
        for let in reads:
            shown = [
                output
                for output in kernel.outputs
                if module.tensors[output.tensor].role != "internal"
                or set(let.axes) <= set(kernel.let(output.value).axes)
            ]
            if not hides_digits(kernel, let.name, shown):
                return False
    return True


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
