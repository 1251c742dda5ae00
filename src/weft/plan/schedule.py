"""Plans that somebody writes by hand, in the plan language, for some kernels of a module.

A file is one program of statements for every kernel it plans; each begins with `kernel NAME` (a
kernel, or the key of its structure). Kernels that no program names keep the plan that was chosen.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.foundation.errors import SpecViolation
from weft.plan.dsl import STATEMENTS, parse_plan, statements_of
from weft.plan.ir import Header, Plan, PlanSet

CODE = "PlanKernel"
GIVEN = "as given"
"""Where plans come from that somebody wrote."""


def is_schedule(text: str) -> bool:
    """Whether a text is in the plan language, and not JSON."""
    words = next(iter(statements_of(text)), "").split()
    return bool(words) and words[0] in STATEMENTS


def planned(text: str, chosen: PlanSet, target: str) -> PlanSet:
    """The plans that were chosen, with those of a text in their place."""
    plans: dict[str, Plan] = {}
    for name, program in _programs(text):
        key = chosen.kernels.get(name, name)
        if key not in chosen.plans:
            there = ", ".join(chosen.kernels) or "none"
            raise SpecViolation(CODE, f"there is no kernel {name}; those with plans are {there}")
        if key in plans:
            raise SpecViolation(CODE, f"the structure of kernel {name} is planned twice")
        plan = _parsed(name, program, target)
        plans[key] = replace(plan, header=Header(plan.header.target, key))
    every = {**chosen.plans, **plans}
    origins = chosen.origins | dict.fromkeys(plans, GIVEN)
    return replace(chosen, plans=every, origins=origins, own=chosen.own - plans.keys())


def _programs(text: str) -> list[tuple[str, str]]:
    """The kernels of a text, each with its statements."""
    found: list[tuple[str, list[str]]] = []
    for statement in statements_of(text):
        words = statement.split()
        if words[:1] == ["kernel"]:
            if len(words) != 2:
                raise SpecViolation(CODE, f"{statement.strip()!r} is not written: kernel NAME")
            found.append((words[1], []))
        elif found:
            found[-1][1].append(statement)
        else:
            hint = "write kernel NAME before the statements for it"
            raise SpecViolation(CODE, f"{statement.strip()!r} is for no kernel", hint)
    return [(name, ";".join(statements)) for name, statements in found]


def _parsed(name: str, program: str, target: str) -> Plan:
    defaults: dict[str, Any] = {"target": target, "arch": target}
    if target != "sm90":
        defaults["roles"] = "single"
    try:
        return parse_plan(program, defaults)
    except SpecViolation as error:
        where = f"kernel {name}, {error.where}"
        raise SpecViolation(error.code, error.why, error.hint, where) from None
