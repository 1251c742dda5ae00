"""The functions of the prelude that are ours: their numbers, read from the CUDA text itself."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from ml_dtypes import bfloat16
from numpy.typing import NDArray
from scipy.special import ndtr

from weft.codegen.gpu.spelling.prelude import instructions

Array = NDArray[Any]


def polynomial(name: str) -> list[np.float64]:
    """The coefficients of a gelu, from the highest power down."""
    body = instructions.COMMON.partition(f"INLINE float {name}(")[2].partition("\n}\n")[0]
    start = re.findall(r"float p = (-?0x[0-9a-f.]+p[-+]?\d+)f", body)
    rest = re.findall(r"fmaf\(p, t, (-?[0-9a-fx.]+(?:p[-+]?\d+)?)f\)", body)
    return [
        np.float64(float.fromhex(number) if "x" in number else number) for number in start + rest
    ]


def gelu(x: Array, name: str = "gelu") -> Array:
    """What the CUDA function computes: fused multiply-adds round once."""
    first, *rest = polynomial(name)
    t = np.minimum(np.abs(x), np.float32(16)).astype(np.float64)
    p = np.full_like(t, first)
    for number in rest:
        p = (p * t + number).astype(np.float32).astype(np.float64)
    tail = np.where(p < -126, 0, np.exp2(p)).astype(np.float32).astype(np.float64)
    return np.asarray(np.maximum(x, 0) - t * tail, np.float32)


def test_gelu_is_as_accurate_as_it_says() -> None:
    x = np.linspace(-30, 30, 400_001, dtype=np.float32)
    exact = x.astype(np.float64) * ndtr(x.astype(np.float64))
    error = np.abs(gelu(x).astype(np.float64) - exact)
    ulps = error / np.spacing(np.abs(exact).astype(np.float32))
    assert len(polynomial("gelu")) == 11
    assert ulps[(x > -1) & (x != 0)].max() < 3
    relative = error[x < 0] / np.abs(exact[x < 0]).clip(1e-300)
    assert relative[x[x < 0] > -5.5].max() < 5e-6
    assert error[x < -5.5].max() < 2e-12
    assert gelu(np.asarray([np.inf, -np.inf], np.float32)).tolist() == [np.inf, 0]


def test_the_loose_gelu_has_the_digits_of_16_bits() -> None:
    """Of results in bf16 all are within 0.51 units of the last place, two in a thousand are not the
    nearest."""
    x = np.linspace(-5.5, 30, 800_001, dtype=np.float32)
    exact = x.astype(np.float64) * ndtr(x.astype(np.float64))
    found = gelu(x, "loose_gelu")
    relative = np.abs(found - exact) / np.abs(exact).clip(1e-300)
    assert len(polynomial("loose_gelu")) == 8
    assert relative[x > -5].max() < 2e-5
    assert relative.max() < 5e-5
    nearest = exact.astype(np.float32).astype(bfloat16)
    other = found.astype(bfloat16) != nearest
    assert other[x < 0].mean() < 2e-3
    assert other[x > 0].mean() < 2e-4
    steps = np.abs(found.astype(bfloat16).view(np.int16).astype(int) - nearest.view(np.int16))
    assert steps.max() == 1


def test_the_loose_gelu_falls_to_zero() -> None:
    x = np.linspace(-20, -5.5, 100_001, dtype=np.float32)
    exact = x.astype(np.float64) * ndtr(x.astype(np.float64))
    found = gelu(x, "loose_gelu").astype(np.float64)
    near = x > -9
    assert (np.abs(found - exact)[near] / np.abs(exact[near])).max() < 0.1
    assert np.abs(found - exact).max() < 1e-9
    assert (found[x < -13.5] == 0).all()
    assert gelu(np.asarray([np.inf, -np.inf], np.float32), "loose_gelu").tolist() == [np.inf, 0]


def test_a_share_has_no_subnormal_reciprocal() -> None:
    """`loose_share`, whose instruction takes reciprocals below 2^-126 for zero."""
    body = instructions.COMMON.partition("INLINE float loose_share(")[2].partition("\n}\n")[0]
    assert "rcp.approx.ftz" in body
    assert "fmaf(p, 0.25f, 0.25f)" in body
    assert "a * 0.25f * r" in body
    below = np.float32(np.finfo(np.float32).max) * np.float32(0.25) + np.float32(0.25)
    assert 1 / np.float64(below) >= np.finfo(np.float32).tiny
