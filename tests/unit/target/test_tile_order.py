"""The order of tiles that all run at once, against times of an H200."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weft.codegen.gpu.products.tiles import known
from weft.target.matrix_tiles import FORMS, Extent, Form
from weft.target.matrix_time import Contraction, Operand
from weft.target.tile_order import one_wave

LINES, ODD = Operand(), Operand(True, 32)
HALF = Operand(True, 64)


def form(rows: int, columns: int, warp: tuple[int, int], roles: str = "cooperative") -> Form:
    return Form(rows, columns, warp, roles)


@pytest.mark.parametrize(
    ("sizes", "operands", "chosen", "times"),
    [
        (
            (416, 3104, 5392),
            (ODD, Operand(False, 64)),
            form(64, 256, (64, 256)),
            {1: 45.5, 2: 46.3, 3: 40.1, 4: 33.2, 6: 43.1, 7: 30.0},
        ),
        (
            (416, 3104, 5392),
            (ODD, Operand(False, 64)),
            form(128, 128, (128, 128), "pingpong"),
            {1: 43.1, 2: 40.0, 3: 42.3, 4: 34.5},
        ),
        (
            (777, 1336, 2048),
            (LINES, LINES),
            form(64, 160, (64, 160)),
            {1: 15.4, 2: 13.2, 3: 13.0, 4: 12.7, 6: 13.9, 8: 11.7, 12: 13.9, 13: 13.4},
        ),
        (
            (904, 2128, 6432),
            (HALF, HALF),
            form(128, 144, (64, 144)),
            {1: 56.9, 2: 50.9, 3: 55.1, 4: 44.9, 6: 54.5, 8: 46.4},
        ),
        (
            (904, 2128, 6432),
            (HALF, HALF),
            form(192, 96, (64, 96)),
            {1: 50.8, 2: 50.7, 3: 48.2, 4: 51.7, 5: 48.4},
        ),
        (
            (3104, 416, 5392),
            (ODD, ODD),
            form(128, 96, (64, 96)),
            {1: 37.3, 2: 38.3, 3: 37.8, 4: 39.1, 6: 37.9, 8: 40.3, 12: 39.7, 16: 43.9},
        ),
        (
            (1024, 1024, 8192),
            (LINES, LINES),
            form(64, 128, (64, 64)),
            {1: 29.9, 2: 27.0, 3: 27.0, 4: 26.5, 6: 27.7, 8: 26.6, 12: 26.9, 16: 30.9},
        ),
    ],
)
def test_the_order_is_among_the_fastest(
    sizes: tuple[int, int, int],
    operands: tuple[Operand, Operand],
    chosen: Form,
    times: dict[int, float],
) -> None:
    """Microseconds by the height of bands."""
    order = one_wave(Contraction(Extent(1, *sizes), *operands), chosen)
    assert times[int(order.partition(":")[2])] <= 1.01 * min(times.values())


def test_pairs_of_blocks_are_half_as_many_neighbours() -> None:
    """Sixteen pairs below each other are one column of 32 tiles."""
    found = Contraction(Extent(1, 1024, 512, 4096), Operand(True, 16), Operand(True, 16))
    alone = form(64, 64, (64, 64))
    assert one_wave(found, alone) == "grouped:4"
    assert one_wave(found, replace(alone, paired=True)) == "grouped:2"


@pytest.mark.parametrize("sizes", [(1, 0, 8, 8), (1, 8, 0, 8), (3, 100, 100, 0), (2, 200, 72, 64)])
def test_every_form_has_an_order_even_of_nothing(sizes: tuple[int, int, int, int]) -> None:
    found = Contraction(Extent(*sizes))
    assert all(known(one_wave(found, found_form)) for found_form in FORMS)
