"""Integer sets against enumeration, the budget, and the memory of answers."""

from __future__ import annotations

import itertools
import random

import pytest

from tests.support.cases import each
from weft.foundation.index_expr import Expr, Guard, add, axis, constant, evaluate, param, scale
from weft.poly import sets
from weft.poly.sets import Difference, Domain, IslBudget, Piece

I, J = axis("i"), axis("j")  # noqa: E741


def points(domain: Domain) -> list[dict[str, int]]:
    """Every point of a domain, by counting."""
    spans = [range(low, high + 1) for _, low, high in (*domain.axes, *domain.params)]
    found = []
    for values in itertools.product(*spans):
        env = dict(zip(domain.names, values, strict=True))
        if all(0 <= evaluate(g.expr, env) < g.size for g in domain.guards):
            found.append(env)
    return found


def random_expr(rng: random.Random, depth: int = 2) -> Expr:
    if depth == 0:
        return rng.choice([I, J, param("p")])
    kind = rng.random()
    if kind < 0.5:
        return add(random_expr(rng, depth - 1), random_expr(rng, depth - 1), rng.randint(-3, 3))
    if kind < 0.7:
        return scale(random_expr(rng, depth - 1), rng.choice([-2, -1, 2, 3]))
    inner = random_expr(rng, depth - 1)
    return inner // rng.choice([2, 3]) if kind < 0.85 else inner % rng.choice([2, 3, 4])


def random_domain(rng: random.Random) -> Domain:
    guards = tuple(Guard(random_expr(rng), rng.randint(1, 8)) for _ in range(rng.choice([0, 1, 2])))
    axes = (("i", 0, rng.randint(1, 5)), ("j", 0, rng.randint(0, 4)))
    return Domain(axes, (("p", 0, rng.randint(0, 2)),), guards)


@each("seed", range(60))
def test_questions_agree_with_counting(seed: int) -> None:
    rng = random.Random(seed)
    domain, other = random_domain(rng), random_domain(rng)
    other = Domain(domain.axes, domain.params, other.guards)
    expr, guard = random_expr(rng, 3), Guard(random_expr(rng), rng.randint(1, 9))
    here, there = points(domain), points(other)
    values = [evaluate(expr, env) for env in here]
    fails = [env for env in here if not 0 <= evaluate(guard.expr, env) < guard.size]
    assert sets.is_empty(domain) == (not here)
    found = sets.sample(domain)
    assert found in here if here else found is None
    assert sets.range_of(domain, expr) == ((min(values), max(values)) if here else None)
    assert sets.holds(domain, guard) == (not fails)
    point = sets.counterexample(domain, guard)
    assert point in fails if fails else point is None
    assert sets.is_subset(domain, other) == all(env in there for env in here)
    assert sets.is_equal(domain, other) == (here == there)
    keyed = [(v, env["p"]) for v, env in zip(values, here, strict=True)]
    assert sets.is_injective(domain, (expr,)) == (len(set(keyed)) == len(keyed))


def test_expressions_that_agree_on_a_domain_are_equal_there() -> None:
    domain = Domain.box({"i": 6, "j": 4})
    assert sets.always_equal(domain, (4 * I + J) % 4, J)
    assert not sets.always_equal(domain, (4 * I + J) % 3, J)


WANTED = Domain.box({"n": 24})


