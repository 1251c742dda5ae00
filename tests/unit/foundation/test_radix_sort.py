"""Keys have the order of the elements; the records of sorting by digits mean what they say."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.cases import each
from weft.foundation.dtypes import ALL, BF16, F32, FP8_E4M3, FP8_E5M2, SI8, SI64, DType
from weft.foundation.radix_sort import Digits, Moved, Starts, sort_keys

Array = NDArray[Any]
SORTED = [dtype for dtype in ALL if not dtype.is_complex]


def every_number(dtype: DType) -> Array:
    """All numbers of a narrow dtype, or those at which a wide one might go wrong."""
    if dtype.bits in (8, 16):
        return np.arange(1 << dtype.bits, dtype=f"u{dtype.storage_bytes}").view(dtype.numpy)
    if dtype.is_float:
        tiny = np.finfo(dtype.numpy).smallest_subnormal
        edges = [0.0, -0.0, tiny, -tiny, 1.5, -1.5, np.inf, -np.inf, np.nan, -np.nan]
        return np.array(edges, dtype.numpy)
    low, high = int(dtype.lowest), int(dtype.highest)
    edges = sorted({low, max(low, -1), 0, 1, high // 2, high})
    return np.array([edge for edge in edges if low <= edge <= high], object).astype(dtype.numpy)


@each("descending", [False, True])
@each("dtype", SORTED)
def test_keys_have_the_order_of_the_elements(dtype: DType, descending: bool) -> None:
    x = every_number(dtype)
    keys = sort_keys(x, descending)
    with np.errstate(invalid="ignore"):
        exact: Any = x.astype(np.float64) if dtype.is_float else x.astype(object)
    nan = np.isnan(exact) if dtype.is_float else np.zeros(len(x), bool)
    assert int(keys.max()) < 1 << dtype.bits
    assert len(set(keys[nan].tolist())) <= 1
    order = np.argsort(keys, kind="stable")
    order = order[::-1] if descending else order
    left = [exact[i] for i in order if not nan[i]]
    assert all(a <= b for a, b in pairwise(left))
    assert nan[order].tolist() == sorted(nan.tolist())
    for a, b in pairwise(order):
        assert (keys[a] == keys[b]) == bool(exact[a] == exact[b] or (nan[a] and nan[b]))


@pytest.mark.parametrize("dtype", [SI8, BF16, F32, SI64, FP8_E4M3, FP8_E5M2], ids=str)
def test_passes_over_all_digits_sort(dtype: DType) -> None:
    x = np.random.default_rng(5).integers(-9, 9, (2, 100)).astype(dtype.numpy)
    made = x
    for low in range(0, dtype.bits, 8):
        last = low + 8 == dtype.bits
        one = (2, 100, 32, dtype.bits, low, 8, True)
        elements = (x, made) if Digits(*one).reads_again else (made,)
        counts = Digits(*one).evaluate(*elements)
        assert counts.reshape(2, 256, 4).sum(axis=1).tolist() == 2 * [[32, 32, 32, 4]]
        made = Moved(*one, count=100 if last else 0).evaluate(*elements, counts)
    want = np.argsort(-x.astype(np.float64), axis=1, kind="stable")
    assert (made.reshape(2, 100) == want).all()


def test_where_keys_begin() -> None:
    keys = np.array([[0, 0, 3], [1, 4, 4]], np.uint32)
    pairs = np.stack([keys, np.zeros_like(keys)], -1)
    assert Starts(2, 5, 3).evaluate(pairs).tolist() == [0, 2, 2, 2, 3, 3, 0, 0, 1, 1, 1, 3]
