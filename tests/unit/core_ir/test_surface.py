"""The surface language: what expressions become, and that every instruction can be reached."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.support.core_texts import CALLS, X
from weft.core_ir import INSTRUCTIONS, Module, dumps, from_expression, tensor, verify
from weft.core_ir.surface import FUNCTIONS
from weft.foundation.errors import SpecViolation, UserError, WeftError


def body(source: str, **options: object) -> list[str]:
    """The operations after the inputs, without their types."""
    module = from_expression(source, **options)  # type: ignore[arg-type]
    verify(module)
    lines = dumps(module).splitlines()
    return [line.rpartition(" : ")[0] for line in lines if " = " in line and "Input" not in line]


def test_an_expression_becomes_a_module() -> None:
    module = from_expression("x: f32[2, 3]; w: f32[3, 4]; h = relu(x @ w); h * 0.5 + h")
    assert dumps(module) == (
        "%0 = Input () {name=x} : tensor<f32[2, 3]>\n"
        "%1 = Input () {name=w} : tensor<f32[3, 4]>\n"
        "%2 = MatMul (%0, %1) : tensor<f32[2, 4]>\n"
        "%3 = Relu (%2) : tensor<f32[2, 4]>\n"
        "%4 = ConstTensor () {data=0.5, dtype=f32, shape=[]} : tensor<f32[]>\n"
        "%5 = Mul (%3, %4) : tensor<f32[2, 4]>\n"
        "%6 = Add (%5, %3) : tensor<f32[2, 4]>\n"
        "outputs: %6\n"
    )


def test_there_is_a_call_for_every_instruction() -> None:
    assert {*CALLS, "Input"} == set(INSTRUCTIONS)
    assert {row.opcode for row in FUNCTIONS.values()} == set(CALLS)


@pytest.mark.parametrize("opcode", CALLS)
def test_every_instruction_can_be_reached(opcode: str) -> None:
    module = from_expression(X + CALLS[opcode], extensions=["div", "gradient"])
    verify(module)
    assert module.operations[-1].opcode == opcode


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("10 - 4 - 3", 3),
        ("-2 * -3", 6),
        ("-(2 + 3)", -5),
        ("--2", 2),
        ("- -2 - -2", 4),
        ("2 * 3 - 4 * 5", -14),
        ("7 / 2 / 2", 1),
        ("a = 2; b = a * a; b * b - a", 14),
        ("i32([5, 6, 7])[1]", 6),
        ("[[1, 2], [3, 4]][1, 0]", 3),
        ("dot([1, 2], [3, 4])", 11),
        ("sum([[1, 2], [3, 4]] @ [[1, 0], [0, 1]], [])", 10),
        ("1 + 0.5", 1.5),
        ("[1, 2, 3, 4][1:4:2][0]", 2),
        ("i32([5, 6, 7])[i64([2, 0])][1]", 5),
        ("-[1, 2][1]", -2),
    ],
)
def test_precedence_and_values(source: str, value: float) -> None:
    (found,) = weft.run(from_expression(source, extensions=["div"]))
    assert found == value


def test_literals_take_the_dtype_beside_them() -> None:
    for dtype in ("i32", "i64", "f32", "f64"):
        (line,) = body(f"x: {dtype}[2]; x + 1")[:1]
        assert f"dtype={dtype}" in line
    assert "dtype=i64" in body("1")[0]
    assert "dtype=f32" in body("1.0")[0]
    assert ["dtype=f32" in line for line in body("1 + 2.5")[:2]] == [True, True]
    assert "dtype=i64" in body(X + "gather(x, 1)")[0]
    with pytest.raises(SpecViolation, match=r"E4005 at line 1, column 16: '1\.5' is not a value"):
        from_expression("x: i32[2]; x + 1.5")


def test_subscripts() -> None:
    assert body(X + "x[1, 2]") == ["%1 = Index (%0) {indices=[1, 2]}"]
    assert body(X + "x[:, 1:]") == ["%1 = Slice (%0) {ends=[2, 3], starts=[0, 1], steps=[1, 1]}"]
    assert body(X + "x[0]") == [
        "%1 = Slice (%0) {ends=[1, 3], starts=[0, 0], steps=[1, 1]}",
        "%2 = Squeeze (%1) {axes=[0]}",
    ]
    assert body(X + "x[::2, 1]")[0] == (
        "%1 = Slice (%0) {ends=[2, 2], starts=[0, 1], steps=[2, 1]}"
    )
    assert body(X + "i: i32[2]; x[i]") == ["%2 = Gather (%0, %1)"]
    assert body(X + "i: i32[2]; x[i[0:1]][0, 1]") == [
        "%2 = Slice (%1) {ends=[1], starts=[0], steps=[1]}",
        "%3 = Gather (%0, %2)",
        "%4 = Index (%3) {indices=[0, 1]}",
    ]


def test_inputs_come_first_and_only_those_that_are_used() -> None:
    module = from_expression("x: f32; y = x + x; unused: f32[9]; z: f32; y * z")
    assert [op.attributes["name"] for op in module.inputs] == ["x", "z"]
    assert [op.opcode for op in module.operations] == ["Input", "Input", "Add", "Mul"]
    assert [op.value_id for op in module.operations] == [0, 1, 2, 3]
    assert from_expression("x: f32; x").outputs == (0,)


def test_variables_can_be_declared_beside_the_text() -> None:
    given = from_expression("x @ w", {"x": "f32[2, 3]", "w": tensor("f32", [3, 1])})
    assert given == from_expression("x: f32[2, 3]; w: f32[3, 1]; x @ w")
    with pytest.raises(UserError, match="'x-1' is not the name of a variable"):
        from_expression("x", {"x-1": "f32"})


def test_comments_and_lines() -> None:
    module = from_expression("x: f32[2]; # the input\nx + # itself\n x")
    assert isinstance(module, Module)
    with pytest.raises(SpecViolation, match="line 3, column 2"):
        from_expression("x: f32[2];\n#\n y")


WRONG = {
    "": "E0101 at line 1, column 1: expected a value but found the end of the text",
    "x: f32;": "E0101 at line 1, column 8: expected a value but found the end of the text",
    "1 +": "E0101 at line 1, column 4: expected a value but found the end of the text",
    "(1": "E0101 at line 1, column 3: expected ')' but found the end of the text",
    "1 2": "E0101 at line 1, column 3: expected an operator, ';' or the end but found '2'",
    "1 $ 2": "E0101 at line 1, column 3: unexpected character '$'",
    "x": "E4001 at line 1, column 1: 'x' is not declared; declared is nothing (write "
    "'x: f32[2, 3];' in front, with its type)",
    "x: f32; x: f32; x": "E4002 at line 1, column 9: 'x' is defined already",
    "x: f32[2, 0]; x": "E3006 at line 1, column 1: shape [2, 0] has the dim 0 at axis 1; declared "
    "dims are positive ([2, 1] would be valid; a scalar has the shape [])",
    "x: f16; x": "E2005 at line 1, column 4: 'f16' is not a dtype of Core IR; they are i32, i64, "
    "f32, f64",
    X + "x @ x": "E3003 at line 1, column 17: the inner sizes of [2, 3] and [2, 3] differ: 3 and 2 "
    "(transpose the second operand: [3, 2] fits)",
    X + "y: f64; x + y": "E2004 at line 1, column 25: the operands of Add have dtypes f32 and f64 "
    "(Core IR has no casts: declare both with one dtype)",
    X + "sum(x)": "E0101 at line 1, column 15: Sum needs the attribute 'axes', a list of whole "
    "numbers of 64 bits",
    X + "sum(x, [0], true, 1)": "E0101 at line 1, column 33: sum takes no more attributes; "
    "expected ')' but found '1'",
    X + "sum(x, axes=[0], axes=[1])": "E0101 at line 1, column 32: the attribute 'axes' is given "
    "twice",
    X + "add(x)": "E0101 at line 1, column 20: expected ',' but found ')'",
    X + "x / x": "E0102 at line 1, column 17: Div is not part of Core v1 but of the extension "
    "'div' (make the module with extensions=['div'])",
    X
    + "x[-1]": "E0101 at line 1, column 17: positions count from the start; they are not negative",
    X
    + "x[5]": "E3003 at line 1, column 16: position 5 is outside axis 0 of size 2 (the last is 1)",
    X + "x[0, 0, 0]": "E4006 at line 1, column 16: 3 subscripts for [2, 3] (at most 2)",
    X + "x[]": "E0101 at line 1, column 17: expected a value but found ']'",
    X + "x[0:1:1:1]": "E0101 at line 1, column 22: expected ',' but found ':'",
    "[[1, 2], [3]]": "E3010 at line 1, column 1: the rows of the literal differ in length or depth "
    "(write i64 numbers, in rows of one length)",
}


@pytest.mark.parametrize("source", WRONG)
def test_rejections(source: str) -> None:
    with pytest.raises(SpecViolation) as error:
        from_expression(source)
    assert str(error.value).startswith(WRONG[source])


def test_unknown_functions() -> None:
    with pytest.raises(SpecViolation) as error:
        from_expression("softmax(1)")
    assert str(error.value).startswith(
        "E0102 at line 1, column 1: there is no function 'softmax' (the functions are const_i64, "
    )


DEEP = 8_000


@pytest.mark.parametrize(
    "source",
    [
        X + "(" * DEEP + "x" + ")" * DEEP,
        X + "-" * DEEP + "x",
        X + "relu(" * DEEP + "x" + ")" * DEEP,
        X + "+".join(["x"] * DEEP),
        "i: i32[1]; " + "i[" * DEEP + "i" + "]" * DEEP,
    ],
)
def test_expressions_may_be_deep(source: str) -> None:
    assert from_expression(source).outputs


@pytest.mark.parametrize(
    "source",
    [
        "(" * DEEP,
        "relu(" * DEEP,
        "[" * DEEP,
        "x[" * DEEP,
        "a=" * DEEP,
        "9" * DEEP,
        "1e" + "9" * DEEP,
        "\u0663",
        "x: f32[" + "9" * 50 + "]; x",
        "x: f32[" + "1, " * 100 + "1]; x + x",
        "reshape(1, [" + "1, " * DEEP + "1])",
    ],
)
def test_hostile_expressions_are_refused(source: str) -> None:
    with pytest.raises(WeftError):
        from_expression(source)


def test_an_expression_is_text() -> None:
    with pytest.raises(UserError, match="an expression is text, not int"):
        from_expression(3)  # type: ignore[arg-type]


def test_results_agree_with_numpy() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    module = from_expression(X + "mean(exp(-x) * x, [1]) - x[:, 0]")
    (found,) = weft.run(module, [x])
    np.testing.assert_allclose(found, np.mean(np.exp(-x) * x, 1) - x[:, 0], rtol=1e-6)
