"""A compiled program as the page wants it: plain lists and numbers, ready for JSON.

Everything that somebody wrote (names, source, texts of stages) is data in it and stays data: the
page shows it as text and never as markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from weft.codegen.gpu.ir.module import GpuModule
from weft.driver.compile import Cluster
from weft.driver.stages.bodies import parts_of
from weft.driver.stages.compilation import Compilation
from weft.driver.stages.generators import generator_for, pipeline
from weft.driver.stages.links import Links, links_of
from weft.driver.stages.marks import marks_of, names_of
from weft.driver.stages.origins import kernel_origins
from weft.driver.stages.remarks import with_origins
from weft.driver.stages.variables import Lets, variables_of
from weft.explorer.choices import choices_of, races_of
from weft.explorer.codes import codes_of, resources_of
from weft.explorer.listings import dialect_names
from weft.explorer.nests import nest_of
from weft.explorer.plans import explained
from weft.foundation.errors import WeftError
from weft.foundation.lines import Place
from weft.plan.ir import Plan
from weft.region.cost import kernel_seconds, kernel_work
from weft.region.ir import Kernel
from weft.runtime.timeline import HOST, LAUNCHES, Lap
from weft.target.target import Target

Json = dict[str, Any]
_EDITABLE: Final = ("frontend", "tiny", "indexbook", "poly_view", "region", "memory", "plan")


@dataclass(frozen=True)
class Measured:
    """What a run told: seconds of each kernel by name, and the spans of a timeline."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    laps: Sequence[Lap] = ()
    """Who was busy with what, and when."""


@dataclass(frozen=True)
class Options:
    """How much the page has."""

    served: bool = False
    """Whether stages can be edited on it."""
    full: bool = False
    """Whether it has the code of every kernel, and not of the dearest alone."""


def records_of(name: str, cluster: Cluster, measured: Measured, options: Options) -> list[Json]:
    """A program, and the bodies of its branches and loops, as programs of their own."""
    compilation = cluster.compilation
    parts_of(compilation)
    times = dict(cluster.times)
    found = [_program_record(name, compilation, measured, times, options, options.served)]
    found[0]["why"] = cluster.describe()
    found[0]["notes"] = pipeline().report(compilation)
    for label, body in compilation.bodies.items():
        found.append(_program_record(f"{name} › {label}", body, measured, {}, options, False))
    return found


def _program_record(
    name: str,
    compilation: Compilation,
    measured: Measured,
    times: Mapping[str, float],
    options: Options,
    edit: bool,
) -> Json:
    links = links_of(compilation)
    target = compilation.target
    kernels = _kernels(compilation, links, measured)
    costly = sorted(kernels, key=lambda kernel: -(kernel["seconds"] or kernel["estimate"]))
    variables = _variables(compilation)
    symbols = [kernel["routine"] for kernel in costly]
    codes = codes_of(compilation, symbols, options.full, variables)
    stages = [
        _stage(name, compilation, links, variables, edit)
        for name in compilation.values
        if name not in codes
    ]
    stages += [
        _text_with_marks(name, listing.lines, links, listing.names)
        for name, listing in codes.items()
    ]
    taken = {**times, **{k: v for k, v in compilation.seconds.items() if k not in times}}
    return {
        "name": name,
        "target": target.name,
        "level": compilation.opt_level,
        "times": [[what, 1e3 * seconds] for what, seconds in taken.items()],
        "stages": stages,
        "values": _list_instructions(links),
        "beside": _other_lines(links),
        "kernels": kernels,
        "races": races_of(compilation, [kernel["name"] for kernel in costly]),
        "memory": _memory(compilation),
        "machine": _machine(target),
        **timeline_of(measured.laps),
        "folded": {number: list(names) for number, names in links.folded.items()},
        "why": "",
        "notes": [],
    }


def timeline_of(laps: Sequence[Lap]) -> Json:
    """Lanes by name, threads first, and spans: name, start, seconds, the number of their lane."""
    last = (HOST, LAUNCHES)
    lanes = sorted({lap.lane for lap in laps}, key=lambda lane: (lane in last, len(lane), lane))
    spans = [[lap.label, lap.start, lap.seconds, lanes.index(lap.lane)] for lap in laps]
    return {"lanes": lanes, "spans": spans}


def _variables(compilation: Compilation) -> dict[str, Lets]:
    """What the variables of a GPU's kernels are, by symbol."""
    code = compilation.values.get("gpu")
    return variables_of(code, compilation["region"].kernels) if isinstance(code, GpuModule) else {}


def _stage(
    name: str, compilation: Compilation, links: Links, variables: Mapping[str, Lets], edit: bool
) -> Json:
    try:
        text = compilation.text(name) if name in compilation.stages else ""
    except WeftError as error:
        text = f"(this stage has no text here: {error})"
    lines = with_origins(name, text, links).rstrip("\n").split("\n")
    names = dialect_names(lines, variables) if name == "gpu" else names_of(name, lines)
    return _text_with_marks(name, lines, links, names, edit and name in _EDITABLE)


def _text_with_marks(
    name: str, lines: list[str], links: Links, names: Mapping[int, str], edit: bool = False
) -> Json:
    """A text with its marks: from line to line, and what these are about; inside a kernel also what
    it calls that."""
    spans: list[list[Any]] = []
    for number, marks in sorted(marks_of(name, lines, links).items()):
        about = [marks, names[number]] if number in names else [marks]
        if spans and spans[-1][1] == number and spans[-1][2:] == about:
            spans[-1][1] = number + 1
        else:
            spans.append([number, number + 1, *about])
    return {"name": name, "text": lines, "marks": spans, "edit": edit}


