"""layer_norm as an op."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from weft.foundation.dtypes import F32, F64, DType
from weft.testing.conformance.case import Case, Trial, Wanted
from weft.testing.conformance.cases.common import Array, Shape, apply, case, defined, trial
from weft.testing.conformance.data import sample
from weft.testing.conformance.oracles.normalisation import layer_norm, rounding
from weft.testing.conformance.oracles.rounding import wide
from weft.testing.conformance.tolerance import PerTensor

LAYOUTS: dict[str, tuple[Shape, int]] = {
    "line": ((8,), 0),
    "last": ((3, 16), 1),
    "negative": ((3, 16), -1),
    "first": ((16, 3), 0),
    "middle": ((2, 5, 4), -2),
    "one-feature": ((4, 1), 1),
    "no-rows": ((0, 4), 1),
    "no-features": ((3, 0), 1),
    "large": ((17, 131), 1),
}


def cases() -> Iterator[Case]:
    """Every layout and dtype, and what happens to constant rows, large means and NaN."""
    for dtype in defined("layer_norm"):
        for name, (shape, axis) in LAYOUTS.items():
            make = partial(_layer_norm, dtype, shape, axis, 1e-5)
            yield case("layer_norm", dtype, name, trial=make)
        make = partial(_layer_norm, dtype, (3, 5), 1, 1e-3, symbols=["?A", "?B"])
        yield case("layer_norm", dtype, "dynamic", trial=make)
        for epsilon in (0.0, 1.0):
            make = partial(_layer_norm, dtype, (3, 16), 1, epsilon)
            yield case("layer_norm", dtype, f"epsilon={epsilon}", trial=make)
        yield case("layer_norm", dtype, "shifted", trial=partial(_make_far_from_zero, dtype))
        yield case("layer_norm", dtype, "special", trial=partial(_trial_of_special, dtype))


def _layer_norm(
    dtype: DType, shape: Shape, axis: int, epsilon: float, symbols: list[str] | None = None
) -> Trial:
    x = sample(dtype, shape, "layer_norm", scale=1.0)
    return _trial(x, dtype, axis, epsilon, symbols)


def _trial(
    x: Array, dtype: DType, axis: int, epsilon: float, symbols: list[str] | None = None
) -> Trial:
    place = axis % x.ndim
    gamma, beta = (sample(dtype, (x.shape[place],), "layer_norm", i, scale=1.0) for i in (1, 2))
    work = F64 if dtype is F64 else F32
    exact = layer_norm(wide(x), wide(gamma), wide(beta), epsilon, place)
    one, two, three = (a.astype(np.float64) for a in (x, gamma, beta))
    plain = layer_norm(one, two, three, epsilon, place, rounding(work))
    far = np.abs(plain.astype(exact.dtype) - exact)
    error = float(np.max(np.where(np.isfinite(far), far, 0), initial=0.0))
    dims = [symbols, symbols[1:], symbols[1:]] if symbols else None
    inputs = [x, gamma, beta]
    build = apply("layer_norm", inputs, dims=dims, epsilon=epsilon, feature_axis=axis)
    return trial(build, inputs, Wanted(exact, dtype, PerTensor(work, error)))


def _make_far_from_zero(dtype: DType) -> Trial:
    """Rows far from 0, where E[x^2] - E[x]^2 would be noise."""
    x = (sample(dtype, (4, 8), "shifted", scale=1.0) + np.array(12.0, dtype.numpy)).astype(
        dtype.numpy
    )
    return _trial(x, dtype, 1, 1e-5)


def _trial_of_special(dtype: DType) -> Trial:
    """NaN and infinities stay in their rows; a constant row becomes beta."""
    x = sample(dtype, (4, 6), "special", scale=1.0)
    x[0, 2] = np.nan
    x[1] = np.ones((), dtype.numpy)
    if dtype.name != "fp8_e4m3":
        x[2, 1] = np.inf
    return _trial(x, dtype, 1, 1e-5)
