"""The layout algebra: bijections, expressions that equal the numbers, known descriptor bits."""

from __future__ import annotations

import pytest

from weft.codegen.gpu.interp.scalars import evaluate
from weft.codegen.gpu.ir import Kernel
from weft.codegen.gpu.ir.scalar import Name
from weft.codegen.gpu.ir.swizzle import (
    BY_SPAN,
    NONE,
    SWIZZLE_64,
    SWIZZLE_128,
    Major,
    Swizzle,
    TileLayout,
    descriptor,
    fitting,
    operand_offset,
)


class _Nowhere:
    kernel = Kernel("k", 1, 32, (), (), (), (), (), ())
    number = 0


@pytest.mark.parametrize("swizzle", BY_SPAN.values())
def test_a_swizzle_permutes_pieces_and_repeats(swizzle: Swizzle) -> None:
    span = 2 * swizzle.alignment
    moved = [swizzle.at(offset) for offset in range(span)]
    assert sorted(moved) == list(range(span))
    assert all(new % 16 == old % 16 for old, new in enumerate(moved))
    assert [m - swizzle.alignment for m in moved[swizzle.alignment :]] == moved[: swizzle.alignment]


@pytest.mark.parametrize("swizzle", BY_SPAN.values())
def test_eight_rows_of_one_column_hit_different_banks(swizzle: Swizzle) -> None:
    layout = TileLayout(8, swizzle.span // 2, 2, swizzle)
    banks = {layout.at(row, 0) // 16 % 8 for row in range(8)}
    assert len(banks) == 8


@pytest.mark.parametrize("swizzle", [NONE, SWIZZLE_64, SWIZZLE_128])
@pytest.mark.parametrize("size", [2, 4])
def test_expressions_equal_numbers(swizzle: Swizzle, size: int) -> None:
    layout = TileLayout(24, 3 * swizzle.span // size, size, swizzle)
    expression = layout.of(Name("r"), Name("c"))
    places = set()
    for row in range(24):
        for column in range(layout.columns):
            names = {"r": row, "c": column}
            assert evaluate(expression, names, 0, _Nowhere()) == layout.at(row, column)
            known = evaluate(layout.of(Name("r"), column), names, 0, _Nowhere())
            assert known == layout.at(row, column)
            places.add(layout.at(row, column))
    assert len(places) == 24 * layout.columns
    assert max(places) < layout.bytes


def test_descriptor_of_a_k_major_tile() -> None:
    layout = TileLayout(128, 64, 2, SWIZZLE_128)
    assert descriptor(layout, Major.K) == 1 << 16 | 64 << 32 | 1 << 62


def test_descriptor_of_an_mn_major_tile() -> None:
    """Panels of 64 columns follow at 64 rows * 128 bytes, groups of eight rows at 1024 bytes."""
    layout = TileLayout(64, 256, 2, SWIZZLE_128)
    assert descriptor(layout, Major.MN) == 512 << 16 | 64 << 32 | 1 << 62


@pytest.mark.parametrize(
    ("major", "outer", "k", "expected"),
    [
        (Major.K, 0, 16, 32),
        (Major.K, 64, 48, 64 * 128 + 96),
        (Major.K, 8, 64, 256 * 128 + 8 * 128),
        (Major.MN, 0, 16, 16 * 128),
        (Major.MN, 128, 8, 2 * 256 * 128 + 8 * 128),
    ],
)
def test_where_a_slice_begins(major: Major, outer: int, k: int, expected: int) -> None:
    layout = TileLayout(256, 128, 2, SWIZZLE_128)
    assert operand_offset(layout, major, outer, k) == expected


@pytest.mark.parametrize(
    ("columns", "size", "span"),
    [(256, 2, 128), (160, 2, 64), (48, 2, 32), (8, 2, 16), (96, 4, 128)],
)
def test_the_widest_swizzle_that_divides_a_row(columns: int, size: int, span: int) -> None:
    assert fitting(columns, size).span == span
