"""Tile orders visit every tile once, and neighbours stay near each other."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from tests.support.cases import each
from weft.codegen.gpu import ir
from weft.codegen.gpu.interp.scalars import Value, evaluate
from weft.codegen.gpu.ir.scalar import Name
from weft.codegen.gpu.products.tiles import TileOrder, hilbert, known

SHAPES = [(1, 1), (4, 4), (7, 3), (3, 7), (16, 5), (9, 9)]


class _Place:
    def __init__(self, tables: tuple[ir.Table, ...]) -> None:
        self.kernel = ir.Kernel("k", 1, 32, (), (), (), (), tables, ())
        self.number = 0


def visit(order: TileOrder) -> list[tuple[int, int, int]]:
    """The tiles in the order the generated statements find them."""
    place = _Place(order.tables)
    found = []
    for tile in range(order.count):
        names: dict[str, Value] = {"tile": tile}
        for statement in order.locate(Name("tile")):
            assert isinstance(statement, ir.Let)
            names[statement.name] = evaluate(statement.value, names, 0, place)
        matrix = names.get("matrix", 0)
        found.append((int(matrix), int(names["tile_m"]), int(names["tile_n"])))
    return found


@each("order", ["rows", "grouped:1", "grouped:4", "grouped:32", "hilbert"])
@each(("rows", "columns"), SHAPES)
def test_every_tile_once(order: str, rows: int, columns: int) -> None:
    for batches in (1, 3):
        seen = visit(TileOrder(rows, columns, batches, order))
        whole = {(b, m, n) for b in range(batches) for m in range(rows) for n in range(columns)}
        assert len(seen) == len(whole)
        assert set(seen) == whole


def test_a_hilbert_curve_goes_from_neighbour_to_neighbour() -> None:
    tiles = [(packed >> 16, packed & 0xFFFF) for packed in hilbert(16, 16)]
    steps = [abs(a - c) + abs(b - d) for (a, b), (c, d) in pairwise(tiles)]
    assert set(steps) == {1}


def test_a_hilbert_curve_through_a_long_row_takes_no_square() -> None:
    """The square around these tiles has 2^30 places."""
    tiles = hilbert(2, 32767)
    assert len(set(tiles)) == 2 * 32767
    assert {*tiles[:4]} == {0, 1, 1 << 16, 1 << 16 | 1}
    assert {packed & 0xFFFF for packed in tiles} == set(range(32767))


def test_bands_go_down_their_columns() -> None:
    order = [(m, n) for _, m, n in visit(TileOrder(4, 3, 1, "grouped:2"))]
    assert order[:4] == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_a_band_has_no_more_rows_than_there_are() -> None:
    whole = TileOrder(3, 2, 1, "grouped:3")
    for rows in (4, 99_999):
        assert replace(whole, order=f"grouped:{rows}").locate(Name("t")) == whole.locate(Name("t"))


def test_the_names_of_orders() -> None:
    assert all(map(known, ("rows", "hilbert", "grouped:8")))
    assert not any(map(known, ("grouped:0", "grouped:", "columns", "grouped:x")))
