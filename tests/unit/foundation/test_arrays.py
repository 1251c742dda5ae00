"""Arrays that users hand over: elements behind a mask are never taken for data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft.ptir import Builder

MASKED = np.ma.array(np.ones((2, 2), np.float32), mask=[[True, False], [False, False]])
PLAIN = np.ones((2, 2), np.float32)


def _program() -> weft.ptir.Program:
    b = Builder()
    return b.build(b.param("f32", [2, 2]) * 2.0)


def _assign(value: Any) -> Any:
    x = weft.zeros((2, 2))
    x[...] = value
    return x


DOUBLED = weft.jit(lambda x: x * 2.0)
DOORS: dict[str, Callable[[Any], Any]] = {
    "asarray": weft.asarray,
    "a list": lambda x: weft.asarray([x, x]),
    "a function": weft.sin,
    "an operator": lambda x: weft.ones((2, 2)) + x,
    "assignment": _assign,
    "jit": DOUBLED,
    "jit again": lambda x: (DOUBLED(PLAIN), DOUBLED(x)),
    "run": lambda x: weft.run(_program(), [x]),
    "a literal": lambda x: Builder().constant(x),
    "from_dlpack": weft.from_dlpack,
}


@pytest.mark.parametrize("door", DOORS)
def test_masked_elements_are_refused_at_every_door(door: str) -> None:
    with pytest.raises(weft.UserError, match="of 4 elements of the array are masked"):
        DOORS[door](MASKED)


@pytest.mark.parametrize("door", DOORS)
def test_a_mask_that_hides_nothing_is_no_matter(door: str) -> None:
    DOORS[door](np.ma.array(PLAIN))


def test_one_masked_number_is_refused() -> None:
    with pytest.raises(weft.UserError, match=r"give x\.filled\(number\)"):
        weft.asarray(np.ma.masked)


def test_masked_indices_are_refused() -> None:
    with pytest.raises(weft.UserError, match="1 of 2 elements of the array are masked"):
        weft.ones((2, 2))[np.ma.array([0, 1], mask=[True, False])]
