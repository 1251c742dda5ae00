"""The board: a shared file in which the ranks of a machine write what they are doing, for error
messages.

It is a file with a line for each rank, which all of them map into memory. A rank that waits too
long reads there where the others are, and a launcher whether the process of a rank is gone. Beside
it lies a file with the last words of ranks that failed, which the launcher repeats.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

WIDTH = 320
"""Bytes of a rank's line: the number of its process, and what it is at."""
ENDED, FAILED = "has ended", "has failed"
STARTING = "is at weft.mesh"
"""Where ranks join: MPI waits there for all of them, and answers to nobody before."""


class Board:
    """One line for each rank, in a file; a rank writes its own."""

    def __init__(self, path: str | os.PathLike[str], count: int) -> None:
        self.path, self.count = Path(path), count
        with self.path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), WIDTH * count)
        self._process = f"{os.getpid()} ".encode()

    @classmethod
    def made(cls, path: str | os.PathLike[str], count: int) -> Board:
        """A new board, empty."""
        Path(path).write_bytes(b"\0" * WIDTH * count)
        return cls(path, count)

    def write(self, rank: int, text: str) -> None:
        """What a rank, this process, is at from now on."""
        # The whole line is written, with zeros behind the text and one at its end at least: nothing
        # is left of an earlier, longer one.
        line = (self._process + text.encode())[: WIDTH - 1]
        self._memory[rank * WIDTH : (rank + 1) * WIDTH] = line.ljust(WIDTH, b"\0")

    def read(self, rank: int) -> str:
        """What a rank was at last; nothing where it never said."""
        return self._line(rank)[1]

    def process(self, rank: int) -> int:
        """The number of a rank's process; 0 where it has not come yet."""
        return int(self._line(rank)[0] or 0)

    @staticmethod
    def first_file(path: str | os.PathLike[str], rank: int | str) -> str:
        """Where a launcher lets a rank write the number of its process before anything else."""
        return f"{path}.{rank}"

    def first_process(self, rank: int) -> int:
        """The number of the process that was started as a rank; 0 where nobody wrote it."""
        file = Path(self.first_file(self.path, rank))
        text = file.read_text().strip() if file.exists() else ""
        return int(text) if text.isdecimal() else 0

    def tell(self, sentence: str) -> None:
        """Why this process fails, in one sentence."""
        # One write to a file that is appended to: sentences of ranks that fail at the same time do
        # not get mixed.
        with self._path_of_news.open("ab", buffering=0) as file:
            file.write(" ".join(sentence.split()).encode() + b"\n")

    def told(self) -> list[str]:
        """The sentences of all that failed, in the order in which they came."""
        found = self._path_of_news.read_bytes() if self._path_of_news.exists() else b""
        return found.decode(errors="replace").splitlines()

    @property
    def _path_of_news(self) -> Path:
        return self.path.with_name(f"{self.path.name}.told")

    def _line(self, rank: int) -> tuple[str, str]:
        line = self._memory[rank * WIDTH : (rank + 1) * WIDTH].rstrip(b"\0")
        number, _, text = line.decode(errors="replace").partition(" ")
        return (number, text) if number.isdecimal() else ("", "")
