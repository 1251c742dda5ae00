"""Repacking of constant weights into the layout in which products read them.

    y[n, p] = sum over k of w[n, k] x[k, p]
        -->  t[n / 8, k, n % 8] = w[n, k];  y[n, p] = sum over k of t[n / 8, k, n % 8] x[k, p]

A CPU multiplies panels: a few rows or columns for all that is summed over, side by side. A kernel
packs its operands so, block by block, and where there are few results for each weight that takes as
long as the products. What a program makes of its parameters alone is kept from run to run, so that
parameters are laid out by a kernel of its own, which later runs leave out.

Where there are so few results that vectors along them would be mostly empty, vectors run along the
weights, and the weights are columns.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Final

from weft.foundation.dtypes import F32
from weft.foundation.index_expr import Guard, axes_of, axis, coefficient, linear, substitute
from weft.foundation.records import dataclass, replace
from weft.region.fitting.idle_taps import without_idle_taps
from weft.region.forms.multiplied import multiplies_reads
from weft.region.ir import (
    Kernel,
    KernelAxis,
    Let,
    Output,
    Pattern,
    Read,
    Tensor,
    row_major,
)
from weft.target.target import Target

_STAYS: Final = "param"
"""The role of what is the same in many runs; constants are read in loops, too, whose bodies would
lay them out in every turn."""
# Packing the weights was half the time of a 3x3 convolution of 512 channels at 7x7, which has 49
# results for each of them.
_MANY: Final = 1024
"""Results of each weight from which on packing it hardly counts."""
# Measured with AVX-512: from 256 rows on packed columns are as fast as panels.
_MANY_ROWS: Final = 256
"""The same where weights are columns, and packed in vectors."""
MOST_ROOM: Final = 1.25
"""How much larger than what it is made of a result may be that is kept from run to run."""
_FEWEST: Final = 1 << 12
"""Weights that are worth a kernel of their own."""
_LEAST_DEPTH: Final = 16
"""Terms of a sum, at least: shorter ones are over before a panel pays."""
_LANES: Final = 16
"""Of the vectors that panels are made for: in narrower ones packing is a small part."""
# 24 sums each, of 32 registers; beside them the vectors of results, and a weight that is spread.
_TILES: Final = ((8, 3), (12, 2), (6, 4))
"""Rows of a panel by vectors of results that registers hold, the best first."""
_NEXT_BEST: Final = 0.02
"""How much longer each takes than the one before it."""
_COLUMNS: Final = 32
"""Columns of a panel: two vectors, next to as many rows as there are, up to fourteen."""
# 48 columns were as fast as packed ones where there are many rows, 32 where there are fewer.
_COLUMNS_OF_MANY: Final = 48
"""The same where there are many rows, and panels of so many leave nothing over."""
_ENOUGH_ROWS: Final = 64
"""Rows that are many."""
_COLUMNS_OF_FEW: Final = 64
"""The same next to so few rows that sums would wait for one another."""
_FEWEST_ROWS: Final = 4
"""Rows that are so few."""
_FEW_ROWS: Final = 8
"""Rows of a product that reads weights where they lie, if neighbours there are its columns."""


@dataclass(frozen=True)
class _Filter:
    """An operand that stays, and the axis of the results that it alone has."""

    side: str
    let: Let
    read: Read
    axis: str


def with_panels(
    kernel: Kernel, tensors: Mapping[str, Tensor], target: Target, shared: Collection[str] = ()
) -> tuple[tuple[Kernel, ...], tuple[Tensor, ...]]:
    """A contraction behind a kernel that lays out its weights, and the tensor between them. Several
    kernels read what is `shared`, as steps that train do, whose weights are others every time."""
    found = _filter(kernel, tensors) if target.lanes(F32) == _LANES else None
    if found is None or kernel.roles is None:
        return (kernel,), ()
    other = kernel.roles.lhs if found.side == "B" else kernel.roles.rhs
    narrow, idle, sums = without_idle_taps(kernel, found.let.name, other)
    found = _filter(narrow, tensors)
    placed = _place_weights(narrow, tensors, found, shared) if found is not None else None
    if found is None or placed is None:
        return (kernel,), ()
    kernel, width, summed = placed
    name = f"{kernel.name}_panels"
    laid, tensor, let = _lay_out_weights(kernel, found, name, width, summed)
    body = tuple(let if each.name == let.name else each for each in kernel.body)
    before = [laid] if idle is None else [idle, laid]
    between = [tensor] if sums is None else [sums, tensor]
    return (*before, replace(kernel, body=body)), tuple(between)


def _filter(kernel: Kernel, tensors: Mapping[str, Tensor]) -> _Filter | None:
    """The operand of a product that is a parameter as it stands."""
    roles = kernel.roles
    if roles is None or roles.batch or kernel.params or roles.lhs == roles.rhs:
        return None
    if not multiplies_reads(kernel) or kernel.let(roles.contraction).dtype is not F32:
        return None
    sides = (("B", roles.rhs, roles.n), ("A", roles.lhs, roles.m))
    for side, name, axes in sides:
        let = kernel.let(name)
        read = let.expr
        if not isinstance(read, Read) or read.guards or read.places or len(axes) != 1:
            continue
        names = {name for expr in read.index for name in axes_of(expr)}
        every = kernel.sizes[axes[0]] * math.prod(kernel.sizes[name] for name in roles.k)
        # Each weight is laid out once, wherever it lies.
        given = math.prod(tensors[read.tensor].shape)
        plain = names == {axes[0], *roles.k} and every <= given
        if plain and let.dtype is F32 and tensors[read.tensor].role == _STAYS:
            return _Filter(side, let, read, axes[0])
    return None


def _place_weights(
    kernel: Kernel, tensors: Mapping[str, Tensor], found: _Filter, shared: Collection[str]
) -> tuple[Kernel, int, tuple[str, ...]] | None:
    """The kernel with its weights on the side where they belong, how wide their panels are, and
    the order of what is summed over; None where laying them out does not pay."""
    roles = kernel.roles
    assert roles is not None
    other, others = (roles.lhs, roles.m) if found.side == "B" else (roles.rhs, roles.n)
    results = math.prod(kernel.sizes[name] for name in others)
    depth = math.prod(kernel.sizes[name] for name in roles.k)
    weights = depth * kernel.sizes[found.axis]
    if results > _MANY or weights < _FEWEST or depth < _LEAST_DEPTH:
        return None
    windows = _axes_of_taps(kernel, other, others)
    summed = (*(n for n in roles.k if n not in windows), *(n for n in roles.k if n in windows))
    image = _flat_image(kernel, windows)
    if kernel.pattern is Pattern.CONV and image >= _LANES:
        if not _runs_along(kernel, tensors, other, others[-1]):
            return None
        return kernel, _panel_rows(image), summed
    if found.side == "A" and results >= _LANES:
        return kernel, _panel_rows(results), summed
    if results > _MANY_ROWS:
        return None
    if results <= _FEW_ROWS and _lies_well(kernel, tensors, found, shared):
        return None
    if found.side == "A":
        turned = replace(roles, m=roles.n, n=roles.m, lhs=roles.rhs, rhs=roles.lhs)
        kernel = replace(kernel, roles=turned)
    return kernel, _panel_columns(results, kernel.sizes[found.axis]), summed


def _panel_columns(rows: int, columns: int) -> int:
    """Columns of the panels next to so many rows."""
    if rows <= _FEWEST_ROWS:
        return _COLUMNS_OF_FEW
    wide = rows >= _ENOUGH_ROWS and columns % _COLUMNS_OF_MANY == 0
    return _COLUMNS_OF_MANY if wide else _COLUMNS


def _lies_well(
    kernel: Kernel, tensors: Mapping[str, Tensor], found: _Filter, shared: Collection[str]
) -> bool:
    """Whether a few rows read weights where they are: in vectors across what is summed over, or
    along it where no run keeps panels, mostly empty ones or those of weights that are trained.
    Vectors along it have sums of their own to add up, and come from as many places: 4 rows times
    1024 x 1024 that no cache holds took 0.56 ms so, and take 0.22 with panels."""
    assert kernel.roles is not None
    address = linear(found.read.index, row_major(tensors[found.read.tensor].shape))
    if coefficient(address, found.axis) == 1:
        return True
    size = kernel.sizes[found.axis]
    width = _COLUMNS_OF_FEW
    empty = -(-size // width) * width > MOST_ROOM * size
    along = coefficient(address, kernel.roles.k[-1]) == 1
    return along and (empty or found.read.tensor in shared)


def _panel_rows(results: int) -> int:
    """Rows of the panels whose tiles cover so many results with the least to spare; where one tile
    does, so that panels are read once, the tallest."""
    vectors = -(-results // _LANES)
    if vectors <= max(found for _, found in _TILES):
        return max(rows for rows, found in _TILES if found >= vectors)

    def covered(tile: tuple[int, int]) -> float:
        width = tile[1] * _LANES
        return -(-results // width) * width * (1 + _NEXT_BEST * _TILES.index(tile))

    return min(_TILES, key=covered)[0]


def _axes_of_taps(kernel: Kernel, other: str, others: tuple[str, ...]) -> dict[str, str]:
    """The taps of windows, and the axis of the results that each goes along with."""
    read = kernel.let(other).expr
    assert kernel.roles is not None
    assert isinstance(read, Read)
    found = {}
    for expr in read.index:
        names = axes_of(expr)
        place = next((name for name in others if name in names), None)
        tap = next((name for name in kernel.roles.k if name in names), None)
        if place is not None and tap is not None:
            found[tap] = place
    return found


def _flat_image(kernel: Kernel, windows: Mapping[str, str]) -> int:
    """Results of one image, line after line with what windows reach beyond; 0 without windows."""
    flat = 0
    for tap, place in windows.items():
        flat = flat * (kernel.sizes[place] + kernel.sizes[tap] - 1) + kernel.sizes[place] - 1
    return flat + 1 if windows else 0


def _runs_along(kernel: Kernel, tensors: Mapping[str, Tensor], other: str, name: str) -> bool:
    """Whether neighbours along the results are neighbours in the image, or a stride apart."""
    read = kernel.let(other).expr
    assert isinstance(read, Read)
    address = linear(read.index, row_major(tensors[read.tensor].shape))
    last = next((expr for expr in reversed(read.index) if not expr.is_constant), None)
    return last is not None and coefficient(address, name) == coefficient(last, name) > 0


def _lay_out_weights(
    kernel: Kernel, found: _Filter, name: str, width: int, summed: tuple[str, ...]
) -> tuple[Kernel, Tensor, Let]:
    """The kernel that lays weights out, its tensor, and the Let that reads it."""
    own, size = found.axis, kernel.sizes[found.axis]
    count = -(-size // width)
    axes = (KernelAxis("p", count), *(KernelAxis(n, kernel.sizes[n]) for n in summed))
    axes = (*axes, KernelAxis("i", width))
    place = axis("p") * width + axis("i")
    index = tuple(substitute(expr, {own: place}) for expr in found.read.index)
    guards = (Guard(place, size),) if count * width > size else ()
    read = Read(found.read.tensor, index, guards, 0.0 if guards else None)
    names = tuple(each.name for each in axes)
    body = (Let("v0", found.let.dtype, names, read),)
    tensor = Tensor(name, found.let.dtype, tuple(each.size for each in axes))
    output = Output(name, "v0", tuple(axis(each) for each in names))
    laid = Kernel(f"{name}_laid", Pattern.MAP, axes, body, (output,))
    where = (axis(own) // width, *(axis(each) for each in summed), axis(own) % width)
    return laid, tensor, replace(found.let, expr=Read(name, where))
