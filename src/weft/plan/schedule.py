"""Plans that somebody writes by hand, in the plan language or as JSON, for kernels of a module.

A file in the plan language is one program of statements for every kernel it plans; each begins with
`kernel NAME` (a kernel, or the key of its structure). A single plan as JSON names its kernel in the
field `kernel`. Where a module has one kernel with a plan, or one product, the name may be left out.
Kernels that nobody names keep the plan that was chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from weft.foundation.errors import SpecViolation
from weft.foundation.json_fields import parse
from weft.plan import text as plan_text
from weft.plan.dsl import STATEMENTS, parse_plan, statements_of
from weft.plan.ir import Header, MmaPlan, Plan, PlanSet

CODE: Final = "PlanKernel"
GIVEN: Final = "as given"
"""Where plans come from that somebody wrote."""


def read_plans(text: str, choose: Callable[[], PlanSet], target: str) -> PlanSet:
    """The plans of a module that a text describes: all of them, or some, the others as chosen."""
    if is_schedule(text):
        return planned(text, choose(), target)
    document = parse(text, "plan file")
    if isinstance(document, dict) and "plans" not in document and "kernels" not in document:
        return _with_one(document, choose(), target)
    read = plan_text.loads(text)
    return replace(read, origins=dict.fromkeys(read.plans, GIVEN))


def is_schedule(text: str) -> bool:
    """Whether a text is in the plan language, and not JSON."""
    words = next(iter(statements_of(text)), "").split()
    return bool(words) and words[0] in STATEMENTS


def planned(text: str, chosen: PlanSet, target: str) -> PlanSet:
    """The plans that were chosen, with those of a text in their place."""
    plans: dict[str, Plan] = {}
    for name, program in _programs(text):
        key = _key(name, chosen, program)
        if key in plans:
            raise SpecViolation(CODE, f"the structure of kernel {name} is planned twice")
        plan = _parsed(name, program, target)
        plans[key] = replace(plan, header=Header(plan.header.target, key))
    return _replaced(chosen, plans)


def _with_one(document: dict[str, Any], chosen: PlanSet, target: str) -> PlanSet:
    """The plans that were chosen, with one of JSON in the place of its kernel's."""
    plan = plan_text.plan_from_json(document, target)
    key = _key(plan.header.kernel, chosen, "the plan")
    return _replaced(chosen, {key: replace(plan, header=Header(plan.header.target, key))})


def _replaced(chosen: PlanSet, plans: dict[str, Plan]) -> PlanSet:
    every = {**chosen.plans, **plans}
    origins = chosen.origins | dict.fromkeys(plans, GIVEN)
    return replace(chosen, plans=every, origins=origins, own=chosen.own - plans.keys())


def _key(name: str, chosen: PlanSet, what: str) -> str:
    """The key of a kernel; where nobody names one, of the only one, or of the only product."""
    there = ", ".join(chosen.kernels) or "none"
    if not name:
        products = [key for key, plan in chosen.plans.items() if isinstance(plan, MmaPlan)]
        for keys in (list(chosen.plans), products):
            if len(keys) == 1:
                return keys[0]
        first = what.partition(";")[0].strip()
        hint = f"write kernel NAME before the statements for it; the kernels are {there}"
        raise SpecViolation(CODE, f"{first!r} is for no kernel", hint)
    key = chosen.kernels.get(name, name)
    if key not in chosen.plans:
        raise SpecViolation(CODE, f"there is no kernel {name}; those with plans are {there}")
    return key


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
            found.append(("", [statement]))
    return [(name, ";".join(statements)) for name, statements in found]


def _parsed(name: str, program: str, target: str) -> Plan:
    try:
        return parse_plan(program, {"target": target, "arch": target})
    except SpecViolation as error:
        where = f"kernel {name}, {error.where}" if name else error.where
        raise SpecViolation(error.code, error.why, error.hint, where) from None
