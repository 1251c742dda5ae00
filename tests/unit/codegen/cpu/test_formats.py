"""Conversions between dtypes as generated code."""

from __future__ import annotations

import re

import numpy as np
import pytest

import weft
from tests.support.native_functions import REAL, SPECIAL, compute, points
from tests.support.one_op import bits
from weft.foundation.dtypes import (
    BF16,
    F16,
    F32,
    F64,
    FP8_E4M3,
    FP8_E5M2,
    SI4,
    UI4,
    DType,
)
from weft.foundation.numeric import cast
from weft.ptir import Builder


@pytest.mark.parametrize("source", REAL, ids=str)
def test_casts_are_those_of_the_contract(source: DType) -> None:
    rng = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        whole = rng.integers(-(1 << 62), 1 << 62, 300, dtype=np.int64) >> rng.integers(0, 60, 300)
        numbers = [points(F64)[::197], np.arange(-520, 520, 0.5), np.array(SPECIAL), whole]
        x = cast(np.concatenate(numbers), F64, source)
        if source.bits == 64 and source.is_integer:
            x = np.concatenate([x, whole.astype(source.numpy), whole.astype(source.numpy) | 1])
        want = [cast(x, source, target) for target in REAL]
    found = compute(source, [x], lambda body, reads: [body.cast(reads[0], t) for t in REAL])
    for target, a, b in zip(REAL, found, want, strict=True):
        nan = (a != a) & (b != b)  # noqa: PLR0124
        zero = np.zeros((), a.dtype)
        assert bits(np.where(nan, zero, a)) == bits(np.where(nan, zero, b)), target


@pytest.mark.parametrize("dtype", [F16, BF16, FP8_E4M3, FP8_E5M2, SI4, UI4], ids=str)
def test_every_narrow_number_survives_a_round_trip(dtype: DType) -> None:
    stored = np.arange(1 << min(dtype.bits, 16), dtype=f"u{dtype.storage_bytes}")
    x = stored.view(dtype.numpy)
    (wide,) = compute(dtype, [x], lambda body, reads: [body.cast(reads[0], F32)])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(wide, x.astype(np.float32))
    (again,) = compute(F32, [wide], lambda body, reads: [body.cast(reads[0], dtype)])
    number = ~np.isnan(wide)
    assert bits(again[number]) == bits(x[number])


def test_numbers_of_bf16_are_rounded_once() -> None:
    """What is rounded when it is computed is not rounded again when it is stored."""
    b = Builder("rounded")
    x = b.param("bf16", [1000])
    text = weft.compile(b.build(b.add(b.mul(x, x), x))).stages["llvm"]
    assert len(re.findall(r"\b32767\b", text)) == len(re.findall(r" = f(?:add|mul) ", text)) > 0


@pytest.mark.parametrize("target", ["x86-64-v4", "x86-64-v3", "aarch64"])
@pytest.mark.parametrize("dtype", ["si8", "ui16", "si32", "ui64"])
def test_vectors_become_integers_as_a_whole(target: str, dtype: str) -> None:
    """LLVM takes a vector apart that saturates, where no instruction does."""
    b = Builder("whole")
    whole = b.cast(b.param("f32", [1000]), dtype)
    text = weft.compile(b.build(whole), target=target).stages["llvm"]
    assert bool(re.search(r"fpto[su]i\.sat\.v", text)) is (target == "aarch64")
    assert bool(re.search(r" = fpto[su]i <", text)) is (target != "aarch64")
