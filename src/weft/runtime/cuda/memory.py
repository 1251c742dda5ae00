"""The device memory pool: freed blocks are kept for the next request.

All work of a process on a device is in one stream, in order. So a block may be handed on while work
that uses it is still to be done: what is put into it comes later. Other libraries work in streams
of their own: a block that they were lent is handed on when all streams are done, or, if it was lent
to one stream, when ours follows that one.

Sizes are rounded up, so that blocks of about the same size are the same. Of several idle ones the
first in memory is handed out: a loop that takes and gives back the same sizes meets the same
addresses in every turn, for which its graphs are ready. When the device has no more, idle blocks
are freed first; then whoever asked is told who holds what.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Final

from weft.foundation.errors import ExecutionError, ResourceExceeded
from weft.runtime.cuda.driver import Device, DriverError, Memory, call

_OUT_OF_MEMORY: Final = 2
_SMALL: Final = 1 << 20
_GRAIN: Final = 256
_LARGE_GRAIN: Final = 1 << 21
"""Bytes to which small and large pieces are rounded up: the driver has pages of two megabytes."""


@dataclass
class Block(Memory):
    """Memory of a pool, and what it is used for."""

    pool: Pool
    purpose: str
    is_lent: bool = False
    """Whether other libraries know of it."""
    stream: int | None = None
    """The stream that they use it in, where it is only one."""
    writes: int = 0
    """How often a run that was given it has overwritten it."""

    def free(self) -> None:
        """Give the block back; a second time does nothing."""
        if self.address:
            self.pool.take_back(self)
            self.address = 0


class Pool:
    """The memory of one device."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.held: Counter[str] = Counter()
        """Bytes in use, by purpose."""
        self.used = 0
        """All of these."""
        self.peak = 0
        """The most bytes that were in use at one time."""
        self._idle: dict[int, list[int]] = {}
        self._lent: list[tuple[int, int, int | None]] = []
        """Sizes, addresses and streams of blocks that came back and may still be worked on
        elsewhere."""
        self._lock = threading.RLock()

    @property
    def idle_bytes(self) -> int:
        with self._lock:
            lent = sum(size for size, *_ in self._lent)
            return lent + sum(size * len(addresses) for size, addresses in self._idle.items())

    def take(self, count: int, purpose: str) -> Block:
        """A block of at least so many bytes."""
        size = rounded(count)
        with self._lock:
            idle = self._idle.get(size)
            # The device is waited for only where that brings a block of this very size.
            if not idle and any(found == size for found, *_ in self._lent):
                self._call_back()
                idle = self._idle.get(size)
            if idle:
                # The least address, whatever was given back last: a loop whose tensors are
                # collected in another order still gets the same ones.
                address = min(idle)
                idle.remove(address)
            else:
                address = self._allocate(size, count, purpose)
            self.held[purpose] += size
            self.used += size
            self.peak = max(self.peak, self.used)
        return Block(self.device, address, size, self, purpose)

    def take_back(self, block: Block) -> None:
        """Keep a block for the next who asks."""
        with self._lock:
            self.held[block.purpose] -= block.bytes
            self.used -= block.bytes
            if block.is_lent:
                self._lent.append((block.bytes, block.address, block.stream))
            else:
                self._idle.setdefault(block.bytes, []).append(block.address)

    def free_and_whole(self) -> tuple[int, int]:
        """The bytes of the device that nobody has taken, and all of them."""
        with self.device.current():
            free, whole = call(self.device.driver, "cuMemGetInfo")
        return int(free), int(whole)

    def trim(self) -> None:
        """Free every idle block."""
        with self._lock, self.device.current():
            if self._lent:
                self._call_back()
            # Blocks come back whenever a tensor is collected, now for example.
            idle, self._idle = self._idle, {}
            for address in (address for addresses in idle.values() for address in addresses):
                with contextlib.suppress(ExecutionError):
                    call(self.device.driver, "cuMemFree", address)

    def come_back(self, stream: int) -> None:
        """Our work now follows that of a stream: what it was lent, and gave back, may serve
        again."""
        with self._lock:
            lent, self._lent = self._lent, []
            for size, address, lent_to in lent:
                # What was lent to nobody in particular (None) comes back only when the whole device
                # has been waited for.
                if lent_to == stream:
                    self._idle.setdefault(size, []).append(address)
                else:
                    self._lent.append((size, address, lent_to))

    def _call_back(self) -> None:
        """Wait for whatever other libraries do with blocks that they gave back."""
        lent, self._lent = self._lent, []
        self.device.synchronize()
        for size, address, _ in lent:
            self._idle.setdefault(size, []).append(address)

    def _allocate(self, size: int, count: int, purpose: str) -> int:
        try:
            return int(call(self.device.driver, "cuMemAlloc", size))
        except DriverError as error:
            if error.status != _OUT_OF_MEMORY:
                raise
        self.trim()
        try:
            return int(call(self.device.driver, "cuMemAlloc", size))
        except DriverError as error:
            if error.status != _OUT_OF_MEMORY:
                raise
            raise ResourceExceeded(self._shortage(count, purpose)) from None

    def _shortage(self, count: int, purpose: str) -> str:
        free, whole = self.free_and_whole()
        parts = [f"{_amount(size)} of {what}" for what, size in self.held.most_common() if size]
        holds = ", ".join(parts) or "nothing"
        return (
            f"{self.device.name} has no room for {_amount(count)} of {purpose}: {_amount(free)} of "
            f"{_amount(whole)} are free, and Weft holds {holds}; drop tensors and programs that "
            "are not needed, or use smaller sizes"
        )


def rounded(count: int) -> int:
    """The size of the block for so many bytes; every block has an address."""
    grain = _GRAIN if count <= _SMALL else _LARGE_GRAIN
    return max(1, -(-count // grain)) * grain


def _amount(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
