"""Every rejection of Core IR, word for word.

What the reader and the verifier say stands in core_ir_rejects.txt, one block for each module; what
gradients and runs say stands here.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.support.cases import each
from weft.core_ir import CoreOperation, Module, from_expression, gradient, loads, verify
from weft.foundation.errors import BackendUnavailable, SpecViolation

SOURCE = Path(__file__).with_name("core_ir_rejects.txt").read_text()
BLOCKS = dict(block.split("\n", 1) for block in re.split(r"^== ", SOURCE, flags=re.MULTILINE)[1:])
X = "%0 = Input () {name=x} : tensor<f32[2, 3]>\n"
SCALAR = "%0 = Input () {name=x} : tensor<f32[]>\n"


@each("name", BLOCKS)
def test_modules(name: str) -> None:
    text, messages = re.split(r"^--\n", BLOCKS[name], flags=re.MULTILINE)
    with pytest.raises(SpecViolation) as error:
        verify(loads(text))
    expected = messages.strip().splitlines()
    assert str(error.value) == expected[0]
    if not name.startswith("unreadable"):
        assert [str(finding) for finding in verify(loads(text), collect=True)] == expected


def test_findings_have_an_end() -> None:
    text = "".join(f"%{i} = Neg (%{i}) : tensor<f32[]>\n" for i in range(1500))
    found = verify(loads(text + "outputs: %0"), collect=True)
    assert len(found) == 1001
    assert found[-1].code == "TooManyFindings"


def test_without_a_text_places_are_numbers() -> None:
    operations = (
        CoreOperation.of(0, "Input", (), {"name": "x"}, "f32[2]"),
        CoreOperation.of(1, "Neg", [0], {}, "f32[3]"),
    )
    found = verify(Module(operations, (2,)), collect=True)
    assert [finding.where for finding in found] == ["operation 1: %1 = Neg (%0)", "outputs"]


# -- gradients -----------------------------------------------------------------------------------


def gradient_error(source: str | Module, **options: object) -> str:
    module = from_expression(source, extensions=["div"]) if isinstance(source, str) else source
    with pytest.raises(weft.WeftError) as error:
        gradient(module, **options)  # type: ignore[arg-type]
    return str(error.value)


def test_division_has_no_gradient() -> None:
    assert gradient_error("x: f32; x / 2") == (
        "E5001 at operation 2: %2 = Div (%0, %1): Div has no gradient (multiply by a Reciprocal "
        "instead)"
    )


def test_division_of_what_does_not_matter_needs_none() -> None:
    module = gradient(from_expression("x: f32; y: f32; x + y / 2", extensions=["div"]), ["x"])
    assert module.outputs


def test_a_gradient_that_does_not_verify() -> None:
    wrong = loads(SCALAR + "%1 = Neg (%0) : tensor<f64[]>\noutputs: %1")
    assert gradient_error(wrong, assume_verified=True) == (
        "E5002 at operation 1: %1 = Neg (%0): the gradient module fails verification: E2004 Neg "
        "gives f32, declared is f64 (declare tensor<f32[]>)"
    )
    missing = loads(SCALAR + "%1 = Mul (%0, %2) : tensor<f32[]>\noutputs: %1")
    assert gradient_error(missing, assume_verified=True) == (
        "E5002 at line 2: %1 = Mul (%0, %2): the gradient of Mul cannot be built: E4001 %2 is used "
        "but not defined before"
    )
    assert gradient_error(wrong).startswith("E2004 at line 2")


def test_an_axis_in_a_gradient() -> None:
    wrong = loads(X + "%1 = Sum (%0) {axes=[4]} : tensor<f32[]>\noutputs: %1")
    assert gradient_error(wrong, assume_verified=True) == (
        "E5003 at line 2: %1 = Sum (%0): the gradient of Sum cannot be built: E3004 axis 4 of Sum "
        "is out of range; a tensor of rank 2 has [-2, 2) (did you mean 1, the last axis?)"
    )


def test_shapes_in_gradients() -> None:
    assert gradient_error("x: f32[2, 3]; -x") == (
        "E5004 at outputs: the output %1 has the shape [2, 3]; a gradient begins at a scalar (add "
        "Sum (axes=[]) to it, or name a seed)"
    )
    assert gradient_error("x: f32[2]; x[2:2]", seed="s") == (
        "E5004 at outputs: the output %1 has the shape [0] and no elements (differentiate another "
        "output)"
    )
    assert gradient_error("x: f32[2]; index(x, [7])") == (
        "E5004 at operation 1: %1 = Index (%0): the gradient of Index cannot be built: E3003 1 "
        "elements from 7 in steps of 1 do not fit in the 2 of axis 0 (they go where Slice would "
        "read them)"
    )


def test_inputs_that_are_not_differentiable() -> None:
    source = "x: f32[2]; i: i32[1]; sum(x[i], [])"
    assert gradient_error(source, wrt=["i"]) == (
        "E5005 at operation 1: %1 = Input (): input 'i' is i32, which has no gradient (only f32 "
        "and f64 inputs have gradients)"
    )
    assert gradient_error("x: i32; -x") == (
        "E5005 at outputs: the output %1 is i32, which has no gradient (only f32 and f64 outputs "
        "have gradients)"
    )


def test_wrong_questions_about_gradients() -> None:
    assert gradient_error("x: f32; -x", wrt=["y"]) == (
        "there is no input 'y' to differentiate for; there are x"
    )
    assert gradient_error("x: f32; -x", output=1) == "there is no output 1; the module has 1"
    assert gradient_error("x: f32; -x", seed="x") == (
        "there is an input 'x' already; the seed needs another name"
    )
    two = loads(SCALAR + "outputs: %0, %0")
    assert gradient_error(two) == "the module has 2 outputs; say which one to differentiate"


# -- running -------------------------------------------------------------------------------------


def test_an_index_out_of_range() -> None:
    rows = from_expression("x: f32[3, 2]; i: i32[2]; x[i]")
    given = [np.ones((3, 2), np.float32), np.array([0, 7], np.int32)]
    with pytest.raises(SpecViolation) as error:
        weft.run(rows, given)
    assert str(error.value) == (
        "E6001 at operation 2: %2 = Gather (%0, %1): index 7 at [1] of the indices is outside "
        "[0, 3), the range of axis 0 of x (indices count from 0 and do not wrap)"
    )
    with pytest.raises(SpecViolation, match=r"^E6001"):
        weft.run(rows, given, backend="cpu")


@pytest.mark.parametrize("indices", ["[0, 2]", "[-1, 0]", "[5, 5]"])
def test_a_fixed_index_out_of_range(indices: str) -> None:
    module = from_expression(f"x: f32[3, 2]; index(x, {indices})")
    verify(module)
    with pytest.raises(SpecViolation) as error:
        weft.run(module, [np.ones((3, 2), np.float32)])
    assert (error.value.code, error.value.where) == ("E6001", "operation 1: %1 = Index (%0)")


def test_a_backend_that_is_not_there() -> None:
    with pytest.raises(BackendUnavailable, match=r"E6002: there is no backend 'tpu'; "):
        weft.run(from_expression("1 + 2"), backend="tpu")


def test_every_code_has_its_block() -> None:
    listed = """
        E0101 E0102 E0103 E2004 E2005 E3001 E3002 E3003 E3004 E3005 E3006 E3007 E3008 E3009 E3010
        E4001 E4002 E4003 E4004 E4005 E4006 E4007 E4008 E4009 E4010 E4011
    """
    assert {name.rpartition(" ")[2] for name in BLOCKS} == set(listed.split())
