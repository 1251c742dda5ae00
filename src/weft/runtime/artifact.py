"""What code generation hands to the runtime: plain records, no IR.

    Artifact = buffers, kernels (machine code by symbol), steps, inputs, outputs
    Step     = Launch(kernel, buffers) | CopyBuffer | HostCall(function, buffers)

A launch names its buffers by number; the numbers index the parameter block, a table of pointers
filled in by `model_init` (constants, arena, state) and `model_run` (inputs, outputs).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True)
class BufferSlot:
    """An entry of the parameter block: input n, output n, state n, constant n, or an arena
    range."""

    space: str
    number: int
    offset: int
    bytes: int


@dataclass(frozen=True)
class TensorMap:
    """A tensor as the GPU's copy engine sees it, contiguous axis first; its address is that of a
    launch's buffer. Offset and strides are in bytes; the first axis has no stride."""

    buffer: int
    """Position among the launch's buffers."""
    dtype: str
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    """Bytes within which 16-byte pieces are permuted: 128, 64, 32, or 16 for none."""


@dataclass(frozen=True)
class KernelCode:
    """One kernel: object code or cubin, its symbol, and how it is split over workers."""

    symbol: str
    code: bytes = field(repr=False)
    work_items: int = 1
    """How many pieces the kernel's iteration space is cut into; any worker may take any piece."""
    small: bool = False
    """Whether, on CPUs, one thread is done with all pieces before another one has woken up."""
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    cluster: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0
    tensor_maps: tuple[TensorMap, ...] = ()
    """On GPUs the first parameters of a kernel; then come its buffers' addresses."""
    reports: bool = False
    """Whether, on GPUs, its last parameter is the address of an error word."""


@dataclass(frozen=True)
class Launch:
    """Run a kernel on buffers, in the order of its parameters."""

    kernel: int
    buffers: tuple[int, ...]
    label: str


@dataclass(frozen=True)
class CopyBuffer:
    """Copy bytes between buffers."""

    source: int
    target: int
    bytes: int
    label: str


@dataclass(frozen=True)
class TensorSpec:
    """A named input or output as the runtime sees it."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class HostCall:
    """Run a function of the host on whole tensors; it ends a native segment."""

    function: HostFunction = field(repr=False)
    inputs: tuple[tuple[int, TensorSpec], ...]
    outputs: tuple[tuple[int, TensorSpec], ...]
    label: str


HostFunction: TypeAlias = Callable[[Sequence[Any], int], Sequence[Any]]
"""Arrays and the run's seed to arrays."""
Step: TypeAlias = Launch | CopyBuffer | HostCall


@dataclass(frozen=True)
class Artifact:
    """A compiled program."""

    target: str
    buffers: tuple[BufferSlot, ...]
    kernels: tuple[KernelCode, ...]
    steps: tuple[Step, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    output_slots: tuple[int, ...]
    """The buffer of each output: memory of its own, a state that was updated, or an input."""
    arena_bytes: int
    constants: tuple[bytes, ...] = field(default=(), repr=False)
