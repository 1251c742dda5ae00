"""Which algorithms the ops of a program allow, for the kernels that compute them.

`algo_set` is an attribute of coarse ops, which are decomposed before kernels are made. What follows
values through that are the user's lines, so here an op lends the instructions it becomes a line
that says which op it was; from there on kernels know the instructions they came from.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import reduce

from weft.coarse.attention import Attention
from weft.coarse.convolution import Conv
from weft.driver.legalise import without_composites
from weft.driver.stages.compilation import Compilation
from weft.driver.stages.generators import generator_for
from weft.plan.algorithms import within
from weft.plan.ir import PlanSet
from weft.ptir.ir import Program, ValueKey
from weft.ptir.ops.contraction import DotGeneral
from weft.target.target import Target


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
