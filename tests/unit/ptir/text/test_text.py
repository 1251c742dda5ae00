"""The text form: what it looks like, what it accepts, and where it says a text is wrong."""

from __future__ import annotations

import pytest

import weft
from tests.support.cases import each
from weft.foundation.dtypes import ALL, DType
from weft.foundation.errors import SpecViolation
from weft.ptir import Builder, Program, TensorLiteral, TensorType, dumps, loads, tensor, verify
from weft.ptir.ops.reduction import Reduce
from weft.ptir.text import parse_program, print_literal

HEAD = "ptir.v0.4\nentry @main\n\n"


def text_of(line: str) -> str:
    """A program whose one instruction stands at line 5, column 3."""
    return f"{HEAD}func @main(%0: f32[2]) -> (f32[2]) {{\n  {line}\n  return %1\n}}\n"


REJECTED: dict[str, str] = {
    "ptir.v0.3\nentry @main\n": (
        "SpecVersionMismatch: the file is of version 'ptir.v0.3', expected 'ptir.v0.4'"
    ),
    "": "MalformedText at line 1, column 1: expected the version but found the end of the text",
    "ptir.v0.4\nfunc": "MalformedText at line 2, column 1: expected 'entry' but found 'func'",
    f"{HEAD}module": (
        "MalformedText at line 4, column 1: expected 'func' or 'region' but found 'module'"
    ),
    f"{HEAD}func @main() -> () {{\n  return\n": (
        "MalformedText at line 6, column 1: expected '}' but found the end of the text"
    ),
    f"{HEAD}region ^-1() -> () {{\n  return\n}}": (
        "MalformedText at line 4, column 9: -1 is not a region id: it must be from 0 to "
        "18446744073709551615"
    ),
    f"{HEAD}func @main() -> () {{\n  return\n  hint 4294967296 elementwise_dag": (
        "MalformedText at line 6, column 8: 4294967296 is not a hint id: it must be from 0 to "
        "4294967295"
    ),
    text_of("%1 = frob(%0) : f32[2]"): "UnknownOp at line 5, column 8: there is no op 'frob'",
    text_of("%1 = neg(%0 : f32[2]"): (
        "MalformedText at line 5, column 15: expected ',' but found ':'"
    ),
    text_of("%1 = neg(%0) : f99[2]"): (
        "MalformedText at line 5, column 18: expected a dtype but found 'f99'"
    ),
    text_of("%1 = neg(%0) : f32[-2]"): (
        "NegativeDimension at line 5, column 22: dimension -2 is negative"
    ),
    text_of("%1 = neg(%0) : f32[18446744073709551616]"): (
        "MalformedText at line 5, column 22: dimension 18446744073709551616 is more than "
        "18446744073709551615"
    ),
    text_of("%1 = neg(%0) : " + "(" * 80): (
        "NestingTooDeep at line 5, column 83: a tuple type nests too deep"
    ),
    text_of("%4294967296 = neg(%0) : f32[2]"): (
        "MalformedText at line 5, column 4: 4294967296 is not a value id: it must be from 0 to "
        "4294967295"
    ),
    text_of("%1 = neg(%0) {fast=true} : f32[2]"): (
        "MalformedText at line 5, column 17: neg has no attribute 'fast'; its attributes are none"
    ),
    text_of("%1 = reduce_sum(%0) {axes=[0]} : f32[]"): (
        "MalformedText at line 5, column 8: reduce_sum needs the attribute 'keepdims'"
    ),
    text_of("%1 = reduce_sum(%0) {axes=[0], axes=[0]} : f32[]"): (
        "MalformedText at line 5, column 34: the attribute 'axes' is given twice"
    ),
    text_of("%1 = reduce_sum(%0) {axes=[-3], keepdims=false} : f32[]"): (
        "InvalidAttributeValue at line 5, column 8: axes -3 is out of range; a rank-1 operand has "
        "[-1, 1) (negative ones count from the end)"
    ),
    text_of("%1 = reduce_sum(%0) {axes=[0], keepdims=maybe} : f32[]"): (
        "MalformedText at line 5, column 43: expected true or false but found 'maybe'"
    ),
    text_of("%1 = compare(%0, %0) {op=smaller} : i1[2]"): (
        "MalformedText at line 5, column 28: expected one of less, less_equal, equal, "
        "greater_equal, greater, not_equal but found 'smaller'"
    ),
    text_of("%1 = add(%0, f32[2]<1.0>) : f32[2]"): (
        "LiteralInvalid at line 5, column 16: these values do not make a f32[2]: there are 1 of "
        "them, not 2"
    ),
    text_of("%1 = add(%0, f32[2]<1.0, nan>) : f32[2]"): (
        "LiteralInvalid at line 5, column 16: these values do not make a f32[2]: NaN has many bit "
        "patterns; it is written in hex"
    ),
    text_of("%1 = add(%0, si8[1]<300>) : f32[2]"): (
        "LiteralInvalid at line 5, column 16: these values do not make a si8[1]: they must be from "
        "-128 to 127"
    ),
    text_of("%1 = add(%0, i1[1]<5>) : f32[2]"): (
        "LiteralInvalid at line 5, column 16: these values do not make a i1[1]: i1 is written as "
        "true and false"
    ),
    text_of("%1 = add(%0, f32[2]<0x000>) : f32[2]"): (
        "MalformedText at line 5, column 16: hex bytes come in pairs; one digit is missing"
    ),
    text_of("%1 = neg(%0) : f32[2] $"): (
        "MalformedText at line 5, column 25: unexpected character '$'"
    ),
    text_of('%1 = custom_call(%0) {target="a\\x", attrs={}} : f32[2]'): (
        "MalformedText at line 5, column 32: the string has an escape that is not JSON's but "
        "found '\"a\\\\x\"'"
    ),
    text_of('%1 = custom_call(%0) {target="a", attrs={k=i64 9223372036854775808}} : f32[2]'): (
        "InvalidAttributeValue at line 5, column 50: 9223372036854775808 is not a whole number "
        "from -9223372036854775808 to 9223372036854775807"
    ),
    text_of('%1 = custom_call(%0) {target="a", attrs={k=i64 1, k=i64 2}} : f32[2]'): (
        "MalformedText at line 5, column 43: an attribute is given twice"
    ),
}


