"""Sine, cosine and tangent of the prelude, run by the host's compiler: the text itself, against
functions of more digits, for angles of every size and those nearest to a multiple of pi/2.

Skipped where there is no C++ compiler.
"""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.support.angles import KINDS, ULPS, samples, wrong_by
from tests.support.host_prelude import COMPILER, SHIM, apply
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
