"""Index expressions: rewriting keeps their value at every point, and bounds really bound."""

from __future__ import annotations

import itertools
import random

import pytest

from tests.support.cases import each
from weft.foundation.errors import SpecViolation
from weft.foundation.index_expr import (
    Expr,
    Guard,
    add,
    always,
    axis,
    bounds,
    constant,
    evaluate,
    floordiv,
    param,
    scale,
    simplify,
    substitute,
)
from weft.foundation.index_text import parse_expr, parse_guard

RANGES = {"i": (0, 5), "j": (0, 3), "k": (0, 7), "p": (1, 4)}
i, j, k, p = axis("i"), axis("j"), axis("k"), param("p")


def points() -> list[dict[str, int]]:
    spans = [range(low, high + 1) for low, high in RANGES.values()]
    return [dict(zip(RANGES, values, strict=True)) for values in itertools.product(*spans)]


def random_expr(rng: random.Random, depth: int = 3) -> Expr:
    kind = rng.random()
    if depth == 0 or kind < 0.3:
        return rng.choice([i, j, k, p, constant(rng.randint(-9, 9))])
    if kind < 0.55:
        return add(random_expr(rng, depth - 1), random_expr(rng, depth - 1))
    if kind < 0.75:
        return scale(random_expr(rng, depth - 1), rng.choice([-8, -3, -1, 2, 4, 8]))
    inner, divisor = random_expr(rng, depth - 1), rng.choice([2, 3, 4, 8])
    return inner // divisor if kind < 0.9 else inner % divisor


@each("seed", range(60))
def test_rewriting_keeps_the_value(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(6):
        expr = random_expr(rng)
        simple = simplify(expr, RANGES)
        low, high = bounds(expr, RANGES)
        for env in points()[:: rng.randint(1, 7)]:
            value = evaluate(expr, env)
            assert evaluate(simple, env) == value, f"{expr} became {simple}"
            assert low <= value <= high, f"{expr} is outside {low}..{high}"


@each("seed", range(40))
def test_text_reads_back(seed: int) -> None:
    expr = random_expr(random.Random(seed), 4)
    assert parse_expr(str(expr)) is expr
    guard = Guard(expr, 7)
    assert parse_guard(str(guard)) is guard


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (floordiv(4 * i + j, 8), "floor((i)/2)"),
        (floordiv(4 * i + j, 4), "i"),
        ((8 * i + k) % 8, "k"),
        (floordiv(floordiv(8 * i + k, 4), 2), "i"),
        (floordiv(8 * i + k + 5, 8), "i + floor((k + 5)/8)"),
        (floordiv(i, 6), "0"),
        (floordiv(2 * k, 4), "floor((k)/2)"),
    ],
)
def test_simplify_drops_what_the_ranges_decide(before: Expr, after: str) -> None:
    assert str(simplify(before, RANGES)) == after


def test_a_remainder_is_known_to_be_small() -> None:
    assert bounds(k % 3, RANGES) == (0, 2)
    assert bounds(2 * (k % 3) + i, RANGES) == (0, 9)
    assert always(Guard((5 * i + k) % 7, 7), RANGES)


def test_substitute_replaces_axes_and_params() -> None:
    expr = floordiv(i + p, 2) + 3 * j
    found = substitute(expr, {"i": 2 * k, "j": constant(1)}, {"p": constant(4)})
    assert str(found) == "k + 5"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("i0*i1", "two axes are multiplied"),
        ("i0 / 2", "only floor((...)/number) divides"),
        ("floor((i0)/i1)", "a number is missing before 'i1'"),
        ("i0 +", "an axis is missing before ''"),
        ("floor((i0)/0)", "it divides by 0"),
    ],
)
def test_what_is_not_affine_is_said(text: str, why: str) -> None:
    with pytest.raises(SpecViolation) as caught:
        parse_expr(text)
    assert str(caught.value) == (
        f"E1405 NonAffine: the index expression {text!r} is not affine: {why}"
    )


@pytest.mark.parametrize("number", [str(1 << 63), "9" * 5000])
def test_numbers_beyond_64_bits_are_refused(number: str) -> None:
    for read, text in ((parse_expr, f"{number}*i"), (parse_guard, f"0 <= i < {number}")):
        with pytest.raises(SpecViolation, match="has a number beyond 64 bits"):
            read(text)
