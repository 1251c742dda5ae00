"""Plans as JSON, both ways without loss.

A plan is one object with `kind` (mma, map, row, attention, staged), `target` and `kernel`, and the
fields of its kind. An mma plan has the fields of document 2's section 12.5, written as there
(`"warp_tile": "64x64"`, `"arch": "sm80|sm90"`), and beside them cluster, order, batch,
operand_layouts, split_k, swap_ab, roles, deferred_epilogue, consumers, in_flight, store_buffers,
registers and precision. Fields that are left out follow from the others (`plan.unsaid`) or have
their defaults, so an object with the document's fields alone is a plan; unknown fields are errors.
Fields that mean nothing on the plan's target are written only where somebody set them.

The plans of a module are `{"plans": [...], "kernels": {name: key}}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from weft.foundation.json_fields import Fields, parse, reading
from weft.foundation.json_records import Codec, Json, Object, Records
from weft.foundation.tally import counted
from weft.foundation.whole_numbers import read_whole
from weft.plan.ir import (
    AttentionPlan,
    CacheRead,
    Header,
    MapPlan,
    MmaPlan,
    Plan,
    PlanSet,
    RowPlan,
    StagedPlan,
    Tile,
    Vectorize,
    effective_fields,
    idle_fields,
)
from weft.plan.unsaid import algorithms, following, one_of, template_of

KINDS: Final[Mapping[str, type[Plan]]] = {
    "mma": MmaPlan,
    "map": MapPlan,
    "row": RowPlan,
    "attention": AttentionPlan,
    "staged": StagedPlan,
}


_UNSAID: Final = ("operand_layouts", "compute_at", "store_at")
"""Fields that are not written where they say nothing."""


def dumps(plans: PlanSet) -> str:
    """The plans of a module as JSON text, one field on a line."""
    items = ",\n".join(_indent(plan_to_json(plan)) for plan in plans.plans.values())
    kernels = json.dumps(plans.kernels, indent=2).replace("\n", "\n  ")
    body = f"[\n{items}\n  ]" if items else "[]"
    return f'{{\n  "plans": {body},\n  "kernels": {kernels}\n}}\n'


def loads(text: str) -> PlanSet:
    """The plans that a JSON text describes."""
    with reading(parse(text, "plan file"), "plan file") as top:
        plans = top.items("plans", plan_of_fields)
        with reading(top.take("kernels"), "plan file.kernels") as named:
            kernels = {name: named.text(name) for name in named.names}
        found = PlanSet(kernels, {plan.header.kernel: plan for plan in plans})
        if len(found.plans) != len(plans):
            top.fail("two plans have one key")
    for name, key in found.kernels.items():
        if key not in found.plans:
            top.fail(f"kernel {name} has the key {key}, for which there is no plan")
    return found


def dump_plan(plan: Plan) -> str:
    """One plan as JSON text."""
    return _indent(plan_to_json(plan), "") + "\n"


def load_plan(text: str) -> Plan:
    """The plan that a JSON text describes."""
    return plan_from_json(parse(text, "plan"))


def _indent(document: Json, space: str = "    ") -> str:
    lines = ",\n".join(f"{space}  {json.dumps(k)}: {json.dumps(v)}" for k, v in document.items())
    return f"{space}{{\n{lines}\n{space}}}"


# -- writing -------------------------------------------------------------------------------------


def plan_to_json(plan: Plan) -> Json:
    """A plan as a JSON object."""
    kind = next(name for name, cls in KINDS.items() if isinstance(plan, cls))
    document: Json = {"kind": kind, "target": plan.header.target, "kernel": plan.header.kernel}
    names = (*effective_fields(plan), *idle_fields(plan))
    said = [name for name in names if name not in _UNSAID or getattr(plan, name)]
    return document | _RECORDS.write_fields(plan, said)


def told(plan: Plan, name: str) -> str:
    """A field and its value as a file has them, for sentences: words without their quotes."""
    value = _RECORDS.write_fields(plan, [name])[name]
    return f"{name}={value if isinstance(value, str) else json.dumps(value)}"


def brief(plan: Plan) -> str:
    """What tells a plan from others of its list, in a few words."""
    match plan:
        case MmaPlan():
            rows, columns, _ = plan.tile
            tiles = f"{plan.arch} tiles of {rows}x{columns}"
            if plan.arch != "sm90":
                return f"{tiles}, {_write_tile(plan.warp_tile)} a warp"
            return f"{plan.roles} {tiles}" + ("" if plan.in_flight else ", no group in flight")
        case MapPlan(block=block) if block > 1:
            return f"blocks of {block}x{block} by {plan.threads} threads"
        case MapPlan():
            work = f"{plan.threads} threads with vectors of {plan.vector}"
            return f"{work}, {plan.grain} points"
        case RowPlan():
            several = counted(plan.rows_per_block, "row") + " side by side" * plan.across
            again = f", {plan.rows_per_thread} times" if plan.rows_per_thread > 1 else ""
            again += ", one after the other" * plan.walks
            return f"{several} of {plan.threads} threads with vectors of {plan.vector}{again}"
        case StagedPlan():
            strips = ", ".join(f"{size} of {name}" for name, size in plan.tile.items())
            return f"strips of {strips}, {plan.unroll} vectors of {plan.vector}"
    return type(plan).__name__


def origin_lines(plans: PlanSet) -> list[str]:
    """Where the tiles of matrix kernels come from, a sentence each."""
    lines = []
    for key, why in plans.origins.items():
        plan = plans.plans[key]
        if isinstance(plan, MmaPlan):
            names = ", ".join(name for name, own in plans.kernels.items() if own == key)
            rows, columns, _ = plan.tile
            lines.append(f"{names}: tiles of {rows}x{columns}, {why}")
    return lines


def briefs(plans: Sequence[Plan]) -> list[str]:
    """Each plan of a list in a few words; plans that read alike with the fields they differ in."""
    texts = list(map(brief, plans))
    for number, (text, plan) in enumerate(zip(list(texts), plans, strict=True)):
        alike = [other for other in plans if brief(other) == text]
        differing = [
            told(plan, name)
            for name in effective_fields(plan)
            if any(getattr(other, name) != getattr(plan, name) for other in alike)
        ]
        texts[number] = ", ".join([text, *differing])
    return texts


def _write_tile(value: tuple[int, int]) -> str:
    return f"{value[0]}x{value[1]}"


def _write_cache(read: CacheRead) -> Json:
    return _RECORDS.write(read, pingpong=read.pingpong)


def _write_vectorize(value: Vectorize) -> Json:
    return _RECORDS.write(value)


# -- reading -------------------------------------------------------------------------------------


def plan_from_json(document: Any, target: str = "") -> Plan:
    """The plan that a JSON object describes, for a target where it names none, or several. It is
    read, not verified."""
    with reading(document, "plan") as fields:
        return plan_of_fields(fields, target)


def plan_of_fields(fields: Fields, target: str = "") -> Plan:
    """A plan from the fields of an object."""
    kind = fields.text("kind", "mma")
    if kind not in KINDS:
        fields.fail(f"{kind!r} is not a kind of plan; the kinds are {', '.join(KINDS)}")
    header = Header(_read_target(fields) or target, fields.text("kernel", ""))
    if kind == "mma":
        return _read_mma(fields, header)
    found: Plan = _RECORDS.read(KINDS[kind], fields, header=header)
    return found


def _read_target(fields: Fields) -> str:
    """The target of a plan, empty where the plan leaves it out."""
    if not fields.has("target"):
        return ""
    found = fields.text("target")
    if not found:
        fields.fail("field 'target' is empty; name the target, or leave the field out")
    return found


def _read_mma(fields: Fields, header: Header) -> MmaPlan:
    found = _RECORDS.read_fields(MmaPlan, fields, header=header)
    if len(found.get("operand_layouts", "AB")) != 2:
        fields.fail("field 'operand_layouts' must have two entries")
    arch = found["arch"] = one_of(found.get("arch", template_of(header.target)), header.target)
    # The other templates are called by their targets; these are for any GPU.
    target = header.target or ("" if arch in ("codes", "fma", "groups", "planes") else arch)
    found["header"] = Header(target, header.kernel)
    found["algo_choice"] = algorithms(found.get("algo_choice", {}))
    return MmaPlan(**following(found))


def _read_words(fields: Fields, name: str) -> dict[str, str]:
    return _read_object(fields, name, "words", str)


def _read_words_or_flags(fields: Fields, name: str) -> dict[str, bool | str]:
    return _read_object(fields, name, "words, true or false", bool, str)


def _read_object(fields: Fields, name: str, what: str, *kinds: type) -> dict[str, Any]:
    found = fields.take(name)
    if not isinstance(found, dict) or any(type(v) not in kinds for v in found.values()):
        fields.fail(f"field {name!r} must be an object whose values are {what}")
    return found


def _read_tile(fields: Fields, name: str) -> tuple[int, int]:
    """`64x32` as numbers."""
    text = fields.text(name)
    match = re.fullmatch(r"(\d+)x(\d+)", text)
    if match is None:
        fields.fail(f"{name} {text!r} is not ROWSxCOLUMNS")
    rows, columns = read_whole(match[1]), read_whole(match[2])
    if rows is None or columns is None:
        fields.fail(f"{name} {text!r} is beyond 64 bits")
    return rows, columns


def _read_cache(fields: Fields) -> CacheRead:
    return _RECORDS.read(CacheRead, fields)


def _read_vectorize(fields: Fields, name: str) -> Vectorize | None:
    found = fields.take(name)
    if found is None:
        return None
    with reading(found, f"{fields.where}.{name}") as inner:
        return _RECORDS.read(Vectorize, inner)


_RECORDS: Final = Records(
    {
        Tile: Codec(_write_tile, _read_tile),
        CacheRead: Object(_write_cache, _read_cache),
        Vectorize: Codec(_write_vectorize, _read_vectorize),
        dict[str, str]: Codec(dict, _read_words),
        dict[str, bool | str]: Codec(dict, _read_words_or_flags),
    }
)
