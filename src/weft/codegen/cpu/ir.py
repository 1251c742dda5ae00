"""The CPU dialect: a kernel as loops over statements, from which LLVM IR is written.

    Routine = name, buffers, scratch, pieces, body
    Stmt    = For(var, start, stop, step, kind, body) | Load | LoadRun | Prefetch | Let | Check
            | Words | Store | Sort | Fourier | Tiles | Turn
            | Init | Accumulate | Finish             reductions
            | Current | Assign | Merge               folds
    kind    = parallel | serial | unrolled | lanes

Semantics. Loop variables are integers; addresses, guards and points are expressions in them, as the
bounds of a serial loop may be. The iterations of the `parallel` loops are the kernel's pieces: they
may run on any thread in any order.
An `unrolled` loop has constant bounds and is written out; a `lanes` loop has one iteration per
vector lane, and its body runs for all lanes at once. A name is defined once per iteration of the
loops around it; it is seen below, in inner loops and in later unrolled and lanes loops over the
same variables.

`Init` makes an accumulator with one instance for each combination of its `loops`. `Accumulate`
updates the instance of the iteration it stands in; a loop that is not around it counts as iteration
0. `Finish` combines the instances over those loops that are not around it, in order, as a fixed
tree. A fold keeps several accumulators at once: `Current` reads the instance of this iteration,
`Assign` replaces it, and `Merge` combines the instances of all of them pairwise by a body of its
own, in the same fixed order. `Load` touches memory only where its guards hold, and gives `fill`
elsewhere; params of its address that `places` lists are values, kept inside their sizes. `Check`
reports an element that breaks its rule in the error word, and goes on with one that does not.
`Store.point` says where the kernel's own axes stand at the moment of the store: it is what the
domain proof reads. Loads of a stage's local have a `point` too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from weft.foundation.dtypes import DType
from weft.foundation.index_expr import Expr, Guard, Index, axes_of, bounds
from weft.region.ir import Place

Scalar: TypeAlias = bool | int | float | complex


class LoopKind(Enum):
    """How the iterations of a loop are carried out."""

    PARALLEL = "parallel"
    SERIAL = "serial"
    UNROLLED = "unrolled"
    LANES = "lanes"


@dataclass(frozen=True)
class For:
    """`for var in range(start, stop, step)`, and never beyond `end`."""

    var: str
    start: Expr
    stop: Expr
    step: int
    kind: LoopKind
    body: tuple[Stmt, ...]
    end: int | None = None

    def span(self, around: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
        """The first and the last value that the variable may have, over the ranges of those around;
        the last is below the first where there is none."""
        first, stop = bounds(self.start, around)[0], bounds(self.stop, around)[1]
        return first, (stop if self.end is None else min(stop, self.end)) - 1

    @property
    def has_one_turn(self) -> bool:
        """Whether it is known to be carried out just once, so that it can be written as its
        body."""
        if not (self.start.is_constant and self.stop.is_constant):
            return False
        start, last = self.span({})
        return start <= last < start + self.step

    @property
    def moves(self) -> bool:
        """Whether what is read or written depends on the variable by itself."""
        return any(
            self.var in axes_of(stmt.address)
            for stmt, _ in walk(self.body)
            if isinstance(stmt, Load | Store)
        )

    @property
    def adds_up(self) -> bool:
        """Whether something is added up in it: there alone it pays that LLVM looks for better
        addresses, which takes longer than all else where elements are only moved."""
        return any(isinstance(stmt, Accumulate | Tiles) for stmt, _ in walk(self.body))


@dataclass(frozen=True)
class Load:
    """`name = buffer[address]`, or `fill` where a guard fails."""

    name: str
    buffer: int
    address: Expr
    guards: tuple[Guard, ...] = ()
    fill: Scalar | None = None
    places: tuple[Place, ...] = ()
    point: Index = ()
    """Of a stage's local: the point of its axes that is read."""


@dataclass(frozen=True)
class LoadRun:
    """`name` in iteration i of the unrolled loop over `var` = `buffer[address + i]`: neighbours,
    loaded together and used one by one; all of them are `fill` where a guard fails."""

    name: str
    var: str
    count: int
    buffer: int
    address: Expr
    guards: tuple[Guard, ...] = ()
    fill: Scalar | None = None


@dataclass(frozen=True)
class Prefetch:
    """A hint that `buffer[address]` will be read soon; it may lie beyond the buffer."""

    buffer: int
    address: Expr


@dataclass(frozen=True)
class Let:
    """`name = fn(args)` in `dtype`: a function of elements, `cast`, `select`, `const` or
    `index`."""

    name: str
    dtype: DType
    fn: str
    args: tuple[str, ...] = ()
    value: Scalar | None = None
    index: Expr | None = None


@dataclass(frozen=True)
class Check:
    """`name = x`, reported as check `number` of the routine at `element` where it breaks `rule`."""

    name: str
    x: str
    rule: str
    size: int
    number: int
    element: Expr


