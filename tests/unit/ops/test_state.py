"""State of modules: what is assigned in a traced function is assigned for the caller."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.draws import generator
from weft import functional as F
from weft import nn, optim
from weft.foundation.errors import UserError

Array = NDArray[Any]
RNG = generator()
X = RNG.standard_normal((8, 3)).astype(np.float32)
TWO = np.float32(2.0)


class Counter(nn.Module):
    """Counts its calls, and scales."""

    buffers = ("seen",)

    def __init__(self) -> None:
        self.scale = weft.asarray(TWO)
        self.seen = weft.asarray(np.float32(0.0))

    def __call__(self, x: Any) -> Any:
        self.seen = self.seen + 1.0
        return x * self.scale


class Pair(nn.Module):
    """Modules in a list, and one with state in it."""

    def __init__(self) -> None:
        self.parts = [nn.Linear(3, 3), Counter()]

    def __call__(self, x: Any) -> Any:
        for part in self.parts:
            x = part(x)
        return x

    @property
    def seen(self) -> float:
        part = self.parts[1]
        assert isinstance(part, Counter)
        return float(part.seen)


def total(model: Any, x: Any) -> Any:
    return weft.sum(model(x))


CALLS: dict[str, Any] = {
    "plain": total,
    "jit": weft.jit(total),
    "grad": weft.grad(total),
    "value_and_grad": weft.value_and_grad(total),
    "jit of grad": weft.jit(weft.grad(total)),
    "grad of jit": weft.grad(weft.jit(total)),
    "checkpoint": weft.jit(weft.grad(weft.checkpoint(total))),
    "vjp": lambda model, x: weft.vjp(total, model, x)[1](weft.asarray(np.float32(1.0))),
    "twice": lambda model, x: weft.grad(lambda m: weft.sum(weft.grad(total)(m, x).parts[0].bias))(
        model
    ),
}


@pytest.mark.parametrize("name", list(CALLS))
def test_an_assignment_is_seen_by_the_caller(name: str) -> None:
    model = Pair()
    for count in range(1, 4):
        CALLS[name](model, weft.asarray(X))
        assert model.seen == count


def test_a_forward_derivative_carries_state() -> None:
    model = Counter()
    _, moved = weft.jvp(lambda m: m(weft.asarray(X)), (model,), (model.map(weft.ones_like),))
    assert float(model.seen) == 1
    np.testing.assert_allclose(moved.numpy(), X, rtol=1e-6)


def test_the_pullback_of_a_function_with_state() -> None:
    model = Counter()
    value, pullback = weft.vjp(lambda m, x: m(x), model, weft.asarray(X))
    slopes, _ = pullback(weft.ones_like(value))
    assert float(slopes.scale) == pytest.approx(float(X.sum()), rel=1e-5)


def test_batch_norm_moves_the_same_with_and_without_jit() -> None:
    def loss(model: Any, x: Any) -> Any:
        with nn.training():
            return weft.sum(model(x) ** 2)

    plain, compiled = nn.BatchNorm(3), nn.BatchNorm(3)
    step = weft.jit(weft.value_and_grad(loss))
    for count in range(3):
        x = weft.asarray(X * (count + 1.0))
        (one, slopes), (other, compared) = weft.value_and_grad(loss)(plain, x), step(compiled, x)
        assert float(one) == pytest.approx(float(other), rel=1e-5)
        for name in plain.state_dict():
            found = compiled.state_dict()[name].numpy()
            np.testing.assert_allclose(found, plain.state_dict()[name].numpy(), rtol=1e-5)
            found = compared.state_dict()[name].numpy()
            np.testing.assert_allclose(found, slopes.state_dict()[name].numpy(), atol=1e-5)
    assert len(step.versions) == 1
    assert (plain.running_var.numpy() != 1).all()


def test_a_training_step_threads_no_state() -> None:
    """The step is the one of a model without state; donated memory is written in place."""
    nn.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm(4), F.relu, nn.Linear(4, 2))
    optimiser = optim.SGD(0.1)
    state: Any = optimiser.init(model)

    def update(model: Any, state: Any, x: Any, y: Any) -> Any:
        with nn.training():
            loss, slopes = weft.value_and_grad(lambda m: F.cross_entropy(m(x), y))(model)
        model, state = optimiser.update(slopes, state, model)
        return model, state, loss

    step = weft.jit(update, donate=("model", "state"))
    y = np.arange(8, dtype=np.int32) % 2
    expected = np.zeros(4)
    for _ in range(3):
        hidden = X @ model[0].weight.numpy().T + model[0].bias.numpy()
        expected = 0.9 * expected + 0.1 * hidden.mean(0)
        model, state, _ = step(model, state, X, y)
        np.testing.assert_allclose(model[1].running_mean.numpy(), expected, rtol=1e-4, atol=1e-6)
    assert len(step.versions) == 1


def test_what_is_returned_and_carried_is_one_value() -> None:
    """A later call that is given the returned one as its own cannot change the caller's."""
    model = Counter()

    def call(model: Any) -> Any:
        model(weft.asarray(X))
        return model

    again = weft.jit(call)(model)
    assert float(model.seen) == float(again.seen) == 1
    weft.jit(call, donate="model")(again)
    with pytest.raises(UserError, match="was donated"):
        model.seen.numpy()


