"""The functions of the prelude that are ours: their numbers, read from the CUDA text itself."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from weft.codegen.gpu.prelude import instructions

Array = NDArray[Any]


def polynomial() -> list[np.float64]:
    """The coefficients of `gelu`, from the highest power down."""
    body = instructions.COMMON.partition("INLINE float gelu")[2].partition("\n}\n")[0]
    start = re.findall(r"float p = (-?0x[0-9a-f.]+p[-+]?\d+)f", body)
    rest = re.findall(r"fmaf\(p, t, (-?[0-9a-fx.]+(?:p[-+]?\d+)?)f\)", body)
    return [
        np.float64(float.fromhex(number) if "x" in number else number) for number in start + rest
    ]


def gelu(x: Array) -> Array:
    """What the CUDA function computes: fused multiply-adds round once."""
    first, *rest = polynomial()
    t = np.minimum(np.abs(x), np.float32(16)).astype(np.float64)
    p = np.full_like(t, first)
    for number in rest:
        p = (p * t + number).astype(np.float32).astype(np.float64)
    tail = np.exp2(p).astype(np.float32).astype(np.float64)
    return np.asarray(np.maximum(x, 0) - t * tail, np.float32)


def test_gelu_is_as_accurate_as_it_says() -> None:
    x = np.linspace(-30, 30, 400_001, dtype=np.float32)
    exact = x.astype(np.float64) * ndtr(x.astype(np.float64))
    error = np.abs(gelu(x).astype(np.float64) - exact)
    ulps = error / np.spacing(np.abs(exact).astype(np.float32))
    assert len(polynomial()) == 11
    assert ulps[(x > -1) & (x != 0)].max() < 3
    relative = error[x < 0] / np.abs(exact[x < 0]).clip(1e-300)
    assert relative[x[x < 0] > -5.5].max() < 5e-6
    assert error[x < -5.5].max() < 2e-12
    assert gelu(np.asarray([np.inf, -np.inf], np.float32)).tolist() == [np.inf, 0]
