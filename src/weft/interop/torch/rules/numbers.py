"""Ops of one element at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from weft.foundation.dtypes import I1, SI32, SI64
from weft.interop.torch.rules.casts import cast
from weft.interop.torch.rules.promotion import common, converted, floating
from weft.interop.torch.rules.table import F, Rule, is_tensor, rule, rules, w

S: Any = w.special


def same(function: Rule) -> Rule:
    """An op in the dtype its operands have in common."""

    def call(*operands: Any, **more: Any) -> Any:
        return function(*_convert_operands(operands, common(operands)), **more)

    return call


def fractions(function: Rule) -> Rule:
    """The same, but integers become floats."""

    def call(*operands: Any, **more: Any) -> Any:
        return function(*_convert_operands(operands, floating(common(operands))), **more)

    return call


def _convert_operands(operands: Any, dtype: Any) -> list[Any]:
    made = converted(operands, dtype)
    if not any(map(is_tensor, made)):
        made[0] = w.asarray(made[0], dtype=dtype)
    return made


def on_bools(plain: Rule, logical: Rule) -> Rule:
    """An op that torch has for bools too, under another name here."""

    def call(x: Any, *rest: Any) -> Any:
        bools = all(not is_tensor(each) or each.dtype is I1 for each in (x, *rest))
        return (logical if bools else plain)(x, *rest)

    return call


def scaled(function: Rule) -> Rule:
    """`x op alpha * y`."""

    def call(x: Any, y: Any, alpha: Any = 1) -> Any:
        dtype = common((x, y))
        x, y = _convert_operands((x, y), dtype)
        return function(x, y if alpha == 1 else y * converted([alpha], dtype)[0])

    return call


_ADD = on_bools(lambda x, y: x + y, w.logical_or)
_MULTIPLY = on_bools(lambda x, y: x * y, w.logical_and)


def _divide_with_rounding(x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return fractions(lambda a, b: a / b)(x, y)
    return same(lambda a, b: w.divide(a, b, rounding=rounding_mode))(x, y)


def _power_rule(x: Any, y: Any) -> Any:
    if not is_tensor(y) and x.dtype.is_float and y in (2, 0.5, 3, -0.5):
        return {2: lambda: x * x, 3: lambda: x * x * x, 0.5: lambda: w.sqrt(x),
                -0.5: lambda: w.rsqrt(x)}[y]()  # fmt: skip
    return same(_raise_to_power)(x, y)


def _raise_to_power(x: Any, y: Any) -> Any:
    dtype = x.dtype if is_tensor(x) else y.dtype
    if not dtype.is_integer or dtype is I1:
        return w.pow(x, y)
    if not is_tensor(y) and y >= 0:
        return w.pow(x, y)
    low = w.astype(w.where(w.abs(x) == 1, w.pow(x, w.bitwise_and(w.asarray(y), 1)), 0), dtype)
    return w.where(w.asarray(y) < 0, low, w.pow(x, w.maximum(y, 0)))


def _clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    bounds = [bound for bound in (min, max) if bound is not None]
    dtype = common([x, *bounds])
    low, high = (None if bound is None else converted([bound], dtype)[0] for bound in (min, max))
    return w.clip(cast(x, dtype), low, high)


def _angle(x: Any) -> Any:
    if x.dtype.is_complex:
        return w.atan2(w.imag(x), w.real(x))
    x = cast(x, floating(x.dtype))
    return w.where(w.isnan(x), x, w.where(x < 0, math.pi, w.zeros_like(x)))


def _round(x: Any, decimals: int = 0) -> Any:
    if decimals == 0 or x.dtype.is_integer:
        return w.round(x)
    scale = 10.0 ** abs(decimals)
    return w.round(x * scale) / scale if decimals > 0 else w.round(x / scale) * scale


def _choose_present(first: Callable[..., Any]) -> Callable[..., Any]:
    """The larger or smaller of two; NaN only where both are. Of equals it is the first, which has
    all of the derivative."""

    def call(x: Any, y: Any) -> Any:
        chosen = first(x, y)
        return w.where(w.logical_or(chosen, w.isnan(y)) if x.dtype.is_float else chosen, x, y)

    return call


def _sign(x: Any) -> Any:
    if x.dtype is I1:
        return x
    if not x.dtype.is_float:
        return w.sign(x)
    return w.astype(w.greater(x, 0), x.dtype) - w.astype(w.less(x, 0), x.dtype)


def _mantissa(x: Any) -> Any:
    """x as a number from 1/2 to 1 times a power of two."""
    size = w.where(w.logical_or(x == 0, w.logical_not(w.isfinite(x))), 1.0, w.abs(x))
    exponent = w.floor(w.log2(size)) + 1
    exponent = w.where(size >= w.exp2(exponent), exponent + 1, exponent)
    exponent = w.where(size < w.exp2(exponent - 1), exponent - 1, exponent)
    exponent = w.where(w.logical_or(x == 0, w.logical_not(w.isfinite(x))), 0.0, exponent)
    return x / w.exp2(exponent), w.astype(exponent, SI32)


def _gcd(x: Any, y: Any) -> Any:
    """Euclid's algorithm, for as long as any pair needs."""
    x, y = w.broadcast_arrays(w.abs(x), w.abs(y))

    def step(held: Any) -> Any:
        a, b = held
        return w.where(b == 0, a, b), w.where(b == 0, 0, a % w.maximum(b, 1))

    return w.while_loop(lambda held: w.any(held[1] != 0), step, (x, y))[0]


