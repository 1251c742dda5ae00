"""Element programs: what happens to one number between a load and a store.

    Program = [ElementOp(name, dtype, fn, args)]        in order, each name once

Semantics. `fn` is a function of elements (the names of `foundation.functions`), or `cast`,
`select`, `const`. Values of narrow float dtypes are held in f32 and rounded to their dtype by the
op that makes them; an op with `deferred_rounding` leaves the rounding to whoever stores its value,
which is the same number. A `loose` op may be wrong in digits that no result of its kernel shows.
Integers wrap. Names are made here and not taken from the program: they
become C identifiers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from weft.codegen.gpu.casts import cast
from weft.foundation.dtypes import (
    BF16,
    F16,
    F32,
    F64,
    I1,
    SI8,
    SI16,
    SI32,
    SI64,
    UI8,
    UI16,
    UI32,
    UI64,
    DType,
)
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
    loose: bool = False


HELD: Final[Mapping[DType, str]] = {
    F32: "float",
    BF16: "float",
    F16: "float",
    F64: "double",
    SI8: "i8",
    UI8: "u8",
    SI16: "i16",
    UI16: "u16",
    SI32: "int",
    UI32: "u32",
    SI64: "i64",
    UI64: "u64",
    I1: "bool",
}
"""The C type in which a value of each dtype is held."""

NARROW: Final = frozenset({BF16, F16})
"""Floats that are held in f32."""

_FLOAT: Final[Mapping[str, str]] = {
    "neg": "-{0}",
    "abs": "fabs{f}({0})",
    "exp": "exp{f}({0})",
    "exp2": "exp2{f}({0})",
    "log": "log{f}({0})",
    "log2": "log2{f}({0})",
    "sqrt": "sqrt{f}({0})",
    "rsqrt": "{one} / sqrt{f}({0})",
    "recip": "{one} / {0}",
    "sin": "sin{f}({0})",
    "cos": "cos{f}({0})",
    "tanh": "tanh{f}({0})",
    "erf": "erf{f}({0})",
    "relu": "max_nan({0}, {zero})",
    "gelu": "gelu({0})",
    "silu": "silu({0})",
    "floor": "floor{f}({0})",
    "ceil": "ceil{f}({0})",
    "trunc": "trunc{f}({0})",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "max": "max_nan({0}, {1})",
    "min": "min_nan({0}, {1})",
}
_COMPARE: Final[Mapping[str, str]] = {
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "eq": "{0} == {1}",
    "ge": "{0} >= {1}",
    "gt": "{0} > {1}",
    "ne": "{0} != {1}",
}
# Signed overflow wraps in PTIR and is undefined in C: integers are computed unsigned.
_INTEGER: Final[Mapping[str, str]] = {
    "neg": "({held})(0 - ({wraps}){0})",
    "abs": "({0} < 0 ? ({held})(0 - ({wraps}){0}) : {0})",
    "not": "({held})~{0}",
    "add": "({held})(({wraps}){0} + ({wraps}){1})",
    "sub": "({held})(({wraps}){0} - ({wraps}){1})",
    "mul": "({held})(({wraps}){0} * ({wraps}){1})",
    "div": "divide({0}, {1})",
    "max": "({0} > {1} ? {0} : {1})",
    "min": "({0} < {1} ? {0} : {1})",
}
_BOOLEAN: Final[Mapping[str, str]] = {
    "not": "!{0}",
    "max": "{0} || {1}",
    "min": "{0} && {1}",
}
_LOOSE: Final[Mapping[str, str]] = {
    "exp": "loose_exp({0})",
    "exp2": "loose_exp2({0})",
    "div": "loose_quotient({0}, {1})",
    "tanh": "loose_tanh({0})",
}
"""Functions of f32 with fewer right digits: 20 bits and more, of tanh 11."""
_UNROUNDED: Final = frozenset({"const", "select", "neg", "abs", "relu", "max", "min"})
"""Functions whose result has their argument's dtype exactly."""


def statement(op: ElementOp, dtypes: Mapping[str, DType]) -> str:
    """The C statement of an op; `dtypes` are those of its arguments."""
    text = _expression(op, dtypes)
    if op.dtype in NARROW and _rounds(op, dtypes):
        text = f"round_{op.dtype.name}({text})"
    return f"{held(op.dtype)} {op.name} = {text};"


def held(dtype: DType) -> str:
    if dtype not in HELD:
        raise Unimplemented(dtype.name, "GPU kernels have no arithmetic in this dtype yet")
    return HELD[dtype]


def held_bytes(dtype: DType) -> int:
    """Bytes of a value in the form it is held in shared memory: whole words."""
    return 8 if dtype.storage_bytes == 8 else 4


def supports(fn: str, dtype: DType) -> bool:
    """Whether there is code for a function of values of a dtype."""
    return dtype in HELD and (fn in ("cast", "select", "const") or fn in _table(fn, dtype))


def loose_functions(results: Iterable[DType]) -> frozenset[str]:
    """The functions of f32 that may be loose where a kernel has results of these dtypes."""
    dtypes = set(results)
    if not dtypes or not dtypes <= NARROW:
        return frozenset()
    return frozenset(_LOOSE) if dtypes == {BF16} else frozenset(_LOOSE) - {"tanh"}


def arity(fn: str, dtype: DType) -> int:
    """How many arguments a function that there is code for takes."""
    if fn in ("const", "cast", "select"):
        return ("const", "cast", "", "select").index(fn)
    return 2 if "{1}" in _table(fn, dtype)[fn] else 1


def _rounds(op: ElementOp, dtypes: Mapping[str, DType]) -> bool:
    if op.deferred_rounding or op.fn in _UNROUNDED:
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
        return cast(op.args[0], source, op.dtype, held(op.dtype))
    table = _LOOSE if op.loose and op.fn in _LOOSE else _table(op.fn, source)
    if op.fn not in table:
        raise Unimplemented(op.fn, f"GPU kernels have no {op.fn} of {source} yet")
    words = {"f": "", "one": "1.0", "zero": "0.0"}
    if source is not F64:
        words = {"f": "f", "one": "1.0f", "zero": "0.0f"}
    wraps = "u64" if source.bits == 64 else "u32"
    return table[op.fn].format(*op.args, held=held(source), wraps=wraps, **words)


def _table(fn: str, dtype: DType) -> Mapping[str, str]:
    if fn in _COMPARE:
        return _COMPARE
    if dtype.is_float:
        return _FLOAT
    if dtype is I1:
        return _BOOLEAN
    return _INTEGER if dtype.is_integer else {}


def literal(value: Number | None, dtype: DType) -> str:
    """A number as a C expression of the dtype's held type."""
    if value is None or isinstance(value, complex):
        raise InternalError(f"{value} is no literal of {dtype}")
    if dtype is I1:
        return "true" if value else "false"
    if not dtype.is_float:
        bits = int(value) & ((1 << 64) - 1)
        return f"({held(dtype)}){bits:#x}ull"
    number = float(dtype.numpy.type(value))
    if dtype is F64:
        return _double(number)
    if math.isnan(number):
        return "__int_as_float(0x7fffffff)"
    if math.isinf(number):
        return f"__int_as_float({'0x7f800000' if number > 0 else '(int)0xff800000'})"
    return f"({number.hex()}f)"


def _double(number: float) -> str:
    if math.isnan(number):
        return "__longlong_as_double(0x7ff8000000000000ll)"
    if math.isinf(number):
        bits = "0x7ff0000000000000ll" if number > 0 else "(i64)0xfff0000000000000ull"
        return f"__longlong_as_double({bits})"
    return f"({number.hex()})"
