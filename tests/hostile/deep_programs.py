"""Programs, types and documents that nest very deep."""

from __future__ import annotations

from tests.hostile.entries import (
    HEAD,
    MANY,
    Data,
    Entries,
    X,
    instruction_json,
    main,
    program_json,
    string,
    u32,
    u64,
)
from weft.ptir import dumps, loads

DEEP = Entries()


@DEEP.entry("MalformedJson")
def nested_json_arrays() -> str:
    return '{"entry": ' + "[" * MANY + "]" * MANY + "}"


@DEEP.entry("MalformedJson")
def nested_json_arrays_that_never_end() -> str:
    return "[" * (10 * MANY)


@DEEP.entry("MalformedJson")
def nested_json_objects() -> str:
    return '{"a":' * MANY + "1" + "}" * MANY


@DEEP.entry("MalformedJson")
def nested_json_in_the_attributes_of_a_call() -> str:
    deep = "[" * MANY + "]" * MANY
    op = {"CustomCall": {"target": "t", "attrs": {"a": {"kind": "I64Array", "value": "DEEP"}}}}
    return program_json([instruction_json(1, op, 0)]).replace('"DEEP"', deep)


@DEEP.entry("MalformedJson")
def nested_json_in_a_field_that_is_ignored() -> str:
    return '{"comment": ' + "[" * MANY + "]" * MANY + ', "entry": "main", "functions": []}'


@DEEP.entry("NestingTooDeep")
def a_nested_tuple_type_as_text() -> str:
    return f"{HEAD}func @main(%0: {'(' * MANY}{')' * MANY}) -> ({X}) {{\nreturn %0\n}}\n"


@DEEP.entry("MalformedJson")
def a_nested_tuple_type_as_json() -> str:
    deep = '{"Tuple":[' * MANY + "]}" * MANY
    return program_json([], parameters=["DEEP"]).replace('"DEEP"', deep)


@DEEP.entry("NestingTooDeep")
def a_tuple_type_as_json_that_nests_a_little_too_deep() -> str:
    deep = '{"Tuple":[' * 100 + "]}" * 100
    return program_json([], parameters=["DEEP"]).replace('"DEEP"', deep)


@DEEP.entry("NestingTooDeep")
def a_nested_tuple_type_as_bincode() -> bytes:
    deep = (u32(1) + u64(1)) * MANY
    return string("ptir.v0.4") + string("main") + u64(1) + string("main") + u64(1) + deep


def _nested_regions(form: str, last: str = "%1 = neg(%0) : f32[2]") -> Data:
    count = MANY if form == "bincode" else MANY // 4
    call = "%1 = cond(i1[]<true>, %0) {{true_region={0}, false_region={0}}} : f32[2]"
    bodies = [call.format(i + 1) for i in range(count - 1)] + [last]
    regions = (
        f"region ^{i}({X}) -> ({X}) {{\n{body}\nreturn %1\n}}\n" for i, body in enumerate(bodies)
    )
    text = main([call.format(0)], "%1") + "".join(regions)
    return text if form == "text" else _converted(text, form)


def _converted(text: str, form: str) -> Data:
    return dumps(loads(text), form)


DEEP.in_all_forms("nested-regions", "NestingTooDeep", _nested_regions)


@DEEP.entry("RegionCycle")
def a_ring_of_very_many_regions() -> str:
    call = "%1 = cond(i1[]<true>, %0) {true_region=0, false_region=0} : f32[2]"
    text = _nested_regions("text", call)
    assert isinstance(text, str)
    return text


@DEEP.entry("ExecutionError")
def regions_that_double_the_work_at_every_level() -> str:
    """A hundred levels, each of which runs the next one twice."""
    lines = main(["%1 = cond(i1[]<true>, %0) {true_region=0, false_region=0} : f32[2]"], "%1")
    for level in range(98):
        call = f"cond(i1[]<true>, %0) {{true_region={level + 1}, false_region={level + 1}}}"
        body = f"%1 = {call} : {X}\n%2 = {call} : {X}\nreturn %2\n"
        lines += f"region ^{level}({X}) -> ({X}) {{\n{body}}}\n"
    return lines + f"region ^98({X}) -> ({X}) {{\n%1 = neg(%0) : {X}\nreturn %1\n}}\n"


@DEEP.entry("ResourceExceeded")
def regions_whose_copies_double_at_every_level() -> str:
    """A dim is bound between the two calls on every level, and the innermost region uses them."""
    kind, levels = "f32[?n]", 90
    call = "cond(%0, %0, %1) {{true_region={0}, false_region={0}}} : f32[?n]"
    main_body = f"%2 = {call.format(0).replace('(%0, %0, %1)', '(%1, %1, %0)')}"
    text = main([main_body], "%2", kind, f"%0: {kind}, %1: i1[]")
    for level in range(levels):
        inner = call.format(level + 1)
        bind = f"%3 = concat(%1, %1) {{axis=0}} : f32[?s{level}]"
        body = f"%2 = {inner}\n{bind}\n%4 = {inner}\nreturn %4\n"
        text += f"region ^{level}(i1[], {kind}) -> ({kind}) {{\n{body}}}\n"
    last = "\n".join(f"%{i + 2} = concat(%1, %1) {{axis=0}} : f32[?s{i}]" for i in range(levels))
    end = f"%{levels + 2} = neg(%1) : {kind}\nreturn %{levels + 2}\n"
    return text + f"region ^{levels}(i1[], {kind}) -> ({kind}) {{\n{last}\n{end}}}\n"
