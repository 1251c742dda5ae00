"""What the blocks of GGUF mean: a few elements that share scales, and how they are packed.

A block type is a function from raw blocks [n, bytes] to whole numbers, and to the scales by which
they become elements. In all of them `d` is a scale in f16. Numbers of 4 bits are the low halves of
bytes first, then the high halves; what does not fit into those stands in planes of 1 or 2 bits
beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Raw = NDArray[np.uint8]
_AT_ONCE: Final = 1 << 14
"""Blocks that are computed together: the memory in between stays small."""


@dataclass(frozen=True)
class Groups:
    """The elements `codes * scales - lows` of blocks: codes [n, elements] that are whole numbers,
    scales and lows [n, groups], each for its share of a block."""

    codes: Array
    scales: Array
    lows: Array | None = None

    @property
    def elements(self) -> Array:
        grouped = self.codes.reshape(*self.scales.shape, -1).astype(np.float32)
        found: Array = grouped * self.scales[:, :, None]
        if self.lows is not None:
            found = found - self.lows[:, :, None]
        return found.reshape(len(self.codes), -1)


@dataclass(frozen=True)
class BlockType:
    """A way to pack elements. The smallest of the codes that fit into 4 bits is `lowest`; where
    that is None they need 8."""

    name: str
    elements: int
    bytes: int
    unpack: Callable[[Raw], Groups]
    lowest: int | None = None

    def elements_of(self, data: memoryview, dtype: Any) -> Array:
        """The elements of blocks one after the other."""
        raw = self._raw(data)
        found = np.empty((len(raw), self.elements), dtype)
        for start, groups in self._in_turn(raw):
            found[start : start + _AT_ONCE] = groups.elements
        return found.reshape(-1)

    def groups_of(self, data: memoryview) -> Groups:
        """The same elements as whole numbers of few bits with their scales: codes in int8, or two
        in a byte, of each group the first half in the low halves of its bytes."""
        parts = [self._pack_codes(groups) for _, groups in self._in_turn(self._raw(data))]
        lows = [part.lows for part in parts if part.lows is not None]
        return Groups(
            np.concatenate([part.codes for part in parts]),
            np.concatenate([part.scales for part in parts]),
            np.concatenate(lows) if lows else None,
        )

    def _raw(self, data: memoryview) -> Raw:
        return np.frombuffer(data, np.uint8).reshape(-1, self.bytes)

    def _in_turn(self, raw: Raw) -> Iterator[tuple[int, Groups]]:
        """Some blocks after the other."""
        with np.errstate(all="ignore"):  # a scale may be anything, infinite too
            for start in range(0, len(raw), _AT_ONCE):
                yield start, self.unpack(raw[start : start + _AT_ONCE])

    def _pack_codes(self, groups: Groups) -> Groups:
        if self.lowest is None:
            return replace(groups, codes=groups.codes.astype(np.int8))
        codes = (groups.codes - self.lowest).astype(np.uint8)
        size = self.elements // groups.scales.shape[1]
        halves = codes.reshape(len(codes), -1, 2, size // 2)
        bytes_ = halves[:, :, 0] | halves[:, :, 1] << np.uint8(4)
        return replace(groups, codes=bytes_.reshape(len(codes), -1))


# -- parts -----------------------------------------------------------------------------------------


def _half(raw: Raw, at: int) -> Array:
    """The f16 at a byte of each block, as a column of f32."""
    return np.ascontiguousarray(raw[:, at : at + 2]).view(np.float16).astype(np.float32)


def _nibbles(raw: Raw, group: int = 16) -> NDArray[np.uint8]:
    """Elements of 4 bits: of each group of bytes the low halves, then the high halves."""
    grouped = raw.reshape(len(raw), -1, 1, group)
    shifts = np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)
    return ((grouped >> shifts) & np.uint8(15)).reshape(len(raw), -1)


def _fifth_bits(raw: Raw) -> NDArray[np.uint8]:
    """32 bits as elements of 0 or 16."""
    bits = np.unpackbits(np.ascontiguousarray(raw), axis=1, bitorder="little")
    return bits << np.uint8(4)


def _planes(raw: Raw, group: int, bits: int) -> NDArray[np.uint8]:
    """Elements of 1 or 2 bits: of each group of bytes the lowest bits, then the next ones, ..."""
    grouped = raw.reshape(len(raw), -1, 1, group)
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(1, 1, -1, 1)
    return ((grouped >> shifts) & np.uint8((1 << bits) - 1)).reshape(len(raw), -1)


# -- 32 elements -----------------------------------------------------------------------------------


def _q4_0(raw: Raw) -> Groups:
    return Groups(_nibbles(raw[:, 2:]).astype(np.int8) - np.int8(8), _half(raw, 0))


def _q4_1(raw: Raw) -> Groups:
    return Groups(_nibbles(raw[:, 4:]), _half(raw, 0), -_half(raw, 2))


def _q5_0(raw: Raw) -> Groups:
    codes = _nibbles(raw[:, 6:]) | _fifth_bits(raw[:, 2:6])
    return Groups(codes.astype(np.int8) - np.int8(16), _half(raw, 0))


def _q5_1(raw: Raw) -> Groups:
    codes = _nibbles(raw[:, 8:]) | _fifth_bits(raw[:, 4:8])
    return Groups(codes, _half(raw, 0), -_half(raw, 2))


def _q8_0(raw: Raw) -> Groups:
    return Groups(raw[:, 2:].view(np.int8), _half(raw, 0))


_CURVE: Final = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8
)
"""What the 16 codes of IQ4 stand for."""


def _iq4_nl(raw: Raw) -> Groups:
    return Groups(_CURVE[_nibbles(raw[:, 2:])], _half(raw, 0))


# -- 256 elements ----------------------------------------------------------------------------------


def _q2_k(raw: Raw) -> Groups:
    scales, codes = raw[:, :16], _planes(raw[:, 16:80], 32, 2)
    steps = _half(raw, 80) * (scales & np.uint8(15)).astype(np.float32)
    lows = _half(raw, 82) * (scales >> np.uint8(4)).astype(np.float32)
    return Groups(codes, steps, lows)


def _q3_k(raw: Raw) -> Groups:
    high = _planes(raw[:, :32], 32, 1)
    # The third bit is stored the other way round: codes without it are 4 lower, from -4 on.
    codes = _planes(raw[:, 32:96], 32, 2).astype(np.int8) - 4 * (high ^ np.uint8(1)).astype(np.int8)
    packed = raw[:, 96:108]
    low = _nibbles(packed[:, :8], 8)
    top = _planes(packed[:, 8:], 4, 2)
    scales = (low | top << np.uint8(4)).astype(np.float32) - 32
    return Groups(codes, _half(raw, 108) * scales)


def _six_bits(packed: Raw) -> tuple[Array, Array]:
    """Eight scales and eight lows of 6 bits in 12 bytes."""
    first, second, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    four, six = np.uint8(4), np.uint8(6)
    # The first four have bytes of their own, whose two upper bits are the upper bits of the last
    # four; the four lower bits of these are in the last bytes, with those of the lows.
    scales = [first & np.uint8(63), (rest & np.uint8(15)) | (first >> six << four)]
    lows = [second & np.uint8(63), (rest >> four) | (second >> six << four)]
    return np.hstack(scales).astype(np.float32), np.hstack(lows).astype(np.float32)


def _with_lows(raw: Raw, codes: Array) -> Groups:
    scales, lows = _six_bits(raw[:, 4:16])
    return Groups(codes, _half(raw, 0) * scales, _half(raw, 2) * lows)


def _q4_k(raw: Raw) -> Groups:
    return _with_lows(raw, _nibbles(raw[:, 16:], 32))


def _q5_k(raw: Raw) -> Groups:
    return _with_lows(raw, _nibbles(raw[:, 48:], 32) | _planes(raw[:, 16:48], 32, 1) << np.uint8(4))


def _q6_k(raw: Raw) -> Groups:
    low, high = _nibbles(raw[:, :128], 64), _planes(raw[:, 128:192], 32, 2)
    codes = (low | high << np.uint8(4)).astype(np.int8) - np.int8(32)
    scales = raw[:, 192:208].view(np.int8).astype(np.float32)
    return Groups(codes, _half(raw, 208) * scales)


def _iq4_xs(raw: Raw) -> Groups:
    top = np.ascontiguousarray(raw[:, 2:4]).view("<u2").astype(np.uint16)
    high = (top >> np.arange(0, 16, 2, dtype=np.uint16)) & np.uint16(3)
    low = (raw[:, 4:8, None] >> np.array([0, 4], np.uint8)) & np.uint8(15)
    scales = (low.reshape(len(raw), 8) | high.astype(np.uint8) << np.uint8(4)).astype(np.float32)
    codes = _CURVE[_nibbles(raw[:, 8:])]
    return Groups(codes, _half(raw, 0) * (scales - 32))


BLOCKS: Final[dict[int, BlockType]] = {
    2: BlockType("Q4_0", 32, 18, _q4_0, lowest=-8),
    3: BlockType("Q4_1", 32, 20, _q4_1, lowest=0),
    6: BlockType("Q5_0", 32, 22, _q5_0),
    7: BlockType("Q5_1", 32, 24, _q5_1),
    8: BlockType("Q8_0", 32, 34, _q8_0),
    10: BlockType("Q2_K", 256, 84, _q2_k, lowest=0),
    11: BlockType("Q3_K", 256, 110, _q3_k, lowest=-4),
    12: BlockType("Q4_K", 256, 144, _q4_k, lowest=0),
    13: BlockType("Q5_K", 256, 176, _q5_k),
    14: BlockType("Q6_K", 256, 210, _q6_k),
    20: BlockType("IQ4_NL", 32, 18, _iq4_nl),
    23: BlockType("IQ4_XS", 256, 136, _iq4_xs),
}
"""By the number that the format has for them."""
UNREAD: Final[dict[int, str]] = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S",
    22: "IQ2_S", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip
"""Types that the format has, and Weft does not read."""
