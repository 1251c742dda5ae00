"""Loading kernels on a CUDA device, making tensor maps, launching.

A kernel's parameters are its tensor maps, by value, then the address of every buffer, then that of
its workspace, if it has one. Maps hold addresses: they are made again when a buffer moves, and kept
while it stays. One that works on several sets of buffers takes all addresses as one table.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from weft.foundation.errors import BackendUnavailable, ExecutionError, ResourceExceeded
from weft.runtime.artifact import KernelCode, TensorMap
from weft.runtime.cuda.driver import Device, DriverError, Memory, call, pointer_table

_DTYPES: Final = {
    "bf16": "BFLOAT16",
    "f16": "FLOAT16",
    "f32": "FLOAT32",
    "f64": "FLOAT64",
    "si32": "INT32",
    "ui32": "UINT32",
    **dict.fromkeys(("ui8", "si8", "i1", "fp8_e4m3", "fp8_e5m2"), "UINT8"),
    "ui16": "UINT16",
    "si64": "INT64",
    "ui64": "UINT64",
}
_INVALID: Final = 1
_OUT_OF_RESOURCES: Final = 701
_NO_SUCH_CLUSTER: Final = 912
_UNREADABLE: Final = frozenset({200, 209, 218, 222})
"""What the driver answers: an invalid value, a launch that asks for too much, or for too large a
cluster, and machine code that it does not understand."""
_BUILT_FOR: Final = (8, 9)
"""Generations of GPUs that run what is compiled: machine code is for one generation."""
_MAP_WORDS: Final = 16
_PORTABLE_CLUSTER: Final = 8
"""Blocks of a cluster that are launched without asking for leave."""
_KEPT: Final = 64
"""Address combinations whose parameters are kept ready."""


@dataclass
class Prepared:
    """The parameters of one launch: maps and addresses in memory, and pointers to them."""

    storage: list[Any]
    pointers: Any

    @property
    def address(self) -> int:
        return ctypes.addressof(self.pointers)


@dataclass
class LoadedKernel:
    """A kernel of a loaded module."""

    device: Device
    code: KernelCode
    module: Any
    function: Any
    workspace: Memory | None = None
    prepared: dict[tuple[int, ...], Prepared] = field(default_factory=dict)

    def launch(self, addresses: Sequence[int], stream: Any, *, early: bool = False) -> None:
        """Start the kernel on buffers at these addresses, in a stream of the driver's; `early`,
        where it waits by itself, while the kernel before it in the stream ends."""
        parameters = self.parameters(tuple(addresses))
        driver, code = self.device.driver, self.code
        try:
            if early and code.waits:
                config = self._early(stream)
                call(driver, "cuLaunchKernelEx", config, self.function, parameters.address, 0)
                return
            call(
                driver,
                "cuLaunchKernel",
                self.function,
                *code.grid,
                *code.block,
                code.shared_bytes,
                stream,
                parameters.address,
                0,
            )
        except DriverError as error:
            if error.status == _NO_SUCH_CLUSTER:
                raise ResourceExceeded(
                    f"{self.device.name} does not run {code.cluster[0]} blocks of the kernel "
                    f"{code.symbol} side by side: plan it with fewer blocks for a row"
                ) from None
            if error.status != _OUT_OF_RESOURCES:
                raise
            raise ResourceExceeded(_too_large(self)) from None

    def node(self, addresses: Sequence[int]) -> Any:
        """The same launch as a node of a graph has it."""
        found = self.device.driver.CUDA_KERNEL_NODE_PARAMS()
        found.func, found.sharedMemBytes = self.function, self.code.shared_bytes
        found.gridDimX, found.gridDimY, found.gridDimZ = self.code.grid
        found.blockDimX, found.blockDimY, found.blockDimZ = self.code.block
        found.kernelParams, found.extra = self.parameters(tuple(addresses)).address, 0
        return found

    def _early(self, stream: Any) -> Any:
        """How a kernel is launched that need not wait for the end of the one before."""
        driver, code = self.device.driver, self.code
        attribute = driver.CUlaunchAttribute()
        attribute.id = (
            driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        )
        attribute.value.programmaticStreamSerializationAllowed = 1
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = code.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = code.block
        config.sharedMemBytes, config.hStream = code.shared_bytes, stream
        config.attrs, config.numAttrs = [attribute], 1
        return config

    def parameters(self, addresses: tuple[int, ...]) -> Prepared:
        """The parameters for these addresses, made once."""
        found = self.prepared.get(addresses)
        if found is None:
            if len(self.prepared) >= _KEPT:
                # Addresses that come back fill it again at once; which of them were used last is
                # not worth keeping account of.
                self.prepared.clear()
            found = self.prepared[addresses] = self._prepare(addresses)
        return found

    def _prepare(self, addresses: tuple[int, ...]) -> Prepared:
        maps = [
            encode_map(self.device.driver, found, addresses[found.buffer])
            for found in self.code.tensor_maps
        ]
        own = (self.workspace.address,) if self.workspace is not None else ()
        if self.code.sets > 1:
            storage: list[Any] = [(ctypes.c_uint64 * len(addresses))(*addresses)]
        else:
            storage = [*maps, *(ctypes.c_uint64(address) for address in (*addresses, *own))]
        return Prepared(storage, pointer_table([ctypes.addressof(part) for part in storage]))

    def unload(self) -> None:
        """Free the module and the workspace."""
        with self.device.current():
            call(self.device.driver, "cuModuleUnload", self.module)
        if self.workspace is not None:
            self.workspace.free()


def load_kernel(device: Device, code: KernelCode, workspace: Memory | None = None) -> LoadedKernel:
    """Load a kernel's machine code and make room for its shared memory. A workspace that is given
    holds zeros when the first launch begins; the kernel gives it back."""
    driver = device.driver
    # One block a unit is all that is sure to run at once. A block that waits for one that has not
    # begun would wait for ever.
    if code.together and code.grid[0] > device.multiprocessors:
        raise ResourceExceeded(
            f"the {code.grid[0]} blocks of the kernel {code.symbol} wait for one another, and "
            f"{device.name} runs {device.multiprocessors} at once: plan it with "
            "algo_choice.matmul splitk_parallel_N in place of split_k"
        )
    try:
        module = call(driver, "cuModuleLoadData", code.code)
    except DriverError as error:
        if error.status not in _UNREADABLE:
            raise
        raise BackendUnavailable(_unreadable(device)) from None
    function = call(driver, "cuModuleGetFunction", module, code.symbol.encode())
    if code.shared_bytes:
        _make_room(device, code, function)
    if code.cluster[0] > _PORTABLE_CLUSTER:
        allowed = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        call(driver, "cuFuncSetAttribute", function, allowed, 1)
    if workspace is None and code.workspace_bytes:
        workspace = device.allocate(code.workspace_bytes)
        # Zeros before the first launch alone: what a launch leaves there for the next one is the
        # kernel's own affair.
        workspace.fill(0)
        device.synchronize()
    return LoadedKernel(device, code, module, function, workspace)


def _unreadable(device: Device) -> str:
    """Why machine code could not be loaded: it is for other GPUs, or the driver is older than the
    compiler."""
    if device.compute_capability[0] not in _BUILT_FOR:
        number = "".join(map(str, device.compute_capability))
        return f"Weft's kernels are for SM80 and SM90 GPUs, and {device.name} is an SM{number}"
    found = int(call(device.driver, "cuDriverGetVersion"))
    major, minor = found // 1000, found % 1000 // 10
    return (
        f"the CUDA driver of this machine, of CUDA {major}.{minor}, cannot load Weft's kernels for "
        f"{device.name}: update the driver to one as new as the installed package nvidia-cuda-nvrtc"
    )


def _make_room(device: Device, code: KernelCode, function: Any) -> None:
    driver = device.driver
    limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    try:
        call(driver, "cuFuncSetAttribute", function, limit, code.shared_bytes)
    except DriverError as error:
        if error.status != _INVALID:
            raise
        most = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        room = int(call(driver, "cuDeviceGetAttribute", most, device.handle))
        raise ResourceExceeded(
            f"the kernel {code.symbol} takes {code.shared_bytes:,} bytes of shared memory; "
            f"{device.name} has {room:,} for a block: plan it with a smaller tile or fewer stages"
        ) from None


def _too_large(kernel: LoadedKernel) -> str:
    """Why a launch was refused for want of resources."""
    driver, code = kernel.device.driver, kernel.code
    what = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS
    registers = int(call(driver, "cuFuncGetAttribute", what, kernel.function))
    threads = code.block[0] * code.block[1] * code.block[2]
    return (
        f"a block of the kernel {code.symbol} takes {threads} threads of {registers} registers and "
        f"{code.shared_bytes:,} bytes of shared memory, which {kernel.device.name} does not have: "
        "plan it with fewer threads or a smaller tile"
    )


def encode_map(driver: Any, found: TensorMap, address: int) -> Any:
    """A tensor map as the 128 bytes that a kernel takes."""
    start = address + found.offset
    if start % 16:
        raise ExecutionError(f"a buffer lies at {start:#x}, which is not a multiple of 16 bytes")
    window = found.window
    # Channels come first and images last: windows move over what lies between.
    steps = (1,) * len(found.sizes) if window is None else (1, *window.steps, 1)
    answer = call(
        driver,
        "cuTensorMapEncodeTiled" if window is None else "cuTensorMapEncodeIm2col",
        getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_DTYPES[found.dtype]}"),
        len(found.sizes),
        start,
        [driver.cuuint64_t(size) for size in found.sizes],
        [driver.cuuint64_t(stride) for stride in found.strides],
        *_box(driver, found),
        [driver.cuuint32_t(step) for step in steps],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        _swizzle(driver, found.swizzle),
        _promotion(driver, start, found.strides),
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    return (ctypes.c_uint64 * _MAP_WORDS)(*(int(word) for word in answer.opaque))


def _box(driver: Any, found: TensorMap) -> tuple[Any, ...]:
    """What a copy moves: its extents, or, of an image, where places lie, channels and places."""
    if found.window is None:
        return ([driver.cuuint32_t(extent) for extent in found.box],)
    return (list(found.window.lower), list(found.window.upper), *found.box)


def _promotion(driver: Any, start: int, strides: tuple[int, ...]) -> Any:
    """How much of memory is fetched at a time: as much as begins where rows do."""
    # Where rows do not begin at multiples of it, a longer fetch brings parts of rows that nobody
    # asked for.
    whole = next((n for n in (256, 128) if all(s % n == 0 for s in (start, *strides))), 0)
    name = f"L2_{whole}B" if whole else "NONE"
    return getattr(driver.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_{name}")


def _swizzle(driver: Any, span: int) -> Any:
    name = "NONE" if span == 16 else f"{span}B"
    return getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{name}")