def test_a_method_under_jit_carries_state() -> None:
    class Own(Counter):
        @weft.jit
        def __call__(self, x: Any) -> Any:
            self.seen = self.seen + 1.0
            return x * self.scale

    model = Own()
    model(X)
    model(X)
    assert float(model.seen) == 2


def test_an_assignment_to_elements_is_state_too() -> None:
    class Written(nn.Module):
        def __init__(self) -> None:
            self.row = weft.zeros((3,))

        def __call__(self, x: Any) -> Any:
            self.row[1] = weft.sum(x)
            return x

    model = Written()
    weft.jit(lambda m, x: m(x))(model, weft.ones((2,)))
    np.testing.assert_array_equal(model.row.numpy(), [0, 2, 0])


# -- what cannot be carried is told --------------------------------------------------------------


class Caches(nn.Module):
    """Tensors in lists, dicts and tuples of a module, each assigned to in its own way."""

    def __init__(self) -> None:
        self.keys = [weft.zeros((2,)), weft.zeros((2,))]
        self.named = {"b": weft.zeros((2,)), "a": weft.zeros((2,))}
        self.pair = (weft.zeros((2,)), weft.zeros((2,)))
        self.deep = [{"x": [weft.zeros((2,))]}]

    def __call__(self, x: Any) -> Any:
        self.keys[1] = self.keys[1] + x
        self.keys = [self.keys[0] + 2.0, self.keys[1]]
        self.named["a"] += 3.0 * x
        self.pair = (self.pair[0], self.pair[1] + 4.0 * x)
        self.deep[0]["x"][0] = self.deep[0]["x"][0] + 5.0 * x
        return weft.sum(self.keys[1] + self.named["a"] + self.pair[1] + self.deep[0]["x"][0])

    def numbers(self) -> list[list[float]]:
        leaves = [*self.keys, *self.named.values(), *self.pair, self.deep[0]["x"][0]]
        return [leaf.tolist() for leaf in leaves]


@pytest.mark.parametrize("name", [name for name in CALLS if name != "twice"])
def test_items_of_lists_dicts_and_tuples_are_state(name: str) -> None:
    x = weft.asarray([1.0, 2.0])
    model, plain = Caches(), Caches()
    for _ in range(3):
        CALLS[name](model, x)
        plain(x)
    assert model.numbers() == plain.numbers()


def test_items_that_are_state_are_told_where_nobody_carries_them() -> None:
    rows, model = weft.ones((3, 2)), Caches()
    with pytest.raises(
        UserError, match=r"\[vmap\] the function assigns to the attribute named\['a'\]"
    ):
        weft.vmap(lambda m, row: m(row), in_axes=(None, 0))(model, rows)
    with pytest.raises(
        UserError, match=r"\[on_true\] assigns to the attribute named\['a'\] of a Cach"
    ):
        weft.cond(True, lambda m: m(rows[0]), lambda m: weft.sum(rows), model)
    with pytest.raises(UserError, match="appears twice in the arguments"):
        weft.jit(lambda a, b, x: a(x) + b(x))(model, model, rows[0])
    last, _ = weft.scan(lambda m, row: (m, m(row)), model, rows)
    assert last.keys[1].tolist() == [3.0, 3.0]


def test_a_captured_module_is_told_and_left_as_it_was() -> None:
    model = Counter()
    with pytest.raises(UserError, match="give it the module as an argument") as caught:
        weft.jit(lambda x: model(x))(X)
    assert caught.value.code == "CapturedStateChanged"
    assert float(model.seen) == 0
    with pytest.raises(weft.WeftError):
        weft.jit(lambda x: model(x) @ weft.ones((7, 7)))(X)
    assert float(model.seen) == 0


def test_a_batch_of_states_is_told() -> None:
    with pytest.raises(UserError, match=r"StateLost.*a state of its own"):
        weft.vmap(lambda m, x: m(x), in_axes=(None, 0))(Counter(), X)
    with pytest.raises(UserError, match=r"\[jacobian\] the function assigns to the attribute seen"):
        weft.jacobian(lambda m: m(weft.asarray(X)))(Counter())


def test_state_inside_control_flow_is_returned_or_told() -> None:
    model = Counter()
    with pytest.raises(UserError, match=r"\[on_true\] assigns to the attribute seen of a Counter"):
        weft.cond(True, lambda m: m(weft.asarray(X)), lambda m: weft.asarray(X), model)

    def body(model: Any, x: Any) -> Any:
        return model, weft.sum(model(x))

    last, _ = weft.scan(body, model, weft.asarray(X))
    assert float(last.seen) == 8
    with pytest.raises(UserError, match=r"\[body\] assigns to the attribute seen of a Counter"):
        weft.scan(lambda m, x: (copy.copy(m), m(x)) and (Counter(), x), model, weft.asarray(X))


