"""Plans that somebody writes by hand, in the plan language or as JSON, for kernels of a module.

A file in the plan language is one program of statements for every kernel it plans; each begins with
`kernel NAME` (a kernel, or the key of its structure). A single plan as JSON names its kernel in the
field `kernel`. Where a module has one kernel with a plan, or one product, the name may be left out.
Kernels that nobody names keep the plan that was chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Final

from weft.foundation.errors import SpecViolation, clipped
from weft.foundation.json_fields import parse
from weft.plan import text as plan_text
from weft.plan.dsl import STATEMENTS, Statement, plan_of, statements_of
from weft.plan.ir import Header, MmaPlan, Plan, PlanSet
from weft.plan.words import edited
from weft.region.form import Whole
from weft.region.ir import Kernel, Module, form_of

CODE: Final = "PlanKernel"
_FIELDS: Final = frozenset(
    known.name for kind in plan_text.KINDS.values() for known in fields(kind)
) - {"header"}
GIVEN: Final = "as given"
"""Where plans come from that somebody wrote."""


def read_plans(text: str, choose: Callable[[], PlanSet], module: Module, target: str) -> PlanSet:
    """The plans of a module that a text describes: all of them, or some, the others as chosen."""
    if is_schedule(text):
        return planned(text, choose(), module, target)
    document = _read_json(text)
    if isinstance(document, dict) and "plans" not in document and "kernels" not in document:
        return _with_one(document, choose(), module, target)
    read = plan_text.loads(text)
    return replace(read, origins=dict.fromkeys(read.plans, GIVEN))


def _read_json(text: str) -> Any:
    try:
        return parse(text, "plan file")
    except SpecViolation:
        first = next((words[0] for words, *_ in statements_of(text) if words), "")
        if first and not first.isidentifier():
            raise
    said = f"{clipped(first, 40)!r} is not a statement" if first else "it is empty"
    hint = "write statements, such as split i0 8, or JSON, as --dump=plan does"
    raise SpecViolation(CODE, f"the plan file begins with no statement: {said}", hint)


def is_schedule(text: str) -> bool:
    """Whether a text is in the plan language, and not JSON."""
    words = [word for statement in statements_of(text)[:1] for word in statement.words]
    return bool(words) and words[0] in {*STATEMENTS, *_FIELDS}


def planned(text: str, chosen: PlanSet, module: Module, target: str) -> PlanSet:
    """The plans that were chosen, with those of a text in their place: products are planned anew,
    plans of other kernels are changed."""
    plans: dict[str, Plan] = {}
    for name, program in _programs(text):
        first = " ".join(program[0].words) if program else ""
        key = _kernel_key(name, chosen, module, first)
        if key in plans:
            raise SpecViolation(CODE, f"the structure of kernel {name} is planned twice")
        plan = _parse_plan(name, program, chosen.plans[key], _kernel(key, chosen, module), target)
        plans[key] = replace(plan, header=Header(plan.header.target, key))
    return _replace_plans(chosen, plans)


def _kernel(key: str, chosen: PlanSet, module: Module) -> tuple[Kernel, Module]:
    found = next(k for k in module.kernels if chosen.kernels.get(k.name) == key)
    return found, module


def _with_one(document: dict[str, Any], chosen: PlanSet, module: Module, target: str) -> PlanSet:
    """The plans that were chosen, with one of JSON in the place of its kernel's."""
    plan = plan_text.plan_from_json(document, target)
    key = _kernel_key(plan.header.kernel, chosen, module, "the plan")
    return _replace_plans(chosen, {key: replace(plan, header=Header(plan.header.target, key))})


def _replace_plans(chosen: PlanSet, plans: dict[str, Plan]) -> PlanSet:
    every = {**chosen.plans, **plans}
    origins = chosen.origins | dict.fromkeys(plans, GIVEN)
    return replace(chosen, plans=every, origins=origins, own=chosen.own - plans.keys())


def _kernel_key(name: str, chosen: PlanSet, module: Module, what: str) -> str:
    """The key of a kernel; where nobody names one, of the only one, or of the only product."""
    there = ", ".join(chosen.kernels) or "none"
    if not name:
        products = [key for key, plan in chosen.plans.items() if isinstance(plan, MmaPlan)]
        for keys in (list(chosen.plans), products):
            if len(keys) == 1:
                return keys[0]
        hint = f"write kernel NAME before the statements for it; the kernels are {there}"
        raise SpecViolation(CODE, f"{what!r} is for no kernel", hint)
    key = chosen.kernels.get(name, name)
    whole = next((kernel for kernel in module.kernels if kernel.name == name), None)
    if key not in chosen.plans and whole is not None:
        form = form_of(whole)
        op = form.op if isinstance(form, Whole) else "one op"
        why = f"kernel {name} is {op}, which is computed as a whole: it has no loops to plan"
        raise SpecViolation(CODE, why, f"leave it out; those with plans are {there}")
    if key not in chosen.plans:
        raise SpecViolation(CODE, f"there is no kernel {name}; those with plans are {there}")
    return key


def _programs(text: str) -> list[tuple[str, list[Statement]]]:
    """The kernels of a text, each with its statements."""
    found: list[tuple[str, list[Statement]]] = []
    for statement in statements_of(text):
        words = statement.words
        if words[:1] == ("kernel",):
            if len(words) != 2:
                raise SpecViolation(CODE, f"{' '.join(words)!r} is not written: kernel NAME")
            found.append((words[1], []))
        elif found:
            found[-1][1].append(statement)
        else:
            found.append(("", [statement]))
    return found


def _parse_plan(
    name: str, program: list[Statement], chosen: Plan, at: tuple[Kernel, Module], target: str
) -> Plan:
    kernel, module = at
    try:
        if isinstance(chosen, MmaPlan):
            defaults: dict[str, Any] = {"target": target, "arch": chosen.arch}
            if chosen.arch == "fma":
                defaults["warp_tile"] = chosen.warp_tile
            return plan_of(program, defaults)
        return edited(chosen, kernel, module.tensors, program)
    except SpecViolation as error:
        where = f"kernel {name}, {error.where}" if name else error.where
        raise SpecViolation(error.code, error.why, error.hint, where) from None
