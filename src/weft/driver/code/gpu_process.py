"""A worker process for GPU compilation: tasks of kernels come in and plans and CUDA text go out, or
CUDA text comes in and cubins go out, until the pipe is closed.
"""

from __future__ import annotations

from weft.codegen.gpu import compiler_process
from weft.codegen.gpu.compile import version
from weft.driver.code import gpu_tasks
from weft.foundation.garbage_collector import collector_paused
from weft.foundation.pipes import serve


def answer(message: bytes) -> bytes:
    """What is made of a message."""
    answerer = gpu_tasks if gpu_tasks.is_task(message) else compiler_process
    found: bytes = answerer.answer(message)
    return found


if __name__ == "__main__":
    version()  # Loads the compiler, for all of them.
    with collector_paused:
        serve(answer)
