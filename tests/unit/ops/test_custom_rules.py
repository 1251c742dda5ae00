"""Functions with derivatives of their own: where the rule is found, and what it is told."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import weft
from weft.foundation.errors import Unimplemented, UserError

X, Y = weft.asarray(0.5), weft.asarray(2.0)
XS = weft.asarray([0.5, 1.0, -2.0])


@weft.custom_vjp
def tenfold(x: Any, y: Any) -> Any:
    """A product whose gradient by x is ten times too large, so that the rule can be seen."""
    return weft.sin(x) * y


def _forward(x: Any, y: Any) -> Any:
    return tenfold(x, y), (weft.cos(x), weft.sin(x), y)


def _backward(kept: Any, g: Any) -> Any:
    cosine, sine, y = kept
    return 10.0 * cosine * y * g, sine * g


tenfold.defvjp(_forward, _backward)


def by_x(x: Any, y: float = 2.0) -> Any:
    return 10 * np.cos(x) * y


def test_the_rule_is_the_gradient_and_the_function_the_value() -> None:
    assert tenfold(X, Y).item() == pytest.approx(np.sin(0.5) * 2)
    value, (dx, dy) = weft.value_and_grad(tenfold, (0, 1))(X, Y)
    assert value.item() == pytest.approx(np.sin(0.5) * 2)
    assert dx.item() == pytest.approx(by_x(0.5))
    assert dy.item() == pytest.approx(np.sin(0.5))
    assert weft.grad(tenfold)(X, y=Y).item() == pytest.approx(by_x(0.5))


def mapped(xs: Any) -> Any:
    return weft.sum(weft.vmap(tenfold, in_axes=(0, None))(xs, Y))


def stepped(xs: Any) -> Any:
    return weft.scan(lambda total, x: (total + tenfold(x, Y), None), weft.asarray(0.0), xs)[0]


def chosen(xs: Any) -> Any:
    total = weft.asarray(0.0)
    for x in xs:
        total = total + weft.cond(x < 9.0, lambda x: tenfold(x, Y), lambda x: x, x)
    return total


WAYS: dict[str, Callable[[Any], Any]] = {
    "grad of vmap": weft.grad(mapped),
    "vmap of grad": weft.vmap(weft.grad(lambda x: tenfold(x, Y))),
    "grad of jit": weft.grad(weft.jit(mapped)),
    "jit of grad": weft.jit(weft.grad(mapped)),
    "vjp": lambda xs: weft.vjp(mapped, xs)[1](weft.asarray(1.0))[0],
    "jacobian": lambda xs: weft.jacobian(mapped)(xs),
    "scan": weft.grad(stepped),
    "cond": weft.grad(chosen),
    "checkpoint": weft.grad(weft.checkpoint(mapped)),
}


@pytest.mark.parametrize("name", WAYS)
def test_the_rule_is_found(name: str) -> None:
    found = WAYS[name](XS).numpy()
    assert found == pytest.approx(by_x(XS.numpy()), rel=1e-5)


def test_forward_mode_has_the_rule_too() -> None:
    slope = weft.jvp(lambda x: tenfold(x, Y), (X,), (weft.asarray(3.0),))[1]
    assert slope.item() == pytest.approx(3 * by_x(0.5))


def test_what_the_rule_computes_is_differentiated_again() -> None:
    second = weft.grad(weft.grad(tenfold))(X, Y)
    assert second.item() == pytest.approx(-20 * np.sin(0.5))
    third = weft.vmap(weft.grad(weft.grad(weft.grad(tenfold))), in_axes=(0, None))(XS, Y)
    assert third.numpy() == pytest.approx(-20 * np.cos(XS.numpy()), rel=1e-5)


def test_a_loop_that_has_no_gradient_gets_one() -> None:
    @weft.custom_vjp
    def root(a: Any) -> Any:
        def far(state: Any) -> Any:
            return weft.abs(state[0] * state[0] - state[1]) > 1e-5

        def nearer(state: Any) -> Any:
            return 0.5 * (state[0] + state[1] / state[0]), state[1]

        return weft.while_loop(far, nearer, (a, a))[0]

    def forward(a: Any) -> Any:
        found = root(a)
        return found, found

    root.defvjp(forward, lambda found, g: (g / (2 * found),))
    assert weft.grad(root)(Y).item() == pytest.approx(0.5 / np.sqrt(2), rel=1e-4)
    assert weft.grad(weft.grad(root))(Y).item() == pytest.approx(-0.25 * 2**-1.5, rel=1e-3)
    assert weft.jit(weft.grad(root))(Y).item() == pytest.approx(0.5 / np.sqrt(2), rel=1e-4)


def test_arguments_that_are_no_tensors() -> None:
    @partial(weft.custom_vjp, nondiff_argnums=(0, 2))
    def applied(function: Any, x: Any, factor: float) -> Any:
        return function(x) * factor

    def forward(function: Any, x: Any, factor: float) -> Any:
        return function(x) * factor, x

    applied.defvjp(forward, lambda function, factor, x, g: (g * x * factor,))
    found = weft.grad(lambda x: applied(weft.sin, x, 3.0))(X)
    assert found.item() == pytest.approx(1.5)


def test_containers_integers_and_absent_cotangents() -> None:
    @weft.custom_vjp
    def weighted(params: Any, x: Any) -> Any:
        return weft.sum(params["w"] * x), params["n"]

    def backward(kept: Any, g: Any) -> Any:
        return {"w": kept * g[0], "n": None, "b": None}, None

    weighted.defvjp(lambda params, x: (weighted(params, x), x), backward)
    params = {"w": weft.ones((2,)), "n": weft.asarray(3), "b": None}

    def loss(params: Any, x: Any) -> Any:
        value, count = weighted(params, x)
        return value * count

    dp, dx = weft.grad(loss, (0, 1))(params, weft.asarray([3.0, 4.0]))
    assert dp["w"].tolist() == [9.0, 12.0]
    assert dp["n"].item() == 0
    assert dx.tolist() == [0.0, 0.0]


def test_a_value_of_the_outside_is_an_argument_or_an_error() -> None:
    def around(w: Any, x: Any) -> Any:
        @weft.custom_vjp
        def inner(x: Any) -> Any:
            return x * w

        inner.defvjp(lambda x: (x * w, None), lambda _, g: (g * w,))
        return inner(x)

    with pytest.raises(Unimplemented, match="make it an argument"):
        weft.grad(around)(Y, X)
    assert weft.grad(around, 1)(Y, X).item() == 2.0


def test_mistakes_in_rules_are_told() -> None:
    @weft.custom_vjp
    def bare(x: Any) -> Any:
        return x * 1.0

    with pytest.raises(UserError, match=r"bare has no rule yet; give it with bare.defvjp"):
        bare(X)
    bare.defvjp(lambda x: x, lambda kept, g: (g,))
    with pytest.raises(UserError, match="the forward rule of bare returns a Tensor"):
        weft.grad(bare)(X)
    wrong: list[tuple[Any, str]] = [
        (lambda kept, g: g, "returns a Tensor; it must return a tuple of 1"),
        (lambda kept, g: (g, g), "returns a tuple of 2; it must return a tuple of 1"),
        (lambda kept, g: (weft.ones(3),), r"gives f32\[3\] for argument 0, which is f32\[\]"),
        (lambda kept, g: ("a",), "gives a str for argument 0"),
        (lambda kept, g: ([g],), "gives a list for argument 0"),
    ]
    for backward, message in wrong:
        bare.defvjp(lambda x: (x * 1.0, None), backward)
        with pytest.raises(UserError, match=message):
            weft.grad(bare)(X)
    with pytest.raises(UserError, match="a function is wanted, not an int"):
        weft.custom_vjp(3)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="nondiff_argnums is 'x'"):
        weft.custom_vjp(bare, "x")  # type: ignore[arg-type]


# -- tangents ------------------------------------------------------------------------------------


@weft.custom_jvp
def power(x: Any, n: Any) -> Any:
    return x**n


@power.defjvp
def _direction(primals: Any, tangents: Any) -> Any:
    (x, n), (dx, _) = primals, tangents
    return power(x, n), 100.0 * dx * x


def test_a_rule_for_tangents_serves_both_modes() -> None:
    assert power(X, 3).item() == 0.125
    assert weft.jvp(lambda x: power(x, 3), (X,), (Y,))[1].item() == pytest.approx(100.0)
    assert weft.grad(power)(X, 3).item() == pytest.approx(50.0)
    assert weft.grad(weft.grad(power))(X, 3).item() == pytest.approx(100.0)
    found = weft.jit(weft.vmap(weft.grad(power), in_axes=(0, None)))(XS, 3)
    assert found.numpy() == pytest.approx(100 * XS.numpy())


def test_a_rule_for_each_argument() -> None:
    @weft.custom_jvp
    def product(x: Any, y: Any) -> Any:
        return x * y

    product.defjvps(lambda dx, result, x, y: 2.0 * dx * y, None)
    dx, dy = weft.grad(product, (0, 1))(X, Y)
    assert (dx.item(), dy.item()) == (4.0, 0.0)


def test_tangent_rules_with_plain_arguments_and_mistakes() -> None:
    @partial(weft.custom_jvp, nondiff_argnums=0)
    def applied(function: Any, x: Any) -> Any:
        return function(x)

    with pytest.raises(UserError, match=r"give it with applied\.defjvp"):
        applied(weft.sin, X)
    applied.defjvp(lambda function, primals, tangents: (function(*primals), 7.0 * tangents[0]))
    assert weft.grad(lambda x: applied(weft.sin, x))(X).item() == 7.0
    applied.defjvp(lambda function, primals, tangents: tangents[0])
    with pytest.raises(UserError, match="the rule of applied returns a Tensor"):
        weft.grad(lambda x: applied(weft.sin, x))(X)


def test_methods_may_have_rules() -> None:
    class Layer:
        factor = 3.0

        @partial(weft.custom_vjp, nondiff_argnums=0)
        def scaled(self, x: Any) -> Any:
            return x * self.factor

    Layer.scaled.defvjp(lambda self, x: (x * self.factor, None), lambda self, _, g: (-g,))
    assert Layer().scaled(X).item() == 1.5
    assert weft.grad(Layer().scaled)(X).item() == -1.0
