"""Numbers drawn while a function is traced: who is told, and who is not."""

from __future__ import annotations

import random
import tempfile
import warnings
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.draws import generator
from weft import nn
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


def with_made(x: Any) -> Any:
    return x + np.random.default_rng().random()


def with_made_old(x: Any) -> Any:
    return x + np.random.RandomState().rand()


def with_made_in_python(x: Any) -> Any:
    return x + random.Random().random()


def by_another(x: Any) -> Any:
    return with_own(x) * 2


class Noise(nn.Module):
    def __init__(self) -> None:
        self.numbers = generator()

    def __call__(self, x: Any) -> Any:
        return x + self.numbers.random()


class OtherNoise(nn.Module):
    def __call__(self, x: Any) -> Any:
        return x + GENERATOR.random()


NOISE = Noise()
UNSEEDED = "a generator without a seed"


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (with_made, UNSEEDED),
        (with_made_old, UNSEEDED),
        (with_made_in_python, UNSEEDED),
        (by_another, "GENERATOR"),
        (lambda x: NOISE(x), r"NOISE\.numbers"),
        (Noise(), r"self\.numbers"),
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
        weft.jit(with_seeded)(weft.ones(2))
        weft.grad(lambda x: weft.sum(x * random.random()))(weft.ones(2))


def with_seeded(x: Any) -> Any:
    """The same numbers in every call, traced or not."""
    with tempfile.TemporaryFile():
        return x + np.random.default_rng(3).random() + random.Random(3).random()


def test_a_generator_in_an_argument_is_seen() -> None:
    step = weft.jit(lambda noise, x: noise(x))
    with pytest.warns(WeftWarning, match="draws from a generator in its arguments while"):
        step(Noise(), weft.ones(2))
    with pytest.warns(WeftWarning, match="draws from GENERATOR while"):
        step(OtherNoise(), weft.ones(2))


def test_generators_are_left_as_they_were() -> None:
    before = (random._urandom, random.Random.seed)  # type: ignore[attr-defined]

    def wrong(x: Any) -> Any:
        weft.jit(lambda y: y + 1)(x)
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        weft.jit(wrong)(weft.ones(2))
    assert before == (random._urandom, random.Random.seed)  # type: ignore[attr-defined]
