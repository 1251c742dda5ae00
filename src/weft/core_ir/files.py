"""Reading and writing Core IR modules: text in UTF-8, in files that end in `.core`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from weft.core_ir.attribute_text import UNPARSABLE
from weft.core_ir.ir import Module
from weft.core_ir.text import parse_module, print_module
from weft.foundation.calls import told_outside
from weft.foundation.errors import ResourceExceeded, SpecViolation, UserError
from weft.ptir.files import read_bytes

EXTENSION: Final = ".core"
_BEGINNING: Final = re.compile(
    rb"(?:\xef\xbb\xbf)?(?:\s++|#[^\n]*+)*+(?:%|(?:outputs|extensions)\s*:)"
)


@told_outside
def loads(data: bytes | str, *, extensions: Iterable[str] = ()) -> Module:
    """The module in a text of either encoding. Structure is checked; `verify` checks the rest.

    `extensions` are switched on beside those that the text names.
    """
    if not isinstance(data, str | bytes | bytearray):
        raise UserError(f"loads takes bytes or text, not {type(data).__name__}")
    try:
        text = data if isinstance(data, str) else _as_text(bytes(data))
        return parse_module(text.removeprefix("\ufeff")).with_extensions(extensions)
    except MemoryError:
        raise ResourceExceeded("out of memory while reading a module") from None


def _as_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise SpecViolation(
            UNPARSABLE,
            f"the file is not UTF-8 text: byte {error.start} is wrong",
            where=f"line {line}, column {column}",
        ) from None


@told_outside
def load(path: str | Path, *, extensions: Iterable[str] = ()) -> Module:
    """The module in a file."""
    return loads(read_bytes(path), extensions=extensions)


@told_outside
def dumps(module: Module) -> str:
    """The text of a module, in the first encoding."""
    return print_module(module)


@told_outside
def save(module: Module, path: str | Path) -> None:
    """Write a module as text."""
    try:
        Path(path).write_text(dumps(module), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise UserError(f"{str(path)!r} cannot be the name of a file: {error}") from None


def is_core_ir(data: bytes) -> bool:
    """Whether a file begins as modules do: with an operation, the outputs, or extensions."""
    return _BEGINNING.match(data) is not None
