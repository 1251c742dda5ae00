"""Sorts with any comparator, and scatters with any computation, against StableHLO's interpreter."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.support.draws import generator

pytest.importorskip("jaxlib", reason="the extra weft[stablehlo] is not installed")

from tests.support.stablehlo_oracle import Array, check, floats, function
from weft.interop import stablehlo
from weft.interop.stablehlo.reading.comparators import MOST_OPERATIONS

RANDOM = generator()
I1 = "tensor<i1>"


def whole(low: int, high: int, shape: tuple[int, ...], dtype: str = "i8") -> Array:
    return RANDOM.integers(low, high, shape).astype(dtype)


# -- sort ----------------------------------------------------------------------------------------


def sort(types: list[str], body: str, dim: int) -> str:
    """Operands of shape 3x7; `body` makes %r of %a0, %b0, %a1, %b1, ..."""
    arguments = ", ".join(
        f"%{side}{n}: tensor<{t}>" for n, t in enumerate(types) for side in ("a", "b")
    )
    kinds = [f"tensor<3x7x{t}>" for t in types]
    values = ", ".join(f"%x{n}" for n in range(len(types)))
    listed, several = ", ".join(kinds), len(types) > 1
    text = (
        f'%0{f":{len(types)}" if several else ""} = "stablehlo.sort"({values}) ({{\n'
        f"^bb0({arguments}):\n{body}\nstablehlo.return %r : {I1} }}) "
        f"{{dimension = {dim} : i64, is_stable = true}} : ({listed}) -> ({listed})"
    )
    found = ", ".join(f"%0#{n}" if several else "%0" for n in range(len(types)))
    signature = ", ".join(f"%x{n}: {kind}" for n, kind in enumerate(kinds))
    return function(signature, text, f"{found} : {listed}")


def compare(name: str, direction: str, a: str, b: str, kind: str, more: str = "") -> str:
    types = f"(tensor<{kind}>, tensor<{kind}>) -> {I1}"
    return f"%{name} = stablehlo.compare {direction}, %{a}, %{b}{more} : {types}\n"


BOTH = compare("e", "EQ", "a0", "b0", "i32") + compare("m", "GT", "a1", "b1", "f32")
ZERO = "%z = stablehlo.constant dense<0> : tensor<i32>\n"
SORTED = {
    "by two keys, with and and or": (
        ["i32", "f32"],
        compare("l", "LT", "a0", "b0", "i32")
        + BOTH
        + f"%n = stablehlo.and %e, %m : {I1}\n%r = stablehlo.or %l, %n : {I1}",
        True,
    ),
    "by two keys, with a select": (
        ["i32", "f32"],
        compare("l", "LT", "a0", "b0", "i32")
        + BOTH
        + f"%r = stablehlo.select %e, %m, %l : {I1}, {I1}",
        True,
    ),
    "the second element first": (
        ["i32", "f32"],
        compare("l", "GT", "b0", "a0", "i32")
        + BOTH
        + f"%r = stablehlo.select %e, %m, %l : {I1}, {I1}",
        True,
    ),
    "by something computed": (
        ["i32"],
        "%p = stablehlo.abs %a0 : tensor<i32>\n%q = stablehlo.abs %b0 : tensor<i32>\n"
        + compare("r", "LT", "p", "q", "i32"),
        True,
    ),
    "by the sum of two operands": (
        ["i32", "i32"],
        "%p = stablehlo.add %a0, %a1 : tensor<i32>\n%q = stablehlo.add %b0, %b1 : tensor<i32>\n"
        + compare("r", "GT", "p", "q", "i32"),
        True,
    ),
    "by a select that is not a canonical form": (
        ["i32"],
        ZERO
        + compare("s", "GT", "a0", "z", "i32")
        + compare("t", "GT", "b0", "z", "i32")
        + "%p = stablehlo.select %s, %z, %a0 : tensor<i1>, tensor<i32>\n"
        + "%q = stablehlo.select %t, %z, %b0 : tensor<i1>, tensor<i32>\n"
        + compare("r", "LT", "p", "q", "i32"),
        True,
    ),
    "by a difference": (
        ["i32", "f32"],
        "%p = stablehlo.subtract %a0, %b0 : tensor<i32>\n"
        + ZERO
        + compare("r", "LT", "p", "z", "i32"),
        False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("case", SORTED)
def test_sort(case: str, dim: int) -> None:
    types, body, by_keys = SORTED[case]
    text = sort(types, body, dim)
    inputs = [whole(-3, 3, (3, 7), "i4" if t == "i32" else "f4") for t in types]
    check(text, *inputs)
    ops = {made.op.mnemonic for made in stablehlo.loads(text).main.body}
    assert ("reduce_sum" not in ops) is by_keys


def test_a_comparator_that_is_too_long_to_be_tried() -> None:
    longer = "".join(
        f"%s{n + 1} = stablehlo.or %s{n}, %s{n} : {I1}\n" for n in range(MOST_OPERATIONS)
    )
    body = compare("s0", "LT", "a0", "b0", "i32") + longer
    text = sort(["i32"], f"{body}%r = stablehlo.not %s{MOST_OPERATIONS} : {I1}", 0)
    x = whole(-3, 3, (3, 7), "i4")
    (found,) = weft.run(stablehlo.loads(text), [x], backend="reference")
    np.testing.assert_array_equal(found, -np.sort(-x, axis=0))


def test_the_total_order_of_floats() -> None:
    text = sort(["f32"], compare("r", "LT", "a0", "b0", "f32", ", TOTALORDER"), 1)
    x = np.array([[0.0, -0.0, np.nan, 1, -np.inf, -np.nan, np.inf]] * 3, np.float32)
    (found,) = weft.run(stablehlo.loads(text), [x], backend="reference")
    wanted = np.array([-np.nan, -np.inf, -0.0, 0.0, 1, np.inf, np.nan], np.float32)
    assert found[1].tobytes() == wanted.tobytes()


# -- scatter -------------------------------------------------------------------------------------

NUMBERS = """scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2, 3],
  inserted_window_dims = [0], scatter_dims_to_operand_dims = [1, 0], index_vector_dim = 2>,
  indices_are_sorted = false, unique_indices = false"""
BATCHED = """scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2],
  inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0],
  scatter_dims_to_operand_dims = [1], index_vector_dim = 2>,
  indices_are_sorted = false, unique_indices = UNIQUE"""
COMPUTED = {
    "multiply": "%r = stablehlo.multiply %p, %q : tensor<i64>",
    "and": "%r = stablehlo.and %p, %q : tensor<i64>",
    "or": "%r = stablehlo.or %p, %q : tensor<i64>",
    "xor": "%r = stablehlo.xor %p, %q : tensor<i64>",
    "order matters": "%d = stablehlo.add %p, %p : tensor<i64>\n"
    "%r = stablehlo.subtract %d, %q : tensor<i64>",
    "the old one": "%r = stablehlo.minimum %p, %p : tensor<i64>",
}


@pytest.mark.parametrize("name", COMPUTED)
def test_scatter_by_any_computation(name: str) -> None:
    body = f"""%0 = "stablehlo.scatter"(%x, %i, %u) ({{
      ^bb0(%p: tensor<i64>, %q: tensor<i64>): {COMPUTED[name]}
      stablehlo.return %r : tensor<i64> }}) {{{NUMBERS}}}
      : (tensor<3x4x2xi64>, tensor<2x3x2xi64>, tensor<2x3x2x2xi64>) -> tensor<3x4x2xi64>"""
    signature = "%x: tensor<3x4x2xi64>, %i: tensor<2x3x2xi64>, %u: tensor<2x3x2x2xi64>"
    text = function(signature, body, "%0 : tensor<3x4x2xi64>")
    check(text, whole(1, 9, (3, 4, 2)), whole(-1, 4, (2, 3, 2)), whole(0, 100, (2, 3, 2, 2)))


@pytest.mark.parametrize("unique", [False, True])
def test_scatter_into_two_operands_with_batches(unique: bool) -> None:
    body = f"""%c = stablehlo.constant dense<2.0> : tensor<f32>
    %s = stablehlo.add %k, %c : tensor<f32>
    %0:2 = "stablehlo.scatter"(%x, %y, %i, %u, %v) ({{
      ^bb0(%p: tensor<f32>, %q: tensor<i32>, %t: tensor<f32>, %w: tensor<i32>):
      %m = stablehlo.multiply %t, %s : tensor<f32>
      %a = stablehlo.add %p, %m : tensor<f32>
      %b = stablehlo.subtract %w, %q : tensor<i32>
      stablehlo.return %a, %b : tensor<f32>, tensor<i32> }})
      {{{BATCHED.replace("UNIQUE", str(unique).lower())}}}
      : (tensor<2x5x3xf32>, tensor<2x5x3xi32>, tensor<2x4x1xi32>, tensor<2x4x3xf32>,
         tensor<2x4x3xi32>) -> (tensor<2x5x3xf32>, tensor<2x5x3xi32>)"""
    signature = (
        "%k: tensor<f32>, %x: tensor<2x5x3xf32>, %y: tensor<2x5x3xi32>, %i: tensor<2x4x1xi32>, "
        "%u: tensor<2x4x3xf32>, %v: tensor<2x4x3xi32>"
    )
    text = function(signature, body, "%0#0, %0#1 : tensor<2x5x3xf32>, tensor<2x5x3xi32>")
    rows = np.array([[4, 0, 2, 9], [1, 0, 3, 2]] if unique else [[4, 4, 2, 9], [1, -1, 1, 1]])
    check(
        text, floats(), floats(2, 5, 3), whole(0, 9, (2, 5, 3), "i4"),
        rows.reshape(2, 4, 1).astype(np.int32), floats(2, 4, 3), whole(0, 9, (2, 4, 3), "i4"),
    )  # fmt: skip


SELECT = """%c = stablehlo.constant dense<START> : tensor<f32>
%0 = "stablehlo.select_and_scatter"(%x, %s, %c) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %p = stablehlo.compare CHOICE, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
}, {
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %p = stablehlo.HOW %a, %b : tensor<f32>
    stablehlo.return %p : tensor<f32>
}) {window_dimensions = array<i64: 2, 3>, window_strides = array<i64: 2, 1>,
    padding = dense<[[0, 1], [1, 1]]> : tensor<2x2xi64>}
  : (tensor<5x6xf32>, tensor<3x6xf32>, tensor<f32>) -> tensor<5x6xf32>"""


@pytest.mark.parametrize(
    ("choice", "how", "start"),
    [("GE", "add", "0.0"), ("GT", "add", "0.0"), ("LE", "multiply", "1.0")],
)
def test_select_and_scatter(choice: str, how: str, start: str) -> None:
    body = SELECT.replace("CHOICE", choice).replace("HOW", how).replace("START", start)
    text = function("%x: tensor<5x6xf32>, %s: tensor<3x6xf32>", body, "%0 : tensor<5x6xf32>")
    # Many are equal, so that it shows which one of them is selected.
    check(text, whole(-2, 2, (5, 6), "f4"), floats(3, 6))


# -- order of a reduction ------------------------------------------------------------------------

COMPOSED = """%z = stablehlo.constant dense<0.0> : tensor<f32>
%one = stablehlo.constant dense<1.0> : tensor<f32>
%0:2 = stablehlo.reduce(%x init: %one), (%y init: %z) across dimensions = [0, 2]
  : (tensor<3x4x3xf32>, tensor<3x4x3xf32>, tensor<f32>, tensor<f32>)
  -> (tensor<4xf32>, tensor<4xf32>)
  reducer(%a: tensor<f32>, %b: tensor<f32>) (%p: tensor<f32>, %q: tensor<f32>) {
    %1 = stablehlo.multiply %a, %b : tensor<f32>
    %2 = stablehlo.multiply %p, %b : tensor<f32>
    %3 = stablehlo.add %2, %q : tensor<f32>
    stablehlo.return %1, %3 : tensor<f32>, tensor<f32>
  }"""


def test_what_comes_first_stays_first() -> None:
    """Affine maps composed: associative, but not commutative."""
    signature = "%x: tensor<3x4x3xf32>, %y: tensor<3x4x3xf32>"
    text = function(signature, COMPOSED, "%0#0, %0#1 : tensor<4xf32>, tensor<4xf32>")
    check(text, floats(3, 4, 3), floats(3, 4, 3))


def test_a_window_sum_counts_its_start_in_every_gap() -> None:
    body = """%c = stablehlo.constant dense<1.0> : tensor<f32>
    %0 = "stablehlo.reduce_window"(%x, %c) ({ ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %r = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %r : tensor<f32> }) {window_dimensions = array<i64: 3>,
      base_dilations = array<i64: 2>, padding = dense<[[2, 1]]> : tensor<1x2xi64>}
      : (tensor<4xf32>, tensor<f32>) -> tensor<8xf32>"""
    check(function("%x: tensor<4xf32>", body, "%0 : tensor<8xf32>"), floats(4))
