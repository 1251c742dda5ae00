"""Custom calls: the examples of the coarse ops' document, and what is kept of a call."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

import weft
from weft.foundation.errors import SpecViolation, Unimplemented
from weft.ptir.ops.constant import CustomCall
from weft.ptir.schema import attr_map

pytest.importorskip("jaxlib", reason="the extra weft[stablehlo] is not installed")

from weft.interop import stablehlo

FIELDS = 'api_version = 1 : i32, backend_config = "", '
REST = "called_computations = [], has_side_effect = false"
X = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
EXAMPLES = {
    "softmax": (
        f'"mhlo.custom_call"(%arg0) {{{FIELDS}byteir_attrs = {{axis = 1 : i64}}, '
        f'call_target_name = "byteir.softmax", {REST}}} : (tensor<4x64xf32>) -> tensor<4x64xf32>',
        special.softmax(X.astype(np.float64), 1),
    ),
    "log_softmax": (
        f'"mhlo.custom_call"(%arg0) {{{FIELDS}byteir_attrs = {{axis = 1 : i64}}, '
        f'call_target_name = "byteir.log_softmax", {REST}}} '
        ": (tensor<4x64xf32>) -> tensor<4x64xf32>",
        special.log_softmax(X.astype(np.float64), 1),
    ),
    "gelu": (
        f'"mhlo.custom_call"(%arg0) {{{FIELDS}byteir_attrs = {{approximate = "none"}}, '
        f'call_target_name = "byteir.gelu", {REST}}} : (tensor<4x64xf32>) -> tensor<4x64xf32>',
        X * special.ndtr(X.astype(np.float64)),
    ),
    "erf": (
        '"mhlo.custom_call"(%arg0) {call_target_name = "byteir.erf", has_side_effect = false} '
        ": (tensor<?x64xf32>) -> tensor<?x64xf32>",
        special.erf(X.astype(np.float64)),
    ),
}
UNIFORM = """
%high = mhlo.constant dense<1.000000e+00> : tensor<f32>
%low = mhlo.constant dense<0.000000e+00> : tensor<f32>
%seed = byre.compute @GetSeed() : tensor<i64>
%offset = byre.compute @NextOffset() : tensor<i64>
"""


def module(call: str) -> str:
    kind = call.rpartition("-> ")[2]
    return f"func.func @main(%arg0: {kind}) -> {kind} {{\n%0 = {call}\nreturn %0 : {kind}\n}}"


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_of_the_document(name: str) -> None:
    call, wanted = EXAMPLES[name]
    program = stablehlo.loads(module(call))
    text = stablehlo.dumps(program)
    assert f"custom_call @byteir.{name}(" in text
    assert stablehlo.loads(text) == program
    (found,) = weft.run(program, [X], backend="reference")
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_random_numbers_of_a_static_shape() -> None:
    body = UNIFORM + (
        '%0 = "mhlo.custom_call"(%low, %high, %seed, %offset) {call_target_name = '
        '"byteir.rng_uniform", has_side_effect = false} : (tensor<f32>, tensor<f32>, tensor<i64>, '
        "tensor<i64>) -> tensor<8x1024x768xf32>"
    )
    kind = "tensor<8x1024x768xf32>"
    text = f"func.func @main() -> {kind} {{{body}\nreturn %0 : {kind} }}"
    small = text.replace("8x1024x768", "8x4x3")
    assert stablehlo.loads(text).main.results[0].shape == (8, 1024, 768)  # type: ignore[union-attr]
    program = stablehlo.loads(small)
    first, again, other = (
        weft.run(program, [], backend="reference", seed=seed)[0] for seed in (1, 1, 2)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert (first >= 0).all()
    assert (first < 1).all()


def test_random_numbers_of_a_dynamic_shape() -> None:
    body = UNIFORM + (
        "%shape = shape.shape_of %arg0 : tensor<3xindex>\n"
        '%0 = "mhlo.custom_call"(%low, %high, %seed, %offset, %shape) {call_target_name = '
        '"byteir.rng_uniform", has_side_effect = false} : (tensor<f32>, tensor<f32>, tensor<i64>, '
        "tensor<i64>, tensor<3xindex>) -> tensor<?x?x?xf32>"
    )
    kind = "tensor<?x?x?xf32>"
    text = f"func.func @main(%arg0: {kind}) -> {kind} {{{body}\nreturn %0 : {kind} }}"
    program = stablehlo.loads(text)
    (found,) = weft.run(program, [np.zeros((2, 3, 4), np.float32)], backend="reference")
    assert found.shape == (2, 3, 4)


def test_calls_of_others_keep_their_fields() -> None:
    call = (
        "stablehlo.custom_call @tf.DynamicPartition(%arg0) {api_version = 2 : i32, "
        'backend_config = "fast", byteir_attrs = {num_partitions = 3 : i64}} '
        ": (tensor<4xf32>) -> tensor<4xf32>"
    )
    program = stablehlo.loads(module(call))
    weft.ptir.verify(program)
    text = stablehlo.dumps(program)
    assert "api_version = 2 : i32" in text
    assert 'backend_config = "fast"' in text
    assert "num_partitions = 3 : i64" in text
    assert stablehlo.loads(text) == program
    with pytest.raises(Unimplemented, match=r"tf\.DynamicPartition"):
        weft.run(program, [np.zeros(4, np.float32)], backend="reference")


KEPT = [
    ("api_version = 2 : i32", "api_version = 2 : i32"),
    ('backend_config = "{\\22fast\\22: 1}"', 'backend_config = "{\\22fast\\22: 1}"'),
    ("api_version = 4 : i32, backend_config = {a = [1, 2]}", "backend_config = {a = [1, 2]}"),
    ("called_computations = [@f]", "called_computations = [@f]"),
]


@pytest.mark.parametrize(("given", "wanted"), KEPT)
@pytest.mark.parametrize("target", ["byteir.softmax", "tf.Softmax"])
def test_fields_of_a_call_come_back(target: str, given: str, wanted: str) -> None:
    call = (
        f"stablehlo.custom_call @{target}(%arg0) {{{given}, byteir_attrs = {{axis = 1 : i64}}}} "
        ": (tensor<4x64xf32>) -> tensor<4x64xf32>"
    )
    program = stablehlo.loads(module(call))
    text = stablehlo.dumps(program)
    assert wanted in text
    assert stablehlo.dumps(stablehlo.loads(text)) == text
    if target == "byteir.softmax":
        (found,) = weft.run(program, [X], backend="reference")
        np.testing.assert_allclose(found, special.softmax(X, 1), rtol=1e-5)


LAYER_NORM = (
    '"mhlo.custom_call"(%arg0, %w, %w) {call_target_name = "byteir.layer_norm", has_side_effect = '
    "false, byteir_attrs = {axis = AXIS, epsilon = 1.0e-5 : f64}} "
    ": (tensor<4x64xf32>, tensor<64xf32>, tensor<64xf32>) -> tensor<4x64xf32>"
)


@pytest.mark.parametrize("axis", ["[1]", "[1 : i32]", "array<i64: 1>", "dense<1> : tensor<1xi64>"])
def test_lists_in_every_form(axis: str) -> None:
    call = LAYER_NORM.replace("AXIS", axis)
    weights = "%w = stablehlo.constant dense<1.0> : tensor<64xf32>\n%0 = "
    program = stablehlo.loads(module(call).replace("%0 = ", weights))
    (found,) = weft.run(program, [X], backend="reference")
    x = X.astype(np.float64)
    wanted = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) + 1
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", ["byteir.repeat", "byteir.non_zero"])
def test_a_size_that_depends_on_data_is_declared(target: str) -> None:
    kinds = "tensor<3x2xf32>, tensor<3xi64>" if target == "byteir.repeat" else "tensor<3x2xf32>"
    values = "%x, %n" if target == "byteir.repeat" else "%x"
    result = "tensor<?x2xf32>" if target == "byteir.repeat" else "tensor<?x2xi64>"
    text = (
        f"func.func @main(%x: tensor<3x2xf32>, %n: tensor<3xi64>) -> {result} {{\n"
        f"%0 = stablehlo.custom_call @{target}({values}) : ({kinds}) -> {result}\n"
        f"return %0 : {result} }}"
    )
    with pytest.raises(Unimplemented, match="a size that the text leaves open would have to be"):
        stablehlo.loads(text)


def test_random_calls_are_equal_when_read_back() -> None:
    kind = "tensor<1x4x2x8xf16>"
    text = (
        f"func.func @main(%q: {kind}) -> {kind} {{\n"
        '%0:4 = "mhlo.custom_call"(%q, %q, %q) {call_target_name = "byteir.flash_attn_fwd", '
        "has_side_effect = false, byteir_attrs = {dropout_p = 0.1 : f32, softmax_scale = 0.5 : "
        f"f32, causal = true, return_softmax = false}}}} : ({kind}, {kind}, {kind}) -> "
        f"({kind}, tensor<1x2x4xf32>, tensor<0xf16>, tensor<2xi64>)\n"
        f"return %0#0 : {kind} }}"
    )
    program = stablehlo.loads(text)
    assert stablehlo.loads(stablehlo.dumps(program)) == program


def test_side_effects_are_refused() -> None:
    call = (
        "stablehlo.custom_call @tf.Print(%arg0) {has_side_effect = true} "
        ": (tensor<4xf32>) -> tensor<4xf32>"
    )
    with pytest.raises(Unimplemented) as caught:
        stablehlo.loads(module(call))
    assert str(caught.value) == (
        "Unimplemented stablehlo.custom_call: the custom call 'tf.Print' has a side effect, and "
        "PTIR is pure; line 2"
    )


def test_bad_attributes_are_told_with_the_line() -> None:
    call = EXAMPLES["softmax"][0].replace("axis = 1", "axis = 7")
    with pytest.raises(SpecViolation) as caught:
        stablehlo.loads(module(call))
    assert caught.value.code == "InvalidAttributeValue"
    assert caught.value.where == "custom_call, line 2"


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        ("THREE_FRY", [0x6B200159, 0x99BA4EFE]),
        ("PHILOX", [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ],
)
def test_random_bits_are_those_of_the_published_vectors(algorithm: str, words: list[int]) -> None:
    kind = f"tensor<{len(words)}xui32>"
    text = (
        f"func.func @main(%s: tensor<2xui64>) -> (tensor<2xui64>, {kind}) {{\n"
        f"%0, %1 = stablehlo.rng_bit_generator %s, algorithm = {algorithm} "
        f": (tensor<2xui64>) -> (tensor<2xui64>, {kind})\n"
        f"return %0, %1 : tensor<2xui64>, {kind} }}"
    )
    after, bits = weft.run(stablehlo.loads(text), [np.zeros(2, np.uint64)], backend="reference")
    assert bits.tolist() == words
    assert after.tolist() == [0, 1]


def call_of(
    target: str, operands: str, results: str, attrs: str = "{}", more: str = ""
) -> weft.ptir.Program:
    """A module that is one call, with the types of its operands and results listed."""
    kinds = [kind for kind in operands.split() if kind]
    names = [f"%a{index}" for index in range(len(kinds))]
    given = ", ".join(f"{name}: tensor<{kind}>" for name, kind in zip(names, kinds, strict=True))
    taken = ", ".join(f"tensor<{kind}>" for kind in kinds)
    found = [f"tensor<{kind}>" for kind in results.split()]
    types = ", ".join(found)
    values = ", ".join(f"%r#{index}" for index in range(len(found)))
    return stablehlo.loads(
        f"func.func @main({given}) -> ({types}) {{\n"
        f'%r:{len(found)} = "stablehlo.custom_call"({", ".join(names)}) {{call_target_name = '
        f'"{target}", byteir_attrs = {attrs}{more}}} : ({taken}) -> ({types})\n'
        f"return {values} : {types} }}"
    )


SOFTMAX = "{axis = 1 : i64}"
NORM = "{axis = [1], epsilon = 1.0e-5 : f64}"
EXTREME = "{axis = 1 : i64, keep_dims = false, select_last_index = false}"
FLASH = "{dropout_p = 0.0 : f64, softmax_scale = 0.5 : f64, causal = true, return_softmax = false}"
HEADS = "1x4x2x8xf32"
CONTRADICTED = [
    ("byteir.softmax", "2x3xf32", "2x4xf32", SOFTMAX, "result 0 of byteir.softmax is f32[2, 3], "
     "but f32[2, 4] is declared"),
    ("byteir.softmax", "2x3xf32", "f32", SOFTMAX, "is f32[2, 3], but f32[] is declared"),
    ("byteir.softmax", "2x3xf32", "2x3xf64", SOFTMAX, "is f32[2, 3], but f64[2, 3] is declared"),
    ("byteir.softmax", "2x3xf32", "2x3xf32 2x3xf32", SOFTMAX, "has 1 results here, but 2 are"),
    ("byteir.softmax", "?x3xf32", "?x4xf32", SOFTMAX, "is f32[?n0, 3], but f32[?, 4] is declared"),
    ("byteir.erf", "2x3xf32", "f32", "{}", "is f32[2, 3], but f32[] is declared"),
    ("byteir.layer_norm", "2x3xf32 3xf32 3xf32", "2x3xf32 2xf32 2xf32", NORM, "result 1 of "
     "byteir.layer_norm is f32[2, 1], but f32[2] is declared"),
    ("byteir.arg_max", "2x3xf32", "2x1xi64", EXTREME, "is si64[2], but si64[2, 1] is declared"),
    ("byteir.arg_max", "2x3xf32", "2xi32 2xi32", EXTREME, "is f32[2], but si32[2] is declared"),
    ("byteir.quantize", "2x3xf32 f32 i8", "2x3xui8", "{}", "si8[2, 3], but ui8[2, 3] is declared"),
    ("byteir.non_zero", "2x3xf32", "6x3xi64", "{}", "is si64[6, 2], but si64[6, 3] is declared"),
    ("byteir.flash_attn_fwd", f"{HEADS} {HEADS} {HEADS}", HEADS, FLASH, "has 4 results here, but "
     "1 are declared"),
    ("byre.GetSeed", "", "2xf32", "{}", "is si64[], but f32[2] is declared"),
]  # fmt: skip


@pytest.mark.parametrize(("target", "operands", "results", "attrs", "why"), CONTRADICTED)
def test_results_are_what_the_call_has(
    target: str, operands: str, results: str, attrs: str, why: str
) -> None:
    with pytest.raises(SpecViolation) as caught:
        call_of(target, operands, results, attrs)
    assert caught.value.code == "OutputTypeMismatch"
    assert caught.value.where == "custom_call, line 2"
    assert why in str(caught.value)


MALFORMED = [
    ("byteir.addn", "", "2xf32", "{}", "", "ArityMismatch"),
    ("byteir.addn", "2x3xf32 2xf32", "2x3xf32", "{}", "", "ShapeMismatch"),
    ("byteir.addn", "2x3xf32 f32", "2x3xf32", "{}", "", "ShapeMismatch"),
    ("mhlo.erf", "", "2xf32", "{}", "", "ArityMismatch"),
    ("mhlo.topk", "4xf32", "2xf32 2xi32", "{}", "", "InvalidAttributeValue"),
    ("mhlo.topk", "4xf32", "2xf32 2xi32", '{k = "2"}', "", "InvalidAttributeValue"),
    ("mhlo.topk", "4xf32", "3xf32 3xi32", "{}", ", mhlo.attributes = {k = 2}",
     "OutputTypeMismatch"),
    ("mhlo.topk", "4xf32", "2xf32", "{}", ", mhlo.attributes = {k = 2}", "ArityMismatch"),
    ("byre.GetSeed", "f32", "i64", "{}", "", "ArityMismatch"),
    ("shape.shape_of", "", "2xi64", "{}", "", "ArityMismatch"),
    ("byteir.erf", "2xf32", "2xf32", '"none"', "", "InvalidAttributeValue"),
    ("tf.Foo", "2xf32", "2xf32", "[1, 2]", "", "InvalidAttributeValue"),
]  # fmt: skip


@pytest.mark.parametrize(("target", "operands", "results", "attrs", "more", "code"), MALFORMED)
def test_calls_of_the_wrong_form_are_rejected(
    target: str, operands: str, results: str, attrs: str, more: str, code: str
) -> None:
    with pytest.raises(SpecViolation) as caught:
        call_of(target, operands, results, attrs, more)
    assert (caught.value.code, caught.value.where) == (code, "custom_call, line 2")


OPEN = [
    ("byteir.layer_norm", "?x?xf32 ?xf32 ?xf32", "?x?xf32", NORM, ["?n0, ?n1", "?n1", "?n1"]),
    ("byteir.layer_norm", "?x?xf32 8xf32 ?xf32", "?x?xf32", NORM, ["?n0, 8", "8", "8"]),
    ("byteir.addn", "?x?xf32 ?x3xf32", "?x?xf32", "{}", ["?n0, 3", "?n0, 3"]),
    ("byteir.softmax", "?x?xf32", "?x3xf32", SOFTMAX, ["?n0, 3"]),
    ("byteir.repeat", "?x3xf32 ?xi64", "5x3xf32", "{}", ["?n0, 3", "?n0"]),
    ("byteir.quantize", "?x?xf32 ?xf32 ?xi8", "?x?xi8", SOFTMAX, ["?n0, ?n1", "?n1", "?n1"]),
    ("weft.attention.v1", "?x2x?x8xf32 ?x2x?x8xf32 ?x2x?x8xf32", "?x2x?x8xf32 ?x2x?xf32", "{}",
     ["?n0, 2, ?n1, 8", "?n0, 2, ?n3, 8", "?n0, 2, ?n3, 8"]),
]  # fmt: skip


@pytest.mark.parametrize(("target", "operands", "results", "attrs", "wanted"), OPEN)
def test_open_sizes_that_must_be_one_become_one(
    target: str, operands: str, results: str, attrs: str, wanted: list[str]
) -> None:
    program = call_of(target, operands, results, attrs)
    weft.ptir.verify(program)
    found = [str(kind).partition("[")[2].rstrip("]") for kind in program.main.parameters]
    assert found == wanted


def test_sizes_that_calls_make_become_one_where_they_must() -> None:
    kind = "tensor<?xf32>"
    calls = [f"%{n} = stablehlo.custom_call @tf.{n}(%x) : ({kind}) -> {kind}\n" for n in "ab"]
    text = f"func.func @main(%x: {kind}) -> {kind} {{\n{''.join(calls)}"
    apart = stablehlo.loads(f"{text}return %a : {kind} }}").main.body
    assert [str(made.output) for made in apart] == ["f32[?d0]", "f32[?d1]"]
    one = stablehlo.loads(f"{text}%0 = stablehlo.add %a, %b : {kind}\nreturn %0 : {kind} }}")
    assert [str(made.output) for made in one.main.body] == ["f32[?d0]"] * 3


def test_an_open_attention_runs_at_every_size() -> None:
    open_heads = "?x?x2x8xf32"
    program = call_of(
        "byteir.flash_attn_fwd",
        f"{open_heads} {open_heads} {open_heads}",
        f"{open_heads} ?x2x?xf32 0xf32 2xi64",
        FLASH,
    )
    for rows in (1, 5):
        q, k, v = np.random.default_rng(rows).standard_normal((3, 1, rows, 2, 8), np.float32)
        scores = np.einsum("bqhd,bkhd->bhqk", q, k) * 0.5
        hidden = np.triu(np.full((rows, rows), -np.inf), 1)
        wanted = np.einsum("bhqk,bkhd->bqhd", special.softmax(scores + hidden, -1), v)
        found = weft.run(program, [q, k, v], backend="reference")[0]
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_declared_shape_needs_no_sizes_that_are_known() -> None:
    program = call_of("byteir.rng_uniform", "f32 f32 i64 i64 2xi64", "4x2xf32")
    low, high, seed = np.float32(0), np.float32(1), np.int64(7)
    inputs = [np.asarray(x) for x in (low, high, seed, np.int64(0), [4, 2])]
    assert weft.run(program, inputs, backend="reference")[0].shape == (4, 2)
    inputs[4] = np.asarray([4, 3])
    with pytest.raises(SpecViolation, match=r"shape is \[4, 3\], but \[4, 2\] is declared"):
        weft.run(program, inputs, backend="reference")


def test_a_call_inside_a_region_of_single_elements() -> None:
    text = """func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
      %r = "stablehlo.map"(%x, %y) ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %0 = "stablehlo.custom_call"(%a, %b) {call_target_name = "byteir.addn"}
          : (tensor<f32>, tensor<f32>) -> tensor<f32>
        stablehlo.return %0 : tensor<f32>
      }) {dimensions = array<i64: 0>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
      return %r : tensor<4xf32> }"""
    x = np.arange(4, dtype=np.float32)
    (found,) = weft.run(stablehlo.loads(text), [x, 2 * x], backend="reference")
    assert found.tolist() == [0, 3, 6, 9]


def test_the_class_of_an_attribute_is_told_with_its_op() -> None:
    with pytest.raises(SpecViolation, match=r"axis of byteir\.softmax is of class F64, not I64"):
        call_of("byteir.softmax", "2x3xf32", "2x3xf32", "{axis = 1.0 : f64}")


OTHERS = [
    '{deep = {a = 1 : i64, b = [2, {c = "d"}]}}',
    "{flag}",
    "{kind = tensor<2x?xf32>}",
    "{body = @inner}",
    "{path = @outer::@inner}",
    '{mixed = [1, "two", unit]}',
    "{table = dense<[[1, 2], [3, 4]]> : tensor<2x2xi64>}",
    "{large = 18446744073709551615 : ui64}",
    "{map = affine_map<(d0, d1) -> (d1, d0)>}",
]


@pytest.mark.parametrize("attrs", OTHERS)
def test_attributes_that_ptir_has_no_class_for_come_back(attrs: str) -> None:
    program = call_of("tf.Foo", "2xf32", "2xf32", attrs)
    text = stablehlo.dumps(program)
    assert f"byteir_attrs = {attrs}" in inlined(text)
    assert stablehlo.loads(text) == program
    assert weft.ptir.loads(weft.ptir.dumps(program, "json")) == program


def inlined(text: str) -> str:
    """The module with the names that MLIR gives to long attributes filled in."""
    for line in text.splitlines():
        name, defined, value = line.partition(" = ")
        if defined and name.startswith("#"):
            text = text.replace(f"= {name}}}", f"= {value}}}")
    return text


def test_what_the_bindings_cannot_read_is_refused() -> None:
    value = "dense<(1.0, 2.0)> : tensor<complex<f32>>"
    assert stablehlo.dumps(call_of("tf.Foo", "2xf32", "2xf32", f"{{a = {{b = {value}}}}}"))
    with pytest.raises(Unimplemented, match="attribute a: MLIR's bindings cannot read"):
        call_of("tf.Foo", "2xf32", "2xf32", f"{{a = {value}}}")


def test_a_text_is_no_symbol() -> None:
    text, symbol = (call_of("tf.Foo", "2xf32", "2xf32", f"{{a = {a}}}") for a in ('"f"', "@f"))
    assert text != symbol
    assert 'a = "f"' in stablehlo.dumps(text)
    assert "a = @f" in stablehlo.dumps(symbol)


@pytest.mark.parametrize("text", ["unit}, b = {", "", "[1, 2", "1 : i64, x = 2"])
def test_a_text_that_is_no_attribute_is_refused(text: str) -> None:
    b = weft.ptir.Builder()
    x = b.param("f32", [2])
    call = CustomCall("tf.Foo", attr_map({"mlir.attr.a": text}))
    program = b.build(b.append(call, [x], x.type))
    with pytest.raises(SpecViolation) as caught:
        stablehlo.dumps(program)
    assert caught.value.code == "MalformedText"


def test_a_constant_too_large_for_any_machine_is_refused() -> None:
    kind = "tensor<99999999x99999999xf32>"
    text = f"func.func @main() -> {kind} {{ %0 = stablehlo.constant dense<1.0> : {kind}\n"
    with pytest.raises(weft.ResourceExceeded, match=r"a constant f32\[99999999, 99999999\] would"):
        stablehlo.loads(f"{text}return %0 : {kind} }}")


@pytest.mark.parametrize(
    ("target", "what"),
    [
        ("Sharding", "the custom call 'Sharding' is a kernel of another"),
        ("lapack_sgees_ffi", "'lapack_sgees_ffi' is a routine for linear algebra that is not read"),
        ("cu_threefry2x32", "the custom call 'cu_threefry2x32' is a kernel of another"),
    ],
)
def test_kernels_of_other_compilers_are_refused_by_name(target: str, what: str) -> None:
    kind = "tensor<2xf32>"
    text = f"""module {{ func.func @main(%x: {kind}) -> {kind} {{
      %0 = stablehlo.custom_call @{target}(%x) : ({kind}) -> {kind}
      return %0 : {kind} }} }}"""
    with pytest.raises(Unimplemented, match=what):
        stablehlo.loads(text)
