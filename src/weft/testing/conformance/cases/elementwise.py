"""Elementwise functions: the contract's own, the extension functions, bit logic."""

from __future__ import annotations

import cmath
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from weft.foundation.dtypes import I1, DType
from weft.testing.conformance.bounds import function_rule, logaddexp_room, widened
from weft.testing.conformance.case import Case, Trial, Wanted, exactly
from weft.testing.conformance.cases.common import (
    DYNAMIC,
    ODD,
    SHAPES,
    Array,
    Shape,
    apply,
    case,
    defined,
    symbolic,
    trial,
)
from weft.testing.conformance.data import edges, joined, pairs, sample, source, special
from weft.testing.conformance.oracles import functions as oracle
from weft.testing.conformance.oracles.rounding import (
    largest,
    nearest,
    rounded,
    smallest,
    whole,
    wide,
    wrapped,
)
from weft.testing.conformance.tolerance import Exact

UNARY = [*oracle.REAL_UNARY, "bitwise_not"]
BINARY = [
    *oracle.REAL_BINARY, "copysign", "nextafter", "bitwise_and", "bitwise_or", "bitwise_xor",
    "shift_left", "shift_right",
]  # fmt: skip
PREDICATES = ("signbit", "isnan", "isinf", "isfinite")
BRANCHES = ("sqrt", "log", "asin", "acos", "atan", "asinh", "acosh", "atanh", "log10")
"""Complex functions with a branch cut, for which Python's cmath says which side is which."""


def cases() -> Iterator[Case]:
    """Every elementwise function on every dtype."""
    for name in UNARY:
        for dtype in defined(name):
            yield from _cases_by_shape(name, dtype, _unary_trial)
            if not dtype.is_complex or name == "neg":
                yield case(name, dtype, "special", trial=partial(_edge_trial, name, dtype))
            elif name in BRANCHES:
                yield case(name, dtype, "branch", trial=partial(_branches, name, dtype))
    for name in PREDICATES:
        for dtype in defined(name):
            yield from _cases_by_shape(name, dtype, _predicate_trial)
            yield case(name, dtype, "special", trial=partial(_predicate_edges, name, dtype))
    for name in BINARY:
        for dtype in defined(name):
            yield from _cases_by_shape(name, dtype, _binary_trial)
            if not dtype.is_complex:
                yield case(name, dtype, "special", trial=partial(_binary_edges, name, dtype))


MakeTrial = Callable[..., Trial]


def _cases_by_shape(name: str, dtype: DType, make: MakeTrial) -> Iterator[Case]:
    for shape_class, shape in SHAPES.items():
        yield case(name, dtype, shape_class, trial=partial(make, name, dtype, shape))
    yield case(name, dtype, "dynamic", trial=partial(make, name, dtype, ODD, dynamic=True))


# -- inputs --------------------------------------------------------------------------------------


def _uniform_between(low: float, high: float) -> Callable[[DType, Shape, str], Array]:
    def draw(dtype: DType, shape: Shape, key: str) -> Array:
        return nearest(source(dtype, shape, key).uniform(low, high, shape), dtype)

    return draw


def _positive(dtype: DType, shape: Shape, key: str) -> Array:
    return np.abs(_any_size(dtype, shape, key))


def _any_size(dtype: DType, shape: Shape, key: str) -> Array:
    """Values of every order of magnitude, those around 1 most of all."""
    rng = source(dtype, shape, key)
    reach = np.log(largest(dtype)), np.log(smallest(dtype))
    far = np.exp(rng.uniform(reach[1], reach[0], shape)) * rng.choice([-1, 1], shape)
    near = rng.standard_normal(shape) * 2
    return nearest(np.where(rng.random(shape) < 0.25, far, near), dtype)


_DOMAIN: dict[str, Callable[[DType, Shape, str], Array]] = {
    **dict.fromkeys(("log", "log2", "log10", "sqrt", "rsqrt"), _positive),
    **dict.fromkeys(("asin", "acos", "atanh"), _uniform_between(-1.0, 1.0)),
    "acosh": _uniform_between(1.0, 50.0),
    "log1p": _uniform_between(-0.95, 4.0),
}
"""Where a function is neither NaN nor constant, for the floats it is fed."""


def _arguments(name: str, dtype: DType, shape: Shape) -> tuple[Array, ...]:
    count = 1 if name in UNARY or name in PREDICATES else 2
    return tuple(_argument(name, dtype, shape, i) for i in range(count))


def _argument(name: str, dtype: DType, shape: Shape, index: int) -> Array:
    key = f"{name}{index}"
    if dtype.is_float:
        if name == "pow":
            return (
                _uniform_between(0.1, 4.0)(dtype, shape, key)
                if index == 0
                else sample(dtype, shape, key)
            )
        return _DOMAIN.get(name, _any_size)(dtype, shape, key)
    drawn = sample(dtype, shape, key, scale=1.0)
    return drawn if index == 0 else _second(name, dtype, drawn)


def _second(name: str, dtype: DType, y: Array) -> Array:
    """A second operand that is no violation: divisors that are not 0, exponents and shift amounts
    that are not negative."""
    if not dtype.is_integer:
        return y
    zero, one = np.zeros((), y.dtype), np.ones((), y.dtype)
    if name in ("div", "fmod"):
        return np.where(y == zero, one, y).astype(y.dtype)
    if name in ("pow", "shift_left", "shift_right"):
        bound = wrapped(np.abs(whole(y)) % (dtype.bits + 2), dtype)
        return np.where(bound < zero, zero, bound).astype(y.dtype)
    return y


