"""Rows that are taken at positions side by side go back without a scatter."""

from __future__ import annotations

from typing import Any

import pytest

from weft.ptir import Builder, gradient


@pytest.mark.parametrize(
    "positions",
    [
        lambda b: b.constant([3, 2, 1, 0], "si64"),
        lambda b: b.constant([1, 2], "si64"),
        lambda b: 2 - b.iota("si64", [2], 0),
    ],
    ids=["all, backwards", "a window", "a window, backwards"],
)
def test_rows_that_lie_side_by_side_go_back_side_by_side(positions: Any) -> None:
    b = Builder()
    x = b.param("f64", [4, 3])
    rows = b.take(x, positions(b))
    made = gradient(b.build(b.reduce_sum(rows * rows, [0, 1])), [0])
    assert not any(i.op.mnemonic.startswith("scatter") for i in made.main.body)
