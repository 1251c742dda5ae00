"""How contractions are cut for a CPU: register tiles that cover the sizes, few rows, words."""

from __future__ import annotations

import json
from typing import Any

import pytest

import weft
from weft.plan.contraction import columns_along_k
from weft.ptir import Builder


@pytest.mark.parametrize(
    ("rows", "registers", "columns"), [(1, 32, 1), (4, 32, 1), (8, 32, 3), (8, 16, 1)]
)
def test_columns_that_are_read_side_by_side(rows: int, registers: int, columns: int) -> None:
    assert columns_along_k(rows, registers) == columns


def plan_of(m: int, shape: tuple[int, int], contract: int) -> dict[str, Any]:
    b = Builder("product")
    x, w = b.param("f32", [m, shape[contract]]), b.param("f32", list(shape))
    program = b.build(b.dot_general(x, w, contract=([1], [contract])))
    return dict(json.loads(weft.compile(program, "cpu").stages["plan"])["plans"][0])


@pytest.mark.parametrize("rows", [1, 2, 8])
def test_few_rows_read_a_large_matrix_as_it_lies(rows: int) -> None:
    assert plan_of(rows, (768, 700), 0)["across"] is True


@pytest.mark.parametrize("rows", [2, 8])
def test_few_rows_of_a_matrix_that_lies_along_k_are_dot_products(rows: int) -> None:
    assert plan_of(rows, (700, 768), 1)["vectorize"]["axis"] == "k.i.i"


def test_many_rows_are_blocked() -> None:
    assert plan_of(9, (768, 700), 0)["kind"] == "mma"
