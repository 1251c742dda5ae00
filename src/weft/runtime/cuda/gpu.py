"""A GPU as this process uses it: one stream, in which all programs work in order, one pool of
memory, and the programs whose kernels may have something to report.

Work is asked for and not waited for. Whoever reads a result waits, and is told what went wrong on
the way to it. What goes wrong is known only then, so all that was asked for since somebody last
waited is one *era*: if something in it went wrong, none of its results can be relied on.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import Any, Protocol

from weft.foundation.errors import WeftError
from weft.runtime.cuda import driver
from weft.runtime.cuda.driver import Device, Stream, open_device
from weft.runtime.cuda.memory import Pool


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


class Gpu:
    """One device. Hold `lock` while putting work into the stream."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.stream: Stream = device.stream()
        self.pool = Pool(device)
        self.lock = threading.RLock()
        self.era = Era()
        self._unchecked: weakref.WeakSet[Any] = weakref.WeakSet()

    def watch(self, reporter: Reporter) -> None:
        """Ask this one when somebody next waits."""
        self._unchecked.add(reporter)

    def wait(self) -> None:
        """Wait for everything that was asked for. What went wrong is noted, and a new era
        begins."""
        self.stream.synchronize()
        for reporter in list(self._unchecked):
            self.era.fault = self.era.fault or reporter.fault()
        self._unchecked.clear()
        self.era = Era()


_GPUS: weakref.WeakKeyDictionary[Any, Gpu] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def open_gpu() -> Gpu:
    """The first GPU of the machine, ready for the calling thread."""
    bindings = driver.bindings()
    with _LOCK:
        found = _GPUS.get(bindings)
        if found is None:
            found = _GPUS[bindings] = Gpu(open_device(driver=bindings))
    found.device.activate()
    return found
