"""The check of compiled programs at rtol = atol = 1e-3."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from weft.ptir import Builder, Program
from weft.testing import check_results

Array = NDArray[Any]


def identity(dtype: str, size: int = 3) -> Program:
    b = Builder("same")
    x = b.param(dtype, [size])
    return b.build(b.broadcast_to(x, [size]))


@pytest.mark.parametrize(
    ("dtype", "wanted", "got", "passes"),
    [
        (np.float32, [1, 2, 1000], [1, 2, 1000.9], True),
        (np.float32, [1, 2, 1000], [1, 2, 1001.1], False),
        (np.float32, [0, 2, 3], [9e-4, 2, 3], True),
        (np.float32, [0, 2, 3], [2e-3, 2, 3], False),
        (np.float32, [np.nan, np.inf, -np.inf], [np.nan, np.inf, -np.inf], True),
        (np.float32, [np.nan, 1, 1], [1, 1, 1], False),
        (np.float32, [1, np.inf, 1], [1, -np.inf, 1], False),
        (np.float32, [1, 1, 1], [1, np.nan, 1], False),
        (ml_dtypes.bfloat16, [1, 2, 100], [1, 2, 100.5], True),
        (ml_dtypes.bfloat16, [1, 2, 100], [1, 2, 102], False),
        (np.int32, [1, 2, 3], [1, 2, 3], True),
        (np.int32, [1, 2, 3], [1, 2, 4], False),
        (np.complex64, [1j, 2, 3], [1j, 2.001j + 2 - 2.001j, 3], True),
        (np.complex64, [1j, 2, 3], [1, 2, 3], False),
    ],
)
def test_what_agrees(dtype: Any, wanted: list[Any], got: list[Any], passes: bool) -> None:
    names = {"float32": "f32", "bfloat16": "bf16", "int32": "si32", "complex64": "cf32"}
    program = identity(names[np.dtype(dtype).name])
    given, found = np.array(wanted, dtype), np.array(got, dtype)
    (line,) = check_results(program, [given], [found])
    assert line.passes is passes
    assert ("agrees" if passes else "differs") in str(line)


def test_the_worst_element_is_named() -> None:
    given = np.array([1, 2, 3], np.float32)
    (line,) = check_results(identity("f32"), [given], [given + np.array([0, 0.5, 0.1], np.float32)])
    assert line.place == (1,)
    assert str(line) == ("output 0, f32[3]: differs, off by 0.5 at [1], where 0.003 is allowed")


def test_the_worst_of_what_agrees_is_named_too() -> None:
    given, got = np.array([0, 0, 100], np.float32), np.array([0, 0, 100.0625], np.float32)
    (line,) = check_results(identity("f32"), [given], [got])
    assert str(line) == ("output 0, f32[3]: agrees, off by 0.062 at [2], where 0.1 is allowed")


def test_nothing_agrees_with_nothing() -> None:
    nothing = np.zeros(0, np.float32)
    (line,) = check_results(identity("f32", 0), [nothing], [nothing])
    assert line.passes
