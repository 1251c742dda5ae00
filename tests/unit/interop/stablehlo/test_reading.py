"""StableHLO read into PTIR, against StableHLO's own reference interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

import weft
from tests.support.cases import each
from tests.support.draws import generator
from weft.foundation.dtypes import DType
from weft.ptir.gradient import vjp

pytest.importorskip("jaxlib", reason="the extra weft[stablehlo] is not installed")

from tests.support.stablehlo_oracle import Array, check, floats, function
from weft.interop import stablehlo
from weft.interop.stablehlo.dense import DTYPES

RANDOM = generator()


def positive(*shape: int) -> Array:
    return np.abs(floats(*shape)) + np.float32(0.1)


def whole(low: int, high: int, shape: tuple[int, ...], dtype: str = "i8") -> Array:
    return RANDOM.integers(low, high, shape).astype(dtype)


UNARY = [
    "negate",
    "abs",
    "exponential",
    "exponential_minus_one",
    "log",
    "log_plus_one",
    "tanh",
    "sqrt",
    "rsqrt",
    "cbrt",
    "logistic",
    "sine",
    "cosine",
    "tan",
    "floor",
    "ceil",
    "round_nearest_even",
    "round_nearest_afz",
    "sign",
]
BINARY = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "maximum",
    "minimum",
    "power",
    "atan2",
    "remainder",
]
INTEGER = ["add", "subtract", "multiply", "and", "or", "xor", "maximum", "minimum"]
SHIFTS = ["shift_left", "shift_right_arithmetic", "shift_right_logical"]
BITS = ["popcnt", "count_leading_zeros", "not", "sign", "abs"]


def unary(name: str, kind: str) -> str:
    return function(f"%a: {kind}", f"%0 = stablehlo.{name} %a : {kind}", f"%0 : {kind}")


def binary(name: str, kind: str) -> str:
    signature = f"%a: {kind}, %b: {kind}"
    return function(signature, f"%0 = stablehlo.{name} %a, %b : {kind}", f"%0 : {kind}")


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    check(unary(name, "tensor<4x6xf32>"), positive(4, 6))


def test_the_logistic_function_keeps_small_values_and_so_does_its_gradient() -> None:
    x = np.array([-1000.0, -100.0, -60.0, -12.0, 0.0, 12.0, 60.0, 1000.0], np.float32)
    slope = vjp(stablehlo.loads(unary("logistic", "tensor<8xf32>")), 0)
    exact = special.expit(x.astype("f8")) * special.expit(-x.astype("f8"))
    found = weft.run(slope, [x, np.ones_like(x)])[1]
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-38)
    narrow = weft.run(stablehlo.loads(unary("logistic", "tensor<8xf16>")), [x.astype("f2")])[0]
    np.testing.assert_array_equal(narrow, special.expit(x.astype("f8")).astype("f2"))


def test_halves_round_away_from_zero() -> None:
    near = np.nextafter(np.float32(0.5), np.float32(0))
    values = np.array([0.5, -0.5, 1.5, 2.5, -2.5, near, -near], np.float32)
    check(unary("round_nearest_afz", "tensor<7xf32>"), values)


@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str) -> None:
    check(binary(name, "tensor<4x6xf32>"), positive(4, 6), positive(4, 6))


@pytest.mark.parametrize("name", INTEGER)
def test_integers_wrap(name: str) -> None:
    values = whole(-(2**31), 2**31, (64,), "i4")
    check(binary(name, "tensor<64xi32>"), values, values[::-1].copy())


@pytest.mark.parametrize("name", SHIFTS)
@pytest.mark.parametrize("dtype", ["i8", "i32", "i64"])
def test_shifts(name: str, dtype: str) -> None:
    values = whole(-100, 100, (64,), DTYPES[dtype].numpy.str)
    amounts = whole(0, 70, (64,), DTYPES[dtype].numpy.str)
    check(binary(name, f"tensor<64x{dtype}>"), values, amounts)


@pytest.mark.parametrize("name", BITS)
def test_bits(name: str) -> None:
    check(unary(name, "tensor<64xi32>"), whole(-(2**31), 2**31, (64,), "i4"))


def test_truth_values_add_as_or() -> None:
    a, b = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    for name in ("add", "multiply", "maximum", "minimum", "and", "or", "xor"):
        check(binary(name, "tensor<4xi1>"), a, b)


def wrapped(value: int, dtype: DType) -> int:
    kept = value % (1 << dtype.bits)
    return kept - (1 << dtype.bits) if dtype.is_signed and kept >> (dtype.bits - 1) else kept


@each("source", ["i4", "i8", "ui8", "i32", "ui32", "i64", "ui64"])
@each("target", ["i4", "ui4", "i8", "ui8", "i16", "ui16", "i32", "ui32", "i64", "ui64"])
def test_integer_conversions_keep_the_low_bits(source: str, target: str) -> None:
    dtype = DTYPES[source]
    low, high = int(dtype.lowest), int(dtype.highest)
    values = [low, high, 0, 1, high // 2, high // 2 + 1, low // 2, max(low, -1)]
    kinds = f"tensor<8x{source}>", f"tensor<8x{target}>"
    body = f"%0 = stablehlo.convert %a : ({kinds[0]}) -> {kinds[1]}"
    program = stablehlo.loads(function(f"%a: {kinds[0]}", body, f"%0 : {kinds[1]}"))
    given = np.array(values, object).astype(np.int64 if low else np.uint64).astype(dtype.numpy)
    (found,) = weft.run(program, [given], backend="reference")
    assert [int(n) for n in found] == [wrapped(n, DTYPES[target]) for n in values]


def region(name: str, kind: str) -> str:
    return (
        f"({{ ^bb0(%p: {kind}, %q: {kind}): %r = stablehlo.{name} %p, %q : {kind}\n"
        f"stablehlo.return %r : {kind} }})"
    )


WINDOW = """%c = stablehlo.constant dense<START> : tensor<f32>
%0 = "stablehlo.reduce_window"(%x, %c) REGION {ATTRS} : (tensor<6x7xf32>, tensor<f32>) -> KIND"""


def window(name: str, start: str, attrs: str, kind: str) -> str:
    body = WINDOW.replace("START", start).replace("REGION", region(name, "tensor<f32>"))
    body = body.replace("ATTRS", attrs).replace("KIND", kind)
    return function("%x: tensor<6x7xf32>", body, f"%0 : {kind}")


PRODUCTS = {
    "grouped, dilated, cut": (
        function(
            "%x: tensor<2x5x6x4xf32>, %w: tensor<3x2x2x6xf32>",
            """%0 = stablehlo.convolution(%x, %w)
            dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
            window = {stride = [1, 2], pad = [[2, 1], [-1, 4]], rhs_dilate = [1, 2]}
            {batch_group_count = 1 : i64, feature_group_count = 2 : i64}
            : (tensor<2x5x6x4xf32>, tensor<3x2x2x6xf32>) -> tensor<2x6x4x6xf32>""",
            "%0 : tensor<2x6x4x6xf32>",
        ),
        [floats(2, 5, 6, 4), floats(3, 2, 2, 6)],
    ),
    "batch groups, other layout, turned window": (
        function(
            "%x: tensor<3x4x5x5xf32>, %w: tensor<6x3x3x3xf32>",
            """%0 = stablehlo.convolution(%x, %w)
            dim_numbers = [f, b, 0, 1]x[o, i, 0, 1]->[b, f, 1, 0],
            window = {stride = [1, 2], pad = [[0, 0], [1, 3]], lhs_dilate = [2, 1],
                      reverse = [true, false]}
            {batch_group_count = 2 : i64, feature_group_count = 1 : i64}
            : (tensor<3x4x5x5xf32>, tensor<6x3x3x3xf32>) -> tensor<2x6x4x7xf32>""",
            "%0 : tensor<2x6x4x7xf32>",
        ),
        [floats(3, 4, 5, 5), floats(6, 3, 3, 3)],
    ),
    "dot with batches": (
        function(
            "%x: tensor<2x3x4x5xf32>, %w: tensor<5x2x7x3xf32>",
            """%0 = stablehlo.dot_general %x, %w, batching_dims = [0, 1] x [1, 3],
            contracting_dims = [3] x [0]
            : (tensor<2x3x4x5xf32>, tensor<5x2x7x3xf32>) -> tensor<2x3x4x7xf32>""",
            "%0 : tensor<2x3x4x7xf32>",
        ),
        [floats(2, 3, 4, 5), floats(5, 2, 7, 3)],
    ),
    "dot of bytes into words": (
        function(
            "%x: tensor<3x4xi8>, %w: tensor<4x2xi8>",
            """%0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
            : (tensor<3x4xi8>, tensor<4x2xi8>) -> tensor<3x2xi32>""",
            "%0 : tensor<3x2xi32>",
        ),
        [whole(-128, 128, (3, 4), "i1"), whole(-128, 128, (4, 2), "i1")],
    ),
}
WINDOWS = {
    "product with everything": window(
        "multiply",
        "0.5",
        "window_dimensions = array<i64: 2, 3>, window_strides = array<i64: 2, 1>, "
        "base_dilations = array<i64: 1, 2>, window_dilations = array<i64: 1, 2>, "
        "padding = dense<[[0, 0], [1, -1]]> : tensor<2x2xi64>",
        "tensor<3x9xf32>",
    ),
    "maximum, cut": window(
        "maximum",
        "0xFF800000",
        "window_dimensions = array<i64: 2, 3>, window_strides = array<i64: 2, 1>, "
        "padding = dense<[[0, 0], [2, -1]]> : tensor<2x2xi64>",
        "tensor<3x6xf32>",
    ),
    "sum from one": window("add", "1.0", "window_dimensions = array<i64: 2, 2>", "tensor<5x6xf32>"),
}


@pytest.mark.parametrize("case", PRODUCTS)
def test_products(case: str) -> None:
    text, inputs = PRODUCTS[case]
    check(text, *inputs)


@pytest.mark.parametrize("case", WINDOWS)
def test_windows(case: str) -> None:
    check(WINDOWS[case], floats(6, 7))


def test_the_older_dot() -> None:
    body = '%0 = "mhlo.dot"(%x, %w) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3xf32>'
    text = function("%x: tensor<3x4xf32>, %w: tensor<4xf32>", body, "%0 : tensor<3xf32>")
    x, w = floats(3, 4), floats(4)
    (found,) = weft.run(stablehlo.loads(text), [x, w], backend="reference")
    np.testing.assert_allclose(found, x @ w, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "start"),
    [("add", "0.0"), ("maximum", "0xFF800000"), ("minimum", "3.0"), ("multiply", "2.0")],
)
def test_reduce(name: str, start: str) -> None:
    body = f"""%c = stablehlo.constant dense<{start}> : tensor<f32>
    %0 = stablehlo.reduce(%x init: %c) applies stablehlo.{name} across dimensions = [0, 2]
    : (tensor<3x4x5xf32>, tensor<f32>) -> tensor<4xf32>"""
    check(function("%x: tensor<3x4x5xf32>", body, "%0 : tensor<4xf32>"), floats(3, 4, 5))


ARG_MAX = """%c = stablehlo.constant dense<0xFF800000> : tensor<f32>
%z = stablehlo.constant dense<0> : tensor<i32>
%i = stablehlo.iota dim = 1 : tensor<3x7xi32>
%0:2 = stablehlo.reduce(%x init: %c), (%i init: %z) across dimensions = [1]
  : (tensor<3x7xf32>, tensor<3x7xi32>, tensor<f32>, tensor<i32>) -> (tensor<3xf32>, tensor<3xi32>)
  reducer(%a: tensor<f32>, %b: tensor<f32>) (%p: tensor<i32>, %q: tensor<i32>) {
    %1 = stablehlo.compare GT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %2 = stablehlo.compare EQ, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %3 = stablehlo.compare LT, %p, %q : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %4 = stablehlo.and %2, %3 : tensor<i1>
    %5 = stablehlo.or %1, %4 : tensor<i1>
    %6 = stablehlo.select %1, %a, %b : tensor<i1>, tensor<f32>
    %7 = stablehlo.select %5, %p, %q : tensor<i1>, tensor<i32>
    stablehlo.return %6, %7 : tensor<f32>, tensor<i32>
  }"""


def test_reduce_with_any_region() -> None:
    text = function("%x: tensor<3x7xf32>", ARG_MAX, "%0#0, %0#1 : tensor<3xf32>, tensor<3xi32>")
    check(text, floats(3, 7))


SHAPES = """%0 = stablehlo.slice %x [1:5:3, 0:7:3] : (tensor<6x7xf32>) -> tensor<2x3xf32>
%1 = stablehlo.pad %x, %v, low = [-1, 2], high = [3, 2], interior = [0, 0]
  : (tensor<6x7xf32>, tensor<f32>) -> tensor<8x11xf32>
