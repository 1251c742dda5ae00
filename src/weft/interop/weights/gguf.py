"""One GGUF file, as llama.cpp writes them: facts by name, a table of tensors, their blocks.

    "GGUF" version:u32 tensors:u64 facts:u64
    fact    name:string type:u32 value
    tensor  name:string axes:u32 sizes:u64... type:u32 offset:u64     (the last axis comes first)

Numbers are little-endian, strings a u64 of bytes and UTF-8. `gguf_blocks` says what blocks mean.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from weft.foundation.dtypes import BY_NAME
from weft.foundation.errors import UserError
from weft.foundation.whole_numbers import round_up
from weft.interop.weights.gguf_blocks import BLOCKS, UNREAD, BlockType, Groups
from weft.interop.weights.mapped import Array, Place, array_at, check_places, checked_shape

MAGIC: Final = b"GGUF"
_PLAIN: Final[dict[int, str]] = {
    0: "f32", 1: "f16", 24: "si8", 25: "si16", 26: "si32", 27: "si64", 28: "f64", 30: "bf16",
}  # fmt: skip
_NUMBERS: Final[dict[int, str]] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_DEEPEST: Final = 4
_MOST_AXES: Final = 4
# The length of a name, the number of axes, the type, the offset: 8 + 4 + 4 + 8; and of a name, the
# type, a byte: 8 + 4 + 1.
_SMALLEST_TENSOR: Final = 24
_SMALLEST_FACT: Final = 13
"""Bytes of an entry at least, against counts that no file of this size can have."""


@dataclass(frozen=True)
class Entry:
    """A tensor of the table: its elements in rows of blocks, or one by one."""

    kind: int
    shape: tuple[int, ...]
    start: int

    @property
    def blocks(self) -> BlockType | None:
        return BLOCKS.get(self.kind)

    @property
    def size(self) -> int:
        if self.blocks is None:
            return math.prod(self.shape) * BY_NAME[_PLAIN[self.kind]].storage_bytes
        return math.prod(self.shape) // self.blocks.elements * self.blocks.bytes


@dataclass(frozen=True)
class Gguf:
    """A file: its facts, and its tensors where they lie."""

    data: memoryview
    facts: dict[str, Any]
    entries: dict[str, Entry]

    def array(self, name: str, dtype: str = "f32") -> Array:
        """The elements of a tensor; those in blocks are computed, in this dtype."""
        entry = self.entries[name]
        if entry.blocks is None:
            return array_at(self.data, entry.start, BY_NAME[_PLAIN[entry.kind]], entry.shape)
        raw = self.data[entry.start : entry.start + entry.size]
        return entry.blocks.elements_of(raw, BY_NAME[dtype].numpy).reshape(entry.shape)

    def groups(self, name: str) -> Groups | None:
        """The few bits of a tensor in blocks, row by row, with their scales; None for others."""
        entry = self.entries[name]
        if entry.blocks is None or not math.prod(entry.shape):
            return None
        found = entry.blocks.groups_of(self.data[entry.start : entry.start + entry.size])
        rows = entry.shape[:-1]
        lows = None if found.lows is None else found.lows.reshape(*rows, -1)
        return Groups(found.codes.reshape(*rows, -1), found.scales.reshape(*rows, -1), lows)


def read_gguf(path: Path, data: memoryview) -> Gguf:
    """The table of a file, checked."""
    try:
        return _parse_gguf(data)
    except ValueError as error:
        raise UserError(f"[load] {path} is not a GGUF file that Weft reads: {error}") from None


class _Reader:
    """A place in the bytes of a file that moves on."""

    def __init__(self, data: memoryview) -> None:
        self.data, self.at = data, 0

    def raw(self, size: int) -> bytes:
        left = len(self.data) - self.at
        if size > left:
            raise ValueError(f"{size} bytes are wanted at byte {self.at}, and {left} are left")
        self.at += size
        return bytes(self.data[self.at - size : self.at])

    def number(self, form: str) -> Any:
        return struct.unpack(f"<{form}", self.raw(struct.calcsize(f"<{form}")))[0]

    def count(self, smallest: int) -> int:
        """A count of things that take so many bytes each at least."""
        found = int(self.number("Q"))
        if found * smallest > len(self.data) - self.at:
            raise ValueError(f"{found} entries are announced at byte {self.at}: too many for it")
        return found

    def string(self) -> str:
        try:
            return self.raw(self.number("Q")).decode()
        except UnicodeDecodeError:
            raise ValueError(f"the text that ends at byte {self.at} is not UTF-8") from None

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY or depth == _DEEPEST:
            raise ValueError(f"a fact before byte {self.at} has the type {kind}")
        return self.items(depth)

    def items(self, depth: int) -> list[Any]:
        kind = self.number("I")
        if kind not in _NUMBERS:
            return [self.value(kind, depth + 1) for _ in range(self.count(8))]
        form = f"<{_NUMBERS[kind]}"
        count = self.count(struct.calcsize(form))
        return [
            each for (each,) in struct.iter_unpack(form, self.raw(count * struct.calcsize(form)))
        ]


def _parse_gguf(data: memoryview) -> Gguf:
    reader = _Reader(data)
    if reader.raw(4) != MAGIC:
        raise ValueError("it does not begin with GGUF")
    version = reader.number("I")
    if version not in (2, 3):
        # A small number with its bytes in the other order is a large one.
        order = ", or its numbers are big-endian" if version >= 1 << 16 else ""
        raise ValueError(f"its version is {version}, and Weft reads 2 and 3{order}")
    tensors = reader.count(_SMALLEST_TENSOR)
    facts = _read_facts(reader)
    entries = [_read_tensor_line(reader) for _ in range(tensors)]
    begin = round_up(reader.at, _alignment(facts))
    return Gguf(data, facts, _place_tensors(entries, begin, len(data), _alignment(facts)))


def _read_facts(reader: _Reader) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for _ in range(reader.count(_SMALLEST_FACT)):
        name = reader.string()
        if name in facts:
            raise ValueError(f"the fact {name[:80]!r} appears twice in it")
        facts[name] = reader.value(reader.number("I"))
    return facts


def _alignment(facts: dict[str, Any]) -> int:
    found = facts.get("general.alignment", 32)
    if type(found) is not int or not 8 <= found <= 1 << 20 or found % 8:
        raise ValueError(f"general.alignment is {str(found)[:40]}")
    return found


def _read_tensor_line(reader: _Reader) -> tuple[str, Entry]:
    """One line of the table; its place counts from the beginning of the elements."""
    name = reader.string()
    short, axes = repr(name[:80]), reader.number("I")
    if axes > _MOST_AXES:
        raise ValueError(f"{short} has {axes} axes, and {_MOST_AXES} are the most")
    shape = checked_shape(short, [reader.number("Q") for _ in range(axes)][::-1])
    kind, start = reader.number("I"), reader.number("Q")
    block = BLOCKS.get(kind)
    if block is None and kind not in _PLAIN:
        what = UNREAD.get(kind, f"of the type {kind}")
        raise ValueError(f"{short} is {what}, which Weft does not read")
    if block is not None and (not shape or shape[-1] % block.elements):
        raise ValueError(f"{short} has rows that are not whole blocks of {block.elements}: {shape}")
    return name, Entry(kind, shape, start)


def _place_tensors(
    entries: list[tuple[str, Entry]], begin: int, end: int, alignment: int
) -> dict[str, Entry]:
    """The tensors with their places in the file."""
    found: dict[str, Entry] = {}
    for name, entry in entries:
        if name in found:
            raise ValueError(f"the tensor {name[:80]!r} appears twice in it")
        if entry.start % alignment:
            raise ValueError(
                f"{name[:80]!r} begins at {entry.start}, not a multiple of {alignment}"
            )
        found[name] = Entry(entry.kind, entry.shape, begin + entry.start)
    places = [Place(repr(name[:80]), entry.start, entry.size) for name, entry in found.items()]
    check_places(places, end, dense=False)
    return found
