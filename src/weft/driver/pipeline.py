"""The pipeline: one list of stages from PTIR to code. Each can be dumped, stopped at, timed, and
(where its text reads back) replaced by an edited file.

    frontend → tiny → indexbook → poly_view → region → memory → plan → cpu → llvm
                                                                     → gpu → cu

What comes after the plan is the code generator's, one for each kind of target.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from weft.driver.stages.algorithms import allowed_algorithms, chosen_plans, refuse_others
from weft.driver.stages.bodies import parts_of
from weft.driver.stages.compilation import (
    DEFAULT_LEVEL,
    EXACT_LEVEL,
    Compilation,
    Stage,
    naming_lines,
    with_lines_of,
    with_origins_of,
)
from weft.driver.stages.edges import edge_lines
from weft.driver.stages.generators import exact_fusion, generator_for
from weft.driver.stages.opaque import decode_op, encode_op
from weft.driver.tuning.tuned import with_tuned
from weft.foundation.errors import InternalError, SpecViolation, Unimplemented, UserError
from weft.foundation.progress import at
from weft.foundation.tally import tallied
from weft.indexbook import agree as indexbook_agree
from weft.indexbook import text as indexbook_text
from weft.indexbook import verify as indexbook_verify
from weft.indexbook.from_tiny import build_book
from weft.memory import agree as memory_agree
from weft.memory import text as memory_text
from weft.memory import verify as memory_verify
from weft.memory.from_region import assign_buffers
from weft.memory.from_region import report as memory_report
from weft.plan import text as plan_text
from weft.plan import verify as plan_verify
from weft.plan.completion import completed_plans
from weft.plan.from_region import check_plans, same_kernels
from weft.plan.ir import PlanSet
from weft.plan.schedule import read_plans
from weft.poly_view import agree as poly_view_agree
from weft.poly_view import text as poly_view_text
from weft.poly_view import verify as poly_view_verify
from weft.poly_view.from_tiny import build_scop
from weft.ptir import text as ptir_text
from weft.ptir.ir import HintPolicy, HintRegion, Program
from weft.ptir.passes import optimise
from weft.ptir.streams import assign_streams
from weft.ptir.verify import verify as verify_program
from weft.region import agree as region_agree
from weft.region import text as region_text
from weft.region import verify as region_verify
from weft.region.exchanges import as_they_are_made
from weft.region.forms.find import with_forms
from weft.region.forms.multiplied import operand_bytes
from weft.region.from_poly_view import Fuse, lower_scop
from weft.region.fusion.merge import fuse_greedily, fuse_nothing
from weft.region.ir import Module
from weft.region.prove import holds
from weft.target.target import Kind, Target
from weft.tiny import agree as tiny_agree
from weft.tiny import text as tiny_text
from weft.tiny import verify as tiny_verify
from weft.tiny.from_ptir import RUN, lower_program
from weft.tiny.ir import Value, topological, value_ids


def _tiny_values(compilation: Compilation) -> dict[str, Value]:
    """The Tiny values by the ids that dumps use."""
    graph = compilation["tiny"]
    values = topological(tuple(value for _, value in graph.outputs))
    return {value_id: value for value, value_id in value_ids(values).items()}


def _chosen_plans(compilation: Compilation) -> PlanSet:
    module, buffer_map, target = compilation["region"], compilation["memory"], compilation.target
    return with_tuned(chosen_plans(compilation), module, buffer_map, target)


def _read_plans(text: str, compilation: Compilation) -> PlanSet:
    """Plans as JSON, all of them or one, or some in the plan language."""
    module, target = compilation["region"], compilation.target.name
    read = read_plans(text, lambda: _chosen_plans(compilation), module, target)
    return completed_plans(read, module)


def _read_kernels(text: str, compilation: Compilation) -> Module:
    """The kernels that a text describes. Those that leave out what they are get to know it; what
    is wrong with others is for the verifier to say."""
    module = region_text.loads(text, decode_op)
    return module if any(region_verify.findings(module, holds)) else with_forms(module)


def _same_choices(read: PlanSet, made: PlanSet, compilation: Compilation) -> None:
    same_kernels(read, made)
    refuse_others(read, made, allowed_algorithms(compilation))


def _verify_plans(compilation: Compilation) -> None:
    plans, module = compilation["plan"], compilation["region"]
    check_plans(plans, module)
    sizes = {plans.kernels[k.name]: operand_bytes(k) for k in module.kernels if k.roles is not None}
    for key, plan in plans.plans.items():
        plan_verify.verify(plan, compilation.target, sizes.get(key, 2))


def _check_required_hints(compilation: Compilation) -> None:
    """Every Required hint of the program has a kernel that computes all of it."""
    main = compilation.simple().main
    for hint in main.hints:
        if hint.policy is HintPolicy.REQUIRED:
            _check_hint(hint, compilation["region"], main.label)


def _check_hint(hint: HintRegion, module: Module, label: str) -> None:
    wanted = {instruction.id for instruction in hint.body}
    found = {name: wanted.intersection(ids) for name, ids in module.origin.items()}
    found = {name: ids for name, ids in found.items() if ids}
    computed = set().union(*found.values())
    if any(ids == computed for ids in found.values()) or not computed:
        return
    parts = [i.summary for i in hint.body if i.id in computed]
    raise Unimplemented(
        f"hint {hint.id} of {label}",
        f"it is a required {hint.kind}, but {', '.join(parts)} become {len(found)} kernels here: "
        f"{', '.join(found)}; make it preferred, or give it fewer instructions",
    )


def _verify_kernels(compilation: Compilation) -> None:
    region_verify.verify(compilation["region"], holds)
    _check_required_hints(compilation)


def fuse_at(level: int) -> Fuse:
    """How blocks are put into kernels at a level of optimisation."""
    if level == EXACT_LEVEL:
        return exact_fusion()
    return fuse_greedily if level == DEFAULT_LEVEL else fuse_nothing


UNCHECKED: Final = {
    "cu": "its compiler checks the text, but nothing checks what it computes",
    "llvm": "its compiler checks the text, but nothing checks what it computes",
}
"""What is not known of a stage that somebody gave."""

MIDDLE: tuple[Stage, ...] = (
    Stage(
        "frontend", "ptir.txt",
        enter=lambda c: assign_streams(optimise(c.program, c.log)),
        verify=lambda c: verify_program(c["frontend"]),
        render=ptir_text.print_program,
        parse=lambda text, c: ptir_text.parse_program(text),
        agree=lambda read, made, c: _same_entry(read, made),
        follow=with_lines_of,
    ),
    Stage(
        "tiny", "json",
        enter=lambda c: lower_program(c.simple(c.log)),
        verify=lambda c: tiny_verify.verify(c["tiny"]),
        render=lambda graph: tiny_text.dumps(graph, encode_op),
        parse=lambda text, c: tiny_text.loads(text, decode_op),
        agree=lambda read, made, c: tiny_agree.agree(read, made),
        follow=with_origins_of,
    ),
    Stage(
        "indexbook", "json",
        enter=lambda c: build_book(c["tiny"]),
        verify=lambda c: indexbook_verify.verify(c["indexbook"]),
        render=indexbook_text.dumps,
        parse=lambda text, c: indexbook_text.loads(text),
        agree=lambda read, made, c: indexbook_agree.agree(read, made),
    ),
    Stage(
        "poly_view", "json",
        enter=lambda c: build_scop(c["tiny"], c["indexbook"]),
        verify=lambda c: poly_view_verify.verify(c["poly_view"]),
        render=poly_view_text.dumps,
        parse=lambda text, c: poly_view_text.loads(text, _tiny_values(c)),
        agree=lambda read, made, c: poly_view_agree.agree(read, made),
    ),
    Stage(
        "region", "json",
        enter=lambda c: as_they_are_made(lower_scop(
            c["poly_view"], c["tiny"], c.target, {RUN: "run", **c.signature.tensor_roles},
            fuse_at(c.opt_level),
        )),
        verify=_verify_kernels,
        render=lambda module: region_text.dumps(module, encode_op),
        parse=_read_kernels,
        agree=lambda read, made, c: region_agree.agree(read, made),
    ),
    Stage(
        "memory", "json",
        enter=lambda c: assign_buffers(
            c["region"], c.signature.donated_names, in_turn=c.target.kind is Kind.GPU
        ),
        verify=lambda c: memory_verify.verify(c["memory"]),
        render=memory_text.dumps,
        parse=lambda text, c: memory_text.loads(text),
        agree=lambda read, made, c: memory_agree.agree(
            read, c["region"], c.signature.donated_names, in_turn=c.target.kind is Kind.GPU
        ),
    ),
    Stage(
        "plan", "json",
        enter=_chosen_plans,
        verify=_verify_plans,
        render=plan_text.dumps,
        parse=_read_plans,
        agree=_same_choices,
    ),
)  # fmt: skip


def stages_for(target: Target) -> tuple[Stage, ...]:
    """The stages in order, for a target."""
    return MIDDLE + generator_for(target).stages


def run_pipeline(compilation: Compilation, until: str | None = None) -> Compilation:
    """Run the stages, up to and including `until`."""
    check_overrides(compilation.overrides, compilation.target, until)
    for stage in stages_for(compilation.target):
        started = time.perf_counter()
        at(stage.name)
        with tallied(compilation.tally), naming_lines(compilation):
            _enter(stage, compilation)
        compilation.seconds[stage.name] = time.perf_counter() - started
        if stage.name == until:
            break
    return compilation


def check_later(compilation: Compilation) -> None:
    """Make the checks that were put off until machine code is waited for."""
    while compilation.unchecked:
        stage = compilation.unchecked.pop(0)
        with tallied(compilation.tally), naming_lines(compilation):
            _check(stage, compilation)


def run_whole(compilation: Compilation) -> None:
    """Run all stages, and those of the bodies of branches and loops, as building does."""
    run_pipeline(compilation)
    for part in parts_of(compilation):
        with naming_lines(part):
            generator_for(part.target).settle(part)


def check_overrides(overrides: Mapping[str, str], target: Target, until: str | None = None) -> None:
    """Every stage that is read is one of the target, has a text, and is reached."""
    if not isinstance(overrides, Mapping):
        raise UserError(f"overrides maps stages to texts, not {type(overrides).__name__}")
    names = [stage.name for stage in stages_for(target)]
    for name in (*overrides, *([until] if until else [])):
        if name not in names:
            raise UserError(f"there is no stage {name!r}; the stages are {', '.join(names)}")
    for name, text in overrides.items():
        if not isinstance(text, str):
            raise UserError(f"the text of stage {name!r} is {type(text).__name__}, not str")
        if until and names.index(name) > names.index(until):
            raise UserError(f"stage {name!r} is given, but comes after {until!r}, the last to run")


def report(compilation: Compilation) -> list[str]:
    """What became of every edge and why, in sentences; what is not finished in the kernel of its
    contraction; what is stored and copied where."""
    lines = [*compilation["region"].notes, *edge_lines(compilation)]
    lines += _stops(compilation["region"])
    lines += memory_report(compilation["region"], compilation["memory"])
    lines += [*compilation["plan"].notes, *plan_text.origin_lines(compilation["plan"])]
    for name, body in compilation.bodies.items():
        lines += [f"{name}: {line}" for line in report(body)]
    return lines


def _stops(module: Module) -> list[str]:
    """Which contractions' results go through memory to what follows them, and why: a line for all
    of one reason."""
    alike: dict[str, list[str]] = {}
    for kernel in module.kernels:
        if kernel.name in module.stops:
            alike.setdefault(module.stops[kernel.name], []).append(kernel.name)
    return [
        f"{', '.join(names)}: the result goes through memory: {why}" for why, names in alike.items()
    ]


def _enter(stage: Stage, compilation: Compilation) -> None:
    override = compilation.overrides.get(stage.name)
    compilation.stages[stage.name] = stage
    try:
        if stage.name in compilation.values:
            pass
        elif override is None:
            compilation.values[stage.name] = stage.enter(compilation)
        else:
            compilation.values[stage.name] = _read_override(stage, override, compilation)
    except SpecViolation as error:
        raise error.at(f"stage {stage.name}") from None
    if stage in MIDDLE and override is None and compilation.ahead is not None:
        compilation.unchecked.append(stage)
    else:
        _check(stage, compilation)


def _check(stage: Stage, compilation: Compilation) -> None:
    try:
        stage.verify(compilation)
    except SpecViolation as error:
        placed = error.at(f"stage {stage.name}")
        if compilation.overrides:
            raise placed from None
        # Nothing was edited: what is wrong is what the compiler made.
        raise InternalError(str(placed)) from None


def _read_override(stage: Stage, text: str, compilation: Compilation) -> Any:
    """What somebody wrote, instead of what the stage makes."""
    if stage.parse is None:
        raise UserError(f"stage {stage.name!r} has no text that reads back")
    found = stage.parse(text, compilation)
    if stage.agree is None:
        return found
    made = stage.enter(compilation)
    stage.agree(found, made, compilation)
    return found if stage.follow is None else stage.follow(found, made)


def _same_entry(read: Program, made: Program) -> None:
    """An edited program is given and hands out what the program did."""
    given, wanted = (
        f"({', '.join(map(str, p.main.parameters))}) -> ({', '.join(map(str, p.main.results))})"
        for p in (read, made)
    )
    if given != wanted:
        why = f"@{read.entry} is {given}; that of the program is {wanted}"
        raise SpecViolation("ProgramSignature", why, "leave the entry function's types as they are")
