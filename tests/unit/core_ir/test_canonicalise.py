"""Canonical modules: what is folded, what is ordered, what goes, and what stays."""

from __future__ import annotations

import pytest

from weft.core_ir import canonicalise, dumps, from_expression, loads
from weft.foundation.errors import SpecViolation

HEAD = "%0 = Input () {name=x} : tensor<i64[]>\n%1 = Input () {name=y} : tensor<i64[]>\n"


def lines(text: str) -> list[str]:
    return dumps(canonicalise(loads(text))).splitlines()


def test_the_example_of_the_page() -> None:
    text = (
        "%0 = Input () {name=x} : tensor<i64[]>\n"
        "%1 = ConstI64 () {value=2} : tensor<i64[]>\n"
        "%2 = ConstI64 () {value=3} : tensor<i64[]>\n"
        "%3 = Add (%1, %2) : tensor<i64[]>\n"
        "%4 = Neg (%0) : tensor<i64[]>\n"
        "%5 = Mul (%3, %0) : tensor<i64[]>\n"
        "outputs: %5\n"
    )
    module = canonicalise(loads(text))
    assert dumps(module) == (
        "%0 = Input () {name=x} : tensor<i64[]>\n"
        "%3 = ConstI64 () {value=5} : tensor<i64[]>\n"
        "%5 = Mul (%0, %3) : tensor<i64[]>\n"
        "outputs: %5\n"
    )
    assert list(module.lines) == [1, 4, 6, 7]


@pytest.mark.parametrize(
    ("opcode", "operands"), [("Add", "%0, %1"), ("Mul", "%0, %1"), ("Sub", "%1, %0")]
)
def test_only_commutative_operands_are_ordered(opcode: str, operands: str) -> None:
    text = f"{HEAD}%2 = {opcode} (%1, %0) : tensor<i64[]>\noutputs: %2"
    assert lines(text)[2] == f"%2 = {opcode} ({operands}) : tensor<i64[]>"


def test_inputs_stay_and_dead_code_goes() -> None:
    text = f"{HEAD}%2 = Neg (%0) : tensor<i64[]>\n%3 = Neg (%2) : tensor<i64[]>\noutputs: %0"
    assert lines(text) == [*HEAD.splitlines(), "outputs: %0"]


def folded(source: str) -> str:
    """The opcode that an expression without inputs becomes."""
    module = canonicalise(from_expression(source, extensions=["div"]))
    return module.operations[-1].opcode


@pytest.mark.parametrize(
    ("source", "opcode"),
    [
        ("const_i64(9223372036854775807) + 0", "ConstI64"),
        ("const_i64(9223372036854775807) + 1", "Add"),
        ("const_i64(-9223372036854775808) - 1", "Sub"),
        ("const_i64(4294967296) * 4294967296", "Mul"),
        ("i32(2147483647) + 1", "Add"),
        ("i32(2147483646) + 1", "ConstTensor"),
        ("i32([1, 2147483647]) * 2", "Mul"),
        ("const_f32(3e38) + 1e38", "Add"),
        ("const_f32(1.5) * 2", "ConstF32"),
        ("const_f32(inf) * 2", "Mul"),
        ("const_f32(nan) + 1", "Add"),
        ("const_f64(1e308) * 10", "Mul"),
        ("const_f64(0.1) + 0.2", "ConstF64"),
        ("7 / 2", "ConstI64"),
        ("7 / 0", "Div"),
        ("const_i64(-9223372036854775808) / -1", "Div"),
        ("1.0 / 0.0", "Div"),
        ("[1, 2] + [[1], [2]]", "ConstTensor"),
    ],
)
def test_folding_stops_before_anything_overflows(source: str, opcode: str) -> None:
    assert folded(source) == opcode


def test_folding_is_rounded_in_the_dtype() -> None:
    module = canonicalise(from_expression("const_f32(16777216) + 1"))
    assert "value=1.6777216e+07" in dumps(module)


def test_folding_does_not_blow_constants_up() -> None:
    column = str([[float(i)] for i in range(40)])
    row = str([float(i) for i in range(40)])
    assert folded(f"f32({column}) + f32({row})") == "Add"
    assert folded(f"f32({column}) * f32(2)") == "ConstTensor"


def test_a_module_that_does_not_verify_is_not_made_canonical() -> None:
    with pytest.raises(SpecViolation, match="E4003"):
        canonicalise(loads(f"{HEAD}outputs: %7"))
