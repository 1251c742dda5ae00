"""Random numbers that are drawn in pairs: vectors run along the pairs."""

from __future__ import annotations

import re

import numpy as np
import pytest

import weft
from weft.ptir import Builder, Program


def normals(count: int, dtype: str = "f32", states: tuple[int, ...] = ()) -> Program:
    b = Builder()
    state = b.param("si64", [*states, 2])
    return b.build(b.emit("philox_normal", state, shape=(*states, count), dtype=dtype))


def test_what_a_pair_shares_is_computed_once_in_vectors() -> None:
    text = weft.compile(normals(1000), target="x86-64-v4").stages["cpu"]
    first = text.partition("parallel")[2].partition("parallel")[0]
    lanes = first.index("lanes ")
    shared, pair = first[lanes:].split("unrolled ")
    assert shared.count("log1p(") == 1
    assert shared.count("words ") == 2
    assert "sin(" not in pair
    assert "store " in pair
    assert "words " not in first[:lanes]


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("count", [1, 2, 17, 33])
def test_any_number_of_them_is_that_of_the_reference(count: int, dtype: str) -> None:
    for states in ((), (3,)):
        program = normals(count, dtype, states)
        state = np.arange(6, dtype=np.int64).reshape(3, 2)
        state = state if states else state[0]
        found, want = (weft.run(program, [state], backend=b)[0] for b in ("cpu", "reference"))
        np.testing.assert_array_max_ulp(found, want, 4)


@pytest.mark.parametrize("target", ["x86-64-v4", "aarch64"])
@pytest.mark.parametrize("op", ["philox_uniform", "philox_normal"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_no_block_is_drawn_twice(dtype: str, op: str, target: str) -> None:
    """What takes every second word asks for blocks as what takes the others does."""
    b = Builder()
    program = b.build(b.emit(op, b.param("si64", [2]), shape=(1 << 10,), dtype=dtype))
    text = str(weft.compile(program, target=target).stages["llvm"])
    calls = re.findall(r"= call <(\d+) x i32> @philox_blocks", text)
    assert 4 * 4 * 8 >= sum(map(int, calls)) > 0
    assert "@philox_i64" not in text
