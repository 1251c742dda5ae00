"""A lock for measuring on a device: processes of one machine take turns.

A turn is a lock on a file, which ends with its process, however that ends.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from weft.foundation.errors import UserError


@contextmanager
def in_turn(device: str) -> Iterator[None]:
    """Wait until no other process of this user is in such a block for the device."""
    path = Path(tempfile.gettempdir()) / f"weft-{os.getuid()}-{device}.turn"
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise UserError(f"cannot open {path}: {error.strerror or error}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
