"""Long rows of narrow integers, which are computed with in as many lanes as a vector has room for:
exact, whatever the length leaves over and however many threads share the work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft.ptir import Builder, Value

DTYPES = ("int8", "uint8", "int16", "uint16")
SHAPES = [(1003,), (129, 261)]
ELEMENTWISE: dict[str, Callable[[Any], Any]] = {
    "wrapping": lambda x: x * x + x - 3,
    "bounds": lambda x: weft.maximum(weft.minimum(x, 100), x // 2),
    "quotients": lambda x: x // 7,
    "shifts": lambda x: (x >> 2) ^ (x << 1),
    "across": lambda x: weft.permute_dims(x, tuple(range(x.ndim))[::-1]) + 1,
}
EXPECTED: dict[str, Callable[[Any], Any]] = {
    **{name: ELEMENTWISE[name] for name in ("wrapping", "quotients", "shifts")},
    "bounds": lambda x: np.maximum(np.minimum(x, 100), x // 2),
    "across": lambda x: x.T + 1,
}


def numbers(dtype: str, shape: tuple[int, ...]) -> Any:
    info = np.iinfo(dtype)
    return np.random.default_rng(7).integers(info.min, info.max, shape, dtype, endpoint=True)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_elements(dtype: str, shape: tuple[int, ...]) -> None:
    x = numbers(dtype, shape)
    for name, function in ELEMENTWISE.items():
        found = weft.jit(function)(weft.asarray(x).to("cpu")).numpy()
        np.testing.assert_array_equal(found, EXPECTED[name](x), name)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [*DTYPES, "bool"])
def test_rows(dtype: str, shape: tuple[int, ...]) -> None:
    x = numbers("int8", shape) > 90 if dtype == "bool" else numbers(dtype, shape)
    given = weft.asarray(x).to("cpu")
    for axis in (None, *range(len(shape))):
        count = weft.count_nonzero(given, axis=axis)
        np.testing.assert_array_equal(count.numpy(), np.count_nonzero(x, axis))
        assert count.dtype is weft.int64
        if dtype == "bool":
            continue
        pairs = [
            (weft.max(given, axis=axis), x.max(axis)),
            (weft.min(given, axis=axis), x.min(axis)),
            (weft.argmax(given, axis=axis), x.argmax(axis)),
            (weft.sum(given, axis=axis, dtype=weft.int64), x.sum(axis, np.int64)),
            (weft.sum(given, axis=axis, dtype=given.dtype), x.sum(axis, dtype)),
        ]
        for found, expected in pairs:
            np.testing.assert_array_equal(found.numpy(), expected)


def test_truth_values() -> None:
    x, y = (np.random.default_rng(n).random((5, 1003)) < 0.5 for n in (1, 2))
    b = Builder()
    p, q = (b.param("i1", x.shape) for _ in range(2))
    made: list[Value] = [b.emit("bitwise_xor", p, q), b.emit("reduce_any", p, axes=[1])]
    both, some = weft.run(b.build(*made), [x, y], backend="cpu")
    np.testing.assert_array_equal(both, x ^ y)
    np.testing.assert_array_equal(some, x.any(1))
