"""Random bits as a function of a state: the two generators that StableHLO names, written in integer
arithmetic so that every backend makes XLA's bits.

PHILOX, which DEFAULT is too, has the state (key, counter low, counter high) in u64; of a state of
two words the first is key and high half of the counter. A block is four words of 32 bits, one after
the other in the result. THREE_FRY has the state (key, counter) and makes two words a block. They
stand side by side along the first axis of even size, or else the longest, as if that were twice as
long as there are blocks; a result of 64 bits takes both. Counters go up by one a block.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from weft.foundation.dtypes import UI32, UI64
from weft.interop.stablehlo.reading.bits import wrapped
from weft.interop.stablehlo.reading.site import Lowering, Site
from weft.ptir.builder import Value

_LOW: Final = 0xFFFFFFFF
_ROTATIONS: Final = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY: Final = 0x1BD11BDA
_PHILOX: Final = ((0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85))


def _rng_bit_generator(at: Site) -> Sequence[Value]:
    (state,) = at.x
    kind = at.result(1)
    if state.dtype is not UI64 or kind.dtype.bits not in (8, 16, 32, 64):
        at.refuse(f"its state is {state.type}; it is read for u64 states and integer results")
    if kind.dtype.is_float:
        at.refuse("its result is made of floats")
    bits = kind.dtype.bits
    philox = at.word("rng_algorithm") in ("PHILOX", "DEFAULT")
    found, after = (_by_philox if philox else _by_threefry)(at, state, at.shape(1), bits)
    narrow = at.b.cast(found & ((1 << bits) - 1), UI32) if bits <= 32 else found
    rest = at.static(state)[0] - len(after)
    kept = [at.sliced(state, [len(after)], [rest])] if rest else []
    return at.joined([*(word.reshape((1,)) for word in after), *kept], 0), wrapped(
        at, narrow, kind.dtype
    )


def _by_philox(
    at: Site, state: Value, shape: Sequence[int], bits: int
) -> tuple[Value, list[Value]]:
    """Words, or pairs of them, in their order; and the state afterwards."""
    count = math.prod(shape) * max(bits // 32, 1)
    blocks = -(-count // 4)
    key, low = _entry_of_state(at, state, 0), _entry_of_state(at, state, 1)
    long = at.static(state)[0] > 2
    high = _entry_of_state(at, state, 2) if long else key
    number = at.b.iota(UI64, [blocks], 0)
    parts = _philox(
        at, key, *_add_to_halves(at, at.spread(low, (blocks,)), at.spread(high, (blocks,)), number)
    )
    columns = [part.reshape([blocks, 1]) for part in parts]
    words = at.b.concat(columns, 1).reshape([blocks * 4])
    words = at.sliced(words, [0], [count])
    if bits == 64:
        pairs = words.reshape([count // 2, 2])
        sides = (at.sliced(pairs, [0, side], [count // 2, 1]) for side in (0, 1))
        words = _pair_halves(at, *sides)
    end = _add_to_halves(at, low, high, at.full(blocks, low))
    return words.reshape(shape), [key, *end] if long else [key, end[0]]


def _by_threefry(
    at: Site, state: Value, shape: Sequence[int], bits: int
) -> tuple[Value, list[Value]]:
    """The two words of every block side by side; and the state afterwards."""
    whole = list(shape) or [1]
    along = next((axis for axis, size in enumerate(whole) if size % 2 == 0), None)
    along = whole.index(max(whole)) if along is None else along
    half = [-(-n // 2) if axis == along and bits < 64 else n for axis, n in enumerate(whole)]
    blocks = math.prod(half)
    key, counter = _entry_of_state(at, state, 0), _entry_of_state(at, state, 1)
    number = at.b.iota(UI64, [blocks], 0) + at.spread(counter, (blocks,))
    first, second = _threefry(at, key, number)
    after = [key, counter + blocks]
    if bits == 64:
        return _pair_halves(at, first, second).reshape(shape), after
    column = [*half[: along + 1], 1, *half[along + 1 :]]
    both = at.b.concat([word.reshape(column) for word in (first, second)], along + 1)
    even = [2 * n if axis == along else n for axis, n in enumerate(half)]
    words = at.sliced(both.reshape(even), [0] * len(whole), whole)
    return words.reshape(shape), after


def _entry_of_state(at: Site, state: Value, index: int) -> Value:
    return at.sliced(state, [index], [1]).reshape(())


def _low_and_high(at: Site, value: Value) -> tuple[Value, Value]:
    """The low and the high 32 bits, each in a word of 64."""
    return value & _LOW, at.b.emit("shift_right", value, at.full(32, value))


def _pair_halves(at: Site, low: Value, high: Value) -> Value:
    return low | at.b.emit("shift_left", high, at.full(32, high))


def _add_to_halves(at: Site, low: Value, high: Value, number: Value) -> tuple[Value, Value]:
    """A number of 128 bits, as two halves, plus one of 64."""
    total = low + number
    return total, high + at.b.cast(total < low, UI64)


def _threefry(at: Site, key: Value, number: Value) -> list[Value]:
    """Threefry-2x32 of 20 rounds."""
    dims = number.shape
    first, second = (at.spread(half, dims) for half in _low_and_high(at, key))
    third = (first ^ second) ^ _PARITY
    keys = (first, second, third)
    x, y = _low_and_high(at, number)
    x, y = (x + keys[0]) & _LOW, (y + keys[1]) & _LOW
    for turn in range(5):
        for rotation in _ROTATIONS[turn % 2]:
            x = (x + y) & _LOW
            y = _rotate_bits(at, y, rotation) ^ x
        x = (x + keys[(turn + 1) % 3]) & _LOW
        y = (y + keys[(turn + 2) % 3] + (turn + 1)) & _LOW
    return [x, y]


def _rotate_bits(at: Site, value: Value, by: int) -> Value:
    left = at.b.emit("shift_left", value, at.full(by, value)) & _LOW
    return left | at.b.emit("shift_right", value, at.full(32 - by, value))


def _philox(at: Site, key: Value, low: Value, high: Value) -> list[Value]:
    """Philox-4x32 of 10 rounds."""
    keys = [at.spread(half, low.shape) for half in _low_and_high(at, key)]
    words = [*_low_and_high(at, low), *_low_and_high(at, high)]
    for _ in range(10):
        products = [words[2 * i] * multiplier for i, multiplier in enumerate(_PHILOX[0])]
        (low0, high0), (low1, high1) = (_low_and_high(at, p) for p in products)
        words = [high1 ^ words[1] ^ keys[0], low1, high0 ^ words[3] ^ keys[1], low0]
        keys = [(k + bump) & _LOW for k, bump in zip(keys, _PHILOX[1], strict=True)]
    return words


RANDOM_BITS: Final[Mapping[str, Lowering]] = {"rng_bit_generator": _rng_bit_generator}
