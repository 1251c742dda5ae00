"""Scalar expressions of a warp: integers, or vectors of one integer per lane."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.codegen.gpu import ir
from weft.codegen.gpu.interp.races import Hazard
from weft.codegen.gpu.ir.scalar import (
    FOLD,
    Lit,
    Name,
    Op,
    Scalar,
    Special,
    TableAt,
    Which,
    Wide,
)
from weft.foundation.errors import InternalError

Lanes: TypeAlias = NDArray[np.bool_]
Value: TypeAlias = int | NDArray[np.int64]

_LANE: Final = np.arange(32, dtype=np.int64)
_LIMIT: Final = 1 << 31
_VECTOR: Final[Mapping[str, Any]] = {
    **FOLD,
    "min": np.minimum,
    "max": np.maximum,
    "lt": lambda a, b: (a < b) + 0,
    "le": lambda a, b: (a <= b) + 0,
    "eq": lambda a, b: np.equal(a, b) + 0,
    "ne": lambda a, b: np.not_equal(a, b) + 0,
    "ge": lambda a, b: (a >= b) + 0,
    "gt": lambda a, b: (a > b) + 0,
}


class Place(Protocol):
    """What an expression may ask about its block."""

    kernel: ir.Kernel
    number: int


def evaluate(expression: Scalar, names: Mapping[str, Value], warp: int, block: Place) -> Value:
    """The value of an expression for the lanes of a warp."""
    match expression:
        case Lit(value=value):
            return value
        case Name(name=name):
            return names[name]
        case Special(which=Which.LANE):
            return _LANE
        case Special(which=Which.THREAD):
            return _LANE + 32 * warp
        case Special(which=Which.WARP):
            return warp
        case Special():
            return block.number
        case Wide(value=inner):
            return evaluate(inner, names, warp, block)
        case TableAt(table=table, index=index):
            return _lookup(block.kernel, table, evaluate(index, names, warp, block))
        case Op(fn=fn, lhs=lhs, rhs=rhs):
            left = evaluate(lhs, names, warp, block)
            right = evaluate(rhs, names, warp, block)
            return _apply(expression, fn, left, right)
        case _:
            raise InternalError(f"no meaning for {type(expression).__name__}")


def _lookup(kernel: ir.Kernel, table: str, index: Value) -> Value:
    values = next(found.values for found in kernel.tables if found.name == table)
    if isinstance(index, int):
        return values[index]
    return np.asarray(values, np.int64)[index]


def _apply(expression: Op, fn: str, left: Value, right: Value) -> Value:
    if fn in ("div", "mod") and (np.min(left) < 0 or np.min(right) <= 0):
        raise Hazard(f"{fn} of {left} and {right}: C rounds negative numbers differently")
    result = _compute(fn, left, right)
    largest = abs(result) if isinstance(result, int) else int(np.abs(result).max())
    if largest >= _LIMIT and not is_wide(expression):
        raise Hazard(f"{fn} of {left} and {right} does not fit 32 bits")
    return result


def _compute(fn: str, left: Value, right: Value) -> Value:
    if isinstance(left, int) and isinstance(right, int):
        return FOLD[fn](left, right)
    result: Value = _VECTOR[fn](left, right)
    return result


def is_wide(expression: Scalar) -> bool:
    """Whether an expression is computed in 64 bits."""
    match expression:
        case Wide():
            return True
        case Op(lhs=lhs, rhs=rhs):
            return is_wide(lhs) or is_wide(rhs)
        case _:
            return False


def truth(value: Value) -> Lanes:
    """A condition, for every lane."""
    found: Lanes = np.broadcast_to(np.asarray(value) != 0, (32,))
    return found


def each_lane(mask: Lanes) -> Iterator[Lanes]:
    """The active lanes, one at a time."""
    for lane in np.flatnonzero(mask):
        alone = np.zeros(mask.shape, bool)
        alone[lane] = True
        yield alone


def only(value: Value, mask: Lanes) -> int:
    """A number on which the active lanes agree."""
    if isinstance(value, int):
        return value
    active = value[mask]
    if not (active == active[0]).all():
        raise Hazard("the lanes of a warp disagree on a number they must share")
    return int(active[0])
