"""A process that compiles for GPUs: an architecture and CUDA C come in, a cubin and what the
compiler says of it go out, until the pipe is closed."""

from __future__ import annotations

import sys

from weft.codegen.gpu.compile import compile_cuda, pack_cubin
from weft.foundation.errors import WeftError
from weft.foundation.pipes import receive, send


def main() -> None:
    while True:
        try:
            arch, _, source = receive(sys.stdin.buffer).decode().partition("\n")
        except EOFError:
            return
        try:
            code = pack_cubin(compile_cuda(source, arch))
        except WeftError:
            # Whoever sent it compiles it as well, and gets the reason.
            code = b""
        send(sys.stdout.buffer, code)


if __name__ == "__main__":
    main()
