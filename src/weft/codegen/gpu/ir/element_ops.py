"""Element programs: the scalar ops of an epilogue or prologue, between a load and a store.

    Program = [ElementOp(name, dtype, fn, args)]        in order, each name once

Semantics. `fn` is a function of elements (the names of `foundation.functions`), or `cast`,
`select`, `const`, `share`: x / (1 + p), where p is not negative. Values of narrow float dtypes are
held in f32 and rounded to their dtype by the op that makes them; an op with `deferred_rounding`
leaves the rounding to whoever stores its value, which is the same number. A `loose` op may be wrong
in digits that no result of its kernel shows. Of a `shared` quotient the divisor is that of many,
and what depends on it alone is made once. Integers wrap. Names are made here and not taken from
the program: they become C identifiers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from weft.codegen.gpu.ir.casts import cast
from weft.codegen.gpu.ir.formats import HELD, NARROW, NIBBLES, PAIRED, held, rounded
from weft.codegen.gpu.ir.functions import LOOSE, SHARED, table
from weft.foundation.dtypes import BF16, F64, I1, DType
from weft.foundation.errors import InternalError, Unimplemented
from weft.foundation.records import dataclass

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
    shared: bool = False


_EXACT: Final = frozenset({"const", "select", "max", "min"})
"""Functions whose result is a number of their arguments' dtype."""
_EXACT_OF_FLOATS: Final = frozenset({"neg", "abs", "relu", "copysign", "nextafter"})


def statement(op: ElementOp, dtypes: Mapping[str, DType]) -> str:
    """The C statement of an op; `dtypes` are those of its arguments."""
    text = _expression(op, dtypes)
    if _rounds(op, dtypes):
        text = rounded(text, op.dtype)
    return f"{held(op.dtype)} {op.name} = {text};"


def supports(fn: str, dtype: DType) -> bool:
    """Whether there is code for a function of values of a dtype."""
    return dtype in HELD and (fn in ("cast", "select", "const") or fn in table(fn, dtype))


def loose_functions(results: Iterable[DType]) -> frozenset[str]:
    """The functions of f32 that may be loose where a kernel has results of these dtypes."""
    dtypes = set(results)
    if not dtypes or not dtypes <= PAIRED:
        return frozenset()
    return frozenset(LOOSE) if dtypes == {BF16} else frozenset(LOOSE) - {"tanh"}


def arity(fn: str, dtype: DType) -> int:
    """How many arguments a function that there is code for takes."""
    if fn in ("const", "cast", "select"):
        return ("const", "cast", "", "select").index(fn)
    return 2 if "{1}" in table(fn, dtype)[fn] else 1


def _rounds(op: ElementOp, dtypes: Mapping[str, DType]) -> bool:
    if op.deferred_rounding or op.fn in _EXACT:
        return False
    if op.fn == "cast":
        return op.dtype in NARROW and dtypes[op.args[0]] is not op.dtype
    return op.dtype in NIBBLES or op.fn not in _EXACT_OF_FLOATS


def _expression(op: ElementOp, dtypes: Mapping[str, DType]) -> str:
    if op.fn == "const":
        return literal(op.value, op.dtype)
    if op.fn == "select":
        pred, x, y = op.args
        return f"{pred} ? {x} : {y}"
    source = dtypes[op.args[0]]
    if op.fn == "cast":
        return cast(op.args[0], source, op.dtype, held(op.dtype))
    spelled = LOOSE if op.loose and op.fn in LOOSE else table(op.fn, source)
    if op.shared:
        spelled = SHARED
    if op.fn not in spelled:
        raise Unimplemented(op.fn, f"GPU kernels have no {op.fn} of {source}")
    return spelled[op.fn].format(*op.args, **_text_parts(source))


def _text_parts(dtype: DType) -> dict[str, str]:
    """What stands for the words of a function's text, for arguments of a dtype."""
    double = dtype is F64
    narrow = dtype in NARROW
    return {
        "f": "" if double else "f",
        "one": "1.0" if double else "1.0f",
        "zero": "0.0" if double else "0.0f",
        "held": held(dtype),
        "wraps": "u64" if dtype.bits == 64 else "u32",
        "to_bits": f"narrow_{dtype.name}" if narrow else "bits",
        "from_bits": f"widen_{dtype.name}" if narrow else f"Held<{held(dtype)}>::from",
    }


def literal(value: Number | None, dtype: DType) -> str:
    """A number as a C expression of the dtype's held type."""
    if value is None or isinstance(value, complex):
        raise InternalError(f"{value} is not a literal of {dtype}")
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
