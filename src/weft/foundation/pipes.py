"""Messages between this process and those that help it, each with its length before it."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from typing import IO, Final

from weft.foundation.errors import WeftError

LENGTH: Final = struct.Struct("<Q")
"""What stands before every message: how many bytes it has. No bytes: it could not be compiled."""


def send(pipe: IO[bytes], message: bytes) -> None:
    """Write a message."""
    pipe.write(LENGTH.pack(len(message)) + message)
    pipe.flush()


def receive(pipe: IO[bytes]) -> bytes:
    """Read a message."""
    (size,) = LENGTH.unpack(_exactly(pipe, LENGTH.size))
    return _exactly(pipe, size)


def _exactly(pipe: IO[bytes], size: int) -> bytes:
    found: bytes = pipe.read(size)
    if len(found) != size:
        raise EOFError
    return found


def serve(answer: Callable[[bytes], bytes]) -> None:
    """Answer messages that come in, until the pipe is closed."""
    while True:
        try:
            message = receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            found = answer(message)
        except WeftError:
            # Whoever sent it does it as well, and gets the reason.
            found = b""
        send(sys.stdout.buffer, found)
