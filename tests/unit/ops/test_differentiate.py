"""Derivatives and batches of Python functions: structure, mistakes, memory. What the rules of the
ops compute is tested in tests/derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.draws import generator
from weft import functional as F
from weft.foundation.errors import SpecViolation, UserError
from weft.ptir.passes import kept_bytes
from weft.ptir.types import leaves

Array = NDArray[Any]
RNG = generator()


def numbers(*shape: int) -> Array:
    return RNG.standard_normal(shape)


def differences(function: Callable[[Array], float], x: Array, step: float = 1e-6) -> Array:
    """The gradient by central differences."""
    found = np.zeros_like(x)
    for index in np.ndindex(*x.shape):
        moved = np.zeros_like(x)
        moved[index] = step
        found[index] = (function(x + moved) - function(x - moved)) / (2 * step)
    return found


# -- gradients -----------------------------------------------------------------------------------


def test_gradients_are_nested_as_the_arguments_are() -> None:
    w, b, x = numbers(3, 2), numbers(2), numbers(4, 3)

    def loss(params: dict[str, Any], x: Any, *, power: int) -> Any:
        return weft.sum((x @ params["layer"][0] + params["layer"][1]) ** power)

    value, found = weft.value_and_grad(loss)({"layer": (w, b)}, x, power=2)
    residual = 2 * (x @ w + b)
    np.testing.assert_allclose(value.numpy(), ((x @ w + b) ** 2).sum())
    np.testing.assert_allclose(found["layer"][0].numpy(), x.T @ residual)
    np.testing.assert_allclose(found["layer"][1].numpy(), residual.sum(0))


def test_several_arguments_in_the_order_asked_for() -> None:
    a, b = numbers(3), numbers(3)
    second, first = weft.grad(lambda a, b: weft.sum(a * a * b), argnums=(1, 0))(a, b)
    np.testing.assert_allclose(second.numpy(), a * a)
    np.testing.assert_allclose(first.numpy(), 2 * a * b)


def test_what_is_returned_besides() -> None:
    def loss(x: Any) -> Any:
        return weft.sum(x * x), {"twice": x * 2, "name": "loss"}

    x = numbers(3)
    (value, aux), found = weft.value_and_grad(loss, has_aux=True)(x)
    assert aux["name"] == "loss"
    np.testing.assert_allclose(aux["twice"].numpy(), 2 * x)
    np.testing.assert_allclose(found.numpy(), 2 * x)
    np.testing.assert_allclose(value.numpy(), (x * x).sum())


def test_one_tensor_at_two_places_has_a_gradient_at_each() -> None:
    x = weft.asarray(numbers(3))
    found = weft.grad(lambda p: weft.sum(p[0] * p[1] * p[1]))((x, x))
    np.testing.assert_allclose(found[0].numpy(), x.numpy() ** 2)
    np.testing.assert_allclose(found[1].numpy(), 2 * x.numpy() ** 2)


def test_integers_inside_an_argument_have_zeros() -> None:
    params = {"w": weft.asarray(numbers(3)), "count": weft.asarray(np.array([1, 2, 3]))}
    found = weft.grad(lambda p: weft.sum(p["w"] * p["count"]))(params)
    np.testing.assert_array_equal(found["count"].numpy(), [0, 0, 0])
    np.testing.assert_allclose(found["w"].numpy(), [1.0, 2.0, 3.0])


def test_captured_tensors_are_constants_and_derivatives_nest() -> None:
    c = weft.asarray(numbers(3))
    x = numbers(3)
    first = weft.grad(lambda x: weft.sum(c * x**3))
    second = weft.grad(lambda x: weft.sum(first(x)))
    np.testing.assert_allclose(second(x).numpy(), 6 * c.numpy() * x)
    np.testing.assert_allclose(weft.jit(second)(x).numpy(), 6 * c.numpy() * x)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: weft.grad(lambda x: x * 2)(x), "a gradient is taken of one float scalar"),
        (lambda x: weft.grad(weft.sum, argnums=2)(x), "argnums names argument 2, but sum was"),
        (lambda x: weft.grad(weft.sum)([x, "a"]), "argument 0 contains a str"),
        (lambda x: weft.grad(weft.sum)(np.arange(3)), "argument 0 is si64[3]; derivatives are"),
        (lambda x: weft.grad(weft.sum, has_aux=True)(x), "must return a pair"),
        (lambda x: weft.jvp(weft.sum, (x,), ()), "1 arguments but 0 tangents"),
        (lambda x: weft.jvp(weft.sum, (x,), ([x],)), "the tangents are not nested as the arg"),
        (lambda x: weft.jvp(weft.sum, (x,), (x[:1],)), "the tangent of input 0 is f64[1], not"),
        (lambda x: weft.vjp(weft.exp, x)[1]([x]), "the cotangent is not nested as the result"),
        (lambda x: weft.vjp(weft.exp, x)[1](1.0), "the cotangent of result 0 is f64[], not f64"),
        (lambda x: weft.jacobian(weft.argmax)(x), "a jacobian is between floats of known shapes"),
    ],
)
def test_mistakes_are_told(call: Any, message: str) -> None:
    with pytest.raises((UserError, SpecViolation)) as caught:
        call(numbers(3))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_vjp_and_jvp_are_adjoint() -> None:
    x, w = numbers(4, 3), numbers(3, 2)
    dx, dw, seed = numbers(4, 3), numbers(3, 2), numbers(4, 2)

    def function(x: Any, w: Any) -> Any:
        return {"y": weft.tanh(x @ w), "sign": weft.argmax(x, axis=1)}

    value, tangent = weft.jvp(function, (x, w), (dx, dw))
    same, pullback = weft.vjp(function, x, w)
    by_x, by_w = pullback({"y": seed, "sign": None} | {"sign": np.zeros(4, np.int64)})
    np.testing.assert_array_equal(value["y"].numpy(), same["y"].numpy())
    np.testing.assert_array_equal(tangent["sign"].numpy(), np.zeros(4))
    forward = float((tangent["y"].numpy() * seed).sum())
    backward = float((by_x.numpy() * dx).sum() + (by_w.numpy() * dw).sum())
    assert forward == pytest.approx(backward)


# -- jacobian and vmap ---------------------------------------------------------------------------


def test_the_jacobian_has_the_axes_of_result_and_argument() -> None:
    a, x = numbers(4, 3), numbers(3, 2)
    found = weft.jacobian(lambda x: a @ x)(x)
    expected = np.einsum("ik,jl->ijkl", a, np.eye(2))
    np.testing.assert_allclose(found.numpy(), expected.reshape(4, 2, 3, 2))


def test_the_jacobian_of_nested_results_and_several_arguments() -> None:
    x, y = numbers(3), numbers(3)
    found = weft.jit(weft.jacobian(lambda x, y: {"p": x * y, "s": weft.sum(x * x)}, (0, 1)))(x, y)
    np.testing.assert_allclose(found["p"][0].numpy(), np.diag(y))
    np.testing.assert_allclose(found["p"][1].numpy(), np.diag(x))
    np.testing.assert_allclose(found["s"][0].numpy(), 2 * x)
    np.testing.assert_array_equal(found["s"][1].numpy(), np.zeros(3))


def test_the_jacobian_of_a_gradient_is_the_hessian() -> None:
    x = numbers(3)
    found = weft.jacobian(weft.grad(lambda x: weft.sum(x) ** 3))(x)
    np.testing.assert_allclose(found.numpy(), np.full((3, 3), 6 * x.sum()))


def test_vmap_is_a_loop_over_the_batch() -> None:
    xs, w = numbers(5, 3), numbers(3, 3)

    def one(x: Any, w: Any) -> Any:
        return weft.exp(w @ x) / weft.sum(weft.exp(w @ x))

    found = weft.vmap(one, in_axes=(0, None))(xs, w)
    np.testing.assert_allclose(found.numpy(), [one(weft.asarray(x), w).numpy() for x in xs])


def test_vmap_takes_axes_nested_as_the_arguments_and_results() -> None:
    batch = {"x": numbers(3, 5), "y": numbers(5, 2)}
    call = weft.vmap(
        lambda b, c: (b["x"] * c, weft.sum(b["y"])), ({"x": 1, "y": 0}, None), out_axes=(-1, 0)
    )
    scaled, sums = weft.jit(call)(batch, 2.0)
    np.testing.assert_allclose(scaled.numpy(), batch["x"] * 2)
    np.testing.assert_allclose(sums.numpy(), batch["y"].sum(1))


def test_gradients_of_every_example() -> None:
    """vmap of grad, with a captured weight, against one gradient at a time."""
    xs, w = numbers(4, 3), weft.asarray(numbers(3))
    each = weft.grad(lambda w, x: weft.tanh(weft.sum(w * x)))
    found = weft.vmap(lambda x: each(w, x))(xs)
    expected = [(1 - np.tanh(w.numpy() @ x) ** 2) * x for x in xs]
    np.testing.assert_allclose(found.numpy(), expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x: weft.vmap(weft.exp, None)(x),
            r"^\S+ at \S+ \[vmap\] no argument has a batch axis",
        ),
        (
            lambda x: weft.vmap(lambda a, b: a)(x, x[:2]),
            r"\[vmap\] the batch axes .* have different sizes: 2, 3",
        ),
        (lambda x: weft.vmap(weft.exp, (0, 0))(x), "not nested as the arguments are"),
        (lambda x: weft.vmap(weft.exp, ("a",))(x), "in_axes has 'a' where a number or None"),
        (lambda x: weft.vmap(weft.exp)(1.0), "a scalar has no axis 0"),
        (lambda x: weft.vmap(weft.exp, out_axes=None)(x), "out_axes cannot be None"),
        (lambda x: weft.vmap(weft.exp, 4)(x), "axis"),
    ],
)
def test_wrong_axes_are_told(call: Any, message: str) -> None:
    with pytest.raises((UserError, SpecViolation), match=message):
        call(numbers(3))


WRONG: Any = (3, "f", None, 0.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: weft.grad(WRONG[0]), r"\[grad\] a function is wanted, not an int"),
        (lambda x: weft.value_and_grad(WRONG[1]), "a function is wanted, not a str"),
        (lambda x: weft.jacobian(WRONG[2]), r"\[jacobian\] a function is wanted, not a NoneType"),
        (lambda x: weft.vmap(x), r"\[vmap\] a function is wanted, not a ndarray"),
        (lambda x: weft.checkpoint(x), r"\[checkpoint\] a function is wanted"),
        (lambda x: weft.vjp(x, x), r"\[vjp\] a function is wanted"),
        (lambda x: weft.jvp(x, (x,), (x,)), r"\[jvp\] a function is wanted"),
        (lambda x: weft.jvp(weft.exp, x, x), "jvp takes a tuple of arguments, not a ndarray"),
        (lambda x: weft.jvp(weft.exp, (x,), x), "jvp takes a tuple of tangents, not a ndarray"),
        (
            lambda x: weft.grad(weft.sum, WRONG[3])(x),
            "argnums is a number or a tuple of numbers, not 0.5",
        ),
        (lambda x: weft.grad(weft.sum, WRONG[1])(x), "a tuple of numbers, not 'f'"),
        (lambda x: weft.grad(weft.sum)(x=x), "argument 0, but sum was called with 0 positional"),
        (lambda x: weft.grad(lambda x: (weft.sum(x), x))(x), "returns a tuple of 2 values, but"),
        (lambda x: weft.grad(lambda x: 3)(x), r"returns si64\[\], but a gradient is taken"),
        (lambda x: weft.grad(lambda x: "loss")(x), "returns 'loss', but a gradient is taken"),
        (lambda x: weft.jacobian(lambda x: 3)(x), r"takes or gives si64\[\]"),
        (lambda x: weft.grad(lambda x: None)(x), "returns nothing, but a gradient is"),
        (lambda x: weft.grad(lambda x: x)(x), r"returns f64\[3\], but a gradient is taken"),
    ],
)
def test_wrong_calls_are_told(call: Any, message: str) -> None:
    with pytest.raises((UserError, SpecViolation), match=message):
        call(numbers(3))


# -- what does not depend on the arguments -------------------------------------------------------

CONSTANTS: Any = {
    "a number": lambda x: 3.0,
    "a NumPy scalar": lambda x: np.float64(3.0),
    "an array": lambda x: np.array(3.0),
    "a tensor": lambda x: weft.asarray(3.0),
    "stopped": lambda x: weft.sum(weft.stop_gradient(x)),
    "detached": lambda x: weft.sum(x.detach()),
    "detached result": lambda x: weft.sum(x).detach(),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_derivatives_of_constants_are_zeros(name: str) -> None:
    f, x = CONSTANTS[name], weft.asarray(np.ones(3))
    value, found = weft.value_and_grad(f)(x)
    assert float(value) == 3
    for zeros in (found, weft.jit(weft.grad(f))(x), weft.jacobian(f)(x)):
        np.testing.assert_array_equal(zeros.numpy(), np.zeros(3))
    own, slope = weft.jvp(f, (x,), (x,))
    assert (float(own), float(slope)) == (3, 0)
    (pulled,) = weft.vjp(f, x)[1](1.0)
    np.testing.assert_array_equal(pulled.numpy(), np.zeros(3))


def test_constants_beside_other_results_have_zeros_too() -> None:
    x = weft.asarray(numbers(3))
    own, slopes = weft.jvp(lambda x: (x * x, 5.0, 7), (x,), (x,))
    np.testing.assert_allclose(slopes[0].numpy(), 2 * x.numpy() ** 2)
    assert [float(y) for y in (*own[1:], *slopes[1:])] == [5, 7, 0, 0]
    rows = weft.jacobian(lambda x: (x * x, np.array([5.0, 6.0])))(x)
    np.testing.assert_allclose(rows[0].numpy(), np.diag(2 * x.numpy()))
    np.testing.assert_array_equal(rows[1].numpy(), np.zeros((2, 3)))
    found, aux = weft.grad(lambda x: (2.0, (x, "kept", 4)), has_aux=True)(x)
    np.testing.assert_array_equal(found.numpy(), np.zeros(3))
    assert aux[1:] == ("kept", 4)


def test_each_value_of_a_batch_has_its_constants() -> None:
    x = weft.asarray(numbers(4, 3))
    same, number, array, name = weft.vmap(lambda x: (x, 2.0, np.arange(2), "name"))(x)
    np.testing.assert_array_equal(same.numpy(), x.numpy())
    np.testing.assert_array_equal(number.numpy(), np.full(4, 2))
    np.testing.assert_array_equal(array.numpy(), np.tile([0, 1], (4, 1)))
    assert name == "name"


def test_a_detached_factor_is_a_constant() -> None:
    x = weft.asarray(numbers(3))
    found = weft.grad(lambda x: weft.sum(x * x.detach()))(x)
    np.testing.assert_array_equal(found.numpy(), x.numpy())
    x.requires_grad = True
    assert not x.detach().requires_grad


# -- memory --------------------------------------------------------------------------------------


def joint(loss: Callable[..., Any], *args: Any) -> Any:
    """The program of value and gradient."""
    return weft.jit(weft.value_and_grad(loss)).program(*args)


def layer(x: Any, w: Any) -> Any:
    return weft.tanh(weft.tanh(x @ w) @ w)


def test_a_checkpoint_keeps_arguments_and_results_only() -> None:
    x, w = numbers(64, 32), numbers(32, 32) / 8

    def through(block: Callable[..., Any]) -> Callable[..., Any]:
        def loss(w: Any) -> Any:
            return weft.sum(block(block(weft.asarray(x), w), w))

        return loss

    plain, less = through(layer), through(weft.checkpoint(layer))
    expected = differences(lambda w: float(plain(weft.asarray(w))), w)
    for loss in (plain, less):
        np.testing.assert_allclose(weft.grad(loss)(w).numpy(), expected, rtol=1e-6, atol=1e-6)
    # Four results of tanh without it; with it only the results of the two blocks.
    assert kept_bytes(joint(plain, w), 1) == 4 * x.nbytes
    assert kept_bytes(joint(less, w), 1) == 2 * x.nbytes


def test_a_checkpoint_outside_of_a_trace_is_the_function() -> None:
    x, w = weft.asarray(numbers(2, 3)), weft.asarray(numbers(3, 3))
    found = weft.checkpoint(layer)(x, w)
    np.testing.assert_array_equal(found.numpy(), layer(x, w).numpy())


def test_cheap_values_are_computed_again() -> None:
    """A chain of cheap functions: nothing of it is worth keeping."""
    x = numbers(1024)

    def loss(x: Any) -> Any:
        y = x * 2.0 + 1.0
        y = y * y + x
        return weft.sum(y * y)

    found = weft.value_and_grad(loss)(x)[1].numpy()
    y = (2 * x + 1) ** 2 + x
    np.testing.assert_allclose(found, 2 * y * (4 * (2 * x + 1) + 1))
    assert kept_bytes(joint(loss, x), 1) == 0


# -- formulas written by hand --------------------------------------------------------------------

B, H, S, D = 2, 2, 48, 8


def by_sum(q: Any, k: Any, v: Any) -> Any:
    scores = weft.matmul(q, k.mT) * D**-0.5
    e = weft.exp(scores - weft.max(scores, axis=-1, keepdims=True))
    return weft.matmul(e / weft.sum(e, axis=-1, keepdims=True), v)


def by_softmax(q: Any, k: Any, v: Any) -> Any:
    return weft.matmul(F.softmax(weft.matmul(q * D**-0.5, k.mT), -1), v)


def by_division(q: Any, k: Any, v: Any) -> Any:
    return weft.matmul(F.softmax(weft.matmul(q, k.mT) / D**0.5, -1), v)


def by_function(q: Any, k: Any, v: Any) -> Any:
    return F.attention(q, k, v)


SPELLINGS = [by_sum, by_softmax, by_division, by_function]


def attention_gradient(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """Of the sum of squares, in plain NumPy."""
    scores = q @ k.swapaxes(-1, -2) * D**-0.5
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    seed = 2 * (p @ v)
    by_p = seed @ v.swapaxes(-1, -2)
    by_scores = p * (by_p - (p * by_p).sum(-1, keepdims=True)) * D**-0.5
    return by_scores @ k, by_scores.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ seed


@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda f: f.__name__)
def test_attention_by_hand_keeps_no_weights(spelling: Callable[..., Any]) -> None:
    inputs = [numbers(B, H, S, D).astype(np.float32) for _ in range(3)]

    def loss(q: Any, k: Any, v: Any) -> Any:
        return weft.sum(spelling(q, k, v) ** 2)

    found = weft.grad(loss, (0, 1, 2))(*inputs)
    expected = attention_gradient(*(a.astype(np.float64) for a in inputs))
    for mine, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine.numpy(), right, rtol=1e-3, atol=1e-4)
    program = weft.jit(weft.value_and_grad(loss, (0, 1, 2))).program(*inputs)
    # The result and one log-sum-exp a row; a matrix of weights would be B * H * S * S.
    assert kept_bytes(program, 1) <= (B * H * S * D + B * H * S) * 4 < B * H * S * S * 4


def test_raising_finds_the_other_formulas_before_gradients() -> None:
    x, w = numbers(4, 8).astype(np.float32), numbers(8).astype(np.float32)

    def norm(x: Any) -> Any:
        centred = x - weft.mean(x, axis=-1, keepdims=True)
        spread = weft.mean(centred * centred, axis=-1, keepdims=True)
        return weft.sum(centred / weft.sqrt(spread + 1e-5) * w)

    def entropy(x: Any) -> Any:
        shifted = x - weft.max(x, axis=-1, keepdims=True)
        logs = shifted - weft.log(weft.sum(weft.exp(shifted), axis=-1, keepdims=True))
        return -weft.mean(logs[:, 0])

    def gelu(x: Any) -> Any:
        return weft.sum(F.gelu(x) * w)

    for loss in (norm, entropy, gelu):
        wide = x.astype(np.float64)
        expected = differences(lambda x, f=loss: float(f(weft.asarray(x))), wide)  # type: ignore[misc]
        np.testing.assert_allclose(weft.grad(loss)(x).numpy(), expected, rtol=2e-3, atol=2e-5)


def test_no_square_of_the_sequence_lies_between_forward_and_backward() -> None:
    """With a mask too: the joint program has no S x S value that its backward part reads."""
    mask = np.triu(np.full((S, S), -np.inf, np.float32), 1)
    inputs = [numbers(B, H, S, D).astype(np.float32) for _ in range(3)]

    def loss(q: Any, k: Any, v: Any) -> Any:
        scores = weft.matmul(q, k.mT) * D**-0.5 + mask
        return weft.sum(weft.matmul(F.softmax(scores, -1), v) ** 2)

    main = weft.jit(weft.value_and_grad(loss, (0, 1, 2))).program(*inputs).main
    needed = {main.result_ids[0]}
    for instruction in reversed(main.body):
        if instruction.id in needed:
            needed.update(instruction.uses)
    types = {i.id: i.output for i in main.body}
    backward = (instruction for instruction in main.body if instruction.id not in needed)
    read = {use for i in backward for use in i.uses} & needed & types.keys()
    kept = [leaf.shape for use in read for leaf in leaves(types[use])]
    assert kept
    assert not [shape for shape in kept if shape.count(S) > 1]
