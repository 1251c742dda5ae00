"""Gradients of Core IR modules agree with finite differences in f64, also those of gradients."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.support.cases import each, one_in
from tests.support.core_modules import random_case
from tests.support.core_oracle import evaluate
from tests.support.one_op import Array
from weft.core_ir import Module, dumps, from_expression, gradient, to_ptir, verify
from weft.ptir.gradient import vjp

STEP = 1e-5
TOLERANCE = 2e-6
FLOATS = ["f64"]

# What each rule must get right: expressions in f64, by name of the rule.
CASES = {
    "add broadcast": "x: f64[2, 3]; y: f64[3]; x + y",
    "add scalar": "x: f64[2, 3]; y: f64; y + x",
    "add ones": "x: f64[2, 1, 3]; y: f64[4, 1]; x + y",
    "add itself": "x: f64[3]; x + x",
    "sub": "x: f64[2, 1]; y: f64[1, 3]; x - y",
    "mul broadcast": "x: f64[2, 1]; y: f64[4, 2, 3]; x * y",
    "mul itself": "x: f64[3]; x * x",
    "sum all": "x: f64[2, 3]; sum(x * x, [])",
    "sum scalar": "x: f64; sum(x, [])",
    "sum axes": "x: f64[2, 3, 4]; sum(x, [2, 0])",
    "sum negative keepdims": "x: f64[2, 3, 4]; sum(x, [-1], true)",
    "mean all": "x: f64[2, 3]; mean(x, [], true)",
    "mean axis": "x: f64[2, 3]; mean(x, [1])",
    "reshape": "x: f64[2, 6]; reshape(x * x, [3, -1])",
    "transpose": "x: f64[2, 3, 4]; transpose(x * x, [2, 0, -2])",
    "expand_dims": "x: f64[2, 3]; expand_dims(x * x, [0, 2, -1])",
    "squeeze": "x: f64[1, 3, 1]; squeeze(x * x, [-1, 0])",
    "index": "x: f64[2, 3]; x[1, 2] * x[0, 0]",
    "index scalar": "x: f64; index(x, []) * x",
    "slice": "x: f64[5, 4]; slice(x * x, [1, -2], [5, 9], [2, 3])",
    "slice empty": "x: f64[5]; sum(x[3:3], []) + sum(x, [])",
    "gather": "x: f64[3, 2]; gather(x * x, i32([[0, 2], [2, 2]]))",
    "gather empty": "x: f64[3, 2]; sum(gather(x, i64([0, 1])[0:0]), []) + sum(x, [])",
    "dot vectors": "x: f64[3]; y: f64[3]; dot(x, y)",
    "dot matrix vector": "x: f64[2, 3]; y: f64[3]; dot(x, y)",
    "dot vector matrix": "x: f64[2]; y: f64[2, 3]; dot(x, y)",
    "dot matrices": "x: f64[2, 3]; y: f64[3, 4]; dot(x, y)",
    "matmul": "x: f64[2, 3]; y: f64[3, 4]; x @ y",
    "matmul batch": "x: f64[5, 2, 3]; y: f64[5, 3, 4]; x @ y",
    "matmul shared weights": "x: f64[5, 6, 2, 3]; y: f64[3, 4]; x @ y",
    "matmul broadcast": "x: f64[5, 1, 2, 3]; y: f64[6, 3, 4]; x @ y",
    "matmul shared input": "x: f64[2, 3]; y: f64[5, 3, 4]; x @ y",
    "matmul nothing": "x: f64[2, 3]; y: f64[3, 4]; x[:, 0:0] @ y[0:0]",
    "conv valid": "x: f64[2, 5, 6, 2]; y: f64[2, 3, 2, 3]; conv2d(x, y)",
    "conv same": "x: f64[1, 5, 6, 2]; y: f64[3, 2, 2, 3]; conv2d(x, y, [2, 3], Same)",
    "conv custom": "x: f64[1, 4, 3, 1]; y: f64[2, 2, 1, 2];"
    "conv2d(x, y, [1, 2], Custom([[1, 0], [2, 1]]))",
    "conv far padding": "x: f64[1, 3, 2, 1]; y: f64[2, 1, 1, 2];"
    "conv2d(x, y, [2, 3], Custom([[5, 6], [4, 0]]))",
    "conv left over": "x: f64[1, 7, 6, 1]; y: f64[2, 3, 1, 2]; conv2d(x, y, [4, 2])",
    "conv point": "x: f64[1, 3, 2, 2]; y: f64[1, 1, 2, 3]; conv2d(x, y)",
    "relu": "x: f64[4]; relu(x * x * x)",
    "neg": "x: f64[3]; -x",
    "exp": "x: f64[3]; exp(x)",
    "log": "x: f64[3]; log(x * x)",
    "used twice": "x: f64[3]; h = exp(x); h * h + sum(h, []) * x",
}


def data(module: Module, seed: int = 0) -> list[Array]:
    """Inputs away from zero, where Relu bends and Log ends."""
    rng = np.random.default_rng(seed)
    found = []
    for op in module.inputs:
        shape = op.result_type.shape
        found.append(np.asarray(rng.uniform(0.3, 1.2, shape) * rng.choice([-1.0, 1.0], shape)))
    return found


def check(module: Module, inputs: list[Array], output: int, seed: int) -> Module:
    """The gradient of an output in a random direction is the slope of the output there."""
    made = gradient(module, output=output, seed=f"seed{len(module.inputs)}")
    verify(made)
    rng = np.random.default_rng(seed)
    kind = module.types[module.outputs[output]]
    weights = np.asarray(rng.standard_normal(kind.shape))
    results = weft.run(made, [*inputs, weights])
    floats = [i for i, op in enumerate(module.inputs) if op.result_type.dtype.is_float]
    gradients = results[len(module.outputs) :]
    assert len(gradients) == len(floats)
    for position, found in zip(floats, gradients, strict=True):
        direction = np.asarray(rng.standard_normal(inputs[position].shape))
        slope = 0.0
        for sign in (1, -1):
            moved = [*inputs]
            moved[position] = inputs[position] + sign * STEP * direction
            value = weft.run(module, moved)[output]
            slope += sign * float(np.sum(value * weights)) / (2 * STEP)
        scale = 1 + float(np.sum(np.abs(found * direction)))
        assert abs(float(np.sum(found * direction)) - slope) <= TOLERANCE * scale
    return made


@each("name", CASES)
def test_every_rule(name: str) -> None:
    module = from_expression(CASES[name])
    inputs = data(module)
    made = check(module, inputs, 0, 1)
    # The gradient module means the same in NumPy, and so do its own gradients.
    given = data(made)
    for found, wanted in zip(weft.run(made, given), evaluate(made, given), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
    for output in range(1, len(made.outputs)):
        check(made, data(made, 2), output, 3)


@pytest.mark.parametrize("seed", one_in(4, range(80)))
def test_random_modules(seed: int) -> None:
    case = random_case(seed, dtypes=FLOATS, smooth=True)
    for output, value in enumerate(case.module.outputs):
        if case.module.types[value].size:
            check(case.module, case.inputs, output, seed)


@each("seed", range(30))
def test_equal_modules_have_equal_gradients(seed: int) -> None:
    first, second = (random_case(seed, dtypes=FLOATS).module for _ in "ab")
    for output, value in enumerate(first.outputs):
        if first.types[value].size:
            made = [gradient(module, output=output, seed="s") for module in (first, second)]
            assert dumps(made[0]) == dumps(made[1])


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 2000, 50))
def test_many_random_modules(first: int) -> None:
    for seed in range(first, first + 50):
        case = random_case(seed, size=20, dtypes=FLOATS, smooth=True)
        if case.module.types[case.module.outputs[0]].size:
            check(case.module, case.inputs, 0, seed)


def agrees_with_ptir(module: Module, inputs: list[Array]) -> None:
    """Both ways give the same gradients: differentiate and lower, or lower and differentiate."""
    wanted = range(len(module.inputs))
    rng = np.random.default_rng(7)
    for output, value in enumerate(module.outputs):
        kind = module.types[value]
        if not kind.size:
            continue
        given = [*inputs, np.asarray(rng.standard_normal(kind.shape))]
        ours = weft.run(gradient(module, output=output, seed="seed"), given)
        theirs = weft.run(vjp(to_ptir(module), wanted, of=output), given)
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(
                a, b, rtol=1e-10, atol=1e-10 * (1 + np.abs(b).max(initial=0))
            )


@each("name", CASES)
def test_ptir_has_the_same_gradient(name: str) -> None:
    module = from_expression(CASES[name])
    agrees_with_ptir(module, data(module))


@each("seed", range(20))
def test_ptir_has_the_same_gradients_of_random_modules(seed: int) -> None:
    case = random_case(seed, dtypes=FLOATS)
    agrees_with_ptir(case.module, case.inputs)


def test_third_derivatives() -> None:
    module = from_expression("x: f64; x * x * x * x")
    for _ in range(3):
        module = gradient(module, ["x"], output=len(module.outputs) - 1)
    assert weft.run(module, [np.float64(2.0)])[-1] == 24 * 2.0


def test_relu_has_gradient_zero_at_zero() -> None:
    module = gradient(from_expression("x: f32[4]; sum(relu(x), [])"))
    given = np.array([-1.0, 0.0, -0.0, 1.0], np.float32)
    np.testing.assert_array_equal(weft.run(module, [given])[1], [0, 0, 0, 1])


def test_duplicate_indices_accumulate() -> None:
    module = gradient(from_expression("x: f32[3]; sum(gather(x, i64([1, 1, 2, 1])), [])"))
    np.testing.assert_array_equal(weft.run(module, [np.ones(3, np.float32)])[1], [0, 3, 1])
