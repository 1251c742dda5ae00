"""The JSON reader: every complaint names its path, and nothing but a violation comes out."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import one_in
from weft.foundation.errors import SpecViolation, WeftWarning
from weft.ptir import Program, dumps, loads, verify

GOLDEN = Path(__file__).parents[3] / "compat" / "2026-11-ptir-golden"


def golden(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def changed(root: Any, path: tuple[str | int, ...], value: Any) -> str:
    """The JSON text with one node replaced."""
    root = copy.deepcopy(root)
    node = root
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return json.dumps(root)


BODY = ("functions", 0, "body", 0)
PAD = (*BODY, "op", "Pad")

REJECTED: list[tuple[str, tuple[str | int, ...], Any, str]] = [
    (
        "pad_float",
        ("spec_version",),
        "ptir.v0.3",
        "SpecVersionMismatch: the file is of version 'ptir.v0.3', expected 'ptir.v0.4'",
    ),
    (
        "pad_float",
        ("functions",),
        {},
        "MalformedJson at functions: expected a list but found an object",
    ),
    (
        "pad_float",
        ("functions", 0, "parameter_ids", 0),
        -1,
        "MalformedJson at functions[0].parameter_ids[0]: -1 is not between 0 and 4294967295",
    ),
    (
        "pad_float",
        (*BODY, "id"),
        1.5,
        "MalformedJson at functions[0].body[0].id: expected a whole number but found 1.5",
    ),
    (
        "pad_float",
        (*BODY, "id"),
        True,
        "MalformedJson at functions[0].body[0].id: expected a whole number but found a boolean",
    ),
    (
        "pad_float",
        (*BODY, "op"),
        {"Frob": {}},
        "UnknownOp at functions[0].body[0].op: there is no op 'Frob'",
    ),
    (
        "pad_float",
        (*BODY, "op"),
        {"Pad": {}, "Tile": {}},
        "MalformedJson at functions[0].body[0].op: expected one tagged variant but found an object",
    ),
    (
        "pad_float",
        (*PAD, "low"),
        None,
        "MalformedJson at functions[0].body[0].op.Pad.low: expected a list but found null",
    ),
    (
        "pad_float",
        (*PAD, "pad_value"),
        {"Float": 10**400},
        "MalformedJson at functions[0].body[0].op.Pad.pad_value.Float: the number is too large for "
        "64-bit floats",
    ),
    (
        "pad_float",
        (*PAD, "pad_value"),
        {"Signed": 2**63},
        "MalformedJson at functions[0].body[0].op.Pad.pad_value.Signed: 9223372036854775808 is not "
        "between -9223372036854775808 and 9223372036854775807",
    ),
    (
        "pad_float",
        (*BODY, "output"),
        {"Tensor": {"dtype": "F99", "shape": {"dims": []}}},
        "MalformedJson at functions[0].body[0].output.dtype: 'F99' is not a dtype",
    ),
    (
        "pad_float",
        (*BODY, "output", "Tensor", "shape", "dims", 0),
        {"Static": -1},
        "NegativeDimension at functions[0].body[0].output.shape.dims[0]: dimension -1 is negative",
    ),
    (
        "pad_float",
        (*BODY, "operands", 0),
        {"Constant": 1},
        "MalformedJson at functions[0].body[0].operands[0]: 'Constant' is not a kind of operand",
    ),
    (
        "constant",
        (*BODY, "op", "Constant", "bytes", 0),
        256,
        "MalformedJson at functions[0].body[0].op.Constant.bytes: expected numbers from 0 to 255",
    ),
    (
        "stop_gradient",
        (*BODY, "op"),
        {"StopGradient": 3},
        "MalformedJson at functions[0].body[0].op.StopGradient: StopGradient takes no attributes",
    ),
    (
        "compare_less",
        (*BODY, "op", "Compare", "op"),
        "Smaller",
        "MalformedJson at functions[0].body[0].op.Compare.op: 'Smaller' is not one of Less, "
        "LessEqual, Equal, GreaterEqual, Greater, NotEqual",
    ),
    (
        "reduce_window",
        (*BODY, "op", "ReduceWindow", "padding", 0),
        [1, 2, 3],
        "MalformedJson at functions[0].body[0].op.ReduceWindow.padding[0]: expected a pair but "
        "found 3 values",
    ),
    (
        "binary_add",
        ("entry",),
        "\ud800",
        "MalformedJson at entry: the string has a lone surrogate and is not text",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "path", "value", "sentence"), REJECTED)
def test_a_wrong_node_is_rejected_with_its_path(
    name: str, path: tuple[str | int, ...], value: Any, sentence: str
) -> None:
    with pytest.raises(SpecViolation) as caught:
        loads(changed(golden(name), path, value))
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "MalformedJson: this is not JSON: Expecting property name enclosed in double quotes: "
         "line 1 column 2 (char 1)"),
        ("{}", "MalformedJson at the top level: the field 'entry' is missing"),
        ('{"entry": 1, "entry": 2}', "MalformedJson: this JSON repeats the key 'entry'"),
        ('{"entry": NaN}', "MalformedJson: this is not JSON: the bare number NaN is not JSON; "
         'write the string "NaN"'),
        ('{"entry":' + "[" * 100_000, "MalformedJson: the JSON nests too deep"),
        ('{"entry": ' + "7" * 5_000 + "}", "MalformedJson at character 10: a number has 5,000 "
         "digits"),
    ],
)  # fmt: skip
def test_what_is_no_program_is_rejected(text: str, sentence: str) -> None:
    with pytest.raises(SpecViolation) as caught:
        loads(text)
    assert str(caught.value) == sentence


def test_a_type_that_nests_without_end_is_rejected() -> None:
    kind: Any = {"Tuple": []}
    for _ in range(100):
        kind = {"Tuple": [kind]}
    with pytest.raises(SpecViolation, match="a tuple type nests too deep"):
        loads(changed(golden("binary_add"), ("functions", 0, "parameters", 0), kind))


def test_an_unknown_field_is_ignored_with_a_warning() -> None:
    text = changed(golden("binary_add"), (*BODY, "comment"), "hello")
    with pytest.warns(WeftWarning) as caught:
        program = loads(text)
    assert [str(w.message) for w in caught] == [
        "functions[0].body[0]: unknown field 'comment' is ignored"
    ]
    assert program == loads(json.dumps(golden("binary_add")))


@pytest.mark.parametrize("version", ["", None])
def test_a_missing_version_is_the_current_one(version: str | None) -> None:
    root = golden("binary_add")
    expected = loads(json.dumps(root))
    if version is None:
        del root["spec_version"]
    else:
        root["spec_version"] = version
    assert loads(json.dumps(root)) == expected


@pytest.mark.parametrize("field", ["hints", "attrs", "regions"])
def test_fields_that_other_writers_leave_out_may_be_absent(field: str) -> None:
    root = golden("custom_call_noattrs")
    places = {"hints": root["functions"][0], "regions": root}
    place = places.get(field) or root["functions"][0]["body"][0]["op"]["CustomCall"]
    expected = loads(json.dumps(root))
    place.pop(field, None)
    assert loads(json.dumps(root)) == expected


@pytest.mark.parametrize("text", ['"NaN"', '"Infinity"', '"-Infinity"', "-0.0", "1e-320", "3"])
def test_numbers_survive_a_round_trip(text: str) -> None:
    program = loads(changed(golden("pad_float"), (*PAD, "pad_value"), {"Float": json.loads(text)}))
    written = json.loads(dumps(program, "json"))
    value = written["functions"][0]["body"][0]["op"]["Pad"]["pad_value"]["Float"]
    assert repr(value) == repr(json.loads(text) if text != "3" else 3.0)
    assert loads(dumps(program, "json")) == program


WRONG: list[Any] = [
    None,
    True,
    -1,
    2**64,
    1.5,
    "x",
    "NaN",
    [],
    {},
    [[]],
    {"x": 1},
    {"Dynamic": ""},
    "\ud800",
]


def paths(node: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if at:
        yield at
    items = (
        node.items()
        if isinstance(node, dict)
        else enumerate(node[:3])
        if isinstance(node, list)
        else ()
    )
    for key, child in items:
        yield from paths(child, (*at, key))


def survives(data: str | bytes) -> None:
    """Whatever it holds: a violation, or a program that can be verified and written again."""
    try:
        program: Program = loads(data)
    except SpecViolation:
        return
    verify(program, collect=True)
    for form in ("json", "bincode", "text"):
        try:
            written = dumps(program, form)
        except SpecViolation:
            continue
        assert loads(written) == program


@pytest.mark.filterwarnings("ignore::weft.foundation.errors.WeftWarning")
@pytest.mark.parametrize(
    "name", one_in(2, ["scan", "tuple_and_hints", "pad_complex", "reshape_infer"])
)
def test_any_wrong_value_anywhere_is_a_violation_or_a_program(name: str) -> None:
    root = golden(name)
    for path in paths(root):
        for value in WRONG:
            survives(changed(root, path, value))


@pytest.mark.parametrize(
    "name", one_in(4, ["scan", "tuple_and_hints", "pad_complex", "reshape_infer"])
)
def test_any_wrong_byte_anywhere_is_a_violation_or_a_program(name: str) -> None:
    data = (GOLDEN / f"{name}.bin").read_bytes()
    for at in range(len(data)):
        for byte in {0, 1, 255, data[at] ^ 2} - {data[at]}:
            survives(data[:at] + bytes([byte]) + data[at + 1 :])
