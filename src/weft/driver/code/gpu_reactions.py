"""Replanning of kernels whose machine code spills registers or breaks another promise of its plan
(document 2, section 10).

A plan moves where the compiler spilled registers, left a unit fewer blocks than the kernel was made
for, or serialised its matrix instructions (its remarks C75xx): to one that leaves no group of these
in flight, and to those that hold less in each thread, in the order of their list, a few steps far.
The first that is clean is taken; where none is, the one that spills least. A stack frame without
spills is that of an array in the kernel's own code, which every plan has. Only the planner's own
plans move (`PlanSet.own`). Whether lanes read neighbours needs no machine code:
`gpu_coalescing.py`.

What was found is kept on disk under the CUDA text that gave rise to it, so it depends on nothing
else: the next compilation takes the last plan at once, and compiles what it found no more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from itertools import islice
from typing import Final

from weft.codegen.gpu import templates
from weft.codegen.gpu.compile import REMARK, Cubin, version
from weft.codegen.gpu.ir.module import GpuModule
from weft.driver.code import gpu_kernels
from weft.driver.code.gpu_ahead import URGENT, Ahead
from weft.driver.code.gpu_kernels import Cubins, CudaCode
from weft.driver.stages.compilation import Compilation
from weft.foundation.errors import WeftError
from weft.foundation.tally import counted
from weft.plan import verify as plan_verify
from weft.plan.candidates import lighter, waiting
from weft.plan.ir import Plan, PlanSet
from weft.plan.text import briefs, plan_from_json, plan_to_json
from weft.region.forms.multiplied import operand_bytes
from weft.region.ir import Kernel
from weft.runtime import cache
from weft.target.target import Limits

MOST_STEPS: Final = 3
"""Plans that are compiled beside the first: each takes the compiler some seconds."""
_GRANULE: Final = 8
"""Registers of a thread are handed out in so many."""


@dataclass(frozen=True)
class Move:
    """Where a plan ended, and what was tried on the way, a sentence each."""

    plan: Plan
    steps: tuple[str, ...]


@dataclass(frozen=True, order=True)
class Fault:
    """What is wrong with the machine code of a plan's kernels; the least is best."""

    serialised: int = 0
    """Remarks that matrix instructions lost their asynchrony, or the registers for it."""
    missing_blocks: int = 0
    spilled_bytes: int = 0
    codes: tuple[str, ...] = field(default=(), compare=False)
    """The remarks' codes."""

    @property
    def is_there(self) -> bool:
        return self > Fault()

    def __str__(self) -> str:
        if self.serialised:
            codes = ", ".join(self.codes)
            return f"matrix instructions are serialised, or registers not as asked for ({codes})"
        if self.missing_blocks:
            missing = counted(self.missing_blocks, "block")
            return f"its registers leave a unit {missing} fewer than the plan has"
        if self.spilled_bytes:
            return f"{self.spilled_bytes} bytes of registers are spilled"
        return "nothing is spilled"


@dataclass(frozen=True)
class _Step:
    """A plan of one key's kernels, and what is made of these."""

    plan: Plan
    gpu: GpuModule
    cu: CudaCode


@dataclass
class _Way:
    """The plans that one key's kernels go through, from the first on, with what is wrong with each;
    `others` are those to come."""

    key: str
    others: Iterator[Plan]
    first: InitVar[Plan]
    fault: InitVar[Fault]
    steps: list[tuple[Plan, Fault]] = field(init=False)

    def __post_init__(self, first: Plan, fault: Fault) -> None:
        self.steps = [(first, fault)]

    @property
    def end(self) -> Move:
        """The best of them."""
        plans, faults = [plan for plan, _ in self.steps], [fault for _, fault in self.steps]
        best, names = faults.index(min(faults)), briefs(plans)
        steps = [f"{name}: {fault}" for name, fault in zip(names, faults, strict=True)]
        why = f", the best of {len(steps)} that were tried" if faults[best].is_there else ""
        return Move(plans[best], (*steps, f"taken: {names[best]}{why}"))


