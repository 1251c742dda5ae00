"""One case of the table against differences in f64, at every order it has."""

from __future__ import annotations

from tests.derivatives.case import Case
from weft.testing.derivatives import derivative_errors

TOLERANCE = 1e-6


def agrees_with_differences(case: Case) -> None:
    for order in range(1, case.order + 1):
        found = derivative_errors(case.program(), case.inputs, case.wrt, order=order)
        assert found.worst < TOLERANCE, f"order {order}: {found}"
