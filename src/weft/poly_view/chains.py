"""Recognising chains of blocks: softmax, attention, and its gradients (streams).

    row_softmax = powers , ewise* of rows , div | mul                   over the same rows
    attention   = contraction , ewise* , row_softmax , ewise* , contraction
                | contraction , ewise* , powers , ewise* , contraction , ewise* , by the sum
    powers      = reduce(max) , ewise* of rows , sub , (by a number)? , exp | exp2 , reduce(sum)
    stream      = contraction , ewise* , sub of a row's number , exp , ewise* , contraction+

The elementwise blocks of an attention (scale, mask, casts) lie between its parts and read them at
their own index. A stream is what the gradient of an attention is: powers of scores whose sums are
known, other products at the same place, and the products that all of this goes into. These are
facts about accesses; nothing is rewritten.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass

from weft.poly_view.ir import Access, BlockKind, Chain, PolyBlock, Scop

_EWISE_DEPTH = 12
"""How many elementwise blocks may lie between a product and the softmax of its scores."""


def find_chains(scop: Scop) -> tuple[Chain, ...]:
    """Every softmax, attention and stream, each softmax before its attention."""
    finder = _Finder(scop)
    found = []
    for block in scop.blocks:
        softmax = finder.softmax(block)
        if softmax is not None:
            attention = finder.attention(softmax)
            # Losses and their gradients divide powers by what is made of sums, too.
            if attention is not None or finder.is_plain(softmax):
                found.append(softmax)
            if attention is not None:
                found.append(attention)
        divided = finder.divided_after(block)
        if divided is not None:
            found.append(divided)
        stream = finder.stream(block)
        if stream is not None:
            found.append(stream)
    return tuple(found)


@dataclass
class _Finder:
    scop: Scop

    def __post_init__(self) -> None:
        self.blocks = self.scop.by_name
        self.readers: dict[str, list[tuple[PolyBlock, int]]] = {}
        for edge in self.scop.edges:
            self.readers.setdefault(edge.source, []).append((self.blocks[edge.to], edge.access))
        self.results = {access.tensor for _, access, _ in self.scop.outputs}

    # -- row softmax -----------------------------------------------------------------------------

    def softmax(self, share: PolyBlock) -> Chain | None:
        """The softmax that ends in this block, which divides powers by the sum of their row, or by
        what is made of it, or multiplies them by that."""
        if not _is_ewise(share, "div") and not _is_ewise(share, "mul"):
            return None
        for power, by in (share.accesses, share.accesses[::-1])[: 1 + (share.fn == "mul")]:
            exp = self.blocks.get(power.tensor)
            if exp is None or not _is_power(exp) or not _same_place(share, power):
                continue
            total = self._total_of(exp)
            powers = None if total is None else self._powers(exp, total)
            if total is None or powers is None or not _reads_rows(share, by, total):
                continue
            made = self._of_sums(by.tensor, total, _EWISE_DEPTH)
            if made or (made is not None and share.fn == "div"):
                return Chain("row_softmax", (*powers, *made, share.name))
        return None

    def is_plain(self, softmax: Chain) -> bool:
        """Whether powers of what is below the greatest of each row are divided by their sum."""
        top, sub, *_, total, share = (self.blocks[name] for name in softmax.blocks)
        shifted, divided = sub.accesses[1].tensor, share.accesses[1].tensor
        return share.fn == "div" and (shifted, divided) == (top.name, total.name)

    def _total_of(self, exp: PolyBlock) -> PolyBlock | None:
        """What adds powers up."""
        readers = (reader for reader, _ in self.readers.get(exp.name, []))
        return next((reader for reader in readers if _is_reduce(reader, "sum", exp.name)), None)

    def _powers(self, exp: PolyBlock, total: PolyBlock) -> tuple[str, ...] | None:
        """The greatest of each row, what is above it or what is made of it, a multiple of that,
        powers and their sums."""
        above = self.blocks.get(exp.accesses[0].tensor)
        if above is None or not _same_place(exp, exp.accesses[0]):
            return None
        sub = self._without_number(above)
        if sub is None or not _is_ewise(sub, "sub"):
            return None
        source, shift = sub.accesses
        made = self._of_tops(shift.tensor, source.tensor, _EWISE_DEPTH)
        top = None if made is None else self.blocks.get(made[0])
        if top is None or made is None:
            return None
        if _row_axes(total) != _row_axes(top) or not _reads_rows(sub, shift, top):
            return None
        if not _same_place(sub, source) or not _same_place(top, top.accesses[0]):
            return None
        names = dict.fromkeys((top.name, sub.name, above.name, *made[1:]))
        return (*names, exp.name, total.name)

    def _of_tops(self, name: str, of: str, depth: int) -> list[str] | None:
        """From the greatest elements of rows to this block, through elementwise ones."""
        block = self.blocks.get(name)
        if block is None or _is_reduce(block, "max", of):
            return None if block is None else [name]
        if block.kind is not BlockKind.EWISE or depth == 0:
            return None
        for access in block.accesses:
            found = self._of_tops(access.tensor, of, depth - 1)
            if found is not None:
                return [*found, name]
        return None

    def _without_number(self, block: PolyBlock) -> PolyBlock | None:
        """What a block multiplies by a number, or divides by one; the block where it does not."""
        if not _is_ewise(block, "mul") and not _is_ewise(block, "div"):
            return block
        sides = [access for access in block.accesses if _same_place(block, access)]
        names = {access.tensor for access in block.accesses if access not in sides}
        made = [self.blocks.get(name) for name in names]
        if len(sides) != 1 or not all(number and _is_ewise(number, "const") for number in made):
            return None
        return self.blocks.get(sides[0].tensor)

    # -- attention -------------------------------------------------------------------------------

    def attention(self, softmax: Chain) -> Chain | None:
        """The attention around a softmax: products before and after it."""
        top, sub, share = (self.blocks[softmax.blocks[number]] for number in (0, 1, -1))
        before = self._producers(sub.accesses[0].tensor, _EWISE_DEPTH)
        # Weights have the axes of the scores, some of which their sums do not have.
        after = self._consumers(share, {*_row_axes(top)})
        if before is None or after is None:
            return None
        return Chain("attention", (*before, *softmax.blocks, *after))

    def _producers(self, name: str, depth: int) -> list[str] | None:
        """From the first product to the scores, through elementwise blocks at the same place."""
        block = self.blocks.get(name)
        if block is None or depth == 0:
            return None
        if block.kind is BlockKind.CONTRACTION:
            return [name]
        if block.kind is not BlockKind.EWISE:
            return None
        for access in block.accesses:
            found = (
                self._producers(access.tensor, depth - 1) if _same_place(block, access) else None
            )
            if found is not None:
                return [*found, name]
        return None

    def divided_after(self, exp: PolyBlock) -> Chain | None:
        """The attention of the powers that this block makes, whose mixed values are divided by the
        sums of the powers, or multiplied by what is made of the sums."""
        if not _is_power(exp):
            return None
        total = self._total_of(exp)
        powers = None if total is None else self._powers(exp, total)
        # Sums and the product, and nobody else: the weights are then never stored.
        if total is None or powers is None or len(self.readers.get(exp.name, [])) != 2:
            return None
        if not _same_place(total, total.accesses[0]):
            return None
        sub = self.blocks[powers[1]]
        # The sums are over the same place's axes (checked above), so position tells which axis of
        # the powers is summed.
        rows = {own.name for own, axis in zip(exp.axes, total.axes, strict=True) if axis.reduce}
        before = self._producers(sub.accesses[0].tensor, _EWISE_DEPTH)
        mixed = self._consumers(exp, rows, {total.name})
        after = None if mixed is None else self._until_shares(self.blocks[mixed[-1]], total)
        if before is None or mixed is None or after is None:
            return None
        return Chain("attention", (*before, *powers, *mixed, *after))

    def _until_shares(self, mixed: PolyBlock, total: PolyBlock) -> list[str] | None:
        """From the mixed powers to what divides them by the sums, each read once."""
        found: list[str] = []
        block = mixed
        for _ in range(_EWISE_DEPTH):
            readers = self.readers.get(block.name, [])
            if len(readers) != 1 or block.name in self.results:
                return None
            reader, number = readers[0]
            inside = reader.kind is BlockKind.EWISE
            if not inside or not _same_place(reader, reader.accesses[number]):
                return None
            found.append(reader.name)
            others = [access.tensor for n, access in enumerate(reader.accesses) if n != number]
            made = [self._of_sums(name, total, _EWISE_DEPTH) for name in others]
            known = [names for names in made if names is not None]
            if known:
                return [*known[0], *found]
            block = reader
        return None

    def _of_sums(self, name: str, total: PolyBlock, depth: int) -> list[str] | None:
        """The elementwise blocks from the sums of rows to this one; None where it is made of
        something else."""
        if name == total.name:
            return []
        block = self.blocks.get(name)
        if block is None or block.kind is not BlockKind.EWISE or depth == 0:
            return None
        for access in block.accesses:
            found = self._of_sums(access.tensor, total, depth - 1)
            if found is not None:
                return [*found, name]
        return None

    def _consumers(
        self, weights: PolyBlock, rows: set[str], summed: Container[str] = ()
    ) -> list[str] | None:
        """From the weights to the second product, each read once, but for sums of them."""
        found: list[str] = []
        block = weights
        while True:
            readers = [r for r in self.readers.get(block.name, []) if r[0].name not in summed]
            if len(readers) != 1 or block.name in self.results:
                return None
            reader, number = readers[0]
            access = reader.accesses[number]
            found.append(reader.name)
            if reader.kind is BlockKind.CONTRACTION:
                return found if _sums_rows(reader, access, block, rows) else None
            if reader.kind is not BlockKind.EWISE or not _same_place(reader, access):
                return None
            block = reader

    # -- streams ---------------------------------------------------------------------------------

    def stream(self, exp: PolyBlock) -> Chain | None:
        """The stream of the powers that this block makes."""
        sub = self.blocks.get(exp.accesses[0].tensor) if _is_ewise(exp, "exp") else None
        if sub is None or not _is_ewise(sub, "sub") or not _same_place(exp, exp.accesses[0]):
            return None
        scores, shift = sub.accesses
        # What is taken away must be a row's number: at the same place it would be another score.
        if _same_place(sub, shift):
            return None
        before = self._producers(scores.tensor, _EWISE_DEPTH) if _same_place(sub, scores) else None
        if before is None:
            return None
        after = self._until_products(exp)
        return None if after is None else Chain("stream", (*before, sub.name, *after))

    def _until_products(self, exp: PolyBlock) -> list[str] | None:
        """A block, all elementwise ones that are made of it, the products at the same place that
        they read too, and the products that they go into; None where they go elsewhere."""
        found, beside = {exp.name: exp}, dict[str, None]()
        for block in _iterate_growing(found):
            readers = self.readers.get(block.name, [])
            if block.kind is not BlockKind.EWISE:
                continue
            if not readers or block.name in self.results:
                return None
            for reader, number in readers:
                inside = reader.kind is BlockKind.EWISE
                if inside and not _same_place(reader, reader.accesses[number]):
                    return None
                if not inside and reader.kind is not BlockKind.CONTRACTION:
                    return None
                beside |= dict.fromkeys(self._beside(reader, found) if inside else [])
                found[reader.name] = reader
        return [*dict.fromkeys((*beside, *found))]

    def _beside(self, block: PolyBlock, known: Container[str]) -> list[str]:
        """What a block reads at its own index, back to the product that it is made of."""
        names: list[str] = []
        for access in block.accesses:
            if access.tensor not in known and _same_place(block, access):
                names += self._producers(access.tensor, _EWISE_DEPTH) or []
        return names


def _iterate_growing(found: dict[str, PolyBlock]) -> Iterator[PolyBlock]:
    """The blocks of a table that gets more of them on the way."""
    done = 0
    while done < len(found):
        yield [*found.values()][done]
        done += 1


def _is_ewise(block: PolyBlock, fn: str) -> bool:
    return block.kind is BlockKind.EWISE and block.fn == fn


def _is_power(block: PolyBlock) -> bool:
    return _is_ewise(block, "exp") or _is_ewise(block, "exp2")


def _is_reduce(block: PolyBlock, fn: str, of: str) -> bool:
    """Whether a block reduces another one by `fn`."""
    return block.kind is BlockKind.REDUCE and block.fn == fn and block.accesses[0].tensor == of


def _same_place(block: PolyBlock, access: Access) -> bool:
    """Whether a block reads the element at its own index."""
    names = [e.single_axis.name if e.single_axis else None for e in access.map]
    return not access.guards and names == [axis.name for axis in block.axes]


def _row_axes(block: PolyBlock) -> tuple[str, ...]:
    return tuple(axis.name for axis in block.axes if axis.reduce)


def _reads_rows(block: PolyBlock, access: Access, reduced: PolyBlock) -> bool:
    """Whether a block reads, at each index, the row that index lies in."""
    kept = [axis.name for axis in reduced.out_axes]
    names = [e.single_axis.name if e.single_axis else None for e in access.map]
    same = [axis.name for axis in block.axes] == [axis.name for axis in reduced.axes]
    return not access.guards and same and names == kept


def _sums_rows(reader: PolyBlock, access: Access, block: PolyBlock, rows: set[str]) -> bool:
    """Whether a product sums over exactly the axes of the softmax."""
    reduced = {axis.name for axis in reader.axes if axis.reduce}
    pairs = _axis_pairs(block, access)
    return {name for name, own in pairs if own in rows} == reduced and not access.guards


def _axis_pairs(block: PolyBlock, access: Access) -> Iterator[tuple[str | None, str]]:
    for expr, axis in zip(access.map, block.out_axes, strict=True):
        yield (expr.single_axis.name if expr.single_axis else None), axis.name
