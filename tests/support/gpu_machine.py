"""A GPU made of the dialect's interpreter: a stand-in for the CUDA driver whose device memory is
host memory and whose launches run kernels by their meaning."""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from weft.codegen.gpu import ir
from weft.codegen.gpu.compile import Cubin, Report
from weft.codegen.gpu.interp import Timing, run
from weft.codegen.gpu.interp.values import Reported
from weft.driver.code import gpu_kernels, gpu_linker
from weft.driver.compile import Executable
from weft.driver.cuda import CudaBackend, CudaExecutable
from weft.driver.stages.compilation import Compilation
from weft.foundation.dtypes import BY_NAME, DType
from weft.foundation.numeric import cast
from weft.ptir import Program
from weft.region.structure import buffers
from weft.runtime.cuda import driver

Array = NDArray[Any]
ALIGNMENT = 256
ANYWHERE = ("cuInit", "cuDevice", "cuCtx", "cuDriver", "cuGetError", "cuTensorMap")
"""How the names of functions begin that need no current context."""
UNSAFE = ("cuMemAlloc", "cuMemAllocManaged", "cuMemFree", "cuModuleUnload")
"""What the driver forbids a thread that records, unless it records in the relaxed mode."""


class _Names:
    """An enumeration whose members are their own names."""

    def __getattr__(self, name: str) -> str:
        return name


