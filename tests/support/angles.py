"""Sines and cosines: where they are tried, and how wrong they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.host_prelude import Array

KINDS: dict[str, Any] = {"float": np.float32, "double": np.float64}

ULPS = {"sine": 1.6, "cosine": 1.6, "tangent": 3.2}

NEAREST: dict[str, list[float]] = {
    "float": [16367173 * 2.0**72, 10741887 * 2.0**11],
    "double": [6381956970095103 * 2.0**797],
}
"""Numbers that a multiple of pi/2 is very near to."""


def samples(kind: str, count: int = 20_000) -> Array:
    """Angles of every size, and multiples of pi/2 as near as numbers come."""
    dtype = KINDS[kind]
    rng = np.random.default_rng(5)
    bits = np.dtype(dtype).itemsize * 8
    every = rng.integers(0, 1 << 63, count, np.uint64) >> np.uint64(64 - bits)
    sized = every.astype(f"u{bits // 8}").view(dtype)
    turns = (rng.integers(0, 1 << 18, count) * np.longdouble(np.pi / 2)).astype(dtype)
    small = (rng.standard_normal(count) * 10).astype(dtype)
    x = np.concatenate([sized[np.isfinite(sized)], turns, small, np.asarray(NEAREST[kind], dtype)])
    return np.concatenate([x, -x])


def wrong_by(got: Array, exact: Array) -> Array:
    """Errors in units of the last place of the result."""
    unit = np.spacing(np.abs(exact.astype(got.dtype)))
    return np.asarray(np.abs(got - exact) / unit, np.float64)
