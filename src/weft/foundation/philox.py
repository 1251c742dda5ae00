"""Philox4x32-10, the counter-based generator behind every random op: the same bits everywhere.

    key      the seed: low word, high word
    counter  (block low word, block high word, stream, earlier executions of the stream in this run)
    element  i takes word i mod 4 of block i div 4; an f64 takes words 2 (i mod 2) and the next of
             block i div 2, the first of them being the high half

See Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation import numeric
from weft.foundation.dtypes import F32, F64, UI64, DType

Array = NDArray[Any]

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
_MASK = 0xFFFFFFFF
_WORD = np.uint64(_MASK)
_HALF = np.uint64(32)
_CHUNK = 1 << 14
"""Blocks computed at once: the temporaries of a round stay in the cache."""


def philox4x32(counter: Array, key: tuple[int, int] | Array) -> Array:
    """The four output words of each counter; `counter` is u64[4, n] holding 32-bit words, and the
    key either two words for all of them or u64[2, n]."""
    words = [counter[0], counter[1], counter[2], counter[3]]
    key_0, key_1 = (np.asarray(word & _MASK, np.uint64) for word in key)
    for _ in range(ROUNDS):
        even = words[0] * np.uint64(MULTIPLIERS[0])
        odd = words[2] * np.uint64(MULTIPLIERS[1])
        words = [
            (odd >> _HALF) ^ words[1] ^ key_0,
            odd & _WORD,
            (even >> _HALF) ^ words[3] ^ key_1,
            even & _WORD,
        ]
        # Weyl sequences: fractions of the golden ratio and of sqrt(3) - 1, so that no round has the
        # key of another.
        key_0, key_1 = (key_0 + np.uint64(WEYL[0])) & _WORD, (key_1 + np.uint64(WEYL[1])) & _WORD
    return np.stack(words).astype(np.uint32)


def counters(first: int, last: int, stream: int, execution: int) -> Array:
    """The counters of the blocks from `first` to `last - 1` of a stream."""
    block = np.arange(first, last, dtype=np.uint64)
    counter = np.empty((4, last - first), np.uint64)
    counter[0], counter[1] = block & _WORD, block >> _HALF
    counter[2], counter[3] = stream & _MASK, execution & _MASK
    return counter


def words(seed: int, stream: int, execution: int, count: int) -> Array:
    """The first `count` 32-bit words of a stream."""
    key = (seed & _MASK, (seed >> 32) & _MASK)
    blocks = -(-count // 4)
    result = np.empty((blocks, 4), np.uint32)
    for start in range(0, blocks, _CHUNK):
        stop = min(start + _CHUNK, blocks)
        result[start:stop] = philox4x32(counters(start, stop, stream, execution), key).T
    return result.reshape(-1)[:count]


def words_at(places: Array, seed: Array, offset: Array) -> Array:
    """The word at a place of a stream, for each place and the state that belongs to it: numbers of
    64 bits that are broadcast against each other."""
    place, key, upper = (
        each.astype(np.uint64) for each in np.broadcast_arrays(places, seed, offset)
    )
    counter = np.stack([*_low_and_high(place >> np.uint64(2)), *_low_and_high(upper)])
    made = philox4x32(counter.reshape(4, -1), np.stack(_low_and_high(key)).reshape(2, -1))
    which = (place & np.uint64(3)).reshape(1, -1).astype(np.int64)
    return np.take_along_axis(made, which, axis=0).reshape(place.shape)


def _low_and_high(numbers: Array) -> tuple[Array, Array]:
    return numbers & _WORD, numbers >> _HALF


def bits(seed: int, stream: int, execution: int, count: int, dtype: DType) -> Array:
    """`count` unsigned integers: the top bits of each element's words."""
    if dtype.bits == 64:
        pairs = words(seed, stream, execution, 2 * count).astype(np.uint64).reshape(count, 2)
        return (pairs[:, 0] << _HALF) | pairs[:, 1]
    return (words(seed, stream, execution, count) >> np.uint32(32 - dtype.bits)).astype(dtype.numpy)


def uniform_values(seed: int, stream: int, execution: int, count: int, dtype: DType) -> Array:
    """`count` values in [0, 1): the top p bits of each element's words times 2^-p, p being the
    precision of `dtype`. Nothing rounds, so every backend makes the same bits."""
    precision = dtype.precision
    if dtype is F64:
        wide = bits(seed, stream, execution, count, UI64) >> np.uint64(64 - precision)
        return wide.astype(np.float64) * 2.0**-precision
    # Integers of as many bits as the dtype holds, times a power of two: exact, and never 1.
    top = words(seed, stream, execution, count) >> np.uint32(32 - precision)
    scaled = top.astype(np.float32) * np.float32(2.0**-precision)
    return numeric.round_float(scaled, dtype) if dtype is not F32 else scaled


def normal_values(seed: int, stream: int, execution: int, count: int, dtype: DType) -> Array:
    """`count` standard normal values by Box and Muller: elements 2j and 2j+1 are r cos(2 pi u2) and
    r sin(2 pi u2), r = sqrt(-2 ln(1 - u1)), u1 and u2 being the uniforms 2j and 2j+1 of `dtype`.
    Computed in f64 and rounded once."""
    even_count = count + count % 2
    pairs = (
        uniform_values(seed, stream, execution, even_count, dtype).astype(np.float64).reshape(-1, 2)
    )
    radius = np.sqrt(-2.0 * np.log1p(-pairs[:, 0]))
    # Both are sines of at most a quarter turn, found without rounding: where one is near 0, so is
    # its angle, which then has its full precision. So 0 is 0, whatever the sine.
    past_half = pairs[:, 1] - 0.5
    size = np.abs(past_half)
    turns = [size - 0.25, -np.copysign(np.minimum(size, 0.5 - size), past_half)]
    waves = np.sin(np.stack(turns, axis=1) * (2.0 * np.pi))
    return numeric.round_float((radius[:, None] * waves).reshape(-1)[:count], dtype)
