"""Diffusion on scikit-learn's handwritten digits: pictures out of noise.

    python -m examples.diffusion

A model learns to tell the noise from the picture, at any share of the two. To draw a digit it
begins with noise alone, and takes a little of what it thinks is noise away, many times: a loop
inside one compiled program.
"""

from __future__ import annotations

import math
from typing import Any, cast

import weft
from examples.digits import Digits, drawn, main
from weft import functional as F
from weft import nn

TIMES = 64
"""Steps from noise to a picture."""


def share(time: Any) -> Any:
    """What is left of the picture at a time from 0, all of it, to 1, nearly nothing."""
    return weft.cos(time * (0.98 * math.pi / 2))


class Denoiser(nn.Module):
    """Noisy pictures [n, 64], times [n] and wanted digits [n] to the noise in the pictures."""

    def __init__(self, width: int = 256, blocks: int = 3) -> None:
        self.first = nn.Linear(64, width)
        self.digits = nn.Embedding(10, width)
        self.times = nn.Linear(16, width)
        self.blocks = [
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width)
            )
            for _ in range(blocks)
        ]
        self.out = nn.Linear(width, 64)

    def __call__(self, pixels: Any, times: Any, digits: Any) -> weft.Tensor:
        angles = times[:, None] * 2.0 ** weft.arange(8, dtype=weft.float32)
        waves = weft.concat([weft.sin(angles), weft.cos(angles)], axis=1)
        given = self.times(waves) + self.digits(digits)
        x = self.first(pixels)
        for block in self.blocks:
            x = x + block(x + given)
        return self.out(F.silu(x))


def wrong_noise(model: Denoiser, images: Any, labels: Any) -> weft.Tensor:
    """How far the noise that the model sees is from the noise that was added."""
    pixels = weft.reshape(images, (images.shape[0], 64)) * 2 - 1
    first, second = weft.random.split(cast(weft.Tensor, nn.next_key()))
    times = weft.random.uniform(first, (images.shape[0],))
    noise = weft.random.normal(second, pixels.shape)
    left = share(times)[:, None]
    mixed = left * pixels + weft.sqrt(1 - left**2) * noise
    return F.mse_loss(model(mixed, times, labels), noise)


@weft.jit
def draw(model: Denoiser, key: weft.Tensor, digits: Any) -> Any:
    """Pictures [n, 8, 8] of these digits, made of noise without drawing any on the way (DDIM)."""

    def clearer(number: weft.Tensor, x: weft.Tensor) -> Any:
        time = 1 - weft.astype(number, weft.float32) / TIMES
        left, later = share(time), share(time - 1 / TIMES)
        noise = model(x, weft.broadcast_to(time, (x.shape[0],)), digits)
        picture = weft.clip((x - weft.sqrt(1 - left**2) * noise) / left, -1, 1)
        rest = (x - left * picture) / weft.sqrt(1 - left**2)
        return later * picture + weft.sqrt(weft.clip(1 - later**2, 0, 1)) * rest

    noise = weft.random.normal(key, (digits.shape[0], 64))
    x = weft.fori_loop(0, TIMES, clearer, noise)
    return weft.reshape((x + 1) / 2, (digits.shape[0], 8, 8))


def shown(model: Denoiser, digits: Digits) -> str:
    wanted = weft.asarray([0, 1, 2, 3], dtype=weft.int32)
    images = draw(model, weft.random.key(1), wanted)
    return f"0 to 3, as it draws them\n{drawn(images.numpy())}"


if __name__ == "__main__":
    main("diffusion", Denoiser, steps=3_000, rate=2e-3, loss_of=wrong_noise, shown=shown)
