"""The examples of models: small ones learn, and those that draw draw."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from examples import diffusion, digits, vae
from examples.llama import Llama, generate
from examples.llama_weights import Config
from examples.lstm import RowReader
from examples.resnet import ResNet
from examples.vit import ViT
from weft import nn

EXAMPLES = Path(__file__).parents[2] / "examples"
GALLERY = ["resnet", "lstm", "vit", "vae", "diffusion", "llama"]
SMALL: dict[str, tuple[Any, digits.Loss, int, float]] = {
    "resnet": (lambda: ResNet(4, (0, 1)), digits.misread, 60, 0.8),
    "lstm": (lambda: RowReader(16), digits.misread, 60, 0.8),
    "vit": (lambda: ViT(16, 2, 1), digits.misread, 150, 0.8),
    "vae": (lambda: vae.VAE(4, 32), vae.unlikely, 60, 0.8),
    "diffusion": (lambda: diffusion.Denoiser(32, 1), diffusion.wrong_noise, 60, 0.8),
}
"""A small model, its loss, steps, and the part of the first losses that the last ones are below."""

pytestmark = pytest.mark.usefixtures("default_backend")


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_small_one_learns(name: str, tmp_path: Path) -> None:
    make, loss_of, steps, part = SMALL[name]
    nn.manual_seed(0)
    run, _, finished = digits.learn(make(), tmp_path, steps, rate=1e-2, loss_of=loss_of, batch=32)
    assert finished
    assert np.mean(run.losses[-10:]) < part * np.mean(run.losses[:3])


@pytest.mark.slow
def test_batch_norms_of_the_resnet_have_seen_the_pictures(tmp_path: Path) -> None:
    nn.manual_seed(0)
    run, _, _ = digits.learn(ResNet(4, (0, 1)), tmp_path, 5, rate=1e-2, batch=32)
    seen = [tensor for name, tensor in run.model.state_dict().items() if "running_var" in name]
    assert len(seen) == 4
    assert all((tensor.numpy() != 1).any() for tensor in seen)


@pytest.mark.slow
def test_draws_of_the_same_key_are_the_same_pictures() -> None:
    nn.manual_seed(0)
    wanted = weft.asarray([3, 7], dtype=weft.int32)
    model, denoiser = vae.VAE(4, 16), diffusion.Denoiser(16, 1)
    ways: list[Callable[[int], Any]] = [
        lambda key: model.draw(weft.random.key(key), 2),
        lambda key: diffusion.draw(denoiser, weft.random.key(key), wanted),
    ]
    for pictures in ways:
        first = pictures(1).numpy()
        assert first.shape == (2, 8, 8)
        assert np.isfinite(first).all()
        assert np.array_equal(first, pictures(1).numpy())
        assert not np.array_equal(first, pictures(2).numpy())


def test_pictures_are_drawn_side_by_side() -> None:
    images = np.zeros((2, 8, 8))
    images[0, 0, 0], images[1, 7, 7] = 1.0, 0.5
    lines = digits.drawn(images).split("\n")
    assert [len(line) for line in lines] == [34] * 8
    assert lines[0].startswith("██ ")
    assert lines[7].endswith("▒▒")


@pytest.mark.parametrize("name", GALLERY)
def test_an_example_is_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()) < 150


@pytest.mark.slow
def test_the_llama_sees_what_stands_before_only() -> None:
    nn.manual_seed(0)
    model = Llama(Config(vocabulary=20, width=16, hidden=24, layers=1, heads=2, key_heads=1))
    scores = weft.jit(lambda model, tokens: model(tokens))
    tokens = np.arange(8, dtype=np.int32)[None]
    changed = np.where(np.arange(8) < 5, tokens, 19).astype(np.int32)
    first, second = scores(model, tokens).numpy(), scores(model, changed).numpy()
    np.testing.assert_array_equal(first[:, :5], second[:, :5])
    assert not np.array_equal(first[:, 5:], second[:, 5:])
    written = generate(model, [3, 1], 4)
    assert written[:2] == [3, 1]
    assert written == [*written[:4], *generate(model, written[:4], 2)[4:]]


class Doubtful(nn.Module):
    """Knows the one picture there is, and takes a fifth too much for noise."""

    def __init__(self, picture: weft.Tensor) -> None:
        self.picture = picture

    def __call__(self, pixels: Any, times: Any, digits: Any) -> Any:
        left = diffusion.share(times)[:, None]
        return 1.2 * (pixels - left * self.picture) / weft.sqrt(1 - left**2)


@pytest.mark.slow
def test_what_is_clipped_from_a_picture_does_not_come_back_as_noise() -> None:
    picture = np.where(np.arange(64) % 3 == 0, 1, -1).astype(np.float32)
    model = Doubtful(weft.asarray(picture))
    found = diffusion.draw(model, weft.random.key(0), weft.zeros((20,), dtype=weft.int32))
    expected = np.broadcast_to((picture.reshape(8, 8) + 1) / 2, (20, 8, 8))
    np.testing.assert_allclose(found.numpy(), expected, atol=0.02)
