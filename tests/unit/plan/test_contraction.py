"""How contractions are cut for a CPU: register tiles that cover the sizes, few rows, words."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from weft.driver.compile import compile_program
from weft.plan.contraction import columns_along_k, register_tile
from weft.ptir import Builder, Program
from weft.target.cpu import host
from weft.target.target import Target


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


def wide() -> Target:
    """This machine, said to have two cores and vectors of 16 numbers."""
    limits = replace(host().limits, vector_bits=512, vector_registers=32, units=2)
    return replace(host(), features=host().features | {"avx2", "avx512f"}, limits=limits)


def product(m: int, k: int, n: int, batch: int = 1, *, turned: bool = False) -> Program:
    b = Builder("product")
    x = b.param("f32", [batch, m, k])
    w = b.param("f32", [batch, n, k] if turned else [batch, k, n])
    y = b.dot_general(x, w, contract=([2], [2 if turned else 1]), batch=([0], [0]))
    return b.build(b.tanh(y))


@pytest.mark.parametrize(
    ("program", "packed"),
    one_in(
        3,
        [
            (product(64, 784, 512), ""),
            (product(24, 784, 512, 2), ""),
            (product(256, 768, 768), ""),
            (product(270, 300, 512), "B"),
            (product(200, 300, 1100), "B"),
            (product(128, 64, 128, 48), "B"),
            (product(1000, 1000, 1000), "AB"),
            (product(64, 2048, 512), "AB"),
            (product(64, 1024, 512), "AB"),
            (product(64, 784, 512, turned=True), "AB"),
        ],
        unpack=True,
    ),
    ids=[
        "few rows",
        "fewer",
        "in parts",
        "more rows",
        "columns pages apart",
        "batch",
        "many rows",
        "deep",
        "rows a page apart",
        "columns along k",
    ],
)
def test_wide_vectors_read_rows_where_they_lie(program: Program, packed: str) -> None:
    plans = json.loads(compile_program(program, wide()).stages["plan"])["plans"]
    assert "".join(cached["tensor"] for cached in plans[0]["cache"]) == packed


def test_the_tile_of_a_short_product_leaves_no_rest() -> None:
    """Code for a rest of two rows takes LLVM as long as that of the tile; six rows at a time load
    less than four, which long products wait for."""
    assert register_tile(32, 64, 16, 32) == (6, 4)
    for rows, tile in ((32, "4x64"), (64 * 64, "6x64")):
        plans = json.loads(compile_program(product(rows, 64, 64), wide()).stages["plan"])["plans"]
        assert plans[0]["warp_tile"] == tile


@pytest.mark.parametrize(
    "sizes",
    [(64, 300, 130, 1), (45, 129, 200, 2), (37, 260, 130, 2), (160, 260, 100, 1)],
    ids=["whole tiles", "rests", "nothing packed", "rows in parts"],
)
def test_rows_where_they_lie_give_the_product(sizes: tuple[int, int, int, int]) -> None:
    m, k, n, batch = sizes
    executable = compile_program(product(m, k, n, batch), wide())
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, m, k)).astype(np.float32) / 16
    w = rng.standard_normal((batch, k, n)).astype(np.float32)
    exact = np.tanh(x.astype(np.float64) @ w.astype(np.float64))
    np.testing.assert_allclose(executable.run([x, w])[0], exact, rtol=1e-5, atol=1e-5)


def test_a_row_of_a_tile_is_used_up_before_the_next() -> None:
    text = compile_program(product(64, 300, 256), wide()).stages["cpu"]
    tile = text[text.index("accumulate") - 400 : text.index("accumulate")]
    assert tile.index("unrolled mu") < tile.index("load v0") < tile.index("unrolled nu")
