"""Coalescing: the share of the fetched memory sectors that a block really uses.

Memory hands out sectors of 32 bytes. A block whose neighbouring threads read neighbours uses all of
each; one that picks single elements far apart moves up to 32 bytes for each that it uses.
`traffic` follows the addresses of a block of a kernel, all its threads at once: numbers of a
thread are computed, values are not. What is read where data says (a gather) is not counted, nor is
what the copy engine brings, which is whole rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from weft.codegen.gpu import ir
from weft.codegen.gpu.ir import values
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
    scalar,
)
from weft.foundation.dtypes import UI8, DType
from weft.foundation.records import dataclass

SECTOR: Final = 32
"""Bytes that memory hands out at a time."""
_TURNS: Final = 32
"""Turns of an innermost loop that are followed: those of single bytes fill a sector."""
_OUTER_TURNS: Final = 2
_ENOUGH: Final = 1 << 16
"""Elements after which a block has shown what it does."""

_Element = TypeVar("_Element", np.int64, np.bool_)
_Number: TypeAlias = int | NDArray[np.int64] | None
"""Of each thread, or of all alike; None where only data would tell."""
_ARRAYS: Final[Mapping[str, Any]] = {
    **FOLD,
    "min": np.minimum,
    "max": np.maximum,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "ge": np.greater_equal,
    "gt": np.greater,
}


@dataclass(frozen=True)
class Traffic:
    """Bytes that a block uses, each counted once, and those of the sectors that they lie in."""

    used: int = 0
    moved: int = 0

    @property
    def ratio(self) -> float:
        """Bytes moved for each that is used."""
        return self.moved / self.used if self.used else 1.0


@dataclass(frozen=True)
class _Access:
    """A statement's touch of memory: `count` elements from `offset` on, where the guard holds."""

    buffer: int
    dtype: DType
    offset: Scalar
    guard: Scalar
    count: int


_FOLLOWED: Final = (
    ir.Let,
    ir.Set,
    ir.For,
    ir.If,
    values.ReadParam,
    values.PlaceOf,
    values.Alike,
)
"""Statements that say what numbers are, or what runs."""


