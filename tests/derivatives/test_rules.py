"""Every gradient rule against differences in f64: reverse and forward mode, first and second
order."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.derivatives.case import Case
from tests.derivatives.cases import CASES
from tests.derivatives.differences import TOLERANCE, agrees_with_differences, highest_orders
from weft.testing.derivatives import derivative_errors

PLAIN = [case for case in CASES if not case.is_coarse]


@pytest.mark.parametrize(("case", "orders"), highest_orders(PLAIN))
def test_the_derivative_is_what_differences_say(case: Case, orders: int) -> None:
    agrees_with_differences(case, orders)


def test_every_rule_is_checked_on_several_shapes() -> None:
    ops = Counter(case.op for case in CASES)
    assert {op: count for op, count in ops.items() if count < 3} == {}


def test_a_wrong_rule_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself: a rule that is off by a thousandth does not pass."""
    from weft.ptir.ops.functions import Sin

    right = Sin.derivative
    monkeypatch.setattr(Sin, "derivative", lambda self, x, y: right(self, x, y) * 1.001)
    case = next(c for c in CASES if c.op == "sin")
    found = derivative_errors(case.program(), case.inputs)
    assert found.reverse > TOLERANCE
    assert found.forward > TOLERANCE
