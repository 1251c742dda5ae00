"""The progress line of a compilation, or of a long run, on a terminal: it comes after half a second
and is gone when the work is done.

Who compiles says where it is, with `at`; nobody else needs to know. Where standard error is no
terminal nothing is written, but who gives `aloud` has it told once, in a line that stays: the
explorer does. Nothing at all is written with WEFT_PROGRESS=off.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TextIO, TypeAlias

Count: TypeAlias = Callable[[], tuple[int, int]]
"""How many are done, and of how many."""
PATIENCE: Final = 0.5
"""Seconds before anything is shown."""
ALOUD: Final = 5.0
"""Seconds before it is told where there is no terminal."""
_BETWEEN: Final = 0.1
"""Seconds from one look to the next."""
_CLEAR: Final = "\r\x1b[2K"


class _Line:
    """The line on the terminal, written by a thread of its own."""

    def __init__(self, what: str, stream: TextIO, patience: float) -> None:
        self.what = what
        self.stage = ""
        self.count: Count | None = None
        self._stream = stream
        self._patience = patience
        self._gone = False
        """Whether there is no terminal any more."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, name="weft-progress", daemon=True)

    def __str__(self) -> str:
        parts = [self.stage] if self.stage else []
        if self.count is not None:
            done, total = self.count()
            parts.append(f"{done} of {total} kernels")
        return f"compiling {self.what} ..." + (f" {', '.join(parts)}" if parts else "")

    def _show(self) -> None:
        last, shown = "", self._over.wait(self._patience)
        try:
            while not shown:
                text = str(self)[: shutil.get_terminal_size().columns - 1]
                if text != last:
                    self._write(_CLEAR + text)
                last, shown = text, self._over.wait(_BETWEEN)
        finally:
            if last:
                self._write(_CLEAR)

    def _write(self, text: str) -> None:
        if self._gone:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # That is no reason to stop.
            self._gone = True

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()


class _Told(_Line):
    """One line that stays, for a pipe or a file."""

    def _show(self) -> None:
        if not self._over.wait(self._patience):
            self._write(f"{self}\n")


class _Running(_Line):
    """The line of a run that somebody waits for."""

    def __init__(self, what: str, estimate: float, stream: TextIO, over: threading.Event) -> None:
        super().__init__(what, stream, PATIENCE)
        self._over = over
        self._estimate, self._began = estimate, time.perf_counter()

    def __str__(self) -> str:
        taken = time.perf_counter() - self._began
        about = f", estimated at {self._estimate:,.0f}" if self._estimate >= 1 else ""
        return f"running {self.what} ... {taken:,.0f} s{about}"

    def wait(self) -> None:
        """Until the run is over."""
        self._show()


def wait_for(over: threading.Event, what: str, estimate: float) -> None:
    """Wait for a run that is estimated to take so many seconds, and tell of it meanwhile."""
    if sys.stderr is None or not is_wanted(sys.stderr):
        over.wait()
        return
    _Running(what, estimate, sys.stderr, over).wait()


_LINE: ContextVar[_Line | None] = ContextVar("line", default=None)


def is_wanted(stream: TextIO) -> bool:
    """Whether somebody may be looking."""
    if _is_off():
        return False
    try:
        return stream.isatty()
    except ValueError:  # It is closed.
        return False


def _is_off() -> bool:
    return os.environ.get("WEFT_PROGRESS") == "off" or "CI" in os.environ


@contextmanager
def compiling(
    what: str,
    stream: TextIO | None = None,
    patience: float = PATIENCE,
    aloud: float | None = None,
) -> Iterator[None]:
    """Tell what is compiled, and how far it is, while the block runs; inside another such block
    that one goes on. Where there is no terminal it is told once, after `aloud` seconds, if that is
    given."""
    shown = sys.stderr if stream is None else stream
    line: _Line | None = None
    if _LINE.get() is None and shown is not None:
        if is_wanted(shown):
            line = _Line(what, shown, patience)
        elif aloud is not None and not _is_off():
            line = _Told(what, shown, aloud)
    if line is None:
        yield
        return
    token = _LINE.set(line)
    line.begin()
    try:
        yield
    finally:
        _LINE.reset(token)
        line.end()


def at(stage: str, count: Count | None = None) -> None:
    """The work has come to a stage, of which so many kernels are done."""
    line = _LINE.get()
    if line is not None:
        line.count = None
        line.stage, line.count = stage, count
