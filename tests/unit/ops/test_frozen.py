"""Numbers drawn while a function is traced: who is told, and who is not."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import pytest

import weft
from tests.draws import generator
from weft.foundation.errors import WeftWarning

GENERATOR = generator()


def with_python(x: Any) -> Any:
    return x * random.random()


def with_numpy(x: Any) -> Any:
    return x + np.random.standard_normal(2).astype(np.float32)


def with_own(x: Any) -> Any:
    return x + GENERATOR.random()


def with_closed() -> Any:
    own = random.Random(3)
    return lambda x: x + own.random()


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (with_python, "Python's random module"),
        (with_numpy, "numpy.random"),
        (with_own, "GENERATOR"),
        (with_closed(), "own"),
    ],
)
def test_numbers_that_become_part_of_a_program_are_warned_of(function: Any, named: str) -> None:
    compiled = weft.jit(function)
    with pytest.warns(WeftWarning, match=f"draws from {named} while it is traced") as caught:
        first = compiled(weft.ones(2))
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled(weft.ones(2)).tolist() == first.tolist()


def test_nobody_is_told_who_draws_nothing_frozen() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        weft.jit(lambda key: weft.random.normal(key, (2,)))(weft.random.key(0))
        weft.grad(lambda x: weft.sum(x * random.random()))(weft.ones(2))
