"""Tests draw the same numbers whatever ran before them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support import draws
from tests.support.draws import generator

RANDOM = generator()
TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("again", [False, True])
def test_each_test_starts_anew(again: bool, request: pytest.FixtureRequest) -> None:
    first = RANDOM.integers(0, 1 << 30, 8).tolist()
    draws.restart(request.node.name)
    assert RANDOM.integers(0, 1 << 30, 8).tolist() == first
    draws.restart("another")
    assert RANDOM.integers(0, 1 << 30, 8).tolist() != first


def test_no_module_keeps_a_generator_of_another_kind() -> None:
    """A generator that nobody restarts passes its state from test to test."""
    found = [
        f"{path.relative_to(TESTS)}:{node.lineno}"
        for path in sorted(TESTS.rglob("*.py"))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) in ("np.random.default_rng", "random.Random", "Random")
    ]
    assert found == []
