"""Fusion of row reductions and column sums (as in the gradient of a norm): one kernel with partial
sums over blocks of rows.

    y = kernel(x, g), row by row;  s[c] = sum over r of f(x, g)[r, c]

      -->  y, t[p, c] = kernel(x, g)          t: the sums of the rows of part p
           s[c] = sum over p of t[p, c]

The gradient of a norm is such a pair: that of its input row by row, those of its weights column by
column, of the same rows. A block that goes through the rows of a part has them in registers when
columns are added up, so that they are read once. It keeps a sum for each column of a row besides,
and where registers do not hold both, kernels stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from weft.foundation.records import dataclass, replace
from weft.region.cost import kernel_seconds
from weft.region.fitting.joined_axes import with_one_axis
from weft.region.fitting.joining import merged, replaced
from weft.region.fitting.long_sums import in_parts
from weft.region.fitting.sums_in_parts import Cutting, parts_of_sums, sums_of_pieces
from weft.region.forms.columns import reduced_once
from weft.region.ir import (
    Check,
    Fold,
    Kernel,
    KernelAxis,
    Module,
    Output,
    Pattern,
    Read,
    Reduce,
    Tensor,
    Words,
)
from weft.region.row_reads import points_of, walked_axis
from weft.region.writing.axes import split_axis
from weft.target.roofline import quantisation
from weft.target.target import Kind, Target

_REGISTER: Final = 4
"""Bytes."""
_BESIDE: Final = 9
"""Bytes of registers for addresses and what is being computed, for each element of a row: 36 of a
thread that has 16 elements."""
_MOST_BLOCKS: Final = 4
"""Of a unit."""
_MOST_PARTS: Final = 511
"""That a kernel adds up by itself (`long_sums`)."""
_BUSY: Final = 0.7
"""The share of units that have something to do, at least."""
_LEAST_ROW: Final = 256
"""Elements of a row that a warp has vectors of for each of its lanes."""
_VECTOR_BYTES: Final = 16
_READ: Final = " as it was read"
"""What is added to the name of a tensor where it is handed on by a kernel that reads it."""
_SLOWER: Final = 1.1
"""How many times longer it takes to go through memory in few long-lived blocks."""


def join_column_sums(module: Module, target: Target) -> Module:
    """The module with sums of columns made where their rows are, where that takes less time."""
    if target.kind is not Kind.GPU:
        return module
    around = _Around.of(module)
    for rows in module.kernels:
        if _reduces_rows(rows, around.module.tensors):
            joined = _with_sums(around, rows, target)
            if joined is not around.module:
                around = _Around.of(joined, around.known)
    return around.module


def _with_sums(around: _Around, rows: Kernel, target: Target) -> Module:
    parts, best = [rows], None
    touched = {*rows.inputs, *(output.tensor for output in rows.outputs)}
    for sums in around.readers_of(touched):
        if sums is rows or not around.sums_columns(sums):
            continue
        found = _join_kernels(around, [*parts, sums], target)
        if found is not None and found.saves > (0.0 if best is None else best.saves):
            parts, best = [*parts, sums], found
    return around.module if best is None else best.module


def _reduces_rows(kernel: Kernel, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a kernel reduces rows that lie in whole vectors, all over the same axes, and stores
    some as long."""
    if not _is_plain(kernel):
        return False
    every = {let.expr.axes for let in kernel.body if isinstance(let.expr, Reduce | Fold)}
    stored = [o for o in kernel.outputs if kernel.reduced <= {*kernel.let(o.value).axes}]
    if len(every) != 1 or not stored or points_of(kernel, tuple(kernel.reduced)) < _LEAST_ROW:
        return False
    tensor = tensors[stored[0].tensor]
    return tensor.shape[-1] * tensor.dtype.storage_bytes % _VECTOR_BYTES == 0


def sums_columns(kernel: Kernel) -> bool:
    """Whether a kernel does nothing but to sum over some axes, in at least 32 bits."""
    plain = _is_plain(kernel) and bool(reduced_once(kernel))
    bound = (Check, Words, Fold)
    if not plain or any(isinstance(let.expr, bound) for let in kernel.body):
        return False
    reads = [let.expr for let in kernel.body if isinstance(let.expr, Read)]
    sums = [let for let in kernel.body if isinstance(let.expr, Reduce)]
    return not any(read.places for read in reads) and all(
        isinstance(let.expr, Reduce) and let.expr.fn == "sum" and let.dtype.bits >= 32
        for let in sums
    )


def _is_plain(kernel: Kernel) -> bool:
    plain = kernel.pattern is Pattern.ROW and kernel.roles is None and not kernel.params
    return plain and not kernel.stages and all(o.base is None for o in kernel.outputs)


