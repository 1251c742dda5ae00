"""Artifacts, which code generation hands to the runtime: plain records, no IR.

    Artifact = buffers, kernels (machine code by symbol), steps, inputs, outputs
    Step     = Launch(kernel, buffers) | CopyBuffer | HostCall(call, buffers)
             | Enter | Jump | JumpUnless | Reset | Leave | Again

A launch names its buffers by number; the numbers index the parameter block, a table of pointers
which is filled in once (constants, arena, state) and in every run (inputs, outputs).

Steps run one after the other. Bodies of branches and loops stand in the same list, entered by
`Enter` and connected by jumps, whose targets are positions in the list. A counted loop is

    reset c;  head: leave c at n for end;  enter;  ...;  again c from head;  end:
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from weft.foundation.errors import InternalError


@dataclass(frozen=True)
class BufferSlot:
    """An entry of the parameter block: input n, output n, state n, constant n, an arena range, or
    what the random numbers of body n depend on (`run`): the seed, and how often the run has been
    there before, in the upper half of a second number."""

    space: str
    number: int
    offset: int
    bytes: int
    kept: int = 0
    """The number, from 1 on, of a result that depends on inputs and constants alone, which a run
    with the same inputs may find where the one before left it. The first launch that names it
    makes it, with nothing beside but others that are numbered. 0 for what is made in every run."""


@dataclass(frozen=True)
class Window:
    """Where the places of windows begin and end, from the beginning and the end of an image, and
    how far they are apart, along the axes that windows move over, the one next to the channels
    first."""

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    steps: tuple[int, ...]


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
    window: Window | None = None
    """Of an image how copies go through it; its box is (channels, places)."""


@dataclass(frozen=True)
class KernelCode:
    """One kernel: object code or cubin, its symbol, and how it is split over workers."""

    symbol: str
    code: bytes = field(repr=False)
    work_items: int = 1
    """How many pieces the kernel's iteration space is cut into; any worker may take any piece."""
    work: int = 0
    """Nanoseconds, on CPUs, that one thread takes for all pieces, as the compiler estimates it."""
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    cluster: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0
    tensor_maps: tuple[TensorMap, ...] = ()
    """On GPUs the first parameters of a kernel; then come its buffers' addresses."""
    reports: bool = False
    """Whether, on GPUs, its last parameter is the address of an error word."""
    waits: bool = False
    """Whether, on GPUs, it waits for the kernels before it, and may be launched while they end."""
    checks: tuple[tuple[str, str], ...] = ()
    """The violations it may report, by number: code and reason."""
    workspace_bytes: int = 0
    """Memory of its own, on GPUs, that lasts from launch to launch and is zero before the first;
    where it has some, its address is the very last parameter."""
    together: bool = False
    """Whether, on GPUs, its blocks wait for one another, so that all must run at once."""
    nanoseconds: int = 0
    """How long a launch takes, as the compiler estimates it."""
    sets: int = 1
    """Sets of buffers, on GPUs, that its blocks share out: where there are several, its one
    parameter is the table of all their addresses."""


@dataclass(frozen=True)
class Site:
    """An instruction as errors name it, and the line of the user that wrote it, where it is
    known. One that has words of its own for what is wrong has a code and a sentence."""

    what: str
    line: str = ""
    code: str = ""
    why: str = ""

    def __str__(self) -> str:
        return f"{self.what} ({self.line})" if self.line else self.what


@dataclass(frozen=True)
class Launch:
    """Run a kernel on buffers, in the order of its parameters."""

    kernel: int
    buffers: tuple[int, ...]
    label: str
    where: tuple[Site, ...] = ()
    """For each check of the kernel the instruction to name where it reports a violation."""


@dataclass(frozen=True)
class CopyBuffer:
    """Copy bytes between buffers. In a counted loop an end may move by so many bytes a turn."""

    source: int
    target: int
    bytes: int
    label: str
    counter: int = 0
    source_step: int = 0
    target_step: int = 0


@dataclass(frozen=True)
class Enter:
    """A body of a branch or loop begins: it is counted, and the run stops here if it failed."""

    body: int
    label: str
    where: tuple[Site, ...] = ()
    """The instruction to name where one body too many is entered."""

    @property
    def told(self) -> str:
        """The branch or loop, as errors name it."""
        return str(self.where[0]) if self.where else self.label


@dataclass(frozen=True)
class Jump:
    """Go on elsewhere."""

    target: int
    label: str


@dataclass(frozen=True)
class JumpUnless:
    """Go on elsewhere where the i1 in a buffer is false."""

    buffer: int
    target: int
    label: str


@dataclass(frozen=True)
class Reset:
    """A counter becomes 0."""

    counter: int
    label: str


@dataclass(frozen=True)
class Leave:
    """Go on elsewhere once a counter has reached its limit."""

    counter: int
    limit: int
    target: int
    label: str


@dataclass(frozen=True)
class Again:
    """A counter becomes one more; go on elsewhere."""

    counter: int
    target: int
    label: str


@dataclass(frozen=True)
class TensorSpec:
    """A named input or output as the runtime sees it."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class HostCall:
    """Let the host carry something out on whole tensors; it ends a native segment. `call` says
    what, in words that whoever runs the program understands."""

    call: str
    inputs: tuple[tuple[int, TensorSpec], ...]
    outputs: tuple[tuple[int, TensorSpec], ...]
    label: str


HostFunction: TypeAlias = Callable[[Sequence[Any], int], Sequence[Any]]
"""Arrays and the run's seed to arrays."""
Host: TypeAlias = Callable[[str], HostFunction]
"""What understands the calls of a program."""
Control: TypeAlias = Enter | Jump | JumpUnless | Reset | Leave | Again
Step: TypeAlias = Launch | CopyBuffer | HostCall | Control


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
    bodies: int = 1
    """How many bodies there are: the program's own, number 0, and those of branches and loops."""
    counters: int = 0

    def work_to_share(self, step: Step) -> int:
        """The nanoseconds of a step that several threads can share."""
        if not isinstance(step, Launch):
            return 0
        kernel = self.kernels[step.kernel]
        return kernel.work if kernel.work_items > 1 else 0

    def nanoseconds(self, step: Step) -> int:
        """How long a step takes, as the compiler estimates it."""
        return self.kernels[step.kernel].nanoseconds if isinstance(step, Launch) else 0


def host_functions(steps: Sequence[Step], host: Host | None) -> dict[str, HostFunction]:
    """What carries out the steps that no kernel does, by call."""
    calls = [step for step in steps if isinstance(step, HostCall)]
    if calls and host is None:
        raise InternalError(f"the step {calls[0].label} is for the host, and there is none")
    return {step.call: host(step.call) for step in calls} if host is not None else {}
