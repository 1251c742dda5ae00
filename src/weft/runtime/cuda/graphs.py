"""CUDA graphs: work that is recorded once and started by one call.

What a stream is asked for while it records becomes nodes, one after the other. A node whose
operands move is told so by itself (`set_kernel`, `set_copy`): nothing is recorded again, and work
that was started before is not touched. Branches and loops are conditional nodes: the value that
they look at is set by a kernel before them, so the host is not asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from weft.foundation.errors import ExecutionError
from weft.runtime.cuda.driver import Device, Stream, call

CONDITIONAL_SINCE: Final = 12080
"""The CUDA whose drivers have branches of two sides in graphs."""


def can_turn(device: Device) -> bool:
    """Whether graphs of a device can have branches and loops."""
    try:
        return int(call(device.driver, "cuDriverGetVersion")) >= CONDITIONAL_SINCE
    except ExecutionError:
        return False


@dataclass
class Graph:
    """Recorded work that one call starts."""

    device: Device
    recorded: Any = None
    executable: Any = None

    def instantiate(self, recorded: Any) -> None:
        """Make recorded work ready to be started."""
        self.recorded = recorded
        self.executable = call(self.device.driver, "cuGraphInstantiate", recorded, 0)

    def launch(self, stream: Stream) -> None:
        """Do the recorded work."""
        call(self.device.driver, "cuGraphLaunch", self.executable, stream.handle)

    def set_kernel(self, node: Any, parameters: Any) -> None:
        """Other parameters for a kernel, from the next start on."""
        call(
            self.device.driver, "cuGraphExecKernelNodeSetParams", self.executable, node, parameters
        )

    def set_copy(self, node: Any, target: int, source: int, count: int) -> None:
        """Other ends for a copy within the device, from the next start on."""
        driver = self.device.driver
        copy = driver.CUDA_MEMCPY3D()
        copy.srcMemoryType = copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        copy.srcDevice, copy.dstDevice = source, target
        copy.WidthInBytes, copy.Height, copy.Depth = count, 1, 1
        context = self.device.context
        call(driver, "cuGraphExecMemcpyNodeSetParams", self.executable, node, copy, context)

    def close(self) -> None:
        """Destroy the graph."""
        with self.device.current():
            call(self.device.driver, "cuGraphExecDestroy", self.executable)
            call(self.device.driver, "cuGraphDestroy", self.recorded)


@contextmanager
def recording(stream: Stream) -> Iterator[Graph]:
    """Record what the block puts into the stream instead of doing it."""
    driver = stream.device.driver
    call(driver, "cuStreamBeginCapture", stream.handle, _mode(driver))
    graph = Graph(stream.device)
    try:
        yield graph
    except BaseException:
        # The reason that counts is why it could not be recorded.
        with suppress(ExecutionError):
            call(driver, "cuGraphDestroy", call(driver, "cuStreamEndCapture", stream.handle))
        raise
    graph.instantiate(call(driver, "cuStreamEndCapture", stream.handle))


@contextmanager
def recording_into(stream: Stream, graph: Any) -> Iterator[None]:
    """Record what the block puts into the stream as the body of a branch or loop."""
    driver = stream.device.driver
    call(driver, "cuStreamBeginCaptureToGraph", stream.handle, graph, None, None, 0, _mode(driver))
    try:
        yield
    except BaseException:
        with suppress(ExecutionError):
            call(driver, "cuStreamEndCapture", stream.handle)
        raise
    call(driver, "cuStreamEndCapture", stream.handle)


def _mode(driver: Any) -> Any:
    """A recording that nothing ends early: what is collected meanwhile gives memory, modules and
    graphs back, which the stricter modes forbid the thread that records."""
    return driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED


@dataclass(frozen=True)
class Place:
    """Where a recording stands: its graph, and the nodes that the next one comes after."""

    graph: Any
    nodes: list[Any]
    edges: Any


def recording_place(stream: Stream) -> Place:
    """Where the recording of a stream stands."""
    answer = call(stream.device.driver, "cuStreamGetCaptureInfo", stream.handle)
    _status, _identity, graph, nodes, edges, _count = answer
    return Place(graph, list(nodes or ()), edges)


def condition(stream: Stream) -> Any:
    """A value for a branch or loop of what the stream records to look at."""
    graph, device = recording_place(stream).graph, stream.device
    return call(device.driver, "cuGraphConditionalHandleCreate", graph, device.context, 0, 0)


def branch(stream: Stream, value: Any, *, loops: bool) -> list[Any]:
    """A node that looks at a value; its bodies: what is done while the value holds, or what is done
    if it holds and what if it does not."""
    driver, place = stream.device.driver, recording_place(stream)
    kinds = driver.CUgraphConditionalNodeType
    wanted = driver.CUgraphNodeParams()
    wanted.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    inner = wanted.conditional
    inner.handle, inner.ctx = value, stream.device.context
    inner.type = kinds.CU_GRAPH_COND_TYPE_WHILE if loops else kinds.CU_GRAPH_COND_TYPE_IF
    inner.size = 1 if loops else 2
    count = len(place.nodes)
    node = call(driver, "cuGraphAddNode", place.graph, place.nodes, place.edges, count, wanted)
    # The recording does not know a node that was added by hand: what the stream is asked for next
    # comes behind it.
    flags = driver.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES
    call(driver, "cuStreamUpdateCaptureDependencies", stream.handle, [node], None, 1, flags)
    return list(wanted.conditional.phGraph_out)
