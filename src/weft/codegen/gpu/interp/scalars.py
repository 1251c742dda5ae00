"""Scalar expressions of a warp: integers, or vectors with one integer per lane.

Most are addresses in shared memory, which are the same in every turn of a loop and in every block:
`Memo` keeps values by what they depend on. So vectors of lanes are never changed in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
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

ALL_LANES: Final[Lanes] = np.ones(32, bool)
"""The mask of a whole warp: to ask whether a mask is this one is faster than to look into it."""
_NO_LANES: Final[Lanes] = np.zeros(32, bool)
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
_WARP: Final = "%warp"
"""Among the names that an expression depends on: the number of the warp."""
_MOST_KEPT: Final = 20_000
"""Values that are kept at a time, of some 500 bytes each."""


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


@dataclass
class _Known:
    """What an expression depends on, and its values so far."""

    expression: Scalar
    """Held, so that no other one gets its address."""
    names: tuple[str, ...] | None
    """None where it depends on the block as well: nothing is kept then."""
    values: dict[Any, tuple[Any, Value]] = field(default_factory=dict)
    """By the numbers and the addresses of the vectors that it depends on, which are held too."""


class Memo:
    """The values of a kernel's expressions for lanes, by what they depend on."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self.kept = 0

    def value(
        self, expression: Scalar, names: Mapping[str, Value], warp: int, block: Place
    ) -> Value:
        """The value of an expression, which must live as long as the kernel does."""
        if isinstance(expression, Name):
            return names[expression.name]
        if isinstance(expression, Lit):
            return expression.value
        known = self._known.get(id(expression))
        if known is None:
            known = self._known[id(expression)] = _Known(expression, _depends_on(expression))
        if known.names is None:
            return self._compute(expression, names, warp, block)
        given = [warp if name is _WARP else names[name] for name in known.names]
        # An address, turned into a negative number, is none that an index has.
        key = tuple([v if type(v) is int else ~id(v) for v in given])
        found = known.values.get(key)
        if found is None:
            if self.kept == _MOST_KEPT:
                self._forget()
            value = self._compute(expression, names, warp, block)
            known.values[key] = found = (given, value)
            self.kept += 1
        return found[1]

    def _compute(
        self, expression: Scalar, names: Mapping[str, Value], warp: int, block: Place
    ) -> Value:
        if isinstance(expression, Op):
            left = self.value(expression.lhs, names, warp, block)
            return _apply(expression, left, self.value(expression.rhs, names, warp, block))
        return evaluate(expression, names, warp, block)

    def _forget(self) -> None:
        for known in self._known.values():
            known.values.clear()
        self.kept = 0


def _depends_on(expression: Scalar) -> tuple[str, ...] | None:
    """The names in an expression, or None where it asks for the number of the block."""
    found: dict[str, None] = {}
    open_ends = [expression]
    while open_ends:
        match open_ends.pop():
            case Op(lhs=lhs, rhs=rhs):
                open_ends += (lhs, rhs)
            case Name(name=name):
                found[name] = None
            case Special(which=Which.THREAD | Which.WARP):
                found[_WARP] = None
            case Special(which=Which.BLOCK):
                return None
            case Wide(value=inner) | TableAt(index=inner):
                open_ends.append(inner)
    return tuple(found)


def _lookup(kernel: ir.Kernel, table: str, index: Value) -> Value:
    values = next(found.values for found in kernel.tables if found.name == table)
    if isinstance(index, int):
        return values[index]
    return np.asarray(values, np.int64)[index]


def _apply(expression: Op, left: Value, right: Value) -> Value:
    fn = expression.fn
    if fn in ("div", "mod") and (_smallest_value(left) < 0 or _smallest_value(right) <= 0):
        # Python rounds to minus infinity, C to zero: for what is not negative they agree.
        raise Hazard(f"{fn} of {left} and {right}: C rounds negative numbers differently")
    if isinstance(left, int) and isinstance(right, int):
        number = FOLD[fn](left, right)
        # C's `int` wraps silently here, or worse: an address that does so is found at once.
        if abs(number) < _LIMIT or is_wide(expression):
            return number
    else:
        result: NDArray[np.int64] = _VECTOR[fn](left, right)
        if fn in _TRUTHS or np.maximum.reduce(np.abs(result)) < _LIMIT or is_wide(expression):
            return result
    raise Hazard(f"{fn} of {left} and {right} does not fit 32 bits")


def _smallest_value(value: Value) -> int:
    return value if isinstance(value, int) else int(np.minimum.reduce(value))


def is_wide(expression: Scalar) -> bool:
    """Whether an expression is computed in 64 bits."""
    match expression:
        case Wide():
            return True
        case Op(lhs=lhs, rhs=rhs):
            return is_wide(lhs) or is_wide(rhs)
        case _:
            return False


def is_whole(mask: Lanes) -> bool:
    """Whether all lanes are active."""
    return mask is ALL_LANES or np.count_nonzero(mask) == mask.size


def among(mask: Lanes, value: Value) -> Lanes:
    """The active lanes for which a condition holds."""
    if isinstance(value, int):
        return mask if value else _NO_LANES
    found: Lanes = mask & (value != 0)
    return found


def truth(value: Value) -> Lanes:
    """A condition, for every lane."""
    if isinstance(value, int):
        return ALL_LANES if value else _NO_LANES
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
    active = value if mask is ALL_LANES else value[mask]
    if not (active == active[0]).all():
        raise Hazard("the lanes of a warp disagree on a number they must share")
    return int(active[0])
