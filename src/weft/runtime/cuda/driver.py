"""The CUDA driver: devices, memory, streams, events. Knows no IR.

The driver's Python bindings are an optional package and the driver itself comes with a GPU, so both
are looked for when a device is first opened, and their absence is the user's to know about. A
device uses its primary context, which other libraries of the process share; it is current while
Weft works, and what was current before is so again afterwards.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weft.foundation.errors import BackendUnavailable, ExecutionError, UserError
from weft.runtime.cuda.waiting import wait

_NOT_READY: Final = 600
"""What the driver answers while a stream has work."""
_TAKEN_AT_ONCE: Final = 1 << 16
"""Bytes of the host that the driver copies for itself; with more, it waits for the stream."""
_SET: Final = {1: "cuMemsetD8Async", 2: "cuMemsetD16Async", 4: "cuMemsetD32Async"}
"""What sets memory to a word of so many bytes."""
_HELD_AT_MOST: Final = 2.0
"""Seconds. Loading a kernel, or one that needs a larger stack, can make the driver wait for the
stream that is held back."""


@cache
def bindings() -> Any:
    """The driver's Python bindings."""
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise BackendUnavailable(
            "the cuda backend needs the packages of the extra weft[cuda], which are not installed"
        ) from error


class DriverError(ExecutionError):
    """A driver function that answered with an error."""

    def __init__(self, name: str, status: int, why: str) -> None:
        self.status = status
        super().__init__(f"the CUDA driver's {name} failed: {why}")


def call(driver: Any, name: str, *args: Any) -> Any:
    """Call a driver function; its one result, or a tuple of several, or nothing."""
    try:
        status, *rest = getattr(driver, name)(*args)
    except RuntimeError:
        # The bindings are newer than the driver, and look for a function that it lacks.
        raise BackendUnavailable(
            f"the CUDA driver of this machine is too old: it has no {name}; update the driver"
        ) from None
    if int(status) != 0:
        raise DriverError(name, int(status), _explain(driver, status))
    if not rest:
        return None
    return rest[0] if len(rest) == 1 else tuple(rest)


def _explain(driver: Any, status: Any) -> str:
    bad, text = driver.cuGetErrorString(status)
    if int(bad) != 0 or text is None:
        return str(status)
    return text.decode() if isinstance(text, bytes) else str(text)


def start(driver: Any) -> int:
    """Wake the driver; how many GPUs it sees."""
    try:
        status, *_ = driver.cuInit(0)
    except (RuntimeError, OSError):
        # So do the bindings answer where there is no library to load.
        raise BackendUnavailable("there is no CUDA driver on this machine") from None
    if int(status) != 0:
        why = _explain(driver, status).rstrip(".")
        raise BackendUnavailable(f"the CUDA driver of this machine does not start: {why}")
    return int(call(driver, "cuDeviceGetCount"))


