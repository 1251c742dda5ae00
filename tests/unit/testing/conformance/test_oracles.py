"""The oracles of the conformance kit stand alone, and round correctly."""

from __future__ import annotations

import ast
import math
import re
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.support.cases import each
from weft.foundation.dtypes import BF16, F16, FP8_E4M3, FP8_E5M2, DType
from weft.testing.conformance.oracles.rounding import nearest, nearest_of_integers

KIT = Path(weft.__file__).parent / "testing" / "conformance"


@pytest.mark.parametrize("path", sorted((KIT / "oracles").glob("*.py")), ids=lambda p: p.stem)
def test_oracles_know_nothing_of_weft_but_the_dtypes(path: Path) -> None:
    allowed = re.compile(r"weft\.(foundation\.dtypes|testing\.conformance\.oracles(\.\w+)?)$")
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            assert not name.startswith("weft") or allowed.match(name), name
        if isinstance(node, ast.Attribute):
            assert node.attr not in {"evaluate", "run_regions"}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"__import__", "eval", "exec"}


FORBIDDEN = re.compile(r"weft\.(driver|ptir\.(interp|philox)|foundation\.(numeric|functions))")


@each("path", sorted((KIT / "cases").glob("*.py")))
def test_cases_never_run_an_op(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert not FORBIDDEN.match(node.module or "")
        if isinstance(node, ast.Attribute):
            assert node.attr not in {"evaluate", "run_regions"}


@pytest.mark.parametrize("dtype", [FP8_E4M3, FP8_E5M2, BF16, F16], ids=str)
def test_rounding_agrees_with_the_conversion_from_f32(dtype: DType) -> None:
    """The search among all values, against ml_dtypes and NumPy, which convert f32 directly."""
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 1 << 32, 40_000, dtype=np.uint32)
    near = rng.standard_normal(20_000).astype(np.float32) * 300
    with np.errstate(all="ignore"):
        x = np.concatenate([bits.view(np.float32), near])
        want = x.astype(dtype.numpy)
        got = nearest(x.astype(np.float64), dtype)
        same = (got == want) | (np.isnan(want) & np.isnan(got))
    assert got.dtype == want.dtype
    assert same.all()
    assert (np.signbit(got) == np.signbit(want))[~np.isnan(want)].all()


def test_rounding_of_halves_and_of_what_is_too_large() -> None:
    assert nearest(np.array([17.0, 19.0, 464.0, 465.0]), FP8_E4M3).astype(float).tolist()[:3] == [
        16.0, 20.0, 448.0,
    ]  # fmt: skip
    assert math.isnan(float(nearest(np.array(465.0), FP8_E4M3)))
    assert float(nearest(np.array(65520.0), F16)) == math.inf
    assert nearest_of_integers([2**62 + 1, 257, 259, -(2**63)], BF16) == [
        2.0**62,
        256,
        260,
        -(2.0**63),
    ]
