"""Addresses of the keys and values of a tile: contiguous, or in pages of a KV cache whose page
table is read one tile ahead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.codegen.gpu import ir
from weft.codegen.gpu.attention.few_layout import FewLayout
from weft.codegen.gpu.ir.scalar import Lit, Name, Scalar
from weft.codegen.gpu.ir.values import Assign, PlaceOf, Variable
from weft.codegen.gpu.products.tile_place import offset
from weft.foundation.records import dataclass


@dataclass(frozen=True)
class PageTable:
    """The statements of one thread. Without pages there is nothing to read."""

    layout: FewLayout
    buffers: Sequence[str]

    @property
    def boxes(self) -> int:
        """Copies that a tile is made of."""
        return self.layout.plan.tile_kv // self.layout.box_keys

    def start(self) -> Iterator[ir.Stmt]:
        """The pages of the first tile."""
        pages = self.layout.problem.pages
        for box in range(self.boxes if pages else 0):
            assert pages is not None
            yield Variable(f"page{box}", pages.dtype, 0)
            yield self.number(f"first_page{box}", Name("first"), box, Lit(1))
            yield Assign(f"page{box}", f"first_page{box}", Lit(1))

    def ahead(self, tile: Scalar) -> Iterator[ir.Stmt]:
        """The pages of a tile as places, and those of the next one asked for."""
        pages = self.layout.problem.pages
        for box in range(self.boxes if pages else 0):
            assert pages is not None
            for name, count in zip(("k", "v"), pages.counts, strict=True):
                yield PlaceOf(f"{name}_page{box}", f"page{box}", count)
            yield self.number(f"next_page{box}", tile + 1, box, tile + 1 < Name("last"))

    def next(self) -> Iterator[ir.Stmt]:
        """The next tile's pages in the place of a tile's."""
        for box in range(self.boxes if self.layout.problem.pages else 0):
            yield Assign(f"page{box}", f"next_page{box}", Lit(1))

    def number(self, name: str, tile: Scalar, box: int, inside: Scalar) -> ir.Stmt:
        """The number of the page that a box of a tile lies in."""
        pages, layout = self.layout.problem.pages, self.layout
        assert pages is not None
        page = (tile * layout.plan.tile_kv + box * layout.box_keys) // pages.size
        batch = tuple(Name(f"batch{axis}") for axis, _ in enumerate(layout.problem.batch))
        place = offset(pages.strides, Lit(0), page, batch)
        return ir.LoadElement(name, self.buffers.index(pages.tensor), pages.dtype, place, inside)

    def rows(self, name: str, tile: Scalar, box: int) -> tuple[Scalar, ...]:
        """Where a box of keys (k) or values (v) begins: its row, and its page."""
        pages, layout = self.layout.problem.pages, self.layout
        first = tile * layout.plan.tile_kv + box * layout.box_keys
        return (first,) if pages is None else (first % pages.size, Name(f"{name}_page{box}"))