@dataclass(frozen=True)
class Device:
    """A GPU whose primary context is current in the thread that opened it, until that leaves it."""

    driver: Any
    handle: Any
    context: Any
    name: str
    compute_capability: tuple[int, int]
    multiprocessors: int

    def enter(self) -> None:
        """Make the context current in the calling thread, until it is left."""
        call(self.driver, "cuCtxPushCurrent", self.context)

    def leave(self) -> None:
        """Make that context current again that was so before: another library's, perhaps, of
        another device."""
        try:
            call(self.driver, "cuCtxPopCurrent")
        except ExecutionError:
            return

    @contextmanager
    def current(self) -> Iterator[None]:
        """The context is current within the block."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def synchronize(self) -> None:
        """Wait for everything that was asked of the device."""
        call(self.driver, "cuCtxSynchronize")

    def allocate(self, count: int) -> Memory:
        """Device memory; at least one byte, so that every buffer has an address."""
        pointer = call(self.driver, "cuMemAlloc", max(1, count))
        return Memory(self, int(pointer), count)

    def managed(self, count: int) -> Memory:
        """Memory that host and device both reach; whoever touches a page gets it."""
        flags = self.driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL
        pointer = call(self.driver, "cuMemAllocManaged", max(1, count), flags)
        return Memory(self, int(pointer), count)

    def pinned(self, count: int) -> NDArray[np.uint8]:
        """Memory of the host that the device reads and writes itself; it stays for good."""
        place = int(
            call(self.driver, "cuMemHostAlloc", count, self.driver.CU_MEMHOSTALLOC_PORTABLE)
        )
        return np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(place))

    def upload(self, array: NDArray[Any]) -> Memory:
        """A copy of an array in device memory."""
        memory = self.allocate(array.nbytes)
        memory.write(array)
        return memory

    def stream(self) -> Stream:
        """A new stream of work."""
        flags = self.driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        return Stream(self, call(self.driver, "cuStreamCreate", flags))

    @property
    def place(self) -> str:
        """Where in the machine it is, whatever its number among those that a process sees."""
        found = call(self.driver, "cuDeviceGetPCIBusId", 32, self.handle)
        return str(found.split(b"\0")[0].decode())

    def event(self) -> Event:
        """A new point in time."""
        flags = self.driver.CUevent_flags.CU_EVENT_DEFAULT
        return Event(self, call(self.driver, "cuEventCreate", flags))


def open_device(number: int = 0, driver: Any = None) -> Device:
    """The `number`-th GPU of the machine; `driver` stands in for the bindings in tests."""
    driver = bindings() if driver is None else driver
    try:
        count = start(driver)
    except BackendUnavailable as error:
        raise BackendUnavailable(f"{error}; the backends 'cpu' and 'reference' need none") from None
    if not 0 <= number < count:
        raise BackendUnavailable(f"there is no GPU number {number}: the machine has {count}")
    handle = call(driver, "cuDeviceGet", number)
    context = call(driver, "cuDevicePrimaryCtxRetain", handle)
    call(driver, "cuCtxPushCurrent", context)
    attributes = driver.CUdevice_attribute
    ask = [
        attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        attributes.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
    ]
    major, minor, units = (call(driver, "cuDeviceGetAttribute", a, handle) for a in ask)
    name = call(driver, "cuDeviceGetName", 256, handle)
    text = name.split(b"\0")[0].decode()
    return Device(driver, handle, context, text, (int(major), int(minor)), int(units))


def compute_capability(driver: Any = None) -> tuple[int, int] | None:
    """That of the machine's first GPU; None where there is none."""
    try:
        driver = bindings() if driver is None else driver
        if start(driver) < 1:
            return None
        handle = call(driver, "cuDeviceGet", 0)
        major, minor = (
            call(driver, "cuDeviceGetAttribute", getattr(driver.CUdevice_attribute, name), handle)
            for name in (
                "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR",
                "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR",
            )
        )
    except (UserError, ExecutionError):
        return None
    return int(major), int(minor)


@dataclass
class Memory:
    """A block of device memory."""

    device: Device
    address: int
    bytes: int

    def write(self, array: NDArray[Any]) -> None:
        """Copy an array to the start of the block; done when it returns."""
        data = np.ascontiguousarray(array)
        if data.nbytes:
            call(self.device.driver, "cuMemcpyHtoD", self.address, data.ctypes.data, data.nbytes)
            # The call returns when the array has been read, not when the block is written.
            self.device.synchronize()

    def read(self, array: NDArray[Any]) -> None:
        """Fill a contiguous array from the start of the block; done when it returns."""
        if array.nbytes:
            call(self.device.driver, "cuMemcpyDtoH", array.ctypes.data, self.address, array.nbytes)

    def fill(self, byte: int) -> None:
        """Set every byte."""
        if self.bytes:
            call(self.device.driver, "cuMemsetD8", self.address, byte, self.bytes)

    def free(self) -> None:
        """Give the block back; a second time does nothing."""
        if self.address:
            with self.device.current():
                call(self.device.driver, "cuMemFree", self.address)
            self.address = 0


