"""Values to try the elementwise functions on, and what NumPy takes them for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.support.one_op import Array, bits
from weft.foundation.dtypes import F32, DType
from weft.ptir.op import Op
from weft.ptir.ops import functions as f

Oracle = Callable[..., Any]
ANALYTIC: dict[type[Op], Oracle] = {
    f.Sqrt: np.sqrt,
    f.Sin: np.sin,
    f.Cos: np.cos,
    f.Tan: lambda x: np.sin(x) / np.cos(x),
    f.Asin: np.arcsin,
    f.Acos: np.arccos,
    f.Atan: np.arctan,
    f.Sinh: np.sinh,
    f.Cosh: np.cosh,
    f.Asinh: np.arcsinh,
    f.Acosh: np.arccosh,
    f.Atanh: np.arctanh,
    f.Expm1: np.expm1,
    f.Log1p: np.log1p,
    f.Exp2: np.exp2,
    f.Log2: np.log2,
    f.Log10: np.log10,
}


def patterns(dtype: DType) -> Array:
    """Every value of a narrow float; for f32 and f64 random bit patterns and the special ones."""
    width = dtype.bits
    if width <= 16:
        stored = np.arange(1 << width, dtype=f"u{width // 8}")
        return stored.view(dtype.numpy)
    rng = np.random.default_rng(width)
    stored = rng.integers(0, 1 << width, 20_000, dtype=f"u{width // 8}", endpoint=False)
    return np.concatenate([stored.view(dtype.numpy), specials(dtype)])


def specials(dtype: DType) -> Array:
    values = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 3.0, 1e-30]
    return np.asarray(values, np.float32).astype(dtype.numpy)


def spread(dtype: DType) -> Array:
    """Values over the whole range, around 1, within [-1, 1], and the special ones."""
    rng = np.random.default_rng(dtype.bits)
    reach = 37 if dtype is F32 else 300
    n = 4000
    parts = [
        10.0 ** rng.uniform(-reach, reach, n) * rng.choice([-1, 1], n),
        rng.standard_normal(n) * 8,
        rng.uniform(-1, 1, n),
        1 + rng.standard_normal(n) * 1e-4,
    ]
    return np.concatenate([np.concatenate(parts).astype(dtype.numpy), specials(dtype)])


def same_values(out: Array, want: Array) -> None:
    """Equal bit for bit, except that every NaN is like every other."""
    assert out.dtype == want.dtype
    nan = np.isnan(want.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(out.astype(np.float64)), nan)
    assert bits(out[~nan]) == bits(want[~nan])