# -- the two kernels -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Around:
    """A module, and what is asked of it for one choice of kernels after the other."""

    module: Module
    order: Mapping[str, int]
    """The places of the kernels."""
    readers: Mapping[str, frozenset[str]]
    """The kernels that read a tensor."""
    known: dict[str, tuple[Kernel, bool]]
    """Kernels by name, and whether they sum columns alone, as far as somebody asked."""

    @classmethod
    def of(cls, module: Module, known: dict[str, tuple[Kernel, bool]] | None = None) -> _Around:
        readers: dict[str, set[str]] = {}
        for kernel in module.kernels:
            for name in kernel.inputs:
                readers.setdefault(name, set()).add(kernel.name)
        order = {kernel.name: number for number, kernel in enumerate(module.kernels)}
        every = {name: frozenset(found) for name, found in readers.items()}
        return cls(module, order, every, {} if known is None else known)

    def sums_columns(self, kernel: Kernel) -> bool:
        """Whether a kernel does nothing but to sum columns: hundreds read what rows do."""
        found = self.known.get(kernel.name)
        if found is None or found[0] is not kernel:
            found = self.known[kernel.name] = kernel, sums_columns(kernel)
        return found[1]

    def readers_of(self, tensors: Iterable[str]) -> list[Kernel]:
        """The kernels that read any of some tensors, in order."""
        names = frozenset[str]().union(*(self.readers.get(name, ()) for name in tensors))
        return [self.module.kernels[place] for place in sorted(map(self.order.__getitem__, names))]


@dataclass(frozen=True)
class _Joined:
    module: Module
    saves: float
    """Seconds."""


def _join_kernels(around: _Around, parts: Sequence[Kernel], target: Target) -> _Joined | None:
    """The module with one kernel of rows and sums, and one that adds up its parts."""
    module, place = around.module, _place_for(around, parts)
    whole = None if place is None else _whole(around, parts)
    if whole is None or place is None:
        return None
    row = {f"{name}0" for name in parts[0].reduced}
    along = [name for name in whole.sizes if name in whole.reduced - row]
    pieces = sums_of_pieces(whole, module.tensors, row)
    if pieces is not None:
        return _place_kernels(around, parts, place, pieces, target)
    whole = with_one_axis(whole, module.tensors, along) if along else None
    count = None if whole is None else _parts_of(whole, along[0], target)
    if whole is None or count is None:
        return None
    first, second, between = _in_parts(module, whole, along[0], count)
    if walked_axis(first) is None:
        return None
    slower = _SLOWER / quantisation(count, target.limits.units)
    return _place_kernels(around, parts, place, (first, second, between), target, slower)


def _place_kernels(
    around: _Around,
    parts: Sequence[Kernel],
    place: Kernel,
    pair: tuple[Kernel, Kernel, tuple[Tensor, ...]],
    target: Target,
    slower: float = 1.0,
) -> _Joined:
    """The module with a kernel of rows and sums, and one that adds up its parts, for others."""
    module, (first, second, between) = around.module, pair
    tensors = {**module.tensors, **{tensor.name: tensor for tensor in between}}
    apart = sum(seconds_when_cut(part, tensors, target) for part in parts)
    together = slower * kernel_seconds(first, tensors, target)
    together += seconds_when_cut(second, tensors, target)
    others = [part for part in parts if part is not place]
    gone = {o.tensor for part in parts for o in part.outputs} - _stored_tensors(first, second)
    made = replaced(replace(module, tensors=tensors), [*others, place], first, frozenset(gone))
    name = others[0].name
    kernels: list[Kernel] = []
    for kernel in made.kernels:
        found = kernel.body == first.body and kernel.outputs == first.outputs
        kernels += [kernel, replace(second, name=name)] if found else [kernel]
    origin = {**made.origin, name: module.origin.get(name, ())}
    return _Joined(replace(made, kernels=tuple(kernels), origin=origin), apart - together)


def _stored_tensors(*kernels: Kernel) -> set[str]:
    return {output.tensor for kernel in kernels for output in kernel.outputs}


def seconds_when_cut(kernel: Kernel, tensors: Mapping[str, Tensor], target: Target) -> float:
    """The time of a kernel, cut as it will be."""
    kernels, between = in_parts(kernel, tensors, target)
    known = {**tensors, **{tensor.name: tensor for tensor in between}}
    return sum(kernel_seconds(found, known, target) for found in kernels)


