"""Matrix fragments: which element each lane of a warp holds, and what the instructions do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.codegen.gpu.interp_memory import Array, from_bytes, swizzled
from weft.codegen.gpu.swizzle import Major, Swizzle
from weft.foundation.dtypes import DType

_LANE = np.arange(32)
_BITS = {0: 0, 1: 3, 2: 2, 3: 1}
"""Swizzle bits, by the layout field of a descriptor."""


def operand_places(start: int, bits: int, offset: int, major: Major, count: int) -> Array:
    """The shared byte of each element [outer, k] of a 16-deep operand, from its descriptor.

    The descriptor's fields are decoded here as the hardware does: start address, leading and stride
    offsets, and the pattern, which is applied to the final address.
    """
    leading, stride = (bits >> 16 & 0x3FFF) * 16, (bits >> 32 & 0x3FFF) * 16
    swizzle = Swizzle(_BITS[bits >> 62])
    span = swizzle.span
    outer, k = np.arange(count)[:, None], np.arange(16)[None, :]
    if major is Major.K:
        plain = outer // 8 * stride + outer % 8 * span + k * 2
    else:
        wide = span // 2
        plain = outer // wide * leading + outer % wide * 2 + k // 8 * stride + k % 8 * span
    return swizzled(swizzle, start + offset + plain)


def apply_wgmma(acc: Array, a: Array, b: Array, dtype: DType, *, accumulate: bool) -> None:
    """A warp's 16 rows of `acc (+)= a @ b`; operands come as the bytes of [outer, k] elements."""
    wide = [from_bytes(side, dtype)[..., 0].astype(np.float32) for side in (a, b)]
    product = wide[0] @ wide[1].T
    place = np.arange(product.shape[1] // 2)[:, None]
    row = _LANE // 4 + 8 * (place % 4 // 2)
    column = 8 * (place // 4) + _LANE % 4 * 2 + place % 2
    values = product[row, column]
    acc[:] = acc + values if accumulate else values


def load_matrices(registers: Array, first: int, rows: Array, *, transposed: bool) -> None:
    """Four 8 x 8 matrices from the 16-byte rows that the lanes point at."""
    elements = np.ascontiguousarray(rows).view(np.uint16).reshape(4, 8, 8)
    for number in range(4):
        matrix = elements[number].T if transposed else elements[number]
        low = matrix[_LANE // 4, _LANE % 4 * 2].astype(np.uint32)
        high = matrix[_LANE // 4, _LANE % 4 * 2 + 1].astype(np.uint32)
        registers[first + number] = low | high << 16


def matrix_rows(registers: Array, first: int, count: int) -> Array:
    """The 16-byte rows of 8 x 8 matrices held in registers, in the order lanes point at them."""
    elements = np.zeros((count, 8, 8), np.uint16)
    for number in range(count):
        pair = registers[first + number].view(np.uint32)
        elements[number, _LANE // 4, _LANE % 4 * 2] = pair & 0xFFFF
        elements[number, _LANE // 4, _LANE % 4 * 2 + 1] = pair >> 16
    return elements.reshape(8 * count, 8).view(np.uint8)


def apply_mma(arrays: Sequence[Array], at: Sequence[int], dtype: DType) -> None:
    """`acc[16 x 8] += a[16 x 16] b[16 x 8]` on the fragments of a warp."""
    acc, a, b = arrays
    left = np.zeros((16, 16), np.float32)
    right = np.zeros((16, 8), np.float32)
    for number in range(4):
        pair = _halves(a[at[1] + number], dtype)
        row, column = _LANE // 4 + 8 * (number % 2), _LANE % 4 * 2 + 8 * (number // 2)
        left[row, column], left[row, column + 1] = pair
    for number in range(2):
        pair = _halves(b[at[2] + number], dtype)
        row = _LANE % 4 * 2 + 8 * number
        right[row, _LANE // 4], right[row + 1, _LANE // 4] = pair
    product = left @ right
    for element in range(4):
        row = _LANE // 4 + 8 * (element // 2)
        acc[at[0] + element] += product[row, _LANE % 4 * 2 + element % 2]


def _halves(register: Array, dtype: DType) -> tuple[Array, Array]:
    pair = np.ascontiguousarray(register)[:, None].view(np.uint16)
    halves = [np.ascontiguousarray(pair[:, i]).view(dtype.numpy) for i in (0, 1)]
    return halves[0].astype(np.float32), halves[1].astype(np.float32)
