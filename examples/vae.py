"""A variational autoencoder on scikit-learn's handwritten digits.

    python -m examples.vae

A picture becomes eight numbers with a spread, and a draw of them becomes the picture again. Once it
has learnt, draws from a normal distribution become digits that nobody wrote.
"""

from __future__ import annotations

from typing import Any

import weft
from examples.digits import Digits, drawn, main
from weft import functional as F
from weft import nn


class VAE(nn.Module):
    """Pictures to the means and logarithms of the spreads of their codes, and codes to pictures."""

    def __init__(self, codes: int = 8, width: int = 128) -> None:
        self.codes = codes
        self.encoder = nn.Sequential(
            nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 2 * codes)
        )
        self.decoder = nn.Sequential(nn.Linear(codes, width), nn.ReLU(), nn.Linear(width, 64))

    def __call__(self, images: Any) -> tuple[weft.Tensor, weft.Tensor, weft.Tensor]:
        """Scores of the pixels that come back, and the codes' means and logarithms of spreads."""
        mean, spread = weft.split(self.encoder(images), 2, axis=1)
        key: Any = nn.next_key()
        noise = weft.random.normal(key, mean.shape)
        return self.decoder(mean + weft.exp(spread) * noise), mean, spread

    def draw(self, key: weft.Tensor, count: int) -> Any:
        """New pictures [count, 8, 8]."""
        codes = weft.random.normal(key, (count, self.codes))
        return weft.reshape(F.sigmoid(self.decoder(codes)), (count, 8, 8))


def unlikely(model: VAE, images: Any, labels: Any) -> Any:
    """The bound on how unlikely the pictures are: what is lost on the way through the codes, and
    how far the codes are from normally distributed ones."""
    scores, mean, spread = model(images)
    pixels = weft.reshape(images, scores.shape)
    lost = F.binary_cross_entropy_with_logits(scores, pixels, reduction="sum")
    far = weft.sum(mean**2 + weft.exp(2 * spread) - 1 - 2 * spread) / 2
    return (lost + far) / scores.shape[0]


def shown(model: VAE, digits: Digits) -> str:
    images = model.draw(weft.random.key(1), 4)
    return f"four pictures that it draws\n{drawn(images.numpy())}"


if __name__ == "__main__":
    main("vae", VAE, steps=2_000, rate=3e-3, loss_of=unlikely, shown=shown)
