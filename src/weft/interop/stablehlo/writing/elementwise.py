"""Elementwise ops in StableHLO's and CHLO's words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import numpy as np

from weft.foundation.dtypes import CF64, F32, F64, I1, DType
from weft.interop.stablehlo.reading.shapes import STOPS_GRADIENT
from weft.interop.stablehlo.writing.page import Page, Ssa
from weft.ptir.op import Op
from weft.ptir.ops.elementwise import Cast, Compare
from weft.ptir.types import TensorType

WriteOne: TypeAlias = Callable[[Page, Op, list[Ssa], TensorType], Ssa]

NAMES: Final[Mapping[str, str]] = {
    "neg": "negate",
    "exp": "exponential",
    "log": "log",
    "tanh": "tanh",
    "rsqrt": "rsqrt",
    "sqrt": "sqrt",
    "floor": "floor",
    "ceil": "ceil",
    "round": "round_nearest_even",
    "sin": "sine",
    "cos": "cosine",
    "tan": "tan",
    "expm1": "exponential_minus_one",
    "log1p": "log_plus_one",
    "atan2": "atan2",
    "pow": "power",
    "fmod": "remainder",
    "real": "real",
    "imag": "imag",
    "complex": "complex",
    "bitwise_and": "and",
    "bitwise_or": "or",
    "bitwise_xor": "xor",
    "bitwise_not": "not",
    "shift_left": "shift_left",
    "isfinite": "is_finite",
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "div": "divide",
    "maximum": "maximum",
    "minimum": "minimum",
    "select": "select",
    **{
        name: f"chlo.{name}"
        for name in (
            "erf", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "conj",
        )
    },
    "nextafter": "chlo.next_after",
    "bitcast": "bitcast_convert",
}  # fmt: skip
"""The operation for each op that has one of the same meaning."""
_DIRECTIONS: Final = {
    "less": "LT",
    "less_equal": "LE",
    "equal": "EQ",
    "greater_equal": "GE",
    "greater": "GT",
    "not_equal": "NE",
}


def plain(page: Page, op: Op, x: list[Ssa], kind: TensorType) -> Ssa:
    return page.op(NAMES[op.mnemonic], *x, like=kind)


def _abs(page: Page, op: Op, x: list[Ssa], kind: TensorType) -> Ssa:
    if not kind.dtype.is_complex:
        return page.op("abs", x[0]) if kind.dtype.is_signed or kind.dtype.is_float else x[0]
    part = F64 if kind.dtype is CF64 else F32
    size = page.op("abs", x[0], like=kind.with_dtype(part))
    return page.op("complex", size, page.full(0, size.type), like=kind)


def _reciprocal(page: Page, op: Op, x: list[Ssa], kind: TensorType) -> Ssa:
    return page.op("divide", page.full(1, kind), x[0])


def _sign(page: Page, op: Op, x: list[Ssa], kind: TensorType) -> Ssa:
    if kind.dtype.is_integer and not kind.dtype.is_signed:
        return page.op("minimum", x[0], page.full(1, kind))
    return page.op("sign", x[0])


def _compare(page: Page, op: Op, x: list[Ssa], kind: TensorType) -> Ssa:
    assert isinstance(op, Compare)
    return page.compare(x[0], x[1], _DIRECTIONS[str(op.op)])


def _clamp(page: Page, op: Op, x: list[Ssa], kind: TensorType) -> Ssa:
    value, low, high = x
    return page.op("minimum", page.op("maximum", value, low), high)


def _shift_right(page: Page, op: Op, x: list[Ssa], kind: TensorType) -> Ssa:
    name = "shift_right_arithmetic" if kind.dtype.is_signed else "shift_right_logical"
    return page.op(name, *x)


def _stop_gradient(page: Page, op: Op, x: list[Ssa], kind: TensorType) -> Ssa:
    """A barrier with a mark, so that the gradient still stops when it is read back."""
    attrs = {STOPS_GRADIENT: "true"}
    return page.ops("stablehlo.optimization_barrier", x, [kind], attrs)[0]


def _barrier(page: Page, op: Op, x: list[Ssa], kind: TensorType) -> Ssa:
    return page.ops("stablehlo.optimization_barrier", x, [value.type for value in x])[0]


def _cast(page: Page, op: Op, x: list[Ssa], kind: TensorType) -> Ssa:
    assert isinstance(op, Cast)
    return cast(page, x[0], op.dtype)


def cast(page: Page, x: Ssa, dtype: DType) -> Ssa:
    """PTIR's cast, which saturates where StableHLO's conversion leaves open what happens."""
    if x.dtype is dtype:
        return x
    if x.dtype.is_complex and not dtype.is_complex:
        part = F64 if x.dtype is CF64 else F32
        if dtype is I1:
            return page.compare(x, page.full(0, x.type), "NE")
        return cast(page, page.op("real", x, like=x.type.with_dtype(part)), dtype)
    if dtype is I1:
        return page.compare(x, page.full(0, x.type), "NE")
    if x.dtype.is_integer and dtype.is_integer:
        return page.convert(_saturate_to(page, x, dtype), dtype)
    if x.dtype.is_float and dtype.is_integer:
        return _float_to_integer(page, x, dtype)
    return page.convert(x, dtype)


def _saturate_to(page: Page, x: Ssa, dtype: DType) -> Ssa:
    low, high = max(x.dtype.lowest, dtype.lowest), min(x.dtype.highest, dtype.highest)
    if (low, high) == (x.dtype.lowest, x.dtype.highest):
        return x
    bounds = [page.scalar(int(bound), x.dtype) for bound in (low, high)]
    return page.op("clamp", bounds[0], x, bounds[1], like=x.type)


def _float_to_integer(page: Page, x: Ssa, dtype: DType) -> Ssa:
    """A float as an integer: what is too large or too small becomes the last or first one."""
    wide = page.convert(x, F64) if x.dtype is not F64 else x
    least, most = float(dtype.lowest), float(dtype.highest)
    over = page.compare(wide, page.full(most, wide.type), "GE")
    under = page.compare(wide, page.full(least, wide.type), "LE")
    absent = page.compare(wide, wide, "NE")
    inside = page.op("or", page.op("or", over, under), absent)
    zero = page.full(0.0, wide.type)
    safe = page.convert(page.op("select", inside, zero, wide, like=wide.type), dtype)
    kind = safe.type
    high = page.op("select", over, page.full(int(dtype.highest), kind), safe, like=kind)
    return page.op("select", under, page.full(int(dtype.lowest), kind), high, like=kind)


def identity_of(kind: str, dtype: DType) -> object:
    """What changes nothing in a reduction."""
    match kind:
        case "sum" | "any":
            return np.zeros((), dtype.numpy)[()]
        case "prod" | "all":
            return np.ones((), dtype.numpy)[()]
    return dtype.lowest if kind == "max" else dtype.highest


ELEMENTWISE: Final[Mapping[str, WriteOne]] = {
    **dict.fromkeys(NAMES, plain),
    "abs": _abs,
    "reciprocal": _reciprocal,
    "sign": _sign,
    "compare": _compare,
    "clamp": _clamp,
    "shift_right": _shift_right,
    "stop_gradient": _stop_gradient,
    "barrier": _barrier,
    "cast": _cast,
}
"""By mnemonic."""
