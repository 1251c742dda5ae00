"""Rows in vectors of 512 bits: what is left after whole vectors, and how lanes are combined."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from weft.codegen.cpu.code import Code, Val
from weft.driver.compile import Executable
from weft.ptir import Builder
from weft.target import cpu, known


@pytest.fixture(autouse=True)
def wide_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores with vectors of 512 bits."""
    wide = cpu.describe("x86_64", frozenset({"avx512f"}), 2, (32 << 10, 1 << 20, 32 << 20))
    monkeypatch.setattr(known, "host", lambda: replace(wide, features=cpu.host().features))


def softmax(columns: int, dtype: str) -> Executable:
    b = Builder("softmax")
    return weft.compile(b.build(b.softmax(b.param(dtype, [5, columns]))))


@pytest.mark.parametrize("columns", one_in(2, [16, 24, 27, 31, 75, 1003]))
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_the_rest_of_a_row_agrees(columns: int, dtype: str) -> None:
    x = np.random.default_rng(columns).standard_normal((5, columns))
    given = x.astype("f4" if dtype == "f32" else "f8")
    weights = np.exp(given.astype("f8") - given.max(1, keepdims=True))
    found = softmax(columns, dtype).run([given])[0]
    np.testing.assert_allclose(found, weights / weights.sum(1, keepdims=True), rtol=3e-6)


def test_what_is_left_of_a_row_is_half_a_vector_and_single_elements() -> None:
    """11 elements after 62 vectors: 8 and 3, in each of the three passes."""
    nest = softmax(1003, "f32").stages["cpu"]
    assert nest.count("lanes i1_l in 0..8 {") == 3
    assert nest.count("unrolled i1_u in 0..3 {") == 3
    assert "unrolled i1_u in 0..11" not in nest


def test_lanes_of_wide_vectors_are_combined_side_by_side() -> None:
    assert "<8 x i32> <i32 1, i32 3, i32 5" in softmax(64, "f32").stages["llvm"]


def test_a_vector_is_taken_apart_into_even_and_odd_lanes() -> None:
    code = Code()
    even, odd = code.apart(Val("%v", "float", 8))
    assert (even.lanes, odd.lanes) == (4, 4)
    assert [line.split("<4 x i32> ")[1] for line in code.lines] == [
        "<i32 0, i32 2, i32 4, i32 6>",
        "<i32 1, i32 3, i32 5, i32 7>",
    ]
