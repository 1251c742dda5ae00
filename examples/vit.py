"""A vision transformer on scikit-learn's handwritten digits.

    python -m examples.vit

A picture is cut into sixteen pieces of 2 x 2 pixels, which are words of a sentence to a transformer
whose attention sees all of them. It gets about 97 % of the test pictures right.
"""

from __future__ import annotations

from typing import Any

import weft
from examples.digits import main
from weft import nn


class ViT(nn.Module):
    """Pieces of a picture to scores of the ten digits."""

    def __init__(self, width: int = 32, heads: int = 4, blocks: int = 2, side: int = 2) -> None:
        self.side, self.pieces = side, (8 // side) ** 2
        self.first = nn.Linear(side * side, width)
        self.places = nn.Embedding(self.pieces, width, deviation=0.05)
        self.blocks = [nn.TransformerBlock(width, heads, causal=False) for _ in range(blocks)]
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def cut(self, images: Any) -> Any:
        """Pictures [n, 1, 8, 8] as pieces [n, pieces, pixels of a piece]."""
        count, side = 8 // self.side, self.side
        tiles = weft.reshape(images, (images.shape[0], count, side, count, side))
        apart = weft.permute_dims(tiles, (0, 1, 3, 2, 4))
        return weft.reshape(apart, (images.shape[0], self.pieces, side * side))

    def __call__(self, images: Any) -> weft.Tensor:
        x = self.first(self.cut(images)) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.head(weft.mean(self.norm(x), axis=1))


if __name__ == "__main__":
    main("vit", ViT, steps=600, rate=3e-3)
