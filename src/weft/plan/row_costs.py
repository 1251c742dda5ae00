"""Measured costs of row reductions on a GPU: what a split of a row over threads costs on an H200,
as shares of reading the row.

A unit's rows are a *steady stream* where its blocks follow one another so long that it matters
little how they begin and end; and *run at once* where it has room for all of them.
"""

from __future__ import annotations

import math
from typing import Final

from weft.foundation.records import dataclass

_WARP: Final = 32
BLOCK: Final = 128
"""Threads of a block whose rows need fewer."""
_LINE: Final = 8
"""Vectors of 16 bytes in a line of memory."""
HALF_A_UNIT: Final = 512
"""Threads of a block beside which, or beside the rows that wait for it, a unit has room."""
_UNIT: Final = 2048
"""Threads of a unit."""
_STREAM: Final = 32_768
"""Vectors of a unit from which on its blocks follow one another in a steady stream."""
_SHARED: Final = 2
"""Operands that all rows read alike from which on a row had better be a single warp's."""
_SOME: Final = 8
"""Rows of a unit that need not be in a hurry, each for itself."""
_TURNS: Final = 4
"""Vectors of a thread that keep enough reads on their way."""


@dataclass(frozen=True)
class RowCosts:
    """The rows of a kernel as a unit sees them."""

    vectors: int
    """Of a row."""
    rows: float
    """Of a unit."""
    stored: bool
    """Whether results are as long as rows."""
    shared: int
    """Operands that all rows read alike."""

    @property
    def is_steady(self) -> bool:
        return self.stored and self.rows * self.vectors >= _STREAM

    def run_at_once(self, threads: int) -> bool:
        """Whether a unit runs all of its rows, some of them, at once."""
        return self.stored and _SOME <= self.rows <= _UNIT / threads

    def total(self, threads: int) -> float:
        """What a row costs: turns in which some of its threads have nothing to do, and the rest."""
        waste = self.turns(threads) * threads / max(1, self.vectors)
        idle = max(0.0, math.log2(BLOCK / (self.rows * threads))) if self.rows else 0.0
        asking = self.pieces(threads) + self.waiting(threads)
        # Turns in which threads have nothing of the row cost as much as if they had. For the other
        # terms see the timings beside them, of an H200 (docs/performance/gpu-steps.md).
        return waste + 0.05 * idle + self.meeting(threads) + asking

    def turns(self, threads: int) -> int:
        """Vectors of a row that each thread takes."""
        return -(-self.vectors // threads)

    def meeting(self, threads: int) -> float:
        """Exchanges between warps. Those of a steady stream have others to run meanwhile, unless
        they load much that all rows share. A block of many threads is alone on its unit, which has
        nothing to do while they wait for one another."""
        # A layer norm of 131072×1024 in bf16, with two weights, took 129.7 µs in several warps and
        # 124.6 in one, whose threads hold its four vectors.
        light = self.shared < _SHARED or self.vectors > _TURNS * _WARP
        together = BLOCK if self.is_steady and light else _WARP
        warps = max(0, threads.bit_length() - together.bit_length())
        # A softmax of 8192×12288 in f32 took 259 µs in blocks of 1024 threads and 195 in blocks of
        # 512; a layer norm 252 and 196.
        return 0.03 * warps + (0.25 if threads > HALF_A_UNIT else 0.0)

    def pieces(self, threads: int) -> float:
        """Pieces of lines, which are asked for one by one."""
        # Rows of 64 elements reached 0.79 to 0.88 of a copy's rate, and 0.89 to 0.98 with eight
        # threads each, which ask for a whole line.
        return 0.15 * max(0.0, math.log2(max(1, min(_LINE, self.vectors)) / threads))

    def waiting(self, threads: int) -> float:
        """Reads on their way: of two to four turns there are enough, and of more where all rows
        run at once. A steady stream does best in blocks of few bytes: one vector for each thread
        of a warp, or two of rows that are longer."""
        turns = self.turns(threads)
        more = max(0, turns - _TURNS)
        if self.is_steady:
            # 1048576×64 in bf16 took 65.2 µs with two vectors a thread and 64.3 with one;
            # 131072×1024 in f32 took 258 with more and 251.5 with two.
            wanted = 1 if self.vectors <= _WARP else 2
            return 0.03 * more + 0.01 * max(0, turns - wanted) + 0.1 * (turns < wanted)
        each = 0.005 if self.run_at_once(threads) else 0.03
        return each * more + 0.1 * (turns < 2)

    def rows_together(self, threads: int, every: int, units: int) -> int:
        """Rows of a block, of `every` row: whole warps of them, and more where no unit is left
        without. Rows that all run at once come in smaller blocks, vectors that are read and
        forgotten in larger ones."""
        block = BLOCK
        if self.run_at_once(threads):
            # 4096×1000 in f32, a warp a row: a layer norm took 11.2 µs, and 10.7 in blocks of two
            # rows.
            block = BLOCK // 2
        elif not self.stored and self.vectors <= threads:
            block = 2 * BLOCK
        together = max(1, _WARP // threads)
        while together * threads < block and 2 * together * units <= every:
            together *= 2
        return together

    def rows_of_a_thread(self, threads: int) -> int:
        """Two where they neither run at once nor are a steady stream: half as many blocks then
        begin and end, and what all rows share is read half as often."""
        # 65536×256 in f32: softmax 33.0 µs, and 32.0 with two rows a thread; 1048576×64, a steady
        # stream, 125.3 and 126.4.
        enough = self.rows * threads >= _UNIT
        return 2 if self.stored and enough and not self.is_steady else 1
