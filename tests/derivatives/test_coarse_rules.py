"""The gradients of coarse ops against differences in f64."""

from __future__ import annotations

import pytest

from tests.derivatives.case import Case
from tests.derivatives.cases import CASES
from tests.derivatives.differences import agrees_with_differences, highest_orders

COARSE = [case for case in CASES if case.is_coarse]


@pytest.mark.parametrize(("case", "orders"), highest_orders(COARSE))
def test_the_derivative_is_what_differences_say(case: Case, orders: int) -> None:
    agrees_with_differences(case, orders)
