"""Core IR as text: two encodings in, one out, nothing lost."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.support.core_texts import FIRST, SECOND
from weft.core_ir import CoreOperation, Module, ModuleBuilder, Padding, dumps, loads, verify
from weft.core_ir.files import is_core_ir
from weft.core_ir.literals import Unreadable
from weft.foundation.errors import SpecViolation, UserError
from weft.ptir.literal import TensorLiteral


def test_the_first_encoding_is_printed_as_it_was_read() -> None:
    module = loads(FIRST)
    assert dumps(module) == FIRST
    assert loads(dumps(module)) == module


def test_the_second_encoding_means_the_same() -> None:
    assert loads(SECOND) == loads(FIRST)
    assert dumps(loads(SECOND)) == FIRST


def test_lines_are_known_and_outside_equality() -> None:
    assert list(loads(SECOND).lines) == [2, 3, 5, 6, 7, 8, 9, 10, 11, 12]
    assert loads("\n\n" + FIRST) == loads(FIRST)


def one(line: str, before: str = "%0 = Input () {name=x} : tensor<f32[2]>\n") -> CoreOperation:
    """The operation in a line."""
    return loads(f"{before}%1 = {line}\noutputs: %1").operations[-1]


CONSTANT = "ConstTensor () {data=[1.0, 2.0], dtype=f32, shape=[2]} : tensor<f32[2]>"
SAME = {
    "Neg (%0) : tensor<f32[2]>": "Neg(%0) {} : Tensor<f32, [2]>",
    "Sum (%0) {axes=[0], keepdims=true} : tensor<f32[1]>": (
        "Sum (%0) {axes=(0,), keepdims=True} : tensor<f32[1]>"
    ),
    "Sum (%0) {axes=[0], keepdims=false} : tensor<f32[]>": "Sum(%0, [0]) : Tensor<f32, []>",
    "Add (%0, %0) : tensor<f32[2]>": "BinOp (%0, %0) {op=Add} : tensor<f32[2]>",
    CONSTANT: "ConstTensor {dtype=f32, shape=(2,), value=[1.0, 2.0]} : tensor<f32[2]>",
    "ConstTensor () {data=1.0, dtype=f32, shape=[]} : tensor<f32[]>": (
        "ConstTensor(1) : tensor<f32[]>"
    ),
    "Transpose (%0) {permutation=[0]} : tensor<f32[2]>": (
        "Transpose (%0) {perm=[0]} : tensor<f32[2]>"
    ),
    "Slice (%0) {ends=[2], starts=[0], steps=[1]} : tensor<f32[2]>": (
        "Slice(%0, [0], [2], [1]) : tensor<f32[2]>"
    ),
    "Input () {name=y} : tensor<f32[2]>": "Input {name=y} : tensor<f32[2]>",
}


@pytest.mark.parametrize(("line", "same"), SAME.items())
def test_other_spellings(line: str, same: str) -> None:
    assert one(line) == one(same)


def test_values_may_have_names() -> None:
    named = '%x = Input() {name: "x"} : tensor<f32[]>\n%y = Neg(%x) : tensor<f32[]>\noutputs: %y'
    assert [op.value_id for op in loads(named).operations] == [0, 1]
    mixed = '%5 = Input() {name: "x"} : tensor<f32[]>\n%y = Neg(%5) : tensor<f32[]>\noutputs: %y'
    assert loads(mixed).outputs == (6,)


def test_names_that_are_not_words_are_quoted() -> None:
    b = ModuleBuilder()
    module = b.build(b.input('a "b"\n', "f32"))
    assert loads(dumps(module)) == module
    assert dumps(module).count("\n") == 2


@pytest.mark.parametrize(
    ("dtype", "value", "text"),
    [
        ("f32", 0.1, "0.1"),
        ("f32", 16777216.0, "1.6777216e+07"),
        ("f32", 1e-45, "1e-45"),
        ("f64", 0.1, "0.1"),
        ("f64", -0.0, "-0.0"),
        ("f64", math.inf, "inf"),
        ("f64", -math.inf, "-inf"),
        ("f64", math.nan, "nan"),
        ("i64", -(2**63), "-9223372036854775808"),
    ],
)
def test_numbers_are_written_short_and_read_back_exactly(
    dtype: str, value: float, text: str
) -> None:
    b = ModuleBuilder()
    module = b.build(b.constant(value, dtype))
    assert f"{{value={text}}}" in dumps(module)
    assert loads(dumps(module)) == module


def test_every_f32_reads_back() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 20_000, np.uint32)
    for start in range(0, bits.size, 200):
        b = ModuleBuilder()
        module = b.build(b.constant(bits[start : start + 200].view(np.float32), "f32"))
        assert loads(dumps(module)) == module


def test_long_constants_are_bytes() -> None:
    b = ModuleBuilder()
    module = b.build(b.constant(np.arange(300, dtype=np.int32).reshape(100, 3), "i32"))
    assert "{data=0x0000000001000000" in dumps(module)
    assert loads(dumps(module)) == module


def test_odd_nans_keep_their_bits() -> None:
    b = ModuleBuilder()
    odd = np.array(0x7FC00001, np.uint32).view(np.float32)
    module = b.build(b.constant(odd, "f32"))
    assert "0x0100c07f" in dumps(module)
    assert loads(dumps(module)) == module


@pytest.mark.parametrize(
    "data", ["[[1, 2], [3]]", "[1.5]", "[99999999999]", "0x00", "[]", "[[], []]", "[1, [2]]"]
)
def test_bad_constants_are_loaded_shown_and_judged(data: str) -> None:
    constant = f"ConstTensor () {{data={data}, dtype=i32, shape=[2]}} : tensor<i32[2]>"
    module = loads(f"%0 = {constant}\noutputs: %0\n")
    assert loads(dumps(module)) == module
    (finding,) = verify(module, collect=True)
    assert finding.code in ("E3010", "E4005")


def test_comments_inside_data() -> None:
    op = one("ConstTensor([1.0, # one\n  2.0]) : tensor<f32[2]>")
    assert isinstance(op.attributes["data"], TensorLiteral)
    bad = one("ConstTensor([1.0, # one\n  [2.0]]) : tensor<f32[2]>")
    assert bad.attributes["data"] == Unreadable(
        "[1.0, [2.0]]", "E3010", "the rows of the literal differ in length or depth"
    )


def test_extensions_are_the_first_line() -> None:
    text = "extensions: div, gradient\n%0 = ConstF32 () {value=1.0} : tensor<f32[]>\noutputs: %0\n"
    module = loads(text)
    assert module.extensions == {"div", "gradient"}
    assert dumps(module) == text
    assert loads(text.partition("\n")[2], extensions=["gradient", "div"]) == module


def test_modules_are_known_by_how_they_begin() -> None:
    assert is_core_ir(FIRST.encode())
    assert is_core_ir(b"\xef\xbb\xbf # comment\n\n  %0 = Input")
    assert is_core_ir(b"outputs: %0")
    assert is_core_ir(b"extensions: div")
    assert not is_core_ir(b"ptir.v0.4\nentry @main")
    assert not is_core_ir(b'{"spec_version": "ptir.v0.4"}')
    assert not is_core_ir(b"\x09\0\0\0\0\0\0\0ptir.v0.4")
    assert not is_core_ir(b"")


def test_text_that_is_not_utf8() -> None:
    with pytest.raises(SpecViolation) as error:
        loads(b"%0 = Input () {name=x} : tensor<f32[]>\n# \xff")
    assert str(error.value) == (
        "E0101 at line 2, column 3: the file is not UTF-8 text: byte 41 is wrong"
    )
    assert loads(b"\xef\xbb\xbf" + FIRST.encode()) == loads(FIRST)


# -- records -------------------------------------------------------------------------------------


def test_a_record_takes_plain_values() -> None:
    made = CoreOperation.of(1, "Conv2d", [0, 0], {"padding": [[1, 1], [0, 0]]}, "f32[1, 1, 1, 1]")
    assert made.attributes == {
        "padding": Padding("Custom", ((1, 1), (0, 0))),
        "strides": (1, 1),
    }
    assert made.operands == (0, 0)
    assert str(made.result_type) == "tensor<f32[1, 1, 1, 1]>"
    assert CoreOperation.of(1, "ConstF32", (), {"value": 1}, "f32[]") == one(
        "ConstF32 () {value=1.0} : tensor<f32[]>"
    )


NUMBERS = "a list of whole numbers of 64 bits"
Arguments = tuple[int, str, list[int], dict[str, object]]
WRONG: list[tuple[Arguments, str]] = [
    ((0, "Add", [1], {}), "Add takes operands (lhs, rhs) but got 1"),
    ((0, "Sum", [1], {}), f"Sum needs the attribute 'axes', {NUMBERS}"),
    ((0, "Sum", [1], {"axes": 3}), f"attribute 'axes' must be {NUMBERS}, not 3"),
    (
        (0, "Sum", [1], {"axes": [2**63]}),
        f"attribute 'axes' must be {NUMBERS}, not [9223372036854775808]",
    ),
    (
        (0, "Sum", [1], {"axes": [10**5000]}),
        f"attribute 'axes' must be {NUMBERS}, not a number of thousands of digits",
    ),
    (
        (0, "Sum", [1], {"axes": [], "keepdims": 1}),
        "attribute 'keepdims' must be true or false, not 1",
    ),
    (
        (0, "Sum", [1], {"axis": [0]}),
        "Sum has no attribute 'axis'; its attributes are axes, keepdims",
    ),
    (
        (0, "Conv2d", [1, 2], {"padding": "Full"}),
        "padding must be Valid, Same or Custom with pairs of numbers, not 'Full'",
    ),
    ((-1, "Neg", [1], {}), "a value id is a whole number from 0 to 2^63 - 1"),
    ((0, "Neg", [True], {}), "a value id is a whole number from 0 to 2^63 - 1"),
]


@pytest.mark.parametrize(("arguments", "why"), WRONG)
def test_records_check_their_structure(arguments: Arguments, why: str) -> None:
    with pytest.raises(UserError) as error:
        CoreOperation.of(*arguments)
    assert str(error.value) == why


def test_wrong_types_and_names_in_records() -> None:
    with pytest.raises(SpecViolation, match="E0102: there is no opcode 'Pow'"):
        CoreOperation.of(0, "Pow")
    for text in ("f32", "f32[2", "f32[a]", "tensor<f99[2]>"):
        with pytest.raises(UserError):
            CoreOperation.of(0, "Neg", [1], {}, text)
    with pytest.raises(UserError, match="there is no extension 'x'"):
        Module((), (), frozenset({"x"}))
