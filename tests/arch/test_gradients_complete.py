"""Every op has a gradient rule that is checked, or says why it has none; and the page shows it."""

from __future__ import annotations

from docs import generate_gradients
from tests.derivatives.cases import CASES
from tests.support.cases import each
from weft.ptir.autodiff.control_flow import CONTROL
from weft.ptir.op import Op, all_ops

OPS = all_ops()
BY_CLASS = each("cls", OPS)
REFUSED = {"while", "custom_call", "callback"}
"""Ops whose rule is a refusal."""
FIRST_ORDER = {"byteir.flash_attn_bwd", "byteir.flash_attn_kvcache"}
"""Ops that are a derivative already, or of which only inference makes use."""


@BY_CLASS
def test_an_op_has_a_rule_or_says_why_not(cls: type[Op]) -> None:
    rule = cls.vjp is not Op.vjp or cls in CONTROL
    assert rule or cls.no_gradient, f"{cls.name} has neither vjp nor no_gradient"


@BY_CLASS
def test_a_rule_is_checked_to_the_second_order(cls: type[Op]) -> None:
    for name in cls.spellings():
        orders = [case.order for case in CASES if case.op == name]
        if cls.no_gradient or name in REFUSED:
            assert not [c for c in CASES if c.op == name and c.op != "stop_gradient"]
        else:
            assert orders, f"no case in tests/derivatives for {name}"
            assert max(orders) >= (1 if name in FIRST_ORDER else 2)


def test_a_rule_is_compared_with_torch_or_the_page_says_why_not() -> None:
    compared = {case.op for case in CASES if case.torch is not None}
    missing = {case.op for case in CASES} - compared
    assert missing == set(generate_gradients.WITHOUT_TORCH)


def test_every_case_is_about_an_op() -> None:
    names = {name for cls in OPS for name in cls.spellings()}
    assert {case.op for case in CASES} <= names
    ids = [case.id for case in CASES]
    assert len(set(ids)) == len(ids)


def test_the_page_is_up_to_date() -> None:
    assert generate_gradients.PAGE.read_text() == generate_gradients.render(), "run `make docs`"
