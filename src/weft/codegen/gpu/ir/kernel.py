"""Kernels of the dialect: control flow, and the union of all statements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from weft.codegen.gpu.ir.copies import Sm80Copy, Sm90Copy
from weft.codegen.gpu.ir.elements import (
    DrawBits,
    Epilogue,
    LoadElement,
    SharedStmt,
    StGlobalRow,
    StGlobalVec,
)
from weft.codegen.gpu.ir.frame import (
    Barriers,
    RegisterKind,
    SharedTile,
    Table,
    TensorMap,
    Workspace,
)
from weft.codegen.gpu.ir.matrix import AddRegisters, Sm80Matrix, Sm90Matrix
from weft.codegen.gpu.ir.partial_sums import PartStmt
from weft.codegen.gpu.ir.rows import RowStmt
from weft.codegen.gpu.ir.scalar import Like, Scalar, scalar
from weft.codegen.gpu.ir.synchronisation import (
    AwaitPrevious,
    ChainStmt,
    ClusterStmt,
    NamedBarrier,
    SyncThreads,
    SyncWarp,
)
from weft.codegen.gpu.ir.values import ValueStmt
from weft.foundation.records import dataclass


@dataclass(frozen=True)
class Let:
    """A new integer variable. Nothing that is made of a `pinned` one is computed before it: what a
    loop makes of it stays in the loop, and takes no registers outside."""

    name: str
    value: Scalar
    pinned: bool = False


@dataclass(frozen=True)
class Set:
    """A new value for a variable."""

    name: str
    value: Scalar


@dataclass(frozen=True)
class TakeSet:
    """From here on the block works on a set of buffers, by its number, the same in all threads."""

    number: Scalar


@dataclass(frozen=True)
class Registers:
    """A register array, of undefined content unless it starts as zeros."""

    name: str
    kind: RegisterKind
    count: int
    zero: bool = False


@dataclass(frozen=True)
class For:
    """`for var in range(start, stop, step)`; the compiler may interleave `times` turns."""

    var: str
    start: Like
    stop: Like
    step: Like
    body: tuple[Stmt, ...]
    times: int = 1

    def __post_init__(self) -> None:
        for name in ("start", "stop", "step"):
            object.__setattr__(self, name, scalar(getattr(self, name)))


@dataclass(frozen=True)
class If:
    """The threads for which `cond` holds do `then`, the others `otherwise`."""

    cond: Scalar
    then: tuple[Stmt, ...]
    otherwise: tuple[Stmt, ...] = ()


@dataclass(frozen=True)
class Role:
    """What the warps `first .. first + count - 1` do."""

    name: str
    first: int
    count: int
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class Roles:
    """Warps part ways, for good. The cases cover all warps."""

    cases: tuple[Role, ...]


Sm80Stmt: TypeAlias = Sm80Copy | Sm80Matrix
Sm90Stmt: TypeAlias = Sm90Copy | Sm90Matrix
Stmt: TypeAlias = (
    Let | Set | TakeSet | Registers | For | If | Roles
    | LoadElement | SharedStmt | DrawBits | Epilogue | StGlobalVec | StGlobalRow
    | ValueStmt | Sm80Stmt | Sm90Stmt | ClusterStmt | ChainStmt | NamedBarrier | SyncThreads
    | SyncWarp | AddRegisters | RowStmt | PartStmt
)  # fmt: skip


@dataclass(frozen=True)
class Kernel:
    """What one launch runs. Parameters are the tensor maps, then one pointer per buffer, then, in
    kernels that report violations, that of the error word, then that of the workspace, if any. A
    kernel of several sets of buffers has one parameter: a table with the pointers of all sets."""

    name: str
    grid: int
    threads: int
    buffers: tuple[str, ...]
    """Tensors, by the position of their pointer; of the first set where there are several."""
    maps: tuple[TensorMap, ...]
    tiles: tuple[SharedTile, ...]
    barriers: tuple[Barriers, ...]
    tables: tuple[Table, ...]
    body: tuple[Stmt, ...]
    reports: bool = False
    """Whether it can find a violation."""
    cluster: int = 1
    """Neighbouring blocks that run side by side."""
    resident: int = 1
    """Blocks at least that a unit has registers for at a time."""
    workspace: Workspace | None = None
    together: bool = False
    """Whether its blocks wait for one another, so that all must run at once."""
    sets: int = 1
    """Sets of buffers; each block takes one of them (`TakeSet`)."""

    @property
    def shared_bytes(self) -> int:
        ends = [tile.offset + tile.bytes for tile in self.tiles]
        ends += [array.offset + array.bytes for array in self.barriers]
        return max(ends, default=0)

    @property
    def waits(self) -> bool:
        """Whether it waits for the kernels before it, and may be launched while they end."""
        return any(isinstance(statement, AwaitPrevious) for statement in self.body)

    def tile(self, name: str) -> SharedTile:
        return next(tile for tile in self.tiles if tile.name == name)

    def map(self, name: str) -> TensorMap:
        return next(found for found in self.maps if found.name == name)


def walk(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """Every statement, those inside others included."""
    for statement in body:
        yield statement
        match statement:
            case For(body=inner):
                yield from walk(inner)
            case If(then=then, otherwise=otherwise):
                yield from walk(then)
                yield from walk(otherwise)
            case Roles(cases=cases):
                for case in cases:
                    yield from walk(case.body)
