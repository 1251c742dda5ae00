"""Elementwise ops in ONNX's operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from weft.foundation.dtypes import I1, SI32, DType
from weft.foundation.errors import Unimplemented
from weft.interop.onnx.writing.page import Edge, Page
from weft.ptir.op import Op
from weft.ptir.ops.elementwise import Cast, Compare
from weft.ptir.types import TensorType

Rule: TypeAlias = Callable[[Page, Any, list[Edge], TensorType], Edge]
NAMES: Final = {
    "abs": "Abs", "exp": "Exp", "log": "Log", "tanh": "Tanh", "erf": "Erf", "sqrt": "Sqrt",
    "reciprocal": "Reciprocal", "floor": "Floor", "ceil": "Ceil", "round": "Round", "sign": "Sign",
    "sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin", "acos": "Acos", "atan": "Atan",
    "sinh": "Sinh", "cosh": "Cosh", "asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh",
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow",
    "isnan": "IsNaN", "isinf": "IsInf", "stop_gradient": "Identity",
    "bitwise_and": "BitwiseAnd", "bitwise_or": "BitwiseOr", "bitwise_xor": "BitwiseXor",
    "bitwise_not": "BitwiseNot", "maximum": "Max", "minimum": "Min",
}  # fmt: skip
"""The operator for each op that has one of the same meaning."""
_LOGIC: Final = {
    "bitwise_and": "And", "bitwise_or": "Or", "bitwise_xor": "Xor", "bitwise_not": "Not",
    "maximum": "Or", "minimum": "And",
}  # fmt: skip
_COMPARED: Final = {
    "less": "Less", "less_equal": "LessOrEqual", "greater": "Greater",
    "greater_equal": "GreaterOrEqual", "equal": "Equal",
}  # fmt: skip


def _write_by_name(page: Page, op: Op, x: list[Edge], out: TensorType) -> Edge:
    x = page.unrepeated(x, out.shape) if len(x) > 1 else x
    if x[0].dtype is I1 and op.mnemonic in _LOGIC:
        return page.op(_LOGIC[op.mnemonic], *x, like=out)
    if op.mnemonic == "stop_gradient":
        return page.op("Identity", *x, like=out)
    if op.mnemonic in ("floor", "ceil", "round") and out.dtype.is_integer:
        return x[0]
    return page.op(NAMES[op.mnemonic], *x, like=out)


def _neg(page: Page, op: Op, x: list[Edge], out: TensorType) -> Edge:
    if out.dtype.is_float or out.dtype.is_signed:
        return page.op("Neg", *x, like=out)
    return page.op("Sub", page.full(0, out.dtype), x[0], like=out)


def _rsqrt(page: Page, op: Op, x: list[Edge], out: TensorType) -> Edge:
    return page.op("Reciprocal", page.op("Sqrt", x[0], like=out), like=out)


def _compare(page: Page, op: Compare, x: list[Edge], out: TensorType) -> Edge:
    name = str(op.op)
    same = name in ("equal", "not_equal")
    x = page.unrepeated(x, out.shape)
    given = [page.cast(each, SI32) if each.dtype is I1 and not same else each for each in x]
    if name == "not_equal":
        return page.op("Not", page.op("Equal", *given, like=out), like=out)
    return page.op(_COMPARED[name], *given, like=out)


def _select(page: Page, op: Op, x: list[Edge], out: TensorType) -> Edge:
    pred, a, b = page.unrepeated(x, out.shape)
    return page.where(pred, a, b, out)


def _clamp(page: Page, op: Op, x: list[Edge], out: TensorType) -> Edge:
    return page.op("Min", page.op("Max", x[0], x[1], like=out), x[2], like=out)


def _isfinite(page: Page, op: Op, x: list[Edge], out: TensorType) -> Edge:
    never = [page.op(name, x[0], like=out) for name in ("IsNaN", "IsInf")]
    return page.op("Not", page.op("Or", *never, like=out), like=out)


def _fmod(page: Page, op: Op, x: list[Edge], out: TensorType) -> Edge:
    return page.op("Mod", *x, like=out, fmod=1)


def _shift(page: Page, op: Op, x: list[Edge], out: TensorType) -> Edge:
    if out.dtype.is_signed:
        raise Unimplemented(op.mnemonic, "ONNX shifts unsigned integers only")
    return page.op("BitShift", *x, like=out, direction=op.mnemonic.removeprefix("shift_").upper())


# -- casts -----------------------------------------------------------------------------------------


def cast(page: Page, x: Edge, dtype: DType) -> Edge:
    """PTIR's cast: what does not fit is the nearest that does, and NaN is 0."""
    source, like = x.dtype, x.type.with_dtype(dtype)
    if not dtype.is_integer or source is I1:
        return page.cast(x, dtype)
    info = _dtype_range(dtype)
    if source.is_integer:
        return page.cast(_clamp_to_bounds(page, x, info), dtype)
    lowest, highest = float(info[0]), float(info[1] + 1)
    short = x
    least = page.full(lowest, short.dtype)
    inside = page.op("And", *_range_tests(page, short, least, highest), like=like.with_dtype(I1))
    zero = page.full(0, short.dtype)
    small = page.cast(page.where(inside, short, zero, short.type), dtype)
    above = page.op("GreaterOrEqual", short, page.full(highest, short.dtype), like=inside.type)
    below = page.op("Less", short, least, like=inside.type)
    high = page.where(above, page.full(info[1], dtype), small, like)
    return page.where(below, page.full(info[0], dtype), high, like)


