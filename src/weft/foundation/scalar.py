"""The table of elementwise functions: one row for each, with everything that the rest of Weft knows
of it.

A function's code for CPUs is in `codegen.cpu.math`, its op with the derivative in `ptir.ops`; what
it means, where it is defined, what it costs, how it errs, how C spells it and where random tests
draw its operands is said here and read from here.

Meanings are of NumPy arrays: integer division truncates toward zero, maximum and minimum propagate
NaN. `foundation.functions` applies them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.foundation import complex_functions, integer_functions
from weft.foundation.dtypes import BOOL, COMPLEX, FLOATS, INTEGERS, NUMBERS, ORDERED, DType
from weft.foundation.special import erf

Array = NDArray[Any]
Meaning: TypeAlias = Callable[..., Any]
Range: TypeAlias = tuple[float, float]


class Fn(Enum):
    """Functions of elements. `FUNCTIONS` has what is known of each."""

    NEG = "neg"
    ABS = "abs"
    SQRT = "sqrt"
    RSQRT = "rsqrt"
    RECIP = "recip"
    EXP = "exp"
    EXP2 = "exp2"
    EXPM1 = "expm1"
    LOG = "log"
    LOG2 = "log2"
    LOG10 = "log10"
    LOG1P = "log1p"
    SIN = "sin"
    COS = "cos"
    TAN = "tan"
    ASIN = "asin"
    ACOS = "acos"
    ATAN = "atan"
    SINH = "sinh"
    COSH = "cosh"
    TANH = "tanh"
    ASINH = "asinh"
    ACOSH = "acosh"
    ATANH = "atanh"
    ERF = "erf"
    RELU = "relu"
    GELU = "gelu"
    SILU = "silu"
    FLOOR = "floor"
    CEIL = "ceil"
    TRUNC = "trunc"
    ROUND = "round"
    NOT = "not"
    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    MAX = "max"
    MIN = "min"
    POW = "pow"
    FMOD = "fmod"
    ATAN2 = "atan2"
    HYPOT = "hypot"
    LOGADDEXP = "logaddexp"
    COPYSIGN = "copysign"
    NEXTAFTER = "nextafter"
    AND = "and"
    OR = "or"
    XOR = "xor"
    SHIFT_LEFT = "shift_left"
    SHIFT_RIGHT = "shift_right"
    LT = "lt"
    LE = "le"
    EQ = "eq"
    GE = "ge"
    GT = "gt"
    NE = "ne"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Domain:
    """Where random tests use a function, and where its results then lie: for floats, and for both
    parts of complex values (where None, they do not)."""

    real: Range
    result: Range
    parts: Range | None = None
    parts_bound: float = 0.0


@dataclass(frozen=True)
class ScalarFunction:
    """What is known of a function."""

    meaning: Meaning
    arity: int
    dtypes: frozenset[DType] = FLOATS | COMPLEX
    operations: int = 1
    """About how many operations it takes, where an addition is one."""
    ulps: float = 4.0
    """How far a result in f32 or f64 may be off: 0 where nothing is rounded, 0.5 where IEEE 754
    wants it rounded correctly."""
    complex_ulps: float = 4.0
    c: str | None = None
    """Of floats in C: `{0}` and `{1}` are the operands, `{f}` the suffix of a function of f32. None
    where it is a function of C with the same name."""
    domain: Domain | None = None
    """None where a test that uses it chooses operands itself."""

    @property
    def of_c(self) -> bool:
        """Whether C has it under the same name."""
        return self.c is None


def _in_double(real: Meaning, on_complex: Meaning | None = None) -> Meaning:
    """`real` carried out in f64, or `on_complex` (default: `real`) in cf64.

    Rounded to a narrower dtype, the result is then the same on every machine but for rare ties.
    """

    def wide(*args: Array) -> Any:
        if args[0].dtype.kind == "c":
            return (on_complex or real)(*(a.astype(np.complex128, copy=False) for a in args))
        return real(*(a.astype(np.float64, copy=False) for a in args))

    return wide


def _sqrt(x: Array) -> Array:
    # A real square root is correctly rounded in any format: no detour is needed.
    return np.asarray(np.sqrt(x) if x.dtype.kind == "f" else _in_double(np.sqrt)(x))


def _gelu(x: Array) -> Array:
    half, root = x.dtype.type(0.5), x.dtype.type(math.sqrt(2.0))
    return np.asarray((x * half) * (erf(x / root) + 1))


def _power(base: Array, exponent: Array) -> Array:
    if base.dtype.kind in "iu":
        return integer_functions.integer_power(base, exponent)
    return np.asarray(_in_double(np.power)(base, exponent))


_SMALL: Final = (-0.5, 0.5)
QUADRANT: Final = (0.25, 4.0)
"""Complex operands far from zero and from the branch cuts on the other side."""


def _of(meaning: Meaning, *known: Any, **more: Any) -> ScalarFunction:
    """A function of one operand."""
    return ScalarFunction(meaning, 1, *known, **more)


def _of_two(meaning: Meaning, *known: Any, **more: Any) -> ScalarFunction:
    """A function of two operands of one dtype."""
    return ScalarFunction(meaning, 2, *known, **more)


def _test(meaning: Meaning, sign: str, dtypes: frozenset[DType] = ORDERED) -> ScalarFunction:
    """A comparison, whose result is a truth."""
    return ScalarFunction(meaning, 2, dtypes, ulps=0, c=f"{{0}} {sign} {{1}}")


FUNCTIONS: Final[Mapping[Fn, ScalarFunction]] = {
    Fn.NEG: _of(np.negative, NUMBERS, ulps=0, complex_ulps=0, c="-{0}"),
    Fn.ABS: _of(lambda x: np.abs(x).astype(x.dtype), NUMBERS, ulps=0, c="fabs{f}({0})"),
    Fn.SQRT: _of(
        _sqrt, operations=6, ulps=0.5, domain=Domain((0.0625, 64), (0.25, 8), QUADRANT, 4)
    ),
    Fn.RSQRT: _of(
        lambda x: np.reciprocal(np.sqrt(x)), operations=8, ulps=2, complex_ulps=8,
        c="rsqrt{f}({0})", domain=Domain((0.125, 64), (0.125, 3), QUADRANT, 4),
    ),
    Fn.RECIP: _of(
        np.reciprocal, operations=4, ulps=1, c="{one} / {0}",
        domain=Domain((0.25, 16), (0.0625, 4), QUADRANT, 4),
    ),
    Fn.EXP: _of(
        np.exp, operations=12, complex_ulps=8, domain=Domain((-4, 4), (0, 56), (-2, 2), 8)
    ),
    Fn.EXP2: _of(
        _in_double(np.exp2, complex_functions.exp2), operations=10,
        domain=Domain((-4, 4), (0.0625, 16), (-2, 2), 5),
    ),
    Fn.EXPM1: _of(
        _in_double(np.expm1, complex_functions.expm1), operations=24,
        domain=Domain((-4, 4), (-1, 56), _SMALL, 2),
    ),
    Fn.LOG: _of(
        np.log, operations=14, complex_ulps=8,
        domain=Domain((0.125, 64), (-2.5, 5), QUADRANT, 4),
    ),
    Fn.LOG2: _of(
        _in_double(np.log2), operations=14, domain=Domain((0.125, 64), (-3, 6), QUADRANT, 4)
    ),
    Fn.LOG10: _of(
        _in_double(np.log10), operations=30, domain=Domain((0.125, 64), (-1, 2), QUADRANT, 2)
    ),
    Fn.LOG1P: _of(
        _in_double(np.log1p, complex_functions.log1p), operations=30,
        domain=Domain((-0.5, 64), (-0.75, 5), _SMALL, 2),
    ),
    Fn.SIN: _of(
        _in_double(np.sin), operations=40, c="sine({0})",
        domain=Domain((-8, 8), (-1, 1), (-2, 2), 4),
    ),
    Fn.COS: _of(
        _in_double(np.cos), operations=40, c="cosine({0})",
        domain=Domain((-8, 8), (-1, 1), (-2, 2), 4),
    ),
    Fn.TAN: _of(
        _in_double(np.tan), operations=60, c="tangent({0})",
        domain=Domain((-1, 1), (-1.75, 1.75), _SMALL, 2),
    ),
    Fn.ASIN: _of(
        _in_double(np.arcsin), operations=40, domain=Domain((-0.75, 0.75), (-1, 1), _SMALL, 2)
    ),
    Fn.ACOS: _of(
        _in_double(np.arccos), operations=40, domain=Domain((-0.75, 0.75), (0.5, 2.5), _SMALL, 3)
    ),
    Fn.ATAN: _of(
        _in_double(np.arctan), operations=40, domain=Domain((-16, 16), (-1.75, 1.75), _SMALL, 2)
    ),
    Fn.SINH: _of(
        _in_double(np.sinh), operations=40, domain=Domain((-4, 4), (-28, 28), (-2, 2), 4)
    ),
    Fn.COSH: _of(_in_double(np.cosh), operations=30, domain=Domain((-4, 4), (1, 28), (-2, 2), 4)),
    Fn.TANH: _of(
        np.tanh, operations=20, complex_ulps=8, domain=Domain((-16, 16), (-1, 1), _SMALL, 2)
    ),
    Fn.ASINH: _of(
        _in_double(np.arcsinh), operations=60, domain=Domain((-16, 16), (-4, 4), _SMALL, 2)
    ),
    Fn.ACOSH: _of(
        _in_double(np.arccosh), operations=60, domain=Domain((1.5, 64), (0.75, 5), (1.5, 8), 4)
    ),
    Fn.ATANH: _of(
        _in_double(np.arctanh), operations=60, domain=Domain((-0.75, 0.75), (-1, 1), _SMALL, 2)
    ),
    Fn.ERF: _of(erf, FLOATS, operations=24, domain=Domain((-4, 4), (-1, 1))),
    Fn.RELU: _of(
        lambda x: np.where(x <= 0, x.dtype.type(0), x), INTEGERS | FLOATS, ulps=0,
        c="max_nan({0}, {zero})",
    ),
    Fn.GELU: _of(_gelu, FLOATS, operations=33, c="gelu({0})"),
    Fn.SILU: _of(lambda x: x / (1 + np.exp(-x)), FLOATS, operations=18, c="silu({0})"),
    Fn.FLOOR: _of(np.floor, FLOATS, operations=4, ulps=0),
    Fn.CEIL: _of(np.ceil, FLOATS, operations=4, ulps=0),
    Fn.TRUNC: _of(np.trunc, FLOATS, operations=3, ulps=0),
    Fn.ROUND: _of(np.rint, FLOATS, operations=4, ulps=0, c="rint{f}({0})"),
    Fn.NOT: _of(np.invert, INTEGERS | BOOL, ulps=0, c=""),
    Fn.ADD: _of_two(np.add, NUMBERS, ulps=0.5, complex_ulps=1, c="{0} + {1}"),
    Fn.SUB: _of_two(np.subtract, NUMBERS, ulps=0.5, complex_ulps=1, c="{0} - {1}"),
    Fn.MUL: _of_two(np.multiply, NUMBERS, ulps=0.5, c="{0} * {1}"),
    Fn.DIV: _of_two(integer_functions.divide, NUMBERS, operations=6, ulps=0.5, c="{0} / {1}"),
    Fn.MAX: _of_two(np.maximum, ORDERED, ulps=0, c="max_nan({0}, {1})"),
    Fn.MIN: _of_two(np.minimum, ORDERED, ulps=0, c="min_nan({0}, {1})"),
    Fn.POW: _of_two(_power, NUMBERS, operations=100),
    Fn.FMOD: _of_two(integer_functions.remainder, INTEGERS | FLOATS, operations=60, ulps=0),
    Fn.ATAN2: _of_two(_in_double(np.arctan2), FLOATS, operations=50),
    Fn.HYPOT: _of_two(_in_double(np.hypot), FLOATS, operations=12),
    Fn.LOGADDEXP: _of_two(
        _in_double(np.logaddexp), FLOATS, operations=60, c="log_add_exp({0}, {1})"
    ),
    Fn.COPYSIGN: _of_two(integer_functions.copysign, FLOATS, ulps=0),
    Fn.NEXTAFTER: _of_two(
        integer_functions.nextafter, FLOATS, operations=8, ulps=0,
        c="{from_bits}(next_bits({to_bits}({0}), {to_bits}({1}), {0}, {1}))",
    ),
    Fn.AND: _of_two(np.bitwise_and, INTEGERS | BOOL, ulps=0, c=""),
    Fn.OR: _of_two(np.bitwise_or, INTEGERS | BOOL, ulps=0, c=""),
    Fn.XOR: _of_two(np.bitwise_xor, INTEGERS | BOOL, ulps=0, c=""),
    Fn.SHIFT_LEFT: _of_two(integer_functions.shift_left, INTEGERS, ulps=0, c=""),
    Fn.SHIFT_RIGHT: _of_two(integer_functions.shift_right, INTEGERS, ulps=0, c=""),
    Fn.LT: _test(np.less, "<"),
    Fn.LE: _test(np.less_equal, "<="),
    Fn.EQ: _test(np.equal, "==", NUMBERS | BOOL),
    Fn.GE: _test(np.greater_equal, ">="),
    Fn.GT: _test(np.greater, ">"),
    Fn.NE: _test(np.not_equal, "!=", NUMBERS | BOOL),
}  # fmt: skip

COMPARISONS: Final = frozenset({Fn.LT, Fn.LE, Fn.EQ, Fn.GE, Fn.GT, Fn.NE})
UNARY: Final = frozenset(fn for fn, row in FUNCTIONS.items() if row.arity == 1)
BINARY: Final = frozenset(FUNCTIONS) - UNARY
