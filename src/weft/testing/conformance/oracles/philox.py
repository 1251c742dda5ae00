"""Philox4x32-10 for one counter at a time, in plain integers, and what the random ops make of it.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import F64, DType

Array = NDArray[Any]
_WORD = 1 << 32


@lru_cache(maxsize=1 << 14)
def block(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """The four words of a counter after ten rounds."""
    a, b, c, d = counter
    low_key, high_key = key
    for _ in range(10):
        even, odd = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b = (odd // _WORD) ^ low_key ^ b, odd % _WORD
        c, d = (even // _WORD) ^ high_key ^ d, even % _WORD
        low_key, high_key = (low_key + 0x9E3779B9) % _WORD, (high_key + 0xBB67AE85) % _WORD
    return a, b, c, d


def _word_at(seed: int, stream: int, execution: int, index: int) -> int:
    number, position = divmod(index, 4)
    counter = (number % _WORD, number // _WORD, stream, execution)
    return block(counter, (seed % _WORD, seed // _WORD))[position]


def _uniform_at(seed: int, stream: int, execution: int, index: int, dtype: DType) -> float:
    bits = 32
    if dtype is F64:
        bits = 64
        high, low = (_word_at(seed, stream, execution, 2 * index + i) for i in (0, 1))
        word = high * _WORD + low
    else:
        word = _word_at(seed, stream, execution, index)
    return math.ldexp(word >> (bits - dtype.precision), -dtype.precision)


def bits(
    shape: tuple[int, ...], dtype: DType, seed: int = 0, stream: int = 0, execution: int = 0
) -> Array:
    """Unsigned integers of the dtype: the top bits of one word, or two words."""
    found = []
    for index in range(math.prod(shape)):
        if dtype.bits == 64:
            high, low = (_word_at(seed, stream, execution, 2 * index + i) for i in (0, 1))
            found.append(high * _WORD + low)
        else:
            found.append(_word_at(seed, stream, execution, index) >> (32 - dtype.bits))
    return np.array(found, dtype.numpy).reshape(shape)


def uniform(
    shape: tuple[int, ...], dtype: DType, seed: int = 0, stream: int = 0, execution: int = 0
) -> Array:
    """Values in [0, 1) as f64, exactly those of the dtype."""
    count = math.prod(shape)
    values = [_uniform_at(seed, stream, execution, i, dtype) for i in range(count)]
    return np.array(values, np.float64).reshape(shape)


def normal(
    shape: tuple[int, ...], dtype: DType, seed: int = 0, stream: int = 0, execution: int = 0
) -> tuple[Array, Array]:
    """Standard normal values by Box and Muller, and the radius of the pair each belongs to."""
    count = math.prod(shape)
    even = count + count % 2
    pairs = uniform((even // 2, 2), dtype, seed, stream, execution).astype(np.longdouble)
    radius = np.sqrt(-2 * np.log1p(-pairs[:, 0]))
    angle = 2 * np.arctan2(np.longdouble(0), np.longdouble(-1)) * pairs[:, 1]
    both = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    sizes = np.stack([radius, radius], axis=1)
    return both.reshape(-1)[:count].reshape(shape), sizes.reshape(-1)[:count].reshape(shape)
