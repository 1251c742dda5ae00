"""Programs and lists that are very long or wide."""

from __future__ import annotations

import json

from tests.hostile.entries import (
    HEAD,
    MANY,
    MEGABYTE,
    SOME,
    Data,
    Entries,
    X,
    instruction_json,
    main,
    program_json,
)
from weft.ptir import Instruction, Program, Ref, dumps, tensor
from weft.ptir.ir import Function
from weft.ptir.ops.elementwise import ElementwiseUnary, UnaryFn

LONG = Entries()


def _chain(form: str) -> Data:
    kind, neg = tensor("f32", [2]), ElementwiseUnary(UnaryFn.NEG)
    body = tuple(Instruction(i + 1, neg, (Ref(i),), kind) for i in range(MANY))
    function = Function("main", (kind,), (0,), (kind,), body, (), (MANY,))
    return dumps(Program("main", (function,)), form)


LONG.in_all_forms("chain", "ok", _chain)


@LONG.entry("ok")
def a_chain_of_broadcasts_of_a_dynamic_dim() -> str:
    lines = (f"%{i + 1} = broadcast_to(%{i}) {{result_shape=[?B]}} : f32[?B]" for i in range(SOME))
    return main(lines, f"%{SOME}", "f32[?B]", "%0: f32[?B]")


@LONG.entry("ok")
def one_value_used_very_often() -> str:
    lines = (f"%{i + 1} = neg(%0) : {X}" for i in range(SOME))
    return main(lines, "%1")


@LONG.entry("ok")
def concat_of_one_value_many_times() -> str:
    operands = ", ".join(["%0"] * MANY)
    return main([f"%1 = concat({operands}) {{axis=0}} : f32[{2 * MANY}]"], "%1", f"f32[{2 * MANY}]")


@LONG.entry("ResourceExceeded")
def concat_of_one_large_value_many_times() -> str:
    operands = ", ".join(["%1"] * 10_000)
    lines = [
        "%1 = broadcast_to(%0) {result_shape=[1000000, 2]} : f32[1000000, 2]",
        f"%2 = concat({operands}) {{axis=0}} : f32[10000000000, 2]",
        "%3 = reduce_sum(%2) {axes=[0], keepdims=false} : f32[2]",
    ]
    return main(lines, "%3")


@LONG.entry("ShapeMismatch")
def concat_of_many_values_of_high_rank() -> str:
    ones = ", ".join(["1"] * 63)
    operands = ", ".join(["%0"] * SOME + ["%1"])
    parameters = f"%0: f32[{ones}], %1: f32[2, {ones[3:]}]"
    return main([f"%2 = concat({operands}) {{axis=-1}} : {X}"], "%2", X, parameters)


@LONG.entry("ok")
def very_many_parameters() -> str:
    parameters = ", ".join(f"%{i}: f32[]" for i in range(MANY // 4))
    return main([], "%0", "f32[]", parameters)


@LONG.entry("ok")
def very_many_results() -> str:
    count = MANY // 4
    return main([], ", ".join(["%0"] * count), ", ".join([X] * count))


@LONG.entry("ok")
def a_very_wide_tuple() -> str:
    wide = f"({', '.join([X] * (MANY // 4))})"
    return main([f"%1 = neg(%0[{MANY // 4 - 1}]) : {X}"], "%1", X, f"%0: {wide}")


@LONG.entry("TupleElementInvalid")
def elements_that_a_very_wide_tuple_does_not_have() -> str:
    wide = f"({', '.join([X] * MANY)})"
    lines = (f"%{i} = neg(%0[{MANY + i}]) : {X}" for i in range(1, 2_000))
    return main(lines, "%1", X, f"%0: {wide}")


@LONG.entry("ok")
def very_many_functions() -> str:
    other = "func @f{0}(%0: f32[2]) -> (f32[2]) {{\n%1 = neg(%0) : f32[2]\nreturn %1\n}}\n"
    return main([], "%0") + "".join(other.format(i) for i in range(SOME // 2))


@LONG.entry("DuplicateName")
def very_many_functions_of_one_name() -> str:
    other = "func @main(%0: f32[2]) -> (f32[2]) {\nreturn %0\n}\n"
    return main([], "%0") + other * (SOME // 2)


@LONG.entry("ok")
def very_many_regions_that_nobody_uses() -> str:
    other = "region ^{0}(f32[2]) -> (f32[2]) {{\n%1 = neg(%0) : f32[2]\nreturn %1\n}}\n"
    return main([], "%0") + "".join(other.format(i) for i in range(SOME // 2))


@LONG.entry("DuplicateRegion")
def very_many_regions_with_one_id() -> str:
    other = "region ^7(f32[2]) -> (f32[2]) {\n%1 = neg(%0) : f32[2]\nreturn %1\n}\n"
    return main([], "%0") + other * (SOME // 2)


@LONG.entry("DoubleDefinition")
def one_id_defined_very_often() -> str:
    return main((f"%1 = neg(%0) : {X}" for _ in range(SOME)), "%1")


@LONG.entry("ok")
def very_many_hints() -> str:
    hint = f"hint 0 elementwise_dag preferred inputs(%0) exports(%1) [ %1 = neg(%0) : {X} ]\n"
    body = "\n".join(f"%{i + 1} = neg(%{i}) : {X}" for i in range(3_000))
    return f"{HEAD}func @main(%0: {X}) -> ({X}) {{\n{body}\nreturn %1\n{hint * 3_000}}}\n"


@LONG.entry("ok")
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


@LONG.entry("MalformedJson")
def very_many_unknown_fields() -> str:
    fields = {f"unknown {i}": i for i in range(MANY)}
    return json.dumps({"spec_version": "ptir.v0.4", "entry": "main", **fields, "functions": 1})


@LONG.entry("Unimplemented")
def very_many_attributes_of_a_custom_call() -> str:
    attrs = {f"a{i}": {"kind": "I64", "value": i} for i in range(MANY)}
    op = {"CustomCall": {"target": "other.kernel.v1", "attrs": attrs}}
    return program_json([instruction_json(1, op, 0)])


@LONG.entry("InvalidAttributeValue")
def very_many_attributes_of_a_call_of_ours() -> str:
    attrs = {f"a{i}": {"kind": "I64", "value": i} for i in range(MANY)}
    op = {"CustomCall": {"target": "weft.sqrt.v1", "attrs": attrs}}
    return program_json([instruction_json(1, op, 0)])


@LONG.entry("Unimplemented")
def a_long_list_under_a_long_name() -> str:
    """The name is part of the path to every entry of the list."""
    attrs = {"n" * MEGABYTE: {"kind": "I64Array", "value": [0] * MANY}}
    op = {"CustomCall": {"target": "other.kernel.v1", "attrs": attrs}}
    return program_json([instruction_json(1, op, 0)])


@LONG.entry("ok")
def a_literal_of_many_bytes() -> str:
    count = 8 * MEGABYTE
    return main([f"%1 = constant() {{value=ui8[{count}]<0x{'07' * count}>}} : ui8[{count}]"], "%0")


@LONG.entry("LiteralInvalid")
def very_many_decimals() -> str:
    decimals = ", ".join(["1.5"] * MANY)
    return main([f"%1 = add(%0, f32[{MANY + 1}]<{decimals}>) : {X}"], "%1")
