"""Core IR modules agree with what NumPy says they mean, before and after canonicalisation."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.support.cases import each
from tests.support.core_modules import Case, random_case
from tests.support.core_oracle import MEANINGS, evaluate
from tests.support.one_op import Array
from weft.core_ir import INSTRUCTIONS, canonicalise, dumps, from_expression, loads, verify

SEEDS = range(100)
EPSILON = {np.dtype(np.float32): 4e-6, np.dtype(np.float64): 1e-14}


def assert_close(found: Array, wanted: Array, bound: float) -> None:
    """Equal for integers; for floats within what rounding can do to values of that size."""
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    if found.dtype.kind == "i":
        np.testing.assert_array_equal(found, wanted)
    else:
        np.testing.assert_allclose(
            found, wanted, rtol=EPSILON[found.dtype], atol=EPSILON[found.dtype] * max(bound, 1)
        )


def check(case: Case, backend: str = "reference") -> None:
    wanted = evaluate(case.module, case.inputs)
    found = weft.run(case.module, case.inputs, backend=backend)
    for a, b, bound in zip(found, wanted, case.bounds, strict=True):
        assert_close(a, b, bound)


@each("seed", SEEDS)
def test_random_modules_mean_what_numpy_says(seed: int) -> None:
    case = random_case(seed, div=seed % 2 == 0)
    verify(case.module)
    check(case)


@each("seed", SEEDS)
def test_canonicalising_keeps_the_meaning(seed: int) -> None:
    case = random_case(seed, div=seed % 2 == 0)
    canonical = canonicalise(case.module)
    before = weft.run(case.module, case.inputs)
    after = weft.run(canonical, case.inputs)
    for a, b in zip(after, before, strict=True):
        assert a.tobytes() == b.tobytes()
    assert canonicalise(canonical) == canonical
    assert canonicalise(loads(dumps(case.module))) == canonical
    assert len(canonical.inputs) == len(case.module.inputs)


@each("seed", SEEDS)
def test_text_round_trips(seed: int) -> None:
    module = random_case(seed, div=True).module
    text = dumps(module)
    assert loads(text) == module
    assert dumps(loads(text)) == text


def test_random_modules_reach_every_instruction() -> None:
    found = {op.opcode for seed in SEEDS for op in random_case(seed, div=True).module.operations}
    assert found == {o for o, row in INSTRUCTIONS.items() if row.extension != "gradient"}


def test_the_oracle_knows_every_instruction() -> None:
    assert {*MEANINGS, "Input"} == set(INSTRUCTIONS)


@pytest.mark.parametrize("seed", range(12))
def test_the_cpu_backend_agrees(seed: int) -> None:
    check(random_case(seed, size=6), "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 3000, 100))
def test_many_random_modules(first: int) -> None:
    for seed in range(first, first + 100):
        check(random_case(seed, size=20, div=seed % 2 == 0))


# -- what the specification leaves open, each by hand --------------------------------------------


def run(source: str, *inputs: Array) -> Array:
    return weft.run(from_expression(source, extensions=["div", "gradient"]), list(inputs))[0]


def test_integers_wrap() -> None:
    big = np.array([2**63 - 1, -(2**63)])
    one = np.array([1, -1])
    np.testing.assert_array_equal(run("x: i64[2]; y: i64[2]; x + y", big, one), big[::-1])
    np.testing.assert_array_equal(run("x: i64[2]; x * 2", big), [-2, 0])
    np.testing.assert_array_equal(run("x: i64[2]; -x", big), [-(2**63) + 1, -(2**63)])
    assert run("x: i32[2]; sum(x, [])", np.array([2**31 - 1, 1], np.int32)) == -(2**31)
    matrix = np.array([[2**31 - 1, 1]], np.int32)
    assert run("x: i32[1, 2]; x @ transpose(x, [1, 0])", matrix)[0, 0] == 2
    assert run("x: i64[2]; dot(x, x)", big) == 1


def test_an_integer_mean_truncates_toward_zero() -> None:
    assert run("x: i32[2]; mean(x, [])", np.array([-3, 0], np.int32)) == -1
    assert run("x: i64[2]; mean(x, [])", np.array([3, 0])) == 1
    # The sum wraps before it is divided.
    assert run("x: i32[2]; mean(x, [])", np.array([2**31 - 1, 1], np.int32)) == -(2**30)


def test_integer_division_truncates() -> None:
    found = run("x: i32[4]; y: i32[4]; x / y", *np.array([[7, -7, 7, -7], [2, 2, -2, -2]], "i4"))
    np.testing.assert_array_equal(found, [3, -3, -3, 3])
    with pytest.raises(weft.SpecViolation, match="IntegerDivideByZero"):
        run("x: i32[1]; x / 0", np.ones(1, np.int32))


def test_log_of_what_is_not_positive() -> None:
    found = run("x: f64[3]; log(x)", np.array([0.0, -0.0, -1.0]))
    np.testing.assert_array_equal(found, [-np.inf, -np.inf, np.nan])


def test_relu_of_special_values() -> None:
    given = np.array([np.nan, -0.0, np.inf, -np.inf], np.float32)
    found = run("x: f32[4]; relu(x)", given)
    np.testing.assert_array_equal(found, [0, 0, np.inf, 0])
    assert not np.signbit(found).any()


def test_slices_clamp() -> None:
    x = np.arange(5.0)
    np.testing.assert_array_equal(run("x: f64[5]; slice(x, [-3], [2], [1])", x), x[:2])
    np.testing.assert_array_equal(run("x: f64[5]; slice(x, [1], [99], [3])", x), [1, 4])
    assert run("x: f64[5]; slice(x, [3], [1], [1])", x).shape == (0,)
    assert run("x: f64[5]; slice(x, [9], [99], [1])", x).shape == (0,)
    huge = 2**63 - 1
    np.testing.assert_array_equal(run(f"x: f64[5]; slice(x, [0], [{huge}], [{huge}])", x), [0])


def test_empty_tensors_flow() -> None:
    x = np.ones((2, 3))
    empty = "x: f64[2, 3]; e = x[2:2];"
    assert run(f"{empty} e", x).shape == (0, 3)
    assert run(f"{empty} sum(e, [])", x) == 0
    assert np.isnan(run(f"{empty} mean(e, [])", x))
    assert run(f"{empty} e + 1.0", x).shape == (0, 3)
    assert run(f"{empty} reshape(e, [3, -1])", x).shape == (3, 0)
    np.testing.assert_array_equal(run(f"{empty} transpose(e, [1, 0]) @ e", x), np.zeros((3, 3)))
    np.testing.assert_array_equal(run("x: f64[2, 3]; x[:, 1:1] @ x[1:1]", x), np.zeros((2, 3)))


def test_an_empty_batch_is_convolved() -> None:
    x, kernel = np.ones((2, 4, 4, 1), np.float32), np.ones((2, 2, 1, 3), np.float32)
    declared = "x: f32[2, 4, 4, 1]; k: f32[2, 2, 1, 3];"
    assert run(f"{declared} conv2d(x[0:0], k)", x, kernel).shape == (0, 3, 3, 3)
    assert run(f"{declared} conv2d(x[:, 0:0], k, padding=Same)", x, kernel).shape == (2, 0, 4, 3)


def test_a_mean_of_more_elements_than_an_i32_counts() -> None:
    # 2^32 elements are more than an i32 can count; they are never made.
    module = from_expression("x: i32[65536, 65536]; mean(x, [])")
    names = [i.op.mnemonic for i in weft.core_ir.to_ptir(module).main.body]
    assert names == ["reduce_sum", "cast", "div", "cast"]