def _list_instructions(links: Links) -> list[list[Any]]:
    """Instructions: id, op, type, file, line, layer, operands."""
    main, program = links.program.main, links.program
    given = zip(main.parameter_ids, main.parameters, strict=True)
    found: list[list[Any]] = [[number, "input", str(kind), "", 0, "", []] for number, kind in given]
    for instruction in main.body:
        place = program.locations.get((main.label, instruction.id), "")
        where = [place, 0, ""]
        if isinstance(place, Place):
            where = [place.file, place.number, place.layer]
        named = [instruction.id, instruction.op.mnemonic, str(instruction.output)]
        found.append([*named, *where, sorted(set(instruction.uses))])
    return found


def _other_lines(links: Links) -> list[list[Any]]:
    """Lines that instructions come from besides their own: file, line, instructions."""
    main, locations = links.program.main, links.program.locations
    found: dict[tuple[str, int], list[int]] = {}
    for instruction in main.body:
        place = locations.get((main.label, instruction.id))
        others = place.beside if isinstance(place, Place) else ()
        for key in dict.fromkeys((other.file, other.number) for other in others):
            found.setdefault(key, []).append(instruction.id)
    return [[*key, ids] for key, ids in found.items()]


def _kernels(compilation: Compilation, links: Links, measured: Measured) -> list[Json]:
    module, plans = compilation["region"], compilation["plan"]
    taken = resources_of(compilation)
    origins = kernel_origins(compilation)
    choices = choices_of(compilation, links.tiny)
    writers: dict[str, str] = {o.tensor: k.name for k in module.kernels for o in k.outputs}
    found = []
    guessed: dict[str, Json] = {}
    for kernel in module.kernels:
        origin, link = origins[kernel.name], links.kernels[kernel.name]
        plan = plans.plans.get(link.plan)
        if plan is None or link.plan not in guessed:
            guessed[link.plan] = _work_document(kernel, compilation, plan)
        place = origin.places[0] if origin.places else ""
        found.append(
            {
                "name": kernel.name,
                "pattern": kernel.pattern.value,
                "values": list(link.values),
                "routine": link.routine,
                "op": origin.op,
                "file": place.file if isinstance(place, Place) else "",
                "line": place.number if isinstance(place, Place) else 0,
                "place": str(place),
                "layer": origin.layer,
                "lines": [str(each) for each in origin.places],
                "plan": "" if plan is None else type(plan).__name__,
                "fields": [] if plan is None else explained(plan),
                "key": link.plan,
                "nest": nest_of(kernel),
                "inside": {let: list(ids) for let, ids in link.inside.items()},
                "takes": taken.get(link.routine, {}),
                "reads": list(kernel.inputs),
                "writes": [output.tensor for output in kernel.outputs],
                "after": sorted({writers[n] for n in kernel.inputs if n in writers}),
                "choices": choices[kernel.name],
                "seconds": measured.seconds.get(kernel.name, 0.0),
                **guessed[link.plan],
            }
        )
    return found


def _work_document(kernel: Kernel, compilation: Compilation, plan: Plan | None) -> Json:
    """Operations, bytes and the estimate, before anything runs."""
    target, module = compilation.target, compilation["region"]
    work = kernel_work(kernel, module.tensors, target)
    seconds, busy = kernel_seconds(kernel, module.tensors, target), 1.0
    if plan is not None:
        estimate = generator_for(target).estimate
        guess = estimate(kernel, module, compilation["memory"], plan, target)
        seconds, busy = guess.seconds, guess.usage.occupancy
    return {
        "flops": work.operations,
        "bytes": work.bytes,
        "estimate": seconds,
        "occupancy": busy,
        "bound": "memory"
        if work.bytes / target.rates.bandwidth >= (work.matrix_seconds + work.vector_seconds)
        else "arithmetic",
        "ceiling": _ceiling(kernel, compilation),
    }


def _ceiling(kernel: Kernel, compilation: Compilation) -> float:
    """Operations a second that the machine has for such a kernel."""
    dtype = compilation["region"].tensors[kernel.outputs[0].tensor].dtype
    target = compilation.target
    return target.matrix_rate(dtype) if kernel.roles is not None else target.vector_rate(dtype)


def _memory(compilation: Compilation) -> Json:
    buffers = compilation["memory"]
    tensors = [
        [
            name, ref.buffer.space.value, ref.buffer.offset, ref.buffer.bytes,
            *buffers.lives.get(name, (-1, -1)),
        ]
        for name, ref in buffers.refs.items()
    ]  # fmt: skip
    return {
        "arena": buffers.arena_bytes,
        "tensors": tensors,
        "copies": [[c.before, c.source, c.target, c.bytes, c.why] for c in buffers.copies],
        "shares": [[s.kernel, s.first, s.second, s.why] for s in buffers.shares],
    }


def _machine(target: Target) -> Json:
    rates = target.rates
    return {
        "bandwidth": rates.bandwidth,
        "matrix": rates.matrix_flops.get("f32", 0.0),
        "vector": rates.vector_flops.get("f32", 0.0),
        "units": target.limits.units,
    }
