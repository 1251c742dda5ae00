"""Layers that are functions with settings, recurrent layers, and lists and dicts of modules. What
they compute is compared with torch's in tests/torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from tests.support.draws import generator
from weft import functional as F
from weft import nn
from weft.foundation.errors import SpecViolation, UserError

RNG = generator()
X = RNG.standard_normal((6, 2, 3)).astype(np.float32)


def test_a_function_with_its_settings_is_a_layer() -> None:
    layer = nn.Softmax(axis=0)
    np.testing.assert_array_equal(layer(X).numpy(), F.softmax(weft.asarray(X), axis=0).numpy())
    assert repr(layer) == "Softmax(axis=0)"
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.LeakyReLU(0.1))
    call = weft.jit(lambda m, x: m(x))
    np.testing.assert_array_equal(call(model, X).numpy(), model(weft.asarray(X)).numpy())
    assert nn.MaxPool2d([2, 2]).window == (2, 2)  # type: ignore[attr-defined]


def test_modules_in_plain_lists_and_dicts() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            self.blocks = nn.ModuleList([nn.Linear(3, 3) for _ in range(2)])
            self.heads = nn.ModuleDict({"a": nn.Linear(3, 1)})
            self.none: list[nn.Module] = nn.ModuleList()

        def __call__(self, x: Any) -> Any:
            for block in [*self.blocks, *self.none]:
                x = block(x)
            return self.heads["a"](x)

    model = Model()
    assert type(model.blocks) is list
    assert list(model.state_dict()) == [
        "blocks.0.weight", "blocks.0.bias", "blocks.1.weight", "blocks.1.bias", "heads.a.weight",
        "heads.a.bias",
    ]  # fmt: skip
    assert weft.jit(lambda m, x: m(x))(model, X).shape == (6, 2, 1)


def test_a_sequence_hands_on_training_and_keys() -> None:
    class Noted(nn.Module):
        """Says what it was told."""

        told: tuple[Any, ...] = ()

        def __call__(self, x: Any, *, training: bool | None = None, key: Any = None) -> Any:
            object.__setattr__(self, "told", (training, key))
            return x

    first: Any = Noted()
    second: Any = Noted()
    nn.Sequential(first, F.relu, second)(weft.asarray(X), training=True, key=(3, 0))
    assert first.told == (True, nn.fold_in((3, 0), 0))
    assert second.told == (True, nn.fold_in((3, 0), 2))
    nn.Sequential(first)(weft.asarray(X))
    assert first.told == (None, None)


def test_dropout_lies_between_recurrent_layers() -> None:
    layer = nn.GRU(3, 8, 2, dropout=0.5)
    same, _ = layer(X)
    found, _ = layer(X, key=(1, 0))
    assert (found.numpy() != same.numpy()).any()
    with nn.training((1, 0)):
        assert (layer(X)[0].numpy() != same.numpy()).any()
    np.testing.assert_array_equal(nn.GRU(3, 8, dropout=0.5)(X)[0].shape, (6, 2, 8))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: nn.Softmax(dim=1), UserError, r"\[Softmax\] .*it takes axis; dim is called axis"),
        (lambda: nn.ReLU(3), UserError, r"\[ReLU\] too many positional arguments; it takes nothin"),
        (lambda: nn.MaxPool2d(), UserError, r"\[MaxPool2d\] missing a required argument: 'window'"),
        (lambda: nn.LSTM(3, 0), UserError, r"\[LSTM\] hidden is 0; it must be a whole number"),
        (lambda: nn.RNN(3, 4, nonlinearity="x"), UserError, "it must be 'tanh' or 'relu'"),
        (
            lambda: nn.LSTM(3, 4)(weft.ones((2, 5))),
            SpecViolation,
            r"x is f32\[2, 5\], but LSTM takes 3 features of two or three axes",
        ),
        (
            lambda: nn.GRU(3, 4)(X, weft.ones((1, 3, 4))),
            SpecViolation,
            r"a state of shape \(1, 3, 4\) is given, but \(1, 2, 4\) is wanted",
        ),
        (lambda: nn.Embedding(3, 2, 3), UserError, "padding_idx is 3; there are 3 rows"),
        (lambda: nn.ConvTranspose2d(3, 2, 3, groups=2), UserError, "3 inputs, 2 outputs and 2 gro"),
        (lambda: nn.PReLU(0), UserError, r"\[PReLU\] channels is 0"),
    ],
)
def test_wrong_settings_are_told(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
