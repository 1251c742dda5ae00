"""Replanning of kernels whose memory accesses are badly coalesced (document 2, section 10).

Rows and elementwise kernels with an operand that lies across the others, as in `x + y.T`, may move
many bytes for each that they use (`codegen.gpu.coalescing`). Such a plan moves down its list, to
those whose blocks take points that lie closer together: the first that moves little more than it
uses is taken, else the one that moves least, if it moves much less. What no plan changes is told,
too: it says why a kernel is slow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from weft.codegen.gpu import ir, templates
from weft.codegen.gpu.coalescing import Traffic, traffic
from weft.codegen.gpu.template import Job
from weft.memory.ir import BufferMap
from weft.plan import verify as plan_verify
from weft.plan.candidates import closer
from weft.plan.ir import MapPlan, Plan, RowPlan
from weft.plan.text import brief, briefs
from weft.region.ir import Kernel, Module
from weft.target.target import Target

WASTEFUL: Final = 1.3
"""Bytes that are moved for each that is used, from which on another plan is looked for."""
_TOLD: Final = 2.0
"""And from which on it is told that there is none."""
_CLEAN: Final = 1.1
"""Bytes moved for each that is used, with which no other plan is looked for."""
_BETTER: Final = 0.8
"""Of the bytes that the first plan moves for each that it uses: fewer are worth another plan."""
_LITTLE: Final = 1 << 20
"""Bytes that a kernel moves in all, below which it is done in any way."""


@dataclass(frozen=True)
class _Measured:
    """A plan, the kernel that is made of it, and what a block of that moves."""

    plan: Plan
    made: ir.Kernel
    moves: Traffic

    def __str__(self) -> str:
        return f"{self.moves.ratio:.1f} bytes are moved for each that is used"


def coalesced(
    kernels: Sequence[Kernel],
    module: Module,
    buffer_map: BufferMap,
    plan: Plan,
    target: Target,
    built: dict[str, tuple[Plan, Any]] | None = None,
) -> tuple[Plan, list[str]]:
    """The plan that kernels of one structure move to from one that suits them, and why, a sentence
    each. The kernel that was made of it in order to see that is entered in `built`."""
    if not isinstance(plan, MapPlan | RowPlan):
        return plan, []
    lists = _List(kernels, module, buffer_map, target)
    first = lists.measured(plan)
    taken, why = _move_plan(first, lists)
    if built is not None:
        built[kernels[0].name] = taken.plan, taken.made
    return taken.plan, why


def _move_plan(first: _Measured, lists: _List) -> tuple[_Measured, list[str]]:
    if first.moves.ratio <= WASTEFUL or first.moves.moved * first.made.grid < _LITTLE:
        return first, []
    tried = [first]
    for other in lists.others(first):
        tried.append(other)
        if other.moves.ratio <= _CLEAN:
            break
    best = min(tried, key=lambda found: found.moves.ratio)
    if best.moves.ratio > _BETTER * first.moves.ratio:
        why = f"{brief(first.plan)}: {first}, and no plan of its list moves much fewer"
        return first, [why] if first.moves.ratio > _TOLD else []
    names = briefs([found.plan for found in tried])
    steps = [f"{name}: {found}" for name, found in zip(names, tried, strict=True)]
    return best, [*steps, f"taken: {names[tried.index(best)]}"]


@dataclass(frozen=True)
class _List:
    """The plans of kernels of one structure."""

    kernels: Sequence[Kernel]
    module: Module
    buffer_map: BufferMap
    target: Target

    def measured(self, plan: Plan) -> _Measured:
        job = Job(self.kernels[0], self.module.tensors, self.buffer_map.refs, plan, self.target)
        made = templates.build_accepted(job, "k")
        return _Measured(plan, made, traffic(made))

    def others(self, first: _Measured) -> Iterator[_Measured]:
        """The legal ones that leave no unit without a block that had one."""
        for plan in closer(first.plan):
            if self._is_legal(plan):
                found = self.measured(plan)
                if found.made.grid >= min(first.made.grid, self.target.limits.units):
                    yield found

    def _is_legal(self, plan: Plan) -> bool:
        tensors, refs = self.module.tensors, self.buffer_map.refs
        if next(plan_verify.findings(plan, self.target), None) is not None:
            return False
        every = (templates.accepts(k, tensors, refs, plan, self.target) for k in self.kernels)
        return not any(every)
