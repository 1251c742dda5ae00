"""`weft.nn`: modules as containers, and layers against NumPy."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.draws import generator
from weft import functional as F
from weft import nn, optim
from weft.foundation.errors import ResourceExceeded, SpecViolation, UserError
from weft.ops.pytree import flatten, unflatten

Array = NDArray[Any]
RNG = generator()


def numbers(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


class MLP(nn.Module):
    """Settings, a list of modules, a dict and a bare tensor."""

    def __init__(self) -> None:
        self.activation = "relu"
        self.layers = [nn.Linear(3, 4), nn.Linear(4, 2)]
        self.extra = {"scale": weft.asarray(np.float32(2.0))}
        self.sizes = (3, 4, 2)

    def __call__(self, x: Any) -> Any:
        hidden = getattr(F, self.activation)(self.layers[0](x))
        return self.layers[1](hidden) * self.extra["scale"]


# -- modules are containers ----------------------------------------------------------------------


def test_a_module_comes_apart_and_together() -> None:
    model = MLP()
    leaves, structure = flatten(model)
    again = unflatten(structure, leaves)
    assert isinstance(again, MLP)
    assert (again.activation, again.sizes) == ("relu", (3, 4, 2))
    assert list(again.state_dict()) == [
        "layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias", "extra.scale"
    ]  # fmt: skip
    assert repr(model) == "MLP(27 parameters)"
    x = numbers(5, 3)
    np.testing.assert_array_equal(weft.jit(lambda m, x: m(x))(model, x).numpy(), model(x).numpy())


def test_settings_are_part_of_the_structure() -> None:
    call = weft.jit(lambda m, x: m(x))
    model, x = MLP(), numbers(2, 3)
    call(model, x)
    model.activation = "tanh"
    call(model, x)
    assert len(call.versions) == 2


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.ones(2), "is an array of NumPy, of which changes are not seen; make a tensor of it"),
        ([np.ones(2)], "is a list with an array of NumPy"),
        (deque([weft.ones(2)]), "is a deque with a tensor in it, which would not be trained"),
        (SimpleNamespace(layer=nn.Linear(2, 2)), "is a SimpleNamespace with a module in it"),
    ],
)
def test_an_attribute_that_is_no_setting_is_told(value: Any, message: str) -> None:
    model = MLP()
    model.sizes = value
    with pytest.raises(UserError, match=f"the attribute sizes of MLP {message}"):
        flatten(model)


def test_a_state_goes_into_a_module_of_its_shape_only() -> None:
    first, second = MLP(), MLP()
    x = numbers(2, 3)
    same = second.with_state(first.state_dict())
    np.testing.assert_array_equal(same(x).numpy(), first(x).numpy())
    state = first.state_dict()
    odd = state.pop("extra.scale")
    with pytest.raises(UserError, match=r"missing extra\.scale; unknown other"):
        second.with_state(state | {"other": odd})
    np.testing.assert_array_equal(
        second.with_state(state, strict=False)(x).numpy(), first(x).numpy()
    )
    with pytest.raises(SpecViolation, match=r"layers\.0\.bias is f32\[\], but the module has"):
        second.with_state(state | {"layers.0.bias": odd}, strict=False)
    with pytest.raises(UserError, match=r"layers\.0\.bias is an int, not a tensor"):
        second.with_state(state | {"layers.0.bias": 3}, strict=False)
    with pytest.raises(UserError, match=r"bias is NumPy's ndarray, not a tensor; .*weft\.asarray"):
        second.with_state(state | {"layers.0.bias": np.ones(4)}, strict=False)
    kind = type("Parameter", (), {"__module__": "torch.nn", "__dlpack__": None})
    with pytest.raises(UserError, match=r"is a torch\.Parameter; take .*weft\.torch\.from_tensor"):
        second.with_state(state | {"layers.0.bias": kind()}, strict=False)


def test_map_makes_another_module() -> None:
    half = MLP().map(lambda x: x.astype("f16"))
    assert {x.dtype for x in half.parameters()} == {weft.float16}


def test_first_values_are_the_same_after_the_same_seed() -> None:
    nn.manual_seed(3)
    first = nn.Linear(4, 4).weight.numpy()
    nn.manual_seed(3)
    np.testing.assert_array_equal(nn.Linear(4, 4).weight.numpy(), first)
    assert np.abs(first).max() <= 0.5


# -- layers --------------------------------------------------------------------------------------


def layer_norm(x: Array, eps: float = 1e-5) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps))


def conv2d(x: Array, w: Array, b: Array) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))
    return np.asarray(np.einsum("nchwij,ocij->nohw", windows, w) + b[:, None, None])


def conv1d(x: Array, w: Array, b: Array) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2,))
    return np.asarray(np.einsum("nchi,oci->noh", windows, w) + b[:, None])


def group_norm(x: Array, groups: int) -> Array:
    parted = x.reshape(x.shape[0], groups, -1)
    return layer_norm(parted).reshape(x.shape)


LAYERS: list[tuple[Callable[[], nn.Module], tuple[int, ...], Callable[[Any, Array], Array]]] = [
    (lambda: nn.Linear(3, 4), (2, 5, 3), lambda m, x: x @ m.weight.numpy().T + m.bias.numpy()),
    (lambda: nn.Linear(3, 4, bias=False), (2, 3), lambda m, x: x @ m.weight.numpy().T),
    (lambda: nn.LayerNorm(6), (2, 6), lambda m, x: layer_norm(x)),
    (
        lambda: nn.RMSNorm(6),
        (2, 6),
        lambda m, x: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6),
    ),
    (lambda: nn.GroupNorm(2, 4), (3, 4, 5), lambda m, x: group_norm(x, 2)),
    (
        lambda: nn.Conv2d(3, 4, 3),
        (2, 3, 6, 5),
        lambda m, x: conv2d(x, m.weight.numpy(), m.bias.numpy()),
    ),
    (
        lambda: nn.Conv1d(3, 4, 3),
        (2, 3, 8),
        lambda m, x: conv1d(x, m.weight.numpy(), m.bias.numpy()),
    ),
    (
        lambda: nn.Sequential(nn.Linear(3, 4), F.relu),
        (2, 3),
        lambda m, x: np.maximum(x @ m[0].weight.numpy().T + m[0].bias.numpy(), 0),
    ),
]


@pytest.mark.parametrize(("make", "shape", "expected"), LAYERS)
def test_a_layer_is_its_formula(make: Any, shape: tuple[int, ...], expected: Any) -> None:
    layer, x = make(), numbers(*shape)
    np.testing.assert_allclose(
        layer(weft.asarray(x)).numpy(), expected(layer, x), rtol=1e-4, atol=1e-5
    )


def test_an_embedding_takes_rows() -> None:
    layer = nn.Embedding(5, 3)
    rows = np.array([[4, 0], [2, 2]], np.int32)
    np.testing.assert_array_equal(layer(weft.asarray(rows)).numpy(), layer.weight.numpy()[rows])


def test_dropout_needs_a_key_and_keeps_the_mean() -> None:
    layer, x = nn.Dropout(0.25), weft.asarray(np.ones((64, 64), np.float32))
    assert layer(x) is x
    first = layer(x, (7, 0)).numpy()
    np.testing.assert_array_equal(layer(x, (7, 0)).numpy(), first)
    assert (layer(x, (8, 0)).numpy() != first).any()
    assert (layer(x, nn.fold_in((7, 0), 0)).numpy() != first).any()
    assert set(np.unique(first)) == {np.float32(0), np.float32(1 / 0.75)}
    assert first.mean() == pytest.approx(1.0, abs=0.05)


def test_every_part_of_a_model_gets_a_key_of_its_own() -> None:
    x = weft.asarray(np.ones((32, 32), np.float32))
    nested = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5), lambda x: x * 1.0))
    kept = nested(x, key=(7, 0)).numpy() != 0
    assert kept.mean() == pytest.approx(0.25, abs=0.06)  # Equal masks would keep a half.
    np.testing.assert_array_equal(nested(x).numpy(), x.numpy())
    folded = {nn.fold_in(nn.fold_in((7, 0), a), b)[1] for a in range(40) for b in range(40)}
    assert len(folded) == 1600
    assert max(folded) < 1 << 63


def test_blocks_in_a_row_drop_differently() -> None:
    weft.nn.manual_seed(0)
    block = nn.TransformerBlock(8, 2, dropout=0.5)
    x = weft.asarray(numbers(2, 5, 8))
    model = nn.Sequential(block, block)
    with_key, without = model(x, key=(3, 0)).numpy(), model(x).numpy()
    np.testing.assert_array_equal(model(x, key=(3, 0)).numpy(), with_key)
    assert (with_key != without).any()
    by_hand = block(block(x, key=nn.fold_in((3, 0), 0)), key=nn.fold_in((3, 0), 1)).numpy()
    np.testing.assert_array_equal(by_hand, with_key)


def test_a_traced_offset_folds_as_a_number_does() -> None:
    x = weft.asarray(np.ones((32, 32), np.float32))
    layer = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))
    step = weft.jit(lambda x, n: layer(x, key=(7, n)))
    np.testing.assert_array_equal(step(x, weft.asarray(5)).numpy(), layer(x, key=(7, 5)).numpy())


# -- batch norm ----------------------------------------------------------------------------------


def test_batch_norm_by_the_batch_and_by_what_was_seen() -> None:
    layer, x = nn.BatchNorm(3), numbers(8, 3, 4) * 2 + 1
    mean, spread = x.mean((0, 2)), x.var((0, 2))
    by_batch = (x - mean[:, None]) / np.sqrt(spread[:, None] + 1e-5)
    found = layer(weft.asarray(x), training=True).numpy()
    np.testing.assert_allclose(found, by_batch, rtol=1e-4, atol=1e-5)
    unbiased = x.var((0, 2), ddof=1)
    np.testing.assert_allclose(layer.running_mean.numpy(), 0.1 * mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(layer.running_var.numpy(), 0.9 + 0.1 * unbiased, rtol=1e-5)
    by_seen = (x - 0.1 * mean[:, None]) / np.sqrt(layer.running_var.numpy()[:, None] + 1e-5)
    np.testing.assert_allclose(layer(weft.asarray(x)).numpy(), by_seen, rtol=1e-4, atol=1e-5)


def by_definition(x: weft.Tensor, weight: weft.Tensor, bias: weft.Tensor) -> Any:
    """A batch norm whose gradient is that of mean and variance."""
    centred = x - weft.mean(x, axis=(0, 2), keepdims=True)
    spread = weft.mean(centred * centred, axis=(0, 2), keepdims=True)
    normal = centred / weft.sqrt(spread + 1e-5)
    return normal * weight.reshape((3, 1)) + bias.reshape((3, 1))


def test_the_gradient_of_batch_norm_is_that_of_its_definition() -> None:
    """The second one and tangents too, and where parameters are absent."""
    x, weight, bias = (weft.asarray(numbers(*shape)) for shape in ((8, 3, 4), (3,), (3,)))

    def rule(x: weft.Tensor, weight: weft.Tensor, bias: weft.Tensor) -> Any:
        return (F.batch_norm(x, None, None, weight, bias) ** 3).sum()

    def plain(x: weft.Tensor, weight: weft.Tensor, bias: weft.Tensor) -> Any:
        return (by_definition(x, weight, bias) ** 3).sum()

    def second(loss: Callable[..., Any]) -> Callable[..., Any]:
        return weft.grad(lambda *given: (weft.grad(loss)(*given) ** 2).sum(), argnums=(0, 1))

    def tangent(loss: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: weft.jvp(loss, given, given)[1:]

    for derived in (lambda loss: weft.grad(loss, argnums=(0, 1, 2)), second, tangent):
        found, wanted = (derived(loss)(x, weight, bias) for loss in (rule, plain))
        for got, right in zip(found, wanted, strict=True):
            scale = float(np.abs(right.numpy()).max())
            np.testing.assert_allclose(got.numpy(), right.numpy(), rtol=1e-3, atol=1e-4 * scale)
    bare = weft.grad(lambda x: (F.batch_norm(x) ** 3).sum())(x)
    ones, zeros = weft.ones((3,)), weft.zeros((3,))
    np.testing.assert_allclose(bare.numpy(), weft.grad(plain)(x, ones, zeros).numpy(), atol=1e-3)


@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 1)])
def test_one_value_a_channel_has_no_unbiased_variance(shape: tuple[int, ...]) -> None:
    layer = nn.BatchNorm(3)
    layer(weft.asarray(numbers(*shape)), training=True)
    np.testing.assert_allclose(layer.running_var.numpy(), np.full(3, 0.9), rtol=1e-6)


def test_running_statistics_are_not_learnt() -> None:
    """Neither by gradients nor by the pull of weight decay."""
    layer, x = nn.BatchNorm(3), weft.asarray(numbers(8, 3))
    optimiser = optim.AdamW(0.1, weight_decay=0.5)
    state = optimiser.init(layer)
    assert len(state["mean"]) == 2
    slopes = weft.grad(lambda m: weft.sum(m(x) ** 2))(layer)
    np.testing.assert_array_equal(slopes.running_mean.numpy(), np.zeros(3))
    after, _ = optimiser.update(slopes, state, layer)
    np.testing.assert_array_equal(after.running_var.numpy(), np.ones(3))
    assert (after.weight.numpy() != 1).all()


# -- attention -----------------------------------------------------------------------------------


@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_attention_in_heads(key_heads: int) -> None:
    layer, x = nn.MultiHeadAttention(8, 4, key_heads=key_heads, causal=True), numbers(2, 5, 8)

    def split(m: Any, heads: int) -> Array:
        y = x @ m.weight.numpy().T + m.bias.numpy()
        return np.asarray(y.reshape(2, 5, heads, 2).swapaxes(1, 2))

    q = split(layer.query, 4)
    k, v = (np.repeat(split(m, key_heads), 4 // key_heads, 1) for m in (layer.key, layer.value))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(2) + np.triu(np.full((5, 5), -np.inf), 1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    joined = (weights @ v).swapaxes(1, 2).reshape(2, 5, 8)
    assert layer.out.bias is not None
    expected = joined @ layer.out.weight.numpy().T + layer.out.bias.numpy()
    np.testing.assert_allclose(layer(weft.asarray(x)).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_a_cache_gives_what_the_whole_sequence_gives() -> None:
    block, x = nn.TransformerBlock(8, 2), numbers(1, 6, 8)
    whole = block(weft.asarray(x)).numpy()
    cache = tuple(weft.zeros((1, 2, 6, 4), dtype="f32") for _ in range(2))
    step = weft.jit(lambda x, mask, cache, at: block(x, mask, cache=cache, position=at))
    for at in range(6):
        mask = np.where(np.arange(6) <= at, 0.0, -np.inf).astype(np.float32)
        found, cache = step(x[:, at : at + 1], mask.reshape(1, 1, 1, 6), cache, np.int32(at))
        np.testing.assert_allclose(found.numpy()[:, 0], whole[:, at], rtol=1e-4, atol=1e-5)
    assert len(step.versions) == 1


def test_heads_that_do_not_divide_are_told() -> None:
    with pytest.raises(UserError, match="the heads must divide the features"):
        nn.MultiHeadAttention(8, 3)


WRONG: Any = "x"


class Silent(nn.Module):
    """A module without `__call__`."""


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: nn.Linear(-3, 4), UserError, "cannot have the shape .*: -3 is not a size"),
        (lambda: nn.Embedding(2, 2.5), UserError, r"2\.5 is not a size"),  # type: ignore[arg-type]
        (lambda: nn.Linear(1 << 30, 1 << 20), ResourceExceeded, "over the limit of"),
        (
            lambda: nn.Dropout(1.5),
            UserError,
            r"\[Dropout\] rate is 1.5; it must be a number from 0",
        ),
        (
            lambda: nn.Linear(2, 2).with_state([1]),  # type: ignore[arg-type]
            UserError,
            "a state is tensors by name, not a list",
        ),
        (lambda: nn.MultiHeadAttention(8, 0), UserError, "8 features, 0 heads and 0 key heads"),
        (lambda: nn.MultiHeadAttention(8, 2, key_heads=0), UserError, "2 heads and 0 key heads"),
        (
            lambda: nn.MultiHeadAttention(8, 2)(weft.ones((5, 8))),
            SpecViolation,
            r"RankMismatch at .*: \[MultiHeadAttention\] x \(5, 8\) has 2 axes, but three are",
        ),
        (
            lambda: nn.MultiHeadAttention(8, 2)(weft.ones((1, 1, 8)), cache=WRONG, position=0),
            UserError,
            "cache is a str; it must be a pair of keys and values",
        ),
        (
            lambda: nn.TransformerBlock(8, 2, activation=WRONG),
            UserError,
            r"\[TransformerBlock\] activation is a str; it must be a module or a function$",
        ),
        (lambda: nn.TransformerBlock(8, 2, hidden=-1), UserError, "-1 is not a size"),
        (
            lambda: nn.Sequential([nn.Linear(2, 2)]),  # type: ignore[arg-type]
            UserError,
            r"layer 0 is a list; it must be a module or a function, and a list of them is given as",
        ),
        (lambda: nn.Conv2d(3, 2, 3, groups=2), UserError, "3 inputs, 2 outputs and 2 groups"),
        (lambda: nn.Conv2d(WRONG, 2, 3), UserError, "they must be whole numbers over 0"),
        (lambda: nn.LayerNorm(2.5), UserError, "2.5 is not a size"),  # type: ignore[arg-type]
        (lambda: nn.manual_seed(WRONG), UserError, r"seed is 'x'; it must be a whole number"),
        (
            lambda: nn.Dropout(0.5)(weft.ones(3), 1),  # type: ignore[arg-type]
            UserError,
            r"\[Dropout\] key is 1; make one with weft",
        ),
        (lambda: Silent()(1), UserError, "Silent does not say what it computes; give it a method"),
    ],
)
def test_wrong_settings_are_told(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
