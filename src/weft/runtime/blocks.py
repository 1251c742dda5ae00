"""A pool of large memory blocks.

Writing into memory that is fresh from the system costs a page fault every few kilobytes: a copy
runs several times slower than into memory that was written before. Blocks that results were in are
therefore kept for later results of the same size. A block comes back when the last array that views
it is gone: arrays hold the memory object, the memory object holds the lease, and the end of the
lease gives the block back.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weft.foundation.forks import new_reentrant_lock

Array = NDArray[Any]
ALIGNMENT: Final = 128
"""Bytes, as those of `memory`."""
LARGE: Final = 64 * 1024
"""Bytes from which on a block is worth keeping."""
MOST_IDLE: Final = 512 * 1024 * 1024
"""Bytes that are kept while nobody uses them."""


class Blocks:
    """Idle blocks by size, least recently used sizes first."""

    def __init__(self, most_idle: int = MOST_IDLE) -> None:
        self.most_idle = most_idle
        self.idle_bytes = 0
        self._idle: OrderedDict[int, list[Array]] = OrderedDict()
        # A lease may end at any moment, also while this thread holds the lock.
        self._lock = new_reentrant_lock()

    def tensor(self, shape: tuple[int, ...], dtype: np.dtype[Any], size: int) -> Array:
        """An aligned tensor of `size` bytes with unspecified contents."""
        size += -size % ALIGNMENT
        block = self._take(size)
        start = int(block.ctypes.data)
        memory: Any = (ctypes.c_uint8 * size).from_address(start + -start % ALIGNMENT)
        memory.lease = _Lease(self, block, size)
        return np.ndarray(shape, dtype, memory)

    def _take(self, size: int) -> Array:
        with self._lock:
            # Sizes have to be the same: a training step asks for the same ones again and again, and
            # a larger block in the place of a small one would hold memory that nobody uses.
            idle = self._idle.get(size)
            if idle:
                self.idle_bytes -= size
                self._idle.move_to_end(size)
                return idle.pop()
        return np.empty(size + ALIGNMENT, np.uint8)

    def give_back(self, block: Array, size: int) -> None:
        """Keep a block that nobody uses any more, in the place of those used longest ago."""
        if size > self.most_idle:
            return
        with self._lock:
            self._idle.setdefault(size, []).append(block)
            self._idle.move_to_end(size)
            self.idle_bytes += size
            # Sizes are in the order of their last use, so the first one has waited longest. A size
            # that has no block left goes, too, or the table would grow with every shape.
            while self.idle_bytes > self.most_idle:
                oldest = next(iter(self._idle))
                if self._idle[oldest]:
                    self._idle[oldest].pop()
                    self.idle_bytes -= oldest
                else:
                    del self._idle[oldest]


class _Lease:
    """A block in use; its end is the end of the use."""

    __slots__ = ("block", "blocks", "size")

    def __init__(self, blocks: Blocks, block: Array, size: int) -> None:
        self.blocks, self.block, self.size = blocks, block, size

    def __del__(self) -> None:
        self.blocks.give_back(self.block, self.size)


BLOCKS: Final = Blocks()
"""The blocks of this process."""
