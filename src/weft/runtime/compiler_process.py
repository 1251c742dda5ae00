"""A process that compiles: LLVM IR comes in, object code goes out, until the pipe is closed."""

from __future__ import annotations

import sys

from weft.foundation.errors import WeftError
from weft.foundation.pipes import receive, send
from weft.runtime.jit import compile_object


def main() -> None:
    while True:
        try:
            text = receive(sys.stdin.buffer).decode()
        except EOFError:
            return
        try:
            code = compile_object(text)
        except WeftError:
            # Whoever sent it compiles it as well, and gets the reason.
            code = b""
        send(sys.stdout.buffer, code)


if __name__ == "__main__":
    main()
