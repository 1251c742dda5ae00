"""The gamma function's logarithm and its derivatives, and Hurwitz's zeta function.

Stirling's series holds from 10 on; smaller arguments are moved there by the recurrence, and those
on the left of 0 reflected. The absolute error is a few 1e-15 where the result is near 0.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.polynomial import polynomial as poly

from weft.foundation.dtypes import F64
from weft.foundation.errors import SpecViolation, brief
from weft.ops.array.special.formulas import (
    choose,
    computed,
    from_whole,
    last,
    of_pair,
    polynomial,
    sine,
    steps,
)
from weft.ops.calls import public
from weft.ops.capture_recipes import recorded
from weft.ops.session import Handle
from weft.ops.tensor import Tensor

SHIFT = 10
_BERNOULLI = (
    1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798,
    -174611 / 330,
)  # fmt: skip
"""The Bernoulli numbers B2, B4, ..."""
STIRLING = tuple(b / (2 * k * (2 * k - 1)) for k, b in enumerate(_BERNOULLI[:8], 1))
_MOST_DERIVATIVES = 170
_ASYMPTOTIC = tuple(b / (2 * k) for k, b in enumerate(_BERNOULLI[:8], 1))


@recorded
def lgamma(x: Handle, /) -> Handle:
    """The logarithm of the absolute value of the gamma function."""
    return computed(log_gamma, x)


def log_gamma(x: Handle) -> Handle:
    left = x.compare("less", 0.5)
    value = _log_gamma_right(choose(left, 1.0 - x, x))
    height = sine(choose(left, from_whole(x), 0.5)).abs()
    reflected = -(height.log() + value) + math.log(math.pi)
    return choose(x.isinf(), math.inf, choose(left, reflected, value))


def _log_gamma_right(x: Handle) -> Handle:
    """For x from 1/2 on."""
    small = x.compare("less", float(SHIFT))
    between = steps(choose(small, x, 1.0), SHIFT)
    product = x.session.emit("reduce_prod", between, axes=last(between), keepdims=False)
    z = choose(small, x + float(SHIFT), x)
    return _stirling(z) - choose(small, product.log(), 0.0)


def _stirling(z: Handle) -> Handle:
    inverse = z.reciprocal()
    series = polynomial(STIRLING, inverse * inverse) * inverse
    return (z - 0.5) * z.log() - z + (series + 0.5 * math.log(2 * math.pi))


@recorded
def digamma(x: Handle, /) -> Handle:
    """The derivative of `lgamma`; NaN at the negative whole numbers."""
    return computed(psi, x)


def psi(x: Handle) -> Handle:
    left = x.compare("less", 0.0)
    value = _psi_right(choose(left, 1.0 - x, x))
    part = choose(left, from_whole(x), 0.25)
    reflected = value - (part * math.pi).tan().reciprocal() * math.pi
    found = choose(part.compare("equal", 0.0), math.nan, choose(left, reflected, value))
    infinite = x.session.full(math.inf, F64, x.shape).copysign(-x)
    return choose(x.compare("equal", 0.0), infinite, found)


def _psi_right(x: Handle) -> Handle:
    """For x from 0 on."""
    between = steps(x, SHIFT).reciprocal().reduce_sum([x.rank])
    z = x + float(SHIFT)
    inverse = z.reciprocal()
    square = inverse * inverse
    return z.log() - inverse * 0.5 - polynomial(_ASYMPTOTIC, square) * square - between


@public
def zeta(x: Any, q: Any, /) -> Tensor:
    """Hurwitz's zeta function, the sum of `(q + k)^-x` over k from 0 on, for x over 1 and q over 0;
    infinite where x is 1 or q is 0 or a negative whole number, NaN elsewhere."""
    return of_pair(hurwitz, x, q)


def hurwitz(s: Handle, q: Handle) -> Handle:
    right = q.compare("greater", 0.0)
    value = _hurwitz_right(s, choose(right, q, 1.0))
    poles = from_whole(q).compare("equal", 0.0).bitwise_and(q.compare("less_equal", 0.0))
    found = choose(poles, math.inf, choose(right, value, math.nan))
    found = choose(s.compare("less", 1.0), math.nan, found)
    return choose(s.compare("equal", 1.0), math.inf, found)


def _hurwitz_right(s: Handle, q: Handle) -> Handle:
    """Euler and Maclaurin: the first terms one by one, the others as an integral with corrections
    at its end."""
    wide = (*q.shape, SHIFT)
    power = (-s).reshape((*s.shape, 1)).broadcast_to(wide)
    total = steps(q, SHIFT).pow(power).reduce_sum([q.rank])
    safe = choose(s.compare("equal", 1.0), 2.0, s)
    end = q.session.emit("minimum", q, 1e300) + float(SHIFT)
    term = end.pow(-s)
    total = total + end.pow(1.0 - s) / (safe - 1.0) + term * 0.5
    term = term / end * s
    square = end * end
    for k, number in enumerate(_BERNOULLI, 1):
        total = total + term * (number / math.factorial(2 * k))
        term = term * (s + float(2 * k - 1)) * (s + float(2 * k)) / square
    return total


@public
def polygamma(n: int, x: Tensor, /) -> Tensor:
    """Derivative number `n` of `digamma`."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        what = "a tensor" if isinstance(n, Tensor) else brief(n)
        raise SpecViolation(
            "InvalidAttributeValue", f"n is {what}", "the whole number n comes first, then x"
        )
    if n > _MOST_DERIVATIVES:
        why = f"n is {brief(n)}; it is at most {_MOST_DERIVATIVES}, since n! is not an f64 beyond"
        hint = f"take a derivative of at most {_MOST_DERIVATIVES}"
        raise SpecViolation("InvalidAttributeValue", why, hint)
    return _polygamma(x, n)


@recorded
def _polygamma(x: Handle, n: int) -> Handle:
    return digamma_derivative(x, n)


def digamma_derivative(x: Handle, n: int) -> Handle:
    if n == 0:
        return computed(psi, x)

    def formula(x: Handle) -> Handle:
        left = x.compare("less_equal", 0.0)
        order = x.session.full(n + 1.0, F64, x.shape)
        sign = -1.0 if n % 2 == 0 else 1.0
        value = _hurwitz_right(order, choose(left, 1.0 - x, x)) * (sign * math.factorial(n))
        part = choose(left, from_whole(x), 0.25)
        poles = part.compare("equal", 0.0)
        slope = polynomial(_cotangent(n), choose(poles, 1.0, part * math.pi).tan().reciprocal())
        found = choose(left, value * (1.0 if n % 2 == 0 else -1.0) - slope, value)
        return choose(poles, sign * math.inf, found)

    return computed(formula, x)


def _cotangent(n: int) -> tuple[float, ...]:
    """Derivative number n of `pi cot(pi x)`, as a polynomial in the cotangent."""
    found = np.array([0.0, math.pi])
    for _ in range(n):
        found = poly.polymul(poly.polyder(found), [-math.pi, 0.0, -math.pi])
    return tuple(float(c) for c in found)
