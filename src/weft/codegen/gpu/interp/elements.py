"""Element programs (epilogues), loads and stores of matrix fragments, for the lanes of a warp."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from weft.codegen.gpu import ir
from weft.codegen.gpu.interp.memory import Array, from_bytes, in_bounds, swizzled
from weft.codegen.gpu.interp.races import Hazard
from weft.codegen.gpu.interp.scalars import ALL_LANES, Lanes, Value
from weft.codegen.gpu.ir.element_ops import ElementOp, Number
from weft.codegen.gpu.ir.formats import results_per_group
from weft.foundation import functions, numeric, philox
from weft.foundation.dtypes import F32, DType


class Warp(Protocol):
    """What element statements need of the warp that runs them."""

    registers: dict[str, Array]
    elements: dict[str, Array]

    @property
    def block(self) -> Any: ...

    def value(self, expression: Any) -> Value: ...

    def one(self, expression: Any, mask: Lanes) -> int: ...

    def places(self, address: ir.Address) -> Array: ...

    def shared_values(self, places: Array, dtype: DType) -> Array: ...

    def settled(self, array: str) -> Array: ...


def load_element(source: Array, offset: Value, lanes: Lanes, fill: Number) -> Array:
    """An element for every lane, `fill` where a lane is not active."""
    # The usual case, and the only one in which no lane needs another place to look at.
    if lanes is ALL_LANES and source.size:
        in_range(source, offset := np.asarray(offset))
        return np.asarray(source[offset])
    place = np.where(lanes, offset, 0)
    in_range(source, place)
    rest = np.asarray(fill).astype(source.dtype)
    found: Array = np.where(lanes, source[place] if source.size else rest, rest)
    return found.astype(source.dtype)


def in_range(buffer: Array, places: Array) -> None:
    """Raise where an element is used that the buffer does not have."""
    if places.size and not in_bounds(places, max(1, buffer.size)):
        raise Hazard(f"element {int(places.max())} of a buffer of {buffer.size} is used")


def apply(op: ElementOp, values: Mapping[str, Array], dtypes: Mapping[str, DType]) -> Array:
    """The value of one op, as an array of its dtype (f32 where rounding is left to the store)."""
    if op.fn == "const":
        return np.asarray(op.value).astype(op.dtype.numpy)
    args = [values[name] for name in op.args]
    if op.fn == "select":
        return np.where(args[0], args[1], args[2])
    source = dtypes[op.args[0]]
    if op.fn == "cast":
        return numeric.cast(args[0], source, op.dtype)
    # Up to the store such a value stays in f32; functions of bits need the dtype's own.
    if op.deferred_rounding and op.fn not in functions.ON_BITS:
        args = [arg.astype(np.float32, copy=False) for arg in args]
        source = F32
    # x / (1 + y), as the kernels write it.
    if op.fn == "share":
        below = functions.binary("add", source, np.ones_like(args[1]), args[1])
        return functions.binary("div", source, args[0], below)
    if len(args) == 1:
        return functions.unary(op.fn, source, args[0])
    return functions.binary(op.fn, source, args[0], args[1])


def coordinates(fragment: ir.Fragment, warp: Warp) -> tuple[Array, Array]:
    """Row and column of every element of a fragment, as [group, element, lane]."""
    group, element = _fragment_numbers(fragment)
    # Of each group of eight columns a lane has two neighbours of its row and two of the row eight
    # below.
    row = np.asarray(warp.value(fragment.row)) + 8 * (element // 2) + 0 * group
    column = np.asarray(warp.value(fragment.column)) + element % 2 + 8 * group
    rows, columns, _ = np.broadcast_arrays(row, column, np.zeros((1, 1, 32), np.int64))
    return rows, columns


def _fragment_numbers(fragment: ir.Fragment) -> tuple[Array, Array]:
    """The numbers of groups, and of elements in a group."""
    return np.arange(fragment.groups)[:, None, None], np.arange(4)[None, :, None]


def epilogue(node: ir.Epilogue, warp: Warp, mask: Lanes) -> None:
    """Apply an element program to a fragment of an accumulator."""
    fragment = node.fragment
    first = node.acc.index
    acc = warp.registers[node.acc.array][first : first + 4 * fragment.groups]
    row, column = coordinates(fragment, warp)
    start = acc.reshape(fragment.groups, 4, 32)
    values: dict[str, Array] = {node.value: _as_held(start, node.value_dtype)}
    dtypes: dict[str, DType] = {node.value: node.value_dtype}
    with np.errstate(**functions.QUIET):
        for source in node.sources:
            values[source.name] = _source_values(source, fragment, warp, row, column)
            dtypes[source.name] = source.dtype
        for op in node.ops:
            values[op.name] = apply(op, values, dtypes)
            dtypes[op.name] = op.dtype
    result = np.broadcast_to(values[node.result], row.shape)
    _keep(node, warp, result, node.out.index)


def draw_bits(node: ir.DrawBits, warp: Warp) -> None:
    """Which elements of a fragment have a word that is large enough."""
    row, column = coordinates(node.fragment, warp)
    place = np.asarray(warp.value(node.base)) + row * node.row_factor + column * node.column_factor
    inside = (row < node.fragment.rows) & (column < node.fragment.columns)
    _check_shared(node, place[0, 0], row[0, 0], column[0, 0])
    # A block is four words, so its number has 32 bits where that of a word has 34.
    if node.narrow and (place[inside] >> 34).any():
        raise Hazard("the number of a block of a stream has more than 32 bits")
    seed, state = warp.elements[node.seed], warp.elements[node.offset]
    large = philox.words_at(np.maximum(place, 0), seed, state) >= node.least
    group, element = _fragment_numbers(node.fragment)
    bits = large.astype(np.uint32) << (4 * (group % 8) + element).astype(np.uint32)
    out = warp.registers[node.out.array]
    for first in range(0, node.fragment.groups, 8):
        out[node.out.index + first // 8] = np.bitwise_or.reduce(bits[first : first + 8], (0, 1))


def _check_shared(node: ir.DrawBits, place: Array, row: Array, column: Array) -> None:
    """Whether neighbours have words of one block, by the first element of each lane."""
    inside = row % node.shared if node.row_factor == 1 else column % node.shared
    if ((place - inside) % node.shared).any() or row[0] % 8 or column[0] % 8:
        raise Hazard("neighbours do not have the words of one block of their stream")


def _source_values(
    source: ir.ElementSource, fragment: ir.Fragment, warp: Warp, row: Array, column: Array
) -> Array:
    match source:
        case ir.SharedColumns(source=address, dtype=dtype):
            group, element = _fragment_numbers(fragment)
            places = warp.places(address) + 32 * group + 4 * (element % 2)
            return warp.shared_values(places, F32).astype(dtype.numpy)
        case ir.StagedElements(row=start, dtype=dtype, swizzle=swizzle):
            group, element = _fragment_numbers(fragment)
            inside = np.asarray(warp.value(source.column))
            inside = inside + dtype.storage_bytes * (8 * group + element % 2)
            # A pattern repeats after eight rows, each of `span` bytes: the same column eight rows
            # below lies at the same place of the next pattern.
            places = warp.places(start) + inside + 8 * swizzle.span * (element // 2)
            return warp.shared_values(swizzled(swizzle, places), dtype)
        case ir.GlobalElements(buffer=number, row_stride=rows, column_stride=columns):
            buffer = warp.block.arrays[number]
            along = _row_distance(row, source.digits) if source.digits else row * rows
            place = np.asarray(warp.value(source.base)) + along + column * columns
            inside = np.ones(place.shape, bool)
            if rows:
                inside = inside & (row < fragment.rows)
            if columns:
                inside = inside & (column < fragment.columns)
            return load_element(buffer, place, inside, 0)
        case ir.RegisterElements(source=place):
            found = warp.settled(place.array)[place.index :][: 4 * fragment.groups]
            return found.reshape(fragment.groups, 4, 32)
        case ir.RowValues(values=names):
            upper, lower = (warp.elements[name] for name in names)
            return np.where(_fragment_numbers(fragment)[1] // 2 == 0, upper, lower)
        case ir.RandomElements(row_factor=rows, column_factor=columns):
            place = np.asarray(warp.value(source.base)) + row * rows + column * columns
            first = place[:, ::2]
            if source.paired and ((first % 2).any() or (place[:, 1::2] != first + 1).any()):
                raise Hazard("words of a pair are not in one block of their stream")
            seed, state = warp.elements[source.seed], warp.elements[source.offset]
            # Elements on padding are at no place of the stream, and nobody sees them.
            return philox.words_at(np.maximum(place, 0), seed, state)
        case ir.BitElements(source=place, inverted=inverted):
            group, element = _fragment_numbers(fragment)
            found = warp.settled(place.array)[place.index + group[:, 0, 0] // 8]
            bits = found[:, None, :] >> (4 * (group % 8) + element).astype(np.uint32) & 1
            truths: Array = bits.astype(bool) != inverted
            return truths
        case ir.IndexElements(row_factor=rows, column_factor=columns, dtype=dtype):
            index: Array = np.asarray(warp.value(source.base)) + row * rows + column * columns
            return index.astype(dtype.numpy)


def _row_distance(row: Array, digits: Sequence[tuple[int, int]]) -> Array:
    """How far rows are from the first, by the digits of their numbers."""
    found, rest = np.zeros_like(row), row
    for size, stride in reversed(digits):
        found, rest = found + rest % size * stride, rest // size
    return found


def _keep(node: ir.Epilogue, warp: Warp, result: Array, first: int) -> None:
    """Results into registers: pairs of narrow ones, others as they are."""
    out = warp.registers[node.out.array]
    groups, size = node.fragment.groups, node.out_dtype.storage_bytes
    held = np.ascontiguousarray(result.astype(node.out_dtype.numpy))
    if results_per_group(node.out_dtype) == 4:
        out[first : first + 4 * groups] = held.view(out.dtype).reshape(4 * groups, 32)
        return
    wide = held.view(f"u{size}").astype(np.uint32).reshape(groups, 2, 2, 32)
    pairs = wide[:, :, 0] | wide[:, :, 1] << np.uint32(8 * size)
    out[first : first + 2 * groups] = pairs.reshape(-1, 32)


def _as_held(registers: Array, dtype: DType) -> Array:
    """Accumulators as values: sums of unsigned integers are made as signed ones."""
    return registers.view(dtype.numpy) if dtype.is_integer else registers


def store_vectors(node: ir.StGlobalVec, warp: Warp, mask: Lanes) -> None:
    """Store a fragment's results."""
    fragment = node.fragment
    first = node.source.index
    row, column = coordinates(fragment, warp)
    registers = warp.registers[node.source.array]
    if results_per_group(node.dtype) == 4:
        whole = np.ascontiguousarray(registers[first : first + 4 * fragment.groups])
        values = whole.view(node.dtype.numpy).reshape(row.shape)
    else:
        size = node.dtype.storage_bytes
        pairs = registers[first : first + 2 * fragment.groups].reshape(fragment.groups, 2, 32)
        parts = np.stack([pairs, pairs >> np.uint32(8 * size)], axis=2).astype(f"u{size}")
        values = np.ascontiguousarray(parts.reshape(row.shape)).view(node.dtype.numpy)
    target = warp.block.arrays[node.buffer]
    place = np.asarray(warp.value(node.base)) + row * node.row_stride + column * node.column_stride
    inside = (row < fragment.rows) & (column < fragment.columns) & mask
    in_range(target, place[inside])
    target[place[inside]] = values[inside]


def store_row(node: ir.StGlobalRow, warp: Warp, words: Array) -> None:
    """Store the elements of every lane's words that are in its piece of a row."""
    values = from_bytes(words, node.dtype)
    offset, place, count = (
        np.broadcast_to(np.asarray(warp.value(part)), (32,))[:, None]
        for part in (node.offset, node.place, node.count)
    )
    number = place * values.shape[1] + np.arange(values.shape[1])
    inside = number < count
    target = warp.block.arrays[node.buffer]
    if (
        node.vector
        and ((offset + number)[:, :1] * node.dtype.storage_bytes % 16)[inside[:, :1]].any()
    ):
        raise Hazard("a vector of a row is stored beside the lines of memory")
    in_range(target, (offset + number)[inside])
    target[(offset + number)[inside]] = values[inside]
