"""Layers against PyTorch's: the same state dicts, the same results, the same gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from weft import nn

torch = pytest.importorskip("torch", reason="torch is not installed")
Array = NDArray[Any]


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def with_theirs(mine: Any, theirs: Any) -> Any:
    """The layer with the parameters of torch's, whose names are the same."""
    state = {name: weft.asarray(t.detach().numpy()) for name, t in theirs.state_dict().items()}
    return mine.with_state(state)


RECURRENT: list[tuple[str, dict[str, Any]]] = [
    ("LSTM", {}),
    ("LSTM", {"batch_first": True, "bias": False}),
    ("LSTM", {"bidirectional": True}),
    ("GRU", {}),
    ("GRU", {"bidirectional": True, "batch_first": True}),
    ("RNN", {}),
    ("RNN", {"nonlinearity": "relu"}),
]


@pytest.mark.parametrize(("name", "options"), RECURRENT)
def test_recurrent_layers(name: str, options: dict[str, Any]) -> None:
    """Results, last states and all gradients, of two layers."""
    torch.manual_seed(0)
    theirs = getattr(torch.nn, name)(3, 5, 2, **options)
    mine = with_theirs(getattr(nn, name)(3, 5, 2, **options), theirs)
    assert list(mine.state_dict()) == list(theirs.state_dict())
    x = numbers(7, 4, 3)
    expected, last = theirs(torch.from_numpy(x))
    (expected**2).sum().backward()

    def loss(layer: Any, x: Any) -> Any:
        made, state = layer(x)
        return weft.sum(made**2), (made, state)

    (_, (made, state)), slopes = weft.jit(weft.value_and_grad(loss, has_aux=True))(mine, x)
    np.testing.assert_allclose(made.numpy(), expected.detach().numpy(), rtol=1e-4, atol=1e-6)
    lasts = zip(
        state if isinstance(state, tuple) else (state,),
        last if isinstance(last, tuple) else (last,),
        strict=True,
    )
    for found, wanted in lasts:
        np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), rtol=1e-4, atol=1e-6)
    for key, parameter in theirs.named_parameters():
        found = slopes.state_dict()[key].numpy()
        np.testing.assert_allclose(found, parameter.grad.numpy(), rtol=1e-3, atol=1e-5)


def test_a_recurrent_layer_goes_on_from_a_state_and_without_a_batch() -> None:
    theirs = torch.nn.LSTM(3, 5)
    mine = with_theirs(nn.LSTM(3, 5), theirs)
    x, h, c = numbers(7, 3), numbers(1, 5, seed=1), numbers(1, 5, seed=2)
    wanted, last = theirs(torch.from_numpy(x), (torch.from_numpy(h), torch.from_numpy(c)))
    found, state = mine(x, (h, c))
    np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(state[1].numpy(), last[1].detach().numpy(), rtol=1e-4, atol=1e-6)


LAYERS: list[tuple[Any, Any, tuple[int, ...]]] = [
    (
        lambda: nn.ConvTranspose1d(4, 6, 3, 2, 1, 1, 2),
        lambda t: t.ConvTranspose1d(4, 6, 3, 2, 1, 1, 2),
        (2, 4, 5),
    ),
    (
        lambda: nn.ConvTranspose2d(3, 2, 3, stride=2),
        lambda t: t.ConvTranspose2d(3, 2, 3, stride=2),
        (2, 3, 4, 5),
    ),
    (
        lambda: nn.ConvTranspose3d(2, 2, 2, bias=False),
        lambda t: t.ConvTranspose3d(2, 2, 2, bias=False),
        (1, 2, 3, 3, 3),
    ),
    (lambda: nn.PReLU(3), lambda t: t.PReLU(3), (2, 3, 4)),
    (lambda: nn.PReLU(), lambda t: t.PReLU(), (2, 3, 4)),
    (lambda: nn.Softmax(axis=1), lambda t: t.Softmax(1), (2, 3, 4)),
    (lambda: nn.LogSoftmax(1), lambda t: t.LogSoftmax(1), (2, 3, 4)),
    (lambda: nn.GELU("tanh"), lambda t: t.GELU("tanh"), (2, 3)),
    (lambda: nn.LeakyReLU(0.2), lambda t: t.LeakyReLU(0.2), (2, 3)),
    (lambda: nn.ELU(0.5), lambda t: t.ELU(0.5), (2, 3)),
    (lambda: nn.Softplus(2.0), lambda t: t.Softplus(2.0), (2, 3)),
    (lambda: nn.GLU(1), lambda t: t.GLU(1), (2, 4, 3)),
    (lambda: nn.MaxPool2d(3, 2, 1), lambda t: t.MaxPool2d(3, 2, 1), (2, 3, 7, 6)),
    (lambda: nn.MaxPool1d(2), lambda t: t.MaxPool1d(2), (2, 3, 7)),
    (lambda: nn.AvgPool2d([2, 3]), lambda t: t.AvgPool2d([2, 3]), (2, 3, 7, 6)),
    (lambda: nn.AdaptiveAvgPool2d(1), lambda t: t.AdaptiveAvgPool2d(1), (2, 3, 7, 6)),
    (lambda: nn.AdaptiveMaxPool2d((2, 3)), lambda t: t.AdaptiveMaxPool2d((2, 3)), (2, 3, 4, 6)),
    (lambda: nn.InstanceNorm(3), lambda t: t.InstanceNorm2d(3), (2, 3, 7, 6)),
    (
        lambda: nn.InstanceNorm(3, affine=True), lambda t: t.InstanceNorm1d(3, affine=True),
        (2, 3, 7),
    ),
    (lambda: nn.PixelShuffle(2), lambda t: t.PixelShuffle(2), (2, 8, 3, 4)),
    (lambda: nn.Flatten(), lambda t: t.Flatten(), (2, 3, 4, 5)),
    (lambda: nn.Flatten(0, 1), lambda t: t.Flatten(0, 1), (2, 3, 4, 5)),
    (lambda: nn.Identity(), lambda t: t.Identity(), (2, 3)),
    *[
        (lambda n=n: getattr(nn, n)(), lambda t, n=n: getattr(t, n)(), (2, 5))
        for n in (
            "ReLU", "ReLU6", "SiLU", "Sigmoid", "Tanh", "Hardsigmoid", "Hardswish", "Mish", "SELU",
            "LogSigmoid", "CELU", "Hardtanh", "Softsign",
        )
    ],
]  # fmt: skip


