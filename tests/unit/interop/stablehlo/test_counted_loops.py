"""A scan of JAX, which arrives as a loop with a counter: it has a gradient all the same."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft.interop import stablehlo
from weft.ptir.gradient import gradient
from weft.ptir.ir import Program
from weft.ptir.ops.control import Scan, While

SCAN = """
func.func public @main(%x: tensor<3xf32>, %w: tensor<f32>) -> tensor<f32> {
  %start = stablehlo.constant dense<5.0e-01> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %empty = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<3xf32>
  %first = stablehlo.constant dense<0> : tensor<i32>
  %1:5 = stablehlo.while(%xs = %x, %v = %w, %i = %first, %c = %start, %ys = %empty)
      : tensor<3xf32>, tensor<f32>, tensor<i32>, tensor<f32>, tensor<3xf32>
  cond {
    %end = stablehlo.constant dense<3> : tensor<i32>
    %2 = stablehlo.compare LT, %i, %end, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %2 = stablehlo.dynamic_slice %xs, %i, sizes = [1]
        : (tensor<3xf32>, tensor<i32>) -> tensor<1xf32>
    %3 = stablehlo.reshape %2 : (tensor<1xf32>) -> tensor<f32>
    %4 = stablehlo.multiply %c, %v : tensor<f32>
    %5 = stablehlo.add %4, %3 : tensor<f32>
    %6 = stablehlo.sine %5 : tensor<f32>
    %7 = stablehlo.broadcast_in_dim %6, dims = [] : (tensor<f32>) -> tensor<1xf32>
    %8 = stablehlo.dynamic_update_slice %ys, %7, %i
        : (tensor<3xf32>, tensor<1xf32>, tensor<i32>) -> tensor<3xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %9 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %xs, %v, %9, %6, %8
        : tensor<3xf32>, tensor<f32>, tensor<i32>, tensor<f32>, tensor<3xf32>
  }
  %10 = stablehlo.multiply %1#4, %1#4 : tensor<3xf32>
  %11 = stablehlo.reduce(%10 init: %zero) applies stablehlo.add across dimensions = [0]
      : (tensor<3xf32>, tensor<f32>) -> tensor<f32>
  return %11 : tensor<f32>
}
"""


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_scan_from_jax_has_a_gradient(backend: str) -> None:
    made = gradient(stablehlo.loads(SCAN), [0, 1])
    inputs = [np.array([0.1, -0.4, 0.8], np.float32), np.array(0.7, np.float32)]
    _, by_x, by_w = weft.run(made, inputs, backend=backend)
    # What jax.grad gives for the function that this is the text of.
    assert by_x == pytest.approx([1.1004575, 0.50313187, 0.99456286], rel=1e-5)
    assert by_w == pytest.approx(0.6742134, rel=1e-5)


def kinds(program: Program) -> set[type]:
    return {type(i.op) for body in program.bodies for i in body.body} & {Scan, While}


def test_a_counted_loop_is_a_scan_when_it_is_read() -> None:
    program = stablehlo.loads(SCAN)
    assert kinds(program) == {Scan}
    weft.ptir.verify(program)
    inputs = [np.array([0.1, -0.4, 0.8], np.float32), np.array(0.7, np.float32)]
    (found,) = weft.run(program, inputs)
    c, total = 0.5, 0.0
    for x in inputs[0]:
        c = np.sin(c * 0.7 + x)
        total += c * c
    assert found == pytest.approx(total, rel=1e-5)


def test_a_loop_whose_turns_are_not_seen_stays_one() -> None:
    unseen = SCAN.replace("compare LT, %i, %end", "compare LT, %end, %end")
    assert kinds(stablehlo.loads(unseen)) == {While}
    long = SCAN.replace("dense<3> : tensor<i32>", "dense<1000000> : tensor<i32>")
    assert kinds(stablehlo.loads(long)) == {While}


def test_loops_of_jax_are_scans() -> None:
    jax = pytest.importorskip("jax")

    def f(x: object) -> object:
        turned = jax.lax.fori_loop(0, 4, lambda i, c: c * 1.5 + i, x)
        return jax.lax.scan(lambda c, row: (c + row, c * row), turned[0], turned)

    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    text = jax.export.export(jax.jit(f), platforms=["cpu"])(x).mlir_module()
    program = stablehlo.loads(text)
    assert kinds(program) == {Scan}
    wanted = jax.tree.leaves(f(x))
    for found, want in zip(weft.run(program, [x]), wanted, strict=True):
        np.testing.assert_allclose(found, np.asarray(want), rtol=1e-6)