%2 = stablehlo.reverse %x, dims = [0, 1] : tensor<6x7xf32>
%c = stablehlo.constant dense<1.5> : tensor<f32>
%3 = stablehlo.pad %x, %c, low = [-1, 2], high = [-1, -2], interior = [0, 1]
  : (tensor<6x7xf32>, tensor<f32>) -> tensor<4x13xf32>
%4 = stablehlo.transpose %x, dims = [1, 0] : (tensor<6x7xf32>) -> tensor<7x6xf32>
%5 = stablehlo.broadcast_in_dim %x, dims = [2, 0] : (tensor<6x7xf32>) -> tensor<7x2x6xf32>
%6 = stablehlo.concatenate %x, %2, dim = 1
  : (tensor<6x7xf32>, tensor<6x7xf32>) -> tensor<6x14xf32>"""


def test_movement() -> None:
    results = (
        "%0, %1, %2, %3, %4, %5, %6 : tensor<2x3xf32>, tensor<8x11xf32>, tensor<6x7xf32>, "
        "tensor<4x13xf32>, tensor<7x6xf32>, tensor<7x2x6xf32>, tensor<6x14xf32>"
    )
    text = function("%x: tensor<6x7xf32>, %v: tensor<f32>", SHAPES, results)
    check(text, floats(6, 7), floats())


def test_starts_are_clamped() -> None:
    body = """%0 = stablehlo.dynamic_slice %x, %i, %j, sizes = [2, 3]
      : (tensor<6x7xf32>, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>
    %1 = stablehlo.dynamic_update_slice %x, %u, %i, %j
      : (tensor<6x7xf32>, tensor<2x2xf32>, tensor<i32>, tensor<i32>) -> tensor<6x7xf32>"""
    signature = "%x: tensor<6x7xf32>, %i: tensor<i32>, %j: tensor<i32>, %u: tensor<2x2xf32>"
    text = function(signature, body, "%0, %1 : tensor<2x3xf32>, tensor<6x7xf32>")
    check(text, floats(6, 7), np.array(-1, np.int32), np.array(6, np.int32), floats(2, 2))


GATHERS = [
    (
        "3x4x2", "2x3x2", "2x3x2x2", "1, 2, 2",
        "offset_dims = [2, 3], collapsed_slice_dims = [0], start_index_map = [1, 0], "
        "index_vector_dim = 2",
    ),
    (
        "3x4x2", "5", "3x5x2", "3, 1, 2",
        "offset_dims = [0, 2], collapsed_slice_dims = [1], start_index_map = [1], "
        "index_vector_dim = 1",
    ),
    (
        "2x3x4x2", "2x2x3x2", "2x2x3x2x2", "1, 1, 2, 2",
        "offset_dims = [3, 4], collapsed_slice_dims = [1], operand_batching_dims = [0], "
        "start_indices_batching_dims = [1], start_index_map = [2, 1], index_vector_dim = 3",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("x", "indices", "result", "sizes", "numbers"), GATHERS)
def test_gather(x: str, indices: str, result: str, sizes: str, numbers: str) -> None:
    kinds = f"tensor<{x}xi32>", f"tensor<{indices}xi64>", f"tensor<{result}xi32>"
    body = (
        f'%0 = "stablehlo.gather"(%x, %i) {{dimension_numbers = #stablehlo.gather<{numbers}>, '
        f"slice_sizes = array<i64: {sizes}>, indices_are_sorted = false}} "
        f": ({kinds[0]}, {kinds[1]}) -> {kinds[2]}"
    )
    text = function(f"%x: {kinds[0]}, %i: {kinds[1]}", body, f"%0 : {kinds[2]}")
    shape = tuple(int(n) for n in x.split("x"))
    data = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    check(text, data, whole(-1, 5, tuple(int(n) for n in indices.split("x"))))


@pytest.mark.parametrize("name", ["add", "maximum", "minimum", "replace"])
def test_scatter(name: str) -> None:
    kind = "tensor<i64>"
    inside = (
        f"({{ ^bb0(%p: {kind}, %q: {kind}): stablehlo.return %q : {kind} }})"
        if name == "replace"
        else region(name, kind)
    )
    body = f"""%0 = "stablehlo.scatter"(%x, %i, %u) {inside} {{
      scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2, 3],
      inserted_window_dims = [0], scatter_dims_to_operand_dims = [1, 0], index_vector_dim = 2>,
      indices_are_sorted = false, unique_indices = false}}
      : (tensor<3x4x2xi64>, tensor<2x3x2xi64>, tensor<2x3x2x2xi64>) -> tensor<3x4x2xi64>"""
    signature = "%x: tensor<3x4x2xi64>, %i: tensor<2x3x2xi64>, %u: tensor<2x3x2x2xi64>"
    text = function(signature, body, "%0 : tensor<3x4x2xi64>")
    data = np.arange(24).reshape(3, 4, 2)
    check(text, data, whole(-1, 4, (2, 3, 2)), whole(0, 100, (2, 3, 2, 2)))


def test_sort_by_the_second_operand() -> None:
    body = """%0:2 = "stablehlo.sort"(%x, %p) ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>, %c: tensor<i32>, %d: tensor<i32>):
      %1 = stablehlo.compare GT, %c, %d : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1> }) {dimension = 1 : i64, is_stable = true}
      : (tensor<3x7xf32>, tensor<3x7xi32>) -> (tensor<3x7xf32>, tensor<3x7xi32>)"""
    signature = "%x: tensor<3x7xf32>, %p: tensor<3x7xi32>"
    text = function(signature, body, "%0#0, %0#1 : tensor<3x7xf32>, tensor<3x7xi32>")
    check(text, floats(3, 7), whole(0, 4, (3, 7), "i4"))


def test_map_and_scalars() -> None:
    body = """%0 = "stablehlo.map"(%x, %p) ({ ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %1 = stablehlo.constant dense<2.0> : tensor<f32>
      %2 = stablehlo.multiply %a, %1 : tensor<f32>
      %3 = stablehlo.add %2, %b : tensor<f32>
      stablehlo.return %3 : tensor<f32> }) {dimensions = array<i64: 0, 1>}
      : (tensor<3x7xf32>, tensor<3x7xf32>) -> tensor<3x7xf32>
    %lo = stablehlo.constant dense<-0.5> : tensor<f32>
    %hi = stablehlo.constant dense<0.5> : tensor<f32>
    %4 = stablehlo.clamp %lo, %x, %hi
      : (tensor<f32>, tensor<3x7xf32>, tensor<f32>) -> tensor<3x7xf32>
    %5 = stablehlo.select %c, %x, %4 : tensor<i1>, tensor<3x7xf32>"""
    signature = "%x: tensor<3x7xf32>, %p: tensor<3x7xf32>, %c: tensor<i1>"
    kind = "tensor<3x7xf32>"
    text = function(signature, body, f"%0, %4, %5 : {kind}, {kind}, {kind}")
    check(text, floats(3, 7), floats(3, 7), np.array(False))


LOOP = """%z = stablehlo.constant dense<0> : tensor<i32>
%one = stablehlo.constant dense<1> : tensor<i32>
%y = stablehlo.sine %x : tensor<3xf32>
%0:2 = stablehlo.while(%i = %z, %a = %x) : tensor<i32>, tensor<3xf32>
  cond {
    %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %j = stablehlo.add %i, %one : tensor<i32>
    %b = stablehlo.add %a, %y : tensor<3xf32>
    stablehlo.return %j, %b : tensor<i32>, tensor<3xf32>
  }"""


def test_loops_see_what_is_around_them() -> None:
    signature = "%n: tensor<i32>, %x: tensor<3xf32>"
    text = function(signature, LOOP, "%0#0, %0#1 : tensor<i32>, tensor<3xf32>")
    check(text, np.array(5, np.int32), floats(3))


BRANCHES = """
func.func private @g(%x: tensor<3xf32>, %y: tensor<3xf32>) -> tensor<3xf32> {
  %0 = stablehlo.multiply %x, %y : tensor<3xf32>
  return %0 : tensor<3xf32>
}
func.func @main(%n: tensor<i32>, %x: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>) {
  %y = stablehlo.sine %x : tensor<3xf32>
  %0 = "stablehlo.case"(%n) ({
    stablehlo.return %x : tensor<3xf32>
  }, {
    %1 = func.call @g(%x, %y) : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
    stablehlo.return %1 : tensor<3xf32>
  }, {
    %1 = stablehlo.add %y, %y : tensor<3xf32>
    stablehlo.return %1 : tensor<3xf32>
  }) : (tensor<i32>) -> tensor<3xf32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %c = stablehlo.compare LT, %n, %one : (tensor<i32>, tensor<i32>) -> tensor<i1>
  %2 = "stablehlo.if"(%c) ({
    stablehlo.return %x : tensor<3xf32>
  }, {
    stablehlo.return %y : tensor<3xf32>
  }) : (tensor<i1>) -> tensor<3xf32>
  return %0, %2 : tensor<3xf32>, tensor<3xf32>
}"""


@pytest.mark.parametrize("index", [-1, 0, 1, 2, 3])
def test_branches_and_calls(index: int) -> None:
    check(BRANCHES, np.array(index, np.int32), floats(3))


# -- what the reference interpreter cannot do ----------------------------------------------------


@pytest.mark.parametrize(
    ("text", "array"),
    [
        ("dense<[1, -2]> : tensor<2xi4>", np.array([1, -2], np.int8)),
        ("dense<[true, false]> : tensor<2xi1>", np.array([True, False])),
        ("dense<[0x7FC0, 1.5]> : tensor<2xbf16>", np.array([np.nan, 1.5])),
        ("dense<[(1.0, 2.0), (3.0, -4.0)]> : tensor<2xcomplex<f32>>", np.array([1 + 2j, 3 - 4j])),
        ('dense<"0x0000803F00000040"> : tensor<2xf32>', np.array([1.0, 2.0])),
        ("dense<7> : tensor<2x2xui64>", np.full((2, 2), 7)),
        ("dense<> : tensor<0x2xf32>", np.zeros((0, 2))),
        ("dense<3.0> : tensor<20xf8E4M3FN>", np.full(20, 3.0)),
    ],
)
def test_constants(text: str, array: Array) -> None:
    kind = text.rpartition(" : ")[2]
    program = stablehlo.loads(function("", f"%0 = stablehlo.constant {text}", f"%0 : {kind}"))
    (found,) = weft.run(program, [], backend="reference")
    np.testing.assert_array_equal(np.asarray(found).astype(array.dtype), array)


def test_sizes_that_must_be_one_get_one_name() -> None:
    kind = "tensor<?x4xf32>"
    program = stablehlo.loads(binary("add", kind))
    assert program.main.parameters[0] == program.main.parameters[1]
    a, b = floats(3, 4), floats(3, 4)
    (found,) = weft.run(program, [a, b], backend="reference")
    np.testing.assert_array_equal(found, a + b)


def test_shapes_that_are_computed() -> None:
    body = """%n = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x4xf32>) -> tensor<i32>
    %m = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
    %k = stablehlo.constant dense<[4]> : tensor<1xi32>
    %s = stablehlo.concatenate %m, %k, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
    %c = stablehlo.constant dense<2.0> : tensor<f32>
    %b = stablehlo.dynamic_broadcast_in_dim %c, %s, dims = []
      : (tensor<f32>, tensor<2xi32>) -> tensor<?x4xf32>
    %0 = stablehlo.multiply %x, %b : tensor<?x4xf32>"""
    program = stablehlo.loads(function("%x: tensor<?x4xf32>", body, "%0 : tensor<?x4xf32>"))
    x = floats(3, 4)
    (found,) = weft.run(program, [x], backend="reference")
    np.testing.assert_array_equal(found, 2 * x)


def test_lines_are_kept() -> None:
    text = function(
        "%x: tensor<3xf32>", "\n%0 = stablehlo.sine %x : tensor<3xf32>", "%0 : tensor<3xf32>"
    )
    assert set(stablehlo.loads(text).locations.values()) == {"line 3"}
