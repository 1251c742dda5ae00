"""Listening to a child process that may hang or crash."""

from __future__ import annotations

import queue
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence


def lines_of(command: Sequence[str], silence: float, ends: float) -> Iterator[str | None]:
    """The lines that a command prints. None, once, and no more where it says nothing for `silence`
    seconds or the clock passes `ends`; then, and when the caller stops listening, it is killed."""
    child = subprocess.Popen(list(command), stdout=subprocess.PIPE, text=True)
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_read, args=(child, lines), daemon=True).start()
    try:
        while True:
            left = min(silence, ends - time.monotonic())
            try:
                line = lines.get(timeout=max(0.0, left))
            except queue.Empty:
                yield None
                return
            if line is None:
                return
            yield line
    finally:
        child.kill()
        child.wait()


def _read(child: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        lines.put(line.rstrip("\n"))
    child.wait()
    lines.put(None)
