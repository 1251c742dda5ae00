"""The rule by which results are judged, at its edges."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.cases import each
from weft.foundation.dtypes import ALL, BF16, F16, F32, F64, FP8_E4M3, FP8_E5M2, DType, as_dtype
from weft.testing import compare_results
from weft.testing.tolerance import ulp

Array = NDArray[Any]
FLOATS = [FP8_E4M3, FP8_E5M2, BF16, F16, F32, F64]


def f32(*values: float) -> Array:
    return np.asarray(values, np.float32)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_an_ulp_is_the_distance_to_the_next_number(dtype: DType) -> None:
    one = np.ones((), dtype.numpy)
    bits = one.reshape(1).view(f"u{one.itemsize}")
    after = (bits + 1).astype(bits.dtype).view(dtype.numpy)
    assert ulp(1.0, dtype) == float(after[0]) - 1.0
    tiny = float(ml_dtypes.finfo(dtype.numpy).smallest_subnormal)  # type: ignore[no-untyped-call]
    assert ulp(0.0, dtype) == tiny
    assert ulp(tiny, dtype) == tiny
    assert ulp(1.5, dtype) == ulp(-1.0, dtype) == ulp(2.0, dtype) / 2


@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=str)
def test_four_ulps_of_the_largest_element_pass_and_more_do_not(dtype: DType) -> None:
    exact = np.asarray([1.0, 0.01, -0.5])
    ref = exact.astype(np.float32).astype(dtype.numpy)
    error = float(np.max(np.abs(ref.astype(np.float64) - exact)))
    unit = ulp(1.0, dtype)
    near, far = (exact + np.asarray([steps * unit, 0, 0]) for steps in (4, 8))
    good, bad = (x.astype(np.float32).astype(dtype.numpy) for x in (near, far))
    assert compare_results(good, ref, exact).passed
    found = compare_results(bad, ref, exact)
    assert not found.passed
    assert found.where == (0,)
    assert found.bound == 2 * error + 4 * unit
    assert found.error == pytest.approx(8 * unit, abs=unit)


def test_twice_the_error_of_the_reference_passes() -> None:
    exact, ref = np.asarray([100.0]), f32(100.5)
    assert compare_results(f32(99.0), ref, exact).passed
    assert not compare_results(f32(98.99), ref, exact).passed
    # Without an exact value the reference's own counts as exact.
    assert not compare_results(f32(100.4), ref).passed
    assert compare_results(f32(100.5), ref).passed


def test_the_spread_counts_where_the_reference_was_lucky() -> None:
    exact, ref = np.asarray([1.0]), f32(1.0)
    out = f32(1.001)
    assert not compare_results(out, ref, exact).passed
    assert compare_results(out, ref, exact, spread=0.0005).passed
    assert not compare_results(out, ref, exact, spread=0.0004).passed


def test_f64_has_64_ulps() -> None:
    ref = np.asarray([1.0])
    unit = ulp(1.0, F64)
    assert compare_results(ref + 64 * unit, ref).passed
    assert not compare_results(ref + 65 * unit, ref).passed
    complex_ref = np.asarray([1.0 + 0j])
    assert compare_results(complex_ref + 60j * unit, complex_ref).passed
    assert not compare_results(complex_ref + 70j * unit, complex_ref).passed


@pytest.mark.parametrize("dtype", [d for d in ALL if not d.is_float and not d.is_complex], ids=str)
def test_integers_must_be_equal(dtype: DType) -> None:
    ref = np.asarray([0, 1, 1, 0]).astype(dtype.numpy)
    out = np.asarray([0, 1, 0, 0]).astype(dtype.numpy)
    assert compare_results(ref.copy(), ref).passed
    found = compare_results(out, ref)
    assert not found.passed
    assert found.where == (2,)
    assert found.reason.startswith("1 of 4 elements differ; at [2] it is")


def test_complex_numbers_err_as_a_whole() -> None:
    exact = np.asarray([3.0 + 4.0j])
    ref = exact.astype(np.complex64)
    unit = ulp(5.0, F32)
    assert compare_results((exact + 3 * unit).astype(np.complex64), ref, exact).passed
    assert compare_results((exact + 3j * unit).astype(np.complex64), ref, exact).passed
    assert not compare_results((exact + (4 + 4j) * unit).astype(np.complex64), ref, exact).passed


SPECIAL = [
    (np.nan, np.nan, True),
    (np.inf, np.inf, True),
    (-np.inf, -np.inf, True),
    (np.inf, -np.inf, False),
    (np.nan, np.inf, False),
    (1.0, np.nan, False),
    (np.nan, 1.0, False),
    (np.inf, 1.0, False),
    (0.0, -0.0, True),
]


@each(("out", "ref", "passed"), SPECIAL)
@each("dtype", [F32, F64, F16, BF16, FP8_E5M2])
def test_nan_and_infinities_stand_where_the_reference_has_them(
    out: float, ref: float, passed: bool, dtype: DType
) -> None:
    got, wanted = (np.asarray([x, 2.0], np.float32).astype(dtype.numpy) for x in (out, ref))
    found = compare_results(got, wanted)
    assert found.passed is passed
    if not passed:
        assert found.where == (0,)


def test_an_exact_value_that_is_not_finite_gives_way_to_the_reference() -> None:
    assert compare_results(f32(2.0), f32(2.0), np.asarray([np.nan])).passed
    assert not compare_results(f32(3.0), f32(2.0), np.asarray([np.inf])).passed


def test_next_to_the_largest_number_either_side_may_overflow() -> None:
    top = float(np.finfo(np.float16).max)
    exact = np.asarray([top * 1.0005])
    big, inf = np.asarray([top], np.float16), np.asarray([np.inf], np.float16)
    assert compare_results(inf, big, exact).passed
    assert compare_results(big, inf, exact).passed
    assert not compare_results(-inf, np.asarray([1.0], np.float16), np.asarray([1.0])).passed
    assert not compare_results(inf, big, np.asarray([top / 2])).passed
    assert not compare_results(-inf, big, exact).passed
    assert not compare_results(np.asarray([np.nan], np.float16), big, exact).passed
    # Far beyond, everybody overflows.
    assert not compare_results(big, inf, np.asarray([2 * top])).passed
    e4m3 = np.asarray([448.0, np.nan], np.float32).astype(FP8_E4M3.numpy)
    assert compare_results(e4m3[1:], e4m3[:1], np.asarray([460.0])).passed


def test_complex_infinities_are_one_kind() -> None:
    ref = np.asarray([complex(np.inf, np.nan)])
    assert compare_results(np.asarray([complex(np.nan, np.inf)]), ref).passed
    assert not compare_results(np.asarray([complex(np.nan, np.nan)]), ref).passed
    assert not compare_results(np.asarray([1.0 + 0j]), ref).passed


def test_types_must_be_those_of_the_reference() -> None:
    found = compare_results(np.zeros(3, np.float64), np.zeros(3, np.float32))
    assert found.reason == "the result is float64[3], not f32[3]"
    found = compare_results(np.zeros((3, 1), np.float32), np.zeros(3, np.float32))
    assert found.reason == "the result is float32[3, 1], not f32[3]"


@pytest.mark.parametrize("shape", [(), (0,), (2, 0)])
def test_rank_0_and_empty_tensors(shape: tuple[int, ...]) -> None:
    for dtype in (F32, as_dtype("si32"), as_dtype("cf32")):
        zeros = np.zeros(shape, dtype.numpy)
        assert compare_results(zeros, zeros.copy(), zeros.copy()).passed
    assert not compare_results(np.asarray(1.0), np.asarray(2.0)).passed


def test_a_failure_reads_as_a_sentence() -> None:
    found = compare_results(f32(1.0, 2.0), f32(1.0, 1.0))
    assert str(found) == (
        "at [1] it is 2.0, the reference has 1.0 and exact is 1: the error 1 exceeds 4.77e-07"
    )
    assert str(compare_results(f32(1.0), f32(1.0))).startswith("within bounds: error 0 of")
