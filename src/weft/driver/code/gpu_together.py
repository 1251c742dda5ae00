"""Horizontal fusion of launches: equal kernels that make results of the program, as an optimiser
does of every tensor of a model, become one launch.

They follow one another among the kernels, and none of them touches memory that another one writes:
then their order means nothing. What makes them one text is `region.flat_maps`; beside that their
tensors lie alike, and they have one plan, which is that of the largest.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from weft.codegen.gpu.ir.frame import MOST_POINTERS
from weft.codegen.gpu.maps.together import MOST_LENGTHS, Lengths, fits
from weft.driver.artifact.kernel_facts import moves_nothing
from weft.memory.ir import BufferMap, MemRef, Space
from weft.plan.ir import MapPlan, Plan
from weft.region.flat_maps import flat_key, point_count
from weft.region.ir import Kernel, Module, Pattern, row_major
from weft.region.structure import buffers


def settled_test(module: Module, buffer_map: BufferMap) -> Callable[[MemRef], bool]:
    """Whether no kernel of the program writes a tensor's buffer."""
    outputs = (output.tensor for kernel in module.kernels for output in kernel.outputs)
    buffers_of = (buffer_map.refs[name].buffer for name in outputs if name in buffer_map.refs)
    written = {(buffer.space, buffer.number) for buffer in buffers_of}

    def is_settled(ref: MemRef) -> bool:
        space = ref.buffer.space
        given = space in (Space.INPUT, Space.CONSTANT)
        return given and (space, ref.buffer.number) not in written

    return is_settled


def shared_buffers(refs: Iterable[MemRef]) -> str:
    """Which tensors lie in one buffer: such a buffer is not read as if nobody wrote it."""
    found = [ref.buffer for ref in refs]
    return repr([found.index(buffer) for buffer in found])


def alike(module: Module, buffer_map: BufferMap) -> list[list[Kernel]]:
    """The kernels that one launch could carry out, if they had one plan."""
    lie, found = _Lie(module, buffer_map), list[list[Kernel]]()
    for run in lie.runs():
        texts: dict[Hashable, list[Kernel]] = {}
        for kernel, text in run:
            texts.setdefault(text, []).append(kernel)
        found += (kernels for kernels in texts.values() if len(kernels) > 1)
    return found


class _Lie:
    """Where the tensors of kernels lie."""

    def __init__(self, module: Module, buffer_map: BufferMap) -> None:
        self.module, self.map = module, buffer_map
        self.is_settled = settled_test(module, buffer_map)
        self.copied = {copy.before for copy in buffer_map.copies}

    def runs(self) -> Iterator[list[tuple[Kernel, Hashable]]]:
        """Kernels that follow one another in any order, with their texts."""
        run: list[tuple[Kernel, Hashable]] = []
        written, touched = set[Hashable](), set[Hashable]()
        for kernel in self.module.kernels:
            text = self.text(kernel)
            results = {self.memory(output.tensor) for output in kernel.outputs}
            given = {self.memory(name) for name in buffers(kernel)}
            # Nothing that it writes was read or written by those before, and nothing that it reads
            # was written by them: any order gives the same.
            apart = results.isdisjoint(touched) and given.isdisjoint(written)
            if run and (text is None or not apart):
                yield run
                run, written, touched = [], set(), set()
            if text is not None:
                run.append((kernel, text))
                written |= results
                touched |= given
        if run:
            yield run

    def memory(self, name: str) -> Hashable:
        """The memory that a tensor lies in, all of the arena as one."""
        buffer = self.map.refs[name].buffer
        return buffer.space, buffer.number

    def text(self, kernel: Kernel) -> Hashable | None:
        """What a kernel is but for names and sizes, and how its tensors lie, where all its results
        have memory of their own; None for kernels with a launch of their own."""
        if kernel.pattern is not Pattern.MAP or kernel.name in self.copied:
            return None
        if moves_nothing(kernel, self.map.refs):
            return None
        refs = self.map.refs_of(buffers(kernel))
        if any(refs[output.tensor].buffer.space is Space.ARENA for output in kernel.outputs):
            return None
        if any(ref.strides != row_major(ref.shape) for ref in refs.values()):
            return None
        text = flat_key(kernel, self.module.tensors)
        lies = tuple((ref.alignment, ref.noalias, self.is_settled(ref)) for ref in refs.values())
        return None if text is None else (text, lies, shared_buffers(refs.values()))


def largest_first(kernels: Iterable[Kernel]) -> list[Kernel]:
    return sorted(kernels, key=lambda kernel: -point_count(kernel))


def launches(
    texts: Iterable[Sequence[Kernel]], plans: Mapping[str, Plan]
) -> Iterator[tuple[MapPlan, tuple[Kernel, ...]]]:
    """The kernels of every launch that carries out several, of kernels that are alike, and their
    plan; `plans` are those by the names of kernels."""
    for kernels in texts:
        by_plan: dict[MapPlan, list[Kernel]] = {}
        for kernel in kernels:
            plan = plans.get(kernel.name)
            if isinstance(plan, MapPlan) and fits(point_count(kernel), plan):
                header = next(iter(by_plan), plan).header
                by_plan.setdefault(replace(plan, header=header), []).append(kernel)
        for plan, held in by_plan.items():
            yield from ((plan, part) for part in _parts(held) if len(part) > 1)


def _parts(kernels: Sequence[Kernel]) -> Iterator[tuple[Kernel, ...]]:
    """As many at a time as a launch takes."""
    part: list[Kernel] = []
    for kernel in kernels:
        more = [*part, kernel]
        pointers = len(more) * len(buffers(kernel))
        if part and (pointers > MOST_POINTERS or len(lengths_of(more)) > MOST_LENGTHS):
            yield tuple(part)
            more = [kernel]
        part = more
    yield tuple(part)


def lengths_of(kernels: Iterable[Kernel]) -> Lengths:
    """The points of kernels, and how many of one length follow one another."""
    return [(length, len([*same])) for length, same in groupby(map(point_count, kernels))]
