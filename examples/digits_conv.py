"""A small convolutional network on scikit-learn's handwritten digits.

    python -m examples.digits_conv

The curve is saved as a picture beside the checkpoint, and Ctrl-C keeps what was reached.
"""

from __future__ import annotations

from typing import Any

import weft
from examples.digits import main
from weft import nn


class DigitsConv(nn.Module):
    """Two convolutions, each with a batch norm and a maximum over 2 x 2 pixels, and a linear
    layer."""

    def __init__(self, channels: int = 16) -> None:
        self.layers = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1, bias=False),
            nn.BatchNorm(channels),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(channels, 2 * channels, 3, padding=1, bias=False),
            nn.BatchNorm(2 * channels),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(2 * channels * 4, 10),
        )

    def __call__(self, images: Any) -> weft.Tensor:
        scores: weft.Tensor = self.layers(images)
        return scores


if __name__ == "__main__":
    main("digits_conv", DigitsConv, steps=600, rate=3e-3)
