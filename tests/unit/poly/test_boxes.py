"""Loop nests that run over a box, by arithmetic, compared with counting."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product

import pytest

from weft.foundation.index_expr import Expr, axis, constant, evaluate
from weft.poly.boxes import box_of, fill
from weft.poly.sets import Domain, Piece, difference

Axes = tuple[tuple[str, int, int], ...]
_TILE = axis("t") // 8


def reached(axes: Axes, index: tuple[Expr, ...]) -> Counter[tuple[int, ...]]:
    """How often a nest comes to each point."""
    names = [name for name, _, _ in axes]
    ranges = [range(first, last + 1) for _, first, last in axes]
    envs = (dict(zip(names, values, strict=True)) for values in product(*ranges))
    return Counter(tuple(int(evaluate(expr, env)) for expr in index) for env in envs)


@pytest.mark.parametrize(
    ("axes", "index", "box"),
    [
        ((("m", 0, 3), ("u", 0, 5)), (axis("m") * 6 + axis("u"),), ((0, 23),)),
        ((("m", 2, 3), ("u", 0, 5)), (axis("m") * 6 + axis("u") + 1,), ((13, 24),)),
        (
            (("t", 0, 15), ("u", 0, 1)),
            (_TILE * 2 + axis("u"), axis("t") * 4 - _TILE * 32),
            None,  # every fourth column
        ),
        (
            (("t", 0, 15), ("u", 0, 1), ("l", 0, 3)),
            (_TILE * 2 + axis("u"), axis("t") * 4 - _TILE * 32 + axis("l")),
            ((0, 3), (0, 31)),
        ),
        ((("t", 8, 15), ("l", 0, 3)), (axis("t") * 4 - _TILE * 32 + axis("l"),), ((0, 31),)),
        ((("m", 0, 3), ("u", 0, 5)), (axis("m") * 5 + axis("u"),), None),
        ((("m", 0, 3), ("u", 0, 5)), (axis("u"),), None),
        ((("m", 0, 3),), (axis("m"), axis("m")), None),
        ((("m", 0, 3), ("one", 4, 4)), (axis("m"), axis("one") * 7), ((0, 3), (28, 28))),
        ((), (constant(2),), ((2, 2),)),
    ],
)
def test_boxes(axes: Axes, index: tuple[Expr, ...], box: tuple[tuple[int, int], ...]) -> None:
    assert box_of(axes, index) == box


def test_what_is_called_a_box_is_one() -> None:
    chance, boxes = random.Random(5), 0
    for _ in range(3000):
        names = ["a", "b", "c"][: chance.randint(1, 3)]
        starts = {name: chance.choice([0, 0, 0, 4, 6]) for name in names}
        axes = tuple((n, starts[n], starts[n] + chance.choice([0, 1, 2, 3, 5, 11])) for n in names)
        index = tuple(_expression(chance, names) for _ in range(chance.randint(1, 2)))
        box = box_of(axes, index)
        if box is not None:
            boxes += 1
            points = product(*(range(first, last + 1) for first, last in box))
            assert reached(axes, index) == Counter(points), (axes, index)
    assert boxes > 50


def _expression(chance: random.Random, names: list[str]) -> Expr:
    total = constant(chance.choice([0, 0, 3]))
    for name in chance.sample(names, chance.randint(1, len(names))):
        divisor = chance.choice([1, 1, 2, 3, 4])
        term = chance.choice([axis(name) // divisor, axis(name) % divisor, axis(name)])
        total += term * chance.choice([1, 2, 3, 4, 6, 12])
    return total


def test_boxes_fill_a_box_once() -> None:
    left, right = ((0, 3), (0, 4)), ((0, 3), (5, 9))
    assert fill([left, right], ((0, 3), (0, 9)))
    assert not fill([left, right], ((0, 3), (0, 10))), "a column is missing"
    assert not fill([left, right], ((0, 3), (0, 8))), "a column is extra"
    assert not fill([left, left], ((0, 3), (0, 9))), "the first half twice, as many points"


def test_tiles_that_overlap_are_still_found() -> None:
    """Two quotients and a remainder, one row short: arithmetic leaves it to isl."""
    wanted = Domain.box({"m": 4, "n": 32})
    domain = Domain((("t", 0, 15), ("u", 0, 1), ("l", 0, 3)))
    column = axis("t") * 4 - _TILE * 32 + axis("l")
    assert difference((Piece(domain, (_TILE * 2 + axis("u"), column)),), wanted) is None
    found = difference((Piece(domain, (_TILE + axis("u"), column)),), wanted)
    assert found is not None
    assert found.kind == "run twice"