def _whole(around: _Around, parts: Sequence[Kernel]) -> Kernel | None:
    """A kernel of rows and others of sums as one; None where elements do not meet one to one. What
    all of them read is handed on like what the first one stores."""
    rows, *sums = parts
    own = [o for o in rows.outputs if rows.reduced <= {*rows.let(o.value).axes}]
    own += [output for output in rows.outputs if output not in own]
    stored = {output.tensor for output in own}
    wanted = {name for part in sums for name in part.inputs}
    if any(o.tensor in part.inputs for o in _outputs(sums) for part in parts):
        return None
    read: dict[str, Output] = {}
    for let in rows.body:
        if isinstance(let.expr, Read) and not let.expr.guards and not let.expr.places:
            alias = f"{let.expr.tensor}{_READ}"
            read.setdefault(let.expr.tensor, Output(alias, let.name, let.expr.index))
    common = [output for name, output in read.items() if name in wanted]
    handed = frozenset({*(stored & wanted), *(output.tensor for output in common)})
    own_names, tensors = {part.name for part in parts}, around.module.tensors
    kept = {
        name
        for name in stored
        if around.readers.get(name, frozenset()) - own_names or tensors[name].role != "internal"
    }
    whole = [
        replace(rows, outputs=(*own, *common)),
        *(_read_from_outputs(part, read) for part in sums),
    ]
    return merged(whole, handed, Pattern.ROW, frozenset(kept & handed))


def _read_from_outputs(sums: Kernel, read: Mapping[str, Output]) -> Kernel:
    """A kernel that has from another one what both of them read."""
    body = tuple(
        replace(let, expr=replace(let.expr, tensor=read[let.expr.tensor].tensor))
        if isinstance(let.expr, Read) and let.expr.tensor in read
        else let
        for let in sums.body
    )
    return replace(sums, body=body)


def _outputs(kernels: Sequence[Kernel]) -> Iterator[Output]:
    for kernel in kernels:
        yield from kernel.outputs


def _in_parts(
    module: Module, whole: Kernel, walked: str, count: int
) -> tuple[Kernel, Kernel, tuple[Tensor, ...]]:
    """Rows with the sums of every part, the kernel that adds these up, and what is between them."""
    cut = split_axis(whole, walked, (count, whole.sizes[walked] // count))
    part = KernelAxis(f"{walked}_0", count)
    sums = [let for let in whole.body if let.expr in _sums_along(whole, walked)]
    cutting = Cutting(cut, (part,), (f"{walked}_1",), inside=False)
    return parts_of_sums(module.tensors, whole, sums, cutting)


def _sums_along(kernel: Kernel, walked: str) -> list[Reduce]:
    reduces = [let.expr for let in kernel.body if isinstance(let.expr, Reduce)]
    return [expr for expr in reduces if expr.axes == (walked,)]


# -- how many parts, and where --------------------------------------------------------------------


def _parts_of(kernel: Kernel, walked: str, target: Target) -> int | None:
    """Parts that fill the units with blocks whose registers hold a row and the sums of its columns:
    of the numbers that leave no row over, the one that fills them best, of several the greatest."""
    sums = _sums_along(kernel, walked)
    row = kernel.reduced - {walked}
    streams = [
        let
        for let in kernel.body
        if isinstance(let.expr, Read) and walked in let.axes and row & {*let.axes}
    ]
    held = _REGISTER * (len(streams) + len(sums)) + _BESIDE
    block = points_of(kernel, tuple(row)) * held
    registers = _REGISTER * target.limits.registers_per_unit
    units, size = target.limits.units, kernel.sizes[walked]
    most = min(_MOST_PARTS, units * min(_MOST_BLOCKS, int(registers // block)), size // 2)
    counts = [n for n in range(1, most + 1) if size % n == 0]
    best = max(counts, key=lambda n: (round(quantisation(n, units), 2), n), default=0)
    return best if best and quantisation(best, units) >= _BUSY else None


def _place_for(around: _Around, parts: Sequence[Kernel]) -> Kernel | None:
    """The last of some kernels, or the first, in whose place all of them can be."""
    ordered = sorted(parts, key=lambda part: around.order[part.name])
    for place in (ordered[-1], ordered[0]):
        if all(_can_move(around, part, place, parts) for part in parts):
            return place
    return None


def _can_move(around: _Around, kernel: Kernel, place: Kernel, parts: Sequence[Kernel]) -> bool:
    """Whether a kernel may run in the place of another: nobody in between needs what it makes,
    makes what it needs, or overwrites that."""
    order, names = around.order, {part.name for part in parts}
    first, last = sorted((order[kernel.name], order[place.name]))
    between = [k for k in around.module.kernels[first + 1 : last] if k.name not in names]
    stored = _stored_tensors(*between)
    over = {output.base for other in between for output in other.outputs}
    needed_there = {name for other in between for name in other.inputs}
    if order[kernel.name] < order[place.name]:
        return not needed_there & _stored_tensors(kernel) and not over & {*kernel.inputs}
    return not stored & {*kernel.inputs}
