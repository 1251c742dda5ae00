"""Elementary functions of f32 on every float there is, and `pow` on a billion pairs.

An hour on one core; the parts are there so that several share it evenly. NumPy's and
SciPy's functions of f64 are the oracle: they have digits enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.native_functions import PAIRS, UNARY, apply
from tests.support.native_kernels import Array
from tests.support.one_op import assert_ulp
from weft.foundation.dtypes import F32

CHUNK = 1 << 22
PARTS = 8
BILLION = 10**9


def check(fn: str, oracle: Any, ulps: float, *arrays: Array) -> None:
    """One function of some floats, with the signs of zeros. What is the nearest float of all needs
    no measuring, and that is most of them."""
    with np.errstate(all="ignore"):
        want = oracle(*(x.astype(np.float64) for x in arrays))
        near = want.astype(np.float32)
    found = apply(fn, F32, *arrays)
    right = found.view(np.uint32) == near.view(np.uint32)
    rest = np.flatnonzero(~(right | (np.isnan(found) & np.isnan(near))))
    found, want = found[rest], want[rest]
    zero = want == 0
    assert (np.signbit(found[zero]) == np.signbit(want[zero])).all()
    assert_ulp(found, want, ulps + 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("fn", [fn for fn in UNARY if fn not in ("neg", "abs", "relu")])
def test_every_single_is_accurate(fn: str, part: int) -> None:
    oracle, ulps, _ = UNARY[fn]
    size = (1 << 32) // PARTS
    for start in range(part * size, (part + 1) * size, CHUNK):
        check(fn, oracle, ulps, np.arange(start, start + CHUNK, dtype=np.uint32).view(np.float32))


def drawn_pairs(part: int) -> Iterator[tuple[Array, Array]]:
    """Bases and exponents: any floats; those whose power is a float; bases near 1; and negative
    bases with whole exponents."""
    rng = np.random.default_rng(part)
    count = CHUNK // 4
    for _ in range(0, BILLION // PARTS, CHUNK):
        words = rng.integers(0, 1 << 32, (2, count), np.uint32).view(np.float32)
        base = np.exp(rng.uniform(-87, 88, count))
        fitting = rng.uniform(-104, 89, count) / np.log(base)
        close = 1 + rng.standard_normal(count) * np.exp(rng.uniform(-16, -1, count))
        whole = rng.integers(-60, 60, count)
        x = [words[0], base, close, -np.exp(rng.uniform(-9, 9, count))]
        y = [words[1], fitting, rng.uniform(-1e6, 1e6, count), whole]
        with np.errstate(all="ignore"):
            yield np.concatenate(x, dtype=np.float32), np.concatenate(y, dtype=np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_a_billion_powers_are_accurate(part: int) -> None:
    oracle, ulps, _ = PAIRS["pow"]
    for x, y in drawn_pairs(part):
        check("pow", oracle, ulps, x, y)