# -- trials --------------------------------------------------------------------------------------


def _unary_trial(name: str, dtype: DType, shape: Shape, dynamic: bool = False) -> Trial:
    (x,) = _arguments(name, dtype, shape)
    dims = [symbolic(shape, DYNAMIC)] if dynamic else None
    return trial(apply(name, [x], dims=dims), [x], _unary(name, x, dtype))


def _edge_trial(name: str, dtype: DType) -> Trial:
    x = edges(dtype)
    return trial(apply(name, [x]), [x], _unary(name, x, dtype))


def _unary(name: str, x: Array, dtype: DType) -> Wanted:
    rule = function_rule(name, dtype)
    if dtype.is_float or dtype.is_complex:
        table = oracle.COMPLEX_UNARY if dtype.is_complex else oracle.REAL_UNARY
        exact = np.asarray(table[name](wide(x)))
        if name == "exp2" and dtype.is_complex:
            rule = widened(rule, np.abs(wide(x).imag))
        return Wanted(rounded(exact, dtype) if isinstance(rule, Exact) else exact, dtype, rule)
    if dtype is I1:
        return exactly(~x)
    return exactly(wrapped(oracle.INTEGER_UNARY[name](whole(x)), dtype))


def _branches(name: str, dtype: DType) -> Trial:
    """On the cuts and beside them, zeros of both signs on either side."""
    axis = [-4.0, -1.5, -0.5, 0.5, 1.5, 4.0]
    points = [complex(x, zero) for x in axis for zero in (0.0, -0.0)]
    points += [complex(zero, x) for x in axis for zero in (0.0, -0.0)]
    x = joined(dtype, [z.real for z in points], [z.imag for z in points])
    exact = np.array([getattr(cmath, name)(complex(z)) for z in x], np.complex128)
    return trial(apply(name, [x]), [x], Wanted(exact, dtype, function_rule(name, dtype)))


def _binary_trial(name: str, dtype: DType, shape: Shape, dynamic: bool = False) -> Trial:
    x, y = _arguments(name, dtype, shape)
    dims = [symbolic(shape, DYNAMIC)] * 2 if dynamic else None
    return trial(apply(name, [x, y], dims=dims), [x, y], _binary(name, x, y, dtype))


def _binary_edges(name: str, dtype: DType) -> Trial:
    x, y = pairs(edges(dtype), edges(dtype))
    if dtype.is_integer:
        y = _second(name, dtype, y)
    return trial(apply(name, [x, y]), [x, y], _binary(name, x, y, dtype))


def _binary(name: str, x: Array, y: Array, dtype: DType) -> Wanted:
    rule = function_rule(name, dtype)
    if name == "copysign":
        return exactly(oracle.copysign(x, y))
    if name == "nextafter":
        return exactly(oracle.nextafter(x, y, dtype))
    if dtype.is_float or dtype.is_complex:
        return _wide_binary(name, x, y, dtype)
    if dtype is I1:
        return exactly(_LOGIC[name](x, y))
    return Wanted(
        wrapped(oracle.integer_binary(name, whole(x), whole(y), dtype), dtype), dtype, rule
    )


def _wide_binary(name: str, x: Array, y: Array, dtype: DType) -> Wanted:
    rule = function_rule(name, dtype)
    table = oracle.COMPLEX_BINARY if dtype.is_complex else oracle.REAL_BINARY
    a, b = wide(x), wide(y)
    exact = np.asarray(table[name](a, b))
    if isinstance(rule, Exact):
        return Wanted(rounded(exact, dtype), dtype, rule)
    if name == "logaddexp":
        rule = widened(rule, logaddexp_room(a, b, exact, dtype))
    if name == "pow" and dtype.is_complex:
        rule = widened(rule, np.abs(2 * b * np.log(a)))
    return Wanted(exact, dtype, rule)


_LOGIC: dict[str, Callable[[Array, Array], Any]] = {
    "maximum": lambda x, y: x | y,
    "minimum": lambda x, y: x & y,
    "bitwise_and": lambda x, y: x & y,
    "bitwise_or": lambda x, y: x | y,
    "bitwise_xor": lambda x, y: x != y,
}


def _predicate_trial(name: str, dtype: DType, shape: Shape, dynamic: bool = False) -> Trial:
    values = special(dtype)
    x = np.asarray(source(name, dtype, shape).choice(values, shape), dtype.numpy)
    dims = [symbolic(shape, DYNAMIC)] if dynamic else None
    return trial(apply(name, [x], dims=dims), [x], _predicate(name, x, dtype))


def _predicate_edges(name: str, dtype: DType) -> Trial:
    x = edges(dtype)
    return trial(apply(name, [x]), [x], _predicate(name, x, dtype))


def _predicate(name: str, x: Array, dtype: DType) -> Wanted:
    if name == "signbit":
        return exactly(oracle.sign_bits(x))
    infinite, missing = oracle.infinite(x, dtype), oracle.has_nan(x, dtype)
    answers = {"isinf": infinite, "isnan": missing, "isfinite": ~(infinite | missing)}
    return exactly(np.asarray(answers[name]))
