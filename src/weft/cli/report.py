"""What the command line says on stderr, and writes to stdout and files."""

from __future__ import annotations

import sys
from pathlib import Path

from weft.foundation.errors import UserError


def complain(sentence: str) -> None:
    """A sentence on stderr."""
    print(printable(sentence), file=sys.stderr)


def printable(text: str) -> str:
    """Text that stays on one line and sends nothing but letters to a terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


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


def check_apart(path: Path, *read: Path | None) -> None:
    """Refuse to write a result over a file that it is made from."""
    for each in read:
        if each is not None and path.exists() and each.exists() and path.samefile(each):
            raise UserError(
                f"cannot write {path}: it is the input, and would be lost; give another name"
            )
