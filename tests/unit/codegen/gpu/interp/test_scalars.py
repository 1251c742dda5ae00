"""Expressions of lanes are computed once for the same names, and again for others."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from weft.codegen.gpu.interp import scalars
from weft.codegen.gpu.interp.memory import Expansions
from weft.codegen.gpu.interp.races import Hazard
from weft.codegen.gpu.interp.scalars import Memo, Value, evaluate
from weft.codegen.gpu.ir.scalar import BLOCK, LANE, THREAD, WARP, Name, Scalar, wide

PLACE: Any = SimpleNamespace(kernel=None, number=3)
K, BASE = Name("k"), Name("base")
EXPRESSIONS: dict[str, Scalar] = {
    "a lane": LANE % 8 * 16,
    "a thread": THREAD // 4 + K,
    "a warp": WARP * K + 1,
    "a block": BLOCK * 64 + LANE,
    "a vector": BASE + K * 128,
    "the same name twice": BASE * BASE + K,
    "wide": wide(K) * (1 << 40) + LANE,
}


@pytest.fixture
def computed() -> Iterator[list[Scalar]]:
    """The operations that are carried out."""
    found: list[Scalar] = []
    real = scalars._apply

    def apply(expression: Any, left: Value, right: Value) -> Value:
        found.append(expression)
        return real(expression, left, right)

    with patch.object(scalars, "_apply", apply):
        yield found


@pytest.mark.parametrize("what", EXPRESSIONS)
def test_a_memo_agrees_with_evaluation(what: str) -> None:
    memo, expression = Memo(), EXPRESSIONS[what]
    bases: list[Value] = [7, np.arange(32), np.arange(32) * 2]
    for _ in range(2):
        for base in bases:
            for warp in range(3):
                for k in range(3):
                    names: dict[str, Value] = {"k": k, "base": base}
                    wanted = evaluate(expression, names, warp, PLACE)
                    np.testing.assert_array_equal(
                        memo.value(expression, names, warp, PLACE), wanted
                    )


def test_the_same_names_give_the_same_vector(computed: list[Scalar]) -> None:
    memo, expression = Memo(), EXPRESSIONS["a vector"]
    names: dict[str, Value] = {"k": 5, "base": np.arange(32)}
    first = memo.value(expression, names, 0, PLACE)
    count = len(computed)
    assert count
    assert memo.value(expression, names | {"other": 1}, 1, PLACE) is first
    assert len(computed) == count
    memo.value(expression, names | {"k": 6}, 0, PLACE)
    assert len(computed) > count


def test_a_vector_with_the_address_of_an_earlier_one_is_another() -> None:
    memo, expression = Memo(), EXPRESSIONS["a vector"]
    for number in range(100):
        # Without anybody who holds it, the next vector would lie where this one did.
        found = memo.value(expression, {"k": 0, "base": np.arange(32) + number}, 0, PLACE)
        np.testing.assert_array_equal(found, np.arange(32) + number)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scalars, "_MOST_KEPT", 10)
    memo, expression = Memo(), LANE + K
    for k in range(35):
        np.testing.assert_array_equal(memo.value(expression, {"k": k}, 0, PLACE), np.arange(32) + k)
        assert memo.kept <= 10


def test_a_hazard_is_told_every_time() -> None:
    memo, expression = Memo(), (LANE - K) % 4
    for _ in range(2):
        with pytest.raises(Hazard, match="negative numbers"):
            memo.value(expression, {"k": 1}, 0, PLACE)


def test_bytes_are_expanded_once_and_checked_first() -> None:
    expansions, first = Expansions(), np.arange(32) * 4
    made = expansions.bytes_from(first, 4, 128)
    np.testing.assert_array_equal(made.reshape(-1), np.arange(128))
    assert expansions.bytes_from(first, 4, 128) is made
    for _ in range(2):
        with pytest.raises(Hazard, match="byte 128 of 128"):
            expansions.bytes_from(first + 1, 4, 128)
    shifted = expansions.addresses(first, 64)
    np.testing.assert_array_equal(shifted, first + 64)
    assert expansions.addresses(first, 64) is shifted
    assert expansions.addresses(first, 0) is first
    np.testing.assert_array_equal(expansions.addresses(5, 64), np.full(32, 69))
