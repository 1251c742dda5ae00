"""Dropout. A traced function has no hidden state, so randomness is an argument: a key of (seed,
offset), from which every dropout takes its own by its number."""

from __future__ import annotations

from typing import Any

from weft.foundation.errors import UserError
from weft.ops.functional.stochastic import dropout
from weft.ops.nn.module import Module
from weft.ops.tensor import Tensor

Key = tuple[Any, Any]
"""A seed, new in every step, and an offset, another for every use: numbers or integer scalars."""


class Dropout(Module):
    """Elements set to 0 at random. Without a key, as in evaluation, it does nothing."""

    def __init__(self, rate: float = 0.5, *, number: int = 0) -> None:
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
            raise UserError(f"[Dropout] rate is {rate!r}; it must be a number from 0 to below 1")
        self.rate = rate
        self.number = number
        """Added to the offset of the key: give every dropout of a model its own."""

    def __call__(self, x: Tensor, key: Key | None = None) -> Tensor:
        if key is None or self.rate == 0:
            return x
        if not isinstance(key, list | tuple) or len(key) != 2:
            raise UserError(f"[Dropout] key is {key!r}; it must be a pair of seed and offset")
        seed, offset = key
        return dropout(x, self.rate, seed=seed, offset=offset + self.number)
