"""Loop nests that run over a box, by arithmetic, compared with counting."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product

import pytest

from weft.foundation.index_expr import Expr, Guard, axis, constant, evaluate
from weft.poly.boxes import boxes_of, fill, fill_box, without_stretches
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
    ("axes", "index", "boxes"),
    [
        ((("m", 0, 3), ("u", 0, 5)), (axis("m") * 6 + axis("u"),), [((0, 23),)]),
        ((("m", 2, 3), ("u", 0, 5)), (axis("m") * 6 + axis("u") + 1,), [((13, 24),)]),
        (
            (("t", 0, 15), ("u", 0, 1)),
            (_TILE * 2 + axis("u"), axis("t") * 4 - _TILE * 32),
            [((0, 3), (column, column)) for column in range(0, 32, 4)],
        ),
        (
            (("t", 0, 15), ("u", 0, 1), ("l", 0, 3)),
            (_TILE * 2 + axis("u"), axis("t") * 4 - _TILE * 32 + axis("l")),
            [((0, 3), (0, 31))],
        ),
        ((("t", 8, 15), ("l", 0, 3)), (axis("t") * 4 - _TILE * 32 + axis("l"),), [((0, 31),)]),
        ((("m", 0, 1), ("u", 0, 5)), (axis("m") * 5 + axis("u"),), [((0, 5),), ((5, 10),)]),
        ((("m", 0, 64), ("u", 0, 5)), (axis("m") * 7 + axis("u"),), None),  # too many
        ((("m", 0, 3), ("u", 0, 5)), (axis("u"),), None),
        ((("m", 0, 3),), (axis("m"), axis("m")), None),
        ((("m", 0, 3), ("one", 4, 4)), (axis("m"), axis("one") * 7), [((0, 3), (28, 28))]),
        ((), (constant(2),), [((2, 2),)]),
    ],
)
def test_boxes(
    axes: Axes, index: tuple[Expr, ...], boxes: list[tuple[tuple[int, int], ...]] | None
) -> None:
    assert boxes_of(axes, index) == boxes


def test_what_is_called_a_box_is_one() -> None:
    chance, seen = random.Random(5), 0
    for _ in range(3000):
        names = ["a", "b", "c"][: chance.randint(1, 3)]
        starts = {name: chance.choice([0, 0, 0, 4, 6]) for name in names}
        axes = tuple((n, starts[n], starts[n] + chance.choice([0, 1, 2, 3, 5, 11])) for n in names)
        index = tuple(_expression(chance, names) for _ in range(chance.randint(1, 2)))
        boxes = boxes_of(axes, index)
        if boxes is not None:
            seen += 1
            points = Counter[tuple[int, ...]]()
            for box in boxes:
                points.update(product(*(range(first, last + 1) for first, last in box)))
            assert reached(axes, index) == points, (axes, index)
    assert seen > 50


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


def test_stretches_of_an_axis_that_no_index_has_are_left_out() -> None:
    """Rows that are finished panel by panel, the last of them with 8 of 12."""
    past = axis("i") - axis("ip") * 12
    guards = (Guard(past, 1 << 40), Guard(constant(11) - past, 1 << 40))
    axes = (("ip", 0, 41), ("i", 0, 499))
    assert without_stretches(axes, guards, (axis("i"),)) == (("i", 0, 499),)
    assert without_stretches(axes, (), (axis("i"),)) == axes, "each row 42 times"
    assert without_stretches(axes, guards[:1], (axis("i"),)) is None, "rows of later panels, too"
    assert without_stretches((("ip", 0, 40), axes[1]), guards, (axis("i"),)) is None, "rows left"
    assert without_stretches((("ip", 1, 41), axes[1]), guards, (axis("i"),)) is None, "rows left"
    assert without_stretches(axes, guards, (axis("i"), axis("ip"))) is None, "an index has it"
    narrow = (Guard(past, 8), guards[1])
    assert without_stretches(axes, narrow, (axis("i"),)) is None, "four of twelve are left out"


def _rows(start: Expr, inner: int) -> tuple[Expr, Expr]:
    return start // inner, start % inner


def test_blocks_of_rows_that_are_two_axes_fill_them() -> None:
    """As a product over joined axes is cut for threads: 7 blocks of 12 rows, and one of 12 more."""
    block, rest = axis("p") // 2 * 12 + axis("i"), axis("i") + 84
    column = axis("p") * 4 - axis("p") // 2 * 8 + axis("j")
    many = ((("p", 0, 13), ("i", 0, 11), ("j", 0, 3)), (*_rows(block, 8), column))
    last = ((("p", 0, 1), ("i", 0, 11), ("j", 0, 3)), (*_rows(rest, 8), axis("p") * 4 + axis("j")))
    whole = ((0, 11), (0, 7), (0, 7))
    assert sum((reached(*nest) for nest in (many, last)), Counter()) == Counter(
        product(*(range(high + 1) for _, high in whole))
    )
    assert fill_box([many, last], whole)
    assert not fill_box([many], whole), "the last rows are missing"
    assert not fill_box([many, last, last], whole), "the last rows twice"
    assert not fill_box([many, last], ((0, 11), (0, 8), (0, 7))), "rows of nine"


def test_strips_of_columns_that_are_three_axes_fill_them() -> None:
    """As the gradient of a filter is cut: columns are (channel, line, place), and come in strips of
    which the last is narrower, in blocks that are no multiple of a line or a channel."""
    block = axis("p") * 12

    def nest(size: int, first: int) -> tuple[Axes, tuple[Expr, ...]]:
        place = axis("l") + first
        line = axis("p") * 4 + place // 3
        axes = (("p", 0, 2), ("l", 0, size - 1))
        return axes, ((block + place) // 9, line - line // 3 * 3, place - place // 3 * 3)

    wide, narrow = nest(8, 0), nest(4, 8)
    whole = ((0, 3), (0, 2), (0, 2))
    assert sum((reached(*each) for each in (wide, narrow)), Counter()) == Counter(
        product(*(range(high + 1) for _, high in whole))
    )
    assert fill_box([wide, narrow], whole)
    assert not fill_box([wide], whole), "the ends of strips are missing"
    assert not fill_box([wide, nest(5, 7)], whole), "a column of each strip twice"


def test_what_is_called_filled_is() -> None:
    chance, filled = random.Random(7), 0
    for _ in range(4000):
        inner, block = chance.choice([2, 3, 4, 6]), chance.choice([1, 2, 3, 4, 5, 6, 8])
        count, offset = chance.choice([1, 2, 3, 4]), chance.choice([0, 0, 0, 1])
        row = axis("b") * chance.choice([block, block, block, inner]) + axis("i") + offset
        axes: Axes = (("b", 0, count - 1), ("i", 0, block - 1))
        high = row // chance.choice([inner, inner, inner, block])
        index = (high, row % chance.choice([inner, inner, inner, inner + 1]))
        total = count * block
        whole = ((0, max(0, -(-total // inner) - 1)), (0, inner - 1))
        if fill_box([(axes, index)], whole):
            filled += 1
            points = product(*(range(last + 1) for _, last in whole))
            assert reached(axes, index) == Counter(points), (axes, index)
    assert filled > 100
