"""torch's functions of numbers, one element at a time, as Weft's. The names and the order of the
arguments are torch's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import weft
from tests.scores.opinfo_forms import OPS
from weft import functional

F: Any = functional
w: Any = weft
SAME = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and", "bitwise_or",
    "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", "ceil", "copysign", "cos", "cosh",
    "erf", "exp", "exp2", "expm1", "floor", "fmod", "hypot", "isfinite", "isinf", "isnan",
    "lerp", "log", "log10", "log1p", "log2", "logaddexp", "logical_and", "logical_not",
    "logical_or", "logical_xor", "maximum", "minimum", "nextafter", "positive", "pow", "reciprocal",
    "remainder", "rsqrt", "sign", "signbit", "sin", "sinh", "sqrt", "square", "tan", "tanh",
    "trunc", "conj", "real", "imag", "nan_to_num", "floor_divide",
)  # fmt: skip
SPECIAL = (
    "erfcx", "i0e", "i1", "i1e", "log_ndtr", "ndtr", "ndtri", "xlog1py", "zeta", "entr",
)  # fmt: skip
PLAIN = ("digamma", "erfc", "erfinv", "lgamma", "sinc", "igamma", "igammac", "xlogy", "i0")
KINDS = {
    "bfloat16": "bfloat16", "bool": "bool", "byte": "uint8", "cdouble": "complex128",
    "cfloat": "complex64", "char": "int8", "double": "float64", "float": "float32",
    "half": "float16", "int": "int32", "long": "int64", "short": "int16",
}  # fmt: skip


def named(home: str, name: str) -> Callable[..., Any]:
    """A function that is looked up when it is called: `weft`, or a module of it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        module = weft if not home else getattr(weft, home)
        return getattr(module, name)(*args, **kwargs)

    return call


OPS |= {name: named("", name) for name in SAME}
OPS |= {name: named("special", name) for name in PLAIN}
OPS |= {f"special.{name}": named("special", name) for name in SPECIAL}


def _cast(kind: str) -> Callable[..., Any]:
    return lambda x, **_: w.astype(x, getattr(w, kind))


OPS |= {name: _cast(kind) for name, kind in KINDS.items()}


def _scaled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`x op alpha * y`."""

    def call(x: Any, y: Any, *, alpha: Any = 1) -> Any:
        return function(x, y if alpha == 1 else y * alpha)

    return call


def rounded(x: Any, *, decimals: int = 0) -> Any:
    scale = 10.0 ** abs(decimals)
    if decimals == 0:
        return w.round(x)
    return w.round(x * scale) / scale if decimals > 0 else w.round(x / scale) * scale


def quotient(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    return w.divide(x, y, rounding=rounding_mode)


def bounded(x: Any, low: Any = None, high: Any = None, **named: Any) -> Any:
    low, high = named.get("min", low), named.get("max", high)
    x = x if low is None else w.maximum(x, low)
    return x if high is None else w.minimum(x, high)


def direction(x: Any) -> Any:
    return w.sign(x)


def logit(x: Any, eps: float | None = None) -> Any:
    return w.special.logit(x if eps is None else w.clip(x, eps, 1 - eps))


def multigamma(x: Any, p: int) -> Any:
    parts = [w.special.lgamma(x - j / 2) for j in range(p)]
    return sum(parts) + p * (p - 1) / 4 * math.log(math.pi)


def polygamma(x: Any, n: int) -> Any:
    return w.special.polygamma(n, x)


def fraction(x: Any) -> Any:
    return x - w.trunc(x)


def _either(choose: Callable[..., Any]) -> Callable[..., Any]:
    """The larger or smaller of two; NaN only where both are."""

    def call(x: Any, y: Any) -> Any:
        found = w.where(w.isnan(x), y, choose(x, y))
        return w.where(w.isnan(y), x, found)

    return call


def power_of_two(x: Any, exponent: Any) -> Any:
    return x * w.exp2(exponent.astype(x.dtype) if hasattr(exponent, "astype") else exponent)


def mantissa(x: Any) -> Any:
    """x as a number from 1/2 to 1 times a power of two."""
    size = w.where(x == 0, 1.0, w.abs(x))
    exponent = w.floor(w.log2(size)) + 1
    exponent = w.where(w.abs(x) >= w.exp2(exponent), exponent + 1, exponent)
    exponent = w.where(size < w.exp2(exponent - 1), exponent - 1, exponent)
    exponent = w.where(x == 0, 0.0, exponent)
    return x / w.exp2(exponent), exponent.astype(w.int32)


def logaddexp2(x: Any, y: Any) -> Any:
    return w.logaddexp(x * math.log(2), y * math.log(2)) / math.log(2)


def series(first: Callable[[Any], Any], second: Callable[[Any], Any], step: Any) -> Any:
    """Polynomials by recurrence, of the degree of each element."""

    def call(x: Any, n: Any) -> Any:
        x, n = w.broadcast_arrays(w.asarray(x), w.trunc(w.asarray(n)))
        top = min(int(w.max(n).item()), 64) if n.size else 0
        before, now = first(x), second(x)
        found = w.where(n == 0, before, 0.0)
        for degree in range(1, top + 1):
            found = w.where(n == degree, now, found)
            before, now = now, step(x, now, before, degree)
        return found

    return call


def gcd(x: Any, y: Any) -> Any:
    """Euclid's algorithm, for as long as any pair needs."""
    x, y = w.broadcast_arrays(w.abs(x), w.abs(y))

    def step(pair: Any) -> Any:
        a, b = pair
        return w.where(b == 0, a, b), w.where(b == 0, 0, a % w.maximum(b, 1))

    return w.while_loop(lambda pair: w.any(pair[1] != 0), step, (x, y))[0]


def _one(x: Any) -> Any:
    return w.ones_like(x)


