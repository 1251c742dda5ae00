"""Attention with powers of 2, or of multiples of the difference, is one kernel like any other."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import log2
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.cases import each

LOG2E = log2(np.e)


def attention(power: Callable[[Any], Any], after: bool = False) -> Callable[[Any, Any, Any], Any]:
    """Attention whose powers of the scores, less the greatest, are given; divided before or after
    the second product."""

    def function(q: Any, k: Any, v: Any) -> Any:
        s = weft.astype(q @ k.mT, weft.float32) * 0.25
        e = power(s - weft.max(s, axis=-1, keepdims=True))
        total = weft.sum(e, axis=-1, keepdims=True)
        if after:
            return weft.astype(weft.astype(e, v.dtype) @ v, weft.float32) / total
        return weft.astype(e / total, v.dtype) @ v

    return function


OTHERS: dict[str, Callable[[Any], Any]] = {
    "powers of 2": weft.exp2,
    "powers of 2 that are powers of e": lambda d: weft.exp2(d * LOG2E),
    "the number first": lambda d: weft.exp2(LOG2E * d),
    "divided": lambda d: weft.exp2(d / 2),
    "colder": lambda d: weft.exp(d * 0.5),
}


def kernels(function: Any, target: str, dtype: Any = "float32", size: int = 48) -> list[str]:
    inputs = [weft.tensor(np.zeros((2, size, 64), np.float32), dtype=dtype) for _ in range(3)]
    made = weft.compile(weft.jit(function).program(*inputs), target)
    found = json.loads(made.stages["region"])["module"]["kernels"]
    return [kernel["region"]["name"].rstrip("0123456789") for kernel in found]


@pytest.mark.parametrize("after", [False, True])
@each("name", OTHERS)
def test_other_powers_are_one_kernel(name: str, after: bool) -> None:
    function = attention(OTHERS[name], after)
    assert kernels(function, "cpu") == ["attention"]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((2, 48, 16)).astype(np.float32) for _ in range(3)]
    program = weft.jit(function).program(*map(weft.tensor, arrays))
    (got,) = weft.compile(program, "cpu").run(arrays)
    (wanted,) = weft.run(program, arrays, backend="reference")
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_on_a_gpu() -> None:
    function = attention(OTHERS["powers of 2"])
    assert kernels(function, "sm90", weft.bfloat16, 256) == ["attention"]


@pytest.mark.parametrize("power", [lambda d: weft.exp(d * 3), lambda d: weft.exp2(-d)])
def test_what_might_be_no_number_stays(power: Any) -> None:
    """Three times the lowest number is none, and what is below 0 has no greatest of its own."""
    assert "attention" not in kernels(attention(power), "cpu")


def test_rows_of_a_mask_alone() -> None:
    def masked(q: Any, k: Any, v: Any) -> Any:
        s = q @ k.mT + float(np.finfo(np.float32).min)
        e = weft.exp2(s - weft.max(s, axis=-1, keepdims=True))
        return (e / weft.sum(e, axis=-1, keepdims=True)) @ v

    arrays = [np.zeros((2, 48, 16), np.float32) for _ in range(2)]
    arrays.append(np.arange(2 * 48 * 16, dtype=np.float32).reshape(2, 48, 16))
    program = weft.jit(masked).program(*map(weft.tensor, arrays))
    made = weft.compile(program, "cpu")
    assert len(made.artifact.kernels) == 1
    wanted = np.broadcast_to(arrays[2].mean(1, keepdims=True), arrays[2].shape)
    np.testing.assert_allclose(made.run(arrays)[0], wanted, rtol=1e-5)


def test_a_greatest_element_that_others_read_stays() -> None:
    def with_greatest(q: Any, k: Any, v: Any) -> Any:
        s = q @ k.mT
        top = weft.max(s, axis=-1, keepdims=True)
        e = weft.exp2(s - top)
        return (e / weft.sum(e, axis=-1, keepdims=True)) @ v + top

    assert "attention" not in kernels(with_greatest, "cpu")