@dataclass(frozen=True)
class Words:
    """`name` = word `element` of the random stream of a state."""

    name: str
    seed: str
    offset: str
    element: Expr


@dataclass(frozen=True)
class Init:
    """A new accumulator, starting at the identity of `fn`, or at `start`."""

    acc: str
    dtype: DType
    fn: str
    loops: tuple[tuple[str, int, LoopKind], ...]
    """Variable, count and kind of the unrolled and lanes loops that give it instances."""
    start: Scalar | None = None


@dataclass(frozen=True)
class Accumulate:
    """`acc = fn(acc, value)`."""

    acc: str
    value: str


@dataclass(frozen=True)
class Finish:
    """`name` = the accumulators combined."""

    name: str
    accs: tuple[str, ...]


@dataclass(frozen=True)
class Current:
    """`name` = what the accumulator holds here."""

    name: str
    acc: str


@dataclass(frozen=True)
class Assign:
    """The accumulator holds `value` from now on."""

    acc: str
    value: str


@dataclass(frozen=True)
class Merge:
    """All instances of a fold's carries combined.

    `parts` are the sets of accumulators, one accumulator per carry in each; `combine` is computed
    with the carries of two sides as `carry.a` and `carry.b`, and gives their union as `merged`.
    """

    names: tuple[str, ...]
    """What the merged carries are called below, in order."""
    carries: tuple[str, ...]
    parts: tuple[tuple[str, ...], ...]
    combine: tuple[Let, ...]
    merged: tuple[str, ...]


@dataclass(frozen=True)
class Store:
    """`buffer[address] = value`, at `point` of the axes that the value lives over in the kernel;
    nothing where a guard fails."""

    buffer: int
    address: Expr
    value: str
    point: Index
    places: tuple[Place, ...] = ()
    guards: tuple[Guard, ...] = ()


@dataclass(frozen=True)
class Sort:
    """Row `row` of `out` = the positions of the first `count` of `length` elements of that row of
    `x`, in order. `work` has memory for each `piece`: positions, then keys, both twice."""

    x: int
    out: int
    work: int
    row: Expr
    piece: Expr
    length: int
    count: int
    descending: bool


@dataclass(frozen=True)
class Fourier:
    """Row `row` of `out` = the Fourier transform of that row of `x`, `length` pairs each, with the
    other sign where `inverse`, divided by the length where `divided`, in vectors of `lanes`; `work`
    has memory for a row, and `roots` the table of it."""

    x: int
    roots: int
    out: int
    work: int
    row: Expr
    length: int
    lanes: int
    inverse: bool
    divided: bool


@dataclass(frozen=True)
class Tiles:
    """`sums` = the products of `rows` rows of `a` with `columns` columns of `b`, `words` words of
    32 bits long, or these added to `sums`. `a` is rows one after the other; `b` is panels of 32
    columns, of each a row of words after the other; `sums` is rows. Numbers in `parts` are sums of
    so many: all first parts come first, then all second ones."""

    sums: int
    a: int
    b: int
    rows: int
    columns: int
    words: int
    adds: bool
    parts: int = 1


@dataclass(frozen=True)
class Turn:
    """`target[place ...]` = a panel for `Tiles`, `words` words long, of 32 rows in `source`."""

    target: int
    place: Expr
    source: int
    words: int


Stmt: TypeAlias = (
    For
    | Load
    | LoadRun
    | Prefetch
    | Let
    | Check
    | Words
    | Sort
    | Fourier
    | Tiles
    | Turn
    | Init
    | Accumulate
    | Finish
    | Current
    | Assign
    | Merge
    | Store
)


@dataclass(frozen=True)
class BufferArg:
    """A buffer the routine is handed, by position."""

    dtype: DType
    elements: int
    written: bool
    noalias: bool


@dataclass(frozen=True)
class ParamArg:
    """A run-time index: element `element` of an integer buffer, clamped into [low, high]."""

    name: str
    buffer: int
    element: int
    low: int
    high: int


@dataclass(frozen=True)
class Routine:
    """One kernel of machine code to be."""

    name: str
    buffers: tuple[BufferArg, ...]
    pieces: int
    body: tuple[Stmt, ...]
    params: tuple[ParamArg, ...] = ()
    scratch: tuple[tuple[DType, int], ...] = ()
    """Memory of the thread: dtype and elements. Its buffer numbers follow those of `buffers`."""
    checks: tuple[tuple[str, str], ...] = ()
    """The violations that its checks report, by number: code and reason."""

    def dtype_of(self, buffer: int) -> DType:
        """The dtype of a buffer or scratch."""
        if buffer < len(self.buffers):
            return self.buffers[buffer].dtype
        return self.scratch[buffer - len(self.buffers)][0]


def walk(
    body: tuple[Stmt, ...], around: tuple[For, ...] = ()
) -> Iterator[tuple[Stmt, tuple[For, ...]]]:
    """Every statement with the loops around it, outermost first."""
    for stmt in body:
        yield stmt, around
        if isinstance(stmt, For):
            yield from walk(stmt.body, (*around, stmt))