def traffic(kernel: ir.Kernel) -> Traffic:
    """What blocks inside the grid move, on average: two, as parts of it may do different things."""
    if kernel.grid == 0:
        return Traffic()
    numbers = sorted({kernel.grid // 3, 2 * kernel.grid // 3})
    telling: dict[int, list[ir.Stmt | _Access]] = {}
    found = [_Block(kernel, number, telling).traffic() for number in numbers]
    used, moved = (sum(getattr(one, name) for one in found) for name in ("used", "moved"))
    return Traffic(used // len(found), moved // len(found))


class _Block:
    """The threads of one block, and the elements that they have touched."""

    def __init__(
        self, kernel: ir.Kernel, number: int, telling: dict[int, list[ir.Stmt | _Access]]
    ) -> None:
        self.kernel, self.number = kernel, number
        self.known = telling
        """What is followed of a body of the kernel, by the body's identity."""
        self.thread = np.arange(kernel.threads, dtype=np.int64)
        self.names: dict[str, _Number] = {}
        self.touched: dict[tuple[int, int], list[NDArray[np.int64]]] = {}
        """Elements, by their buffer and size."""
        self.count = 0

    def traffic(self) -> Traffic:
        """What the whole block moves."""
        self.follow(self.kernel.body, np.ones(self.kernel.threads, bool))
        used = moved = 0
        for (_, size), parts in self.touched.items():
            elements = np.sort(np.concatenate(parts))
            used += size * _count_distinct(elements)
            moved += SECTOR * _count_distinct(elements * size // SECTOR)
        return Traffic(used, moved)

    def follow(self, body: tuple[ir.Stmt, ...], active: NDArray[np.bool_]) -> None:
        if not active.any():
            return
        for statement in self.telling(body):
            if self.count >= _ENOUGH:
                return
            self.step(statement, active)

    def telling(self, body: tuple[ir.Stmt, ...]) -> list[ir.Stmt | _Access]:
        """The statements of a body that say where memory is touched, found once for all turns of a
        loop: most compute values."""
        if id(body) not in self.known:
            found = (
                s if isinstance(s, _FOLLOWED) else None if type(s) is values.Compute else _access(s)
                for s in body
            )
            self.known[id(body)] = [one for one in found if one is not None]
        return self.known[id(body)]

    def step(self, statement: ir.Stmt | _Access, active: NDArray[np.bool_]) -> None:
        match statement:
            case _Access():
                self.touch(statement, active)
            case ir.Let(name=name, value=value) | ir.Set(name=name, value=value):
                self.names[name] = self.value(value)
            case values.ReadParam(name=name, low=low):
                self.names[name] = low
            case values.PlaceOf(name=name):
                self.names[name] = None
            case values.Alike(names=names):
                self.names.update(dict.fromkeys(names))
            case ir.For():
                self.loop(statement, active)
            case ir.If(cond=cond, then=then, otherwise=otherwise):
                holds = self.truth(cond)
                self.follow(then, active & holds)
                self.follow(otherwise, active & ~holds)

    def loop(self, loop: ir.For, active: NDArray[np.bool_]) -> None:
        start, stop, step = (self.value(scalar(n)) for n in (loop.start, loop.stop, loop.step))
        if start is None or stop is None or step is None:
            self.names[loop.var] = None
            self.follow(loop.body, active)
            return
        nested = any(isinstance(inner, ir.For) for inner in ir.walk(loop.body))
        for turn in range(_OUTER_TURNS if nested else _TURNS):
            place = start + turn * step
            running = active & np.less(place, stop)
            if not running.any():
                return
            self.names[loop.var] = place
            self.follow(loop.body, running)

    def touch(self, access: _Access, active: NDArray[np.bool_]) -> None:
        offset = self.value(access.offset)
        if offset is None:
            return
        holds = self.value(access.guard)
        if isinstance(holds, np.ndarray):
            active = active & (holds != 0)
        elif holds == 0:
            return
        elements = self._each(np.asarray(offset, np.int64))[active]
        if access.count > 1:
            elements = (elements[:, None] + np.arange(access.count)).ravel()
        self.count += elements.size
        key = access.buffer, access.dtype.storage_bytes
        self.touched.setdefault(key, []).append(elements)

    # -- numbers ---------------------------------------------------------------------------------

    def truth(self, condition: Scalar) -> NDArray[np.bool_]:
        """Which threads a condition holds for: all, where only data would tell."""
        found = self.value(condition)
        return self._each(np.asarray(True if found is None else np.asarray(found) != 0, np.bool_))

    def _each(self, found: NDArray[_Element]) -> NDArray[_Element]:
        """An element for every thread."""
        shape = self.thread.shape
        return found if found.shape == shape else np.broadcast_to(found, shape)

    def value(self, expression: Scalar) -> _Number:
        if isinstance(expression, Op):
            left, right = self.value(expression.lhs), self.value(expression.rhs)
            if left is None or right is None:
                return None
            if isinstance(left, int) and isinstance(right, int):
                return FOLD[expression.fn](left, right)
            made: _Number = _ARRAYS[expression.fn](left, right)
            return made
        if isinstance(expression, Lit):
            return expression.value
        if isinstance(expression, Name):
            return self.names.get(expression.name)
        match expression:
            case Special(which=Which.THREAD):
                return self.thread
            case Special(which=Which.LANE):
                return self.thread % 32
            case Special(which=Which.WARP):
                return self.thread // 32
            case Special():
                return self.number
            case Wide(value=inner):
                return self.value(inner)
            case TableAt(table=table, index=index):
                return self.entry(table, self.value(index))
        return None

    def entry(self, table: str, index: _Number) -> _Number:
        held = next(found.values for found in self.kernel.tables if found.name == table)
        if index is None:
            return None
        found: NDArray[np.int64] = np.asarray(held, np.int64)[index]
        return found


def _count_distinct(ordered: NDArray[np.int64]) -> int:
    """How many numbers there are of some in order."""
    return int(np.count_nonzero(np.diff(ordered))) + bool(ordered.size)


def _access(statement: ir.Stmt) -> _Access | None:
    match statement:
        case ir.LoadElement() | values.StoreElement() | values.CombineElement():
            count, guard = 1, statement.guard
        case values.LoadVector(names=names, guard=guard):
            count = len(names)
        case values.LoadAcross(names=names, count=several):
            count, guard = len(names), several > 0
        case values.StoreVector(sources=sources, guard=guard):
            count = len(sources)
        case ir.CpAsync(buffer=buffer, offset=offset, guard=guard, bytes=size):
            return _Access(buffer, UI8, offset, guard, size)
        case _:
            return None
    return _Access(statement.buffer, statement.dtype, statement.offset, guard, count)
