"""Checks of an edited view against the one that was made: the same blocks, computing the same over
the same domains. How they read (maps, guards, fills, the ranges of params) is free, and so is which
chains are named; dependences and the roles of axes must follow from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from typing import Final

from weft.foundation.dtypes import DType
from weft.foundation.errors import Finding, SpecViolation
from weft.poly_view.chains import find_chains
from weft.poly_view.contraction import recognise
from weft.poly_view.ir import Access, BlockKind, PolyBlock, Scop
from weft.poly_view.verify import INVALID

_FREE: Final = frozenset({"accesses", "write", "attrs"})
"""Fields of a block that are not those of the block that was made, or are checked by themselves."""


def agree(read: Scop, made: Scop) -> None:
    """Raise where a view that was read is not one of the graph, or contradicts itself."""
    found = (
        list(_end_findings(read, made))
        or list(_block_findings(read, made))
        or list(_check_derived(read))
    )
    if found:
        raise SpecViolation.of(found)


def _end_findings(read: Scop, made: Scop) -> Iterator[Finding]:
    for what, got, wanted in (
        ("inputs", read.inputs, made.inputs),
        ("shapes", read.shapes, made.shapes),
        ("params", [p.name for p in read.params], [p.name for p in made.params]),
        ("outputs", [(n, a) for n, _, a in read.outputs], [(n, a) for n, _, a in made.outputs]),
        ("blocks", [b.name for b in read.blocks], [b.name for b in made.blocks]),
    ):
        if got != wanted:
            yield Finding(
                INVALID,
                f"the {what} of the view",
                "names, dtypes, shapes and order follow from the graph and are other ones",
                "change the graph (stage tiny), or leave them",
            )


def _block_findings(read: Scop, made: Scop) -> Iterator[Finding]:
    dtypes = {name: dtype for name, (dtype, _) in made.inputs.items()}
    dtypes |= {block.name: block.dtype for block in made.blocks}
    for block, original in zip(read.blocks, made.blocks, strict=True):
        where = f"block {block.name}"
        for field in fields(PolyBlock):
            value, wanted = getattr(block, field.name), getattr(original, field.name)
            if field.name not in _FREE and value != wanted:
                why = f"its {field.name} follows from the graph and is another one"
                yield Finding(INVALID, where, why, "change the graph (stage tiny), or leave it")
        got, needed = (_operands_text(b.accesses, dtypes) for b in (block, original))
        if got != needed:
            why = f"it reads operands of {got}, but computes with {needed}"
            yield Finding(INVALID, where, why)
    pairs = zip((p.access for p in read.params), (p.access for p in made.params), strict=True)
    outputs = zip((a for _, a, _ in read.outputs), (a for _, a, _ in made.outputs), strict=True)
    for access, other in (*pairs, *outputs):
        if _operands_text((access,), dtypes) != _operands_text((other,), dtypes):
            yield Finding(INVALID, "the view", f"{access.tensor} has another dtype than needed")


def _operands_text(accesses: tuple[Access, ...], dtypes: dict[str, DType]) -> str:
    """The dtypes that are read, and what they are converted to."""
    read = ((dtypes.get(access.tensor), access.widen) for access in accesses)
    return ", ".join(str(was) if to is None else f"{was} as {to}" for was, to in read)


def _check_derived(read: Scop) -> Iterator[Finding]:
    """What the view says twice: dependences, roles, chains."""
    for block in read.blocks:
        if block.kind is BlockKind.CONTRACTION and block.attrs != recognise(
            block.axes, *block.accesses
        ):
            why = "its attrs are not the roles that its axes have in its accesses"
            yield Finding(INVALID, f"block {block.name}", why)
    stated, wanted = Counter(read.edges), Counter(read.dependences)
    for edge in (stated - wanted) | (wanted - stated):
        said = "is stated" if edge in read.edges else "is missing"
        yield Finding(
            INVALID,
            f"the edge from {edge.source} to {edge.to}",
            f"the dependence through access {edge.access} {said}; the accesses say otherwise",
        )
    if stated == wanted and _has_ranks(read):
        known = find_chains(read)
        for chain in read.chains:
            if chain not in known or read.chains.count(chain) > 1:
                why = f"the blocks {', '.join(chain.blocks)} are no {chain.kind} of its own"
                yield Finding(INVALID, "the chains of the view", why)


def _has_ranks(read: Scop) -> bool:
    """Whether every block is read with an index for each of its axes; where not, the verifier says
    so."""
    ranks = {block.name: len(block.out_axes) for block in read.blocks}
    accesses = (access for block in read.blocks for access in block.accesses)
    return all(len(access.map) == ranks.get(access.tensor, len(access.map)) for access in accesses)
