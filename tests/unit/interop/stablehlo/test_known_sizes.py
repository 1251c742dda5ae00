"""Modules that compute with sizes, as jax exports them: sizes are followed through integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import weft
from tests.support.command_line import weft_command
from weft.foundation.errors import SpecViolation, Unimplemented, UserError
from weft.interop import stablehlo

HALF = """
module {
  func.func public @main(%x: tensor<?x4xf32>) -> tensor<?x4xf32> {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %b = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x4xf32>) -> tensor<i32>
    %fits = stablehlo.compare GE, %b, %one, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.custom_call @shape_assertion(%fits, %b) {api_version = 2 : i32,
      error_message = "expected at least one row", has_side_effect = true}
      : (tensor<i1>, tensor<i32>) -> ()
    %r = call @wrapped(%b, %x) : (tensor<i32>, tensor<?x4xf32>) -> tensor<?x4xf32>
    return %r : tensor<?x4xf32>
  }
  func.func private @wrapped(%b: tensor<i32>, %x: tensor<?x4xf32>) -> tensor<?x4xf32> {
    %two = stablehlo.constant dense<2> : tensor<i32>
    %c = stablehlo.constant dense<4> : tensor<1xi32>
    %zero = stablehlo.constant dense<0> : tensor<2xi32>
    %ones = stablehlo.constant dense<1> : tensor<2xi32>
    %h = stablehlo.divide %b, %two : tensor<i32>
    %h1 = stablehlo.reshape %h : (tensor<i32>) -> tensor<1xi32>
    %limit = stablehlo.concatenate %h1, %c, dim = 0
      : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
    %r = stablehlo.real_dynamic_slice %x, %zero, %limit, %ones
      : (tensor<?x4xf32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<?x4xf32>
    return %r : tensor<?x4xf32>
  }
}
"""
"""The first half of the rows."""

SUM = """
func.func public @main(%x: tensor<?x4xf32>, %y: tensor<?x4xf32>) -> tensor<?x4xf32> {
  %a = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x4xf32>) -> tensor<i32>
  %b = stablehlo.get_dimension_size %y, dim = 0 : (tensor<?x4xf32>) -> tensor<i32>
  %same = stablehlo.compare EQ, %a, %b, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
  stablehlo.custom_call @shape_assertion(%same, %a)
    {error_message = "rows differ", has_side_effect = true}
    : (tensor<i1>, tensor<i32>) -> ()
  return %x : tensor<?x4xf32>
}
"""
COUNTED = """
func.func public @main(%n: tensor<i64>, %x: tensor<f32>) -> tensor<?xf32> {
  %size = stablehlo.reshape %n : (tensor<i64>) -> tensor<1xi64>
  %r = stablehlo.dynamic_broadcast_in_dim %x, %size, dims = []
    : (tensor<f32>, tensor<1xi64>) -> tensor<?xf32>
  return %r : tensor<?xf32>
}
"""


def test_sizes_are_computed_where_the_shapes_are_given() -> None:
    x = np.arange(24, dtype=np.float32).reshape(6, 4)
    (found,) = weft.run(stablehlo.loads(HALF, [(6, 4)]), [x], backend="reference")
    np.testing.assert_array_equal(found, x[:3])


def test_without_shapes_the_refusal_says_what_must_be_known() -> None:
    with pytest.raises(Unimplemented, match="computed from other values than sizes"):
        stablehlo.loads(HALF)


def test_a_broken_assertion_is_told_in_the_words_of_the_module() -> None:
    with pytest.raises(SpecViolation, match="expected at least one row"):
        stablehlo.loads(HALF, [(0, 4)])
    with pytest.raises(SpecViolation, match="rows differ"):
        stablehlo.loads(SUM, [(2, 4), (3, 4)])


def test_sizes_that_are_asserted_to_be_equal_become_one() -> None:
    x, y = stablehlo.loads(SUM).main.parameters
    assert x == y


def test_a_size_that_comes_as_a_number_is_no_input_any_more() -> None:
    program = stablehlo.loads(COUNTED, [5, ()])
    assert len(program.main.parameters) == 1
    (found,) = weft.run(program, [np.float32(2)], backend="reference")
    np.testing.assert_array_equal(found, np.full(5, 2, np.float32))


@pytest.mark.parametrize(
    ("shapes", "why"),
    [
        ([], "takes 1 inputs, and 0 are described"),
        ([(6, 5)], r"input 0 is f32\[\?, 4\], and its shape is given as \[6, 5\]"),
        ([(6,)], "its shape is given as"),
        ([6], "not a whole number, and is given as 6"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shapes: list[object], why: str) -> None:
    with pytest.raises(UserError, match=why):
        stablehlo.loads(HALF, shapes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "scipy_name"), [("lgamma", "gammaln"), ("digamma", "digamma"), ("bessel_i1e", "i1e")]
)
def test_functions_of_chlo_are_those_of_special(name: str, scipy_name: str) -> None:
    from scipy import special

    text = f"""func.func @main(%x: tensor<5xf64>) -> tensor<5xf64> {{
      %r = chlo.{name} %x : tensor<5xf64> -> tensor<5xf64>
      return %r : tensor<5xf64>
    }}"""
    x = np.array([0.1, 0.9, 2.5, 7.0, 31.0])
    (found,) = weft.run(stablehlo.loads(text), [x], backend="reference")
    np.testing.assert_allclose(found, getattr(special, scipy_name)(x), rtol=1e-13)


def test_orders_of_polygamma_may_differ_by_element() -> None:
    from scipy import special

    text = """func.func @main(%n: tensor<4xf64>, %x: tensor<4xf64>) -> tensor<4xf64> {
      %r = chlo.polygamma %n, %x : tensor<4xf64>, tensor<4xf64> -> tensor<4xf64>
      return %r : tensor<4xf64>
    }"""
    n, x = np.array([0.0, 1.0, 2.0, 5.0]), np.array([0.5, 1.5, 3.0, 2.0])
    (found,) = weft.run(stablehlo.loads(text), [n, x], backend="reference")
    np.testing.assert_allclose(found, special.polygamma(n.astype(int), x), rtol=1e-12)


def test_weft_run_gives_the_reader_the_shapes_of_the_inputs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "half.mlir").write_text(HALF)
    x = np.arange(24, dtype=np.float32).reshape(6, 4)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x)
    for words in (("--input", f"0={tmp_path / 'x.npy'}"), ("--inputs", tmp_path / "x.npz")):
        assert weft_command("run", tmp_path / "half.mlir", *words, "--out", tmp_path / "y.npz") == 0
        np.testing.assert_array_equal(np.load(tmp_path / "y.npz")["arr_0"], x[:3])
    assert weft_command("run", tmp_path / "half.mlir") == 1
    assert "computed from other values than sizes" in capfd.readouterr().err
