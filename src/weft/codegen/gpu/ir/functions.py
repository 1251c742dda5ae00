"""Elementwise functions as C expressions, by the type of their operands.

`{0}` and `{1}` are the arguments, `{f}` the suffix of a function of C in f32, `{held}` the type a
value is held in, `{wraps}` the unsigned type that integers are computed in: signed overflow wraps
in PTIR and is undefined in C. Functions of C are within 4 ulp (of f32: acosh; the others within 3);
those of angles within 2, the tangent within 4 (`prelude.angles`). None is an approximate one, but
for those of `LOOSE`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from weft.foundation import scalar
from weft.foundation.dtypes import BF16, I1, DType
from weft.foundation.scalar import FUNCTIONS

COMPARISONS: Final[Mapping[str, str]] = {str(fn): str(FUNCTIONS[fn].c) for fn in scalar.COMPARISONS}
OF_C: Final = {str(fn): row.arity for fn, row in FUNCTIONS.items() if row.of_c}
"""Functions that C has under the same name, and how many arguments they take."""
_OPERANDS: Final = {1: "{0}", 2: "{0}, {1}"}
_FLOAT: Final[Mapping[str, str]] = {
    **{fn: f"{fn}{{f}}({_OPERANDS[arity]})" for fn, arity in OF_C.items()},
    **{str(fn): row.c for fn, row in FUNCTIONS.items() if row.c and fn not in scalar.COMPARISONS},
    "share": "{0} / ({one} + {1})",
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
    "relu": "greater_of({0}, ({held})0)",
    "add": "({held})(({wraps}){0} + ({wraps}){1})",
    "sub": "({held})(({wraps}){0} - ({wraps}){1})",
    "mul": "({held})(({wraps}){0} * ({wraps}){1})",
    "div": "divide({0}, {1})",
    "fmod": "modulo({0}, {1})",
    "pow": "power({0}, {1})",
    "max": "greater_of({0}, {1})",
    "min": "less_of({0}, {1})",
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
