"""A table of cases that is one test runs all of them, and names those that fail."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from tests.support.cases import each, one_in
from tests.support.draws import generator

RANDOM = generator()


def test_all_cases_run_and_those_that_fail_are_named() -> None:
    ran = []

    @each("sign", ["+", "-"])
    @each(("size", "axis"), [(2, 0), (3, 1)])
    def table(sign: str, size: int, axis: int) -> None:
        ran.append((sign, size, axis))
        assert sign == "+" or axis == 0, "too far"
        if size == 3:
            pytest.fail("too large")

    with pytest.raises(pytest.fail.Exception, match="too large") as caught:
        table()
    assert ran == [("+", 2, 0), ("+", 3, 1), ("-", 2, 0), ("-", 3, 1)]
    assert caught.value.__notes__ == [
        "in the case sign=+, size=3, axis=1; 2 of 4 cases fail",
        "  and sign=-, size=3, axis=1",
    ]


def test_fixtures_and_marks_go_through(tmp_path: Path) -> None:
    seen = []

    @each("size", [1, 2])
    @pytest.mark.slow
    def table(size: int, tmp_path: Path) -> None:
        seen.append((size, tmp_path))

    assert list(inspect.signature(table).parameters) == ["tmp_path"]
    assert [mark.name for mark in table.pytestmark] == ["slow"]  # type: ignore[attr-defined]
    table(tmp_path=tmp_path)
    assert seen == [(1, tmp_path), (2, tmp_path)]


def test_a_case_that_skips_is_told() -> None:
    """The whole test would count as skipped."""

    @each("size", [1, 2])
    def table(size: int) -> None:
        if size == 2:
            pytest.skip("too large")

    with pytest.raises(AssertionError, match="a case cannot be skipped alone: too large") as caught:
        table()
    assert caught.value.__notes__ == ["in the case size=2; 1 of 2 cases fail"]


def test_a_table_without_cases_is_told() -> None:
    with pytest.raises(AssertionError, match=r"there are no cases of size$"):
        each("size", [])


def test_what_a_case_draws_does_not_depend_on_the_others() -> None:
    drawn: dict[int, list[list[int]]] = {1: [], 2: []}

    def table(size: int) -> None:
        drawn[size].append(RANDOM.integers(0, 1 << 30, 4).tolist())

    each("size", [1, 2])(table)()
    each("size", [2, 1])(table)()
    assert drawn[1][0] == drawn[1][1] != drawn[2][0] == drawn[2][1]


def test_one_case_in_several_is_in_the_fast_run() -> None:
    made = one_in(3, [(size, -size) for size in range(5)], unpack=True)
    assert [param.values for param in made] == [(size, -size) for size in range(5)]
    assert [[mark.name for mark in param.marks] for param in made] == [
        [], ["slow"], ["slow"], [], ["slow"]
    ]  # fmt: skip
    (single,) = one_in(3, [(1, 2)])
    assert single.values == ((1, 2),)
