"""Tables of small cases that are one test.

`each` is written as `pytest.mark.parametrize` is. A test of pytest's own takes milliseconds to
collect, in every process, and to hand out; the cases of a large table take less than that.

    @each("dtype", DTYPES)
    @each(("shape", "axis"), [((2, 3), 0), ((4,), 0)])
    def test_sum(dtype, shape, axis): ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, Final

import pytest

from tests.support import draws

Case = dict[str, Any]
Test = Callable[..., None]

_MOST: Final = 20
"""How many cases that fail are named."""


def each(names: str | Sequence[str], values: Iterable[Any]) -> Callable[[Test], Test]:
    """The test runs for each of the values, and for all pairs where it has several tables. All
    cases run: the first that fails tells its reason, and the names of the others follow. What a
    case draws depends on its name alone; fixtures are made once for all of them."""
    told = [names] if isinstance(names, str) else list(names)
    own = [dict(zip(told, [v] if isinstance(names, str) else v, strict=True)) for v in values]
    assert own, f"there are no cases of {names}"

    def decorate(test: Test) -> Test:
        inner: Test = getattr(test, "of_one_case", test)
        below: list[Case] = getattr(test, "cases", [{}])
        cases = [{**case, **others} for case in own for others in below]

        @wraps(test)
        def run_all(**fixtures: Any) -> None:
            _run_cases(inner, cases, fixtures)

        given = inspect.signature(inner)
        free = [p for name, p in given.parameters.items() if name not in cases[0]]
        run_all.__dict__.update(
            __signature__=given.replace(parameters=free), of_one_case=inner, cases=cases
        )
        return run_all

    return decorate


def _run_cases(test: Test, cases: list[Case], fixtures: Case) -> None:
    failed: list[tuple[str, BaseException]] = []
    for case in cases:
        name = ", ".join(f"{key}={_tell_value(value)}" for key, value in case.items())
        draws.restart(f"{test.__name__} {name}")
        try:
            test(**fixtures, **case)
        except pytest.skip.Exception as reason:
            failed.append((name, AssertionError(f"a case cannot be skipped alone: {reason}")))
        except (Exception, pytest.fail.Exception) as error:
            failed.append((name, error))
    if failed:
        name, first = failed[0]
        first.add_note(f"in the case {name}; {len(failed)} of {len(cases)} cases fail")
        for other, _ in failed[1:_MOST]:
            first.add_note(f"  and {other}")
        raise first


def _tell_value(value: Any) -> str:
    """Functions and classes by their names; else what the value says of itself, in a line."""
    return str(getattr(value, "__name__", value)).replace("\n", " ")[:80]


def one_in(count: int, values: Iterable[Any], *, unpack: bool = False) -> list[Any]:
    """Values for `pytest.mark.parametrize` of which one in so many is in the fast run, the first
    among them; the others are for `make test-full`. `unpack` is for tables of several names."""
    return [
        pytest.param(
            *(value if unpack else (value,)), marks=[pytest.mark.slow] if number % count else []
        )
        for number, value in enumerate(values)
    ]
