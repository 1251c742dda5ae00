"""Dropout."""

from __future__ import annotations

from weft.foundation.errors import UserError
from weft.ops.calls import public
from weft.ops.functional.stochastic import dropout
from weft.ops.nn.keys import Key, words
from weft.ops.nn.module import Module
from weft.ops.nn.training import next_key
from weft.ops.tensor import Tensor


class Dropout(Module):
    """Elements set to 0 at random. Without a key, as in evaluation, it does nothing; inside of
    `nn.training(key)` it has one."""

    @public
    def __init__(self, rate: float = 0.5) -> None:
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
            raise UserError(f"[Dropout] rate is {rate!r}; it must be a number from 0 to below 1")
        self.rate = rate

    def __call__(self, x: Tensor, key: Key | None = None) -> Tensor:
        if self.rate == 0:
            return x
        key = next_key("Dropout") if key is None else key
        if key is None:
            return x
        seed, offset = words("Dropout", key)
        return dropout(x, self.rate, seed=seed, offset=offset)