def _double(x: Any, now: Any, before: Any, _: int) -> Any:
    return 2 * x * now - before


POLYNOMIALS = {
    "chebyshev_polynomial_t": series(_one, lambda x: x, _double),
    "chebyshev_polynomial_u": series(_one, lambda x: 2 * x, _double),
    "chebyshev_polynomial_v": series(_one, lambda x: 2 * x - 1, _double),
    "chebyshev_polynomial_w": series(_one, lambda x: 2 * x + 1, _double),
    "hermite_polynomial_h": series(_one, lambda x: 2 * x, lambda x, a, b, k: 2 * x * a - 2 * k * b),
    "hermite_polynomial_he": series(_one, lambda x: x, lambda x, a, b, k: x * a - k * b),
    "laguerre_polynomial_l": series(
        _one, lambda x: 1 - x, lambda x, a, b, k: ((2 * k + 1 - x) * a - k * b) / (k + 1)
    ),
    "legendre_polynomial_p": series(
        _one, lambda x: x, lambda x, a, b, k: ((2 * k + 1) * x * a - k * b) / (k + 1)
    ),
}


def _shifted(name: str) -> Callable[..., Any]:
    return lambda x, n: POLYNOMIALS[name](2 * w.asarray(x) - 1, n)


OPS |= {f"special.{name}": function for name, function in POLYNOMIALS.items()}
for _kind in "tuvw":
    _name = f"chebyshev_polynomial_{_kind}"
    OPS[f"special.shifted_{_name}"] = _shifted(_name)

OPS |= {
    "add": _scaled(lambda x, y: x + y),
    "sub": _scaled(lambda x, y: x - y),
    "rsub": lambda x, y, *, alpha=1: y - x * alpha,
    "mul": lambda x, y: x * y,
    "div:no_rounding_mode": quotient,
    "div:floor_rounding": quotient,
    "div:trunc_rounding": quotient,
    "true_divide": lambda x, y: x / y,
    "neg": w.negative,
    "eq": w.equal, "ne": w.not_equal, "lt": w.less, "le": w.less_equal, "gt": w.greater,
    "ge": w.greater_equal,
    "__radd__": lambda x, y: y + x,
    "__rsub__": lambda x, y: y - x,
    "__rmul__": lambda x, y: y * x,
    "__rdiv__": lambda x, y: y / x,
    "__rmod__": lambda x, y: y % x,
    "__rpow__": lambda x, y: y**x,
    "__rand__": lambda x, y: y & x,
    "__ror__": lambda x, y: y | x,
    "__rxor__": lambda x, y: y ^ x,
    "bitwise_not": w.bitwise_invert,
    "clamp": bounded,
    "clamp_max": lambda x, high: w.clip(x, None, high),
    "clamp_min": lambda x, low: w.clip(x, low),
    "conj_physical": w.conj, "resolve_conj": w.positive, "resolve_neg": w.positive,
    "sgn": direction,
    "round": rounded, "round:decimals_0": rounded, "round:decimals_3": rounded,
    "round:decimals_neg_3": rounded,
    "sigmoid": F.sigmoid,
    "logit": logit,
    "mvlgamma:mvlgamma_p_1": multigamma, "mvlgamma:mvlgamma_p_3": multigamma,
    "mvlgamma:mvlgamma_p_5": multigamma,
    **{f"polygamma:polygamma_n_{n}": polygamma for n in range(5)},
    "special.polygamma:special_polygamma_n_0": polygamma,
    "frac": fraction,
    "fmax": _either(w.maximum), "fmin": _either(w.minimum),
    "float_power": lambda x, y: w.pow(
        w.astype(w.asarray(x), w.float64), y if not hasattr(y, "astype") else y.astype(w.float64)
    ),
    "ldexp": power_of_two, "frexp": mantissa,
    "logaddexp2": logaddexp2,
    "deg2rad": lambda x: x * (math.pi / 180), "rad2deg": lambda x: x * (180 / math.pi),
    "isneginf": lambda x: w.equal(x, -math.inf), "isposinf": lambda x: w.equal(x, math.inf),
    "isreal": lambda x: w.equal(w.imag(x), 0),
    "angle": lambda x: w.where(w.isnan(x), x, w.where(x < 0, math.pi, w.zeros_like(x))),
    "addcmul": lambda x, a, b, *, value=1: x + a * b * value,
    "addcdiv": lambda x, a, b, *, value=1: x + a / b * value,
    "special.spherical_bessel_j0": lambda x: w.special.sinc(x / math.pi),
    "special.modified_bessel_i0": lambda x: w.special.i0(x),
    "special.modified_bessel_i1": lambda x: w.special.i1(x),
    "complex": lambda re, im: re + w.asarray(1j) * im,
    "polar": lambda size, angle: size * (w.cos(angle) + w.asarray(1j) * w.sin(angle)),
    "view_as_complex": lambda x: x[..., 0] + w.asarray(1j) * x[..., 1],
    "view_as_real": lambda x: w.stack([w.real(x), w.imag(x)], axis=-1),
    "heaviside": lambda x, y: w.where(x == 0, y, (x > 0).astype(x.dtype)),
    "gcd": lambda x, y: gcd(x, y),
    "lcm": lambda x, y: w.where((x == 0) | (y == 0), 0, w.abs(x // w.maximum(gcd(x, y), 1) * y)),
    "isclose": w.isclose,
    "allclose": w.allclose,
    "equal": lambda x, y: w.array_equal(x, y),
    "fill": lambda x, value: w.broadcast_to(w.asarray(value).astype(x.dtype), x.shape),
    "zero_": w.zeros_like,
    "where": lambda x, condition, y: w.where(condition, x, y),
    "item": lambda x: w.reshape(x, ()),
}  # fmt: skip
