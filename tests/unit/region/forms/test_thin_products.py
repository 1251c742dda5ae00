"""Tiles of contractions with few rows or columns: sides, slices, and how many run at once."""

from __future__ import annotations

import pytest

from tests.support.cases import each
from weft.region.forms.thin_products import (
    FEW,
    LONG_SIDE,
    RESIDENT,
    is_thin,
    thin_tile,
    tiles_per_unit,
)
from weft.target.sm90 import SM90

THREADS = 128


@each("word", [4, 8])
@each("few", range(1, FEW[-1] + 1))
def test_a_tile_holds_the_short_side_and_gives_every_thread_a_share(few: int, word: int) -> None:
    for m, n in ((few, 4096), (4096, few)):
        rows, columns, depth = thin_tile(m, n, word)
        assert is_thin(m, n)
        assert min(rows, columns) >= few
        assert max(rows, columns) == LONG_SIDE
        assert rows * depth % THREADS == 0
        assert columns * depth % THREADS == 0


@pytest.mark.parametrize("word", [4, 8])
@pytest.mark.parametrize("few", FEW)
def test_as_many_tiles_as_a_unit_has_room_for(few: int, word: int) -> None:
    rows, columns, depth = thin_tile(few, 4096, word)
    together = tiles_per_unit(few, 4096, word)
    slices = 2 * depth * (rows + columns + 8) * word
    assert 2 <= together <= RESIDENT
    assert together * slices <= SM90.limits.shared_bytes_per_unit
    # Half a microsecond of memory's rate, at least, is asked for ahead of time.
    assert together * LONG_SIDE * depth * word * SM90.limits.units > 0.5e-6 * SM90.rates.bandwidth


def test_what_is_not_thin() -> None:
    assert not is_thin(17, 4096)
    assert not is_thin(4, 127)
