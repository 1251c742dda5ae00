"""Radix sort: the steps of a stable sort that goes from the lowest digit of the keys up.

    Digits   how many elements of each tile of a row have each digit
    Moved    the elements in the order of the digit, those with the same digit in the order they had
    Starts   where the elements of each key begin, once they are in order

    UpperDigits   a `Digits` that is the first one though lower bits are left out
    UpdatesMoved  a `Moved` that is the first one; pairs get an update in the place of the position

A pass over one digit is `Digits`, sums over the tiles of each digit, and `Moved`. An element's key
is an unsigned number that is lower where the element stands before others. Between passes elements
are pairs of 32 bits: the key, and the position in the row that the element had at first. Of keys
with more bits the lower 32 travel first; when these are done, keys are read again from where the
position says, and the upper 32 travel.

As in `whole_ops`, operands and results are dense and in row-major order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import DType, as_dtype

Array = NDArray[Any]
CARRIED: Final = 32
"""Bits of a key that travel with the position."""


def sort_keys(x: Array, descending: bool = False) -> Array:
    """The keys of elements, as ui64: as many bits as the dtype has. NaN stands after everything
    else, -0 equals +0; `descending` turns all of that around."""
    dtype = as_dtype(x.dtype)
    mask = np.uint64((1 << dtype.bits) - 1)
    keys = _float_keys(x, dtype) if dtype.is_float else _integer_keys(x, dtype)
    return keys ^ mask if descending else keys


def _float_keys(x: Array, dtype: DType) -> Array:
    sign, mask = np.uint64(1 << (dtype.bits - 1)), np.uint64((1 << dtype.bits) - 1)
    raw, highest = (
        np.ascontiguousarray(found).view(f"u{dtype.storage_bytes}").astype(np.uint64)
        for found in (x, np.asarray(dtype.highest, dtype.numpy))
    )
    # Floats of one sign are in the order of their bits, negative ones backwards: those are turned
    # around by inverting all bits, and the others put above them by setting the highest.
    raw = np.where(raw == sign, np.uint64(0), raw)
    keys = np.where(raw & sign, raw ^ mask, raw | sign)
    return np.where((raw & ~sign) > highest, mask, keys)


def _integer_keys(x: Array, dtype: DType) -> Array:
    if not dtype.is_signed:
        return x.astype(np.uint64)
    sign, mask = np.uint64(1 << (dtype.bits - 1)), np.uint64((1 << dtype.bits) - 1)
    # With the sign's bit flipped the lowest number is 0.
    return (x.astype(np.int64).view(np.uint64) & mask) ^ sign


@dataclass(frozen=True)
class Pass:
    """A digit of the keys: `bits` bits from bit `low` on. Of the keys the lowest `key_bits` bits
    count. Rows are cut into tiles of `tile` elements, the last of which may be fewer.

    The first operands are the elements: x, [outer, length], in the pass over the lowest digit, then
    the pairs of the pass before, [outer, length, 2], behind x where keys are read again.
    With several `columns`, x is places, [outer, length / columns, columns], and a key is the place
    among those of all columns: place times columns plus column.
    Where rows lie `apart`, x is an operand for each of them, and so are the last pairs; keys have
    32 bits at most then."""

    outer: int
    length: int
    tile: int
    key_bits: int
    low: int
    bits: int
    descending: bool = False
    columns: int = 1
    apart: bool = False

    @property
    def tiles(self) -> int:
        """Tiles of a row."""
        return -(-self.length // self.tile)

    @property
    def digits(self) -> int:
        """How many digits there are."""
        return 1 << self.bits

    @property
    def is_first(self) -> bool:
        return self.low == 0

    @property
    def is_last(self) -> bool:
        return self.low + self.bits >= self.key_bits

    @property
    def word(self) -> int:
        """Which 32 bits of the keys travel."""
        return self.low // CARRIED

    @property
    def reads_again(self) -> bool:
        """Whether the next bits of the keys begin to travel."""
        return self.low > 0 and self.low % CARRIED == 0

    def keys(self, x: Array) -> Array:
        """The keys of elements, of which some bits may not count."""
        if self.columns == 1:
            return sort_keys(x, self.descending)
        places = x.astype(np.uint64).reshape(-1, self.columns)
        return places * np.uint64(self.columns) + np.arange(self.columns, dtype=np.uint64)

    def elements(self, arrays: tuple[Array, ...]) -> tuple[Array, Array, Array]:
        """The keys of the elements as they stand, their positions, and their digits."""
        shape = (self.outer, self.length)
        if self.is_first:
            positions = np.broadcast_to(np.arange(self.length), shape)
        else:
            pairs = arrays[1 if self.reads_again else 0].reshape(*shape, 2)
            positions = pairs[..., 1].astype(np.int64)
        # Positions say which element each pair is of: the keys that were not carried are read at
        # the place where it stood at first.
        if self.is_first or self.reads_again:
            x = np.stack(arrays[: self.outer]) if self.apart else arrays[0]
            every = self.keys(x).reshape(shape) & np.uint64((1 << self.key_bits) - 1)
            keys = np.take_along_axis(every, positions, 1) >> np.uint64(CARRIED * self.word)
        else:
            keys = pairs[..., 0].astype(np.uint64)
        digits = keys >> np.uint64(self.low % CARRIED) & np.uint64(self.digits - 1)
        return keys & np.uint64((1 << CARRIED) - 1), positions, digits.astype(np.int64)


@dataclass(frozen=True)
class Digits(Pass):
    """Operands: the elements. The result is [outer, digits, tiles], as si32."""

    name: ClassVar[str] = "digits"
    base: ClassVar[int | None] = None

    def evaluate(self, *arrays: Array) -> Array:
        *_, digits = self.elements(arrays)
        found = np.zeros((self.outer, self.digits, self.tiles), np.int32)
        rows = np.arange(self.outer)[:, None]
        np.add.at(found, (rows, digits, np.arange(self.length) // self.tile), 1)
        return found.reshape(-1)


@dataclass(frozen=True)
class Moved(Pass):
    """Operands: the elements, and the sums over `Digits` along each row's tiles. The result is
    pairs, [outer, length, 2], as ui32; with a `count`, the first `count` positions of each row.
    Where rows lie apart each has its own last result; they are evaluated one after the other."""

    name: ClassVar[str] = "moved"
    base: ClassVar[int | None] = None

    count: int = 0

    @property
    def results(self) -> int:
        return self.outer if self.apart and self.is_last else 1

    def evaluate(self, *arrays: Array) -> Array:
        # The sums say nothing new about the result.
        keys, positions, digits = self.elements(arrays)
        order = np.argsort(digits, axis=1, kind="stable")
        positions = np.take_along_axis(positions, order, 1)
        if self.count:
            return positions[:, : self.count].astype(np.int64).reshape(-1)
        keys = np.take_along_axis(keys, order, 1)
        return np.stack([keys, positions], -1).astype(np.uint32).reshape(-1)


@dataclass(frozen=True)
class UpperDigits(Digits):
    """What `Digits` does in the first pass over bits from `low` on. The order of what lies below is
    not asked for."""

    name: ClassVar[str] = "upper_digits"

    @property
    def is_first(self) -> bool:
        return True


@dataclass(frozen=True)
class UpdatesMoved(Moved):
    """Operands: places, updates in their shape, and the sums over `UpperDigits`. What `Moved` does
    in the first pass over bits from `low` on, but that pairs are the key and the update in f32, by
    its bits: whoever takes the pairs in order need not look for updates by their positions."""

    name: ClassVar[str] = "updates_moved"

    @property
    def is_first(self) -> bool:
        return True

    def evaluate(self, *arrays: Array) -> Array:
        keys, _, digits = self.elements(arrays)
        order = np.argsort(digits, axis=1, kind="stable")
        updates = arrays[1].reshape(self.outer, self.length).astype(np.float32).view(np.uint32)
        keys, updates = (np.take_along_axis(found, order, 1) for found in (keys, updates))
        return np.stack([keys, updates], -1).astype(np.uint32).reshape(-1)


@dataclass(frozen=True)
class Starts:
    """Operand: pairs in order, [outer, count, 2], whose keys are below `rows`. The result is how
    many stand before those of each key, and all of them, [outer, rows + 1], as si32. Where rows of
    pairs lie `apart`, each is an operand and has its own result."""

    name: ClassVar[str] = "starts"
    base: ClassVar[int | None] = None

    outer: int
    rows: int
    count: int
    apart: bool = False

    @property
    def results(self) -> int:
        return self.outer if self.apart else 1

    def evaluate(self, *arrays: Array) -> Array:
        keys = np.stack(arrays).reshape(self.outer, self.count, 2)[..., 0]
        wanted = np.arange(self.rows + 1)
        found = [np.searchsorted(row, wanted) for row in keys]
        return np.stack(found).astype(np.int32).reshape(-1)
