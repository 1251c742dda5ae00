"""The digits of 2/pi, and the polynomials of sine and cosine near zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.trigonometry import COSINE, SINE, TWO_OVER_PI, two_over_pi

Array = NDArray[Any]


def test_the_digits_of_two_over_pi() -> None:
    """The first ones are known; further ones do not change those before."""
    assert [f"{word:016x}" for word in TWO_OVER_PI[:3]] == [
        "0000000000000000",
        "a2f9836e4e441529",
        "fc2757d1f534ddc0",
    ]
    assert two_over_pi(40)[: len(TWO_OVER_PI)] == TWO_OVER_PI


def polynomial(numbers: Sequence[float], x: Array) -> Array:
    return np.asarray(np.polynomial.polynomial.polyval(x, numbers))


def test_the_polynomials_up_to_an_eighth_of_a_turn() -> None:
    r = np.linspace(-np.pi / 4, np.pi / 4, 2001)
    square = r * r
    np.testing.assert_allclose(r + r * square * polynomial(SINE, square), np.sin(r), 4e-16, 0)
    cosine = 1 - square / 2 + square * square * polynomial(COSINE, square)
    np.testing.assert_allclose(cosine, np.cos(r), 4e-16, 0)