class Node:
    """A node of a graph: something to do."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work


class Machine:
    """Answers like the driver's bindings."""

    def __init__(self, capability: tuple[int, int] = (9, 0)) -> None:
        self.capability = capability
        self.executables: list[Executable] = []
        self.kernels: dict[str, tuple[ir.Kernel, list[tuple[DType, int]]]] = {}
        self.memory: dict[int, Any] = {}
        self.version = 13000
        """The CUDA of its driver."""
        self.contexts = threading.local()
        """Current contexts of each thread, the one that counts last."""
        self.strict: set[Any] = set()
        """Streams that record in a mode that forbids unsafe calls."""
        self.streams = 0
        self.recordings: dict[Any, list[Node]] = {}
        """What streams that record have recorded."""
        self.values: dict[int, int] = {}
        """What branches and loops of graphs look at."""
        self.asked: Counter[str] = Counter()
        """How often each function was called."""
        self.launches: list[str] = []
        self.early: list[str] = []
        """Kernels that were put behind another one without waiting for its end."""
        self.graph_launches = 0
        self.graph_updates = 0
        """Nodes that were told other parameters."""
        self.events: list[Any] = []
        """The streams in which events were recorded."""
        self.words: list[Any] = []
        """Memory of the host that it reads."""
        self.orders: list[tuple[Any, Any]] = []
        """Streams, and those that had to wait for what they were doing."""
        self.waits = 0
        self.idles = 0
        """How often somebody waited for all streams, other libraries' too."""
        self.room = 1 << 34
        """Bytes of its memory."""
        self.pinned: set[int] = set()
        """Addresses of the host that the driver knows."""
        self.uploads = 0
        self.timing, self.seed = Timing.LATE, 0
        self.cuuint64_t = self.cuuint32_t = int
        self.CUmemLocation = self.CUDA_MEMCPY3D = self.CUDA_KERNEL_NODE_PARAMS = SimpleNamespace
        self.CUgraphNodeParams = lambda: SimpleNamespace(conditional=SimpleNamespace())
        self.CUlaunchAttribute = lambda: SimpleNamespace(value=SimpleNamespace())
        self.CUlaunchConfig = SimpleNamespace

    def learn(self, executable: Executable) -> None:
        """Know the kernels that an executable is going to launch."""
        self.executables.append(executable)

    def kernel(self, symbol: str) -> tuple[ir.Kernel, list[tuple[DType, int]]]:
        """A kernel, and dtype and size of each of its buffers, of all sets."""
        if symbol not in self.kernels:
            for executable in self.executables:
                self._look_into(executable)
        return self.kernels[symbol]

    def _look_into(self, executable: Executable) -> None:
        for cluster in executable.clusters.values():
            self._learn(cluster.compilation)

    def _learn(self, compilation: Compilation) -> None:
        module, code = compilation["region"], compilation["gpu"]
        names: dict[str, list[str]] = {}
        for found in module.kernels:
            if launch := code.launches.get(found.name):
                own = [buffers(found)[place] for place in launch.tensors]
                names[launch.symbol] = [*names.get(launch.symbol, ()), *own]
        for symbol, kernel in code.kernels.items():
            every = names[symbol][: kernel.sets * len(kernel.buffers)]
            tensors = [module.tensors[name] for name in every]
            self.kernels[symbol] = (kernel, [(t.dtype, prod(t.shape)) for t in tensors])
        for body in compilation.bodies.values():
            self._learn(body)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("CU"):
            return _Names()
        if not name.startswith("cu"):
            raise AttributeError(name)
        function = getattr(self, f"do_{name}", None)

        def ask(*args: Any) -> tuple[Any, ...]:
            self.asked[name] += 1
            if not name.startswith(ANYWHERE) and self.current != "cuDevicePrimaryCtxRetain handle":
                return (201, None)
            if name in UNSAFE and self.strict:
                return (900, None)
            try:
                answer = function(*args) if function is not None else f"{name} handle"
            except MemoryError:
                return (2, None)
            except LookupError:
                return (1, None)
            if isinstance(answer, tuple):
                return (0, *answer)
            return (0,) if answer is None else (0, answer)

        return ask

    # Devices

    def do_cuInit(self, flags: int) -> None:
        pass

    def do_cuDeviceGetCount(self) -> int:
        return 1

    def do_cuDeviceGet(self, number: int) -> int:
        return number

    def do_cuDeviceGetName(self, most: int, device: int) -> bytes:
        return b"Interpreter\0"

    def do_cuDeviceGetAttribute(self, what: str, device: int) -> int:
        numbers = {"MAJOR": self.capability[0], "MINOR": self.capability[1], "COUNT": 132}
        return next(number for key, number in numbers.items() if what.endswith(key))

    @property
    def current(self) -> Any:
        """The context that is current in the calling thread."""
        return next(reversed(self._stack), None)

    @property
    def _stack(self) -> list[Any]:
        if not hasattr(self.contexts, "stack"):
            self.contexts.stack = []
        found: list[Any] = self.contexts.stack
        return found

    def do_cuCtxPushCurrent(self, context: Any) -> None:
        self._stack.append(context)

    def do_cuCtxPopCurrent(self) -> Any:
        return self._stack.pop()

    def do_cuCtxSynchronize(self) -> None:
        self.idles += 1

    def do_cuDriverGetVersion(self) -> int:
        return self.version

    def do_cuStreamCreate(self, flags: str) -> int:
        self.streams += 1
        return self.streams

    def do_cuStreamQuery(self, stream: Any) -> None:
        self.waits += 1

    def do_cuGetErrorString(self, status: int) -> bytes:
        return b"out of memory" if status == 2 else b"unknown"

    def do_cuFuncSetAttribute(self, function: Any, what: str, value: int) -> None:
        pass

    # Memory

    def do_cuPointerGetAttribute(self, what: str, address: int) -> str:
        if address not in self.pinned:
            raise LookupError("the driver does not know it")
        return "CU_MEMORYTYPE_HOST"

    def do_cuMemGetInfo(self) -> tuple[int, int]:
        return self.room - sum(map(len, self.memory.values())), self.room

    def do_cuMemAlloc(self, count: int) -> int:
        if count > self.do_cuMemGetInfo()[0]:
            raise MemoryError
        raw = (ctypes.c_uint8 * (count + ALIGNMENT))()
        start = ctypes.addressof(raw)
        address = start + -start % ALIGNMENT
        ctypes.memset(address, 0xFF, count)
        self.memory[address] = raw
        return address

    def do_cuMemAllocManaged(self, count: int, flags: str) -> int:
        return self.do_cuMemAlloc(count)

    def do_cuMemFree(self, address: int) -> None:
        del self.memory[address]

    def do_cuMemPrefetchAsync(self, *args: Any) -> None:
        pass

    def do_cuMemcpyHtoD(self, target: int, source: int, count: int) -> None:
        raise AssertionError("a copy that is in no stream may overtake what is still to be done")

    def do_cuMemcpyHtoDAsync(self, target: int, source: int, count: int, stream: Any) -> None:
        self.uploads += 1
        ctypes.memmove(target, source, count)

    def do_cuMemcpyDtoHAsync(self, target: int, source: int, count: int, stream: Any) -> None:
        ctypes.memmove(target, source, count)

    def do_cuMemcpyDtoDAsync(self, target: int, source: int, count: int, stream: Any) -> None:
        self.later(stream, lambda: ctypes.memmove(target, source, count))

    def do_cuMemsetD8Async(self, target: int, byte: int, count: int, stream: Any) -> None:
        self.later(stream, lambda: ctypes.memset(target, byte, count))

    def do_cuMemsetD16Async(self, target: int, half: int, count: int, stream: Any) -> None:
        def work() -> None:
            (ctypes.c_uint16 * count).from_address(target)[:] = [half] * count

        self.later(stream, work)

    def do_cuMemsetD32Async(self, target: int, word: int, count: int, stream: Any) -> None:
        def work() -> None:
            (ctypes.c_uint32 * count).from_address(target)[:] = [word] * count

        self.later(stream, work)

    # Work

    def later(self, stream: Any, work: Callable[[], Any]) -> None:
        if stream in self.recordings:
            self.recordings[stream].append(Node(work))
        else:
            work()

    def do_cuStreamBeginCapture(self, stream: Any, mode: str) -> None:
        self.recordings[stream] = []
        self._note_mode(stream, mode)

    def do_cuStreamBeginCaptureToGraph(
        self, stream: Any, graph: list[Node], nodes: Any, edges: Any, count: int, mode: str
    ) -> None:
        assert not graph
        self.recordings[stream] = graph
        self._note_mode(stream, mode)

    def _note_mode(self, stream: Any, mode: str) -> None:
        if not mode.endswith("RELAXED"):
            self.strict.add(stream)

    def do_cuStreamEndCapture(self, stream: Any) -> Any:
        self.strict.discard(stream)
        return (self.recordings.pop(stream),)

    def do_cuStreamGetCaptureInfo(self, stream: Any) -> tuple[Any, ...]:
        graph = self.recordings[stream]
        return ("active", 1, graph, graph[-1:], None, len(graph[-1:]))

    def do_cuGraphInstantiate(self, graph: Any, flags: int) -> Any:
        return (graph,)

    def do_cuGraphExecKernelNodeSetParams(self, graph: Any, node: Node, wanted: Any) -> None:
        assert node in graph
        self.graph_updates += 1
        node.work = self.kernel_work(wanted.func, wanted.kernelParams)

    def do_cuGraphExecMemcpyNodeSetParams(
        self, graph: Any, node: Node, copy: Any, context: Any
    ) -> None:
        assert node in graph
        self.graph_updates += 1
        ends = copy.dstDevice, copy.srcDevice, copy.WidthInBytes
        node.work = lambda: ctypes.memmove(*ends)

    def do_cuGraphConditionalHandleCreate(self, graph: Any, context: Any, *rest: int) -> int:
        self.values[len(self.values)] = 0
        return len(self.values) - 1

    def do_cuGraphAddNode(
        self, graph: list[Node], nodes: list[Node], edges: Any, count: int, wanted: Any
    ) -> Node:
        assert nodes == graph[-1:]
        inner = wanted.conditional
        inner.phGraph_out = [[] for _ in range(inner.size)]
        value, loops = inner.handle, inner.type.endswith("WHILE")
        graph.append(Node(lambda: self._turn(value, inner.phGraph_out, loops=loops)))
        return graph[-1]

    def _turn(self, value: int, bodies: list[list[Node]], *, loops: bool) -> None:
        while loops and self.values[value]:
            self._do(bodies[0])
        if not loops:
            self._do(bodies[0 if self.values[value] else 1])

    def do_cuStreamUpdateCaptureDependencies(
        self, stream: Any, nodes: list[Node], edges: Any, count: int, flags: str
    ) -> None:
        assert nodes == self.recordings[stream][-1:]

    def do_cuGraphLaunch(self, graph: list[Node], stream: Any) -> None:
        self.graph_launches += 1
        self._do(graph)

    def _do(self, graph: list[Node]) -> None:
        for node in graph:
            node.work()

    def do_cuEventCreate(self, flags: str) -> int:
        self.events.append(None)
        return len(self.events) - 1

    def do_cuEventRecord(self, event: int, stream: Any) -> None:
        self.events[event] = stream

    def do_cuStreamWaitEvent(self, stream: Any, event: int, flags: int) -> None:
        self.orders.append((self.events[event], stream))

    def do_cuDeviceGetPCIBusId(self, size: int, device: Any) -> bytes:
        return b"0000:01:00.0\0\0"

    def do_cuMemHostAlloc(self, count: int, flags: Any) -> int:
        self.words.append(ctypes.create_string_buffer(count))
        return ctypes.addressof(self.words[-1])

    def do_cuMemHostGetDevicePointer(self, place: int, flags: int) -> int:
        return place

    def do_cuStreamWaitValue32(self, stream: Any, place: int, value: int, flags: Any) -> None:
        assert ctypes.c_uint32.from_address(place).value != value

    def do_cuMemFreeHost(self, place: int) -> None:
        assert ctypes.c_uint32.from_address(place).value == 1
        self.words.pop()

    def do_cuEventElapsedTime(self, first: Any, last: Any) -> float:
        return 0.5

    def do_cuTensorMapEncodeTiled(self, *args: Any) -> Any:
        return SimpleNamespace(opaque=list(range(16)))

    def do_cuTensorMapEncodeIm2col(self, *args: Any) -> Any:
        return SimpleNamespace(opaque=list(range(16)))

    def do_cuModuleGetFunction(self, module: Any, symbol: bytes) -> str:
        return symbol.decode()

    def do_cuLaunchKernel(self, symbol: str, *rest: Any) -> None:
        *_, stream, parameters, _extra = rest
        self.later(stream, self.kernel_work(symbol, parameters))

    def do_cuLaunchKernelEx(self, config: Any, symbol: str, parameters: int, extra: int) -> None:
        """A launch that need not wait for the one before: the kernel must."""
        assert self.kernel(symbol)[0].waits
        assert [found.value.programmaticStreamSerializationAllowed for found in config.attrs] == [1]
        self.early.append(symbol)
        self.later(config.hStream, self.kernel_work(symbol, parameters))

    def kernel_work(self, symbol: str, parameters: int) -> Callable[[], Any]:
        """What a launch does, by its parameters as they are now."""
        if symbol == "weft_tell":
            words = _words(parameters, 8)
            return lambda: self._tell(*words)
        if symbol == "weft_enter":
            words = _words(parameters, 3)
            return lambda: _enter(*words)
        if symbol.startswith("weft_cast_"):
            words = _words(parameters, 3)
            return lambda: _cast(symbol, *words)
        kernel, kinds = self.kernel(symbol)
        if kernel.sets > 1:
            (table,) = (ctypes.c_void_p * 1).from_address(parameters)
            addresses = list((ctypes.c_uint64 * len(kinds)).from_address(table or 0))
            return lambda: self.launch(symbol, addresses)
        count = len(kernel.maps) + len(kernel.buffers) + kernel.reports
        addresses = _words(parameters, count + (kernel.workspace is not None))
        return lambda: self.launch(symbol, addresses[len(kernel.maps) :])

    def _tell(self, value: int, flag: int, *words: int) -> None:
        """The meaning of the kernel that tells a graph what a flag says."""
        total, most, overrun, step, errors, count = words
        holds = ctypes.c_uint8.from_address(flag).value != 0
        holds = holds and not any(_at(errors + 8 * n) for n in range(count))
        ended = ctypes.c_uint64.from_address(overrun)
        if holds and _at(total) >= _at(most):
            holds = False
            ended.value = ended.value or step
        self.values[value] = int(holds)

    def launch(self, symbol: str, addresses: list[int]) -> None:
        kernel, kinds = self.kernel(symbol)
        self.launches.append(symbol)
        if kernel.workspace is not None:
            counters = (ctypes.c_uint32 * kernel.workspace.counters).from_address(addresses.pop())
            assert not any(counters), "a kernel finds counters that are not zero"
        every = [_array_at(at, *kind) for at, kind in zip(addresses, kinds, strict=False)]
        count = len(kernel.buffers)
        first, *others = (
            dict(zip(kernel.buffers, every[n * count : (n + 1) * count], strict=True))
            for n in range(kernel.sets)
        )
        try:
            run(kernel, first, self.timing, self.seed, others=others)
        except Reported as found:
            # What a kernel finds it leaves in the error word, its last parameter.
            word = ~(found.number << 40 | found.element) & ((1 << 64) - 1)
            ctypes.c_uint64.from_address(addresses[-1]).value = word


