"""Programs beyond the precision of their dtypes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.cases import each
from weft.foundation.dtypes import CF64, F64, DType
from weft.ptir import Builder, Program, verify
from weft.ptir.types import leaves
from weft.testing import random_program, widen_arrays, widen_program
from weft.testing.widen import wide_dtype

Array = NDArray[Any]


def run_wide(program: Program, *inputs: Array) -> list[Array]:
    wide = widen_program(program)
    verify(wide)
    return weft.run(wide, widen_arrays(inputs))


def test_a_chain_of_narrow_ops_rounds_nothing() -> None:
    b = Builder()
    x = b.param("bf16", [3])
    y = b.cast(b.exp(b.cast(x, "f16")), "fp8_e5m2")
    program = b.build(b.reduce_sum(y * 0.375, [0]))
    x_values = np.asarray([0.5, 1.25, -2.0], ml_dtypes.bfloat16)
    (exact,) = run_wide(program, x_values)
    assert exact.dtype == np.float64
    assert exact == np.sum(np.exp([0.5, 1.25, -2.0]) * 0.375)
    (rounded,) = weft.run(program, [x_values])
    assert float(rounded) != float(exact)


@each("seed", range(40))
def test_no_narrow_float_is_left_but_where_the_dtype_is_the_meaning(seed: int) -> None:
    case = random_program(seed)
    wide = widen_program(case.program)
    verify(wide)
    for body in wide.bodies:
        narrow = {
            i.op.mnemonic
            for i in body.body
            for kind in leaves(i.output)
            if wide_dtype(kind.dtype) is not kind.dtype and not i.op.dtype_bound
        }
        assert narrow <= {"cast", "quantize"}
        for kind in (*body.parameters, *body.results):
            assert all(leaf.dtype is wide_dtype(leaf.dtype) for leaf in leaves(kind))


@each("seed", range(60))
def test_discrete_results_do_not_change(seed: int) -> None:
    """Random programs feed exact values to whatever jumps."""
    case = random_program(seed)
    exact = run_wide(case.program, *case.inputs)
    for a, b in zip(weft.run(case.program, case.inputs), exact, strict=True):
        if a.dtype == b.dtype and a.dtype.kind in "bui":
            assert np.array_equal(a, b)
        else:
            assert np.array_equal(np.isnan(a.astype(b.dtype)), np.isnan(b))


def test_random_numbers_keep_their_dtype() -> None:
    b = Builder()
    program = b.build(
        b.emit("rng_uniform", shape=[64], dtype="f16"),
        b.emit("rng_normal", shape=[64], dtype="f32"),
    )
    plain = weft.run(program)
    wide = run_wide(program)
    for a, b_ in zip(plain, wide, strict=True):
        assert b_.dtype == np.float64
        assert np.array_equal(a.astype(np.float64), b_)


def test_nextafter_stays_a_neighbour_in_its_dtype() -> None:
    b = Builder()
    x = b.param("f32", [2])
    program = b.build(b.emit("nextafter", x, b.full([2], 2.0, "f32")))
    (exact,) = run_wide(program, np.asarray([1.0, 0.0], np.float32))
    assert exact.tolist() == [1 + 2.0**-23, 2.0**-149]


def test_bits_are_those_of_the_dtype() -> None:
    b = Builder()
    x = b.param("f32", [2])
    bits = b.emit("bitcast", x, dtype="si32")
    program = b.build(bits, b.emit("bitcast", bits, dtype="f32"))
    values = np.array([1.5, -0.0], np.float32)
    whole, back = run_wide(program, values)
    assert whole.dtype == np.int32
    assert np.array_equal(whole, values.view(np.int32))
    assert back.dtype == np.float64
    assert np.array_equal(back, values)


@pytest.mark.parametrize(("kind", "end"), [("max", -448.0), ("min", 448.0)])
def test_the_maximum_of_nothing_in_a_dtype_without_infinity(kind: str, end: float) -> None:
    b = Builder()
    x = b.param("fp8_e4m3", [2, 0])
    program = b.build(b.emit(f"reduce_{kind}", x, axes=[1], keepdims=False))
    empty = np.zeros((2, 0), ml_dtypes.float8_e4m3fn)
    (plain,) = weft.run(program, [empty])
    (exact,) = run_wide(program, empty)
    assert plain.astype(np.float64).tolist() == exact.tolist() == [end, end]


def test_segments_and_windows_without_elements() -> None:
    b = Builder()
    x = b.param("fp8_e4m3", [3])
    ids = b.literal([0, 0, 2], "si32")
    segments = b.emit("segment_max", x, ids, num_segments=3, indices_are_sorted=True, unique=False)
    windows = b.emit(
        "reduce_window", x, window_dims=[1], strides=[1], padding=[(1, 0)], base_dilation=[1],
        window_dilation=[1], reduce="min",
    )  # fmt: skip
    program = b.build(segments, windows)
    values = np.asarray([1.5, -2.0, 3.0], ml_dtypes.float8_e4m3fn)
    for a, exact in zip(weft.run(program, [values]), run_wide(program, values), strict=True):
        assert a.astype(np.float64).tolist() == exact.tolist()


def test_a_padding_value_is_rounded_first() -> None:
    b = Builder()
    x = b.param("bf16", [1])
    program = b.build(b.emit("pad", x, low=[1], high=[0], interior=[0], pad_value=0.1))
    (exact,) = run_wide(program, np.asarray([1.0], ml_dtypes.bfloat16))
    assert exact.tolist() == [float(ml_dtypes.bfloat16(0.1)), 1.0]


def test_literals_constants_and_regions_are_widened() -> None:
    b = Builder()
    x = b.param("f32", [])
    p = b.param("i1", [])

    def on_true(r: Any, v: Any) -> Any:
        return v + r.constant(np.float32(0.1))

    def on_false(r: Any, v: Any) -> Any:
        return r.emit("mul", v, r.literal(np.float32(0.1)))

    program = b.build(b.cond(p, on_true, on_false, x))
    tenth = float(np.float32(0.1))
    for flag, expected in ((True, 3.0 + tenth), (False, 3.0 * tenth)):
        (exact,) = run_wide(program, np.asarray(3.0, np.float32), np.asarray(flag))
        assert exact == expected


def test_integers_are_left_alone() -> None:
    b = Builder()
    x = b.param("si8", [4])
    program = b.build(b.emit("mul", x, x))
    assert widen_program(program) == program


@pytest.mark.parametrize(
    ("name", "wide"), [("bf16", F64), ("fp8_e4m3", F64), ("f64", F64), ("cf32", CF64)]
)
def test_arrays_are_widened_without_loss(name: str, wide: DType) -> None:
    dtype = weft.ptir.tensor(name).dtype
    (made,) = widen_arrays([np.asarray([0.5, -2.0]).astype(dtype.numpy)])
    assert made.dtype == wide.numpy
    assert made.tolist() == [0.5, -2.0]
