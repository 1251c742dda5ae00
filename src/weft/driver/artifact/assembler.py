"""Assembling an artifact: the steps of the main body, and in them those of branches and loops, over
one list of kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final

from numpy.typing import NDArray

from weft.driver.artifact.control_flow import AssembledBody, ControlFlow, assemble_body
from weft.driver.artifact.kernels import (
    HostCalls,
    StepList,
    align_bytes,
    body_steps,
    constants_of,
    make_artifact,
    slot_of,
)
from weft.driver.stages.bodies import CompiledBody, Use
from weft.foundation.functions import broken_rule
from weft.foundation.records import dataclass
from weft.memory.ir import BufferMap, Space
from weft.ptir.ir import Body, Instruction, Program, ValueKey
from weft.ptir.op import Op
from weft.ptir.ops import bits, elementwise, functions, indexing, reduction
from weft.region.fitting.filters import MOST_ROOM
from weft.region.ir import Kernel, Module
from weft.region.structure import buffers
from weft.runtime.artifact import Artifact, BufferSlot, KernelCode, Site

_REPORTED_BY: Final[Mapping[str, tuple[type[Op], ...]]] = {
    "GatherIndexOutOfBounds": (indexing.Take, indexing.Gather),
    "ScatterIndexOutOfBounds": (
        indexing.ScatterAdd,
        indexing.ScatterReduce,
        reduction.SegmentReduce,
    ),
    "IntegerDivideByZero": (elementwise.ElementwiseBinary, functions.Fmod),
    "InvalidExponent": (functions.Pow,),
    "InvalidShift": (bits.ShiftLeft, bits.ShiftRight),
}

_GUARD: Final = broken_rule("inside", 1)
"""What the check of a guard says: it reads a table of one element."""


@dataclass(frozen=True)
class Native:
    """The machine code of a kernel, by its symbol, and the tensors it takes, in order."""

    symbol: str
    tensors: Sequence[str]


@dataclass(frozen=True)
class Unit:
    """What the stages made of one body."""

    module: Module
    buffer_map: BufferMap
    natives: Mapping[str, Native]
    """By kernel; what is not here is for the host, or is made of steps itself."""
    codes: Mapping[str, KernelCode]
    """Machine code by symbol."""
    constants: Mapping[str, NDArray[Any]]
    program: Program | None = None
    body: Body | None = None
    """The body itself, and the program it belongs to."""
    hosted: Mapping[str, str] = field(default_factory=dict)
    """Kernels that the target has no code for, and why."""
    guards: Mapping[ValueKey, Site] = field(default_factory=dict)
    """Instructions that composite ops became which reject operands in their own words."""


@dataclass
class Assembler:
    """Bodies, one after the other, over kernels and constants that they share."""

    host_call: HostCalls
    kernels: dict[str, KernelCode] = field(default_factory=dict)
    """By symbol; a launch names the position."""
    constants: list[bytes] = field(default_factory=list)
    keeps: bool = False
    """Whether results are numbered that a runtime may keep."""

    def steps(self, unit: Unit, number: int, control: ControlFlow | None = None) -> StepList:
        """The steps of body `number`."""
        for native in unit.natives.values():
            self.kernels.setdefault(native.symbol, unit.codes[native.symbol])
        numbers = {symbol: n for n, symbol in enumerate(self.kernels)}
        slot = self._slots(unit, number)
        module, arena = unit.module, unit.buffer_map.arena_bytes
        own: dict[str, BufferSlot] = {}
        if number:
            # What is the same in every turn of a loop is made before it, in memory of its own.
            for name in made_once(module, unit.buffer_map, _kernels_without_reports(unit)):
                own[name] = BufferSlot("arena", 0, align_bytes(arena), module.tensors[name].bytes)
                arena = align_bytes(arena) + own[name].bytes
            module = _with_first(module, own)

        def place(name: str) -> BufferSlot:
            return own.get(name) or slot(name)

        def launch(kernel: Kernel) -> tuple[int, int, Sequence[str], tuple[Site, ...]] | None:
            native = unit.natives.get(kernel.name)
            if native is None:
                return None
            code = self.kernels[native.symbol]
            # For each check of the kernel the instruction that asks for it.
            sites = tuple(_site(kernel, violation, why, unit) for violation, why in code.checks)
            return numbers[native.symbol], code.sets, native.tensors, sites

        def expand(kernel: Kernel, steps: StepList) -> bool:
            where = _loop_site(kernel, unit)
            return control is not None and control.expand(kernel, module, steps, place, where)

        made = body_steps(
            module, unit.buffer_map, launch, self.host_call, place, expand, unit.hosted, arena
        )
        made.once = sum(
            not own.keys().isdisjoint(_written_tensors(kernel)) for kernel in module.kernels
        )
        return made

    def _slots(self, unit: Unit, number: int) -> Callable[[str], BufferSlot]:
        """Slots of a body, with constants and what random numbers depend on numbered for all."""
        first = len(self.constants)
        self.constants += constants_of(unit.module, unit.constants)
        # Bodies of branches and loops are entered or not, and have other memory each time.
        kept: Mapping[str, int] = {}
        if self.keeps and number == 0:
            kept = kept_results(unit.module, unit.buffer_map, _kernels_without_reports(unit))

        def slot(name: str) -> BufferSlot:
            found = slot_of(name, unit.buffer_map)
            if name in kept:
                return replace(found, kept=kept[name])
            if found.space == "constant":
                return replace(found, number=found.number + first)
            return replace(found, number=number) if found.space == "run" else found

        return slot


def _written_tensors(kernel: Kernel) -> set[str]:
    return {output.tensor for output in kernel.outputs}


def _with_first(module: Module, names: Collection[str]) -> Module:
    """The module, the kernels that write some tensors before all others."""
    first = [kernel for kernel in module.kernels if not _written_tensors(kernel).isdisjoint(names)]
    rest = [kernel for kernel in module.kernels if _written_tensors(kernel).isdisjoint(names)]
    return replace(module, kernels=(*first, *rest))


def build_artifact(
    unit: Unit,
    target: str,
    host_call: HostCalls,
    bodies: Mapping[Use, CompiledBody] | None = None,
    units: Mapping[Use, Unit] | None = None,
    written_out: int = 0,
    *,
    keeps: bool = False,
) -> Artifact:
    """The steps over compiled kernels. `bodies` has every region after those that it runs itself;
    `units` is what became of them. Counted loops that are at most so many steps are written out.
    `keeps`: results that a runtime may keep are numbered."""
    assembler = Assembler(host_call, keeps=keeps)
    done: dict[Use, AssembledBody] = {}
    regions = {} if unit.program is None else unit.program.regions_by_id
    control = ControlFlow(done, regions, written_out)
    numbers: dict[int, int] = {}
    for use, body in (bodies or {}).items():
        number = numbers.setdefault(use.region, len(numbers) + 1)
        part = (units or {})[use]
        steps = assembler.steps(part, number, control)
        outputs = [slot_of(name, part.buffer_map) for name in part.module.outputs]
        done[use] = assemble_body(number, body, steps, outputs)
    steps = assembler.steps(unit, 0, control)
    kernels = list(assembler.kernels.values())
    made = make_artifact(target, unit.module, unit.buffer_map, kernels, steps, assembler.constants)
    return replace(made, bodies=len(numbers) + 1, counters=control.counters)


def _kernels_without_reports(unit: Unit) -> set[str]:
    """The kernels that have machine code and report nothing."""
    return {
        kernel.name
        for kernel in unit.module.kernels
        if kernel.opaque is None
        and kernel.name in unit.natives
        and not unit.codes[unit.natives[kernel.name].symbol].reports
    }


def symbols_of(unit: Unit, units: Mapping[Use, Unit]) -> dict[str, str]:
    """The symbol of every kernel of a program; those of regions are called after them."""
    found = {name: native.symbol for name, native in unit.natives.items()}
    for use, part in units.items():
        for name, native in part.natives.items():
            found[f"region{use.region}.{name}"] = native.symbol
    return found


def _site(kernel: Kernel, violation: str, why: str, unit: Unit) -> Site:
    found = _sites_of(kernel, unit, lambda op: _reports(op, violation))
    # Where a kernel has a guard and an index of the user's, their sentences tell them apart.
    fitting = (site for site in found if bool(site.why) == (why == _GUARD))
    return next(fitting, found[0] if found else Site(""))


def _loop_site(kernel: Kernel, unit: Unit) -> tuple[Site, ...]:
    """The control-flow instruction that a kernel carries."""
    return _sites_of(kernel, unit, lambda op: bool(op.regions))[:1] if kernel.opaque else ()


def _sites_of(kernel: Kernel, unit: Unit, asked: Callable[[Op], bool]) -> tuple[Site, ...]:
    """The instructions that became a kernel and whose op is asked for."""
    if unit.program is None or unit.body is None:
        return ()
    ids = set(unit.module.origin.get(kernel.name, ()))
    return tuple(
        _site_of(found, unit.program, unit.body, unit)
        for found in unit.body.body
        if found.id in ids and asked(found.op)
    )


def _site_of(found: Instruction, program: Program, body: Body, unit: Unit) -> Site:
    """An instruction as errors name it: one that a composite op became as that op."""
    guard = unit.guards.get((body.label, found.id))
    return guard or Site(program.named(body, found), program.line(body, found))


def _reports(op: Op, violation: str) -> bool:
    if isinstance(op, elementwise.ElementwiseBinary) and op.fn is not elementwise.BinaryFn.DIV:
        return False
    return isinstance(op, _REPORTED_BY.get(violation, ()))


_GIVEN: Final = ("input", "param", "constant")
"""What a run is handed and only reads."""
_STAYS: Final = ("param", "constant")
"""What the body of a loop is handed in every turn as in the first."""


def kept_results(
    module: Module,
    buffer_map: BufferMap,
    plain: Collection[str],
    given_as: Collection[str] = _GIVEN,
) -> Mapping[str, int]:
    """The number, from 1 on, of every tensor that a runtime may keep: filters whose channels were
    put last, weights in another dtype. `plain` are the kernels that have machine code and report
    nothing; `given_as` are the roles of what stays the same.

    A kernel that reads inputs and constants alone, or what such kernels make of them, makes the
    same of them in the next run. A runtime that sees the same inputs again may keep its results, in
    memory of its own, and leave the kernel out. They are hardly larger than what they are made of:
    what a program blows up would take far more memory than was handed in.
    """
    tensors = module.tensors
    sources = {name for name, tensor in tensors.items() if tensor.role in given_as}
    alone = _tensors_alone(module, buffer_map, plain)
    found: dict[str, int] = {}
    for kernel in module.kernels:
        made = {output.tensor for output in kernel.outputs}
        read = set(buffers(kernel)) - made
        if kernel.name not in plain or not made or not made <= alone or not read <= sources:
            continue
        if any(output.base is not None for output in kernel.outputs):
            continue
        taken, given = (sum(tensors[name].bytes for name in names) for names in (made, read))
        if taken > MOST_ROOM * given:
            continue
        sources |= made
        found |= {name: len(found) + number for number, name in enumerate(sorted(made), 1)}
    return found


def made_once(module: Module, buffer_map: BufferMap, plain: Collection[str]) -> Collection[str]:
    """The tensors that are the same in every turn of a loop whose body a module is."""
    return kept_results(module, buffer_map, plain, _STAYS).keys()


def _tensors_alone(module: Module, buffer_map: BufferMap, plain: Collection[str]) -> set[str]:
    """The tensors of the arena that have their memory for themselves while they live, are written
    by one kernel, and touched by kernels that have machine code alone."""
    found = {n for n, ref in buffer_map.refs.items() if ref.buffer.space is Space.ARENA}
    for share in buffer_map.shares:
        found -= {share.first, share.second}
    for copy in buffer_map.copies:
        found -= {copy.source, copy.target}
    written: set[str] = set()
    for kernel in module.kernels:
        made = {output.tensor for output in kernel.outputs}
        found -= written & made
        written |= made
        if kernel.name not in plain:
            found -= _touched_tensors(kernel)
    return found & written


def _touched_tensors(kernel: Kernel) -> set[str]:
    """What a kernel reads and writes."""
    inputs = kernel.opaque.inputs if kernel.opaque is not None else ()
    return {*buffers(kernel), *inputs, *(output.tensor for output in kernel.outputs)}