@pytest.mark.parametrize(
    ("pieces", "found"),
    [
        ([Piece(Domain.box({"i": 6, "j": 4}), (4 * I + J,))], None),
        (
            [
                Piece(Domain.box({"i": 5, "j": 4}), (4 * I + J,)),
                Piece(Domain.box({"j": 4}), (J + 20,)),
            ],
            None,
        ),
        ([Piece(Domain.box({"i": 6, "j": 5}).where(Guard(J, 4)), (4 * I + J,))], None),
        ([Piece(Domain.box({"i": 5, "j": 4}), (4 * I + J,))], "missing"),
        ([Piece(Domain.box({"i": 7, "j": 4}), (4 * I + J,))], "extra"),
        ([Piece(Domain.box({"i": 6, "j": 4}), (4 * I + J + 1,))], "missing"),
        ([Piece(Domain.box({"i": 6, "j": 5}), (4 * I + J,))], "run twice"),
        ([Piece(Domain.box({"i": 24}), (I,))] * 2, "run twice"),
    ],
)
def test_loops_are_compared_with_the_wanted_domain(pieces: list[Piece], found: str | None) -> None:
    answer = sets.difference(tuple(pieces), WANTED)
    assert (answer.kind if answer else None) == found


def test_a_difference_shows_a_point() -> None:
    answer = sets.difference((Piece(Domain.box({"i": 23}), (I,)),), WANTED)
    assert answer == Difference("missing", (("n", 23),))
    assert str(answer) == "the point (n = 23) is missing"


def test_loops_with_params() -> None:
    start = (("p", 0, 3),)
    wanted = Domain((("n", 0, 9),), start, (Guard(axis("n") - param("p"), 4),))
    loop = Domain.box({"i": 4}, start)
    assert sets.difference((Piece(loop, (I + param("p"),)),), wanted) is None
    short = Domain.box({"i": 3}, start)
    answer = sets.difference((Piece(short, (I + param("p"),)),), wanted)
    assert answer is not None
    assert answer.kind == "missing"


def test_a_point_without_axes_is_a_domain() -> None:
    point, none = Domain(()), Domain((), (), (Guard(constant(1), 1),))
    assert not sets.is_empty(point)
    assert sets.is_empty(none)
    assert sets.sample(point) == {}
    assert sets.range_of(point, constant(3)) == (3, 3)
    assert sets.difference((Piece(point, ()),), point) is None
    assert sets.difference((), none) is None
    assert sets.difference((Piece(Domain.box({"i": 3}), ()),), point) == Difference("run twice", ())
    assert sets.difference((), point) == Difference("missing", ())
    assert sets.difference((Piece(point, ()),), none) == Difference("extra", ())


def test_domains_are_compared_by_their_names() -> None:
    one = Domain((("i", 0, 4), ("j", 2, 3)))
    other = Domain((("j", 2, 3), ("i", 0, 4)))
    assert sets.is_equal(one, other)
    assert sets.is_subset(other, one)
    assert not sets.is_equal(one, Domain((("j", 0, 4), ("i", 2, 3))))


def test_a_query_beyond_the_budget_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sets, "BUDGET", 20)
    domain = Domain.box({"i": 611, "j": 407})
    with pytest.raises(IslBudget) as caught:
        sets.range_of(domain, ((7 * I + J) // 5 * 3 + J) % 11)
    assert str(caught.value.finding) == (
        "W2102 IslBudget: the query range_of takes more than 20 isl operations (the proof is "
        "skipped; the result may be less tight)"
    )
    monkeypatch.undo()
    assert sets.range_of(domain, ((7 * I + J) // 5 * 3 + J) % 11) == (0, 10)


def test_equal_questions_are_answered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    domain, expr = Domain.box({"i": 97, "j": 89}), (3 * I + J) % 7
    first = sets.range_of(domain, expr)
    monkeypatch.setattr(sets, "BUDGET", 1)
    assert sets.range_of(Domain.box({"i": 97, "j": 89}), (3 * I + J) % 7) == first


def test_numbers_beyond_64_bits_are_exact() -> None:
    large = 1 << 70
    domain = Domain((("i", -large, large),))
    assert sets.range_of(domain, add(scale(I, 3), 1)) == (1 - 3 * large, 1 + 3 * large)
    assert sets.holds(Domain((("i", 0, large - 1),)), Guard(I, large))
    assert not sets.holds(Domain((("i", 0, large),)), Guard(I, large))
