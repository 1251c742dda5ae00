"""Names that are very long, or of odd characters."""

from __future__ import annotations

import json

from tests.hostile.entries import (
    MANY,
    MEGABYTE,
    SOME,
    Data,
    Entries,
    X,
    instruction_json,
    main,
    program_json,
    string,
    u64,
)
from weft.ptir import Instruction, Program, Ref, dumps, tensor
from weft.ptir.ir import Function
from weft.ptir.ops.elementwise import ElementwiseUnary, UnaryFn

NAMES = Entries()
RTL = "\u202e\u05d0\u0627 \U0001f9f6"


def _long_name(form: str) -> Data:
    kind = tensor("f32", ["d" * MEGABYTE])
    name = "n" * MEGABYTE
    neg = ElementwiseUnary(UnaryFn.NEG)
    body = (Instruction(1, neg, (Ref(0),), kind),)
    return dumps(Program(name, (Function(name, (kind,), (0,), (kind,), body, (), (1,)),)), form)


NAMES.in_all_forms("a-name-of-a-megabyte", "ok", _long_name)


def _odd_name(form: str) -> Data:
    odd = "\"; return %0 } # \\ ' \0\x1b[31m\r\n\t{}/*" + RTL
    kind = tensor("f32", [odd])
    neg = ElementwiseUnary(UnaryFn.NEG)
    body = (Instruction(1, neg, (Ref(0),), kind),)
    return dumps(Program(odd, (Function(odd, (kind,), (0,), (kind,), body, (), (1,)),)), form)


NAMES.in_all_forms("a-name-of-odd-characters", "ok", _odd_name)


@NAMES.entry("UseBeforeDefinition")
def a_long_name_in_very_many_complaints() -> str:
    text = main((f"%{i} = neg(%{MANY * 10}) : {X}" for i in range(1, 2 * SOME)), "%1")
    return text.replace("@main", "@" + "n" * MEGABYTE)


@NAMES.entry("ok")
def a_long_name_and_very_many_random_ops() -> str:
    lines = (f"%{i} = rng_uniform() {{shape=[], dtype=f32}} : f32[]" for i in range(1, SOME // 2))
    return main(lines, "%1", "f32[]").replace("@main", "@" + "n" * MEGABYTE)


@NAMES.entry("OutputTypeMismatch")
def a_long_dim_in_very_many_complaints() -> str:
    long = "?" + "d" * MEGABYTE
    lines = (f"%{i} = neg(%0) : {X}" for i in range(1, MANY // 10))
    return main(lines, "%1", X, f"%0: f32[{long}]")


@NAMES.entry("MalformedText")
def an_op_of_a_megabyte() -> str:
    return main([f'%1 = "{"o" * MEGABYTE}"(%0) : {X}'], "%1")


@NAMES.entry("UnknownOp")
def an_op_of_a_megabyte_as_json() -> str:
    return program_json([instruction_json(1, {"O" * MEGABYTE: {}}, 0)])


@NAMES.entry("MalformedJson")
def a_dtype_of_a_megabyte() -> str:
    kind = {"Tensor": {"dtype": "D" * MEGABYTE, "shape": {"dims": []}}}
    return program_json([], parameters=[kind])


@NAMES.entry("SpecVersionMismatch")
def a_version_of_a_megabyte_as_json() -> str:
    return json.dumps({"spec_version": "v" * MEGABYTE, "entry": "main", "functions": []})


@NAMES.entry("SpecVersionMismatch")
def a_version_of_a_megabyte_as_bincode() -> bytes:
    return string("v" * MEGABYTE) + string("main") + u64(0, 0)


@NAMES.entry("SpecVersionMismatch")
def a_version_of_a_megabyte_as_text() -> str:
    return "v" * MEGABYTE + " entry @main"


@NAMES.entry("Unimplemented")
def a_target_of_a_megabyte() -> str:
    target = f"a.{'t' * MEGABYTE}.v1"
    return main([f'%1 = custom_call(%0) {{target="{target}", attrs={{}}}} : {X}'], "%1")


@NAMES.entry("EntryUndefined")
def an_entry_of_a_megabyte() -> str:
    return main([], "%0").replace("entry @main", "entry @" + "n" * MEGABYTE)
