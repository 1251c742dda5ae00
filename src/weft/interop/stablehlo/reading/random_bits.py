"""Random bits as a function of a state: the two generators that StableHLO names, written in integer
arithmetic so that every backend makes the same bits.

Both turn a key and a counter into words, as XLA does: the state is (key, counter) in u64, and the
counter goes up by the number of blocks that were used. THREE_FRY makes two words of 32 bits a
block, with the first half of the result from the first words; PHILOX makes four.
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
    philox = at.word("rng_algorithm") in ("PHILOX", "DEFAULT")
    shape = at.shape(1)
    words = math.prod(shape) * max(kind.dtype.bits // 32, 1)
    blocks = -(-words // (4 if philox else 2))
    key, counter = _entry(at, state, 0), _entry(at, state, 1)
    number = at.b.iota(UI64, [blocks], 0) + at.b.broadcast_to(counter, [blocks])
    parts = _philox(at, key, number) if philox else _threefry(at, key, number)
    bits = _sized(at, _ordered(at, parts, philox), words, kind.dtype.bits)
    after = at.joined([_vector(at, key), _vector(at, counter + blocks), *_rest(at, state)], 0)
    return after, at.reshaped(wrapped(at, bits, kind.dtype), shape)


def _entry(at: Site, state: Value, index: int) -> Value:
    return at.reshaped(at.sliced(state, [index], [1]), ())


def _rest(at: Site, state: Value) -> list[Value]:
    size = at.static(state)[0]
    return [at.sliced(state, [2], [size - 2])] if size > 2 else []


def _vector(at: Site, value: Value) -> Value:
    return at.reshaped(value, (1,))


def _halves(at: Site, value: Value) -> tuple[Value, Value]:
    """The low and the high 32 bits, each in a word of 64."""
    return value & _LOW, at.b.emit("shift_right", value, at.full(32, value))


def _ordered(at: Site, parts: Sequence[Value], interleaved: bool) -> Value:
    """Words in the order of the result."""
    if not interleaved:
        return at.b.concat(list(parts), 0)
    size = at.static(parts[0])[0]
    columns = [at.reshaped(part, [size, 1]) for part in parts]
    return at.reshaped(at.b.concat(columns, 1), [size * len(parts)])


def _sized(at: Site, words: Value, count: int, bits: int) -> Value:
    words = at.sliced(words, [0], [count])
    if bits < 64:
        return at.b.cast(words & ((1 << min(bits, 32)) - 1), UI32) if bits <= 32 else words
    pairs = at.reshaped(words, [count // 2, 2])
    low, high = (
        at.reshaped(at.sliced(pairs, [0, side], [count // 2, 1]), [count // 2]) for side in (0, 1)
    )
    return low | at.b.emit("shift_left", high, at.full(32, high))


def _threefry(at: Site, key: Value, number: Value) -> list[Value]:
    """Threefry-2x32 of 20 rounds."""
    dims = number.shape
    first, second = (at.spread(half, dims) for half in _halves(at, key))
    third = (first ^ second) ^ _PARITY
    keys = (first, second, third)
    x, y = _halves(at, number)
    x, y = (x + keys[0]) & _LOW, (y + keys[1]) & _LOW
    for turn in range(5):
        for rotation in _ROTATIONS[turn % 2]:
            x = (x + y) & _LOW
            y = _rotated(at, y, rotation) ^ x
        x = (x + keys[(turn + 1) % 3]) & _LOW
        y = (y + keys[(turn + 2) % 3] + (turn + 1)) & _LOW
    return [x, y]


def _rotated(at: Site, value: Value, by: int) -> Value:
    left = at.b.emit("shift_left", value, at.full(by, value)) & _LOW
    return left | at.b.emit("shift_right", value, at.full(32 - by, value))


def _philox(at: Site, key: Value, number: Value) -> list[Value]:
    """Philox-4x32 of 10 rounds."""
    dims = number.shape
    keys = [at.spread(half, dims) for half in _halves(at, key)]
    zero = at.full(0, number)
    words = [*_halves(at, number), zero, zero]
    for _ in range(10):
        products = [words[2 * i] * multiplier for i, multiplier in enumerate(_PHILOX[0])]
        (low0, high0), (low1, high1) = (_halves(at, p) for p in products)
        words = [high1 ^ words[1] ^ keys[0], low1, high0 ^ words[3] ^ keys[1], low0]
        keys = [(k + bump) & _LOW for k, bump in zip(keys, _PHILOX[1], strict=True)]
    return words


RANDOM_BITS: Final[Mapping[str, Lowering]] = {"rng_bit_generator": _rng_bit_generator}
