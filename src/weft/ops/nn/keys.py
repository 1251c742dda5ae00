"""Keys of random numbers. A traced function has no hidden state, so randomness is an argument: a
key of `weft.random`, or a pair of (seed, offset), from which `fold_in` makes one of its own for
every part of a model."""

from __future__ import annotations

from typing import Any, Final

from weft.foundation.dtypes import SI64
from weft.foundation.errors import UserError, brief
from weft.ops import random
from weft.ops.calls import public
from weft.ops.tensor import Tensor

Key = Tensor | tuple[Any, Any]
"""A key of `weft.random`; or a seed, new in every step, and an offset, another for every use:
numbers or integer scalars."""

_SPREAD: Final = 0x9E3779B1
"""A prime, so that the parts of parts do not meet."""


@public
def fold_in(key: Key, number: int) -> Key:
    """A key for part `number` of what was given `key`: other numbers, other random numbers."""
    seed, offset = words("fold_in", key)
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise UserError(f"[fold_in] number is {brief(number)}; it must be a whole number from 0")
    if isinstance(key, Tensor):
        return random.fold_in(key, number)
    folded = offset * _SPREAD + (number + 1)
    return seed, folded % (1 << 63) if isinstance(folded, int) else folded


def words(name: str, key: Any) -> tuple[Any, Any]:
    """The seed and the offset that a key is made of."""
    if isinstance(key, Tensor) and key.dtype is SI64 and key.shape == (2,):
        return key[0], key[1]
    if not isinstance(key, list | tuple) or len(key) != 2:
        shown = str(key.type) if isinstance(key, Tensor) else brief(key)
        raise UserError(
            f"[{name}] key is {shown}; make one with weft.random.key(seed), or give a pair of seed "
            "and offset"
        )
    return key[0], key[1]
