"""A worker process of LLVM: IR comes in, object code goes out, until the pipe is closed."""

from __future__ import annotations

from weft.foundation.pipes import serve
from weft.runtime.jit import compile_object

if __name__ == "__main__":
    serve(lambda message: compile_object(message.decode()))
