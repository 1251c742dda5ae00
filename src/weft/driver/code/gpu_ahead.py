"""Machine code of kernels while the stages of others still run.

Python makes one kernel after the other, and NVRTC takes longer for some of them than Python for
all: where there is much to compile, processes get each source when it is printed, and are done soon
after the last one. They start before the first stage, where a program looks as if it had many
kernels: until its first source is printed, they have loaded the compiler.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.compile import Cubin, compile_cuda, pack_cubin, version
from weft.codegen.gpu.spelling.print import cuda
from weft.driver.code import gpu_kernels
from weft.driver.code.gpu_kernels import (
    PROCESS,
    CudaCode,
    Lowering,
    message_of,
    source_key,
    unpacked,
)
from weft.driver.code.plans import Built, Tell
from weft.driver.stages.compilation import Compilation
from weft.foundation.errors import Unimplemented
from weft.memory.ir import BufferMap
from weft.plan.ir import Plan
from weft.ptir.ir import Program
from weft.region.ir import Kernel, Module
from weft.runtime import cache
from weft.runtime.compilers import Workers
from weft.target.target import Target

_READ: Final = frozenset({"gpu", "cu"})
"""Stages behind which there are other kernels, where somebody gives them."""
_KINDS: Final = 3
"""Kinds of instructions, ops that give values of one type, for each distinct kernel of a program:
2.2 to 3 in training steps of transformers and convolutional networks."""
_SWITCH: Final = 5e-4
"""Seconds after which threads that hand on messages may interrupt a stage."""


class Ahead:
    """The processes of one compilation, and what they were asked for."""

    def __init__(self, arch: str) -> None:
        self.arch = arch
        self.kernels: dict[str, ir.Kernel] = {}
        self.printed = CudaCode({})
        self.made: dict[str, Cubin] = {}
        """What is finished, by its source."""
        self._sources: list[str] = []
        """What is not kept on disk, by the numbers of messages."""
        self._workers = Workers(PROCESS)
        self._most = self._started = 0

    def expect(self, program: Program) -> None:
        """Start the processes for the kernels that a program seems to have."""
        kinds = {(i.op.name, i.output) for body in program.bodies for i in body.body}
        self._start(gpu_kernels.worth(len(kinds) // _KINDS) - 1)

    def _start(self, most: int) -> None:
        """Have so many processes, at least."""
        if most > self._started:
            self._workers.start(most - self._started)
            self._started = most

    def teller(self, count: int) -> Callable[[ir.Kernel], None] | None:
        """Who is told of kernels of so many structures; None where processes do not pay."""
        self._most = gpu_kernels.worth(count) - 1
        return self._tell if self._most > 0 else None

    def teller_of_plans(
        self, module: Module, buffer_map: BufferMap, target: Target
    ) -> Callable[[int], Tell | None]:
        """Who is told of the plans of a module. What is made of them is the same again when all of
        them are known, but for the few that something else moves: nobody asks for those."""
        lowering = Lowering(module, buffer_map, target)

        def tell(kernels: Sequence[Kernel], plan: Plan, built: Built) -> None:
            for kernel in lowering.inside(kernels, plan, built):
                self._tell(kernel)

        return lambda count: None if self.teller(count) is None else tell

    def _tell(self, kernel: ir.Kernel) -> None:
        if self.kernels.get(kernel.name) == kernel:
            return
        source = cuda(kernel)
        self.kernels[kernel.name], self.printed.sources[kernel.name] = kernel, source
        if self._add(source):
            # All at once: where one source is missing on disk others are.
            self._start(self._most)

    def _add(self, source: str) -> bool:
        """Have a source compiled; whether it is not kept on disk."""
        if unpacked(cache.load(source_key(source, self.arch)), self.arch) is not None:
            return False
        self._sources.append(source)
        self._workers.add(message_of(source, self.arch))
        return True

    def add_body(self, code: CudaCode) -> None:
        """Have the kernels of a branch's or loop's body compiled beside those of the program, where
        there are processes."""
        self._add_all(code.sources.values())

    def compiled(self, sources: Iterable[str]) -> dict[str, Cubin]:
        """The machine code of sources that nobody told of, where there are processes, and of all
        that were told of before; what is kept on disk is not among it."""
        self._add_all(sources)
        return self.finished()

    def _add_all(self, sources: Iterable[str]) -> None:
        if self._started:
            for source in sources:
                if source not in self._sources:
                    self._add(source)

    def finished(self) -> dict[str, Cubin]:
        """The machine code of every source that was not kept on disk, which it is then."""
        answers = self._workers.gather(
            lambda n: pack_cubin(compile_cuda(self._sources[n], self.arch))
        )
        for source, data in zip(self._sources, answers, strict=True):
            if source not in self.made:
                cubin = unpacked(data, self.arch) or compile_cuda(source, self.arch)
                cache.save(source_key(source, self.arch), pack_cubin(cubin))
                self.made[source] = cubin
        return self.made

    def stop(self) -> None:
        """End the processes."""
        self._workers.stop()


@contextmanager
def working_ahead(compilation: Compilation, arch: str) -> Iterator[None]:
    """Let kernels of a compilation be compiled as soon as they are printed."""
    if _can_compile() and not _READ & compilation.overrides.keys():
        compilation.ahead = Ahead(arch)
        compilation.ahead.expect(compilation.program)
    interval = sys.getswitchinterval()
    # Every answer of a process waits for the stages to let go of the interpreter, a few times: with
    # Python's usual 5 ms that is a tenth of what a short kernel takes.
    sys.setswitchinterval(min(interval, _SWITCH))
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        if compilation.ahead is not None:
            compilation.ahead.stop()
            compilation.ahead = None


def _can_compile() -> bool:
    try:
        version()
    except Unimplemented:
        # Whoever wants machine code is told so.
        return False
    return True
