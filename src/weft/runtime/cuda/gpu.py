"""A GPU in this process: one stream, in which all programs run in order, one memory pool, and the
programs whose kernels may have an error to report.

Work is asked for and not waited for. Whoever reads a result waits, and is told what went wrong on
the way to it. What goes wrong is known only then, so all that was asked for since somebody last
waited is one *era*: if something in it went wrong, none of its results can be relied on.

Memory of other libraries is theirs again when the work that was asked for has been done: they know
nothing of this stream. Where one says in which stream it works itself, the two streams wait for
each other, and the host for neither.
"""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from weft.foundation.errors import WeftError
from weft.runtime.cuda import driver
from weft.runtime.cuda.driver import Device, Stream, open_device
from weft.runtime.cuda.memory import Pool

_PLACES: Final = (
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "PMIX_LOCAL_RANK",
    "SLURM_LOCALID",
)
"""Where launchers put the number of a rank among those of its machine."""
_LANDING: Final = 1 << 16
"""Bytes of results that come to the host by way of memory that the device writes itself. More are
copied sooner than they are copied twice."""
_MOST_LEAVING: Final = 64
"""How many tensors of other libraries are kept without waiting."""


class Reporter(Protocol):
    """Something whose work on the device may have gone wrong."""

    def fault(self) -> WeftError | None:
        """What went wrong, once; the device has done all its work."""
        ...


@dataclass(eq=False)
class Era:
    """Work between two waits, and what went wrong in it."""

    fault: WeftError | None = None

    def check(self) -> None:
        """Raise what went wrong; as often as somebody asks."""
        if self.fault is not None:
            raise self.fault.with_traceback(None)


class _Turn:
    """The right to work on a device; its context is current meanwhile."""

    def __init__(self, device: Device) -> None:
        self._device, self._lock = device, threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()
        try:
            self._device.enter()
        except BaseException:
            self._lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._device.leave()
        self._lock.release()


class Gpu:
    """One device. Hold `lock` while asking anything of it."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.stream: Stream = device.stream()
        self.pool = Pool(device)
        self.lock = _Turn(device)
        self.era = Era()
        self.changes = 0
        """How often memory of tensors was lent, or overwritten by a run that was given it."""
        self._unchecked: dict[Reporter, int] = {}
        """The runs since somebody last waited. A program that nobody holds any more is still asked
        what went wrong."""
        self._leaving: list[object] = []
        self._landing: NDArray[np.uint8] | None = None
        """Where small results come to the host."""
        self._landing_place = 0

    def watch(self, reporter: Reporter) -> None:
        """A run of this one begins: ask it when somebody next waits."""
        self._unchecked[reporter] = self._unchecked.get(reporter, 0) + 1

    def wait(self) -> None:
        """Wait for everything that was asked for. What went wrong is noted, and a new era
        begins."""
        with self.lock:
            self.wait_held()

    def wait_held(self) -> None:
        """The same for those who hold the device."""
        self._finish()
        if self._unchecked:
            faults = [reporter.fault() for reporter in self._unchecked]
            self._unchecked.clear()
            self.era.fault = next(filter(None, (self.era.fault, *faults)), None)
        self.era = Era()

    def read(self, address: int, count: int) -> NDArray[np.uint8] | None:
        """So many bytes of the device, good until somebody reads again; None where they are too
        many. What was asked for is waited for once, with the copy at its end: into memory that it
        does not know the driver would copy only after another wait. Whoever calls this holds
        `lock`."""
        if not 0 < count <= _LANDING:
            return None
        if self._landing is None:
            self._landing = self.device.pinned(_LANDING)
            self._landing_place = int(self._landing.ctypes.data)
        self.stream.land(self._landing_place, address, count)
        self.wait_held()
        return self._landing[:count]

    def raised(self, reporter: Reporter, fault: WeftError) -> None:
        """A run is going to raise what it has found on the way. If its program ran before in this
        era, that may be what went wrong."""
        # Error words do not say which run wrote them: if the program ran before in this era,
        # results of that run may be wrong, too.
        if self._unchecked.pop(reporter, 0) > 1:
            self.era.fault = self.era.fault or fault
            self.wait()

    def follow(self, stream: int) -> None:
        """What is asked for from now on comes after what another library's stream has been asked
        for. What that stream was lent, and has given back, serves again."""
        with self.lock:
            self.stream.follow(Stream(self.device, stream))
            self.pool.come_back(stream)

    def precede(self, stream: int) -> None:
        """What another library's stream is asked for from now on comes after what was asked for
        here. Where a program may have something to report, it is waited for."""
        with self.lock:
            # The other library could not be told of a violation that comes to light later.
            if self._unchecked:
                self.wait()
            else:
                Stream(self.device, stream).follow(self.stream)

    def keep(self, held: object) -> None:
        """Hold something that nobody else holds any more until what was asked for is done."""
        self._leaving.append(held)

    def make_room(self) -> None:
        """Do not let what is kept become too much."""
        if len(self._leaving) >= _MOST_LEAVING:
            with self.lock:
                self._finish()

    def _finish(self) -> None:
        leaving, self._leaving = self._leaving, []
        self.stream.synchronize()
        leaving.clear()


_GPUS: weakref.WeakKeyDictionary[Any, Gpu] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def _device_number(bindings: Any) -> int:
    """Which GPU is this process's: the first, or that of its place among the ranks of a machine,
    which launchers tell. A launcher that shows each rank one GPU has chosen already."""
    place = next((found for name in _PLACES if (found := os.environ.get(name, ""))), "")
    return int(place) % max(1, driver.start(bindings)) if place.isdigit() else 0


def open_gpu() -> Gpu:
    """The GPU of this process."""
    bindings = driver.bindings()
    with _LOCK:
        found = _GPUS.get(bindings)
        if found is None:
            device = open_device(_device_number(bindings), bindings)
            try:
                found = _GPUS[bindings] = Gpu(device)
            finally:
                device.leave()
    return found
