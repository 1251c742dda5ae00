"""Element programs: what happens to one number between a load and a store.

    Program = [ElementOp(name, dtype, fn, args)]        in order, each name once

Semantics. `fn` is a function of elements (the names of `foundation.functions`), or `cast`,
`select`, `const`. Values of narrow float dtypes are held in f32 and rounded to their dtype by the
op that makes them; an `exact` op leaves the rounding to whoever stores its value, which is the same
number. Names are made here and not taken from the program: they become C identifiers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from weft.foundation.dtypes import BF16, F16, F32, F64, I1, SI32, SI64, UI32, DType
from weft.foundation.errors import InternalError, Unimplemented

Number: TypeAlias = bool | int | float | complex


@dataclass(frozen=True)
class ElementOp:
    """`name: dtype = fn(args)`."""

    name: str
    dtype: DType
    fn: str
    args: tuple[str, ...] = ()
    value: Number | None = None
    deferred_rounding: bool = False


HELD: Mapping[DType, str] = {
    F32: "float",
    BF16: "float",
    F16: "float",
    F64: "double",
    SI32: "int",
    UI32: "u32",
    SI64: "i64",
    I1: "bool",
}
"""The C type in which a value of each dtype is held."""

_UNARY: Mapping[str, str] = {
    "neg": "-{0}",
    "abs": "fabsf({0})",
    "exp": "expf({0})",
    "exp2": "exp2f({0})",
    "log": "logf({0})",
    "log2": "log2f({0})",
    "sqrt": "sqrtf({0})",
    "rsqrt": "rsqrtf({0})",
    "recip": "1.0f / {0}",
    "tanh": "tanhf({0})",
    "erf": "erff({0})",
    "relu": "max_nan({0}, 0.0f)",
    "gelu": "gelu({0})",
    "silu": "silu({0})",
    "floor": "floorf({0})",
    "ceil": "ceilf({0})",
    "trunc": "truncf({0})",
}
_BINARY: Mapping[str, str] = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "max": "max_nan({0}, {1})",
    "min": "min_nan({0}, {1})",
}
_COMPARE: Mapping[str, str] = {
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "eq": "{0} == {1}",
    "ge": "{0} >= {1}",
    "gt": "{0} > {1}",
    "ne": "{0} != {1}",
}
_INTEGER: Mapping[str, str] = {
    "neg": "({held})(0 - ({wraps}){0})",
    "add": "({held})(({wraps}){0} + ({wraps}){1})",
    "sub": "({held})(({wraps}){0} - ({wraps}){1})",
    "mul": "({held})(({wraps}){0} * ({wraps}){1})",
    "max": "({0} > {1} ? {0} : {1})",
    "min": "({0} < {1} ? {0} : {1})",
}
_BOOLEAN: Mapping[str, str] = {
    "not": "!{0}",
    "max": "{0} | {1}",
    "min": "{0} & {1}",
}


def statement(op: ElementOp, dtypes: Mapping[str, DType]) -> str:
    """The C statement of an op; `dtypes` are those of its arguments."""
    text = _expression(op, dtypes)
    if op.dtype in (BF16, F16) and _rounds(op, dtypes):
        text = f"round_{op.dtype.name}({text})"
    return f"{held(op.dtype)} {op.name} = {text};"


def held(dtype: DType) -> str:
    if dtype not in HELD:
        raise Unimplemented(dtype.name, "GPU kernels have no arithmetic in this dtype yet")
    return HELD[dtype]


def _rounds(op: ElementOp, dtypes: Mapping[str, DType]) -> bool:
    if op.deferred_rounding or op.fn == "const":
        return False
    if op.fn in ("select", "neg", "abs", "relu", "max", "min"):
        return False
    return not (op.fn == "cast" and dtypes[op.args[0]] is op.dtype)


def _expression(op: ElementOp, dtypes: Mapping[str, DType]) -> str:
    if op.fn == "const":
        return literal(op.value, op.dtype)
    if op.fn == "select":
        pred, x, y = op.args
        return f"{pred} ? {x} : {y}"
    source = dtypes[op.args[0]]
    if op.fn == "cast":
        return _cast(op.args[0], source, op.dtype)
    table = _table(op.fn, source)
    if op.fn not in table:
        raise Unimplemented(op.fn, f"GPU kernels have no {op.fn} of {source} yet")
    # Signed overflow wraps in PTIR and is undefined in C: integers are computed unsigned.
    wraps = "u64" if source.bits == 64 else "u32"
    return table[op.fn].format(*op.args, held=held(source), wraps=wraps)


def _table(fn: str, dtype: DType) -> Mapping[str, str]:
    if fn in _COMPARE:
        return _COMPARE
    if dtype in (F32, BF16, F16):
        return {**_UNARY, **_BINARY}
    if dtype is I1:
        return _BOOLEAN
    return _INTEGER if dtype.is_integer else {}


def _cast(name: str, source: DType, target: DType) -> str:
    """Casts between what GPU kernels compute in: narrow floats are widened already."""
    if target is I1:
        return f"{name} != 0"
    if source.is_float and target.is_integer:
        raise Unimplemented("cast", f"GPU kernels do not cast {source} to {target} yet")
    if source.is_integer and target.is_integer and source is not target:
        raise Unimplemented("cast", f"GPU kernels do not cast {source} to {target} yet")
    return f"({held(target)}){name}"


def literal(value: Number | None, dtype: DType) -> str:
    """A number as a C expression of the dtype's held type."""
    if value is None or isinstance(value, complex):
        raise InternalError(f"{value} is no literal of {dtype}")
    if dtype is I1:
        return "true" if value else "false"
    if not dtype.is_float:
        return f"({held(dtype)}){int(value)}"
    number = float(dtype.numpy.type(value))
    if math.isnan(number):
        return "__int_as_float(0x7fffffff)"
    if number in (float("inf"), float("-inf")):
        return f"__int_as_float({'0x7f800000' if number > 0 else '(int)0xff800000'})"
    suffix = "" if dtype is F64 else "f"
    return f"({number.hex()}{suffix})"
