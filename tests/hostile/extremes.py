"""Every attribute of every op set to extremes, and every op with the wrong operands, as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.hostile.bases import Json, bases, instruction

INT64_MIN, INT64_MAX, UINT64_MAX = -(2**63), 2**63 - 1, 2**64 - 1
NUMBERS: list[Any] = [
    0, 1, 3, 64, 2**31, 2**32, 2**61, INT64_MAX, 2**63, UINT64_MAX, 2**64, 10**40,
    -1, -3, -(2**31), INT64_MIN, INT64_MIN - 1,
]  # fmt: skip
OTHERS: list[Any] = [
    None, True, False, 0.5, -0.0, 1e308, "", "x", "NaN", "Infinity", "F32", "Infer", [], {}, [[]],
    [0], [1, 1], [[1, 2]], {"Static": 0}, {"Dynamic": "B"}, {"dims": []}, {"Float": 0.0},
    {"dims": [{"Static": 0}, {"Static": UINT64_MAX}]}, [{"Explicit": {"Static": 0}}, "Infer"],
]  # fmt: skip
LONG: list[Any] = [[0] * 100_000, list(range(100_000)), [UINT64_MAX] * 100_000]
KINDS: dict[str, list[Any]] = {
    "I64": NUMBERS,
    "F64": [0.0, -1.0, 1e308, 5, "NaN", "Infinity", "-Infinity"],
    "Bool": [True, False],
    "String": ["", "x", "f32", "cf64", "si4", "Reduced", "complete", "\u0000", "9" * 5_000],
    "I64Array": [[], [0], [1, 1], [-1], [INT64_MIN], [INT64_MAX, INT64_MAX], [0] * 100_000],
    "F64Array": [[], [0.5, "NaN"]],
    "BoolArray": [[], [True]],
    "StringArray": [[], ["2", "?B"], ["9" * 5_000], ["-1"], ["\u0663"]],
}

Case = tuple[str, str]


def _core(name: str, base: Json) -> Iterator[Case]:
    """Every attribute of a contract op, and every entry of those that are lists."""
    op = instruction(base)["op"]
    if isinstance(op, str):
        return
    ((variant, content),) = op.items()
    if not isinstance(content, dict) or variant == "Constant":
        yield from _replaced(f"{name}", base, op, variant)
        return
    for attribute, value in list(content.items()):
        yield from _replaced(f"{name}.{attribute}", base, content, attribute)
        if isinstance(value, list):
            for index in range(len(value)):
                yield from _replaced(f"{name}.{attribute}[{index}]", base, value, index, long=False)
    for attribute in list(content):
        kept = content.pop(attribute)
        yield f"{name}.{attribute} missing", json.dumps(base)
        content[attribute] = kept


def _replaced(
    what: str, base: Json, holder: Any, key: str | int, *, long: bool = True
) -> Iterator[Case]:
    kept = holder[key]
    for number, value in enumerate(NUMBERS + OTHERS + (LONG if long else [])):
        holder[key] = value
        yield f"{what} = {json.dumps(value)[:40]} ({number})", json.dumps(base)
    holder[key] = kept


def _call(name: str, base: Json) -> Iterator[Case]:
    """Every attribute of one of our own custom calls, in every class and with every value."""
    content = instruction(base)["op"]["CustomCall"]
    attrs = content["attrs"]
    for attribute, kept in list(attrs.items()):
        for kind, values in KINDS.items():
            for number, value in enumerate(values):
                attrs[attribute] = {"kind": kind, "value": value}
                yield f"{name}.{attribute} = {kind} ({number})", json.dumps(base)
        for number, value in enumerate(OTHERS):
            attrs[attribute] = value
            yield f"{name}.{attribute} malformed ({number})", json.dumps(base)
        del attrs[attribute]
        yield f"{name}.{attribute} missing", json.dumps(base)
        attrs[attribute] = kept
    attrs["no such attribute"] = {"kind": "I64", "value": 1}
    yield f"{name} with an unknown attribute", json.dumps(base)
    del attrs["no such attribute"]
    for number, value in enumerate(OTHERS):
        content["attrs"] = value
        yield f"{name} attrs malformed ({number})", json.dumps(base)


def attribute_cases(name: str) -> Iterator[Case]:
    """A name and a JSON text for every distortion of an op's attributes."""
    base = bases()[name]
    op = instruction(base)["op"]
    is_call = isinstance(op, dict) and "CustomCall" in op
    yield from _call(name, base) if is_call else _core(name, base)


def operand_cases(name: str) -> Iterator[Case]:
    """An op with no operands, with twenty, with too few, and with operands of unexpected kinds."""
    base = bases()[name]
    inst = instruction(base)
    kept = inst["operands"]
    literal = {"spec": {"dtype": "F32", "shape": {"dims": []}}, "bytes": [0, 0, 128, 63]}
    strange = [
        {"Value": 2**32 - 1},
        {"TupleElement": {"tuple": 0, "index": 0}},
        {"TupleElement": {"tuple": 0, "index": UINT64_MAX}},
        {"Literal": literal},
        {"Value": inst["id"]},
    ]
    lists = [[], (kept or [{"Literal": literal}]) * 20, kept[:-1], kept[::-1]]
    lists += [[other, *kept[1:]] for other in strange] + [[*kept[:-1], other] for other in strange]
    for number, operands in enumerate(lists):
        inst["operands"] = operands
        yield f"{name} with operands {number}", json.dumps(base)