def test_a_module_with_state_stands_at_one_place() -> None:
    shared = Counter()
    with pytest.raises(UserError, match="appears twice in the arguments"):
        weft.jit(lambda a, b, x: a(b(x)))(shared, shared, X)


# -- training ------------------------------------------------------------------------------------


def test_a_block_says_what_arguments_say_else() -> None:
    model = nn.Sequential(nn.BatchNorm(3), nn.Dropout(0.5))
    x = weft.asarray(X)
    with nn.training((7, 0)):
        first = model(x).numpy()
    with nn.training((7, 0)):
        np.testing.assert_array_equal(model(x).numpy(), first)
        assert (model(x).numpy() != first).any()  # The second call draws from keys of its own.
        before = model[0].running_mean.numpy()  # type: ignore[attr-defined]
        model[0](x, training=False)
        with nn.training(enabled=False):
            assert not nn.is_training()
            assert (model(x).numpy() != 0).all()
        np.testing.assert_array_equal(
            model[0].running_mean.numpy(),  # type: ignore[attr-defined]
            before,
        )
    assert not nn.is_training()
    by_hand = model(x, training=True, key=(7, 0)).numpy()
    assert (by_hand == 0).any()


def test_a_block_around_a_compiled_function_is_a_version_of_its_own() -> None:
    model = nn.BatchNorm(3)
    call = weft.jit(lambda m, x: m(x))
    call(model, X)
    with nn.training():
        call(model, X)
    assert len(call.versions) == 2
    assert "it is in training" in weft.explain(call)
    with nn.training((1, 0)), pytest.raises(UserError, match="open it inside"):
        call(model, X)


def test_a_key_is_not_drawn_from_where_it_would_be_the_same_every_time() -> None:
    drop = nn.Dropout(0.5)
    with nn.training((1, 0)):
        with pytest.raises(UserError, match=r"\[Dropout\] draws random numbers inside the body of"):
            weft.scan(lambda c, x: (c, drop(x)), weft.asarray(0.0), weft.asarray(X))
        with pytest.raises(UserError, match=r"inside vmap, which is traced once"):
            weft.vmap(drop)(weft.asarray(X))


def test_keys_of_the_random_module_are_keys_of_layers() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))
    x = weft.asarray(np.ones((32, 32), np.float32))
    key = weft.random.key(3)
    with nn.training(key):
        plain = model(x).numpy()
    assert (plain != 0).mean() == pytest.approx(0.25, abs=0.06)

    def call(model: Any, x: Any, key: Any) -> Any:
        with nn.training(key):
            return model(x)

    np.testing.assert_array_equal(weft.jit(call)(model, x, key).numpy(), plain)
    np.testing.assert_array_equal(model(x, key=key).numpy(), plain)
    with pytest.raises(UserError, match=r"\[training\] key is f32\[32, 32\]; make one with"):
        nn.training(x)


# -- spectral norm -------------------------------------------------------------------------------


def test_the_spectral_norm_is_one() -> None:
    nn.manual_seed(1)
    layer = nn.SpectralNorm(nn.Linear(3, 5, bias=False))

    def loss(m: Any, x: Any) -> Any:
        with nn.training():
            return weft.sum(m(x) ** 2)

    step = weft.jit(weft.grad(loss))
    for _ in range(20):
        slopes = step(layer, X)
    weight = layer.layer.weight.numpy()  # type: ignore[attr-defined]
    largest = np.linalg.svd(weight.astype(np.float64))[1][0]
    np.testing.assert_allclose(layer(X).numpy(), X @ weight.T / largest, rtol=1e-4, atol=1e-6)
    assert np.abs(slopes.layer.weight.numpy()).max() > 0
    np.testing.assert_array_equal(slopes.left.numpy(), np.zeros(5))
    assert len(optim.SGD(0.1, 0.9).init(layer)["velocity"]) == 1


def test_a_layer_without_a_weight_has_no_spectral_norm() -> None:
    with pytest.raises(
        UserError, match=r"weight of a LayerNorm is not a tensor of two axes or more"
    ):
        nn.SpectralNorm(nn.LayerNorm(3))


@pytest.mark.parametrize("name", ["cache", "later"])
def test_a_module_that_was_given_something_new_has_it_no_more(name: str) -> None:
    """Neither an attribute that was not there, nor one that was None."""
    layer: Any = nn.Linear(2, 2)
    layer.later = None
    names = set(vars(layer))
    with pytest.raises(UserError, match=f"the attribute {name} of a Linear"):
        weft.jit(lambda x: setattr(layer, name, x * 2))(weft.ones(2))
    assert set(vars(layer)) == names
    assert layer.later is None
    assert layer(weft.ones((1, 2))).shape == (1, 2)


def test_a_tensor_of_another_library_is_told_by_its_library() -> None:
    class Tensor:
        __module__ = "torch"

    with pytest.raises(UserError, match=r"x must be a tensor, not torch.Tensor; make one with"):
        nn.Linear(2, 2)(Tensor())  # type: ignore[arg-type]