@each("text", REJECTED)
def test_a_wrong_text_is_rejected_with_its_place(text: str) -> None:
    with pytest.raises(SpecViolation) as caught:
        parse_program(text)
    assert str(caught.value) == REJECTED[text]


GPT_LINE = """\
ptir.v0.4
entry @main

func @main(%0: f32[2, ?B]) -> (f32[2]) {
  %1 = exp(%0) : f32[2, ?B]
  %2 = reduce_sum(%1) {axes=[1], keepdims=false} : f32[2]
  return %2
}
"""


def test_the_example_of_the_module_reads_and_prints_the_same() -> None:
    program = parse_program(GPT_LINE)
    verify(program)
    assert dumps(program, "text") == GPT_LINE


def test_spaces_comments_and_the_byte_order_mark_do_not_matter() -> None:
    loose = "\ufeff# a program\n" + GPT_LINE.replace("\n", "   # end of line\r\n").replace(
        "(%0)", "( %0 )"
    )
    assert loads(loose) == parse_program(GPT_LINE)
    assert loads(loose.encode()) == parse_program(GPT_LINE)


def test_axes_may_count_from_the_end() -> None:
    program = parse_program(GPT_LINE.replace("axes=[1]", "axes=[-1]"))
    assert program == parse_program(GPT_LINE)
    op = program.main.body[1].op
    assert isinstance(op, Reduce)
    assert op.axes == (1,)


def test_attributes_with_a_default_may_be_left_out() -> None:
    short = text_of("%1 = cumulative_sum(%0) {axis=0} : f32[2]")
    long = text_of("%1 = cumulative_sum(%0) {axis=0, reverse=false} : f32[2]")
    assert parse_program(short) == parse_program(long)


def test_a_custom_call_of_a_known_target_becomes_its_op() -> None:
    call = text_of('%1 = custom_call(%0) {target="weft.sqrt.v1", attrs={}} : f32[2]')
    assert parse_program(call) == parse_program(text_of("%1 = sqrt(%0) : f32[2]"))


def test_names_that_are_no_words_are_quoted() -> None:
    b = Builder('a "name"\n')
    x = b.param("f32", ["?batch size"])
    program = b.build(x)
    text = str(dumps(program, "text"))
    assert 'entry @"a \\"name\\"\\n"' in text
    assert 'f32[?"batch size"]' in text
    assert loads(text) == program


LITERALS: list[tuple[TensorLiteral, str]] = [
    (weft.ptir.literal([1.0, -2.5]), "f32[2]<1.0, -2.5>"),
    (weft.ptir.literal(True), "i1[]<true>"),
    (weft.ptir.literal([[1, -2]], "si4"), "si4[1, 2]<1, -2>"),
    (weft.ptir.literal(0.1, "f64"), "f64[]<0.1>"),
    (weft.ptir.literal(float("-inf")), "f32[]<-inf>"),
    (weft.ptir.literal(float("nan")), "f32[]<0x0000c07f>"),
    (weft.ptir.literal(-0.0), "f32[]<-0.0>"),
    (weft.ptir.literal(1 - 2j, "cf32"), "cf32[]<(1.0, -2.0)>"),
    (weft.ptir.literal([], "f32"), "f32[0]<0x>"),
    (weft.ptir.literal(range(9), "ui8"), "ui8[9]<0x000102030405060708>"),
    (TensorLiteral(tensor("f32"), b"\0"), "f32[]<0x00>"),
    (TensorLiteral(tensor("si4"), b"\x0f"), "si4[]<0x0f>"),
]


@pytest.mark.parametrize(("literal", "text"), LITERALS)
def test_literals_print_in_decimals_where_they_are_short_and_exact(
    literal: TensorLiteral, text: str
) -> None:
    assert print_literal(literal) == text
    program = parse_program(text_of(f"%1 = add(%0, {text}) : f32[2]"))
    assert program.main.body[0].operands[1] == literal


@each("dtype", ALL)
@each("count", [0, 1, 8, 300])
def test_literals_of_every_dtype_read_back_bit_for_bit(dtype: DType, count: int) -> None:
    unit = bytes(range(256)) * 16
    data = unit[: count * dtype.storage_bytes] * (count * dtype.storage_bytes // len(unit) + 1)
    literal = TensorLiteral(TensorType(dtype, (count,)), data[: count * dtype.storage_bytes])
    text = text_of(f"%1 = add(%0, {print_literal(literal)}) : f32[2]")
    read = parse_program(text).main.body[0].operands[1]
    assert isinstance(read, TensorLiteral)
    assert (read.type, read.data) == (literal.type, literal.data)


def test_what_text_cannot_say_is_refused() -> None:
    broken = Program("main", (parse_program(GPT_LINE).main,))
    function = broken.main
    broken = broken.with_main(
        type(function)(
            function.name, (), function.parameter_ids, function.results, function.body, (), (2,)
        )
    )
    with pytest.raises(SpecViolation) as caught:
        dumps(broken, "text")
    assert str(caught.value) == (
        "SignatureMismatch at function @main: 0 parameter types but 1 ids cannot be written as text"
    )
