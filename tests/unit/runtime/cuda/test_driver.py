"""The CUDA layer against a stand-in for the driver: what is asked of it, and what errors say."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from weft.foundation.errors import (
    BackendUnavailable,
    ExecutionError,
    ResourceExceeded,
    UserError,
    WeftError,
)
from weft.runtime.artifact import KernelCode, TensorMap, Window
from weft.runtime.cuda.driver import open_device
from weft.runtime.cuda.graphs import recording
from weft.runtime.cuda.kernels import encode_map, load_kernel


class Names:
    """An enumeration whose members are their own names."""

    def __getattr__(self, name: str) -> str:
        return name


class FakeDriver:
    """Answers like the bindings and remembers what was asked."""

    def __init__(
        self, failing: str = "", devices: int = 1, status: int = 2, missing: str = ""
    ) -> None:
        self.failing, self.devices, self.status = failing, devices, status
        self.missing = missing
        """A function that the driver's library does not have."""
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.memory: dict[int, bytearray] = {}
        for kind in (
            "CUdevice_attribute", "CUfunction_attribute", "CUtensorMapDataType",
            "CUtensorMapInterleave", "CUtensorMapSwizzle", "CUtensorMapL2promotion",
            "CUtensorMapFloatOOBfill", "CUstream_flags", "CUevent_flags", "CUstreamCaptureMode",
        ):  # fmt: skip
            setattr(self, kind, Names())
        self.cuuint64_t = self.cuuint32_t = int

    def cuGetErrorString(self, status: int) -> tuple[int, bytes]:
        return 0, b"out of luck"

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def ask(*args: Any) -> tuple[Any, ...]:
            self.calls.append((name, args))
            if name == self.missing:
                raise RuntimeError(f'Function "{name}" not found')
            if name == self.failing:
                return (self.status, None)
            return (0, *self.answer(name, args))

        return ask

    def answer(self, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        match name:
            case "cuDeviceGetCount":
                return (self.devices,)
            case "cuDeviceGetName":
                return (b"Stand-in\0\0\0",)
            case "cuDeviceGetAttribute":
                values = {"MAJOR": 9, "MINOR": 0, "COUNT": 132, "OPTIN": 1 << 16}
                return (next(v for k, v in values.items() if args[0].endswith(k)),)
            case "cuDriverGetVersion":
                return (12040,)
            case "cuFuncGetAttribute":
                return (255,)
            case "cuMemAlloc":
                address = 4096 * (1 + len(self.memory))
                self.memory[address] = bytearray(args[0])
                return (address,)
            case "cuMemcpyHtoD":
                self.memory[args[0]][: args[2]] = ctypes.string_at(args[1], args[2])
                return ()
            case "cuMemcpyDtoH":
                ctypes.memmove(args[0], bytes(self.memory[args[1]][: args[2]]), args[2])
                return ()
            case "cuTensorMapEncodeTiled" | "cuTensorMapEncodeIm2col":
                return (SimpleNamespace(opaque=list(range(16))),)
            case "cuEventElapsedTime":
                return (1.5,)
            case _ if name.endswith(("Set", "SetCurrent", "Free", "Synchronize", "cuInit")):
                return ()
            case _ if name in ("cuLaunchKernel", "cuFuncSetAttribute", "cuMemsetD8"):
                return ()
            case _:
                return (f"{name} handle",)

    def asked(self, name: str) -> list[tuple[Any, ...]]:
        return [args for found, args in self.calls if found == name]


MAP = TensorMap(1, "bf16", 32, (64, 100, 3), (128, 12800), (64, 32, 1), 128)
CODE = KernelCode(
    "gemm", b"cubin", grid=(7, 1, 1), block=(384, 1, 1), shared_bytes=1 << 17, tensor_maps=(MAP,)
)


def test_a_device_says_what_it_is() -> None:
    device = open_device(driver=FakeDriver())
    assert (device.name, device.compute_capability, device.multiprocessors) == (
        "Stand-in",
        (9, 0),
        132,
    )


@pytest.mark.parametrize(
    ("driver", "number", "message"),
    [
        (
            FakeDriver(failing="cuInit"),
            0,
            "the CUDA driver of this machine does not start: out of luck; the backends 'cpu' and "
            "'reference' need none",
        ),
        (
            FakeDriver(missing="cuInit"),
            0,
            "there is no CUDA driver on this machine; the backends 'cpu' and 'reference' need none",
        ),
        (FakeDriver(devices=0), 0, "there is no GPU number 0: the machine has 0"),
        (FakeDriver(), 1, "there is no GPU number 1: the machine has 1"),
    ],
)
def test_machines_without_a_gpu(driver: FakeDriver, number: int, message: str) -> None:
    with pytest.raises(UserError) as raised:
        open_device(number, driver)
    assert str(raised.value) == message
    assert raised.value.__cause__ is None


def test_a_driver_without_a_function_is_too_old() -> None:
    device = open_device(driver=FakeDriver(missing="cuTensorMapEncodeTiled"))
    message = "the CUDA driver of this machine is too old: it has no cuTensorMapEncodeTiled; update"
    with pytest.raises(BackendUnavailable, match=message):
        load_kernel(device, CODE).launch([4096, 8192], "stream")


def test_arrays_travel() -> None:
    device = open_device(driver=FakeDriver())
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    memory = device.upload(array.T)
    back = np.empty((4, 3), np.float32)
    memory.read(back)
    assert (back == array.T).all()
    memory.free()
    memory.free()
    assert len(device.driver.asked("cuMemFree")) == 1


def test_a_failed_call_names_itself() -> None:
    device = open_device(driver=FakeDriver(failing="cuMemAlloc"))
    with pytest.raises(ExecutionError, match="the CUDA driver's cuMemAlloc failed: out of luck"):
        device.allocate(10)


OVERRUNS: dict[str, tuple[str, int, str]] = {
    "driver": (
        "cuModuleLoadData",
        209,
        "the CUDA driver of this machine, of CUDA 12.4, cannot load Weft's kernels for Stand-in: "
        "update the driver to one as new as the installed package nvidia-cuda-nvrtc",
    ),
    "shared memory": (
        "cuFuncSetAttribute",
        1,
        "the kernel gemm takes 131,072 bytes of shared memory; Stand-in has 65,536 for a block: "
        "plan it with a smaller tile or fewer stages",
    ),
    "registers": (
        "cuLaunchKernel",
        701,
        "a block of the kernel gemm takes 384 threads of 255 registers and 131,072 bytes of shared "
        "memory, which Stand-in does not have: plan it with fewer threads or a smaller tile",
    ),
    "clusters": (
        "cuLaunchKernel",
        912,
        "Stand-in does not run 1 blocks of the kernel gemm side by side: plan it with fewer blocks "
        "for a row",
    ),
}


@pytest.mark.parametrize("what", OVERRUNS)
def test_what_the_machine_lacks_is_said_in_a_sentence(what: str) -> None:
    function, status, message = OVERRUNS[what]
    device = open_device(driver=FakeDriver(failing=function, status=status))
    with pytest.raises(WeftError) as raised:
        load_kernel(device, CODE).launch([4096, 8192], "stream")
    assert str(raised.value) == message


@pytest.mark.parametrize(("blocks", "asked"), [(8, 0), (16, 1)])
def test_large_clusters_are_asked_for(blocks: int, asked: int) -> None:
    device = open_device(driver=FakeDriver())
    load_kernel(device, replace(CODE, cluster=(blocks, 1, 1)))
    wanted = "CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED"
    calls = device.driver.asked("cuFuncSetAttribute")
    assert sum(wanted in map(str, args) for args in calls) == asked


def test_a_launch_passes_maps_and_addresses() -> None:
    driver = FakeDriver()
    kernel = load_kernel(open_device(driver=driver), CODE)
    kernel.launch([4096, 8192], "stream")
    kernel.launch([4096, 8192], "stream")
    assert driver.asked("cuFuncSetAttribute")[0][2] == 1 << 17
    (made,) = driver.asked("cuTensorMapEncodeTiled")
    assert made[1:7] == (3, 8192 + 32, [64, 100, 3], [128, 12800], [64, 32, 1], [1, 1, 1])
    assert made[0].endswith("BFLOAT16")
    assert made[8].endswith("SWIZZLE_128B")
    launch = driver.asked("cuLaunchKernel")[0]
    assert launch[1:8] == (7, 1, 1, 384, 1, 1, 1 << 17)
    pointers = ctypes.cast(launch[9], ctypes.POINTER(ctypes.c_void_p))
    words = ctypes.cast(pointers[0], ctypes.POINTER(ctypes.c_uint64))
    assert list(words[:16]) == list(range(16))
    addresses = [ctypes.cast(pointers[i], ctypes.POINTER(ctypes.c_uint64))[0] for i in (1, 2)]
    assert addresses == [4096, 8192]


def test_a_launch_on_several_sets_of_buffers_passes_one_table() -> None:
    driver = FakeDriver()
    code = replace(CODE, tensor_maps=(), sets=2)
    kernel = load_kernel(open_device(driver=driver), code)
    kernel.launch([4096, 8192, 64, 32], "stream")
    pointers = ctypes.cast(driver.asked("cuLaunchKernel")[0][9], ctypes.POINTER(ctypes.c_void_p))
    table = ctypes.cast(pointers[0], ctypes.POINTER(ctypes.c_uint64))
    assert list(table[:4]) == [4096, 8192, 64, 32]


def test_the_map_of_an_image_has_corners_channels_and_places() -> None:
    driver = FakeDriver()
    window = Window((-1, -2), (0, -1), (2, 3))
    found = TensorMap(1, "bf16", 0, (64, 9, 7, 2), (128, 1152, 8064), (64, 96), 128, window)
    kernel = load_kernel(open_device(driver=driver), replace(CODE, tensor_maps=(found,)))
    kernel.launch([4096, 8192], "stream")
    (made,) = driver.asked("cuTensorMapEncodeIm2col")
    assert made[1:5] == (4, 8192, [64, 9, 7, 2], [128, 1152, 8064])
    assert made[5:10] == ([-1, -2], [0, -1], 64, 96, [1, 2, 3, 1])
    assert made[11].endswith("SWIZZLE_128B")
    assert not driver.asked("cuTensorMapEncodeTiled")


def test_a_workspace_is_zero_and_its_address_comes_last() -> None:
    driver = FakeDriver()
    kernel = load_kernel(open_device(driver=driver), replace(CODE, workspace_bytes=1 << 12))
    assert kernel.workspace is not None
    address = kernel.workspace.address
    assert driver.asked("cuMemsetD8") == [(address, 0, 1 << 12)]
    kernel.launch([4096, 8192], "stream")
    pointers = ctypes.cast(driver.asked("cuLaunchKernel")[0][9], ctypes.POINTER(ctypes.c_void_p))
    addresses = [ctypes.cast(pointers[i], ctypes.POINTER(ctypes.c_uint64))[0] for i in (1, 2, 3)]
    assert addresses == [4096, 8192, address]
    kernel.unload()
    assert driver.asked("cuMemFree") == [(address,)]


def test_blocks_that_wait_for_one_another_must_run_at_once() -> None:
    device = open_device(driver=FakeDriver())
    load_kernel(device, replace(CODE, together=True, grid=(132, 1, 1)))
    with pytest.raises(ResourceExceeded) as raised:
        load_kernel(device, replace(CODE, together=True, grid=(133, 1, 1)))
    assert str(raised.value) == (
        "the 133 blocks of the kernel gemm wait for one another, and Stand-in runs 132 at once: "
        "plan it with algo_choice.matmul splitk_parallel_N in place of split_k"
    )


def test_maps_are_made_again_when_a_buffer_moves() -> None:
    driver = FakeDriver()
    kernel = load_kernel(open_device(driver=driver), CODE)
    for address in (8192, 16384, 8192):
        kernel.launch([4096, address], "stream")
    assert len(driver.asked("cuTensorMapEncodeTiled")) == 2


def test_a_misaligned_buffer_is_refused() -> None:
    with pytest.raises(ExecutionError, match="lies at 0x2028, which is not a multiple of 16 bytes"):
        encode_map(FakeDriver(), MAP, 8200)


def test_why_something_could_not_be_recorded_is_said() -> None:
    driver = FakeDriver(failing="cuLaunchKernel")
    stream = open_device(driver=driver).stream()

    def unfinished(handle: Any) -> tuple[int, None]:
        return 901, None

    driver.cuStreamEndCapture = unfinished  # type: ignore[attr-defined]
    kernel = load_kernel(stream.device, CODE)
    with (
        pytest.raises(ExecutionError, match="cuLaunchKernel failed: out of luck"),
        recording(stream),
    ):
        kernel.launch([4096, 8192], stream.handle)


def test_work_is_recorded_into_a_graph() -> None:
    driver = FakeDriver()
    device = open_device(driver=driver)
    stream = device.stream()
    with recording(stream) as graph:
        load_kernel(device, CODE).launch([4096, 8192], stream.handle)
    graph.launch(stream)
    names = [name for name, _ in driver.calls]
    order = ["cuStreamBeginCapture", "cuLaunchKernel", "cuStreamEndCapture", "cuGraphInstantiate"]
    assert [name for name in names if name in order] == order
    assert driver.asked("cuGraphLaunch") == [("cuGraphInstantiate handle", stream.handle)]
