"""The database of tuned plans on disk, by the structure of their kernels.

There is one table for a target on a machine. A compile takes a plan from it where there is one for
the kernel, whatever program it was tuned in; the structure has every size in it, so each shape
cluster finds its own. A table that cannot be read is no table.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weft.driver.programs.program_cache import tuned_key
from weft.driver.stages.generators import generator_for
from weft.foundation.errors import WeftError
from weft.foundation.json_fields import Fields, reading
from weft.memory.ir import BufferMap
from weft.plan import verify as plan_verify
from weft.plan.ir import Plan, PlanSet
from weft.plan.text import plan_from_json, plan_to_json
from weft.region.forms.multiplied import operand_bytes
from weft.region.ir import Kernel, Module
from weft.runtime import cache
from weft.target.target import Target


@dataclass(frozen=True)
class Tuned:
    """The best plan of a kernel so far: its seconds, those of the planner's first choice, how many
    plans were measured, and how many there are."""

    plan: Plan
    seconds: float
    first_seconds: float
    points: int
    of: int
    race: tuple[tuple[Plan, float], ...] = ()
    """Every plan that was measured, with its seconds, the fastest first."""

    @property
    def is_done(self) -> bool:
        return self.points >= self.of

    def __str__(self) -> str:
        return (
            f"tuned, {self.points} of {self.of} plans measured: {1e6 * self.seconds:.1f} µs, "
            f"{1e6 * self.first_seconds:.1f} µs by the first choice"
        )


def load_tuned(target: Target) -> dict[str, Tuned]:
    """What was tuned for a target, by the keys of kernels."""
    data = cache.load(tuned_key(target))
    if data is None:
        return {}
    try:
        return {key: _parse_tuned(entry) for key, entry in json.loads(data).items()}
    except (ValueError, AttributeError, RecursionError, WeftError):
        return {}


def save_tuned(target: Target, tuned: Mapping[str, Tuned]) -> bool:
    """Keep what was tuned for the next compile, in whatever process; whether it is kept."""
    document = {key: _write_entry(entry) for key, entry in sorted(tuned.items())}
    return cache.save(tuned_key(target), json.dumps(document).encode())


def _parse_tuned(entry: Any) -> Tuned:
    with reading(entry, "tuned plan") as fields:
        plan = plan_from_json(fields.take("plan"))
        times = _seconds(fields, "seconds"), _seconds(fields, "first_seconds")
        race = fields.items("race", _runner) if fields.has("race") else ()
        return Tuned(plan, *times, fields.whole("points"), fields.whole("of"), race)


def _runner(fields: Fields) -> tuple[Plan, float]:
    return plan_from_json(fields.take("plan")), _seconds(fields, "seconds")


def _seconds(fields: Fields, name: str) -> float:
    found = fields.take(name)
    if type(found) not in (int, float) or not 0 < found <= sys.float_info.max:
        fields.fail(f"field {name!r} must be a number over 0")
    return float(found)


def _write_entry(entry: Tuned) -> dict[str, Any]:
    return {
        "plan": plan_to_json(entry.plan),
        "seconds": entry.seconds,
        "first_seconds": entry.first_seconds,
        "points": entry.points,
        "of": entry.of,
        "race": [{"plan": plan_to_json(plan), "seconds": s} for plan, s in entry.race],
    }


def with_tuned(plans: PlanSet, module: Module, buffer_map: BufferMap, target: Target) -> PlanSet:
    """The plans with tuned ones in the place of those that have one; told in the notes."""
    table = load_tuned(target)
    found, notes, taken = dict(plans.plans), list(plans.notes), set[str]()
    for key in plans.plans.keys() & table.keys():
        kernels = [k for k in module.kernels if plans.kernels.get(k.name) == key]
        plan, accepts = table[key].plan, generator_for(target).accepts
        if plan.header.target != target.name or not _is_legal(plan, kernels, target):
            continue
        if any(accepts(kernel, module, buffer_map, plan, target) for kernel in kernels):
            continue
        found[key] = plan
        taken.add(key)
        notes.append(f"{', '.join(kernel.name for kernel in kernels)}: {table[key]}")
    origins = {key: why for key, why in plans.origins.items() if key not in taken}
    own = plans.own - taken
    return replace(plans, plans=found, notes=tuple(notes), origins=origins, own=own)


def _is_legal(plan: Plan, kernels: Sequence[Kernel], target: Target) -> bool:
    """Whether a plan is one of the target, whatever wrote the table."""
    sizes = {operand_bytes(kernel) if kernel.roles is not None else 2 for kernel in kernels}
    return not any(True for size in sizes for _ in plan_verify.findings(plan, target, size))
