"""Ops that no stage decomposes (scatter, sorting, cumulative reductions, factorisations): each is
a plain record with its meaning on NumPy arrays.

    Scatter   out[a, index[a, m], w] = fn(out[a, index[a, m], w], update[a, m, w]), m in order
    Running   out[a, n, w] = x[a, 0, w] fn ... fn x[a, n, w]
    Order     the positions of the first `count` elements of each row, in order
    Totals    each part of a column, combined
    Continued a Running where the totals of parts are known
    Gathered  a Scatter whose updates are known in the order of their places
    Collected the same of a tensor of zeros
    Binned    a Scatter that adds, whose updates are known by the upper bits of their places
    Fourier   discrete Fourier transforms of rows

The steps of sorting by digits are in `digit_sort`, products of groups of rows in `grouped_rows`.

Operands and results are dense and in row-major order; their shapes do not matter, only that they
have the elements that the record says. Indices are in range: whoever makes the record sees to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from weft.foundation import numeric
from weft.foundation.dtypes import SI32, SI64, UI32, UI64, DType, as_dtype
from weft.foundation.functions import REDUCTIONS, running
from weft.foundation.grouped_rows import (
    GroupedRows,
    GroupedTiles,
    GroupSpans,
    GroupTiles,
    OuterRows,
    OuterTiles,
)
from weft.foundation.radix_sort import Digits, Moved, Starts, UpdatesMoved, UpperDigits

Array = NDArray[Any]


@runtime_checkable
class WholeOp(Protocol):
    """What the records have in common."""

    name: ClassVar[str]
    base: ClassVar[int | None]
    """The operand that the result is, but for the elements that the op replaces."""

    def evaluate(self, *arrays: Array) -> Array:
        """The result, flat."""
        ...


@dataclass(frozen=True)
class Scatter:
    """Operands (x, index, update): x is [outer, rows, width], update [outer, count, width]. The
    index is [outer, count], or [outer, count, width] with `each`. `fn` is add, max, min or
    replace."""

    name: ClassVar[str] = "scatter"
    base: ClassVar[int | None] = 0

    fn: str
    outer: int
    rows: int
    width: int
    count: int
    each: bool = False

    def has_any_order(self, dtype: DType) -> bool:
        """Whether updates give the same bits in any order, and machines combine each in one step:
        integers of 32 and 64 bits."""
        return self.fn != "replace" and dtype in (SI32, UI32, SI64, UI64)

    def evaluate(self, *arrays: Array) -> Array:
        x, index, update = arrays
        # With `each` every element of an update has a place of its own, and without one place
        # serves the whole width: the last axis has `width` or 1 elements, and broadcasts.
        place = index.reshape(self.outer, self.count, -1).astype(np.int64)
        first = np.arange(self.outer).reshape(-1, 1, 1) * self.rows
        positions = (place + first) * self.width + np.arange(self.width)
        return combined_at(x, positions, update, self.fn)


def combined_at(x: Array, positions: Array, updates: Array, fn: str) -> Array:
    """The elements of `x` with each update combined into its flat position, one after the other.
    Narrow floats are combined in f32 and rounded once."""
    dtype = as_dtype(x.dtype)
    places, added = positions.reshape(-1), updates.reshape(-1)
    if fn == "replace":
        replaced = np.array(x, order="C").reshape(-1)
        replaced[places] = added
        return replaced
    total = np.array(numeric.widen(x, dtype), order="C").reshape(-1)
    _COMBINE[fn].at(total, places, numeric.widen(added, dtype))
    return numeric.narrow(total, dtype)


_COMBINE = {"add": np.add, "max": np.maximum, "min": np.minimum}


@dataclass(frozen=True)
class Columns:
    """Elements x, [outer, length, width], that are combined along their columns from the first on,
    or with `reverse` from the last on. `fn` is a reduction; floats under 32 bits are combined in
    f32, and running sums of floats added in f64."""

    fn: str
    outer: int
    length: int
    width: int
    reverse: bool = False

    def running(self, x: Array) -> Array:
        """Each element combined with those before it; each result is rounded once."""
        rows = x.reshape(self.outer, self.length, self.width)
        combine = partial(running, REDUCTIONS[self.fn], axis=1, reverse=self.reverse)
        return numeric.compute(combine, as_dtype(x.dtype), rows).reshape(-1)

    def _turn_rows(self, rows: Array) -> Array:
        return np.flip(rows, 1) if self.reverse else rows


@dataclass(frozen=True)
class Running(Columns):
    """Operand: x."""

    name: ClassVar[str] = "running"
    base: ClassVar[int | None] = None

    def evaluate(self, *arrays: Array) -> Array:
        return self.running(arrays[0])


@dataclass(frozen=True)
class InParts(Columns):
    """Columns in parts of `chunk` elements, in the order in which these are combined; the last
    part may be shorter."""

    chunk: int = 1

    @property
    def parts(self) -> int:
        """Parts of a column."""
        return -(-self.length // self.chunk)


@dataclass(frozen=True)
class Totals(InParts):
    """Operand: x. The result is each part combined, [outer, parts, width], not rounded."""

    name: ClassVar[str] = "totals"
    base: ClassVar[int | None] = None

    def evaluate(self, *arrays: Array) -> Array:
        (x,) = arrays
        rows = numeric.widen(x, as_dtype(x.dtype)).reshape(self.outer, self.length, self.width)
        starts = np.arange(0, self.length, self.chunk)
        found = REDUCTIONS[self.fn].reduceat(
            self._turn_rows(rows), starts, axis=1, dtype=rows.dtype
        )
        return np.asarray(found).reshape(-1)


@dataclass(frozen=True)
class Continued(InParts):
    """Operands: x, and the totals of its parts. The result is that of `Running`."""

    name: ClassVar[str] = "continued"
    base: ClassVar[int | None] = None

    def evaluate(self, *arrays: Array) -> Array:
        # The totals say nothing new about the result.
        return self.running(arrays[0])


@dataclass(frozen=True)
class Order:
    """Operand x, [outer, length]. NaN is larger than everything else, -0 equals +0, and equal
    elements keep their order either way."""

    name: ClassVar[str] = "order"
    base: ClassVar[int | None] = None

    outer: int
    length: int
    count: int
    descending: bool = False

    @property
    def pieces(self) -> int:
        """Into how many parts the rows are cut; each sorts its rows in memory of its own."""
        return min(self.outer, _PIECES)

    def workspace(self, element_bytes: int) -> int:
        """Bytes that sorting takes: for each piece the keys and positions of a row, twice."""
        return self.pieces * self.length * 2 * (key_bytes(element_bytes) + 8)

    def evaluate(self, *arrays: Array) -> Array:
        (x,) = arrays
        keys = numeric.widen(x, as_dtype(x.dtype)).reshape(self.outer, self.length)
        return stable_order(keys, self.descending)[:, : self.count].astype(np.int64).reshape(-1)


@dataclass(frozen=True)
class Gathered:
    """Operands (x, update, pairs, starts): what `Scatter` does, where `pairs` [outer, count, 2] are
    the row and the number of each update, in the order of the rows, earlier updates first, and
    `starts` [outer, rows + 1] is where those of each row begin. Rows with `long` updates and more
    are long runs."""

    name: ClassVar[str] = "gathered"
    base: ClassVar[int | None] = 0

    fn: str
    outer: int
    rows: int
    width: int
    count: int
    long: int

    def evaluate(self, *arrays: Array) -> Array:
        # Where rows begin says nothing new about the result.
        x, update, found, _ = arrays
        pairs = found.reshape(self.outer, self.count, 2).astype(np.int64)
        index = np.empty((self.outer, self.count), np.int64)
        # The number of an update says where it stood, the row where it goes: that is the index of a
        # plain scatter.
        np.put_along_axis(index, pairs[..., 1], pairs[..., 0], 1)
        plain = Scatter(self.fn, self.outer, self.rows, self.width, self.count)
        return plain.evaluate(x, index, update)


@dataclass(frozen=True)
class Collected(Gathered):
    """Operands (update, pairs, starts): what `Gathered` does where x is zeros, which nobody needs
    to write first."""

    name: ClassVar[str] = "collected"
    base: ClassVar[int | None] = None

    def evaluate(self, *arrays: Array) -> Array:
        zeros = np.zeros((self.outer, self.rows, self.width), arrays[0].dtype)
        return super().evaluate(zeros, *arrays)


@dataclass(frozen=True)
class Binned:
    """Operands (x, pairs): x is [outer, rows]; `pairs` [outer, count, 2] are the row and the
    update, a f32 by its bits, in the order of the row's bits from `low` on, earlier updates first.
    All updates are added in f32. With `zeros`, x is taken to hold zeros, whatever it holds: it is
    there for its dtype.

    Rows whose upper bits are the same are a bin. The updates of a bin are cut into pieces of `tile`
    updates."""

    name: ClassVar[str] = "binned"
    base: ClassVar[int | None] = None

    outer: int
    rows: int
    count: int
    low: int
    tile: int
    zeros: bool = False

    @property
    def bins(self) -> int:
        """Of each `rows`."""
        return -(-self.rows >> self.low)

    @property
    def stretches(self) -> int:
        """Pieces that as many updates have if they are all in one bin."""
        return -(-self.count // self.tile)

    def evaluate(self, *arrays: Array) -> Array:
        x, pairs = arrays
        found = pairs.reshape(self.outer, self.count, 2)
        rows, added = found[..., 0].astype(np.int64), found[..., 1].view(np.float32)
        dtype = as_dtype(x.dtype)
        total = np.array(numeric.widen(x, dtype), order="C").reshape(-1)
        if self.zeros:
            total = np.zeros(self.outer * self.rows, np.float32)
        first = np.arange(self.outer).reshape(-1, 1) * self.rows
        np.add.at(total, (rows + first).reshape(-1), added.reshape(-1))
        return numeric.narrow(total, dtype)


@dataclass(frozen=True)
class Fourier:
    """Operands (x, roots): x is [outer, length, 2], the parts of complex rows, and `roots` the
    table of `fourier_steps`. The result is the transform of each row, with the other sign where
    `inverse`, and divided by the length where `divided`."""

    name: ClassVar[str] = "fourier"
    base: ClassVar[int | None] = None

    outer: int
    length: int
    inverse: bool = False
    divided: bool = False

    def evaluate(self, *arrays: Array) -> Array:
        # The table says nothing new about the result.
        x = arrays[0].reshape(self.outer, self.length, 2)
        rows = x[..., 0].astype(np.float64) + 1j * x[..., 1].astype(np.float64)
        sums = np.fft.ifft(rows, norm="forward") if self.inverse else np.fft.fft(rows)
        found = sums / self.length if self.divided else sums
        return np.stack([found.real, found.imag], -1).astype(x.dtype).reshape(-1)


_PIECES = 16


def key_bytes(element_bytes: int) -> int:
    """Elements are sorted by keys of 32 or 64 bits."""
    return max(4, element_bytes)


def stable_order(keys: Array, descending: bool) -> Array:
    """The positions along axis 1 in sorted order; equal elements keep their order either way."""
    if not descending:
        return np.argsort(keys, axis=1, kind="stable")
    # Sorting back to front and reading the result backwards keeps ties in front-to-back order.
    backwards = np.argsort(np.flip(keys, 1), axis=1, kind="stable")
    return np.asarray(np.flip(keys.shape[1] - 1 - backwards, 1))


_EVERY: tuple[type[WholeOp], ...] = (
    *(Scatter, Gathered, Collected, Binned, Running, Totals, Continued, Order, Fourier),
    *(Digits, UpperDigits, Moved, UpdatesMoved, Starts),
    *(GroupedRows, GroupTiles, GroupedTiles, OuterRows, GroupSpans, OuterTiles),
)
_KINDS = {kind.name: kind for kind in _EVERY}


def results_of(op: WholeOp, arrays: Sequence[Array]) -> list[Array]:
    """All results of an op, flat."""
    found = op.evaluate(*arrays)
    return np.split(found, op.results) if isinstance(op, Moved | Starts) else [found]


def op_text(op: WholeOp) -> str:
    """`scatter(fn=add, outer=1, ...)`."""
    fields = ", ".join(f"{name}={value}" for name, value in vars(op).items())
    return f"{op.name}({fields})"


def is_written(text: str) -> bool:
    """Whether a text may be one that `write` wrote."""
    return text.partition("(")[0] in _KINDS and text.endswith(")")


def read_op(text: str) -> WholeOp:
    """The record that `write` wrote."""
    name, _, rest = text.partition("(")
    fields: dict[str, Any] = {}
    for part in rest.removesuffix(")").split(", "):
        key, _, value = part.partition("=")
        fields[key] = _parse_value(value)
    return _KINDS[name](**fields)


def _parse_value(text: str) -> bool | int | str:
    if text in ("True", "False"):
        return text == "True"
    return int(text) if text.isdecimal() else text
