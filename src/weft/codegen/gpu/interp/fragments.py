"""Matrix fragments: which element each lane of a warp holds, and what the matrix instructions
compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache

import numpy as np

from weft.codegen.gpu.interp.memory import Array, swizzled
from weft.codegen.gpu.interp.races import Hazard
from weft.codegen.gpu.ir.formats import fragment_registers
from weft.codegen.gpu.ir.swizzle import Major, Swizzle
from weft.foundation.dtypes import F32, F64, DType
from weft.target.matrix_atoms import TINY

_LANE = np.arange(32)
# The layout field counts patterns down: 1 permutes within 128 bytes, which are 2^3 pieces of 16,
# and 3 within 32, which are 2^1.
_BITS = {0: 0, 1: 3, 2: 2, 3: 1}
"""Swizzle bits, by the layout field of a descriptor."""
_DEPTH = 32
"""Bytes of an operand along k."""
_KEPT_BITS = 14
"""Digits of sums of 8-bit floats."""
_UPPER = np.uint32(0xFFFFE000)
"""The bits of an f32 that a number of 11 bits has."""


@lru_cache(maxsize=256)
def operand_places(
    start: int, bits: int, offset: int, major: Major, count: int, size: int
) -> Array:
    """The shared byte of each element [outer, k] of an operand 32 bytes deep, from its descriptor.

    The descriptor's fields are decoded here as the hardware does: start address, leading and stride
    offsets, and the pattern, which is applied to the final address.
    """
    # Offsets are counted in pieces of 16 bytes, in fields of 14 bits.
    leading, stride = (bits >> 16 & 0x3FFF) * 16, (bits >> 32 & 0x3FFF) * 16
    swizzle = Swizzle(_BITS[bits >> 62])
    span = swizzle.span
    outer, k = np.arange(count)[:, None], np.arange(_DEPTH // size)[None, :]
    if major is Major.K:
        # Along k: eight rows of a pattern lie one below the other, and `stride` leads to the next
        # eight.
        plain = outer // 8 * stride + outer % 8 * span + k * size
    elif size != 2:
        raise Hazard(f"operands of {size} bytes must lie along k")
    else:
        # Across k: a pattern has `wide` elements of 16 bits side by side, for eight numbers of k.
        # `leading` leads to the next elements, `stride` to the next eight of k.
        wide = span // 2
        plain = outer // wide * leading + outer % wide * 2 + k // 8 * stride + k % 8 * span
    return swizzled(swizzle, start + offset + plain)


def apply_wgmma(acc: Array, sides: tuple[Array, Array], dtype: DType, *, accumulate: bool) -> None:
    """A warp's 16 rows of `acc (+)= a @ b`; operands come as [outer, k] elements in f32, `dtype` is
    what they were."""
    a, b = sides
    row, column = _result_places(len(b) // 2)
    old = acc if accumulate else np.zeros_like(acc)
    if dtype in TINY:
        acc[:] = _added_coarsely(old, (a[:, None, :] * b[None, :, :])[row, column])
    else:
        # Sums of products of 8-bit integers are exact in f32, at this depth.
        acc[:] = old + (a @ b.T)[row, column].astype(acc.dtype)


@cache
def _result_places(count: int) -> tuple[Array, Array]:
    """Row and column of the results that lanes hold in so many registers."""
    place = np.arange(count)[:, None]
    row = _LANE // 4 + 8 * (place % 4 // 2)
    return row, 8 * (place // 4) + _LANE % 4 * 2 + place % 2


def _added_coarsely(old: Array, products: Array) -> Array:
    """Sums as the units for 8-bit floats make them: every term is cut to the digits that are kept
    of the largest one."""
    terms = np.concatenate([old[..., None], products], axis=-1).astype(np.float64)
    largest = np.frexp(np.abs(terms).max(axis=-1, keepdims=True))[1]
    # frexp has the largest number as f 2^e with f from a half on: its digits, counted from 2^(e -
    # 1), end at 2^(e - kept).
    unit = np.ldexp(1.0, largest - _KEPT_BITS)
    with np.errstate(invalid="ignore"):
        cut = np.where(np.isfinite(terms), np.trunc(terms / unit) * unit, terms)
        return np.asarray(cut.sum(axis=-1), np.float32)


def load_matrices(registers: Array, first: int, rows: Array, *, transposed: bool) -> None:
    """Four 8 x 8 matrices from the 16-byte rows that the lanes point at."""
    elements = np.ascontiguousarray(rows).view(np.uint16).reshape(4, 8, 8)
    if transposed:
        elements = np.ascontiguousarray(elements.transpose(0, 2, 1))
    # Lanes hold the pairs of a matrix one after the other, the first in the lower half.
    registers[first : first + 4] = elements.view(np.uint32).reshape(4, 32)


def matrix_rows(registers: Array, first: int, count: int) -> Array:
    """The 16-byte rows of 8 x 8 matrices held in registers, in the order lanes point at them."""
    pairs = np.ascontiguousarray(registers[first : first + count])
    return pairs.view(np.uint8).reshape(8 * count, 16)


def apply_mma(arrays: Sequence[Array], at: Sequence[int], dtypes: tuple[DType, DType]) -> None:
    """`acc[16 x 8] += a[16 x k] b[k x 8]` on the fragments of a warp."""
    acc, a, b = arrays
    counts = fragment_registers(dtypes[0])
    left = register_matrix(a[at[1] : at[1] + counts[0]], dtypes[0], bands=2)
    right = register_matrix(b[at[2] : at[2] + counts[1]], dtypes[1], bands=1)
    if dtypes[0] is F32:
        with np.errstate(invalid="ignore"):
            upper, lower = zip(_upper_and_lower(left), _upper_and_lower(right), strict=True)
            # The three products of f32 by parts, smallest first; what is left out is lower times
            # lower.
            product = lower[0] @ upper[1].T + upper[0] @ lower[1].T + upper[0] @ upper[1].T
    else:
        product = left @ right.T
    acc[at[0] : at[0] + 4] += product[_result_places(4)].astype(acc.dtype)


def register_matrix(registers: Array, dtype: DType, bands: int) -> Array:
    """The [outer, k] matrix that registers hold. A register has neighbours along k, four lanes a
    row; registers go down the bands of eight rows first, then along k."""
    words = np.ascontiguousarray(registers)[..., None].view(dtype.numpy)
    count, _, each = words.shape
    # A warp is eight rows of four lanes, and each lane's register has `each` neighbours along k.
    parts = words.reshape(count // bands, bands, 8, 4 * each)
    wide = np.float64 if dtype is F64 else np.float32
    return parts.transpose(1, 2, 0, 3).reshape(8 * bands, -1).astype(wide)


def _upper_and_lower(matrix: Array) -> tuple[Array, Array]:
    """The numbers of 11 bits that an f32 is the sum of, up to its last bit."""
    # Half of the last bit that is kept is added, and the 13 bits below are cut: rounded to the
    # nearest, ties away from zero.
    upper = ((matrix.view(np.uint32) + np.uint32(0x1000)) & _UPPER).view(np.float32)
    rest = matrix - upper
    lower = np.where(np.isnan(rest), rest, (rest.view(np.uint32) & _UPPER).view(np.float32))
    return upper, lower
