"""Messages to and from worker processes, each with its length before it; and starting these
processes.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, Final

from weft.foundation.errors import WeftError

LENGTH: Final = struct.Struct("<Q")
"""What stands before every message: how many bytes it has. No bytes: it could not be compiled."""
_PATIENCE: Final = 0.2
"""Seconds that processes have to end before they are told again, ..."""
_REMINDERS: Final = 25
"""... so many times."""


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


def serve(answer: Callable[[bytes], bytes], rehearsed: Iterable[bytes] = ()) -> None:
    """Answer messages that come in, until the pipe is closed: in a process for each of the pipes
    that this one was started with (`Family`). All of them have what this one has loaded, and made
    of messages that are `rehearsed` while nobody waits for an answer."""
    pairs = [tuple(map(int, pair.split(","))) for pair in sys.argv[1:]]
    for message in rehearsed:
        if _something_came(taken for taken, _ in pairs):
            break
        with contextlib.suppress(WeftError):
            answer(message)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # This process waits until the others are gone.
    for number, pair in enumerate(pairs):
        if os.fork() == 0:
            try:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                # A process that held another one's ends would keep its pipe open: that one would
                # never see the end.
                _close_all(pairs[number + 1 :])
                _answer(answer, os.fdopen(pair[0], "rb"), os.fdopen(pair[1], "wb"))
            finally:
                os._exit(0)
        _close_all([pair])
    while pairs:
        try:
            os.wait()
        except ChildProcessError:
            return


def _something_came(pipes: Iterable[int]) -> bool:
    """Whether there is something to read in a pipe, or its other end is closed."""
    watched = select.poll()
    for pipe in pipes:
        watched.register(pipe, select.POLLIN)
    return bool(watched.poll(0))


def _close_all(pairs: Iterable[tuple[int, ...]]) -> None:
    for pair in pairs:
        for end in pair:
            os.close(end)


def _answer(answer: Callable[[bytes], bytes], taken: IO[bytes], given: IO[bytes]) -> None:
    while True:
        try:
            message = receive(taken)
        except EOFError:
            return
        try:
            found = answer(message)
        except WeftError:
            # Whoever sent it does it as well, and gets the reason.
            found = b""
        send(given, found)


class Family:
    """Processes that answer messages, each by a pipe to it and a pipe back: copies of one that runs
    a module which serves. That one loads what all of them need."""

    def __init__(self, command: Sequence[str], count: int, env: Mapping[str, str]) -> None:
        made: list[tuple[int, int]] = []
        try:
            made += (os.pipe() for _ in range(2 * count))
            there, back = made[:count], made[count:]
            pairs = [(to[0], fro[1]) for to, fro in zip(there, back, strict=True)]
            self._first = subprocess.Popen(  # noqa: S603 (our own module)
                [*command, *(f"{taken},{given}" for taken, given in pairs)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=env,
                pass_fds=[end for pair in pairs for end in pair],
                # Out of reach of Ctrl-C: whoever started them ends them.
                start_new_session=True,
            )
        except OSError:
            _close_all(made)
            raise
        _close_all(pairs)
        self.pipes: list[tuple[IO[bytes], IO[bytes]]] = [
            (os.fdopen(to[1], "wb"), os.fdopen(fro[0], "rb"))
            for to, fro in zip(there, back, strict=True)
        ]
        """To each process and from it."""

    @property
    def pid(self) -> int:
        """That of the first process, and of the group of them all."""
        return self._first.pid

    def kill(self) -> None:
        """End the processes, whatever they do."""
        self._signal(signal.SIGTERM)

    def wait(self) -> None:
        """Wait until they have ended, after `kill`."""
        for ending in (signal.SIGTERM,) * _REMINDERS:
            try:
                self._first.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                # It came between a process and its beginning.
                self._signal(ending)
            else:
                return
        self._signal(signal.SIGKILL)
        self._first.wait()

    def close(self) -> None:
        """Give the pipes back, of processes that have ended."""
        for pair in self.pipes:
            for pipe in pair:
                # What was to be written may have nobody to read it.
                with contextlib.suppress(OSError):
                    pipe.close()

    def _signal(self, what: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, what)
