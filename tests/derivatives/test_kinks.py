"""The table of kinks: what every function gives where it is not smooth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from tests.derivatives.kinks import KINKS, Kink
from tests.support.cases import each, one_in
from weft import functional as F
from weft.ptir import Builder, gradient


def derivatives(kink: Kink, dtype: str) -> list[Any]:
    inputs = [weft.tensor(a, dtype=dtype) for a in kink.at]
    asked = tuple(range(len(inputs)))
    return [np.asarray(g) for g in weft.grad(lambda *x: weft.sum(kink.ours(*x)), asked)(*inputs)]


@each("backend", ["reference", "cpu"])
@each("kink", KINKS)
def test_the_derivative_is_the_one_in_the_table(kink: Kink, backend: str) -> None:
    with weft.graph(backend=backend):
        found = derivatives(kink, "f64")
    for ours, wanted in zip(found, kink.wanted, strict=True):
        np.testing.assert_allclose(ours, np.array(wanted), rtol=1e-9, atol=0)


@pytest.mark.parametrize("dtype", one_in(2, ["f16", "bf16", "f32"]))
@pytest.mark.parametrize("kink", KINKS, ids=lambda kink: f"{kink.name}-{kink.at}")
def test_other_dtypes_have_no_nan_of_their_own(kink: Kink, dtype: str) -> None:
    for ours, wanted in zip(derivatives(kink, dtype), kink.wanted, strict=True):
        far = np.abs(wanted) > 1e4
        assert not np.isnan(ours.astype(np.float64)).any()
        np.testing.assert_allclose(
            np.where(far, 0, ours.astype(np.float64)), np.where(far, 0, wanted), rtol=2e-2, atol=0
        )


def test_a_certain_prediction_through_a_sigmoid_has_a_finite_gradient() -> None:
    def loss(x: Any, y: Any) -> Any:
        return F.binary_cross_entropy(F.sigmoid(x), y)

    x = weft.tensor([17.0, 40.0, -120.0, 17.0], dtype="f32")
    y = weft.tensor([1.0, 1.0, 0.0, 0.0], dtype="f32")
    value, found = weft.value_and_grad(loss)(x, y)
    assert np.isfinite(np.asarray(value))
    assert np.isfinite(np.asarray(found)).all()


def test_the_second_derivative_of_a_cross_entropy_is_finite_at_the_ends() -> None:
    def slope(x: Any) -> Any:
        y = weft.tensor([0.0, 1.0, 1.0], dtype="f64")
        return weft.sum(weft.grad(lambda p: F.binary_cross_entropy(p, y, "sum"))(x))

    found = np.asarray(weft.grad(slope)(weft.tensor([0.0, 1.0, 0.5], dtype="f64")))
    np.testing.assert_allclose(found, [1e12, 1e12, 4.0])


def test_the_value_of_arg_max_has_the_gradient_at_the_index_it_names() -> None:
    for last, wanted in ((False, [0.0, 1.0, 0.0, 0.0]), (True, [0.0, 0.0, 0.0, 1.0])):
        for name, sign in (("byteir.arg_max", 1.0), ("byteir.arg_min", -1.0)):
            b = Builder()
            x = b.param("f64", [2, 4])
            found = b.emit(name, x, axis=1, select_last_index=last, results=2)
            program = gradient(b.build(b.reduce_sum(found[0], [0])), wrt=0)
            row = np.array([1.0, 3.0, 2.0, 3.0]) * sign
            for backend in ("reference", "cpu"):
                got = weft.run(program, [np.stack([row, row])], backend=backend)[1]
                np.testing.assert_array_equal(got, [wanted, wanted])


@pytest.mark.parametrize("name", ["byteir.layer_norm", "byteir.l2_norm"])
def test_a_norm_with_its_epsilon_outside_is_finite_for_constants(name: str) -> None:
    b = Builder()
    x = b.param("f64", [3])
    parameters = [b.full([3], 1.0, "f64")] * 2 if name == "byteir.layer_norm" else []
    y = b.emit(name, x, *parameters, epsilon=1e-3, axis=[0], eps_outside_sqrt=True)
    program = gradient(b.build(b.reduce_sum(y * b.literal([1.0, 2.0, 3.0], "f64"), [0])), wrt=0)
    (_, found) = weft.run(program, [np.zeros(3)], backend="reference")
    assert np.isfinite(found).all()


def test_bounds_that_cross_give_the_upper_one() -> None:
    for dtype in ("f32", "si32"):
        x = weft.tensor([-1, 1, 5], dtype=dtype)
        np.testing.assert_array_equal(np.asarray(weft.clip(x, 3, 0)), [0, 0, 0])
        np.testing.assert_array_equal(np.asarray(weft.clip(x, weft.full_like(x, 3), 0)), [0, 0, 0])
    assert np.isnan(np.asarray(weft.clip(weft.tensor([1.0]), weft.tensor([np.nan]), 2.0)))


def test_the_positions_in_a_scalar_are_as_numpy_has_them() -> None:
    for number in (0.0, 3.0):
        wanted = np.argwhere(np.array(number))
        assert np.asarray(weft.argwhere(weft.tensor(number))).shape == wanted.shape
