"""Keys of random numbers. A traced function has no hidden state, so randomness is an argument: a
key of (seed, offset), from which `fold_in` makes one of its own for every part of a model."""

from __future__ import annotations

from typing import Any, Final

from weft.foundation.errors import UserError, brief
from weft.ops.calls import public

Key = tuple[Any, Any]
"""A seed, new in every step, and an offset, another for every use: numbers or integer scalars."""

_SPREAD: Final = 0x9E3779B1
"""A prime, so that the parts of parts do not meet."""


@public
def fold_in(key: Key, number: int) -> Key:
    """A key for part `number` of what was given `key`: other numbers, other random numbers."""
    seed, offset = checked_key("fold_in", key)
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise UserError(f"[fold_in] number is {brief(number)}; it must be a whole number from 0")
    folded = offset * _SPREAD + (number + 1)
    return seed, folded % (1 << 63) if isinstance(folded, int) else folded


def checked_key(name: str, key: Any) -> Key:
    """A key as the pair that it is."""
    if not isinstance(key, list | tuple) or len(key) != 2:
        raise UserError(f"[{name}] key is {key!r}; it must be a pair of seed and offset")
    return key[0], key[1]
