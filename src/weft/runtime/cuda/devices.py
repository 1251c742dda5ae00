"""Which GPUs a machine has. Nothing is opened: a device that others use is left alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weft.foundation.errors import BackendUnavailable, ExecutionError
from weft.runtime.cuda.driver import bindings, call, start


@dataclass(frozen=True)
class GpuFacts:
    """What the driver says about one GPU."""

    name: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    memory_bytes: int

    @property
    def sm(self) -> str:
        """The architecture, as NVIDIA numbers it: SM90."""
        major, minor = self.compute_capability
        return f"SM{major}{minor}"


@dataclass(frozen=True)
class Gpus:
    """The GPUs of a machine in order, and the newest CUDA that its driver knows."""

    devices: tuple[GpuFacts, ...]
    driver: str


def find_gpus(driver: Any = None) -> Gpus:
    """The GPUs of this machine; raises `BackendUnavailable` with the reason where none is seen.
    `driver` stands in for the bindings in tests."""
    driver = bindings() if driver is None else driver
    count = start(driver)
    if not count:
        raise BackendUnavailable("the CUDA driver is installed, but finds no GPU")
    try:
        version = int(call(driver, "cuDriverGetVersion"))
        devices = tuple(_gpu_facts(driver, number) for number in range(count))
    except ExecutionError as error:
        raise BackendUnavailable(str(error)) from None
    return Gpus(devices, f"{version // 1000}.{version % 1000 // 10}")


def _gpu_facts(driver: Any, number: int) -> GpuFacts:
    handle = call(driver, "cuDeviceGet", number)
    attributes = driver.CUdevice_attribute
    major, minor, units = (
        int(call(driver, "cuDeviceGetAttribute", attribute, handle))
        for attribute in (
            attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            attributes.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        )
    )
    name = call(driver, "cuDeviceGetName", 256, handle).split(b"\0")[0].decode()
    return GpuFacts(name, (major, minor), units, int(call(driver, "cuDeviceTotalMem", handle)))