def _lcm(x: Any, y: Any) -> Any:
    x, y = w.broadcast_arrays(x, y)
    return w.where((x == 0) | (y == 0), 0, w.abs(x // w.maximum(_gcd(x, y), 1) * y))


def _complex(real: Any, imaginary: Any) -> Any:
    dtype = w.result_type(common((real, imaginary)), w.complex64)
    unit = w.asarray(1j, dtype=dtype)
    return w.astype(real, dtype) + unit * w.astype(imaginary, dtype)


def _gelu(x: Any, approximate: str = "none") -> Any:
    return F.gelu(x, approximate)


def _shift(name: str) -> Rule:
    function = getattr(w, name)

    def call(x: Any, y: Any) -> Any:
        """Bits shifted further than there are leave nothing, or the sign."""
        x, y = _convert_operands((x, y), common((x, y)))
        bits = x.dtype.bits if is_tensor(x) else y.dtype.bits
        outside = w.logical_or(w.asarray(y) >= bits, w.asarray(y) < 0)
        far = w.where(w.asarray(x) < 0, -1, 0) if name.endswith("right_shift") else 0
        return w.where(outside, far, function(x, w.where(outside, 0, y)))

    return call


def _test_floats(choose: Callable[[Any], Any]) -> Rule:
    def call(x: Any) -> Any:
        return choose(x) if x.dtype.is_float or x.dtype.is_complex else w.zeros(x.shape, dtype=I1)

    return call


def _where(condition: Any, x: Any, y: Any) -> Any:
    x, y = converted((x, y), common((x, y)))
    if not is_tensor(x) and not is_tensor(y):
        x = w.asarray(x, dtype=common((x, y)))
    return w.where(cast(condition, I1), x, y)


def _truths(function: Rule) -> Rule:
    return lambda *xs: function(*[cast(x, I1) for x in xs])


def _threshold_backward(gradient: Any, x: Any, threshold: Any) -> Any:
    return w.where(x <= threshold, w.zeros((), dtype=gradient.dtype), gradient)


def _heaviside(x: Any, y: Any) -> Any:
    return w.where(x == 0, y, w.astype(x > 0, x.dtype))


for _name in [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "log",
    "log10",
    "log1p",
    "log2",
    "reciprocal",
    "rsqrt",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
]:
    _keeps = _name in ("ceil", "floor", "trunc")
    rules("aten.", **{_name: (same if _keeps else fractions)(getattr(w, _name))})
for _name in ["atan2", "copysign", "hypot", "logaddexp", "nextafter"]:
    rules("aten.", **{_name: fractions(getattr(w, _name))})
for _name in ["abs", "fmod", "remainder", "maximum", "minimum", "square"]:
    rules("aten.", **{_name: same(getattr(w, _name))})
for _name, _ours in (
    ("eq", "equal"), ("ne", "not_equal"), ("lt", "less"), ("le", "less_equal"), ("gt", "greater"),
    ("ge", "greater_equal"),
):  # fmt: skip
    rules("aten.", **{_name: same(getattr(w, _ours))})
for _name in ["and", "or", "xor"]:
    _logical, _bits = getattr(w, f"logical_{_name}"), getattr(w, f"bitwise_{_name}")
    rules("aten.", **{f"logical_{_name}": _truths(_logical)})
    for _full in (f"bitwise_{_name}", f"__{_name}__"):
        rules("aten.", **{_full: same(on_bools(_bits, _logical))})
for _name in ["digamma", "erfc", "erfinv", "lgamma", "i0", "igamma", "igammac"]:
    rules("aten.", **{_name: fractions(getattr(S, _name))})
for _name in ["entr", "erfcx", "i0e", "i1", "i1e", "log_ndtr", "ndtr", "ndtri", "xlog1py", "zeta"]:
    rules("aten.special_", **{_name: fractions(getattr(S, _name))})

rules(
    "aten.",
    add=scaled(_ADD),
    sub=scaled(lambda x, y: x - y),
    rsub=lambda x, y, alpha=1: scaled(lambda a, b: a - b)(y, x, alpha),
    mul=same(_MULTIPLY),
    div=_divide_with_rounding,
    true_divide=_divide_with_rounding,
    floor_divide=lambda x, y: _divide_with_rounding(x, y, "floor"),
    pow=_power_rule,
    neg=w.negative,
    bitwise_not=lambda x: w.logical_not(x) if x.dtype is I1 else w.bitwise_invert(x),
    logical_not=_truths(w.logical_not),
    bitwise_left_shift=_shift("bitwise_left_shift"),
    bitwise_right_shift=_shift("bitwise_right_shift"),
    __lshift__=_shift("bitwise_left_shift"),
    __rshift__=_shift("bitwise_right_shift"),
    clamp=_clamp,
    clamp_min=_clamp,
    clamp_max=lambda x, bound: _clamp(x, None, bound),
    sign=_sign,
    sgn=lambda x: w.sign(x) if x.dtype.is_complex else _sign(x),
    round=_round,
    fmax=same(_choose_present(w.greater_equal)),
    fmin=same(_choose_present(w.less_equal)),
    isnan=_test_floats(w.isnan),
    isinf=_test_floats(w.isinf),
    signbit=lambda x: w.signbit(x) if x.dtype.is_float else x < 0,
    angle=_angle,
    frexp=_mantissa,
    ldexp=fractions(lambda a, b: a * w.exp2(b)),
    gcd=same(_gcd),
    lcm=same(_lcm),
    heaviside=same(_heaviside),
    complex=_complex,
    polar=lambda size, angle: _complex(size * w.cos(angle), size * w.sin(angle)),
    view_as_complex=lambda x: _complex(x[..., 0], x[..., 1]),
    view_as_real=lambda x: w.stack([w.real(x), w.imag(x)], axis=-1),
    real=w.real,
    imag=w.imag,
    _conj=w.conj,
    _conj_physical=w.conj,
    conj_physical=w.conj,
    sigmoid=fractions(F.sigmoid),
    relu=lambda x: F.relu(x) if x.dtype.is_float else w.maximum(x, 0),
    gelu=_gelu,
    silu=F.silu,
    mish=F.mish,
    softplus=F.softplus,
    hardswish=F.hardswish,
    hardsigmoid=F.hardsigmoid,
    leaky_relu=F.leaky_relu,
    celu=F.celu,
    threshold_backward=_threshold_backward,
    polygamma=lambda n, x: S.polygamma(n, cast(x, floating(x.dtype))),
    special_spherical_bessel_j0=fractions(lambda x: S.sinc(x / math.pi)),
    special_modified_bessel_i0=fractions(S.i0),
    special_modified_bessel_i1=fractions(S.i1),
    lerp=fractions(w.lerp),
    xlogy=fractions(S.xlogy),
    where=_where,
    masked_fill=lambda x, mask, value: w.where(mask, converted([value], x.dtype)[0], x),
    addcmul=lambda x, a, b, value=1: same(lambda x, a, b: x + a * b * value)(x, a, b),
    addcdiv=lambda x, a, b, value=1: fractions(lambda x, a, b: x + a / b * value)(x, a, b),
    nan_to_num=lambda x, nan=None, posinf=None, neginf=None: w.nan_to_num(
        x, 0.0 if nan is None else nan, posinf, neginf
    ),
)


@rule("aten.elu")
def _(x: Any, alpha: Any = 1.0, scale: Any = 1.0, input_scale: Any = 1.0) -> Any:
    # What is not chosen is kept finite, by a choice: the derivative at 0 is that of this side.
    below = w.where(x > 0, 0, x)
    return w.where(x > 0, x * scale, w.expm1(below * input_scale) * (alpha * scale))


@rule("aten.hardtanh")
def _(x: Any, min_val: Any = -1.0, max_val: Any = 1.0) -> Any:
    return _clamp(x, min_val, max_val) if x.dtype.is_integer else F.hardtanh(x, min_val, max_val)


@rule("aten.trunc")
def _(x: Any) -> Any:
    return x if x.dtype.is_integer else w.trunc(x)


@rule("aten.abs")
def _(x: Any) -> Any:
    return x if x.dtype is I1 else w.abs(x)


@rule("aten.bucketize")
def _(x: Any, row: Any, *, out_int32: bool = False, right: bool = False) -> Any:
    dtype = common((row, x))
    row, x = (cast(each, dtype) if is_tensor(each) else each for each in (row, x))
    found = w.searchsorted(row, x, side="right" if right else "left")
    return w.astype(found, SI32 if out_int32 else SI64)


def _series(first: Rule, second: Rule, step: Rule, most: int = 64) -> Rule:
    """Polynomials by recurrence, of the degree that every element of a tensor has."""

    def call(x: Any, n: Any) -> Any:
        x, n = _convert_operands((x, n), floating(common((x, n))))
        x, n = w.broadcast_arrays(w.asarray(x), w.trunc(w.asarray(n)))
        degree = w.zeros((), dtype=x.dtype)

        def body(held: Any) -> Any:
            k, before, now, found = held
            k = k + 1
            return k, now, step(x, now, before, k), w.where(n == k, now, found)

        zero = w.where(n == 0, first(x), w.zeros_like(x))
        start = (degree, first(x), second(x), zero)
        more = w.while_loop(lambda held: w.logical_and(held[0] < w.max(n), held[0] < most), body,
                            start)  # fmt: skip
        return more[3]

    return call


def _double(x: Any, now: Any, before: Any, k: Any) -> Any:
    return 2 * x * now - before


_SECONDS: dict[str, Rule] = {
    "t": lambda x: x, "u": lambda x: 2 * x, "v": lambda x: 2 * x - 1, "w": lambda x: 2 * x + 1,
}  # fmt: skip
for _name, _second in _SECONDS.items():
    _made = _series(w.ones_like, _second, _double)
    rules("aten.special_", **{f"chebyshev_polynomial_{_name}": _made})
    _moved = _series(w.ones_like, _second, _double)
    rules(
        "aten.special_",
        **{f"shifted_chebyshev_polynomial_{_name}": lambda x, n, made=_moved: made(2 * x - 1, n)},
    )
rules(
    "aten.special_",
    hermite_polynomial_h=_series(
        w.ones_like, lambda x: 2 * x, lambda x, a, b, k: 2 * x * a - 2 * k * b
    ),
    hermite_polynomial_he=_series(w.ones_like, lambda x: x, lambda x, a, b, k: x * a - k * b),
    laguerre_polynomial_l=_series(
        w.ones_like, lambda x: 1 - x, lambda x, a, b, k: ((2 * k + 1 - x) * a - k * b) / (k + 1)
    ),
    legendre_polynomial_p=_series(
        w.ones_like, lambda x: x, lambda x, a, b, k: ((2 * k + 1) * x * a - k * b) / (k + 1)
    ),
)
