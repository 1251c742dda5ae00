"""What the conformance kit takes for equal, and what the documentation says of it."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np

import weft
from weft.foundation.dtypes import CF32, F16, F32
from weft.testing.conformance.bounds import markdown
from weft.testing.conformance.tolerance import Exact, PerTensor, Ulps

DOCS = Path(weft.__file__).parents[2] / "docs" / "conformance.md"


def test_exact_tells_zeros_apart_and_lets_any_nan_stand_for_nan() -> None:
    want = np.array([0.0, -0.0, np.nan, 1.0], np.float32)
    got = np.array([-0.0, -0.0, -np.nan, 1.0], np.float32)
    assert Exact().accepts(got, want, F32).tolist() == [False, True, True, True]
    assert Exact(zeros=False).accepts(got, want, F32).all()


def test_ulps_are_those_of_the_dtype_at_the_exact_value() -> None:
    exact = np.array([1.0, 1.0, 1.0, 3.0e38, np.inf, np.nan])
    spacing = 2.0**-23
    got = np.array([1 + 2 * spacing, 1 + 3 * spacing, 1 - spacing, np.inf, np.inf, 0.0], np.float32)
    passed = Ulps(2.0).accepts(got, exact, F32)
    assert passed.tolist() == [True, False, True, False, True, False]


def test_overflow_is_admitted_where_it_is_near() -> None:
    largest = float(ml_dtypes.finfo(np.float16).max)  # type: ignore[no-untyped-call]
    exact = np.array([largest + 14.0, largest + 14.0, largest / 2])
    got = np.array([largest, np.inf, np.inf], np.float16)
    assert Ulps(2.0).accepts(got, exact, F16).tolist() == [True, True, False]


def test_per_tensor_bounds_come_from_the_plain_evaluation_and_the_largest_element() -> None:
    exact = np.array([1024.0, 1.0])
    step = 1024 * 2.0**-23
    rule = PerTensor(F32, error=step)
    for error, passes in ((6 * step, True), (7 * step, False)):
        got = (exact + np.array([0, error])).astype(np.float32)
        assert bool(rule.accepts(got, exact, F32).all()) is passes
    # A narrower result may differ by its own rounding, and by no more than that.
    half = np.array([1024.0, 1.0 + 2.0**-11])
    assert rule.accepts(half.astype(np.float16), half, F16).all()
    assert not rule.accepts(np.array([1024.0, 1.01], np.float16), exact, F16).all()


def test_complex_numbers_err_as_a_whole() -> None:
    exact = np.array([3.0 + 4e-9j], np.complex128)
    rule = Ulps(4.0, zeros=False)
    assert rule.accepts(np.array([3.0 + 5e-9j], np.complex64), exact, CF32).all()
    assert not rule.accepts(np.array([3.0 + 4e-5j], np.complex64), exact, CF32).all()


def test_the_documented_tolerances_are_those_of_the_kit() -> None:
    assert markdown() in DOCS.read_text()
