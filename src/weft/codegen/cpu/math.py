"""Elementary functions as LLVM code: no library is called, and every lane does the same.

Polynomials interpolate at Chebyshev nodes, computed with 60 digits. Ranges are complete:
infinities, NaN, zeros and subnormals come out as IEEE arithmetic wants them. Worst errors, measured
over the tests' points: exp 1 ulp, exp2 1, log 2, log2 2, tanh 3, erf 3, in f32 and f64 alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from weft.codegen.cpu.code import Code, Val, number


@dataclass(frozen=True)
class _Format:
    """What the functions need to know of a float format."""

    integer: str
    mantissa: int
    bias: int
    ln2_high: float
    ln2_low: float
    exp: tuple[float, ...]
    tanh: tuple[float, ...]
    atanh: tuple[float, ...]
    erf: tuple[float, ...]
    erfc: tuple[float, ...]
    erf_one: float
    """From here on erf is 1."""


_F32 = _Format(
    "i32", 23, 127, 0.693145751953125, 1.4286068203094173e-06,
    exp=(1.0, 1.0000000377388714, 0.5000000047146057, 0.16666415414041177, 0.04166635277111221,
         0.008375134774624326, 0.0013941118895837),
    tanh=(0.9999999960227217, -0.3333325986294753, 0.1333111405568977, -0.05372010765662894,
          0.02058819145458637, -0.005657135184380392),
    atanh=(0.9999999993115419, 0.33333408005516507, 0.19987387120208958, 0.14963232210757893),
    erf=(1.1283791658483509, -0.37612626666720334, 0.11283594715160218, -0.026854212010626412,
         0.005189087423433974, -0.000801686428716587, 7.875875062685488e-05),
    erfc=(0.25539567625190335, -0.42718584761434303, 0.24165821109072444, -0.07897852327253349,
          0.0037321413513030097, 0.006994855413599958, -0.0008365899736486057,
          -0.0009441596340872735),
    erf_one=4.0,
)  # fmt: skip
_F64 = _Format(
    "i64", 52, 1023, 0.6931471803691238, 1.9082149292705877e-10,
    exp=(1.0, 1.0, 0.5, 0.16666666666666702, 0.04166666666666669, 0.008333333333309509,
         0.0013888888888871874, 0.00019841269909257902, 2.480158735013993e-05,
         2.755722492065214e-06, 2.7557251877225084e-07, 2.511488209588034e-08,
         2.092158893897149e-09),
    tanh=(1.0, -0.33333333333333304, 0.13333333333328876, -0.053968253965732335,
          0.021869488461885925, -0.00886323422471307, 0.0035921132636968136,
          -0.0014557218116126916, 0.0005894360841645431, -0.00023697189507278623,
          9.1493870984202e-05, -3.0126774459409827e-05, 6.0175758508781835e-06),
    atanh=(1.0, 0.3333333333333333, 0.20000000000003787, 0.14285714284397683, 0.11111111340194768,
           0.09090886733193071, 0.07693586334202998, 0.06624250068724058, 0.06632242481574739),
    erf=(1.1283791670955126, -0.3761263890318375, 0.11283791670954879, -0.026866170645076792,
         0.0052239776248180145, -0.000854832698083379, 0.0001205533111164271,
         -1.4925595266831182e-05, 1.6461000484121368e-06, -1.6350312701054695e-07,
         1.4659775274047436e-08, -1.1372848856791674e-09, 5.957176147748911e-11),
    erfc=(0.25539567631050575, -0.4271858474139584, 0.24165819424246646, -0.07897858101573213,
          0.003732892404327764, 0.006997461739200444, -0.0008471432509203844,
          -0.000981977026567889, 4.355560219515472e-05, 0.00017436116545392264,
          2.7525480361206068e-05, -2.7579864674305787e-05, -1.396807230177146e-05,
          1.392621183618803e-06, 3.789215643758464e-06, 1.1780775215625583e-06,
          -5.322696855655786e-07, -4.215301054238321e-07),
    erf_one=6.0,
)  # fmt: skip
_FORMATS = {"float": _F32, "double": _F64}


class Functions:
    """The functions, written into a `Code`."""

    def __init__(self, code: Code) -> None:
        self.code = code

    def _like(self, value: float, x: Val) -> Val:
        return number(value, x.scalar, x.lanes)

    def _fma(self, a: Val, b: Val, c: Val) -> Val:
        return self.code.intrinsic("llvm.fmuladd", a, b, c)

    def _poly(self, coefficients: tuple[float, ...], t: Val) -> Val:
        result = self._like(coefficients[-1], t)
        for coefficient in reversed(coefficients[:-1]):
            result = self._fma(result, t, self._like(coefficient, t))
        return result

    def exp(self, x: Val) -> Val:
        """e^x: x = n ln 2 + r with ln 2 in two parts, then 2^n times a polynomial."""
        form, code = _FORMATS[x.scalar], self.code
        scaled = code.binary("fmul", x, self._like(math.log2(math.e), x))
        n = self._nearest(self._bounded(scaled, form))
        r = self._fma(n, self._like(-form.ln2_high, x), x)
        r = self._fma(n, self._like(-form.ln2_low, x), r)
        return self._edges(self._scale(self._poly(form.exp, r), n), scaled, x, form)

    def exp2(self, x: Val) -> Val:
        """2^x: x = n + r exactly, then 2^n times e^(r ln 2)."""
        form, code = _FORMATS[x.scalar], self.code
        n = self._nearest(self._bounded(x, form))
        r = code.binary("fmul", code.binary("fsub", x, n), self._like(math.log(2), x))
        return self._edges(self._scale(self._poly(form.exp, r), n), x, x, form)

    def _nearest(self, x: Val) -> Val:
        """The whole number nearest to a moderate x: adding 1.5 * 2^mantissa rounds the rest off."""
        magic = self._like(1.5 * 2.0 ** _FORMATS[x.scalar].mantissa, x)
        return self.code.binary("fsub", self.code.binary("fadd", x, magic), magic)

    def _bounded(self, x: Val, form: _Format) -> Val:
        """x kept where 2^x is neither far below nor far above the format; NaN becomes a bound."""
        limit = float(2 * form.bias)
        low = self.code.intrinsic("llvm.maxnum", x, self._like(-limit, x))
        return self.code.intrinsic("llvm.minnum", low, self._like(limit, x))

    def _edges(self, result: Val, power: Val, x: Val, form: _Format) -> Val:
        """Infinity and zero beyond the bounds, and NaN for NaN."""
        code, limit = self.code, float(2 * form.bias)
        over = code.compare("fcmp ogt", power, self._like(limit, x))
        under = code.compare("fcmp olt", power, self._like(-limit, x))
        nan = code.compare("fcmp uno", x, x)
        result = code.select(over, self._like(math.inf, x), result)
        result = code.select(under, self._like(0.0, x), result)
        return code.select(nan, x, result)

    def _scale(self, value: Val, n: Val) -> Val:
        """value times 2^n for whole n, in two steps so that subnormal results round once."""
        form, code = _FORMATS[value.scalar], self.code
        whole = code.convert("fptosi", n, form.integer)
        half = code.binary("ashr", whole, number(1, form.integer, n.lanes))
        rest = code.binary("sub", whole, half)
        value = code.binary("fmul", value, self._power(half, value.scalar))
        return code.binary("fmul", value, self._power(rest, value.scalar))

    def _power(self, n: Val, scalar: str) -> Val:
        form, code = _FORMATS[scalar], self.code
        biased = code.binary("add", n, number(form.bias, form.integer, n.lanes))
        bits = code.binary("shl", biased, number(form.mantissa, form.integer, n.lanes))
        return code.convert("bitcast", bits, scalar)

    def log(self, x: Val) -> Val:
        """ln x = n ln 2 + ln m with m near 1: 2 atanh((m - 1) / (m + 1))."""
        form = _FORMATS[x.scalar]
        n, series = self._log_parts(x)
        low = self._fma(n, self._like(form.ln2_low, x), series)
        return self._log_edges(self._fma(n, self._like(form.ln2_high, x), low), x)

    def log2(self, x: Val) -> Val:
        n, series = self._log_parts(x)
        return self._log_edges(self._fma(series, self._like(math.log2(math.e), x), n), x)

    def _log_parts(self, x: Val) -> tuple[Val, Val]:
        form, code = _FORMATS[x.scalar], self.code
        lanes = x.lanes
        tiny = code.compare("fcmp olt", x, self._like(2.0 ** (2 - form.bias), x))
        lifted = code.binary("fmul", x, self._like(2.0 ** (form.mantissa + 2), x))
        normal = code.select(tiny, lifted, x)
        bits = code.convert("bitcast", normal, form.integer)
        root_half = code.convert("bitcast", self._like(math.sqrt(0.5), x), form.integer)
        shifted = code.binary("sub", bits, root_half)
        n = code.binary("ashr", shifted, number(form.mantissa, form.integer, lanes))
        power = code.binary("shl", n, number(form.mantissa, form.integer, lanes))
        m = code.convert("bitcast", code.binary("sub", bits, power), x.scalar)
        count = code.convert("sitofp", n, x.scalar)
        lift = self._like(float(form.mantissa + 2), x)
        count = code.select(tiny, code.binary("fsub", count, lift), count)
        f = code.binary("fsub", m, self._like(1.0, x))
        s = code.binary("fdiv", f, code.binary("fadd", f, self._like(2.0, x)))
        square, double = code.binary("fmul", s, s), code.binary("fadd", s, s)
        tail = code.binary("fmul", square, self._poly(form.atanh[1:], square))
        return count, self._fma(double, tail, double)

    def _log_edges(self, result: Val, x: Val) -> Val:
        code = self.code
        negative = code.compare("fcmp ult", x, self._like(0.0, x))
        zero = code.compare("fcmp oeq", x, self._like(0.0, x))
        infinite = code.compare("fcmp oeq", x, self._like(math.inf, x))
        result = code.select(infinite, x, result)
        result = code.select(zero, self._like(-math.inf, x), result)
        return code.select(negative, self._like(math.nan, x), result)

    def tanh(self, x: Val) -> Val:
        """An odd polynomial near zero; 1 - 2 / (e^(2|x|) + 1) elsewhere."""
        form, code = _FORMATS[x.scalar], self.code
        size = code.intrinsic("llvm.fabs", x)
        near = code.binary("fmul", x, self._poly(form.tanh, code.binary("fmul", x, x)))
        grown = code.binary("fadd", self.exp(code.binary("fadd", size, size)), self._like(1.0, x))
        far = code.binary(
            "fsub", self._like(1.0, x), code.binary("fdiv", self._like(2.0, x), grown)
        )
        far = code.intrinsic("llvm.copysign", far, x)
        close = code.compare("fcmp olt", size, self._like(0.625, x))
        return code.select(close, near, far)

    def erf(self, x: Val) -> Val:
        """An odd polynomial up to 1; beyond, 1 - e^(-x^2) times a polynomial in (x - 2) / (x +
        2)."""
        form, code = _FORMATS[x.scalar], self.code
        size = code.intrinsic("llvm.fabs", x)
        near = code.binary("fmul", x, self._poly(form.erf, code.binary("fmul", x, x)))
        held = code.intrinsic("llvm.minnum", size, self._like(form.erf_one, x))
        two = self._like(2.0, x)
        t = code.binary("fdiv", code.binary("fsub", held, two), code.binary("fadd", held, two))
        decay = self.exp(code.binary("fmul", held, code.assign(f"fneg {held}", x.scalar, x.lanes)))
        far = code.binary(
            "fsub", self._like(1.0, x), code.binary("fmul", self._poly(form.erfc, t), decay)
        )
        far = code.intrinsic("llvm.copysign", far, x)
        close = code.compare("fcmp olt", size, self._like(1.0, x))
        result = code.select(close, near, far)
        return code.select(code.compare("fcmp uno", x, x), x, result)


def truncate(code: Code, x: Val) -> Val:
    """x without its fraction, -0 kept: through an integer where x has a fraction at all."""
    form = _FORMATS[x.scalar]
    size = code.intrinsic("llvm.fabs", x)
    small = code.compare("fcmp olt", size, number(2.0**form.mantissa, x.scalar, x.lanes))
    safe = code.select(small, x, number(0.0, x.scalar, x.lanes))
    whole = code.convert("sitofp", code.convert("fptosi", safe, form.integer), x.scalar)
    return code.select(small, code.intrinsic("llvm.copysign", whole, x), x)


def _toward(code: Code, x: Val, side: str, step: float) -> Val:
    """The truncated x, moved one step where that lies on the wrong side of x."""
    whole = truncate(code, x)
    moved = code.binary("fadd", whole, number(step, x.scalar, x.lanes))
    wrong = code.compare(f"fcmp {side}", whole, x)
    return code.intrinsic("llvm.copysign", code.select(wrong, moved, whole), x)


BODIES: dict[str, Callable[[Code, Val], Val]] = {
    "exp": lambda code, x: Functions(code).exp(x),
    "exp2": lambda code, x: Functions(code).exp2(x),
    "log": lambda code, x: Functions(code).log(x),
    "log2": lambda code, x: Functions(code).log2(x),
    "tanh": lambda code, x: Functions(code).tanh(x),
    "erf": lambda code, x: Functions(code).erf(x),
    "trunc": truncate,
    "floor": lambda code, x: _toward(code, x, "ogt", -1.0),
    "ceil": lambda code, x: _toward(code, x, "olt", 1.0),
}
"""Each function as the writer of its body."""
