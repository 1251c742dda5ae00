"""Block ranges of masked attention: a kernel that finds at run time which columns a tile of rows
may see.

    seen = a[row] == b[column]
        ->  low, high = least and greatest a of every tile of rows, b of every run of columns
            first, last, whole_from, whole_to = the runs that a tile may see, and sees whole
            seen = whole_from <= column < whole_to
                or (first <= column < last and a[row] == b[column])

An attention whose mask compares numbers of queries with numbers of keys, segments of packed
sequences or ends of what each query sees, and its gradients, then go through the columns between
`first` and `last` only, and compare nothing where all are seen. The numbers are in any order: a run
that holds none of those that a tile has is left out at both ends, and one in the middle is masked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Final

from weft.foundation.dtypes import I1, INDICES, SI32, SI64, DType
from weft.foundation.index_expr import Expr, Guard, axis, constant
from weft.foundation.records import dataclass, replace
from weft.region.fitting.cutting import needed, placed, renamed
from weft.region.fitting.joining import live
from weft.region.forms.attention import find_attention
from weft.region.forms.bands import HULL_ROWS, band_of, band_of_stream
from weft.region.forms.few_queries import is_of_few
from weft.region.forms.stream import find_stream
from weft.region.ir import (
    AxisIndex,
    Binary,
    Cast,
    Const,
    Kernel,
    KernelAxis,
    Let,
    Module,
    Output,
    Pattern,
    Read,
    Reduce,
    Select,
    Tensor,
    Unary,
    ValueExpr,
)
from weft.target.target import Kind, Target

_RUN: Final = 16
"""Columns of a run: blocks of columns are multiples of it."""
_FEWEST: Final = 128
"""Columns from which on there is something to leave out."""
_COMPARED: Final = ("eq", "le", "lt", "ge", "gt")
_OF_ELEMENTS: Final = (Read, Const, AxisIndex, Unary, Cast, Binary, Select)
_LIMITS: Final[Mapping[DType, int]] = {SI32: (1 << 31) - 1, SI64: (1 << 63) - 1}


def with_hulls(module: Module, target: Target) -> Module:
    """The module with hulls for the masks of its attentions and streams, where these compare
    numbers of rows with numbers of columns."""
    if target.kind is not Kind.GPU or not target.streams_attention:
        return module
    hulls = _Hulls(module)
    kernels: list[Kernel] = []
    for kernel in module.kernels:
        changed = hulls.with_hulls(kernel)
        kernels += [*hulls.taken(), changed]
    if not hulls.tensors:
        return module
    tensors = {**module.tensors, **hulls.tensors}
    origin = {**module.origin, **hulls.origin}
    return replace(module, kernels=tuple(kernels), tensors=tensors, origin=origin)


@dataclass(frozen=True)
class _Grid:
    """The axes of a kernel that goes through columns for tiles of rows."""

    batch: tuple[str, ...]
    row: str
    column: str


def _grid(kernel: Kernel) -> _Grid | None:
    if kernel.pattern is Pattern.ATTENTION:
        found = find_attention(kernel)
        if found is None or is_of_few(kernel, found):
            return None
        return _Grid(found.batch, found.query, found.key)
    stream = find_stream(kernel) if kernel.pattern is Pattern.STREAM else None
    return None if stream is None else _Grid(stream.batch, stream.row, stream.column)


def _hull_count(kernel: Kernel) -> int:
    """How many hulls a kernel is known to have."""
    found = find_attention(kernel) if kernel.pattern is Pattern.ATTENTION else None
    if found is not None:
        return len(band_of(kernel, found).band.hulls)
    stream = find_stream(kernel)
    return 0 if stream is None else len(band_of_stream(kernel, stream).band.hulls)


@dataclass(frozen=True)
class _Extremes:
    """The tensors of the least and the greatest number of every tile, or run, and their axes before
    that which counts tiles: indices of the kernel that has the numbers."""

    low: str
    high: str
    batch: tuple[str, ...]


@dataclass
class _Hulls:
    """Goes through the kernels of a module; tables that are made alike are made once."""

    module: Module
    tensors: dict[str, Tensor] = field(default_factory=dict)
    origin: dict[str, tuple[int, ...]] = field(default_factory=dict)
    made: dict[tuple[object, ...], tuple[str, ...]] = field(default_factory=dict)
    waiting: list[Kernel] = field(default_factory=list)

    def taken(self) -> Iterator[Kernel]:
        """The kernels that the last one needs before it."""
        yield from self.waiting
        self.waiting.clear()

    def with_hulls(self, kernel: Kernel) -> Kernel:
        """A kernel that reads its hulls; as it is where it has no use for any."""
        grid = _grid(kernel)
        if grid is None or kernel.sizes[grid.row] <= HULL_ROWS:
            return kernel
        if kernel.sizes[grid.column] < _FEWEST:
            return kernel
        conditions = [let for let in kernel.body if _compares(kernel, let, grid)]
        if not conditions:
            return kernel
        known = (dict(self.tensors), dict(self.origin), dict(self.made))
        changed = kernel
        for let in conditions:
            changed = self.with_hull(changed, let, grid)
        if _hull_count(changed) == len(conditions):
            return changed
        # What is compared is not what hides columns.
        self.tensors, self.origin, self.made = known
        self.waiting.clear()
        return kernel

    def with_hull(self, kernel: Kernel, condition: Let, grid: _Grid) -> Kernel:
        expr = condition.expr
        assert isinstance(expr, Binary)
        sides = [self.extremes(kernel, name, grid) for name in (expr.lhs, expr.rhs)]
        of_rows = grid.row in kernel.let(expr.lhs).axes
        tables, batch = self.tables(kernel, expr.fn, sides, grid, of_rows=of_rows)
        lets = _condition_by_hull(kernel, condition, tables, batch, grid)
        body = [x for let in kernel.body for x in (lets if let is condition else [let])]
        return replace(kernel, body=tuple(body))

    def extremes(self, kernel: Kernel, name: str, grid: _Grid) -> _Extremes:
        """Of the numbers of rows, or of columns."""
        axes = kernel.let(name).axes
        whole, tile = (grid.row, HULL_ROWS) if grid.row in axes else (grid.column, _RUN)
        batch = tuple(found for found in grid.batch if found in axes)
        size = kernel.sizes[whole]
        tiles = -(-size // tile)
        outer = [KernelAxis(f"b{n}", kernel.sizes[found]) for n, found in enumerate(batch)]
        places = {found: axis(f"b{n}") for n, found in enumerate(batch)}
        places[whole] = axis("t") * tile + axis("r")
        body = list(_lets_at_places(kernel, name, places, [a.name for a in outer], size))
        dtype, rows = body[-1].dtype, (*(a.name for a in outer), "t")
        limit = _LIMITS[dtype]
        value = body[-1].name
        for fn, least in (("min", limit), ("max", -limit - 1)):
            body.append(Let(f"{fn}_start", dtype, (), Const(least)))
            # Rows and columns beyond the end hold what changes no extreme.
            there = Select("there", value, f"{fn}_start")
            body.append(Let(f"{fn}_of", dtype, (*rows, "r"), there))
            body.append(Let(fn, dtype, rows, Reduce(fn, ("r",), f"{fn}_of")))
        axes_made = (*outer, KernelAxis("t", tiles), KernelAxis("r", tile, reduce=True))
        shape = (*(a.size for a in outer), tiles)
        low, high = self.kernel_of(kernel, axes_made, body, ("min", "max"), dtype, shape)
        return _Extremes(low, high, batch)

    def tables(
        self, kernel: Kernel, fn: str, sides: Sequence[_Extremes], grid: _Grid, *, of_rows: bool
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The tensors of `first`, `last`, `whole_from` and `whole_to`, and their batch axes."""
        batch = tuple(name for name in grid.batch if any(name in s.batch for s in sides))
        names = {found: f"b{n}" for n, found in enumerate(batch)}
        outer = [KernelAxis(names[found], kernel.sizes[found]) for found in batch]
        counts = ("t", "g") if of_rows else ("g", "t")
        body: list[Let] = []
        for side, stem, count in zip(sides, ("l", "r"), counts, strict=True):
            dtype = self.tensors[side.low].dtype
            index = (*(names[found] for found in side.batch), count)
            for tensor, name in ((side.low, f"{stem}_low"), (side.high, f"{stem}_high")):
                body.append(Let(name, dtype, index, Read(tensor, tuple(map(axis, index)))))
        tiles, runs = -(-kernel.sizes[grid.row] // HULL_ROWS), -(-kernel.sizes[grid.column] // _RUN)
        rows = (*(found.name for found in outer), "t")
        body += _runs_seen(fn, rows, runs)
        axes = (*outer, KernelAxis("t", tiles), KernelAxis("g", runs, reduce=True))
        results = ("first", "last", "whole_from", "whole_to")
        shape = (*(found.size for found in outer), tiles)
        return self.kernel_of(kernel, axes, body, results, SI32, shape), batch

    def kernel_of(
        self,
        user: Kernel,
        axes: tuple[KernelAxis, ...],
        body: Sequence[Let],
        results: Sequence[str],
        dtype: DType,
        shape: tuple[int, ...],
    ) -> tuple[str, ...]:
        """The tensors of a kernel's results, which is made where none has made them."""
        key = (axes, tuple(body))
        if key in self.made:
            return self.made[key]
        stem = _free_stem("hull", {*self.module.tensors, *self.tensors})
        index = tuple(axis(found.name) for found in axes if not found.reduce)
        tensors = [Tensor(f"{stem}_{name.replace('_', '')}", dtype, shape) for name in results]
        pairs = zip(tensors, results, strict=True)
        outputs = tuple(Output(tensor.name, name, index) for tensor, name in pairs)
        name = f"row_{stem}"
        made = live(Kernel(name, Pattern.ROW, axes, tuple(body), outputs))
        self.waiting.append(made)
        self.tensors |= {tensor.name: tensor for tensor in tensors}
        self.origin[name] = self.module.origin.get(user.name, ())
        self.made[key] = tuple(tensor.name for tensor in tensors)
        return self.made[key]


def _compares(kernel: Kernel, let: Let, grid: _Grid) -> bool:
    """Whether a condition compares integers of a row with integers of a column, of which some are
    read."""
    expr, both = let.expr, {grid.row, grid.column}
    if not isinstance(expr, Binary) or expr.fn not in _COMPARED or not both <= set(let.axes):
        return False
    sides = [kernel.let(name) for name in (expr.lhs, expr.rhs)]
    own = [set(side.axes) - set(grid.batch) for side in sides]
    if sorted(map(sorted, own)) != sorted([[grid.row], [grid.column]]):
        return False
    made = [kernel.let(name) for name in needed((expr.lhs, expr.rhs), kernel)]
    plain = all(isinstance(x.expr, _OF_ELEMENTS) for x in made)
    plain = plain and not any(isinstance(x.expr, Read) and x.expr.places for x in made)
    reads = any(isinstance(x.expr, Read) for x in made)
    return plain and reads and all(side.dtype in INDICES for side in sides)


def _lets_at_places(
    kernel: Kernel, name: str, places: Mapping[str, Expr], outer: Sequence[str], size: int
) -> Iterator[Let]:
    """The Lets of a value at other places, the value last, after `there`: whether it is there."""
    spread = {found: expr for found, expr in places.items() if expr.single_axis is None}
    ((whole, place),) = spread.items()
    names: dict[str, str] = {}
    yield Let("place", SI64, ("t", "r"), AxisIndex(place))
    yield Let("size", SI64, (), Const(size))
    yield Let("there", I1, ("t", "r"), Binary("lt", "place", "size"))
    wanted = needed([name], kernel)
    order = [let for let in kernel.body if let.name in wanted and let.name != name]
    for number, let in enumerate([*order, kernel.let(name)]):
        names[let.name] = f"x{number}"
        known = {str(places[found]) for found in let.axes if found != whole}
        axes = (*(found for found in outer if found in known), *(("t", "r") * (whole in let.axes)))
        expr: ValueExpr = renamed(placed(let.expr, places), names)
        if isinstance(expr, Read) and whole in let.axes:
            expr = replace(expr, guards=(*expr.guards, Guard(place, size)), fill=expr.fill or 0)
        yield Let(names[let.name], let.dtype, axes, expr)


def _runs_seen(fn: str, rows: tuple[str, ...], runs: int) -> Iterator[Let]:
    """Of the runs of columns, between which those lie that a tile may see, and where the first ones
    begin and end that it sees whole."""
    wide = (*rows, "g")
    yield from _on_extremes(fn, wide)
    yield Let("start", SI32, ("g",), AxisIndex(axis("g") * _RUN))
    yield Let("end", SI32, ("g",), AxisIndex(axis("g") * _RUN + constant(_RUN)))
    yield Let("none", SI32, (), Const(runs * _RUN))
    yield Let("zero", SI32, (), Const(0))
    for name, how, pred, x, y in (
        ("first", "min", "possible", "start", "none"),
        ("last", "max", "possible", "end", "zero"),
        ("whole_from", "min", "whole", "start", "none"),
    ):
        yield Let(f"{name}_of", SI32, wide, Select(pred, x, y))
        yield Let(name, SI32, rows, Reduce(how, ("g",), f"{name}_of"))
    # The first run from `whole_from` on that is not seen whole ends those that are.
    yield Let("begun", I1, wide, Binary("le", "whole_from", "start"))
    yield Let("later", SI32, wide, Select("begun", "start", "none"))
    yield Let("whole_to_of", SI32, wide, Select("whole", "none", "later"))
    yield Let("whole_to", SI32, rows, Reduce("min", ("g",), "whole_to_of"))


def _on_extremes(fn: str, wide: tuple[str, ...]) -> Iterator[Let]:
    """`possible`: whether a condition can hold for some numbers between the extremes, and `whole`:
    whether it holds for all."""
    # Of equality: two ranges have a number in common where each begins before the other ends; all
    # pairs are equal where either range is one number, and the same. Of an order the nearest ends
    # say whether some pair fulfils it, the farthest whether all do.
    if fn == "eq":
        pairs = {
            "possible": (("le", "l_low", "r_high"), ("le", "r_low", "l_high")),
            "whole": (("le", "l_high", "r_low"), ("le", "r_high", "l_low")),
        }
    else:
        near, far = (("l_low", "r_high"), ("l_high", "r_low"))
        some, every = (near, far) if fn in ("le", "lt") else (far, near)
        pairs = {"possible": ((fn, *some),) * 2, "whole": ((fn, *every),) * 2}
    for name, (one, other) in pairs.items():
        yield Let(f"{name}_one", I1, wide, Binary(*one))
        yield Let(f"{name}_other", I1, wide, Binary(*other))
        yield Let(name, I1, wide, Binary("and", f"{name}_one", f"{name}_other"))


def _condition_by_hull(
    kernel: Kernel, condition: Let, tables: Sequence[str], batch: tuple[str, ...], grid: _Grid
) -> list[Let]:
    """The condition, by its hull."""
    stem = condition.name
    wide, column = condition.axes, (grid.column,)
    order = [found.name for found in kernel.axes]
    own = tuple(sorted((*batch, grid.row), key=order.index))
    index = (*map(axis, batch), axis(grid.row) // HULL_ROWS)
    names = [f"{stem}_{what}" for what in ("first", "last", "from", "to")]
    pairs = zip(names, tables, strict=True)
    lets = [Let(name, SI32, own, Read(tensor, index)) for name, tensor in pairs]
    key, both = f"{stem}_column", tuple(sorted((*own, grid.column), key=order.index))
    lets.append(Let(key, SI32, column, AxisIndex(axis(grid.column))))
    for name, low, high in (("inside", *names[:2]), ("whole", *names[2:])):
        lets.append(Let(f"{stem}_{name}_low", I1, both, Binary("le", low, key)))
        lets.append(Let(f"{stem}_{name}_high", I1, both, Binary("lt", key, high)))
        pair = Binary("and", f"{stem}_{name}_low", f"{stem}_{name}_high")
        lets.append(Let(f"{stem}_{name}", I1, both, pair))
    lets.append(replace(condition, name=f"{stem}_each"))
    each = Binary("and", f"{stem}_inside", f"{stem}_each")
    lets.append(Let(f"{stem}_possible", I1, wide, each))
    lets.append(replace(condition, expr=Binary("or", f"{stem}_whole", f"{stem}_possible")))
    return lets


def _free_stem(stem: str, taken: set[str]) -> str:
    """A stem that no name begins with."""
    known = {name.partition("_")[0] for name in taken}
    return next(f"{stem}{n}" for n in range(len(taken) + 1) if f"{stem}{n}" not in known)