def _words(parameters: int, count: int) -> list[int]:
    """The 64-bit words that a table of parameters points to."""
    table = (ctypes.c_void_p * count).from_address(parameters)
    return [ctypes.c_uint64.from_address(p or 0).value for p in table]


def _at(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def _enter(total: int, count: int, before: int) -> None:
    """The meaning of the kernel that counts a body."""
    ctypes.c_uint64.from_address(total).value += 1
    entered = ctypes.c_uint32.from_address(count)
    ctypes.c_uint32.from_address(before).value = entered.value
    entered.value += 1


def _cast(symbol: str, source: int, target: int, count: int) -> None:
    """The meaning of a kernel that casts any number of elements."""
    given, wanted = (BY_NAME[name] for name in symbol.split("_")[2:])
    _array_at(target, wanted, count)[:] = cast(_array_at(source, given, count), given, wanted)


def _array_at(address: int, dtype: DType, count: int) -> Array:
    raw = (ctypes.c_uint8 * (count * dtype.storage_bytes)).from_address(address)
    return np.ctypeslib.as_array(raw).view(dtype.numpy)


@contextmanager
def machine(capability: tuple[int, int] = (9, 0), *, keeps: bool = False) -> Iterator[Machine]:
    """This process with such a GPU. Kernels stay in the dialect: there is nothing to compile.
    Whether it `keeps` its programs on disk, apart from those of real compilers."""
    made = Machine(capability)
    facts = (str(capability), "dialect") if keeps else None
    with (
        patch.object(driver, "bindings", lambda: made),
        patch.object(gpu_kernels, "compile_sources", _uncompiled),
        patch.object(gpu_kernels, "worth", lambda count: 1),
        patch.object(gpu_linker, "LINKER", replace(gpu_linker.LINKER, facts=lambda _: facts)),
    ):
        yield made


def _uncompiled(code: gpu_kernels.CudaCode, arch: str) -> gpu_kernels.Cubins:
    nothing = Cubin(arch, b"", "", Report(1, 0, 0, ()))
    return gpu_kernels.Cubins(arch, dict.fromkeys(code.sources, nothing), len(code.sources))


class MachineBackend(CudaBackend):
    """The cuda backend on such a GPU."""

    def __init__(self, found: Machine, target: str = "sm90") -> None:
        super().__init__(target)
        self.machine = found
        self.last: Executable | None = None

    def compile_donating(self, program: Program, donated: frozenset[int]) -> CudaExecutable:
        made = super().compile_donating(program, donated)
        self.last = made.executable
        self.machine.learn(made.executable)
        return made
