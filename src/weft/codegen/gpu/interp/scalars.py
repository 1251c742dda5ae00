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
_TRUTHS: Final = frozenset({"lt", "le", "eq", "ne", "ge", "gt"})
"""Functions whose results are 0 and 1."""


class Place(Protocol):
    """What an expression may ask about its block."""

    kernel: ir.Kernel
    number: int


def evaluate(expression: Scalar, names: Mapping[str, Value], warp: int, block: Place) -> Value:
    """The value of an expression for the lanes of a warp."""
    # Nearly all are of these three, and asking for a class is faster than matching.
    if isinstance(expression, Op):
        left = evaluate(expression.lhs, names, warp, block)
        right = evaluate(expression.rhs, names, warp, block)
        return _apply(expression, left, right)
    if isinstance(expression, Name):
        return names[expression.name]
    if isinstance(expression, Lit):
        return expression.value
    match expression:
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
        case _:
            raise InternalError(f"no meaning for {type(expression).__name__}")


def _lookup(kernel: ir.Kernel, table: str, index: Value) -> Value:
    values = next(found.values for found in kernel.tables if found.name == table)
    if isinstance(index, int):
        return values[index]
    return np.asarray(values, np.int64)[index]


def _apply(expression: Op, left: Value, right: Value) -> Value:
    fn = expression.fn
    if fn in ("div", "mod") and (_least(left) < 0 or _least(right) <= 0):
        raise Hazard(f"{fn} of {left} and {right}: C rounds negative numbers differently")
    if isinstance(left, int) and isinstance(right, int):
        number = FOLD[fn](left, right)
        if abs(number) < _LIMIT or is_wide(expression):
            return number
    else:
        result: NDArray[np.int64] = _VECTOR[fn](left, right)
        if fn in _TRUTHS or np.maximum.reduce(np.abs(result)) < _LIMIT or is_wide(expression):
            return result
    raise Hazard(f"{fn} of {left} and {right} does not fit 32 bits")


def _least(value: Value) -> int:
    return value if isinstance(value, int) else int(value.min())


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
    found: Lanes = np.asarray(value) != 0
    return found if found.shape == _LANE.shape else np.broadcast_to(found, _LANE.shape)


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
