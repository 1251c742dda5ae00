"""Quotients of vectors whose elements share a divisor: one reciprocal, and a remainder each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from weft.ptir import Builder

Array = NDArray[Any]
SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4e38, 1.17e-38, 1.0, -1.0], np.float32
)
EDGES = np.array([2.0**100, 2.0**-100, 2.0**101, 2.0**-101, 1.9999999, 1.0000001], np.float32)
TINY = 2.0**-100


def numbers(low: int, high: int, count: int, seed: int) -> Array:
    """Of both signs, between two powers of two."""
    rng = np.random.default_rng(seed)
    sizes = rng.uniform(1, 2, count) * 2.0 ** rng.integers(low, high, count)
    return np.asarray(sizes * rng.choice([-1, 1], count), np.float32)


def test_quotients_are_rounded_as_those_of_division() -> None:
    """But for one in the last place where a dividend or a quotient is tiny; signs of zeros and what
    is not finite are right."""
    divide = weft.jit(lambda x, y: x / y)
    x = np.concatenate([SPECIAL, numbers(-126, 127, 2000, 0), numbers(-20, 20, 2000, 1)])
    for y in (*SPECIAL, *EDGES, *numbers(-126, 127, 40, 2), *numbers(-20, 20, 40, 3)):
        got = np.asarray(divide(weft.asarray(x), weft.asarray(np.float32(y))))
        with np.errstate(all="ignore"):
            want = np.asarray(x / np.float32(y))
        places = [values.view(np.int32).astype(np.int64) for values in (got, want)]
        off = np.where(np.isnan(got) & np.isnan(want), 0, np.abs(places[0] - places[1]))
        tiny = (np.abs(x) < TINY) | (np.abs(want) < TINY)
        assert off[~tiny].max(initial=0) == 0, y
        assert off.max() <= 1, y


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4", "aarch64"])
def test_a_norm_divides_no_vector(target: str) -> None:
    b = Builder()
    x, g, c = b.param("f32", [8, 64]), b.param("f32", [64]), b.param("f32", [64])
    program = b.build(b.layer_norm(x, g, c, epsilon=1e-5, feature_axis=-1))
    text = str(weft.compile(program, target=target).stages["llvm"])
    assert "fdiv float" in text
    assert "fdiv <" not in text


@pytest.mark.parametrize("divisor", [3.7, -3.7])
def test_a_number_divides_no_vector(divisor: float) -> None:
    b = Builder()
    x = b.param("f32", [8, 64])
    text = weft.compile(
        b.build(b.div(x, b.full([8, 64], divisor, "f32"))), target="x86-64-v4"
    ).stages["llvm"]
    assert "fdiv float" in text
    assert "fdiv <" not in text


def test_gelu_divides_no_vector_but_in_its_error_function() -> None:
    b = Builder()
    x = b.param("f32", [8, 64])
    text = weft.compile(b.build(b.gelu(x)), target="x86-64-v4").stages["llvm"]
    routine = text[text.index("define void @") :]
    assert "fdiv <" not in routine
