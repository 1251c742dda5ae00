"""Special functions of CHLO against the C library, SciPy and Python's integers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special

import weft

pytest.importorskip("jaxlib", reason="the extra weft[stablehlo] is not installed")

from tests.support.stablehlo_oracle import Array, function
from weft.interop import stablehlo
from weft.interop.stablehlo.dense import DTYPES


def apply(name: str, dtype: str, *inputs: Array) -> Array:
    kind = f"tensor<{len(inputs[0])}x{dtype}>"
    names = [f"%x{n}" for n in range(len(inputs))]
    types = ", ".join(kind for _ in names)
    body = f'%0 = "chlo.{name}"({", ".join(names)}) : ({types}) -> {kind}'
    text = function(", ".join(f"{n}: {kind}" for n in names), body, f"%0 : {kind}")
    return weft.run(stablehlo.loads(text), list(inputs), backend="reference")[0]


def assert_within(found: Array, exact: Array, ulps: float) -> None:
    least = np.abs(np.spacing(exact.astype(found.dtype))).astype(np.float64)
    away = np.abs(found.astype(np.float64) - exact)
    assert np.max(np.where(np.isfinite(exact), away / least, 0)) <= ulps


@pytest.mark.parametrize(("dtype", "ulps"), [("f32", 1), ("f64", 24)])
def test_erfc(dtype: str, ulps: float) -> None:
    x = np.concatenate([np.linspace(-6, 9 if dtype == "f32" else 26, 4001), [0.0, 0.5, -0.5]])
    x = x.astype(DTYPES[dtype].numpy)
    exact = np.array([math.erfc(v) for v in x.astype(np.float64)])
    assert_within(apply("erfc", dtype, x), exact, ulps)


@pytest.mark.parametrize(("dtype", "ulps"), [("f32", 1), ("f64", 24)])
def test_erf_inv(dtype: str, ulps: float) -> None:
    near = 1 - np.logspace(-15 if dtype == "f64" else -7, -1, 300)
    x = np.concatenate([np.linspace(-0.999, 0.999, 2001), near, -near, [0.0, 1e-30, -1e-9]])
    x = x.astype(DTYPES[dtype].numpy)
    assert_within(apply("erf_inv", dtype, x), special.erfinv(x.astype(np.float64)), ulps)


def test_ends() -> None:
    x = np.array([np.inf, -np.inf, np.nan, 40.0])
    assert apply("erfc", "f64", x).tolist()[:2] == [0.0, 2.0]
    assert np.isnan(apply("erfc", "f64", x)[2])
    assert apply("erfc", "f64", x)[3] == 0.0
    x = np.array([1.0, -1.0, 1.5, np.nan])
    found = apply("erf_inv", "f64", x)
    assert found.tolist()[:2] == [np.inf, -np.inf]
    assert np.isnan(found[2:]).all()


@pytest.mark.parametrize("dtype", ["i8", "ui8", "i32", "ui32", "i64", "ui64"])
def test_mulhi(dtype: str) -> None:
    kind = DTYPES[dtype]
    low, high = int(kind.lowest), int(kind.highest)
    values = [low, high, 0, 1, max(low, -1), high // 3, low // 7, high - 1]
    pairs = [(a, b) for a in values for b in values]
    x, y = (np.array(side, kind.numpy) for side in zip(*pairs, strict=True))
    found = apply("mulhi", dtype, x, y)
    assert [int(n) for n in found] == [(a * b) >> kind.bits for a, b in pairs]
