"""Broadcast factors of an attention's gradient, stored as often as they are used.

    t[r, j] = sum_e c * v[j, e]          ->   full[r, e] = c,   t[r, j] = sum_e full[r, e] * v[j, e]
    y[j, e] = sum_r p[r, j] * c          ->   y[j, e] = sum_r p[r, j] * full[r, e]

The cotangent of a sum or a mean is one number for all elements. What it is multiplied with is then
no product for Poly-View, which sees only what is read; and the gradient, one product short, is no
stream. Filling a tensor takes no time beside the weights of every row and column in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from weft.foundation.dtypes import BF16, F16, F32, DType
from weft.foundation.index_expr import Expr, axis, substitute
from weft.foundation.records import replace
from weft.poly_view.chains import find_chains
from weft.poly_view.contraction import recognise
from weft.poly_view.ir import Access, BlockKind, PolyBlock, Scop
from weft.target.target import Kind, Target


def with_spread_factors(scop: Scop, target: Target) -> Scop:
    """The view with the repeated factors of streams as tensors, on a machine that streams."""
    if target.kind is not Kind.GPU or not target.streams_attention:
        return scop
    factors = _Factors(scop)
    products = {block.name: block for block in factors.products()}
    if not products:
        return scop
    streamed = _blocks_of_streams(_with_blocks(scop, factors.copies, products))
    kept = {name: block for name, block in products.items() if name in streamed}
    return _with_blocks(scop, factors.copies, kept) if kept else scop


@dataclass
class _Factors:
    """The sums that are products once a factor is a tensor, and these tensors."""

    scop: Scop
    copies: dict[str, PolyBlock] = field(default_factory=dict)
    known: dict[object, str] = field(default_factory=dict)
    """The copies by what they hold."""

    def products(self) -> Iterator[PolyBlock]:
        """The sums as contractions."""
        for block in self.scop.blocks:
            held = block.accesses[0].tensor if block.accesses else ""
            inner = self.scop.by_name.get(held)
            if block.kind is not BlockKind.REDUCE or block.fn != "sum" or block.dtype is not F32:
                continue
            if inner is None or inner.fn != "mul":
                continue
            found = self.product(block, inner)
            if found is not None:
                yield found

    def product(self, block: PolyBlock, mul: PolyBlock) -> PolyBlock | None:
        """A sum of products as a contraction; None where it is none even so."""
        whole = block.accesses[0]
        if whole.guards or len(mul.accesses) != 2:
            return None
        places = dict(zip((own.name for own in mul.axes), whole.map, strict=True))
        first, second = (self.cast(_compose_access(access, places)) for access in mul.accesses)
        if first is None or second is None:
            return None
        for sides in (
            (self.whole(*first), self.through(*second)),
            (self.through(*first), self.whole(*second)),
        ):
            attrs = recognise(block.axes, *sides)
            if attrs is not None:
                waited = {*block.after, *mul.after, *first[1].after, *second[1].after}
                made = replace(block, accesses=sides, attrs=attrs, after=tuple(sorted(waited)))
                return replace(made, kind=BlockKind.CONTRACTION)
        return None

    def cast(self, access: Access) -> tuple[Access, PolyBlock] | None:
        """A factor, where it is elements of 16 bits that a block widens."""
        cast = self.scop.by_name.get(access.tensor)
        if access.guards or cast is None or cast.fn != "cast":
            return None
        inner = cast.accesses[0]
        narrow = cast.dtype is F32 and self.dtype(inner.tensor) in (BF16, F16)
        return (access, cast) if narrow and not inner.guards else None

    def through(self, access: Access, cast: PolyBlock) -> Access:
        """The read of what is cast in place of the cast."""
        places = dict(zip((own.name for own in cast.axes), access.map, strict=True))
        return replace(_compose_access(cast.accesses[0], places), widen=F32)

    def whole(self, access: Access, cast: PolyBlock) -> Access:
        """The read of a tensor that has what is cast as often as the cast has it."""
        return replace(access, tensor=self.copy(cast, cast.accesses[0]), widen=F32)

    def copy(self, cast: PolyBlock, read: Access) -> str:
        numbered = {own.name: axis(str(n)) for n, own in enumerate(cast.axes)}
        key = (_compose_access(read, numbered), cast.shape)
        if key not in self.known:
            name = f"{cast.name}_full"
            while name in self.scop.by_name or name in self.scop.inputs:
                name += "_"
            self.known[key] = name
            self.copies[name] = PolyBlock(
                name,
                BlockKind.MOVEMENT,
                cast.axes,
                self.dtype(read.tensor),
                (read,),
                cast.value.x,
            )
        return self.known[key]

    def dtype(self, name: str) -> DType:
        """The dtype of a tensor."""
        held = self.scop.by_name.get(name)
        return self.scop.inputs[name][0] if held is None else held.dtype


def _compose_access(access: Access, places: Mapping[str, Expr]) -> Access:
    """A read by a block whose axes are somewhere in those of another one."""
    guards = tuple(replace(g, expr=substitute(g.expr, places)) for g in access.guards)
    return replace(access, map=tuple(substitute(e, places) for e in access.map), guards=guards)


def _blocks_of_streams(scop: Scop) -> set[str]:
    """The blocks of all streams."""
    return {name for chain in scop.chains if chain.kind == "stream" for name in chain.blocks}


def _with_blocks(
    scop: Scop, copies: Mapping[str, PolyBlock], products: Mapping[str, PolyBlock]
) -> Scop:
    """The view with sums as products of copies, and without blocks that nobody reads then."""
    read = {access.tensor for block in products.values() for access in block.accesses}
    waiting = {name: block for name, block in copies.items() if name in read}
    blocks: list[PolyBlock] = []
    for block in scop.blocks:
        made = products.get(block.name, block)
        for access in made.accesses:
            if access.tensor in waiting:
                blocks.append(waiting.pop(access.tensor))
        blocks.append(made)
    found = replace(scop, blocks=tuple(_drop_unused(scop, blocks)))
    found = replace(found, edges=found.dependences)
    return replace(found, chains=find_chains(found))


def _drop_unused(scop: Scop, blocks: Sequence[PolyBlock]) -> list[PolyBlock]:
    """Blocks without those that nothing is made of but had readers before."""
    known = {access.tensor for block in scop.blocks for access in block.accesses}
    needed = {access.tensor for _, access, _ in scop.outputs}
    needed |= {found.access.tensor for found in scop.params}
    needed |= {block.name for block in scop.blocks} - known
    kept: list[PolyBlock] = []
    for block in reversed(blocks):
        if block.name in needed:
            kept.append(block)
            needed.update(access.tensor for access in block.accesses)
            needed.update(block.after)
            needed.update([block.base] if block.base is not None else [])
    return kept[::-1]
