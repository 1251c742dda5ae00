"""Random array contents: the same for a seed on every machine, and of known facts.

Everything is integer arithmetic: the bits are those of SplitMix64, and floats are made as whole
multiples of a power of two, so nothing rounds on the way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import FP8_E4M3, I1, DType
from weft.foundation.errors import UserError
from weft.ptir.ir import Program
from weft.ptir.types import Symbol, TensorType, leaves
from weft.testing.choices import GOLDEN, MIXING, mixed
from weft.testing.facts import Facts, part_dtype

Array = NDArray[Any]

_FULL = 2**64


class DataSource:
    """Arrays one after the other, each from a stream of its own."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._stream = 0

    def words(self, count: int) -> Array:
        """`count` random 64-bit words."""
        self._stream += 1
        start = mixed(mixed(self._seed) + self._stream)
        with np.errstate(over="ignore"):
            words = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN)
            words += np.uint64(start)
            for shift, factor in MIXING:
                words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
        return np.asarray(words ^ (words >> np.uint64(31)))

    def integers(self, shape: Sequence[int], low: int, high: int) -> Array:
        """Whole numbers from `low` to `high`, as u64 where they exceed si64, else as si64."""
        words = self.words(math.prod(shape)).reshape(shape)
        span = high - low + 1
        offsets = words % np.uint64(span) if span < _FULL else words
        with np.errstate(over="ignore"):
            numbers = np.asarray(offsets + np.uint64(low % _FULL))
        return numbers if high >= 2**63 else numbers.view(np.int64)

    def array(self, dtype: DType, shape: Sequence[int], facts: Facts) -> Array:
        """An array with these facts; a float's step must be given."""
        if dtype is I1:
            return self.integers(shape, 0, 1).astype(np.bool_)
        if dtype.is_integer:
            return self.integers(shape, int(facts.low), int(facts.high)).astype(dtype.numpy)
        if dtype.is_complex:
            made = np.empty(tuple(shape), dtype.numpy)
            made.real, made.imag = (self._floats(part_dtype(dtype), shape, facts) for _ in range(2))
            return made
        return self._floats(dtype, shape, facts)

    def _floats(self, dtype: DType, shape: Sequence[int], facts: Facts) -> Array:
        step = facts.step or 1.0
        low, high = math.ceil(facts.low / step), math.floor(facts.high / step)
        values = self.integers(shape, low, high).astype(np.float64) * step
        if facts.special:
            values = self._sprinkle_extremes(values, dtype, zeros=facts.low <= 0 <= facts.high)
        return (
            np.asarray(values)
            .astype(np.float32 if dtype.bits < 32 else dtype.numpy)
            .astype(dtype.numpy)
        )

    def _sprinkle_extremes(self, values: Array, dtype: DType, *, zeros: bool) -> Array:
        """About one element in six becomes NaN, an infinity, or (where it is in range) -0."""
        kinds = [math.nan] if dtype is FP8_E4M3 else [math.nan, math.inf, -math.inf]
        kinds += [-0.0] if zeros else []
        chosen = self.integers(values.shape, 0, 6 * len(kinds) - 1)
        return np.where(chosen < len(kinds), np.asarray(kinds)[chosen % len(kinds)], values)


def random_inputs(program: Program, seed: int = 0, *, size: int = 4) -> list[Array]:
    """Inputs for a program of which only the signature is known: floats are multiples of 1/64 in
    [-2, 2], i1 is random, every symbol is `size`. Integers are 0 or 1: they may be indices, whose
    range the signature does not tell, and those two are right wherever an axis has two positions.
    """
    if size < 0:
        raise UserError(f"size {size} of the dynamic dims is negative")
    source = DataSource(seed)
    kinds = [leaf for kind in program.main.parameters for leaf in leaves(kind)]
    return [
        source.array(kind.dtype, _sizes_for_symbols(kind, size), _range_of_dtype(kind.dtype))
        for kind in kinds
    ]


def _sizes_for_symbols(kind: TensorType, size: int) -> tuple[int, ...]:
    return tuple(size if isinstance(dim, Symbol) else dim for dim in kind.shape)


def _range_of_dtype(dtype: DType) -> Facts:
    if not (dtype.is_float or dtype.is_complex):
        return Facts(0, 1)
    precision = part_dtype(dtype).precision
    return Facts(-2.0, 2.0, max(2.0**-6, 4.0 / 2**precision))
