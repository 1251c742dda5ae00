"""Object files and shared libraries of Linux: renaming and hiding what an object defines, an
archive of objects with its index, and what a library is for and needs."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from weft.foundation.errors import UserError

MACHINES: Final = {62: "x86_64", 183: "aarch64"}
_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_DYNAMIC: Final = struct.Struct("<qQ")
_SYMTAB, _STRTAB, _DYNAMIC_TABLE, _DYNSYM = 2, 3, 6, 11
_GLOBAL, _WEAK = 1, 2
_HIDDEN: Final = 2
_NEEDED: Final = 1


@dataclass(frozen=True)
class _Section:
    place: int
    """Of its record in the file."""
    type: int
    offset: int
    size: int
    link: int


class Elf:
    """A file for a little-endian machine of 64 bits."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        try:
            head = _HEADER.unpack_from(data)
            self.machine = MACHINES.get(head[2], f"machine {head[2]}")
            self.sections = list(self._sections(head[6], head[12]))
        except struct.error:
            head = (b"",)
        if head[0][:6] != b"\x7fELF\x02\x01":
            raise UserError("it is not a 64-bit ELF file")

    def _sections(self, table: int, count: int) -> Iterator[_Section]:
        for number in range(count):
            place = table + number * _SECTION.size
            _, kind, _, _, offset, size, link, *_ = _SECTION.unpack_from(self.data, place)
            yield _Section(place, kind, offset, size, link)

    def of_type(self, kind: int) -> _Section | None:
        return next((section for section in self.sections if section.type == kind), None)

    def text(self, table: _Section, at: int) -> str:
        start = table.offset + at
        return self.data[start : self.data.index(b"\0", start)].decode()

    def symbols(self, kind: int) -> Iterator[tuple[int, str, int, int]]:
        """Place, name, information and section of all symbols of a table."""
        table = self.of_type(kind)
        if table is None:
            return
        names = self.sections[table.link]
        for place in range(table.offset, table.offset + table.size, _SYMBOL.size):
            name, info, _, section, _, _ = _SYMBOL.unpack_from(self.data, place)
            yield place, self.text(names, name), info, section

    @property
    def needed(self) -> list[str]:
        """The libraries that it is linked with."""
        table = self.of_type(_DYNAMIC_TABLE)
        if table is None:
            return []
        names, found = self.sections[table.link], []
        for place in range(table.offset, table.offset + table.size, _DYNAMIC.size):
            tag, value = _DYNAMIC.unpack_from(self.data, place)
            if tag == _NEEDED:
                found.append(self.text(names, value))
        return found

    @property
    def exported(self) -> list[str]:
        """What others may use of a shared library."""
        found = self.symbols(_DYNSYM)
        return sorted(name for _, name, info, at in found if at and info >> 4 in (_GLOBAL, _WEAK))


def renamed(code: bytes, name_of: Callable[[str], str], keep: frozenset[str]) -> bytes:
    """An object file whose symbols have other names, but for those of the C library, and in which
    those that it defines are hidden."""
    elf = Elf(code)
    table = elf.of_type(_SYMTAB)
    if table is None:
        return code
    names = elf.sections[table.link]
    texts = bytearray(code[names.offset : names.offset + names.size])
    made = bytearray(code)
    for place, name, info, section in list(elf.symbols(_SYMTAB)):
        if info >> 4 not in (_GLOBAL, _WEAK) or name in keep or not name:
            continue
        struct.pack_into("<I", made, place, len(texts))
        texts += name_of(name).encode() + b"\0"
        if section:
            # The byte behind name (4 bytes) and information (1): the lower two bits are the
            # visibility.
            made[place + 5] = _HIDDEN
    made += bytes(-len(made) % 8)
    # The new names come last; the old ones, which sections may have too, stay in front of them.
    # Of a section's record: name and kind (4 bytes each), flags and address (8 each), then offset
    # and size.
    struct.pack_into("<QQ", made, names.place + 24, len(made), len(texts))
    return bytes(made + texts)


def archive(members: Mapping[str, bytes]) -> bytes:
    """An archive of object files with the index that linkers want; the same bytes every time."""
    symbols: list[tuple[str, int]] = []
    names = bytearray()
    places: list[int] = []
    for number, (name, code) in enumerate(members.items()):
        places.append(len(names))
        names += f"{name}/\n".encode()
        found = Elf(code).symbols(_SYMTAB)
        symbols += [(n, number) for _, n, info, at in found if at and info >> 4 in (_GLOBAL, _WEAK)]
    listed = b"".join(name.encode() + b"\0" for name, _ in symbols)
    # The index: how many symbols, big-endian, for each where its member begins, then the names.
    # Members have 60 bytes before them and begin at even places. Names of members do not fit their
    # 16 bytes: they lie in a member `//`, and `/number` says where.
    index_size = 4 + 4 * len(symbols) + len(listed)
    start = 8 + 60 + index_size + index_size % 2 + 60 + len(names) + len(names) % 2
    offsets: list[int] = []
    for code in members.values():
        offsets.append(start)
        start += 60 + len(code) + len(code) % 2
    index = struct.pack(">I", len(symbols))
    index += b"".join(struct.pack(">I", offsets[number]) for _, number in symbols) + listed
    parts = [b"!<arch>\n", _member("/", index), _member("//", bytes(names))]
    coded = zip(places, members.values(), strict=True)
    parts += [_member(f"/{place}", code) for place, code in coded]
    return b"".join(parts)


def _member(name: str, data: bytes) -> bytes:
    head = f"{name:<16}{0:<12}{0:<6}{0:<6}{'644':<8}{len(data):<10}`\n".encode()
    return head + data + b"\n" * (len(data) % 2)
