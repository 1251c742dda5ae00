"""Every gradient rule against differences in f64: reverse and forward mode, first and second
order."""

from __future__ import annotations

import pytest

from tests.derivatives.case import Case
from tests.derivatives.cases import CASES
from weft.testing.derivatives import derivative_errors

TOLERANCE = 1e-6


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.id))
def test_the_derivative_is_what_differences_say(case: Case) -> None:
    for order in range(1, case.order + 1):
        found = derivative_errors(case.program(), case.inputs, case.wrt, order=order)
        assert found.worst < TOLERANCE, f"order {order}: {found}"


def test_a_wrong_rule_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself: a rule that is off by a thousandth does not pass."""
    from weft.ptir.ops.functions import Sin

    right = Sin.derivative
    monkeypatch.setattr(Sin, "derivative", lambda self, x, y: right(self, x, y) * 1.001)
    case = next(c for c in CASES if c.op == "sin")
    found = derivative_errors(case.program(), case.inputs)
    assert found.reverse > TOLERANCE
    assert found.forward > TOLERANCE
