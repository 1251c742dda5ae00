"""Coarse ops that reject operands while a compiled program runs say so in their own words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft.ptir import Builder

CASES: dict[str, tuple[str, list[Any], dict[str, Any], str, str]] = {
    "repeat, too few": (
        "byteir.repeat", [np.ones(3, np.float32), np.array([1, 1, 1])], {"length": 4},
        "InvalidRepeats", "does not add up to the 4 rows that are declared",
    ),
    "repeat, negative": (
        "byteir.repeat", [np.ones(3, np.float32), np.array([1, -1, 4])], {"length": 4},
        "InvalidRepeats", "repeats has a negative number, or does not add up",
    ),
    "non_zero": (
        "byteir.non_zero", [np.ones(3, np.float32)], {"bound": 1},
        "BoundExceeded", "more elements are not zero than the 1 that byteir.non_zero has room for",
    ),
    "resize": (
        "byteir.resize", [np.ones(2, np.float32), np.array([3])],
        {"shape": [4], "target_mode": "size", "mode": "nearest",
         "coordinate_transformation_mode": "asymmetric"},
        "InvalidTarget", "target gives other lengths than [4] as is declared",
    ),
    "rng_uniform": (
        "byteir.rng_uniform",
        [np.float32(0), np.float32(1), np.int64(3), np.int64(4), np.array([3])], {"dims": [4]},
        "InvalidTarget", "shape is not [4] as is declared",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_compiled_program_rejects_in_the_words_of_the_op(name: str) -> None:
    op, arrays, attrs, code, why = CASES[name]
    b = Builder()
    params = [b.param(weft.asarray(x).dtype, list(np.shape(x))) for x in arrays]
    program = b.build(b.emit(op, *params, **attrs))
    for _ in range(2):  # compiled, and from the cache
        with pytest.raises(weft.SpecViolation) as found:
            weft.run(program, [np.asarray(x) for x in arrays], backend="cpu")
        assert found.value.code == code
        assert why in found.value.why
        assert f"= {op}(" in found.value.where
        assert "test_rejections.py" in found.value.where


def test_an_op_inside_a_loop_is_named_too() -> None:
    b = Builder()
    x, counts = b.param("f32", [3]), b.param("si64", [2, 3])
    loop = b.scan(
        lambda r, carry, own: (carry, r.emit("byteir.repeat", carry, own, length=4)), [x], [counts]
    )
    program = b.build(loop[1])
    with pytest.raises(weft.SpecViolation) as found:
        weft.run(program, [np.ones(3, np.float32), np.array([[1, 1, 2], [1, 1, 1]])], backend="cpu")
    assert found.value.code == "InvalidRepeats"
    assert "= byteir.repeat(" in found.value.where


def test_an_index_of_the_users_own_keeps_its_words() -> None:
    b = Builder()
    x, counts, at = b.param("f32", [3]), b.param("si64", [3]), b.param("si64", [2])
    program = b.build(b.take(b.emit("byteir.repeat", x, counts, length=4), at))
    given = [np.ones(3, np.float32), np.array([1, 1, 2]), np.array([0, 9])]
    with pytest.raises(weft.SpecViolation) as found:
        weft.run(program, given, backend="cpu")
    assert found.value.code == "GatherIndexOutOfBounds"
    assert "the index 9 at element 1 is outside [0, 4)" in found.value.why
