"""Row traffic of a kernel: what it reads along its rows, and how often."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from weft.region.ir import Fold, Kernel, Let, Read, Reduce, Tensor, operands, walk

PIECE: Final = 128
"""Elements of a row that neighbouring lanes of a warp have between them, as vectors of 16 bytes."""
_WHOLE: Final = 1 << 13
"""Elements that the threads of any block have as vectors, or a part of them."""
_VECTOR: Final = 8
_BITS: Final = 32


def points_of(kernel: Kernel, axes: Sequence[str]) -> int:
    """The points of some axes."""
    key = tuple(axes)
    found = kernel.points.get(key)
    if found is None:
        sizes = kernel.sizes
        found = kernel.points[key] = math.prod([sizes[name] for name in axes])
    return found


def passes_over_rows(kernel: Kernel) -> int:
    """How often a kernel needs its rows: once for each reduction and once for results along them;
    of one pass nothing is kept."""
    reduced = reduced_axes(kernel)
    pieces = piece_sums(kernel) if len(kernel.reduced) > 1 else frozenset()
    sums = [let for let in kernel.body if isinstance(let.expr, Reduce) and let.name not in pieces]
    # Equal reductions are one loop; folds over the same axes run in one.
    loops = len({let.expr for let in sums})
    loops += len({let.expr.axes for let in kernel.body if isinstance(let.expr, Fold)})
    stored = {name for output in kernel.outputs for name in kernel.let(output.value).axes}
    return max(1, loops + (1 if reduced & stored else 0))


def row_bytes(kernel: Kernel, tensors: Mapping[str, Tensor]) -> int:
    """The bytes of one row of everything that is read along the reduced axes."""
    axes = reduced_axes(kernel)
    reads = {
        let.expr.tensor: points_of(kernel, tuple(name for name in let.axes if name in axes))
        for let in walk(kernel.body)
        if isinstance(let.expr, Read) and set(let.axes) & axes
    }
    return sum(points * tensors[name].dtype.storage_bytes for name, points in reads.items())


def longest_row(kernel: Kernel, tensors: Mapping[str, Tensor]) -> int:
    """Bytes of the longest row that is read, of those that rows do not have in common."""
    axes = reduced_axes(kernel)
    one = all(axis.size == 1 or axis.name in axes for axis in kernel.axes)
    found = [0]
    for let in walk(kernel.body):
        if isinstance(let.expr, Read) and set(let.axes) & axes and (one or set(let.axes) - axes):
            points = points_of(kernel, tuple(name for name in let.axes if name in axes))
            found.append(points * tensors[let.expr.tensor].dtype.storage_bytes)
    return max(found)


def reduced_axes(kernel: Kernel) -> frozenset[str]:
    """The axes that some reduction of the kernel removes, but for those of its columns where it
    reduces rows."""
    walked = walked_axis(kernel) if len(kernel.reduced) > 1 else None
    return kernel.reduced if walked is None else kernel.reduced - {walked}


def walked_axis(kernel: Kernel) -> str | None:
    """The axis along which a kernel adds up columns, for results alone, while it reduces rows: all
    other reductions are over the same axes, which results live over whole or not at all. Its rows
    follow one another along it, in as many parts as the axes beside both have points."""
    sums = [let for let in kernel.body if isinstance(let.expr, Reduce | Fold)]
    every = list(dict.fromkeys([_removed_by(let) for let in sums]))
    if len(every) != 2 or kernel.roles is not None:
        return None
    for (name, *others), row in (every, every[::-1]):
        if not others and name not in row and _walks(kernel, sums, name, {*row}):
            return name
    return None


def piece_sums(kernel: Kernel) -> frozenset[str]:
    """Sums over the last axes of rows alone, of `PIECE` elements, for results: all other reductions
    are over whole rows, which any number of threads have in vectors."""
    sums = [let for let in kernel.body if isinstance(let.expr, Reduce | Fold)]
    every = {_removed_by(let) for let in sums}
    if len(every) != 2 or kernel.roles is not None:
        return frozenset()
    piece, row = sorted(every, key=len)
    inside = len(piece) < len(row) and piece == row[len(row) - len(piece) :]
    if not inside or points_of(kernel, piece) != PIECE or kernel.sizes[piece[-1]] % _VECTOR:
        return frozenset()
    found = [let for let in sums if _removed_by(let) == piece]
    used = {operand for let in walk(kernel.body) for operand in operands(let)}
    suits = points_of(kernel, row) % _WHOLE == 0 and all(_is_piece(kernel, let) for let in found)
    names = frozenset(let.name for let in found)
    return names if suits and names.isdisjoint(used) else frozenset()


def _is_piece(kernel: Kernel, let: Let) -> bool:
    """Whether a reduction is a sum that every other axis has one of."""
    plain = isinstance(let.expr, Reduce) and let.expr.fn == "sum" and let.dtype.bits == _BITS
    return plain and {*let.axes, *_removed_by(let)} == {*kernel.sizes}


def _removed_by(let: Let) -> tuple[str, ...]:
    return let.expr.axes if isinstance(let.expr, Reduce | Fold) else ()


def _walks(kernel: Kernel, sums: Sequence[Let], name: str, row: set[str]) -> bool:
    """Whether some of the sums are of columns, along an axis, and the others of its rows."""
    used = {operand for let in walk(kernel.body) for operand in operands(let)}
    columns = [let for let in sums if _removed_by(let) == (name,)]
    ends = {let.name for let in columns} - used
    for let in columns:
        plain = isinstance(let.expr, Reduce) and let.expr.fn == "sum" and let.name in ends
        if not plain or {*let.axes, name} != {*kernel.sizes}:
            return False
    results = [kernel.let(output.value) for output in kernel.outputs]
    rows = [let for let in results if let.name not in ends]
    return (
        ends <= {let.name for let in results}
        and all(name in let.axes for let in sums if let.name not in ends)
        and all(name in let.axes and row & {*let.axes} in (set(), row) for let in rows)
    )


def passes_before(kernel: Kernel) -> dict[str, int]:
    """How many reductions stand one after the other before each value, itself included."""
    found: dict[str, int] = {}
    for let in kernel.body:
        below = max((found[name] for name in operands(let)), default=0)
        found[let.name] = below + isinstance(let.expr, Reduce | Fold)
    return found


def is_gather(let: Let) -> bool:
    """Whether a value is read where other tensors say."""
    return isinstance(let.expr, Read) and bool(let.expr.places)
