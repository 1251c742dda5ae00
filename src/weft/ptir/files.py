"""Reading and writing programs: four formats, told apart by content when reading."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final

from weft.foundation.calls import told_outside
from weft.foundation.errors import ResourceExceeded, SpecViolation, UserError
from weft.foundation.garbage_collector import collector_paused
from weft.ptir import decompose, text
from weft.ptir.codecs import bincode, display, json_reader, json_writer
from weft.ptir.ir import Program
from weft.ptir.verify import check_program

FORMATS: Final = ("json", "text", "display", "bincode")
EXTENSIONS: Final = {
    ".json": "json",
    ".bin": "bincode",
    ".bincode": "bincode",
    ".txt": "text",
    ".ptir": "display",
}
MOST_OF_A_STREAM: Final = 1 << 30
"""Bytes that are read of a pipe or a device, which do not say how many they have."""
_FIRST: Final = re.compile(r"\S")


@told_outside
def dumps(program: Program, format: str = "text", *, portable: bool = False) -> str | bytes:
    """The program in one of the formats; bytes for bincode, a string for the others.

    With `portable` it is written in ops of the public contract only: what goes beyond them is
    decomposed, and refused by name (`Unimplemented`) where it has no exact decomposition.
    """
    check_program("dumps", program)
    if portable:
        program = decompose.portable(program)
    if format == "json":
        with collector_paused:
            return json_writer.encode(program)
    if format == "bincode":
        return bincode.encode(program)
    if format == "display":
        return display.encode(program)
    if format == "text":
        return text.print_program(program)
    raise UserError(f"unknown format {format!r}; the formats are {', '.join(FORMATS)}")


@told_outside
def loads(data: bytes | str) -> Program:
    """The program in `data`, whatever its format. Structure is checked; `verify` checks the
    rest."""
    if not isinstance(data, str | bytes | bytearray):
        raise UserError(f"loads takes bytes or text, not {type(data).__name__}")
    try:
        with collector_paused:
            return _from_text(data) if isinstance(data, str) else _from_bytes(bytes(data))
    except MemoryError:
        raise ResourceExceeded("out of memory while reading a program") from None


def _from_bytes(data: bytes) -> Program:
    try:
        _refuse_wide_text(data)
        return bincode.decode(data) if _is_bincode(data) else _from_text(_as_text(data))
    except SpecViolation as error:
        other = other_format(data)
        if other is None:
            raise
        why = f"the file is not a program: it looks like {other}"
        raise SpecViolation(error.code, why, "give a program as text, JSON or bincode") from None


def _refuse_wide_text(data: bytes) -> None:
    """Text of two or four bytes a letter begins with a mark, or with every second byte NUL; a
    number of bincode's that did would be no length of anything."""
    marked = data.startswith((b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff"))
    halves = data[0:8:2], data[1:8:2]
    alternates = any(a == bytes(4) and 0 not in b for a, b in (halves, halves[::-1]))
    if marked or alternates:
        raise SpecViolation(
            "MalformedText", "the file is UTF-16 or UTF-32 text, not UTF-8", "save it as UTF-8"
        )


def _is_bincode(data: bytes) -> bool:
    """Whether it can be bincode, which begins with a small number of 64 bits: text has no NUL."""
    return b"\0" in data[:8]


def _as_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise SpecViolation(
            "MalformedText", f"the file is not UTF-8 text: byte {error.start} is wrong"
        ) from None


def _from_text(data: str) -> Program:
    data = data.removeprefix("\ufeff")
    start = _FIRST.search(data)
    if start is None:
        raise SpecViolation("MalformedText", "the file is empty")
    if start.group() in ("{", "["):
        return json_reader.decode(data)
    if data.startswith("program @", start.start()):
        raise SpecViolation(
            "MalformedText",
            "this is the display form, which leaves out literal bytes and cannot be read back",
            "write the program with format='text' or 'json'",
        )
    return text.parse_program(data)


@told_outside
def load(path: str | Path) -> Program:
    """The program in a file, whatever its format."""
    return loads(read_bytes(path))


def read_bytes(path: str | Path) -> bytes:
    """A file's bytes; a file that cannot be read is the caller's mistake, told in a sentence."""
    try:
        with Path(path).open("rb") as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return file.read()
            data = file.read(MOST_OF_A_STREAM + 1)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise UserError(f"{str(path)!r} cannot be the name of a file: {error}") from None
    except MemoryError:
        raise ResourceExceeded(f"out of memory while reading {path}") from None
    if len(data) > MOST_OF_A_STREAM:
        raise ResourceExceeded(
            f"{path} is not a regular file and has no end after {MOST_OF_A_STREAM:,} bytes; if it "
            "has an end, write it to a file first"
        )
    return data


@told_outside
def save(
    program: Program, path: str | Path, format: str | None = None, *, portable: bool = False
) -> None:
    """Write a program; without `format`, the file's extension decides. `portable` as in `dumps`."""
    chosen = format or format_of(path)
    data = dumps(program, chosen, portable=portable)
    try:
        Path(path).write_bytes(data if isinstance(data, bytes) else data.encode())
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise UserError(f"{str(path)!r} cannot be the name of a file: {error}") from None


def format_of(path: str | Path) -> str:
    """The format that a file name asks for."""
    suffix = Path(path).suffix
    if suffix not in EXTENSIONS:
        known = ", ".join(f"{ext} ({fmt})" for ext, fmt in EXTENSIONS.items())
        raise UserError(f"cannot tell the format of {path} by its extension; use one of {known}")
    return EXTENSIONS[suffix]


_BEGINNINGS: Final = {
    b"PK\x03\x04": "a zip archive, as NumPy's .npz and PyTorch's .pt files are",
    b"\x1f\x8b": "gzip's: unpack it first",
    b"\x93NUMPY": "one array of NumPy (.npy)",
    b"\x89HDF\r\n": "HDF5",
    b"\x80\x02": "a Python pickle",
    b"\x80\x03": "a Python pickle",
    b"\x80\x04": "a Python pickle",
    b"\x80\x05": "a Python pickle",
    b"ML\xefR": "MLIR bytecode: write StableHLO as text",
    b"\x7fELF": "machine code",
    b"%PDF": "PDF",
    b"GGUF": "GGUF: tensors without a program; weft.load reads them",
}
_ONNX: Final = re.compile(rb"\x08[\x01-\x20][\x12\x1a\x22\x2a\x32\x3a\x42]")
"""The version of the IR, and the beginning of the next field of ONNX's outermost message."""


def other_format(data: bytes) -> str | None:
    """What bytes look like that are no program, as it ends `it looks like ...`; None where they
    look like nothing in particular."""
    for beginning, what in _BEGINNINGS.items():
        if data.startswith(beginning):
            return what
    if _is_safetensors(data):
        return "safetensors: tensors without a program; weft.load reads them"
    return "an ONNX model" if _ONNX.match(data) else None


def _is_safetensors(data: bytes) -> bool:
    """The length of a JSON object, and the object."""
    length = int.from_bytes(data[:8], "little")
    return 2 <= length <= len(data) - 8 and data[8:9] == b"{" and data[7 + length] in b"} "
