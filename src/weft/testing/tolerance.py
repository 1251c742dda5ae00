"""When a backend's result counts as right.

Integers and i1 are equal bit for bit. A float or complex tensor passes when

    max |out - exact|  <=  2 max |ref - exact|  +  n ulp of max |exact|

where `ref` is the reference's result, `exact` the same tensor computed beyond the dtype's precision
(`weft.testing.widen`), and n is 4. For f64 and cf64 nothing wider is at hand: what was computed in
f64 alone counts as exact, and n is 64.

The rule takes the reference's error as a measure of how hard the computation is. A tensor of few
elements may be right by luck, so a measure made some other way (`weft.testing.sensitivity`) can be
given as `spread`; the larger of the two counts.

NaN and infinities stand where the reference has them. Only where the exact value lies next to the
largest number of the dtype may one side have overflowed and the other not. Zeros of either sign are
equal here; the conformance kit looks at their signs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import F64, FP8_E4M3, DType, as_dtype
from weft.testing.facts import part_dtype, smallest

Array = NDArray[Any]

ULPS: Final = 4.0
ULPS_F64: Final = 64.0
"""There is no exact value for f64 to compare with: this has to cover the reference's own error."""


@dataclass(frozen=True)
class Comparison:
    """The outcome for one tensor."""

    passed: bool
    reason: str
    """What is wrong, in a sentence; empty when nothing is."""
    error: float = 0.0
    """The largest distance from the exact value."""
    bound: float = 0.0
    """The largest distance that would pass."""
    reference_error: float = 0.0
    where: tuple[int, ...] | None = None
    """The element that is wrong, or the one with the largest error."""

    def __str__(self) -> str:
        if not self.passed:
            return self.reason
        return f"within bounds: error {self.error:.3g} of {self.bound:.3g} allowed"


def compare_results(
    out: Array,
    ref: Array,
    exact: Array | None = None,
    dtype: DType | None = None,
    *,
    spread: float = 0.0,
    ulps: float | None = None,
) -> Comparison:
    """Judge `out` by the rule. Without `exact`, the reference's result is taken for exact."""
    kind = dtype or as_dtype(ref.dtype)
    if out.shape != ref.shape or out.dtype != kind.numpy:
        found = f"{out.dtype}{list(out.shape)}"
        return Comparison(False, f"the result is {found}, not {kind}{list(ref.shape)}")
    if not (kind.is_float or kind.is_complex):
        return _equal(out, ref)
    allowed = ulps if ulps is not None else (ULPS_F64 if part_dtype(kind) is F64 else ULPS)
    with np.errstate(all="ignore"):
        return _compare_near(out, ref, exact, kind, spread, allowed)


def ulp(value: float, dtype: DType) -> float:
    """The distance of neighbouring numbers of a float dtype (or of the parts of a complex one)."""
    real = part_dtype(dtype)
    if not math.isfinite(value) or value == 0:
        return smallest(real)
    exponent = math.frexp(value)[1]
    return max(math.ldexp(1.0, exponent - real.precision), smallest(real))


def _equal(out: Array, ref: Array) -> Comparison:
    different = np.asarray(out != ref)
    if not different.any():
        return Comparison(True, "")
    where = _first_index(different)
    count = int(np.count_nonzero(different))
    reason = (
        f"{count} of {out.size} elements differ; "
        f"at {list(where)} it is {out[where]}, not {ref[where]}"
    )
    return Comparison(False, reason, math.inf, 0.0, 0.0, where)


def _compare_near(
    out: Array, ref: Array, exact: Array | None, dtype: DType, spread: float, ulps: float
) -> Comparison:
    wide: Any = np.complex128 if dtype.is_complex else np.float64
    got, plain = out.astype(wide), ref.astype(wide)
    truth = plain if exact is None else np.asarray(exact).astype(wide)
    truth = np.where(np.isfinite(truth), truth, plain)
    finite = np.isfinite(got) & np.isfinite(plain)
    wrong = ~finite & ~_same_kind(got, plain) & ~_find_overflowing(got, truth, dtype)
    if wrong.any():
        where = _first_index(wrong)
        reason = f"at {list(where)} it is {out[where]}, where the reference has {ref[where]}"
        return Comparison(False, reason, math.inf, 0.0, 0.0, where)
    errors = np.where(finite, np.abs(got - truth), 0.0)
    reference_error = float(np.max(np.where(finite, np.abs(plain - truth), 0.0), initial=0.0))
    largest = float(np.max(np.where(finite, np.abs(truth), 0.0), initial=0.0))
    bound = 2 * max(reference_error, spread) + ulps * ulp(largest, dtype)
    error = float(np.max(errors, initial=0.0))
    worst = _first_index(errors == error) if errors.size else None
    if worst is None or error <= bound:
        return Comparison(True, "", error, bound, reference_error, worst)
    reason = (
        f"at {list(worst)} it is {out[worst]}, the reference has {ref[worst]} and exact is "
        f"{truth[worst]:.9g}: the error {error:.3g} exceeds {bound:.3g}"
    )
    return Comparison(False, reason, error, bound, reference_error, worst)


def _same_kind(a: Array, b: Array) -> Array:
    """Where both are NaN, or both the same infinity. A complex number with an infinite part is
    infinite, whatever the other part."""
    if a.dtype.kind == "c":
        return np.asarray(~np.isfinite(a) & ~np.isfinite(b) & (np.isinf(a) == np.isinf(b)))
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))


def _find_overflowing(got: Array, truth: Array, dtype: DType) -> Array:
    """Where the exact value is so near the largest number that rounding decides about overflow, and
    the result went either way."""
    if dtype.is_complex:
        real = _find_overflowing(got.real, truth.real, part_dtype(dtype))
        return np.asarray(real | _find_overflowing(got.imag, truth.imag, part_dtype(dtype)))
    info: Any = ml_dtypes.finfo
    # Four ulp of the largest number, which is nearly 2^p of them.
    top, slack = float(info(dtype.numpy).max), 2.0 ** (2 - dtype.precision)
    near = (np.abs(truth) >= top * (1 - slack)) & (np.abs(truth) <= top * (1 + slack))
    large = (np.abs(got) >= top * (1 - slack)) & (np.sign(got) == np.sign(truth))
    # fp8_e4m3 has no infinity: it overflows to NaN.
    return np.asarray(near & (large | (np.isnan(got) if dtype is FP8_E4M3 else False)))


def _first_index(mask: Array) -> tuple[int, ...]:
    """The index of the first element that is set."""
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(mask)), mask.shape))
