"""Functions of elements as C expressions, by the kind of number they are of.

`{0}` and `{1}` are the arguments, `{f}` the suffix of a function of C in f32, `{held}` the type a
value is held in, `{wraps}` the unsigned type that integers are computed in: signed overflow wraps
in PTIR and is undefined in C. Functions of C are within 4 ulp (of f32: acosh; the others within 3);
those of angles within 2, the tangent within 4 (`prelude.angles`). None is an approximate one, but
for those of `LOOSE`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from weft.foundation.dtypes import BF16, I1, DType

COMPARISONS: Final[Mapping[str, str]] = {
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "eq": "{0} == {1}",
    "ge": "{0} >= {1}",
    "gt": "{0} > {1}",
    "ne": "{0} != {1}",
}
OF_C: Final = {
    **dict.fromkeys(("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt"), 1),
    **dict.fromkeys(("asin", "acos", "atan"), 1),
    **dict.fromkeys(("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"), 1),
    **dict.fromkeys(("erf", "floor", "ceil", "trunc"), 1),
    **dict.fromkeys(("pow", "fmod", "atan2", "hypot", "copysign"), 2),
}
"""Functions that C has under the same name, and how many arguments they take."""
_FLOAT: Final[Mapping[str, str]] = {
    **{fn: f"{fn}{{f}}({{0}})" for fn, count in OF_C.items() if count == 1},
    **{fn: f"{fn}{{f}}({{0}}, {{1}})" for fn, count in OF_C.items() if count == 2},
    "sin": "sine({0})",
    "cos": "cosine({0})",
    "tan": "tangent({0})",
    "neg": "-{0}",
    "abs": "fabs{f}({0})",
    "round": "rint{f}({0})",
    "rsqrt": "rsqrt{f}({0})",
    "recip": "{one} / {0}",
    "relu": "max_nan({0}, {zero})",
    "gelu": "gelu({0})",
    "silu": "silu({0})",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "share": "{0} / ({one} + {1})",
    "max": "max_nan({0}, {1})",
    "min": "min_nan({0}, {1})",
    "logaddexp": "log_add_exp({0}, {1})",
    "nextafter": "{from_bits}(next_bits({to_bits}({0}), {to_bits}({1}), {0}, {1}))",
}
_BF16: Final[Mapping[str, str]] = {
    **_FLOAT,
    "sqrt": "bf16_root({0})",
    "recip": "bf16_quotient({one}, {0})",
    "div": "bf16_quotient({0}, {1})",
}
"""Those of bf16, which are rounded right once their results are."""
_INTEGER: Final[Mapping[str, str]] = {
    "neg": "({held})(0 - ({wraps}){0})",
    "abs": "({0} < 0 ? ({held})(0 - ({wraps}){0}) : {0})",
    "not": "({held})~{0}",
    "relu": "({0} > 0 ? {0} : ({held})0)",
    "add": "({held})(({wraps}){0} + ({wraps}){1})",
    "sub": "({held})(({wraps}){0} - ({wraps}){1})",
    "mul": "({held})(({wraps}){0} * ({wraps}){1})",
    "div": "divide({0}, {1})",
    "fmod": "modulo({0}, {1})",
    "pow": "power({0}, {1})",
    "max": "({0} > {1} ? {0} : {1})",
    "min": "({0} < {1} ? {0} : {1})",
    "and": "({held})({0} & {1})",
    "or": "({held})({0} | {1})",
    "xor": "({held})({0} ^ {1})",
    "shift_left": "shift_left({0}, {1})",
    "shift_right": "shift_right({0}, {1})",
}
_BOOLEAN: Final[Mapping[str, str]] = {
    "not": "!{0}",
    "max": "{0} || {1}",
    "min": "{0} && {1}",
    "or": "{0} || {1}",
    "and": "{0} && {1}",
    "xor": "{0} != {1}",
}
LOOSE: Final[Mapping[str, str]] = {
    "exp": "loose_exp({0})",
    "exp2": "loose_exp2({0})",
    "rsqrt": "loose_rsqrt({0})",
    "div": "loose_quotient({0}, {1})",
    "share": "loose_share({0}, {1})",
    "tanh": "loose_tanh({0})",
    "gelu": "loose_gelu({0})",
}
"""Functions of f32 with fewer right digits: 20 bits and more, of gelu 15, of tanh 11."""

SHARED: Final[Mapping[str, str]] = {"div": "shared_quotient({0}, {1})"}
"""Functions of f32 of which many have the same second argument."""


def table(fn: str, dtype: DType) -> Mapping[str, str]:
    """The functions of values of a dtype, or, for a comparison, the comparisons."""
    if fn in COMPARISONS:
        return COMPARISONS
    if dtype.is_float:
        return _BF16 if dtype is BF16 else _FLOAT
    if dtype is I1:
        return _BOOLEAN
    return _INTEGER if dtype.is_integer else {}