@pytest.mark.parametrize(("make", "make_theirs", "shape"), LAYERS)
def test_layers(make: Any, make_theirs: Any, shape: tuple[int, ...]) -> None:
    theirs, x = make_theirs(torch.nn), numbers(*shape)
    mine = with_theirs(make(), theirs)
    wanted = theirs(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(mine(weft.asarray(x)).numpy(), wanted, rtol=1e-4, atol=1e-5)
    compiled = weft.jit(lambda m, x: m(x))(mine, x)
    np.testing.assert_allclose(compiled.numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_bilinear() -> None:
    theirs = torch.nn.Bilinear(3, 4, 5)
    mine, a, b = with_theirs(nn.Bilinear(3, 4, 5), theirs), numbers(2, 6, 3), numbers(2, 6, 4)
    wanted = theirs(torch.from_numpy(a), torch.from_numpy(b)).detach().numpy()
    found = mine(weft.asarray(a), weft.asarray(b)).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


LOSSES: list[tuple[str, dict[str, Any]]] = [
    ("MSELoss", {}),
    ("L1Loss", {"reduction": "sum"}),
    ("HuberLoss", {"delta": 0.5}),
    ("SmoothL1Loss", {"beta": 0.5}),
    ("BCEWithLogitsLoss", {}),
    ("CrossEntropyLoss", {}),
    ("NLLLoss", {"reduction": "sum"}),
]


@pytest.mark.parametrize(("name", "options"), LOSSES)
def test_losses(name: str, options: dict[str, Any]) -> None:
    x = numbers(4, 3)
    target = np.array([0, 2, 1, 1]) if name in ("CrossEntropyLoss", "NLLLoss") else numbers(4, 3)
    if name == "BCEWithLogitsLoss":
        target = (target > 0).astype(np.float32)
    wanted = getattr(torch.nn, name)(**options)(torch.from_numpy(x), torch.from_numpy(target))
    found = getattr(nn, name)(**options)(weft.asarray(x), weft.asarray(target))
    assert float(found) == pytest.approx(float(wanted), rel=1e-5)


def test_the_row_of_padding_is_not_learnt() -> None:
    theirs = torch.nn.Embedding(5, 3, padding_idx=-2)
    mine = with_theirs(nn.Embedding(5, 3, padding_idx=-2), theirs)
    assert (nn.Embedding(5, 3, padding_idx=1).weight.numpy()[1] == 0).all()
    rows = np.array([[3, 0], [1, 3]])
    (theirs(torch.from_numpy(rows)) ** 2).sum().backward()
    (theirs(torch.from_numpy(rows)) + 1).sum().backward()
    slopes = weft.grad(lambda m: weft.sum(m(rows) ** 2) + weft.sum(m(rows)))(mine)
    np.testing.assert_allclose(slopes.weight.numpy(), theirs.weight.grad.numpy(), rtol=1e-5)
    assert (slopes.weight.numpy()[3] == 0).all()


def test_batch_norm_in_training() -> None:
    theirs = torch.nn.BatchNorm2d(3)
    mine = nn.BatchNorm(3)
    for step in range(3):
        x = numbers(4, 3, 5, 2, seed=step) * 2 + 1
        wanted = theirs(torch.from_numpy(x)).detach().numpy()
        found = mine(weft.asarray(x), training=True).numpy()
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    for name in ("running_mean", "running_var"):
        found, wanted = getattr(mine, name).numpy(), getattr(theirs, name).numpy()
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_spectral_norm_in_training() -> None:
    linear = torch.nn.Linear(4, 3)
    mine = nn.SpectralNorm(with_theirs(nn.Linear(4, 3), linear))
    theirs = torch.nn.utils.parametrizations.spectral_norm(linear)
    for _ in range(60):
        wanted = theirs(torch.from_numpy(numbers(2, 4))).detach().numpy()
        found = mine(numbers(2, 4), training=True).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
