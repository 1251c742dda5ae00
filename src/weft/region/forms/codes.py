"""Products of few rows with quantised weights, which are dequantised where they are multiplied.

    y[m, n] = sum over k of x[m, k] w[n, k],    w = f(codes, scales, ...)

What such a product waits for are its weights; read as codes they are a half or a quarter as many
bytes. A thread takes a *run* of neighbouring codes, makes numbers of them, and multiplies these as
they come: the order in which k is summed over is its own, and x is read in the same order. Several
numbers may share a code, the halves of a byte: these are points of the *inner* axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Final

from weft.foundation.dtypes import BF16, F16
from weft.foundation.index_expr import Axis, Expr, axes_of, coefficient, linear
from weft.foundation.records import dataclass
from weft.region.forms.multiplied import usual_atom
from weft.region.ir import (
    AxisIndex,
    Binary,
    Cast,
    Const,
    Fold,
    Kernel,
    Let,
    Read,
    Reduce,
    Roles,
    Select,
    Tensor,
    Unary,
    operands,
    row_major,
)

LANES: Final = 4
"""Lanes of a warp that share a row of a matrix instruction, each with a run of its own."""
QUAD: Final = 4
"""Elements along k that an instruction takes of a lane."""
_LINE: Final = 128
"""Bytes of a cache line."""
_ACCESSES: Final = (16, 8, 4)
"""Bytes of codes that a thread may read at once, and of what they are multiplied with."""
_MOST_INNER: Final = 8
"""Numbers that share a code."""
_MOST_ELEMENTS: Final = 64
"""Numbers that a thread makes of a run."""
_OF_ELEMENTS: Final = (Read, Const, AxisIndex, Unary, Cast, Binary, Select)


@dataclass(frozen=True)
class Codes:
    """Who is who in such a product."""

    weight: str
    other: str
    batch: tuple[str, ...]
    rows: tuple[str, ...]
    """Axes of x that are not summed over."""
    columns: tuple[str, ...]
    """And of the weights."""
    outer: tuple[str, ...]
    run: str
    count: int
    """Codes of a run."""
    inner: tuple[str, ...]
    points: tuple[tuple[tuple[int, ...], int], ...]
    """The numbers of a run, as x has them in memory: where the inner axes stand, and which code."""
    places: tuple[int, ...]
    """Where x has them, counted from the run's first."""
    width: int
    """Elements of x that are neighbours, and read at once."""
    together: int
    """Runs of a column that its lanes copy at once: of a whole cache line, where runs follow one
    another in memory."""

    def runs(self, sizes: Mapping[str, int]) -> int:
        """Runs of a row."""
        return math.prod(sizes[name] for name in self.outer) * (sizes[self.run] // self.count)


def find_codes(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Codes | None:
    """Who is who in a kernel; None where it is no such product."""
    roles = kernel.roles
    if roles is None or kernel.params or not _is_one_product(kernel, roles):
        return None
    weights = [n for n in (roles.lhs, roles.rhs) if not isinstance(kernel.let(n).expr, Read)]
    if len(weights) != 1:
        return None
    (weight,) = weights
    is_lhs = weight == roles.lhs
    other = kernel.let(roles.rhs if is_lhs else roles.lhs)
    read = other.expr
    if not isinstance(read, Read) or read.places or kernel.open_guards(read):
        return None
    if other.dtype not in (BF16, F16) or usual_atom(kernel, "sm80") is None:
        return None
    rows, columns = (roles.n, roles.m) if is_lhs else (roles.m, roles.n)
    address = linear(read.index, row_major(tensors[read.tensor].shape))
    names = (weight, other.name, roles.batch, rows, columns)
    return next(_ways_to_take_runs(kernel, tensors, names, address), None)


def _is_one_product(kernel: Kernel, roles: Roles) -> bool:
    """Whether a kernel sums nothing else, and stores nothing for each k."""
    sums = [let.name for let in kernel.body if isinstance(let.expr, Reduce | Fold)]
    stored = {name for output in kernel.outputs for name in kernel.let(output.value).axes}
    based = any(output.base is not None for output in kernel.outputs)
    return sums == [roles.contraction] and not stored & {*roles.k} and not based


def made_of(kernel: Kernel, name: str) -> list[Let]:
    """A value's Let and those it is made of."""
    found, waiting = dict[str, Let](), [name]
    while waiting:
        let = kernel.let(waiting.pop())
        if let.name not in found:
            found[let.name] = let
            waiting += operands(let)
    return list(found.values())


def _ways_to_take_runs(
    kernel: Kernel,
    tensors: Mapping[str, Tensor],
    names: tuple[str, str, tuple[str, ...], tuple[str, ...], tuple[str, ...]],
    address: Expr,
) -> Iterator[Codes]:
    """The ways in which threads may take runs, the longest first."""
    weight, _, batch, _, columns = names
    lets = made_of(kernel, weight)
    if not all(isinstance(let.expr, _OF_ELEMENTS) for let in lets):
        return
    assert kernel.roles is not None
    allowed = {*batch, *columns, *kernel.roles.k}
    reads = [let for let in lets if isinstance(let.expr, Read)]
    if any(not {*let.axes} <= allowed for let in lets) or not _is_affine(address):
        return
    places = {let.name: _address_of_let(let, tensors) for let in reads}
    if any(isinstance(r.expr, Read) and r.expr.places for r in reads):
        return
    if not all(_is_affine(place) for place in places.values()):
        return
    k = [name for name in kernel.roles.k if kernel.sizes[name] > 1]
    run = _run_axis(kernel, k, places.values())
    if run is None:
        return
    along = [let for let in reads if run in axes_of(places[let.name])]
    inner = tuple(
        name for name in k
        if name != run and not any(name in axes_of(places[let.name]) for let in along)
    )  # fmt: skip
    if math.prod(kernel.sizes[name] for name in inner) > _MOST_INNER:
        return
    guards = [
        g for let in reads if isinstance(let.expr, Read) for g in kernel.open_guards(let.expr)
    ]
    if any(not axes_of(guard.expr) <= {*inner} for guard in guards):
        return
    outer = tuple(name for name in k if name != run and name not in inner)
    word = max(let.dtype.storage_bytes for let in along)
    for access in _ACCESSES:
        count = access // word
        if count and all(_in_runs(places[let.name], run, count, kernel.sizes) for let in along):
            line = _runs_of_a_line(kernel, along, places, (*outer, run), count)
            found = _order_numbers(kernel, names, (outer, run, count, inner), address, line)
            if found is not None:
                yield found


def _address_of_let(let: Let, tensors: Mapping[str, Tensor]) -> Expr:
    assert isinstance(let.expr, Read)
    return linear(let.expr.index, row_major(tensors[let.expr.tensor].shape))


def _is_affine(address: Expr) -> bool:
    return all(isinstance(term, Axis) for term, _ in address.terms)


def _run_axis(kernel: Kernel, k: Sequence[str], places: Iterable[Expr]) -> str | None:
    """The axis along which neighbouring codes are neighbours in memory: that of the read that has
    most elements."""

    def elements(place: Expr) -> int:
        return math.prod(kernel.sizes[name] for name in axes_of(place))

    widest = max(places, key=elements, default=None)
    along = [name for name in k if widest is not None and coefficient(widest, name) == 1]
    return along[-1] if along else None


def _in_runs(address: Expr, run: str, count: int, sizes: Mapping[str, int]) -> bool:
    """Whether runs of so many elements begin at whole multiples of them."""
    others = [factor for term, factor in address.terms if str(term) != run]
    numbers = (address.constant, sizes[run], *others)
    return coefficient(address, run) == 1 and all(number % count == 0 for number in numbers)


def _runs_of_a_line(
    kernel: Kernel,
    reads: Sequence[Let],
    places: Mapping[str, Expr],
    names: Sequence[str],
    count: int,
) -> int:
    """How many runs are a cache line, if those of a column follow one another in memory, in pieces
    of the longest access; otherwise 0."""
    for let in reads:
        step = 1
        for name in reversed(names):
            if kernel.sizes[name] > 1 and coefficient(places[let.name], name) != step:
                return 0
            step *= kernel.sizes[name]
        if count * let.dtype.storage_bytes != _ACCESSES[0]:
            return 0
    return _LINE // _ACCESSES[0]


def _order_numbers(
    kernel: Kernel,
    names: tuple[str, str, tuple[str, ...], tuple[str, ...], tuple[str, ...]],
    axes: tuple[tuple[str, ...], str, int, tuple[str, ...]],
    address: Expr,
    line: int,
) -> Codes | None:
    """The way with its numbers in the order of x; None where x does not come in pairs, or a warp
    has no whole instructions."""
    outer, run, count, inner = axes
    step = {name: coefficient(address, name) for name in (*inner, run)}
    spans = [range(kernel.sizes[name]) for name in inner]
    points = sorted(
        (_offset_of_place(inner, place, step) + step[run] * code, place, code)
        for place in product(*spans)
        for code in range(count)
    )
    places = tuple(at for at, _, _ in points)
    if len(points) % QUAD or len(points) > _MOST_ELEMENTS:
        return None
    factors = [f for term, f in address.terms if str(term) not in (*inner, run)]
    starts = (address.constant, *factors, step[run] * count)
    width = next((w for w in (8, 4, 2) if _is_in_pieces(places, starts, w)), 0)
    if not width:
        return None
    given = tuple((place, code) for _, place, code in points)
    weight, other, batch, rows, columns = names
    found = Codes(
        weight, other, batch, rows, columns, outer, run, count, inner, given, places, width, LANES
    )
    runs = found.runs(kernel.sizes)
    if line and runs % line == 0:
        found = replace(found, together=line)
    return found if runs % LANES == 0 else None


def _offset_of_place(names: Sequence[str], place: Sequence[int], step: Mapping[str, int]) -> int:
    return sum(step[name] * at for name, at in zip(names, place, strict=True))


def _is_in_pieces(places: Sequence[int], starts: Sequence[int], width: int) -> bool:
    """Whether so many neighbours at a time follow one another, from multiples of that number on."""
    if len(places) % width or any(start % width for start in starts):
        return False
    return all(
        places[at] % width == 0 and places[at + step] == places[at] + step
        for at in range(0, len(places), width)
        for step in range(width)
    )
