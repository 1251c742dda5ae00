"""The incomplete gamma and beta functions, as shares of the whole.

The gamma function's share below x is a power series where x is under `a + 1`, and the share above a
continued fraction elsewhere; STEPS of either are enough up to LARGE, from where on the integral is
summed at Gauss's and Legendre's nodes over the part that matters. The beta function's share is a
continued fraction, on the side where it converges fast. Relative errors are near 1e-12 for a and b
up to a thousand.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft.foundation.dtypes import F64
from weft.foundation.lines import user_line
from weft.ops.array.creation import asarray
from weft.ops.array.elementwise import abs as size_of
from weft.ops.array.elementwise import exp, isnan, log, log1p, maximum, minimum, sqrt
from weft.ops.array.manipulation import expand_dims
from weft.ops.array.operands import paired
from weft.ops.array.searching import where
from weft.ops.array.special.gammas import STIRLING, lgamma
from weft.ops.array.statistics import sum as sum_of
from weft.ops.calls import public
from weft.ops.control_flow import scan
from weft.ops.promotion import as_float
from weft.ops.tensor import Tensor

STEPS = 160
LARGE = 200.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(48)


def _operands_in_double(*given: Any) -> tuple[list[Tensor], Any]:
    """The operands in f64 and one shape, and the dtype of the result."""
    line = user_line()
    first, second = paired(given[0], given[1], line)
    rest = [paired(first, each, line) for each in given[2:]]
    for other, _ in rest:
        first = other
    values = [first, paired(second, first, line)[0], *(each for _, each in rest)]
    return [each.astype(F64) for each in values], as_float(first.dtype)


@public
def igamma(a: Any, x: Any, /) -> Tensor:
    """The share of the gamma function of a that comes from below x: for a and x from 0 on."""
    (order, value), dtype = _operands_in_double(a, x)
    return _gamma_shares(order, value)[0].astype(dtype)


@public
def igammac(a: Any, x: Any, /) -> Tensor:
    """The share of the gamma function of a that comes from above x: `1 - igamma(a, x)`."""
    (order, value), dtype = _operands_in_double(a, x)
    return _gamma_shares(order, value)[1].astype(dtype)


def _gamma_shares(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The shares below and above x."""
    large, edge = a >= LARGE, (x <= 0) | (a <= 0) | (x == math.inf)
    low = x < a + 1
    plain = _by_steps(where(large | edge, 1.0, a), where(large | edge, 1.0, x))
    summed = _by_nodes(where(large & ~edge, a, 2 * LARGE), where(large & ~edge, x, LARGE))
    part = where(large, summed, plain)
    rest = 1.0 - part
    first = where(large, x <= a - 1, where(edge, False, low))
    below, above = where(first, part, rest), where(first, rest, part)
    below = where(edge, where((a <= 0) | (x > 0), 1.0, 0.0), below)
    above = where(edge, where((a <= 0) | (x > 0), 0.0, 1.0), above)
    wrong = (a < 0) | (x < 0) | ((a == 0) & (x == 0)) | isnan(a) | isnan(x)
    return where(wrong, math.nan, below), where(wrong, math.nan, above)


def _by_steps(a: Tensor, x: Tensor) -> Tensor:
    """The share below x where that is under a + 1, else the share above."""
    low = x < a + 1
    density = exp(a * log(x) - x - lgamma(a))
    series = _series(a, where(low, x, a))
    return density * where(low, series, _fraction(where(low, 1.0, a), where(low, 3.0, x)))


def _series(a: Tensor, x: Tensor) -> Tensor:
    def step(carry: Any, number: Tensor) -> Any:
        term, total = carry
        term = term * (x / (a + number))
        return (term, total + term), ()

    first = 1.0 / a
    return _repeat_step(step, (first, first))[1]


def _fraction(a: Tensor, x: Tensor) -> Tensor:
    """Lentz's evaluation of the continued fraction."""

    def step(carry: Any, number: Tensor) -> Any:
        c, d, found = carry
        top = number * (a - number)
        base = x + 1.0 - a + 2.0 * number
        d = 1.0 / (base + top * d)
        c = base + top / c
        return (c, d, found * (c * d)), ()

    first = 1.0 / (x + 1.0 - a)
    # c begins at infinity; this is near enough, and its quotients are finite.
    return _repeat_step(step, (x * 0.0 + 1e300, first, first))[2]


def _repeat_step(step: Any, carry: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = scan(step, carry, asarray(np.arange(1.0, STEPS + 1.0)))[0]
    return found


def _by_nodes(a: Tensor, x: Tensor) -> Tensor:
    """The integral from x away from the peak, as far as it matters."""
    peak = a - 1.0
    width = sqrt(peak)
    right = x > peak
    # At the far end the integrand is below e^-30 of what it is at x, for a from 200 to 1000.
    far = where(
        right,
        maximum(peak + 11.5 * width, x + 6.0 * width),
        maximum(minimum(peak - 7.5 * width, x - 5.0 * width), 0.0),
    )
    span = far - x
    places = expand_dims(x, axis=-1) + expand_dims(span, axis=-1) * asarray((_NODES + 1) / 2)
    top = expand_dims(peak, axis=-1)
    apart = (places - top) / top
    # t^p e^-t over gamma(p + 1), with p = a - 1 and t = p (1 + s): of the exponent p (log(1 + s) -
    # s) is left beside Stirling's series, so that nothing is large before it is small.
    heights = exp(top * (log1p(apart) - apart))
    total = sum_of(heights * asarray(_WEIGHTS / 2), axis=-1)
    inverse = 1.0 / peak
    square = inverse * inverse
    correction = sum((c * square**k for k, c in enumerate(STIRLING[1:4], 1)), STIRLING[0])
    scale = exp(-correction * inverse) / (width * math.sqrt(2 * math.pi))
    return size_of(span) * total * scale


@public
def betainc(a: Any, b: Any, x: Any, /) -> Tensor:
    """The share of the beta function of a and b that comes from below x: for a and b over 0 and x
    from 0 to 1."""
    (first, second, value), dtype = _operands_in_double(a, b, x)
    return _beta_share(first, second, value).astype(dtype)


def _beta_share(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    inside = (a > 0) & (b > 0) & (x > 0) & (x < 1)
    p, q, y = (where(inside, each, 0.5) for each in (a, b, x))
    swapped = y > (p + 1.0) / (p + q + 2.0)
    p, q = where(swapped, q, p), where(swapped, p, q)
    y = where(swapped, 1.0 - y, y)
    front = exp(lgamma(p + q) - lgamma(p) - lgamma(q) + p * log(y) + q * log1p(-y)) / p
    part = front * _beta_fraction(p, q, y)
    found = where(swapped, 1.0 - part, part)
    ends = where(x == 0, 0.0, where(x == 1, 1.0, math.nan))
    return where(inside, found, where((a > 0) & (b > 0), ends, math.nan))


def _beta_fraction(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    def step(carry: Any, number: Tensor) -> Any:
        c, d, found = carry
        twice = a + 2.0 * number
        for top in (
            number * (b - number) * x / ((twice - 1.0) * twice),
            -(a + number) * (a + b + number) * x / (twice * (twice + 1.0)),
        ):
            d = 1.0 / (1.0 + top * d)
            c = 1.0 + top / c
            found = found * (c * d)
        return (c, d, found), ()

    first = 1.0 / (1.0 - (a + b) * x / (a + 1.0))
    return _repeat_step(step, (x * 0.0 + 1.0, first, first))[2]
