"""Hostile files too large to keep: each entry makes one and says what must become of it.

The verdicts are those of `judge`. Long chains, odd names and wide programs are valid and must work.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from weft.ptir import Instruction, Program, Ref, dumps, loads, tensor
from weft.ptir.ir import Function
from weft.ptir.ops.elementwise import ElementwiseUnary, UnaryFn

Data = str | bytes
Make = Callable[[], Data]

MANY = 100_000
SOME = 10_000
"""Enough that anything that grows with the square takes longer than it may."""
MEGABYTE = 1_000_000
HEAD = "ptir.v0.4\nentry @main\n"
X = "f32[2]"
RTL = "\u202e\u05d0\u0627 \U0001f9f6"

GENERATED: dict[str, tuple[str, Make]] = {}
"""By name: the expected verdict, and what makes the file."""


def entry(expected: str) -> Callable[[Make], Make]:
    """Put a maker into the table, under its name."""

    def add(make: Make) -> Make:
        GENERATED[make.__name__.replace("_", "-")] = (expected, make)
        return make

    return add


def in_all_forms(name: str, expected: str, make: Callable[[str], Data]) -> None:
    """Three entries that differ in the form of the file."""
    for form in ("text", "json", "bincode"):
        GENERATED[f"{name}-{form}"] = (expected, partial(make, form))


def main(lines: Iterable[str], result: str, kind: str = X, parameters: str = f"%0: {X}") -> str:
    """A text program with one function."""
    body = "\n".join(lines)
    return f"{HEAD}func @main({parameters}) -> ({kind}) {{\n{body}\nreturn {result}\n}}\n"


def static(*dims: int) -> dict[str, Any]:
    return {"dims": [{"Static": dim} for dim in dims]}


def tensor_json(*dims: int) -> dict[str, Any]:
    return {"Tensor": {"dtype": "F32", "shape": static(*dims)}}


def program_json(body: list[Any], **changed: Any) -> str:
    """A JSON program with one function, some of whose fields are changed."""
    function = {
        "name": "main",
        "parameters": [tensor_json(2)],
        "parameter_ids": [0],
        "results": [tensor_json(2)],
        "body": body,
        "hints": [],
        "result_ids": [0],
    }
    root = {"spec_version": "ptir.v0.4", "entry": "main", "functions": [{**function, **changed}]}
    return json.dumps({**root, "regions": []})


def instruction_json(value_id: int, op: Any, *operands: int, output: Any = None) -> dict[str, Any]:
    refs = [{"Value": operand} for operand in operands]
    return {
        "id": value_id,
        "op": op,
        "operands": refs,
        "output": tensor_json(2) if output is None else output,
    }


def u64(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def u32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def string(text: str) -> bytes:
    raw = text.encode()
    return u64(len(raw)) + raw


# -- long and wide ---------------------------------------------------------------------------------


def _chain(form: str) -> Data:
    kind, neg = tensor("f32", [2]), ElementwiseUnary(UnaryFn.NEG)
    body = tuple(Instruction(i + 1, neg, (Ref(i),), kind) for i in range(MANY))
    function = Function("main", (kind,), (0,), (kind,), body, (), (MANY,))
    return dumps(Program("main", (function,)), form)


in_all_forms("chain", "ok", _chain)


@entry("ok")
def a_chain_of_broadcasts_of_a_dynamic_dim() -> str:
    lines = (f"%{i + 1} = broadcast_to(%{i}) {{result_shape=[?B]}} : f32[?B]" for i in range(SOME))
    return main(lines, f"%{SOME}", "f32[?B]", "%0: f32[?B]")


@entry("ok")
def one_value_used_very_often() -> str:
    lines = (f"%{i + 1} = neg(%0) : {X}" for i in range(SOME))
    return main(lines, "%1")


@entry("ok")
def concat_of_one_value_many_times() -> str:
    operands = ", ".join(["%0"] * MANY)
    return main([f"%1 = concat({operands}) {{axis=0}} : f32[{2 * MANY}]"], "%1", f"f32[{2 * MANY}]")


@entry("ResourceExceeded")
def concat_of_one_large_value_many_times() -> str:
    operands = ", ".join(["%1"] * 10_000)
    lines = [
        "%1 = broadcast_to(%0) {result_shape=[1000000, 2]} : f32[1000000, 2]",
        f"%2 = concat({operands}) {{axis=0}} : f32[10000000000, 2]",
        "%3 = reduce_sum(%2) {axes=[0], keepdims=false} : f32[2]",
    ]
    return main(lines, "%3")


@entry("ShapeMismatch")
def concat_of_many_values_of_high_rank() -> str:
    ones = ", ".join(["1"] * 63)
    operands = ", ".join(["%0"] * SOME + ["%1"])
    parameters = f"%0: f32[{ones}], %1: f32[2, {ones[3:]}]"
    return main([f"%2 = concat({operands}) {{axis=-1}} : {X}"], "%2", X, parameters)


@entry("ok")
def very_many_parameters() -> str:
    parameters = ", ".join(f"%{i}: f32[]" for i in range(MANY // 4))
    return main([], "%0", "f32[]", parameters)


@entry("ok")
def very_many_results() -> str:
    count = MANY // 4
    return main([], ", ".join(["%0"] * count), ", ".join([X] * count))


@entry("ok")
def a_very_wide_tuple() -> str:
    wide = f"({', '.join([X] * (MANY // 4))})"
    return main([f"%1 = neg(%0[{MANY // 4 - 1}]) : {X}"], "%1", X, f"%0: {wide}")


@entry("TupleElementInvalid")
def elements_that_a_very_wide_tuple_does_not_have() -> str:
    wide = f"({', '.join([X] * MANY)})"
    lines = (f"%{i} = neg(%0[{MANY + i}]) : {X}" for i in range(1, 2_000))
    return main(lines, "%1", X, f"%0: {wide}")


@entry("ok")
def very_many_functions() -> str:
    other = "func @f{0}(%0: f32[2]) -> (f32[2]) {{\n%1 = neg(%0) : f32[2]\nreturn %1\n}}\n"
    return main([], "%0") + "".join(other.format(i) for i in range(SOME // 2))


@entry("DuplicateName")
def very_many_functions_of_one_name() -> str:
    other = "func @main(%0: f32[2]) -> (f32[2]) {\nreturn %0\n}\n"
    return main([], "%0") + other * (SOME // 2)


@entry("ok")
def very_many_regions_that_nobody_uses() -> str:
    other = "region ^{0}(f32[2]) -> (f32[2]) {{\n%1 = neg(%0) : f32[2]\nreturn %1\n}}\n"
    return main([], "%0") + "".join(other.format(i) for i in range(SOME // 2))


@entry("DuplicateRegion")
def very_many_regions_with_one_id() -> str:
    other = "region ^7(f32[2]) -> (f32[2]) {\n%1 = neg(%0) : f32[2]\nreturn %1\n}\n"
    return main([], "%0") + other * (SOME // 2)


@entry("DoubleDefinition")
def one_id_defined_very_often() -> str:
    return main((f"%1 = neg(%0) : {X}" for _ in range(SOME)), "%1")


@entry("ok")
def very_many_hints() -> str:
    hint = f"hint 0 elementwise_dag preferred inputs(%0) exports(%1) [ %1 = neg(%0) : {X} ]\n"
    body = "\n".join(f"%{i + 1} = neg(%{i}) : {X}" for i in range(3_000))
    return f"{HEAD}func @main(%0: {X}) -> ({X}) {{\n{body}\nreturn %1\n{hint * 3_000}}}\n"


@entry("ok")
def a_region_run_very_often_by_another_large_one() -> str:
    """Both are large, and every instruction of the first runs the second."""
    count = 3_000
    inner = "\n".join(f"%{i + 1} = neg(%{i}) : {X}" for i in range(count))
    outer = "\n".join(
        f"%{i + 1} = cond(i1[]<true>, %0) {{true_region=0, false_region=0}} : {X}"
        for i in range(count)
    )
    regions = (
        f"region ^0({X}) -> ({X}) {{\n{inner}\nreturn %1\n}}\n"
        f"region ^1({X}) -> ({X}) {{\n{outer}\nreturn %{count}\n}}\n"
    )
    return main([], "%0") + regions


@entry("MalformedJson")
def very_many_unknown_fields() -> str:
    fields = {f"unknown {i}": i for i in range(MANY)}
    return json.dumps({"spec_version": "ptir.v0.4", "entry": "main", **fields, "functions": 1})


@entry("Unimplemented")
def very_many_attributes_of_a_custom_call() -> str:
    attrs = {f"a{i}": {"kind": "I64", "value": i} for i in range(MANY)}
    op = {"CustomCall": {"target": "other.kernel.v1", "attrs": attrs}}
    return program_json([instruction_json(1, op, 0)])


@entry("InvalidAttributeValue")
def very_many_attributes_of_a_call_of_ours() -> str:
    attrs = {f"a{i}": {"kind": "I64", "value": i} for i in range(MANY)}
    op = {"CustomCall": {"target": "weft.sqrt.v1", "attrs": attrs}}
    return program_json([instruction_json(1, op, 0)])


@entry("Unimplemented")
def a_long_list_under_a_long_name() -> str:
    """The name is part of the path to every entry of the list."""
    attrs = {"n" * MEGABYTE: {"kind": "I64Array", "value": [0] * MANY}}
    op = {"CustomCall": {"target": "other.kernel.v1", "attrs": attrs}}
    return program_json([instruction_json(1, op, 0)])


@entry("ok")
def a_literal_of_many_bytes() -> str:
    count = 8 * MEGABYTE
    return main([f"%1 = constant() {{value=ui8[{count}]<0x{'07' * count}>}} : ui8[{count}]"], "%0")


@entry("LiteralInvalid")
def very_many_decimals() -> str:
    decimals = ", ".join(["1.5"] * MANY)
    return main([f"%1 = add(%0, f32[{MANY + 1}]<{decimals}>) : {X}"], "%1")


# -- nesting ---------------------------------------------------------------------------------------


@entry("MalformedJson")
def nested_json_arrays() -> str:
    return '{"entry": ' + "[" * MANY + "]" * MANY + "}"


@entry("MalformedJson")
def nested_json_arrays_that_never_end() -> str:
    return "[" * (10 * MANY)


@entry("MalformedJson")
def nested_json_objects() -> str:
    return '{"a":' * MANY + "1" + "}" * MANY


@entry("MalformedJson")
def nested_json_in_the_attributes_of_a_call() -> str:
    deep = "[" * MANY + "]" * MANY
    op = {"CustomCall": {"target": "t", "attrs": {"a": {"kind": "I64Array", "value": "DEEP"}}}}
    return program_json([instruction_json(1, op, 0)]).replace('"DEEP"', deep)


@entry("MalformedJson")
def nested_json_in_a_field_that_is_ignored() -> str:
    return '{"comment": ' + "[" * MANY + "]" * MANY + ', "entry": "main", "functions": []}'


@entry("NestingTooDeep")
def a_nested_tuple_type_as_text() -> str:
    return f"{HEAD}func @main(%0: {'(' * MANY}{')' * MANY}) -> ({X}) {{\nreturn %0\n}}\n"


@entry("MalformedJson")
def a_nested_tuple_type_as_json() -> str:
    deep = '{"Tuple":[' * MANY + "]}" * MANY
    return program_json([], parameters=["DEEP"]).replace('"DEEP"', deep)


@entry("NestingTooDeep")
def a_tuple_type_as_json_that_nests_a_little_too_deep() -> str:
    deep = '{"Tuple":[' * 100 + "]}" * 100
    return program_json([], parameters=["DEEP"]).replace('"DEEP"', deep)


@entry("NestingTooDeep")
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


in_all_forms("nested-regions", "NestingTooDeep", _nested_regions)


@entry("RegionCycle")
def a_ring_of_very_many_regions() -> str:
    call = "%1 = cond(i1[]<true>, %0) {true_region=0, false_region=0} : f32[2]"
    text = _nested_regions("text", call)
    assert isinstance(text, str)
    return text


@entry("ExecutionError")
def regions_that_double_the_work_at_every_level() -> str:
    """A hundred levels, each of which runs the next one twice."""
    lines = main(["%1 = cond(i1[]<true>, %0) {true_region=0, false_region=0} : f32[2]"], "%1")
    for level in range(98):
        call = f"cond(i1[]<true>, %0) {{true_region={level + 1}, false_region={level + 1}}}"
        body = f"%1 = {call} : {X}\n%2 = {call} : {X}\nreturn %2\n"
        lines += f"region ^{level}({X}) -> ({X}) {{\n{body}}}\n"
    return lines + f"region ^98({X}) -> ({X}) {{\n%1 = neg(%0) : {X}\nreturn %1\n}}\n"


@entry("ResourceExceeded")
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


# -- names -----------------------------------------------------------------------------------------


def _long_name(form: str) -> Data:
    kind = tensor("f32", ["d" * MEGABYTE])
    name = "n" * MEGABYTE
    neg = ElementwiseUnary(UnaryFn.NEG)
    body = (Instruction(1, neg, (Ref(0),), kind),)
    return dumps(Program(name, (Function(name, (kind,), (0,), (kind,), body, (), (1,)),)), form)


in_all_forms("a-name-of-a-megabyte", "ok", _long_name)


def _odd_name(form: str) -> Data:
    odd = "\"; return %0 } # \\ ' \0\x1b[31m\r\n\t{}/*" + RTL
    kind = tensor("f32", [odd])
    neg = ElementwiseUnary(UnaryFn.NEG)
    body = (Instruction(1, neg, (Ref(0),), kind),)
    return dumps(Program(odd, (Function(odd, (kind,), (0,), (kind,), body, (), (1,)),)), form)


in_all_forms("a-name-of-odd-characters", "ok", _odd_name)


@entry("UseBeforeDefinition")
def a_long_name_in_very_many_complaints() -> str:
    text = main((f"%{i} = neg(%{MANY * 10}) : {X}" for i in range(1, 2 * SOME)), "%1")
    return text.replace("@main", "@" + "n" * MEGABYTE)


@entry("ok")
def a_long_name_and_very_many_random_ops() -> str:
    lines = (f"%{i} = rng_uniform() {{shape=[], dtype=f32}} : f32[]" for i in range(1, SOME // 2))
    return main(lines, "%1", "f32[]").replace("@main", "@" + "n" * MEGABYTE)


@entry("OutputTypeMismatch")
def a_long_dim_in_very_many_complaints() -> str:
    long = "?" + "d" * MEGABYTE
    lines = (f"%{i} = neg(%0) : {X}" for i in range(1, MANY // 10))
    return main(lines, "%1", X, f"%0: f32[{long}]")


@entry("MalformedText")
def an_op_of_a_megabyte() -> str:
    return main([f'%1 = "{"o" * MEGABYTE}"(%0) : {X}'], "%1")


@entry("UnknownOp")
def an_op_of_a_megabyte_as_json() -> str:
    return program_json([instruction_json(1, {"O" * MEGABYTE: {}}, 0)])


@entry("MalformedJson")
def a_dtype_of_a_megabyte() -> str:
    kind = {"Tensor": {"dtype": "D" * MEGABYTE, "shape": {"dims": []}}}
    return program_json([], parameters=[kind])


@entry("SpecVersionMismatch")
def a_version_of_a_megabyte_as_json() -> str:
    return json.dumps({"spec_version": "v" * MEGABYTE, "entry": "main", "functions": []})


@entry("SpecVersionMismatch")
def a_version_of_a_megabyte_as_bincode() -> bytes:
    return string("v" * MEGABYTE) + string("main") + u64(0, 0)


@entry("SpecVersionMismatch")
def a_version_of_a_megabyte_as_text() -> str:
    return "v" * MEGABYTE + " entry @main"


@entry("Unimplemented")
def a_target_of_a_megabyte() -> str:
    return main([f'%1 = custom_call(%0) {{target="{"t" * MEGABYTE}", attrs={{}}}} : {X}'], "%1")


@entry("EntryUndefined")
def an_entry_of_a_megabyte() -> str:
    return main([], "%0").replace("entry @main", "entry @" + "n" * MEGABYTE)


# -- characters ------------------------------------------------------------------------------------


@entry("ok")
def very_many_comments() -> str:
    return HEAD + "# nothing here\n" * (5 * MANY) + main([], "%0").removeprefix(HEAD)


@entry("ok")
def very_many_spaces() -> str:
    return " \t\r\n" * MEGABYTE + main([], "%0")


@entry("ok")
def very_many_spaces_before_json() -> str:
    return " \n" * MEGABYTE + program_json([])


@entry("MalformedText")
def very_many_spaces_before_a_wrong_character() -> str:
    return HEAD + " " * MEGABYTE + "$"


@entry("MalformedText")
def a_string_that_never_ends() -> str:
    return f'{HEAD}func @"{"s" * MEGABYTE}'


@entry("MalformedText")
def a_string_of_escapes_that_never_ends() -> str:
    return HEAD + 'func @"' + '\\"' * MEGABYTE


@entry("MalformedText")
def a_number_of_a_million_digits() -> str:
    return main([], "%" + "9" * MEGABYTE)


@entry("MalformedText")
def a_number_of_a_million_digits_and_a_letter() -> str:
    return main([], "%" + "9" * MEGABYTE + "x")


@entry("MalformedText")
def a_dim_of_a_million_digits() -> str:
    return main([], "%0", X, f"%0: f32[{'9' * MEGABYTE}]")


@entry("LiteralInvalid")
def a_literal_of_a_million_digits() -> str:
    return main([f"%1 = add(%0, si32[1]<{'9' * MEGABYTE}>) : {X}"], "%1")


@entry("MalformedJson")
def a_json_number_of_a_million_digits() -> str:
    return program_json([], result_ids=["N"]).replace('"N"', "9" * MEGABYTE)


@entry("MalformedJson")
def a_json_fraction_of_a_million_digits() -> str:
    return program_json([], result_ids=["N"]).replace('"N"', "0." + "9" * MEGABYTE)


@entry("MalformedText")
def very_many_dots_in_a_name() -> str:
    return HEAD + "func @a" + "." * MEGABYTE


@entry("MalformedText")
def very_many_signs() -> str:
    return HEAD + "-" * MEGABYTE


@entry("MalformedText")
def very_many_opening_brackets() -> str:
    return HEAD + "func @main" + "(" * MEGABYTE


@entry("MalformedText")
def a_megabyte_of_nul() -> bytes:
    return HEAD.encode() + b"\0" * MEGABYTE


@entry("MalformedBincode")
def nothing_but_nul() -> bytes:
    return b"\0" * MEGABYTE


@entry("MalformedText")
def nothing_but_ff() -> bytes:
    return b"\xff" * MEGABYTE


# -- claims ----------------------------------------------------------------------------------------


@entry("RankTooLarge")
def a_type_of_very_high_rank() -> str:
    return main([], "%0", X, f"%0: f32[{', '.join(['1'] * MANY)}]")


@entry("RankTooLarge")
def very_many_uses_of_a_type_of_very_high_rank() -> str:
    dims = ", ".join(["18446744073709551615"] * 20_000)
    lines = (f"%{i} = reshape(%0) {{new_shape=[infer]}} : {X}" for i in range(1, 5_000))
    return main(lines, "%1", X, f"%0: f32[{dims}]")


@entry("RankTooLarge")
def a_constant_of_very_high_rank() -> str:
    dims = [2**64 - 1] * 20_000
    value = {"spec": {"dtype": "F32", "shape": static(*dims)}, "bytes": []}
    return program_json([instruction_json(1, {"Constant": value}, output=tensor_json(2))])


@entry("RankTooLarge")
def a_literal_of_very_high_rank() -> str:
    dims = [2**64 - 1] * 20_000
    value = {"spec": {"dtype": "F32", "shape": static(*dims)}, "bytes": []}
    inst = instruction_json(1, {"ElementwiseUnary": "Neg"})
    inst["operands"] = [{"Literal": value}]
    return program_json([inst])


@entry("MalformedBincode")
def a_list_that_claims_all_the_bytes_after_it() -> bytes:
    tail = b"\0" * (2 * MEGABYTE)
    return string("ptir.v0.4") + string("main") + u64(len(tail)) + tail


@entry("MalformedBincode")
def lists_of_empty_tuples() -> bytes:
    """Every item is twelve bytes in the file and an object in memory."""
    kinds = (u32(1) + u64(0)) * MANY
    return string("ptir.v0.4") + string("main") + u64(1) + string("main") + u64(MANY) + kinds


@entry("ok")
def dead_values_that_take_memory() -> str:
    """Each is dropped after its last use: together they would need 2 GB."""
    size = "[1500000]"
    lines = []
    for i in range(1, 400):
        lines.append(f"%{i} = broadcast_to(%0) {{result_shape={size}}} : f32{size}")
        lines.append(f"%{MANY + i} = neg(%{i}) : f32{size}")
    return main(lines, "%0", "f32[1]", "%0: f32[1]")


SLOW = {
    "a-ring-of-very-many-regions",
    "chain-bincode",
    "chain-json",
    "nested-regions-bincode",
    "nested-regions-json",
    "nested-regions-text",
}
"""Those that take many seconds; what they show is shown by a smaller or another one as well."""
