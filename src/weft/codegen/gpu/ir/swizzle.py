"""Swizzles: how matrices lie in shared memory. No other module knows these layouts.

A tile of `rows x columns` elements is a row of *panels*. A panel is as wide as the swizzle's span
(128, 64, 32 or 16 bytes) and holds its rows one after the other, so a tensor-map box fills exactly
one panel. Inside a panel the 16-byte pieces of each row are permuted by XOR with the row number:

    bits [4, 4 + n) of the byte offset  ^=  bits [7, 7 + n)         span = 16 << n bytes

Why: `ldmatrix` and wgmma read a column of pieces, 16 bytes of each of eight rows, and the banks
give 128 bytes at once, those of one value of bits [4, 7) each 16. So the eight rows must differ in
these three bits. Row r begins at r << (4 + n): its lowest 3 - n bits are bits [4 + n, 7) of the
offset, and its next n bits are bits [7, 7 + n), which the XOR adds to bits [4, 4 + n). All three
are a bijection of r mod 8, whatever the column. Without it, rows of 128 bytes would have one column
in the same four banks: eight turns for one.

The tensor memory accelerator applies this when it copies, wgmma undoes it when it reads through a
descriptor, and `ldmatrix`, `stmatrix`, `cp.async` and plain accesses use the addresses computed
here. Invariant: the start of a tile is a multiple of `alignment`; the pattern depends on address
bits, so a misaligned tile would be permuted differently by each of them.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from weft.codegen.gpu.ir.scalar import Like, Scalar, scalar
from weft.foundation.records import dataclass

PIECE: Final = 16
"""Bytes that stay together."""
_BANKS: Final = 128
"""Bytes that all banks give at once."""


@dataclass(frozen=True)
class Swizzle:
    """XOR of `bits` bits of the piece number with the row number."""

    bits: int

    @property
    def span(self) -> int:
        """Bytes of one panel row."""
        return PIECE << self.bits

    @property
    def alignment(self) -> int:
        """Bytes after which the pattern repeats."""
        # The highest bit that the XOR reads is bit 6 + bits: offsets that are 128 << bits apart
        # look alike to it.
        return max(128, 128 << self.bits)

    def at(self, offset: int) -> int:
        """Where the byte at `offset` of the plain layout lies."""
        # Bits from 7 on say how far, and only bits below 7 are turned: so the permutation is its
        # own inverse, and no byte leaves its line of 128.
        mask = (1 << self.bits) - 1
        return offset ^ ((offset >> 7 & mask) << 4)


NONE: Final = Swizzle(0)
SWIZZLE_32: Final = Swizzle(1)
SWIZZLE_64: Final = Swizzle(2)
SWIZZLE_128: Final = Swizzle(3)
BY_SPAN: Final = {s.span: s for s in (NONE, SWIZZLE_32, SWIZZLE_64, SWIZZLE_128)}

_DESCRIPTOR_KIND: Final = {0: 0, 1: 3, 2: 2, 3: 1}
"""The layout field of a wgmma descriptor, by swizzle bits."""


class Major(Enum):
    """Which axis of a matrix operand is contiguous: the contracted one, or rows/columns (mn)."""

    K = "k"
    MN = "mn"


@dataclass(frozen=True)
class TileLayout:
    """A `rows x columns` tile of `size`-byte elements in panels."""

    rows: int
    columns: int
    size: int
    swizzle: Swizzle
    pitch: int = 8
    """Rows from one group of eight rows of an operand to the next: more where a group is part of a
    line of an image."""

    @property
    def panel_columns(self) -> int:
        return self.swizzle.span // self.size

    @property
    def panels(self) -> int:
        return -(-self.columns // self.panel_columns)

    @property
    def panel_bytes(self) -> int:
        return self.rows * self.swizzle.span

    @property
    def bytes(self) -> int:
        return self.panels * self.panel_bytes

    def at(self, row: int, column: int) -> int:
        """The byte offset of an element from the start of the tile."""
        panel, inside = divmod(column, self.panel_columns)
        return panel * self.panel_bytes + self.swizzle.at(
            row * self.swizzle.span + inside * self.size
        )

    def of(self, row: Like, column: Like) -> Scalar:
        """`at`, as an expression; the part that the row decides stands by itself. A row begins at a
        multiple of the span, and the permuted bits are below it: so the XOR touches what lies
        inside the row, and nothing of where the row begins."""
        width = self.panel_columns
        start: Like = 0
        if isinstance(column, int):
            panel, column = divmod(column, width)
            start = panel * self.panel_bytes
        elif self.panels > 1:
            start = (column // width) * self.panel_bytes
            column = column % width
        # What lies inside a row is less than the span, which divides 128: it never carries into bit
        # 7, and `line` alone says how far its pieces are turned.
        line = scalar(row) * self.swizzle.span
        mask = (1 << self.swizzle.bits) - 1
        turn = ((line >> 7) & mask) << 4
        inside = scalar(column) * self.size
        return line + (inside ^ turn if mask else inside) + start


@dataclass(frozen=True)
class PaddedTile:
    """A `rows x columns` tile of `size`-byte elements whose rows follow one another, each `padding`
    bytes further in the banks: as many as are read of a row at once."""

    rows: int
    columns: int
    size: int
    padding: int

    @property
    def pitch(self) -> int:
        """Bytes from row to row."""
        return -(-self.columns * self.size // _BANKS) * _BANKS + self.padding

    @property
    def bytes(self) -> int:
        return self.rows * self.pitch

    def of(self, row: Like, column: Like) -> Scalar:
        """The byte offset of an element from the start of the tile."""
        return scalar(row) * self.pitch + scalar(column) * self.size


def fitting(columns: int, size: int) -> Swizzle:
    """The widest swizzle whose panels divide a row of `columns` elements evenly."""
    for span in sorted(BY_SPAN, reverse=True):
        if columns * size % span == 0:
            return BY_SPAN[span]
    raise ValueError(f"{columns} columns of {size} bytes are not a multiple of {PIECE} bytes")


def descriptor(layout: TileLayout, major: Major) -> int:
    """The bits of a wgmma descriptor for an operand in `layout`, all but its start address.

    K-major: rows are m or n, columns are k; groups of eight rows follow at the stride offset. Both
    it and the start may be any number of rows: the pattern is that of the final address.
    MN-major: rows are k; panels follow at the leading offset, groups of eight k at the stride.
    """
    # Offsets count in 16 bytes. The leading one of a swizzled operand along k is not read: the PTX
    # ISA, on matrix descriptors, has it as 1.
    group = layout.pitch * layout.swizzle.span
    leading = layout.panel_bytes if major is Major.MN else PIECE
    return (leading // 16) << 16 | (group // 16) << 32 | _DESCRIPTOR_KIND[layout.swizzle.bits] << 62


def operand_offset(layout: TileLayout, major: Major, outer: int, k: int) -> int:
    """Bytes from the start of the tile to the 16-deep slice that begins at (outer, k).

    `outer` is a row or column of the product: a multiple of 8, for MN-major of a panel. Inside a
    swizzled row the start address advances as if nothing were permuted: the hardware applies the
    pattern to the final address.
    """
    column, row = (k, outer) if major is Major.K else (outer, k)
    panel, inside = divmod(column, layout.panel_columns)
    return panel * layout.panel_bytes + row * layout.swizzle.span + inside * layout.size
