"""Local edges: fused intermediates that never reach global memory, and where they are kept.

    smem_ring   from a factor that the kernel computes (padded, windowed, gathered, any arithmetic)
                to the contraction: slices of it wait in a ring in shared memory, `depth` of them,
                which is the plan's `stages`
    reg         from the contraction to a result: the epilogue works on the sums in registers

A factor that is read as it lies is no intermediate: `cache` says where its tiles wait. `gmem` is
what lies between two kernels, so no edge of one kernel has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from weft.foundation.tally import counted
from weft.plan.ir import LocalEdge
from weft.region.ir import Binary, Kernel, Let, Pattern, Read, Reduce

SUM: Final = "sum_k"
"""The contraction in a plan: the sum over k, whatever the program calls it."""


def local_edges(kernel: Kernel, ring: int | None = None) -> tuple[LocalEdge, ...]:
    """The edges of a kernel; `ring` is how many slices of a factor wait in shared memory, if a
    template has factors computed there."""
    if kernel.roles is None:
        return ()
    start, label = kernel.roles.contraction, kernel.labels
    results = dict.fromkeys(o.value for o in kernel.outputs if o.value != start)
    factors = _computed_factors(kernel) if ring is not None else ()
    name = label.get(start, start)
    return (
        *(LocalEdge(label.get(let.name, let.name), name, "smem_ring", ring) for let in factors),
        *(LocalEdge(name, label.get(value, value), "reg") for value in results),
    )


def _computed_factors(kernel: Kernel) -> Iterator[Let]:
    assert kernel.roles is not None
    total = kernel.let(kernel.roles.contraction).expr
    product = kernel.let(total.value).expr if isinstance(total, Reduce) else None
    if isinstance(product, Binary):
        factors = dict.fromkeys((product.lhs, product.rhs))
        yield from (let for let in map(kernel.let, factors) if not _lies_in_memory(let, kernel))


def _lies_in_memory(let: Let, kernel: Kernel) -> bool:
    """Whether a value is a tensor as it lies: not padded, not gathered, no overlapping windows."""
    read = let.expr
    if not isinstance(read, Read) or read.guards or read.places:
        return False
    return kernel.pattern is not Pattern.CONV or all(len(i.terms) <= 1 for i in read.index)


def named_edges(
    edges: Sequence[LocalEdge], own: Sequence[LocalEdge], steps: Sequence[str]
) -> tuple[LocalEdge, ...]:
    """The edges of a plan with the names that values of its kernel have: the contraction is also
    `sum_k`, and its only result what the last step of the epilogue is."""
    made = [edge for edge in own if edge.buffer == "reg"]
    if len(made) != 1 or not steps:
        return tuple(edges)
    taken = {name for edge in own for name in (edge.source, edge.to)}
    names = {SUM: made[0].source, steps[-1]: made[0].to}
    names = {said: name for said, name in names.items() if said not in taken}
    return tuple(
        replace(edge, source=names.get(edge.source, edge.source), to=names.get(edge.to, edge.to))
        for edge in edges
    )


def completed_edges(edges: Sequence[LocalEdge], own: Sequence[LocalEdge]) -> tuple[LocalEdge, ...]:
    """The edges of a plan with what they leave out: all, or how deep a ring is."""
    depth = next((edge.depth for edge in own if edge.buffer == "smem_ring"), None)
    given = [
        replace(edge, depth=depth) if edge.buffer == "smem_ring" and edge.depth is None else edge
        for edge in edges
    ]
    alike = len(given) == len(own) and set(given) == set(own)
    return tuple(own) if alike or not given else tuple(given)


def edge_refusals(edges: Sequence[LocalEdge], own: Sequence[LocalEdge]) -> Iterator[str]:
    """What a plan says about edges that is not so, given those that there are."""
    there = {_ends(edge): edge for edge in own}
    given = completed_edges(edges, own)
    for edge in given:
        kept = there.get(_ends(edge))
        if kept is None:
            has = "; ".join(f"{_ends(e)}, kept in {_place(e)}" for e in own) or "none"
            yield f"local_edges: the kernel has no edge {_ends(edge)}; its edges: {has}"
        elif edge != kept:
            yield f"local_edges: {_ends(edge)} is kept in {_place(kept)}, not in {_place(edge)}"
    named = [_ends(edge) for edge in given]
    for edge in own:
        if named.count(_ends(edge)) != 1:
            times = counted(named.count(_ends(edge)), "time")
            yield f"local_edges name {_ends(edge)}, kept in {_place(edge)}, {times}, not once"


def _ends(edge: LocalEdge) -> str:
    return f"{edge.source} to {edge.to}"


def _place(edge: LocalEdge) -> str:
    return edge.buffer if edge.depth is None else f"{edge.buffer} of depth {edge.depth}"
