"""Gradients as modules: what they consist of. Their values are judged in tests/agree."""

from __future__ import annotations

import numpy as np

import weft
from weft.core_ir import canonicalise, dumps, from_expression, gradient, loads, verify


def test_the_gradient_of_a_module_is_a_module() -> None:
    module = gradient(from_expression("x: f32[2]; y: f32[2]; sum(x * y + x, [])"), ["x", "y"])
    assert dumps(module) == (
        "extensions: gradient\n"
        "%0 = Input () {name=x} : tensor<f32[2]>\n"
        "%1 = Input () {name=y} : tensor<f32[2]>\n"
        "%2 = Mul (%0, %1) : tensor<f32[2]>\n"
        "%3 = Add (%0, %2) : tensor<f32[2]>\n"
        "%4 = Sum (%3) {axes=[], keepdims=false} : tensor<f32[]>\n"
        "%5 = ConstF32 () {value=1.0} : tensor<f32[]>\n"
        "%6 = BroadcastTo (%5) {shape=[2]} : tensor<f32[2]>\n"
        "%7 = Mul (%1, %6) : tensor<f32[2]>\n"
        "%8 = Mul (%0, %6) : tensor<f32[2]>\n"
        "%9 = Add (%6, %7) : tensor<f32[2]>\n"
        "outputs: %4, %9, %8\n"
    )
    verify(loads(dumps(module)))
    assert canonicalise(module) == module


def test_outputs_are_those_of_the_module_then_gradients_as_asked() -> None:
    source = from_expression("x: f32; y: f32; i: i32; x * y * y")
    assert len(gradient(source).outputs) == 3
    given = [np.float32(2), np.float32(3), np.int32(0)]
    assert weft.run(gradient(source, ["y", "x"]), given[:2]) == [18, 12, 9]


def test_an_input_that_does_not_matter_has_gradient_zero() -> None:
    source = loads(
        "%0 = Input () {name=x} : tensor<f32[]>\n%1 = Input () {name=y} : tensor<f64[2]>\n"
        "%2 = Exp (%0) : tensor<f32[]>\noutputs: %2"
    )
    found = weft.run(gradient(source, ["y", "x"]), [np.float32(0), np.ones(2)])
    np.testing.assert_array_equal(found[1], np.zeros(2))
    assert found[2] == 1


def test_a_seed_is_an_input_of_its_own() -> None:
    module = gradient(from_expression("x: f32[3]; x * x"), seed="dy")
    assert [op.attributes["name"] for op in module.inputs] == ["x", "dy"]
    assert [op.opcode for op in module.operations[:2]] == ["Input", "Input"]
    x, dy = np.array([1, 2, 3], np.float32), np.array([1, 10, 100], np.float32)
    np.testing.assert_array_equal(weft.run(module, [x, dy])[1], 2 * x * dy)


def test_one_of_several_outputs() -> None:
    source = loads(
        "%0 = Input () {name=x} : tensor<f64[]>\n%1 = Mul (%0, %0) : tensor<f64[]>\n"
        "%2 = Neg (%0) : tensor<f64[]>\noutputs: %1, %2"
    )
    assert weft.run(gradient(source, output=0), [np.float64(3)]) == [9, -3, 6]
    assert weft.run(gradient(source, output=1), [np.float64(3)]) == [9, -3, -1]


def test_the_canonical_form_has_the_same_gradient() -> None:
    source = from_expression("x: f32; d = exp(x); (2.0 + 3.0) * x + d * 0")
    assert gradient(source) == gradient(canonicalise(source))


def test_a_product_with_shared_weights_is_differentiated_as_one() -> None:
    module = gradient(from_expression("x: f32[8, 4, 3]; w: f32[3, 2]; sum(x @ w, [])"), ["w"])
    products = [op.result_type.shape for op in module.operations if op.opcode == "MatMul"]
    assert products == [(8, 4, 2), (3, 2)]
