"""Compiling ahead: worker processes plan kernels and compile CUDA while later stages still run.

Python works on one kernel after the other, and NVRTC takes longer for some of them than Python for
all: where there is much to compile, processes work out plans and text of each structure of kernels
(`gpu_tasks`), and compile what was written, the longest first. They start before the first stage,
where a program looks as if it had many kernels: until the kernels are known, they have loaded what
they need. The stages make the same kernels, but for what is known of them already.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.compile import Cubin, compile_cuda, pack_cubin, version
from weft.codegen.gpu.spelling.print import cuda
from weft.driver.code import gpu_kernels, gpu_tasks, gpu_together
from weft.driver.code.gpu_kernels import CudaCode, message_of, source_key, unpacked
from weft.driver.code.gpu_lowering import Tell
from weft.driver.code.plans import Built, Choice, Chooser, choose_plan
from weft.driver.stages.compilation import Compilation
from weft.driver.stages.generators import pipeline
from weft.foundation.errors import Unimplemented
from weft.foundation.progress import at
from weft.memory.ir import BufferMap
from weft.ptir.ir import Program
from weft.region.form import Map, Row
from weft.region.ir import Kernel, Module, form_of
from weft.runtime import cache
from weft.runtime.compilers import Workers
from weft.target.target import Target

_READ: Final = frozenset({"gpu", "cu"})
"""Stages behind which there are other kernels, where somebody gives them."""
_KINDS: Final = 3
"""Kinds of instructions, ops that give values of one type, for each distinct kernel of a program:
2.2 to 3 in training steps of transformers and convolutional networks."""
_PROCESS: Final = "weft.driver.code.gpu_process"
URGENT: Final = 1 << 40
"""More than any source is long: what is to be compiled is known when all tasks are done."""
_SWITCH: Final = 5e-4
"""Seconds after which threads that hand on messages may interrupt a stage."""


class Ahead:
    """The processes of one compilation, and what they were asked for."""

    def __init__(self, arch: str) -> None:
        self.arch = arch
        self.kernels: dict[str, ir.Kernel] = {}
        """Kernels that were printed, ..."""
        self.verified: dict[str, ir.Kernel] = {}
        """... those of them that processes verified, ..."""
        self.printed = CudaCode({})
        """... and what was printed, by symbols."""
        self._texts: dict[str, str] = {}
        """Of kernels that have others before and behind them: what processes wrote."""
        self.made: dict[str, Cubin] = {}
        """What is finished, by its source."""
        self._asked: dict[str, int] = {}
        """The numbers of messages, by sources that are not kept on disk."""
        self._workers = Workers(_PROCESS)
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

    # -- plans and text --------------------------------------------------------------------------

    def chooser(self, module: Module, buffer_map: BufferMap, target: Target) -> Chooser:
        """Who chooses plans, and has the text of kernels written and compiled. It is the same that
        is made of them when all plans are known, but for the few that something else moves."""
        is_settled = gpu_together.settled_test(module, buffer_map)

        def choose(
            users: Mapping[str, Sequence[Kernel]], held: Collection[str], built: Built
        ) -> dict[str, Choice]:
            self._start(gpu_kernels.worth(len(users)) - 1)
            if not self._started or not gpu_tasks.can_send(target):
                given = module, buffer_map, target, built
                return {key: choose_plan(key, kernels, *given) for key, kernels in users.items()}
            order = sorted(users, key=lambda key: _place(users[key][0]))
            tasks = (
                gpu_tasks.task_of(
                    key, users[key], module, buffer_map, target, is_settled, key in held
                )
                for key in order
            )
            return self._do_tasks(tasks, built)

        return choose

    def _do_tasks(self, tasks: Iterable[gpu_tasks.Task], built: Built) -> dict[str, Choice]:
        """What is chosen in tasks, the most urgent first, by the keys of plans. Their texts go on
        to be compiled."""
        asked = {
            self._workers.add(gpu_tasks.pack_task(task), URGENT - place): task
            for place, task in enumerate(tasks)
        }

        def own(number: int) -> bytes:
            return gpu_tasks.pack_done(gpu_tasks.do(asked[number], built))

        found = {}
        for number, message in self._workers.each(asked, own):
            done = gpu_tasks.read_done(message)
            found[asked[number].key] = done.choice
            self._texts |= done.texts
            for source in done.texts.values():
                self._add(source)
        return found

    def teller(self, count: int) -> Tell | None:
        """Who is told of kernels of so many structures; None where processes do not pay."""
        self._most = gpu_kernels.worth(count) - 1
        return self._tell if self._most > 0 else None

    def _tell(self, kernel: ir.Kernel, is_inside: bool) -> None:
        source = self._texts.get(kernel.name) if is_inside else None
        if source is not None:
            self.verified[kernel.name] = kernel
        else:
            source = cuda(kernel)
            if self._add(source):
                # All at once: where one source is missing on disk others are.
                self._start(self._most)
        self.kernels[kernel.name], self.printed.sources[kernel.name] = kernel, source

    # -- machine code ----------------------------------------------------------------------------

    def _add(self, source: str, urgency: int | None = None) -> bool:
        """Have a source compiled; whether it is not kept on disk."""
        if source in self._asked:
            return True
        if unpacked(cache.load(source_key(source, self.arch)), self.arch) is not None:
            return False
        self._asked[source] = self._workers.add(message_of(source, self.arch), urgency)
        return True

    def ask(self, sources: Iterable[str], urgency: int | None = None) -> None:
        """Have sources compiled, where there are processes."""
        if self._started:
            for source in sources:
                self._add(source, urgency)

    def next_of(self, sources: Iterable[str]) -> tuple[str, Cubin] | None:
        """One of some sources with its machine code, as soon as that of one is there; None where
        nobody was asked for any, or it is kept on disk."""
        numbers = {self._asked[source]: source for source in sources if source in self._asked}
        made, asked = self._workers.made, self._asked
        at("machine code", lambda: (sum(n in made for n in asked.values()), len(asked)))

        def own(number: int) -> bytes:
            return pack_cubin(compile_cuda(numbers[number], self.arch))

        for number, data in self._workers.each(numbers, own):
            source = numbers[number]
            if source not in self.made:
                cubin = unpacked(data, self.arch) or compile_cuda(source, self.arch)
                cache.save(source_key(source, self.arch), pack_cubin(cubin))
                self.made[source] = cubin
            return source, self.made[source]
        return None

    def finish(self) -> int:
        """Wait for the machine code of all that was asked for; how many that were still."""
        count = 0
        while self.next_of(self._asked.keys() - self.made.keys()) is not None:
            count += 1
        return count

    def stop(self) -> None:
        """End the processes."""
        self._workers.stop()


def _place(kernel: Kernel) -> tuple[bool, int]:
    """Kernels that take the compiler longest come first: products, and those that compute most."""
    return isinstance(form_of(kernel), Map | Row), -len(kernel.body)


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
    except Exception:
        # What is wrong may be what an earlier stage made.
        pipeline().check_later(compilation)
        raise
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
