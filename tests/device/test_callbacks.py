"""Python functions that a program on a GPU calls, between its kernels and in order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft.runtime.cuda.driver import compute_capability

pytestmark = pytest.mark.skipif(compute_capability() is None, reason="it needs a GPU")


def test_calls_are_made_in_order_with_the_elements_of_their_time() -> None:
    seen: list[Any] = []

    def turn(carry: Any, i: Any) -> Any:
        weft.debug.callback(lambda *values: seen.append([v.tolist() for v in values]), i, carry)
        return carry * 2, None

    @weft.jit
    def f(x: Any) -> Any:
        last, _ = weft.scan(turn, x, weft.arange(3))
        weft.debug.callback(lambda a: seen.append(a.tolist()), last)
        return weft.pure_callback(np.sort, last.type, last)

    x = weft.asarray([2.0, 1.0]).to("cuda")
    for _ in range(3):
        seen.clear()
        assert f(x).tolist() == [8.0, 16.0]
        assert seen == [[0, [2, 1]], [1, [4, 2]], [2, [8, 4]], [16, 8]]


def test_what_a_callback_raises_reaches_the_caller_and_the_next_run_is_sound() -> None:
    @weft.jit
    def f(x: Any) -> Any:
        weft.debug.callback(lambda a: 1 // int(a), x)
        return x + 1

    with pytest.raises(ZeroDivisionError):
        f(weft.asarray(0).to("cuda"))
    assert int(f(weft.asarray(1).to("cuda"))) == 2


def test_vmap_and_grad() -> None:
    seen: list[Any] = []

    def f(x: Any) -> Any:
        weft.debug.callback(lambda a: seen.append(a.tolist()), x)
        return (x * x).sum()

    x = weft.asarray([[1.0, 2.0], [3.0, 4.0]]).to("cuda")
    assert weft.jit(weft.vmap(weft.grad(f)))(x).tolist() == [[2.0, 4.0], [6.0, 8.0]]
    assert seen == [[1.0, 2.0], [3.0, 4.0]]
