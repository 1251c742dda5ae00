"""Comparisons of uniform random numbers with constants, as comparisons of words."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.cases import each
from weft.foundation.dtypes import F32, I1, SI64, UI32, DType
from weft.foundation.index_expr import constant
from weft.region.forms.dropout_bits import Chance, find_chance
from weft.region.ir import Binary, Cast, Const, Let, ValueExpr, Words


def lets(
    fn: str = "ge",
    bound: float = 0.1,
    *,
    shift: int = 8,
    scale: float = 2.0**-24,
    left: bool = True,
) -> dict[str, Let]:
    """A word as a uniform number, and what it is compared with."""

    def let(name: str, dtype: DType, expr: ValueExpr) -> Let:
        return Let(name, dtype, (), expr)

    sides = ("unit", "bound") if left else ("bound", "unit")
    made = (
        let("seed", SI64, Const(1)),
        let("offset", SI64, Const(2)),
        let("word", UI32, Words("seed", "offset", constant(0))),
        let("shift", UI32, Const(shift)),
        let("top", UI32, Binary("shift_right", "word", "shift")),
        let("wide", F32, Cast("top")),
        let("scale", F32, Const(scale)),
        let("unit", F32, Binary("mul", "wide", "scale")),
        let("bound", F32, Const(bound)),
        let("kept", I1, Binary(fn, *sides)),
    )
    return {found.name: found for found in made}


COMPARED = {"ge": np.greater_equal, "gt": np.greater, "lt": np.less, "le": np.less_equal}


@each("left", [True, False])
@each("fn", COMPARED)
@each("bound", [float(np.float32(0.1)), 0.25, 0.3, 2.0**-24, 0.0])
def test_words_at_the_bound_are_on_the_side_of_their_numbers(
    bound: float, fn: str, *, left: bool
) -> None:
    chance = find_chance(lets(fn, bound, left=left), "kept")
    assert chance is not None
    edge = np.arange(chance.least - 600, chance.least + 600)
    words = edge[(edge >= 0) & (edge < 1 << 32)].astype(np.uint32)
    unit = (words >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
    sides = (unit.astype(np.float64), bound) if left else (bound, unit.astype(np.float64))
    assert ((words >= chance.least) != chance.inverted).tolist() == COMPARED[fn](*sides).tolist()


def test_a_chance_is_one_of_the_word() -> None:
    assert find_chance(lets("lt", 0.5), "kept") == Chance("word", 1 << 31, inverted=True)


@pytest.mark.parametrize(
    "found",
    [
        lets(bound=1.5),
        lets(bound=float("nan")),
        lets(shift=7),
        lets(scale=1.5),
        lets("eq"),
    ],
    ids=["never", "no number", "rounded to f32", "no power of two", "equal"],
)
def test_what_is_no_chance(found: dict[str, Let]) -> None:
    assert find_chance(found, "kept") is None
