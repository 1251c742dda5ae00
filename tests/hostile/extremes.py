"""Every attribute of every op set to extremes, and every op on strange operands, as JSON.

Many of these are rejected only because the declared type of the result does not follow. `fitted`
makes the same program with the type that the op's own rule gives, where it gives one: that
verifies, and runs with the extreme in it.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import weft
from tests.hostile.bases import Json, bases, instruction
from weft.foundation.dtypes import ALL
from weft.foundation.errors import WeftError
from weft.ptir import dumps, loads
from weft.ptir.ir import operand_type
from weft.ptir.verify import BodyScope

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
LONG: list[Any] = [[0] * 100_000]
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


SHAPES: list[list[int]] = [
    [], [0], [1], [0, 0], [1, 1], [0, 3], [2, 0], [2, 2], [1, 2**20], [2**20, 1], [2**31, 0],
    [0, 2**58], [2**58, 0], [2**59, 1], [2, 0, 2**57], [2**29, 0, 2**29], [0, 2**29, 2**29],
    [2] * 8, [1] * 32, [1] * 33, [1] * 62 + [2, 2], [1] * 64, [0] + [1] * 63, [1] * 65, [0] * 64,
]  # fmt: skip


def shape_cases(name: str) -> Iterator[Case]:
    """An op on operands that all have one strange shape, and with one operand of it."""
    base = bases()[name]
    function = base["functions"][0]
    kinds = [json.dumps(kind) for kind in function["parameters"]]
    for shape in SHAPES:
        dims = {"dims": [{"Static": dim} for dim in shape]}
        for chosen in [*range(len(kinds)), None]:
            for index, kind in enumerate(kinds):
                function["parameters"][index] = json.loads(kind)
                if chosen in (index, None):
                    function["parameters"][index]["Tensor"]["shape"] = dims
            where = "all" if chosen is None else chosen
            yield f"{name} with {str(shape)[:60]} for {where}", json.dumps(base)


def dtype_cases(name: str) -> Iterator[Case]:
    """An op on operands of each dtype."""
    base = bases()[name]
    for dtype in ALL:
        for kind in base["functions"][0]["parameters"]:
            kind["Tensor"]["dtype"] = dtype.wire
        yield f"{name} of {dtype}", json.dumps(base)


def fitted(text: str | bytes) -> str | None:
    """The program with the type that its first instruction has by the rule of its op."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", weft.WeftWarning)
            program = loads(text)
        main = program.main
        types = dict(zip(main.parameter_ids, main.parameters, strict=True))
        first = main.body[0]
        operands = [operand_type(operand, types) for operand in first.operands]
        output = first.op.result_type(operands, BodyScope(program.regions_by_id))
        first = replace(first, output=output)
        main = replace(main, body=(first,), results=(output,), result_ids=(first.id,))
        return str(dumps(program.with_main(main), "json"))
    except WeftError:
        return None
