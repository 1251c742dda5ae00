"""A worker process for GPU compilation: tasks of kernels come in and plans and CUDA text go out, or
CUDA text comes in and cubins go out, until the pipe is closed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import resources

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


def rehearsed() -> Iterator[bytes]:
    """Tasks of a product, of rows and of a map: whoever has done them makes kernels in a third of
    the time that the first ones take."""
    text = resources.files("weft.driver.code").joinpath("rehearsal.json").read_text()
    return (json.dumps(task).encode() for task in json.loads(text))


if __name__ == "__main__":
    version()  # Loads the compiler, for all of them.
    with collector_paused:
        serve(answer, rehearsed())
