"""Instructions of AVX-512 that take the place of several: the same numbers, special ones too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from weft.ptir import Builder, Program

Array = NDArray[Any]


def softmax(rows: int, columns: int) -> Program:
    b = Builder()
    return b.build(b.softmax(b.param("f32", [rows, columns])))


@pytest.mark.parametrize("target", ["x86-64-v4", "x86-64-v3", "aarch64"])
def test_softmax_scales_and_compares_by_them_where_they_are(target: str) -> None:
    text = weft.compile(softmax(8, 64), target=target).stages["llvm"]
    there = target == "x86-64-v4"
    assert ("avx512.mask.scalef.ps.512" in text) is there
    assert ("avx512.mask.range.ps.512" in text) is there
    assert ("llvm.maximum.v16f32" in text) is False


def test_a_constant_is_compared_with_as_llvm_does() -> None:
    b = Builder()
    x = b.param("f32", [8, 64])
    least = b.full([8, 64], 0.5, "f32")
    text = weft.compile(b.build(b.maximum(x, least)), target="x86-64-v4").stages["llvm"]
    assert "llvm.maximum.v16f32" in text
    assert "mask.range" not in text


def test_narrower_registers_are_compared_by_them_too() -> None:
    b = Builder()
    text = weft.compile(
        b.build(b.reduce_max(b.param("f32", [8, 29]), [1])), target="x86-64-v4"
    ).stages["llvm"]
    assert {f"range.ps.{width}" in text for width in (512, 256, 128)} == {True}
    assert "llvm.maximum" not in text


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("fn", ["max", "min"])
def test_extremes_know_zeros_apart_and_hand_nan_on(fn: str, dtype: str) -> None:
    special = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-45, -3e38], dtype)
    x, y = (each.reshape(-1) for each in np.meshgrid(special, special))
    b = Builder()
    name = "f32" if dtype == "f4" else "f64"
    rows = [b.param(name, [x.size]) for _ in range(2)]
    pairs = weft.compile(b.build(getattr(b, f"{fn}imum")(*rows)), "cpu").run([x, y])[0]
    larger = np.where((x > y) | ((x == y) & ~np.signbit(x)), x, y)
    smaller = np.where((x < y) | ((x == y) & np.signbit(x)), x, y)
    want = np.where(np.isnan(x) | np.isnan(y), np.nan, larger if fn == "max" else smaller)
    np.testing.assert_array_equal(pairs, want)
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(pairs)[numbers], np.signbit(want)[numbers])

    wide = np.stack([np.tile(pair, 48)[:91] for pair in zip(x, y, strict=True)])
    c = Builder()
    reduced = getattr(c, f"reduce_{fn}")(c.param(name, list(wide.shape)), [1])
    found = weft.compile(c.build(reduced), "cpu").run([wide])[0]
    np.testing.assert_array_equal(found, want)
    np.testing.assert_array_equal(np.signbit(found)[numbers], np.signbit(want)[numbers])


def test_weights_that_vanish_or_are_subnormal_are_as_near_as_others() -> None:
    x = np.concatenate([[0.0], np.linspace(-110, -80, 255), [-np.inf, -1e9, -3e38]])
    rows = np.stack([np.roll(np.resize(x, 272), n) for n in range(16)]).astype("f4")
    (found,) = weft.compile(softmax(*rows.shape), "cpu").run([rows])
    exact = np.exp(rows.astype("f8"))
    exact /= exact.sum(1, keepdims=True)
    assert np.abs(found - exact).max() <= np.spacing(np.float32(1))
    small = exact < 1e-37
    assert np.abs(found - exact)[small].max() <= 3 * 2.0**-149
    assert not found[rows < -104].any()
