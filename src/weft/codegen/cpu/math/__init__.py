"""Elementary functions as LLVM code: no library is called, and every lane does the same.

Ranges are complete: infinities, NaN, zeros and subnormals come out as IEEE arithmetic wants them,
and angles of any size are reduced exactly. Errors stay within 2 ulp in f32 and 3 ulp in f64; the
tests measure them. The functions of `_NATIVE` have code for both formats; the others are computed
in f64 also for f32, with polynomials that are long enough for it, but for those of `_FUSED` where
the machine has fused multiply-adds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from weft.codegen.cpu.code import Code, Val
from weft.codegen.cpu.math import (
    error_function,
    exponential,
    fused_angles,
    fused_hyperbolic,
    inverse_trigonometric,
    logarithm,
    power,
    rounding,
    trigonometric,
)
from weft.codegen.cpu.math.exponential import LEAST as LEAST
from weft.codegen.cpu.math.exponential import LIFT as LIFT
from weft.codegen.cpu.math.writer import Writer
from weft.foundation.memo import memo

_NATIVE: Final[dict[str, Callable[..., Val]]] = {
    "exp": exponential.exp,
    "exp_lifted": exponential.exp_lifted,
    "exp_floored": exponential.exp_floored,
    "lowered": exponential.lowered,
    "exp2": exponential.exp2,
    "expm1": exponential.expm1,
    "tanh": exponential.tanh,
    "sinh": exponential.sinh,
    "cosh": exponential.cosh,
    "log": logarithm.log,
    "log2": logarithm.log2,
    "log10": logarithm.log10,
    "log1p": logarithm.log1p,
    "logaddexp": logarithm.logaddexp,
    "hypot": power.hypot,
    "erf": error_function.erf,
    "trunc": rounding.trunc,
    "floor": rounding.floor,
    "ceil": rounding.ceil,
    "round": rounding.round_to_even,
}
_WIDE: Final[dict[str, Callable[..., Val]]] = {
    "asinh": logarithm.asinh,
    "acosh": logarithm.acosh,
    "atanh": logarithm.atanh,
}
_WIDE_OR_SHORT: Final[dict[str, Callable[..., Val]]] = {
    "sin": trigonometric.sin,
    "cos": trigonometric.cos,
    "tan": trigonometric.tan,
    "asin": inverse_trigonometric.asin,
    "acos": inverse_trigonometric.acos,
    "atan": inverse_trigonometric.atan,
    "atan2": inverse_trigonometric.atan2,
    "fmod": power.fmod,
    "pow": power.power,
}
_FUSED: Final[dict[str, Callable[..., Val]]] = {
    "sin": fused_angles.sin,
    "cos": fused_angles.cos,
}
"""Functions, where there are fused multiply-adds."""
_FUSED_NARROW: Final[dict[str, Callable[..., Val]]] = {
    **_FUSED,
    "tan": fused_angles.tan,
    "asin": fused_angles.asin,
    "acos": fused_angles.acos,
    "atan": fused_angles.atan,
    "atan2": fused_angles.atan2,
    "asinh": fused_hyperbolic.asinh,
    "acosh": fused_hyperbolic.acosh,
    "erf": error_function.fused_erf,
}
"""The same for floats."""
_ROUNDED: Final = {"trunc": "trunc", "floor": "floor", "ceil": "ceil", "round": "roundeven"}
"""What LLVM calls the functions that machines with fused multiply-adds have an instruction for."""
_OF_AVX512: Final[dict[str, Callable[..., Val]]] = {
    "exp_lifted": exponential.exp_lifted_by_scaling,
    "exp_floored": exponential.exp_floored_by_scaling,
}
"""The same results by instructions that AVX-512 has."""
NARROWED: Final = {
    **dict.fromkeys(("exp_nonpositive", "exp_lifted", "exp_floored"), "exp"),
    "share": "div",
}
"""Functions that are others of Tiny where operands are known to be of one kind."""
FUNCTIONS: Final = frozenset({*_NATIVE, *_WIDE, *_WIDE_OR_SHORT})
"""The functions of floats that are written here, by their names in Tiny."""


def apply(code: Code, fn: str, *args: Val, fills: bool = False, fused: bool = False) -> Val:
    """A call of a function on floats or doubles: `fills` where they fill registers of AVX-512,
    `fused` where the machine has fused multiply-adds."""
    narrow = args[0].scalar == "float"
    if fused and fn in (_FUSED_NARROW if narrow else _FUSED):
        return code.function(f"fused_{fn}", _fused_body(fn), *args)
    if fused and fn in _ROUNDED:
        return code.intrinsic(f"llvm.{_ROUNDED[fn]}", *args)
    if fills and fn in _OF_AVX512:
        return code.function(f"{fn}_wide", _wide_body(fn), *args)
    if fn in _NATIVE or not narrow:
        return code.function(fn, _function_body(fn), *args)
    wide = [code.convert("fpext", x, "double") for x in args]
    result = code.function(f"short_{fn}", _function_body(fn, short=True), *wide)
    return code.convert("fptrunc", result, "float")


# What writes a function is one object, by which its text is found again.
@memo(1 << 7)
def _function_body(fn: str, *, short: bool = False) -> Callable[..., Val]:
    if fn in _WIDE_OR_SHORT:
        return lambda code, *args: _WIDE_OR_SHORT[fn](Writer(code), *args, short=short)
    return lambda code, *args: (_NATIVE.get(fn) or _WIDE[fn])(Writer(code), *args)


@memo(1 << 4)
def _fused_body(fn: str) -> Callable[..., Val]:
    return lambda code, *args: _FUSED_NARROW[fn](Writer(code), *args)


@memo(1 << 3)
def _wide_body(fn: str) -> Callable[..., Val]:
    return lambda code, *args: _OF_AVX512[fn](Writer(code), *args)
