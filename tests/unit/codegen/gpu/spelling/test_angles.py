"""Sine, cosine and tangent of the prelude, run by the host's compiler: the text itself, against
functions of more digits, for angles of every size and those nearest to a multiple of pi/2.

Skipped where there is no C++ compiler.
"""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.codegen.gpu.spelling.test_prelude_on_the_host import COMPILER, SHIM, Array, apply
from weft.codegen.gpu.spelling.prelude.angles import ANGLES

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")

MACHINE = r"""
#define __device__
using std::fma;
INLINE u64 __ldg(const u64* p) { return *p; }
INLINE u64 __umul64hi(u64 a, u64 b) { return (unsigned __int128)a * b >> 64; }
INLINE int __clzll(i64 x) { return x ? __builtin_clzll(x) : 64; }
"""
NAMES = {"sine": np.sin, "cosine": np.cos, "tangent": np.tan}
KINDS: dict[str, Any] = {"float": np.float32, "double": np.float64}
ULPS = {"sine": 1.6, "cosine": 1.6, "tangent": 3.2}
NEAREST: dict[str, list[float]] = {
    "float": [16367173 * 2.0**72, 10741887 * 2.0**11],
    "double": [6381956970095103 * 2.0**797],
}
"""Numbers that a multiple of pi/2 is very near to."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder: Path = tmp_path_factory.mktemp("angles")
    source, made = folder / "angles.cc", folder / "angles.so"
    exports = (
        f"void run_{name}_{kind}(const {kind}* x, {kind}* y, long n)"
        f" {{ for (long i = 0; i < n; ++i) y[i] = {name}(x[i]); }}"
        for name in NAMES
        for kind in KINDS
    )
    lines = (SHIM, MACHINE, ANGLES, 'extern "C" {', *exports, "}")
    source.write_text("\n".join(lines))
    options = ["-std=c++17", "-O1", "-w", "-ffp-contract=off", "-shared", "-fPIC"]
    subprocess.run([str(COMPILER), *options, str(source), "-o", str(made)], check=True)
    return ctypes.CDLL(str(made))


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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_results_are_right_to_the_last_digits(library: ctypes.CDLL, name: str, kind: str) -> None:
    x = samples(kind)
    got = apply(library, f"{name}_{kind}", KINDS[kind], x)
    exact = NAMES[name](x.astype(np.float64 if kind == "float" else np.longdouble))
    error = wrong_by(got, exact)
    assert error.max() < ULPS[name], (float(x[error.argmax()]).hex(), error.max())


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_keep_their_sign_and_infinities_have_no_angle(
    library: ctypes.CDLL, kind: str
) -> None:
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan], KINDS[kind])
    for name in NAMES:
        got = apply(library, f"{name}_{kind}", KINDS[kind], x)
        assert np.isnan(got[2:]).all()
        if name == "cosine":
            assert got[:2].tolist() == [1, 1]
        else:
            assert got[:2].tolist() == [0, 0]
            assert np.signbit(got[:2]).tolist() == [False, True]
