"""Long rows that are read once: four at a time, each added up as it is alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import weft
from weft.codegen.cpu.text import parse_routines, print_routines
from weft.driver.compile import Executable, compile_program
from weft.ptir import Builder
from weft.target import cpu, known
from weft.target.cpu import host


@pytest.fixture(autouse=True)
def wide_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores with vectors of 512 bits."""
    wide = cpu.describe("x86_64", frozenset({"avx512f"}), 2, (32 << 10, 1 << 20, 32 << 20))
    monkeypatch.setattr(known, "host", lambda: replace(wide, features=cpu.host().features))


def row_sums(rows: int, columns: int, dtype: str = "f32", *, squares: bool = False) -> Executable:
    b = Builder("sums")
    x = b.param(dtype, [rows, columns])
    return weft.compile(b.build(b.reduce_sum(x * x if squares else x, [1])))


@pytest.mark.parametrize(
    ("columns", "dtype", "squares"),
    [(2100, "f32", False), (9001, "f32", True), (1063, "f64", False)],
)
def test_every_row_is_added_up_as_it_is_alone(columns: int, dtype: str, squares: bool) -> None:
    """1003 rows are 250 times four and three; 203 of them are no stream."""
    x = np.random.default_rng(0).standard_normal((1003, columns))
    x = x.astype({"f32": "f4", "f64": "f8"}[dtype])
    four = row_sums(1003, columns, dtype, squares=squares)
    one = row_sums(203, columns, dtype, squares=squares)
    text = four.stages["cpu"]
    assert "piece_1_row=4 unrolled" in text
    assert "_row" not in one.stages["cpu"]
    assert print_routines(parse_routines(text)) == text
    (found,) = four.run([x])
    for first in (0, 800):
        (wanted,) = one.run([x[first : first + 203]])
        np.testing.assert_array_equal(found[first : first + 203], wanted)


def test_a_product_with_a_vector_reads_four_rows_beside_it() -> None:
    b = Builder("product")
    w, x = b.param("f32", [1024, 2500]), b.param("f32", [2500])
    executable = weft.compile(b.build(b.dot_general(w, x, contract=([1], [0]))))
    assert "_row=4 unrolled" in executable.stages["cpu"]
    rng = np.random.default_rng(0)
    given = [rng.standard_normal((1024, 2500)), rng.standard_normal(2500)]
    narrow = [one.astype("f4") for one in given]
    np.testing.assert_allclose(executable.run(narrow)[0], given[0] @ given[1], atol=1e-3)


@pytest.mark.parametrize(("rows", "columns"), [(1024, 2048 - 16), (16384, 256), (128, 32768)])
def test_rows_in_a_cache_short_rows_and_few_rows_are_read_one_by_one(
    rows: int, columns: int
) -> None:
    assert "_row" not in row_sums(rows, columns).stages["cpu"]


def test_what_goes_over_a_row_twice_does_not_wait_for_four() -> None:
    b = Builder("twice")
    softmax = weft.compile(b.build(b.softmax(b.param("f32", [1024, 2500]))))
    assert "_row" not in softmax.stages["cpu"]


def test_narrower_vectors_read_one_row() -> None:
    limits = replace(host().limits, vector_bits=256, vector_registers=16)
    b = Builder("sums")
    program = b.build(b.reduce_sum(b.param("f32", [1024, 2500]), [1]))
    narrow = compile_program(program, replace(host(), limits=limits))
    assert "_row" not in narrow.stages["cpu"]
