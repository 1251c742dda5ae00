"""Copies that pick from the last dimensions of a tensor read together what lies together."""

from __future__ import annotations

import numpy as np

import weft
from tests.support.gpu_programs import through_stages
from weft.ptir import Builder, Program
from weft.region.ir import Kernel, Module, Pattern


def turned(results: int, channels: int) -> Program:
    """Filters with the taps of their window in another order, the channels of the results last."""
    b = Builder()
    w = b.transpose(b.param("f32", [results, channels, 3, 3]), [2, 3, 1, 0])
    back = b.constant(np.array([1, 2, 0]), "si64")
    w = b.transpose(b.emit("take", w, back), [1, 0, 2, 3])
    return b.build(b.transpose(b.emit("take", w, back), [1, 0, 2, 3]))


def copy_in(program: Program) -> Kernel:
    module: Module = through_stages(program, "cpu")["region"]
    (found,) = [kernel for kernel in module.kernels if kernel.pattern is Pattern.MAP]
    return found


def test_the_axes_that_pick_are_last() -> None:
    assert [axis.size for axis in copy_in(turned(32, 24)).axes] == [24, 32, 3, 3]


def test_the_order_of_few_elements_stays() -> None:
    assert [axis.size for axis in copy_in(turned(8, 6)).axes] == [3, 3, 6, 8]


def test_the_copy_is_what_the_reference_makes() -> None:
    program = turned(32, 24)
    data = [np.random.default_rng(0).standard_normal((32, 24, 3, 3)).astype(np.float32)]
    (found,), (wanted,) = (weft.run(program, data, backend=b) for b in ("cpu", "reference"))
    np.testing.assert_array_equal(found, wanted)


def test_rows_that_are_picked_stay_in_order() -> None:
    b = Builder()
    x, rows = b.param("f32", [50, 128]), b.param("si64", [48])
    assert [axis.size for axis in copy_in(b.build(b.emit("take", x, rows))).axes] == [48, 128]