def _dtype_range(dtype: DType) -> tuple[int, int]:
    return int(dtype.lowest), int(dtype.highest)


def _range_tests(page: Page, x: Edge, least: Edge, highest: float) -> list[Edge]:
    kind = x.type.with_dtype(I1)
    low = page.op("GreaterOrEqual", x, least, like=kind)
    return [low, page.op("Less", x, page.full(highest, x.dtype), like=kind)]


def _clamp_to_bounds(page: Page, x: Edge, bounds: tuple[int, int]) -> Edge:
    """Whole numbers, those beyond the bounds at them."""
    least, most = _dtype_range(x.dtype)
    found = x
    if bounds[0] > least:
        found = page.op("Max", found, page.full(bounds[0], x.dtype), like=x.type)
    if bounds[1] < most:
        found = page.op("Min", found, page.full(bounds[1], x.dtype), like=x.type)
    return found


def _cast(page: Page, op: Cast, x: list[Edge], out: TensorType) -> Edge:
    return cast(page, x[0], op.dtype)


# -- functions that ONNX has not -------------------------------------------------------------------


def _fill_like(page: Page, out: TensorType, value: float = 1.0) -> Edge:
    return page.full(value, out.dtype)


def _exp2(page: Page, op: Op, x: list[Edge], out: TensorType) -> Edge:
    return page.op("Pow", _fill_like(page, out, 2.0), x[0], like=out)


def _scaled_log(base: float) -> Rule:
    def rule(page: Page, op: Op, x: list[Edge], out: TensorType) -> Edge:
        found = page.op("Log", x[0], like=out)
        return page.op("Div", found, _fill_like(page, out, math.log(base)), like=out)

    return rule


def _log1p(page: Page, op: Op, x: list[Edge], out: TensorType) -> Edge:
    """`log(u) * x / (u - 1)` with `u = 1 + x`, which loses nothing near 0."""
    one, truth = _fill_like(page, out), out.with_dtype(I1)
    u = page.op("Add", x[0], one, like=out)
    less = page.op("Sub", u, one, like=out)
    flat = page.op(
        "Or",
        page.op("Equal", less, _fill_like(page, out, 0.0), like=truth),
        page.op("IsInf", u, like=truth),
        like=truth,
    )
    safe = page.where(flat, one, less, out)
    found = page.op(
        "Div", page.op("Mul", page.op("Log", u, like=out), x[0], like=out), safe, like=out
    )
    return page.where(flat, x[0], found, out)


def _expm1(page: Page, op: Op, x: list[Edge], out: TensorType) -> Edge:
    """Near 0 by `2t / (1 - t)` with `t = tanh(x / 2)`, elsewhere as it stands."""
    one = _fill_like(page, out)
    half = page.op("Mul", x[0], _fill_like(page, out, 0.5), like=out)
    t = page.op("Tanh", half, like=out)
    near = page.op(
        "Div", page.op("Add", t, t, like=out), page.op("Sub", one, t, like=out), like=out
    )
    far = page.op("Sub", page.op("Exp", x[0], like=out), one, like=out)
    small = page.op("Less", page.op("Abs", x[0], like=out), one, like=out.with_dtype(I1))
    return page.where(small, near, far, out)


def _logaddexp(page: Page, op: Op, x: list[Edge], out: TensorType) -> Edge:
    most, least = page.op("Max", *x, like=out), page.op("Min", *x, like=out)
    apart = page.op("Sub", least, most, like=out)
    same = page.op("Equal", least, most, like=out.with_dtype(I1))
    apart = page.where(same, _fill_like(page, out, 0.0), apart, out)
    more = _log1p(page, op, [page.op("Exp", apart, like=out)], out)
    return page.op("Add", most, more, like=out)


def _hypot(page: Page, op: Op, x: list[Edge], out: TensorType) -> Edge:
    """The larger times `sqrt(1 + ratio^2)`: nothing overflows before the result does."""
    sizes = [page.op("Abs", each, like=out) for each in x]
    most, least = page.op("Max", *sizes, like=out), page.op("Min", *sizes, like=out)
    one, truth = _fill_like(page, out), out.with_dtype(I1)
    odd = page.op(
        "Or",
        page.op("Equal", most, _fill_like(page, out, 0.0), like=truth),
        page.op("IsInf", most, like=truth),
        like=truth,
    )
    ratio = page.op("Div", least, page.where(odd, one, most, out), like=out)
    square = page.op("Mul", ratio, ratio, like=out)
    root = page.op("Sqrt", page.op("Add", square, one, like=out), like=out)
    return page.where(odd, most, page.op("Mul", most, root, like=out), out)


ELEMENTWISE: Final[dict[str, Rule]] = {
    **dict.fromkeys(NAMES, _write_by_name),
    "neg": _neg, "rsqrt": _rsqrt, "compare": _compare, "select": _select, "clamp": _clamp,
    "isfinite": _isfinite, "fmod": _fmod, "shift_left": _shift, "shift_right": _shift,
    "cast": _cast, "exp2": _exp2, "log2": _scaled_log(2.0), "log10": _scaled_log(10.0),
    "log1p": _log1p, "expm1": _expm1, "logaddexp": _logaddexp, "hypot": _hypot,
}  # fmt: skip
