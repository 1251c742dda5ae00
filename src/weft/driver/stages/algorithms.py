"""The algorithms that an op allows (direct, Winograd, ...), and the plans within each.

`algo_set` is an attribute of attention and convolution, which are decomposed before kernels are
made. What follows values through that are the user's lines, so here an op lends the instructions it
becomes a line that says which op it was; from there on kernels know the instructions they came
from.

The planner's choice is kept where it is one of the set, and else replaced by the first of them that
the target has for the kernel; where it has none, a note says so, as the meaning is the same. A plan
that somebody writes may not leave the set.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Final

from weft.coarse.attention import Attention
from weft.coarse.convolution import Conv
from weft.driver.legalise import without_composites
from weft.driver.stages.compilation import Compilation
from weft.driver.stages.generators import generator_for
from weft.foundation.errors import SpecViolation
from weft.plan.ir import AttentionPlan, Header, MmaPlan, Plan, PlanSet
from weft.plan.winograd import ALGORITHM as WINOGRAD
from weft.plan.winograd import windows_of, winograd_plan, winograd_refusal
from weft.ptir.ir import Program, ValueKey
from weft.ptir.ops.contraction import DotGeneral
from weft.region.form import Windows
from weft.region.ir import Kernel, Module
from weft.target.target import Kind, Target


def chosen_plans(compilation: Compilation) -> PlanSet:
    """The planner's plans, within what the ops of the program allow."""
    target = compilation.target
    plans = generator_for(target).choose_plans(compilation)
    return within(plans, compilation["region"], target, allowed_algorithms(compilation))


def allowed_algorithms(compilation: Compilation) -> dict[str, tuple[str, ...]]:
    """The algorithms of every kernel that an op with a set is computed by."""
    sets = algorithm_sets(compilation)
    if not sets:
        return {}
    label = compilation["frontend"].main.label
    found: dict[str, tuple[str, ...]] = {}
    for kernel, ids in compilation["region"].origin.items():
        own = [sets[label, i] for i in ids if (label, i) in sets]
        if own:
            found[kernel] = reduce(_common_names, own)
    return {kernel: names for kernel, names in found.items() if names}


def _common_names(some: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in some if name in others)


def algorithm_sets(compilation: Compilation) -> Mapping[ValueKey, tuple[str, ...]]:
    """For each contraction of the program without composite ops, the set of the op it came from."""
    if compilation.algorithm_sets is None:
        compilation.algorithm_sets = _sets_of(compilation["frontend"], compilation.target)
    return compilation.algorithm_sets


def _sets_of(program: Program, target: Target) -> dict[ValueKey, tuple[str, ...]]:
    """Only contractions count: a kernel may end with the first steps of an op that it does not
    compute, but not with its products."""
    lines, sets = _mark_lines(program)
    if not sets:
        return {}
    simple = without_composites(replace(program, locations=lines), target=target)
    found = {
        (body.label, instruction.id): simple.locations.get((body.label, instruction.id), "")
        for body in simple.bodies
        for instruction in body.body
        if isinstance(instruction.op, DotGeneral)
    }
    return {key: sets[line] for key, line in found.items() if line in sets}


def _mark_lines(program: Program) -> tuple[dict[ValueKey, str], dict[str, tuple[str, ...]]]:
    """A line for every op that may have a set, and the set of each line. Ops that differ in their
    sets alone have one line, as what they are decomposed into is merged."""
    lines: dict[ValueKey, str] = {}
    sets: dict[str, tuple[str, ...]] = {}
    known: dict[Hashable, str] = {}
    for body in program.bodies:
        for instruction in body.body:
            op = instruction.op
            if isinstance(op, Attention | Conv):
                alike = body.label, replace(op, algo_set=None), instruction.operands
                line = known.setdefault(alike, f"op {len(known)}")
                lines[body.label, instruction.id] = line
                if op.algo_set is not None:
                    sets[line] = _common_names(sets.get(line, op.algo_set), op.algo_set)
    return lines, sets


_KINDS: Final = ("attention", "conv", "matmul")
"""What an algorithm is chosen for; the product of an attention or a convolution may be more than
one of them."""


def algorithm_of(plan: Plan) -> str | None:
    """What a plan computes an attention or a convolution by; None for other plans."""
    match plan:
        case AttentionPlan():
            return plan.algo
        case MmaPlan():
            chosen = plan.algo_choice
            return next((chosen[kind] for kind in _KINDS if kind in chosen), None)
    return None


def within(
    plans: PlanSet, module: Module, target: Target, allowed: Mapping[str, Sequence[str]]
) -> PlanSet:
    """The plans with an allowed algorithm for each kernel that has a set. Such kernels share a plan
    with none that has another set, so that each can be planned by itself."""
    kernels, found, notes = dict(plans.kernels), dict(plans.plans), list(plans.notes)
    own = plans.own
    for kernel in module.kernels:
        names = allowed.get(kernel.name)
        if names is None or kernel.name not in kernels:
            continue
        plan = _plan_by_algorithm(kernel, plans.of(kernel.name), target, names)
        if plan is None:
            notes.append(f"{kernel.name}: its op allows {_only(names)}, not built for it here")
            continue
        key = ".".join((kernels[kernel.name], *sorted(names)))
        own |= {key} if kernels[kernel.name] in plans.own else set()
        kernels[kernel.name] = key
        found[key] = replace(plan, header=Header(plan.header.target, key))
    used = set(kernels.values())
    left = {key: plan for key, plan in found.items() if key in used}
    return replace(plans, kernels=kernels, plans=left, notes=tuple(notes), own=own & used)


def _plan_by_algorithm(
    kernel: Kernel, plan: Plan, target: Target, names: Sequence[str]
) -> Plan | None:
    """The plan by one of some algorithms, its own where it is among them."""
    if algorithm_of(plan) in names:
        return plan
    if isinstance(plan, AttentionPlan) and target.kind is Kind.CPU:
        return replace(plan, algo=names[0])
    if isinstance(plan, MmaPlan) and WINOGRAD in names and target.kind is Kind.CPU:
        return _by_winograd(kernel, plan, target)
    return None


def _by_winograd(kernel: Kernel, plan: MmaPlan, target: Target) -> MmaPlan | None:
    if kernel.roles is None or not isinstance(windows_of(kernel), Windows):
        return None
    made = winograd_plan(kernel, plan, target)
    return made if winograd_refusal(kernel, made) is None else None


def refuse_others(read: PlanSet, made: PlanSet, allowed: Mapping[str, Sequence[str]]) -> None:
    """Plans that were read stay within the sets that the planner found a plan in."""
    for kernel, names in allowed.items():
        if kernel not in made.kernels or algorithm_of(made.of(kernel)) not in names:
            continue
        chosen = algorithm_of(read.of(kernel))
        if chosen not in names:
            why = f"it is planned by {chosen or 'no algorithm'}, but its op allows {_only(names)}"
            hint = "plan it by what algo_set names, or widen that"
            raise SpecViolation("PlanAlgorithm", why, hint, f"kernel {kernel}")


def _only(names: Sequence[str]) -> str:
    return f"only {' and '.join(names)}"