@dataclass
class Stream:
    """Work that is done in order."""

    device: Device
    handle: Any
    watch: Callable[[float], None] | None = None
    """Asked by whoever waits whether there is any sense in it."""

    def synchronize(self) -> None:
        """Wait for everything in the stream, so that Ctrl-C ends the waiting."""
        if self._await() != 0:
            # The device failed: the driver says so to whoever waits.
            call(self.device.driver, "cuStreamSynchronize", self.handle)

    def _await(self) -> int:
        """Wait, before a call in which the driver would, with no ear for Ctrl-C; what the driver
        answers in the end."""
        query, handle = self.device.driver.cuStreamQuery, self.handle
        status = _NOT_READY

        def is_done() -> bool:
            nonlocal status
            status = int(query(handle)[0])
            return status != _NOT_READY

        wait(is_done, self.watch)
        return status

    def copy(self, target: int, source: int, count: int) -> None:
        """Copy bytes between device addresses."""
        call(self.device.driver, "cuMemcpyDtoDAsync", target, source, count, self.handle)

    def upload(self, target: int, array: NDArray[Any]) -> None:
        """Copy a contiguous array to a device address. An array that `is_read_late` may change when
        the stream is done, any other one when it returns."""
        if array.nbytes > _TAKEN_AT_ONCE:
            self._await()
        if array.nbytes:
            place, count = array.ctypes.data, array.nbytes
            call(self.device.driver, "cuMemcpyHtoDAsync", target, place, count, self.handle)

    def is_read_late(self, array: NDArray[Any]) -> bool:
        """Whether the device itself reads an array, when its turn comes: the driver knows the
        memory, which another library has pinned, or which host and device share."""
        driver = self.device.driver
        what = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        status, _ = driver.cuPointerGetAttribute(what, array.ctypes.data)
        return int(status) == 0

    def download(self, array: NDArray[Any], source: int) -> None:
        """Fill a contiguous array from a device address; done when the stream is. For memory that
        it does not know, the driver waits until then in any case."""
        if array.nbytes:
            self._await()
            place, count = array.ctypes.data, array.nbytes
            call(self.device.driver, "cuMemcpyDtoHAsync", place, source, count, self.handle)

    def land(self, place: int, source: int, count: int) -> None:
        """Copy bytes from a device address to memory of the host that the device writes itself;
        they are there when the stream is done."""
        call(self.device.driver, "cuMemcpyDtoHAsync", place, source, count, self.handle)

    def fill(self, target: int, count: int) -> None:
        """Set bytes at a device address to zero."""
        call(self.device.driver, "cuMemsetD8Async", target, 0, count, self.handle)

    def repeat(self, target: int, element: bytes, count: int) -> bool:
        """Put an element at a device address, so many times; whether the driver can."""
        for size, name in _SET.items():
            word, times = element[:size], len(element) // size
            if word * times == element:
                number = int.from_bytes(word, "little")
                call(self.device.driver, name, target, number, times * count, self.handle)
                return True
        return False

    def set_word(self, target: int, word: int) -> None:
        """Set 32 bits at a device address."""
        call(self.device.driver, "cuMemsetD32Async", target, word, 1, self.handle)

    def bring(self, address: int, count: int) -> None:
        """Move managed memory to the device before it is used there; it would come by itself, page
        by page."""
        driver = self.device.driver
        place = driver.CUmemLocation()
        place.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        place.id = int(self.device.handle)
        call(driver, "cuMemPrefetchAsync", address, count, place, 0, self.handle)

    def follow(self, other: Stream) -> None:
        """What comes into this stream from now on is done after what the other one has now."""
        driver = self.device.driver
        flags = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
        event = call(driver, "cuEventCreate", flags)
        call(driver, "cuEventRecord", event, other.handle)
        call(driver, "cuStreamWaitEvent", self.handle, event, 0)
        # The driver keeps the event until the streams have passed it.
        call(driver, "cuEventDestroy", event)

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """What is asked for inside begins at the end, and is waited for: kernels that are timed
        follow each other as fast as the device can, and not as fast as the host asks."""
        driver = self.device.driver
        place = int(call(driver, "cuMemHostAlloc", 4, driver.CU_MEMHOSTALLOC_DEVICEMAP))
        word = ctypes.c_uint32.from_address(place)
        word.value = 0
        opening = threading.Timer(_HELD_AT_MOST, setattr, (word, "value", 1))
        opening.daemon = True
        opening.start()
        try:
            address = call(driver, "cuMemHostGetDevicePointer", place, 0)
            until = driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_EQ
            call(driver, "cuStreamWaitValue32", self.handle, address, 1, until)
            yield
        finally:
            opening.cancel()
            word.value = 1
            self.synchronize()
            opening.join()
            call(driver, "cuMemFreeHost", place)

    def close(self) -> None:
        """Destroy the stream."""
        call(self.device.driver, "cuStreamDestroy", self.handle)


@dataclass
class Event:
    """A point in a stream."""

    device: Device
    handle: Any

    def record(self, stream: Stream) -> None:
        call(self.device.driver, "cuEventRecord", self.handle, stream.handle)

    def synchronize(self) -> None:
        call(self.device.driver, "cuEventSynchronize", self.handle)

    def milliseconds_since(self, earlier: Event) -> float:
        """Time between two recorded events, both reached."""
        return float(call(self.device.driver, "cuEventElapsedTime", earlier.handle, self.handle))

    def close(self) -> None:
        """Destroy the event."""
        call(self.device.driver, "cuEventDestroy", self.handle)


def pointer_table(addresses: list[int]) -> ctypes.Array[ctypes.c_void_p]:
    """An array of addresses, as the driver wants kernel parameters."""
    return (ctypes.c_void_p * len(addresses))(*addresses)
