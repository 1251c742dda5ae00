"""Cases of the table against differences in f64."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.derivatives.case import Case
from weft.testing.derivatives import derivative_errors

TOLERANCE = 1e-6


def highest_orders(cases: Iterable[Case]) -> list[Any]:
    """Cases and how often they are differentiated: the first of each op as often as it can be, the
    others once; these take their second derivatives in long runs."""
    made, seen = [], set[str]()
    for case in cases:
        whole = case.op not in seen or case.order == 1
        seen.add(case.op)
        made.append(pytest.param(case, case.order if whole else 1, id=case.id))
        if not whole:
            name = f"{case.id}, order {case.order}"
            made.append(pytest.param(case, case.order, id=name, marks=pytest.mark.slow))
    return made


def agrees_with_differences(case: Case, orders: int) -> None:
    for order in range(1, orders + 1):
        found = derivative_errors(case.program(), case.inputs, case.wrt, order=order)
        assert found.worst < TOLERANCE, f"order {order}: {found}"
