"""Custom calls: the examples of the coarse ops' document, and what is kept of a call."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

import weft
from weft.foundation.errors import SpecViolation, Unimplemented

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
