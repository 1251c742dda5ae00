"""The choices for a program's kernels (plans, fusion) and their alternatives, with the cost of
each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from weft.driver.stages.compilation import Compilation
from weft.driver.stages.generators import generator_for
from weft.driver.stages.inside import values_inside
from weft.driver.tuning import tuned
from weft.explorer.plans import shown_fields
from weft.plan.candidates import candidates
from weft.plan.ir import Plan
from weft.plan.verify import findings
from weft.region.ir import Kernel, Module, Weighed

Json: TypeAlias = dict[str, Any]
_MOST: Final = 8
"""Choices of one kind that a card has, those that mattered most."""
_RACED: Final = 16
"""Plans whose others are estimated, those of the dearest kernels: each is generated for it."""


# -- which values are one kernel -----------------------------------------------------------------


def choices_of(
    compilation: Compilation, ids: Mapping[str, tuple[int, ...]]
) -> dict[str, list[Json]]:
    """For every kernel, why its results go through memory, what was put into it instead of going
    through memory, and with which kernels it could have been one. `ids` are the instructions of
    values by name."""
    module, scop = compilation["region"], compilation["poly_view"]
    owners = {name: access.tensor for name, access, _ in scop.outputs}
    inside = values_inside(module, scop)
    written = {
        kernel.name: [owners.get(o.tensor, o.tensor) for o in kernel.outputs]
        for kernel in module.kernels
    }
    homes = {value: name for name, values in written.items() for value in values}
    found = {}
    for name, values in written.items():
        held = set(inside[name].values()) - set(values)
        made = _list_stored(values, module, ids) + _taken_in(held, module, ids)
        found[name] = made + _list_refused(name, homes, module)
    return found


def _list_stored(
    values: list[str], module: Module, ids: Mapping[str, tuple[int, ...]]
) -> list[Json]:
    prices = {w.value: w for w in module.weighed if not (w.beside or w.stage)}
    return [
        _choice("stored", value, ids, prices.get(value), why=module.stored.get(value, ""))
        for value in dict.fromkeys(values)
        if value in module.stored
    ]


def _taken_in(held: set[str], module: Module, ids: Mapping[str, tuple[int, ...]]) -> list[Json]:
    known = [w for w in module.weighed if not (w.beside or w.stage) and w.value in held]
    free = [w for w in known if w.value not in module.stored]
    free.sort(key=lambda w: w.together - w.apart)
    return [_choice("inside", w.value, ids, w) for w in free[:_MOST]]


def _list_refused(name: str, homes: Mapping[str, str], module: Module) -> list[Json]:
    """Kernels that this one was not made one with, nearest to it first."""
    best: dict[str, Weighed] = {}
    for w in module.weighed:
        pair = (homes.get(w.value), homes.get(w.beside))
        if name not in pair or None in pair or pair[0] == pair[1]:
            continue
        other = str(pair[1] if pair[0] == name else pair[0])
        if other not in best or w.together < best[other].together:
            best[other] = w
    ranked = sorted(best.items(), key=lambda item: item[1].together - item[1].apart)
    return [_choice("refused", other, {}, w) for other, w in ranked[:_MOST]]


def _choice(
    kind: str,
    name: str,
    ids: Mapping[str, tuple[int, ...]],
    price: Weighed | None,
    why: str = "",
) -> Json:
    costs = {"together": price.together, "apart": price.apart} if price is not None else {}
    return {"kind": kind, "name": name, "ids": list(ids.get(name, ())), "why": why, **costs}


# -- plans ---------------------------------------------------------------------------------------


def races_of(compilation: Compilation, dearest: Sequence[str]) -> dict[str, Json]:
    """For the plans of the kernels that cost most, by key, the others that these would take and the
    estimate of each; for every plan that was tuned, what was measured of each."""
    module, plans, table = (
        compilation["region"],
        compilation["plan"],
        tuned.load_tuned(compilation.target),
    )
    named = {kernel.name: kernel for kernel in module.kernels}
    first: dict[str, Kernel] = {}
    for name in dearest:
        first.setdefault(plans.kernels.get(name, ""), named[name])
    found: dict[str, Json] = {}
    for number, (key, kernel) in enumerate(first.items()):
        if key not in plans.plans:
            continue
        plan, known = plans.plans[key], table.get(key)
        race = known.race if known is not None and known.plan == plan else ()
        found[key] = {
            "told": str(known) if known is not None and known.plan == plan else "",
            "measured": [[_list_changes(plan, other), seconds] for other, seconds in race],
            "others": [] if race or number >= _RACED else _other_choices(kernel, plan, compilation),
        }
    return found


def _list_changes(plan: Plan, other: Plan) -> list[list[str]]:
    """The fields of another plan that differ, and what they are there."""
    now, fields = shown_fields(plan), shown_fields(other)
    return [[name, fields[name]] for name in fields if now.get(name) != fields[name]]


def _other_choices(kernel: Kernel, plan: Plan, compilation: Compilation) -> list[list[Any]]:
    """Which fields differ in other plans, and their seconds."""
    module, target = compilation["region"], compilation.target
    memory, generator = compilation["memory"], generator_for(target)
    found: list[list[Any]] = []
    for other in candidates(kernel, target, plan)[1:]:
        if next(findings(other, target), None) is not None:
            continue
        if generator.accepts(kernel, module, memory, other, target):
            continue
        seconds = generator.estimate(kernel, module, memory, other, target).seconds
        found.append([_list_changes(plan, other), seconds if math.isfinite(seconds) else 0.0])
    return sorted(found, key=lambda row: row[1])[:_MOST]
