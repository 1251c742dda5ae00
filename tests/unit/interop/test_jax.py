"""Functions of JAX in Weft, and programs of Weft in JAX: values and gradients are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft.foundation.errors import UserError

jax = pytest.importorskip("jax", reason="the extra weft[jax] is not installed")

from weft.jax import from_function, to_function  # noqa: E402


def drawn(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


X = drawn(1, 3, 4)
PARAMS = {"w": drawn(2, 4, 8), "b": drawn(3, 8)}


def model(params: Any, x: Any) -> Any:
    return {"y": jax.numpy.tanh(x @ params["w"] + params["b"]), "rows": x.shape[0], "s": x.sum()}


def tensors(params: Any) -> Any:
    return {name: weft.asarray(value) for name, value in params.items()}


def test_a_function_of_jax_gives_its_values_and_nesting() -> None:
    found = from_function(model, PARAMS, X)(tensors(PARAMS), weft.asarray(X))
    wanted = model(PARAMS, X)
    assert set(found) == {"y", "rows", "s"}
    np.testing.assert_allclose(np.asarray(found["y"]), wanted["y"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.asarray(found["s"]), wanted["s"], rtol=1e-5)
    assert int(found["rows"]) == 3


def test_it_is_compiled_and_differentiated_as_any_other() -> None:
    function = from_function(model, PARAMS, X)
    compiled = weft.jit(weft.grad(lambda p, x: (function(p, x)["y"] ** 2).sum()))
    found = compiled(tensors(PARAMS), weft.asarray(X))
    wanted = jax.grad(lambda p, x: (model(p, x)["y"] ** 2).sum())(PARAMS, X)
    for name in PARAMS:
        np.testing.assert_allclose(np.asarray(found[name]), wanted[name], rtol=1e-4, atol=1e-5)


def test_loops_of_jax_are_loops_here() -> None:
    def decay(x: Any) -> Any:
        return jax.lax.scan(lambda s, row: (0.5 * s + row, s), jax.numpy.zeros(4), x)

    last, all_of_them = from_function(decay, X)(weft.asarray(X))
    wanted = decay(X)
    np.testing.assert_allclose(np.asarray(last), wanted[0], rtol=1e-6)
    np.testing.assert_allclose(np.asarray(all_of_them), wanted[1], rtol=1e-6)


def test_other_arguments_than_the_examples_get_a_sentence() -> None:
    function = from_function(model, PARAMS, X)
    with pytest.raises(UserError, match=r"the argument at \[1\] is f32\[2, 4\]; the function was"):
        function(tensors(PARAMS), weft.asarray(X[:2]))
    with pytest.raises(UserError, match="nested as"):
        function(weft.asarray(X))


def test_an_argument_that_the_function_ignores_is_taken() -> None:
    function = from_function(lambda x, unused: x + 1, X, np.int32(3))
    np.testing.assert_array_equal(np.asarray(function(weft.asarray(X), np.int32(3))), X + 1)


def test_a_program_of_weft_runs_inside_jax_with_its_gradients() -> None:
    def pair(a: weft.Tensor, b: weft.Tensor) -> tuple[weft.Tensor, weft.Tensor]:
        return weft.tanh(a @ b), (a * a).sum()

    program = weft.jit(pair).program(weft.asarray(X), weft.asarray(PARAMS["w"]))
    function = to_function(program)
    np.testing.assert_allclose(
        jax.jit(function)(X, PARAMS["w"])[0], np.tanh(X @ PARAMS["w"]), rtol=1e-5, atol=1e-6
    )

    def loss(a: Any, b: Any) -> Any:
        product, squares = function(a, b)
        return (3.0 * product).sum() + squares

    def plain(a: Any, b: Any) -> Any:
        return (3.0 * jax.numpy.tanh(a @ b)).sum() + (a * a).sum()

    found = jax.jit(jax.grad(loss, argnums=(0, 1)))(X, PARAMS["w"])
    wanted = jax.grad(plain, argnums=(0, 1))(X, PARAMS["w"])
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_integers_have_no_gradient_in_jax_either() -> None:
    def chosen(x: weft.Tensor, i: weft.Tensor) -> Any:
        return weft.take(x, i, axis=0).sum()

    places = np.array([2, 0], np.int32)
    function = to_function(weft.jit(chosen).program(weft.asarray(X), weft.asarray(places)))
    found = jax.grad(function)(X, places)
    np.testing.assert_array_equal(found, np.array([[1.0] * 4, [0.0] * 4, [1.0] * 4], np.float32))


def test_what_is_no_program_gets_a_sentence() -> None:
    with pytest.raises(UserError, match="takes a program, not function"):
        to_function(lambda x: x)  # type: ignore[arg-type]
