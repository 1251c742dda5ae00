"""A worker process that compiles CUDA C: architecture and source come in, cubin and compiler
messages go out, until the pipe is closed.
"""

from __future__ import annotations

from weft.codegen.gpu.compile import compile_cuda, pack_cubin, version
from weft.foundation.pipes import serve


def answer(message: bytes) -> bytes:
    """The cubin of a source, which stands behind its architecture."""
    arch, _, source = message.decode().partition("\n")
    return pack_cubin(compile_cuda(source, arch))


if __name__ == "__main__":
    version()  # Loads the compiler, for all of them.
    serve(answer)
