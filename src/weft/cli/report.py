"""What the command line prints: sentences on stderr, tables on stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from weft.driver.conversion import conversion_target_names, get_conversion_target
from weft.foundation.dtypes import as_dtype
from weft.foundation.errors import UserError, WeftError

Array = NDArray[Any]
FIRST = 6
"""How many elements of an output are shown."""


def complain(sentence: str) -> None:
    """A sentence on stderr."""
    print(printable(sentence), file=sys.stderr)


def printable(text: str) -> str:
    """Text that stays on one line and sends nothing but letters to a terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def outputs_table(arrays: Sequence[Array]) -> Table:
    """One row for each output: its number, its type and its first values."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("output", justify="right")
    table.add_column("type", no_wrap=True)
    table.add_column("first values")
    for index, array in enumerate(arrays):
        kind = f"{as_dtype(array.dtype)}{list(array.shape)}"
        table.add_row(str(index), Text(kind), Text(first_values(array)))
    return table


def targets_table() -> Table:
    """One row for each conversion target; for one that cannot be loaded, why."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("target", no_wrap=True)
    table.add_column("file", no_wrap=True)
    table.add_column("writes")
    for name in conversion_target_names():
        try:
            target = get_conversion_target(name)
            table.add_row(Text(name), Text(target.extension), Text(target.description))
        except WeftError as error:
            table.add_row(Text(name), "", Text(printable(str(error))))
    return table


def write(data: str | bytes, target: Path | None) -> None:
    """Text or bytes into a file, or on stdout."""
    raw = data if isinstance(data, bytes) else data.encode()
    if target is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(raw)
        return
    try:
        target.write_bytes(raw)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror or error}") from None


def check_writable(path: Path) -> None:
    """Refuse a path that could not be written, before the work whose results go there."""
    why = None
    if path.is_dir():
        why = "it is a folder"
    elif not path.parent.is_dir():
        why = f"there is no folder {path.parent}"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        why = "permission denied"
    if why is not None:
        raise UserError(f"cannot write {path}: {why}")


def first_values(array: Array) -> str:
    """The first elements in row-major order, short enough to read."""
    shown = [_element(value) for value in array.reshape(-1)[:FIRST]]
    return ", ".join(shown) + (", ..." if array.size > FIRST else "")


def _element(value: Any) -> str:
    if isinstance(value, np.bool_):
        return "true" if value else "false"
    dtype = as_dtype(value.dtype)
    if dtype.is_integer:
        return str(int(value))
    return f"{complex(value):.6g}" if dtype.is_complex else f"{float(value):.6g}"


def print_table(table: Table) -> None:
    """A table on stdout, as wide as it needs to be where no terminal sets the width."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
