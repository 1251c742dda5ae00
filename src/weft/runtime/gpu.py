"""A GPU as this process uses it: one stream, in which all programs work in order, one pool of
memory, and the programs whose kernels may have something to report.

Work is asked for and not waited for. Whoever reads a result waits, and is told what went wrong on
the way to it.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Protocol

from weft.foundation.errors import WeftError
from weft.runtime import cuda
from weft.runtime.cuda import Device, Stream, open_device
from weft.runtime.cuda_memory import Pool


class Reporter(Protocol):
    """Something whose work on the device may have gone wrong."""

    def fault(self) -> WeftError | None:
        """What went wrong, once; the device has done all its work."""
        ...


class Gpu:
    """One device. Hold `lock` while putting work into the stream."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.stream: Stream = device.stream()
        self.pool = Pool(device)
        self.lock = threading.RLock()
        self._unchecked: weakref.WeakSet[Any] = weakref.WeakSet()

    def watch(self, reporter: Reporter) -> None:
        """Ask this one when somebody next waits."""
        self._unchecked.add(reporter)

    def wait(self) -> None:
        """Wait for everything that was asked for, and raise what went wrong."""
        self.stream.synchronize()
        faults = [reporter.fault() for reporter in list(self._unchecked)]
        self._unchecked.clear()
        for fault in faults:
            if fault is not None:
                raise fault


_GPUS: weakref.WeakKeyDictionary[Any, Gpu] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def open_gpu() -> Gpu:
    """The first GPU of the machine, ready for the calling thread."""
    driver = cuda.bindings()
    with _LOCK:
        found = _GPUS.get(driver)
        if found is None:
            found = _GPUS[driver] = Gpu(open_device(driver=driver))
    found.device.activate()
    return found
