"""The bodies of branches and loops, each compiled like a program of its own.

A region is used in one of two ways: its parameters are only read, or some of them are carries of a
loop, which its results replace; those may then be updated in place. What a region returns unchanged
is not computed at all: `passed` says which parameter such a result is. A carry that a loop passes
on is the same in every turn: on a CPU it is a parameter of the body, as a program's weights are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft.driver.signature import Role, Signature
from weft.driver.stages.algorithms import algorithm_sets
from weft.driver.stages.compilation import Compilation
from weft.driver.stages.generators import pipeline
from weft.foundation.records import dataclass
from weft.ptir.ir import Body, Function, Instruction, Program, Region
from weft.ptir.ops.control import Scan, While
from weft.ptir.types import TensorType, leaves
from weft.target.target import Kind
from weft.tiny.from_ptir import lower_program
from weft.tiny.ir import Graph, Input


@dataclass(frozen=True)
class Use:
    """A region, and how many of its first parameters are carries that its results replace."""

    region: int
    carries: int = 0


@dataclass
class CompiledBody:
    """A region through all stages."""

    region: Region
    compilation: Compilation
    parameters: list[TensorType]
    """The tensors it is given, in order."""
    results: list[TensorType]
    """What it returns, likewise. Complex tensors are pairs of floats, of as many bytes."""
    passed: dict[int, int]
    """Results that are parameters: which ones."""


def carried(region: Region, count: int) -> int:
    """How many tensors the first `count` parameters of a region are."""
    return sum(1 for kind in region.parameters[:count] for _ in leaves(kind))


def uses_of(instruction: Instruction, program: Program) -> list[Use]:
    """The regions of an instruction, in the order of the op's attributes."""
    op = instruction.op
    if isinstance(op, While):
        body = program.regions_by_id[op.body_region]
        return [Use(op.cond_region), Use(op.body_region, carried(body, len(body.parameters)))]
    if isinstance(op, Scan):
        count = carried(program.regions_by_id[op.body_region], op.carry_count)
        return [Use(op.body_region, count)]
    return [Use(region) for region in op.regions]


def compile_bodies(program: Program, compilation: Compilation) -> dict[Use, CompiledBody]:
    """Every region that a program runs, after those that it runs itself; the program has no
    composite ops any more."""
    found: dict[Use, CompiledBody] = {}
    for use in _innermost_first(program):
        found[use] = _compile(use, program, compilation)
        label = f"region{use.region}" + ("_carried" if use.carries else "")
        compilation.bodies[label] = found[use].compilation
    return found


def parts_of(compilation: Compilation) -> list[Compilation]:
    """A compilation and those of its bodies, which are compiled where they are not yet."""
    if not compilation.bodies:
        compile_bodies(compilation.simple(), compilation)
    return [compilation, *compilation.bodies.values()]


def _innermost_first(program: Program) -> Iterator[Use]:
    """No recursion: a program may nest deeply."""
    done: set[Use] = set()
    stack = [(use, False) for use in reversed(list(_uses_in(program.main, program)))]
    while stack:
        use, leaving = stack.pop()
        if use in done:
            continue
        if leaving:
            done.add(use)
            yield use
        else:
            stack.append((use, True))
            inner = _uses_in(program.regions_by_id[use.region], program)
            stack += [(found, False) for found in reversed(list(inner))]


def _uses_in(body: Body, program: Program) -> Iterator[Use]:
    for instruction in body.body:
        yield from uses_of(instruction, program)


def _compile(use: Use, program: Program, around: Compilation) -> CompiledBody:
    region = program.regions_by_id[use.region]
    name = f"region{region.id}"
    function = Function(
        name, region.parameters, region.parameter_ids, region.results, region.body,
        result_ids=region.result_ids,
    )  # fmt: skip
    lines = dict(program.locations) | {
        (function.label, instruction.id): program.locations[region.label, instruction.id]
        for instruction in region.body
        if (region.label, instruction.id) in program.locations
    }
    alone = replace(program, entry=name, functions=(function,), locations=lines)
    graph, passed = _without_passed(lower_program(alone))
    parameters = [leaf for kind in region.parameters for leaf in leaves(kind)]
    donated = frozenset(range(use.carries)) - set(passed.values())
    stays = {n for n in range(use.carries) if passed.get(n) == n and around.target.kind is Kind.CPU}
    roles = tuple(Role.PARAM if n in stays else Role.DATA for n in range(len(parameters)))
    signature = Signature(roles, donated)
    child = Compilation(
        alone,
        around.target,
        signature,
        opt_level=around.opt_level,
        log=around.log,
        tally=around.tally,
        algorithm_sets={
            (function.label, number): names
            for (label, number), names in algorithm_sets(around).items()
            if label == region.label
        },
    )
    child.values |= {"frontend": alone, "tiny": graph}
    pipeline().run_pipeline(child)
    results = [leaf for kind in region.results for leaf in leaves(kind)]
    return CompiledBody(region, child, parameters, results, passed)


def _without_passed(graph: Graph) -> tuple[Graph, dict[int, int]]:
    """The graph without the outputs that are inputs, and which inputs these are."""
    places = {value: place for place, value in enumerate(graph.inputs)}
    passed, kept = {}, []
    for number, (name, value) in enumerate(graph.outputs):
        if isinstance(value, Input) and value in places:
            passed[number] = places[value]
        else:
            kept.append((name, value))
    return replace(graph, outputs=tuple(kept)), passed
