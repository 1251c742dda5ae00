"""Provenance: one value through all stages, from a line of the user's code to instructions, Tiny
values, kernels, plans and routines, and back.

The ids of the frontend's instructions are the names that everything else is traced to: Tiny knows
which instructions its values came from, a kernel which it computes. What a stage takes apart, such
as a coarse op, belongs to the instruction that was there before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Any

from weft.driver.legalise import without_composites
from weft.driver.stages.compilation import Compilation
from weft.driver.stages.inside import values_inside
from weft.foundation.lines import Place
from weft.foundation.records import dataclass
from weft.ptir.ir import Program
from weft.target.target import Target
from weft.tiny.ir import Input, value_ids


@dataclass(frozen=True)
class KernelLinks:
    """What belongs to a kernel in the other stages."""

    values: tuple[int, ...]
    """The instructions that it computes."""
    plan: str = ""
    """The key of its plan; nothing where the host carries it out."""
    routine: str = ""
    """The symbol of its code."""
    inside: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The instructions that the values in it come from, by the names that it has for them; its code
    has the same names."""


@dataclass(frozen=True)
class Links:
    """The threads through one compiled body."""

    program: Program
    """The frontend's, whose instructions everything is traced to."""
    tiny: Mapping[str, tuple[int, ...]]
    """The instructions that each value of Tiny comes from, by the id that dumps use."""
    kernels: Mapping[str, KernelLinks]
    folded: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Instructions without a kernel of their own, such as a transpose: they say where the kernels
    named here read."""

    def to_json(self) -> dict[str, Any]:
        """The links as a dump has them."""
        label = self.program.main.label
        places = {i.id: self.program.locations.get((label, i.id)) for i in self.program.main.body}
        lines = {
            str(number): {"line": str(place), "file": place.file, "layer": place.layer}
            for number, place in places.items()
            if isinstance(place, Place)
        }
        kernels = {
            name: {
                "values": list(found.values),
                "plan": found.plan,
                "routine": found.routine,
                "inside": {let: list(ids) for let, ids in found.inside.items()},
            }
            for name, found in self.kernels.items()
        }
        return {
            "lines": lines,
            "tiny": {name: list(ids) for name, ids in self.tiny.items()},
            "kernels": kernels,
            "folded": {str(number): list(names) for number, names in self.folded.items()},
        }


def links_of(compilation: Compilation) -> Links:
    """The links of a body that went through all stages."""
    program: Program = compilation["frontend"]
    before = _taken_apart(program, compilation.target)
    graph, module = compilation["tiny"], compilation["region"]
    given = {f"in{at}": (number,) for at, number in enumerate(program.main.parameter_ids)}
    tiny = {
        name: given[value.name]
        if isinstance(value, Input) and value.name in given
        else _trace_ids(graph.origin.get(value, ()), before)
        for value, name in value_ids(graph.values).items()
    }
    inside = values_inside(module, compilation["poly_view"])
    known = {**tiny, **given}
    plans = compilation["plan"].kernels
    symbols = _symbols(compilation)
    kernels = {
        kernel.name: KernelLinks(
            _trace_ids(module.origin.get(kernel.name, ()), before),
            plans.get(kernel.name, ""),
            symbols.get(kernel.name, ""),
            {let: ids for let, name in inside[kernel.name].items() if (ids := known.get(name, ()))},
        )
        for kernel in module.kernels
    }
    return Links(program, tiny, kernels, _folded_into(program, kernels))


def _taken_apart(program: Program, target: Target) -> Mapping[int, int]:
    """For every instruction of the program without composite ops, the one that it was part of."""
    label = program.main.label
    marks = {(label, i.id): str(i.id) for i in program.main.body}
    # Whatever an instruction becomes inherits its line.
    simple = without_composites(replace(program, locations=marks), target=target)
    return {
        number: int(mark) for (where, number), mark in simple.locations.items() if where == label
    }


def _trace_ids(ids: Iterable[int], before: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(sorted({before.get(number, number) for number in ids}))


def _symbols(compilation: Compilation) -> Mapping[str, str]:
    """The symbol of each kernel's code, for a CPU or a GPU."""
    code = compilation.values.get("cpu") or compilation.values.get("gpu")
    launches = getattr(code, "launches", None)
    if launches is not None:
        return {name: launch.symbol for name, launch in launches.items()}
    return getattr(code, "symbols", {})


def _folded_into(
    program: Program, kernels: Mapping[str, KernelLinks]
) -> dict[int, tuple[str, ...]]:
    """Instructions that no kernel computes, and the kernels that compute what uses them next."""
    computing: dict[int, tuple[str, ...]] = {}
    for name, found in kernels.items():
        for number in found.values:
            computing[number] = (*computing.get(number, ()), name)
    using: dict[int, dict[str, None]] = {}
    folded: dict[int, tuple[str, ...]] = {}
    for instruction in reversed(program.main.body):
        own = computing.get(instruction.id)
        if own is None:
            own = folded[instruction.id] = tuple(using.get(instruction.id, {}))
        for operand in instruction.uses:
            using.setdefault(operand, {}).update(dict.fromkeys(own))
    return folded
