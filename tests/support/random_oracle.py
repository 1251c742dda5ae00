"""Random numbers one at a time, as the specification writes them."""

from __future__ import annotations

import math
from fractions import Fraction

from weft.foundation.dtypes import BF16, F16, F32, F64, DType

PRECISION = {F16: 11, BF16: 8, F32: 24, F64: 53}


def scalar_philox(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    """Ten rounds: multiply words 0 and 2, mix the halves of the products, bump the key."""
    r0, l0, r1, l1 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * r0, 2**32)
        high1, low1 = divmod(0xCD9E8D57 * r1, 2**32)
        r0, l0, r1, l1 = high1 ^ k0 ^ l0, low1, high0 ^ k1 ^ l1, low0
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return r0, l0, r1, l1


def scalar_word(seed: int, stream: int, execution: int, index: int) -> int:
    block, position = divmod(index, 4)
    counter = (block % 2**32, block // 2**32, stream, execution)
    return scalar_philox(counter, (seed % 2**32, seed // 2**32))[position]


def scalar_uniform(seed: int, stream: int, execution: int, index: int, dtype: DType) -> float:
    if dtype is F64:
        high = scalar_word(seed, stream, execution, 2 * index)
        word, width = high * 2**32 + scalar_word(seed, stream, execution, 2 * index + 1), 64
    else:
        word, width = scalar_word(seed, stream, execution, index), 32
    return float((word >> (width - PRECISION[dtype])) / (1 << PRECISION[dtype]))


def scalar_normal(seed: int, stream: int, execution: int, index: int, dtype: DType) -> float:
    u1 = scalar_uniform(seed, stream, execution, index - index % 2, dtype)
    u2 = scalar_uniform(seed, stream, execution, index - index % 2 + 1, dtype)
    radius = math.sqrt(-2 * math.log(1 - u1))
    return radius * sine_of_turns(Fraction(u2) + (0 if index % 2 else Fraction(1, 4)))


def sine_of_turns(turns: Fraction) -> float:
    """The sine of exactly so many turns: from the nearest quarter on."""
    quarters = round(turns * 4)
    rest = 2 * math.pi * float(turns - Fraction(quarters, 4))
    waves = (math.sin(rest), math.cos(rest), -math.sin(rest), -math.cos(rest))
    return waves[quarters % 4]
