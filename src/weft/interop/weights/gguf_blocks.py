"""What the blocks of GGUF mean: a few elements that share scales, and how they are packed.

A block type is a function from raw blocks [n, bytes] to elements [n, elements] in f32. In all of
them `d` is a scale in f16. Elements of 4 bits are the low halves of bytes first, then the high
halves; what does not fit into those stands in planes of 1 or 2 bits beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Raw = NDArray[np.uint8]
_AT_ONCE: Final = 1 << 14
"""Blocks that are computed together: the memory in between stays small."""


@dataclass(frozen=True)
class BlockType:
    """A way to pack elements."""

    name: str
    elements: int
    bytes: int
    unpack: Callable[[Raw], Array]

    def elements_of(self, data: memoryview, dtype: Any) -> Array:
        """The elements of blocks one after the other."""
        raw = np.frombuffer(data, np.uint8).reshape(-1, self.bytes)
        found = np.empty((len(raw), self.elements), dtype)
        with np.errstate(all="ignore"):  # a scale may be anything, infinite too
            for start in range(0, len(raw), _AT_ONCE):
                found[start : start + _AT_ONCE] = self.unpack(raw[start : start + _AT_ONCE])
        return found.reshape(-1)


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


def _by_group(codes: Array, scales: Array, lows: Array | None = None) -> Array:
    """Codes [n, elements] times scales [n, groups] less lows, each for its share of a block."""
    grouped = codes.reshape(len(codes), scales.shape[1], -1).astype(np.float32)
    found: Array = grouped * scales[:, :, None]
    return (found if lows is None else found - lows[:, :, None]).reshape(len(codes), -1)


# -- 32 elements -----------------------------------------------------------------------------------


def _q4_0(raw: Raw) -> Array:
    return _half(raw, 0) * (_nibbles(raw[:, 2:]).astype(np.float32) - 8)


def _q4_1(raw: Raw) -> Array:
    return _half(raw, 0) * _nibbles(raw[:, 4:]).astype(np.float32) + _half(raw, 2)


def _q5_0(raw: Raw) -> Array:
    codes = _nibbles(raw[:, 6:]) | _fifth_bits(raw[:, 2:6])
    return _half(raw, 0) * (codes.astype(np.float32) - 16)


def _q5_1(raw: Raw) -> Array:
    codes = _nibbles(raw[:, 8:]) | _fifth_bits(raw[:, 4:8])
    return _half(raw, 0) * codes.astype(np.float32) + _half(raw, 2)


def _q8_0(raw: Raw) -> Array:
    return _half(raw, 0) * raw[:, 2:].view(np.int8).astype(np.float32)


_CURVE: Final = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
"""What the 16 codes of IQ4 stand for."""


def _iq4_nl(raw: Raw) -> Array:
    values: Array = _CURVE[_nibbles(raw[:, 2:])]
    return _half(raw, 0) * values


# -- 256 elements ----------------------------------------------------------------------------------


def _q2_k(raw: Raw) -> Array:
    scales, codes = raw[:, :16], _planes(raw[:, 16:80], 32, 2)
    steps = _half(raw, 80) * (scales & np.uint8(15)).astype(np.float32)
    lows = _half(raw, 82) * (scales >> np.uint8(4)).astype(np.float32)
    return _by_group(codes, steps, lows)


def _q3_k(raw: Raw) -> Array:
    high = _planes(raw[:, :32], 32, 1)
    codes = _planes(raw[:, 32:96], 32, 2).astype(np.int8) - 4 * (high ^ np.uint8(1)).astype(np.int8)
    packed = raw[:, 96:108]
    low = _nibbles(packed[:, :8], 8)
    top = _planes(packed[:, 8:], 4, 2)
    scales = (low | top << np.uint8(4)).astype(np.float32) - 32
    return _by_group(codes, _half(raw, 108) * scales)


def _six_bits(packed: Raw) -> tuple[Array, Array]:
    """Eight scales and eight lows of 6 bits in 12 bytes."""
    first, second, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    four, six = np.uint8(4), np.uint8(6)
    scales = [first & np.uint8(63), (rest & np.uint8(15)) | (first >> six << four)]
    lows = [second & np.uint8(63), (rest >> four) | (second >> six << four)]
    return np.hstack(scales).astype(np.float32), np.hstack(lows).astype(np.float32)


def _with_lows(raw: Raw, codes: Array) -> Array:
    scales, lows = _six_bits(raw[:, 4:16])
    return _by_group(codes, _half(raw, 0) * scales, _half(raw, 2) * lows)


def _q4_k(raw: Raw) -> Array:
    return _with_lows(raw, _nibbles(raw[:, 16:], 32))


def _q5_k(raw: Raw) -> Array:
    return _with_lows(raw, _nibbles(raw[:, 48:], 32) | _planes(raw[:, 16:48], 32, 1) << np.uint8(4))


def _q6_k(raw: Raw) -> Array:
    low, high = _nibbles(raw[:, :128], 64), _planes(raw[:, 128:192], 32, 2)
    codes = (low | high << np.uint8(4)).astype(np.int8) - np.int8(32)
    scales = raw[:, 192:208].view(np.int8).astype(np.float32)
    return _by_group(codes, _half(raw, 208) * scales)


def _iq4_xs(raw: Raw) -> Array:
    top = np.ascontiguousarray(raw[:, 2:4]).view("<u2").astype(np.uint16)
    high = (top >> np.arange(0, 16, 2, dtype=np.uint16)) & np.uint16(3)
    low = (raw[:, 4:8, None] >> np.array([0, 4], np.uint8)) & np.uint8(15)
    scales = (low.reshape(len(raw), 8) | high.astype(np.uint8) << np.uint8(4)).astype(np.float32)
    codes = _CURVE[_nibbles(raw[:, 8:])]
    return _by_group(codes, _half(raw, 0) * (scales - 32))


BLOCKS: Final[dict[int, BlockType]] = {
    2: BlockType("Q4_0", 32, 18, _q4_0),
    3: BlockType("Q4_1", 32, 20, _q4_1),
    6: BlockType("Q5_0", 32, 22, _q5_0),
    7: BlockType("Q5_1", 32, 24, _q5_1),
    8: BlockType("Q8_0", 32, 34, _q8_0),
    10: BlockType("Q2_K", 256, 84, _q2_k),
    11: BlockType("Q3_K", 256, 110, _q3_k),
    12: BlockType("Q4_K", 256, 144, _q4_k),
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