def fault_of(code: GpuModule, cubins: Cubins, symbols: Sequence[str], limits: Limits) -> Fault:
    """The worst that was found of some kernels."""
    worst = Fault()
    for symbol in symbols:
        kernel, report = code.kernels[symbol], cubins.cubins[symbol].report
        # What the compiler says a thread takes, as a unit gives it out: the blocks that fit follow
        # from that.
        taken = -(-report.registers // _GRANULE) * _GRANULE * kernel.threads
        missing = kernel.resident - limits.registers_per_unit // max(1, taken)
        codes = tuple(dict.fromkeys(REMARK.findall(" ".join(report.remarks))))
        found = Fault(len(report.remarks), max(0, missing), report.spilled_bytes, codes)
        worst = max(worst, found)
    return worst


def compiled(
    compilation: Compilation, arch: str, known: Mapping[str, Cubin] | None = None
) -> Cubins:
    """The machine code of a compilation; that of some sources may be known. Plans that it shows to
    be bad have moved on afterwards: the stages are then those of what is compiled."""
    return _Reactions(compilation, arch, dict(known or {})).run()


@dataclass
class _Reactions:
    """The plans of one compilation."""

    compilation: Compilation
    arch: str
    known: dict[str, Cubin] = field(default_factory=dict)
    """What was compiled here, by its source."""
    count: Cubins = field(init=False)

    def __post_init__(self) -> None:
        self.count = Cubins(self.arch)

    def run(self) -> Cubins:
        plans: PlanSet = self.compilation["plan"]
        read = {"gpu", "cu"} & self.compilation.overrides.keys()
        own = () if read else tuple(key for key in plans.plans if key in plans.own)
        records = {key: self._record(key) for key in own}
        found = {key: move for key, name in records.items() if (move := self._kept_move(key, name))}
        self._take(found)
        self._ask(self.compilation["cu"])
        moves = self._move_plans([key for key in own if key not in found])
        for key, move in moves.items():
            cache.save(records[key], _write_move(move))
        self._take(moves)
        self._ask(self.compilation["cu"])
        cubins = self._compile(self.compilation["cu"])
        if self.compilation.ahead is not None:
            # What others asked for, such as bodies of loops.
            cubins.compiled += self.compilation.ahead.finish()
        return cubins

    def _ask(self, code: CudaCode, urgency: int | None = None) -> None:
        """Have text compiled by processes, where there are any."""
        if self.compilation.ahead is not None:
            self.compilation.ahead.ask(code.sources.values(), urgency)

    def _compile(self, code: CudaCode) -> Cubins:
        """Machine code, that of this compilation once: the counts are those of all of it."""
        # One after the other, as they come: what waits for one kernel need not wait for all.
        while fresh := [source for source in code.sources.values() if source not in self.known]:
            self._wait_for(fresh)
        return self._known_of(code)

    def _known_of(self, code: CudaCode) -> Cubins:
        cubins = {symbol: self.known[source] for symbol, source in code.sources.items()}
        return Cubins(self.arch, cubins, self.count.compiled, self.count.reused)

    def _wait_for(self, sources: Sequence[str]) -> None:
        """Until the machine code of some of these sources is there: of one that processes were
        asked for, or of all, where they were asked for none."""
        ahead: Ahead | None = self.compilation.ahead
        found = None if ahead is None else ahead.next_of(sources)
        if found is not None:
            self.known[found[0]] = found[1]
            self.count.compiled += 1
            return
        texts = {str(number): source for number, source in enumerate(dict.fromkeys(sources))}
        made = gpu_kernels.compile_sources(CudaCode(texts), self.arch)
        self.count.compiled += made.compiled
        self.count.reused += made.reused
        self.known |= {texts[number]: cubin for number, cubin in made.cubins.items()}

    # -- plans that move -------------------------------------------------------------------------

    def _move_plans(self, keys: Sequence[str]) -> dict[str, Move]:
        """Where plans go, of those that have something to go for. Each takes its next step as soon
        as the machine code of the last one is there: while processes compile other kernels, or,
        where there are none, together with the next steps of all."""
        limits, ways = self.compilation.target.limits, dict[str, _Way]()
        tried = {key: self._first_step(key) for key in keys}
        while tried:
            ready = [key for key, step in tried.items() if self._is_known(step.cu)]
            if not ready:
                sources = (source for step in tried.values() for source in step.cu.sources.values())
                self._wait_for([source for source in sources if source not in self.known])
            for key in ready:
                step = tried.pop(key)
                cubins = self._known_of(step.cu)
                fault = fault_of(step.gpu, cubins, [*step.cu.sources], limits)
                if key in ways:
                    ways[key].steps.append((step.plan, fault))
                elif fault.is_there:
                    others = islice(self._others(key, step.plan, fault), MOST_STEPS)
                    ways[key] = _Way(key, others, step.plan, fault)
                plan = next(ways[key].others, None) if fault.is_there else None
                if plan is not None:
                    tried[key] = self._next_step(key, plan)
        return {key: ways[key].end for key in keys if key in ways}

    def _is_known(self, code: CudaCode) -> bool:
        return all(source in self.known for source in code.sources.values())

    def _first_step(self, key: str) -> _Step:
        code, texts = self.compilation["gpu"], self.compilation["cu"].sources
        own = {symbol: texts[symbol] for symbol in self._symbols(key, code)}
        return _Step(self.compilation["plan"].plans[key], code, CudaCode(own))

    def _next_step(self, key: str, plan: Plan) -> _Step:
        """A step to another plan, which comes before what waits: others may follow it."""
        code = self._carried_out(key, plan)
        texts = gpu_kernels.print_cuda(code)
        self._ask(texts, URGENT)
        return _Step(plan, code, texts)

    def _carried_out(self, key: str, plan: Plan) -> GpuModule:
        """The kernels of a key by another plan."""
        plans: PlanSet = self.compilation["plan"]
        c = self.compilation
        names = {kernel.name for kernel in self._kernels(key)}
        only = names if len(c["region"].kernels) > len(names) else None
        moved = replace(plans, plans={**plans.plans, key: plan})
        code = gpu_kernels.lower_module(c["region"], c["memory"], moved, c.target, only=only)
        return GpuModule({symbol: code.kernels[symbol] for symbol in self._symbols(key, code)})

    def _others(self, key: str, first: Plan, fault: Fault) -> Iterator[Plan]:
        kernel, *_ = self._kernels(key)
        near = waiting(first) if fault.serialised else ()
        for plan in (*near, *lighter(kernel, self.compilation.target, first)):
            if self._suits(key, plan):
                yield plan

    def _is_refused(self, kernel: Kernel, plan: Plan) -> bool:
        module, refs = self.compilation["region"], self.compilation["memory"].refs
        return bool(templates.accepts(kernel, module.tensors, refs, plan, self.compilation.target))

    def _kernels(self, key: str) -> list[Kernel]:
        plans, module = self.compilation["plan"], self.compilation["region"]
        return [kernel for kernel in module.kernels if plans.kernels.get(kernel.name) == key]

    def _symbols(self, key: str, code: GpuModule) -> list[str]:
        """The kernels in the dialect that a plan is for: none where the host computes them."""
        launches = (code.launches.get(kernel.name) for kernel in self._kernels(key))
        return sorted({launch.symbol for launch in launches if launch is not None})

    # -- all of them -----------------------------------------------------------------------------

    def _take(self, moves: dict[str, Move]) -> None:
        """Let the stages be those of the plans that were moved to, and say why in their notes."""
        if not moves:
            return
        plans: PlanSet = self.compilation["plan"]
        names = {key: ", ".join(k.name for k in self._kernels(key)) for key in moves}
        notes = [f"{names[key]}: {step}" for key, move in moves.items() for step in move.steps]
        gone = {key for key, move in moves.items() if move.plan != plans.plans[key]}
        values = self.compilation.values
        values["plan"] = replace(
            plans,
            plans={**plans.plans, **{key: move.plan for key, move in moves.items()}},
            notes=(*plans.notes, *notes),
            origins={key: why for key, why in plans.origins.items() if key not in gone},
            own=plans.own - moves.keys(),
        )
        if gone:
            self._make_again({kernel.name for key in gone for kernel in self._kernels(key)})

    def _make_again(self, moved: set[str]) -> None:
        """The kernels of the plans as they are, some of which have moved. Those that stay were
        made, checked and printed."""
        c, values, stages = self.compilation, self.compilation.values, self.compilation.stages
        before: GpuModule = values["gpu"]
        code = gpu_kernels.lower_again(before, c["region"], c["memory"], c["plan"], c.target, moved)
        values["gpu"] = code
        gpu_kernels.check_module(code, c["region"], c.target, before)
        values["cu"] = gpu_kernels.print_cuda(code, before, values["cu"])
        stages["cu"].verify(c)

    # -- the disk --------------------------------------------------------------------------------

    def _record(self, key: str) -> str:
        """The key of what is known about a plan: all that its machine code depends on."""
        sources = self.compilation["cu"].sources
        texts = (sources[symbol] for symbol in self._symbols(key, self.compilation["gpu"]))
        return cache.key_of("moved plan", *texts, self.arch, ".".join(map(str, version())))

    def _kept_move(self, key: str, record: str) -> Move | None:
        """Where the plan went before, in whatever process."""
        data = cache.load(record)
        move = None if data is None else _parse_move(data)
        if move is None or move.plan.header != self.compilation["plan"].plans[key].header:
            return None
        return move if self._suits(key, move.plan) else None

    def _suits(self, key: str, plan: Plan) -> bool:
        """Whether a plan is legal, and one that its kernels can be carried out by."""
        target, kernels = self.compilation.target, self._kernels(key)
        size = operand_bytes(kernels[0]) if kernels[0].roles is not None else 2
        legal = next(plan_verify.findings(plan, target, size), None) is None
        return legal and not any(self._is_refused(kernel, plan) for kernel in kernels)


def _write_move(move: Move) -> bytes:
    return json.dumps({"plan": plan_to_json(move.plan), "steps": move.steps}).encode()


def _parse_move(data: bytes) -> Move | None:
    try:
        found = json.loads(data)
        return Move(plan_from_json(found["plan"]), tuple(map(str, found["steps"])))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, WeftError):
        return None
