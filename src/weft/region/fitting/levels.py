"""Splitting a kernel with several levels of row reductions into one kernel for each level, where
rows are too long or too scattered for a block to keep them.

    m[o] = reduce over r of f(o, r)
    y[o] = g(reduce over r of h(o, r, m[o]))

      -->  a kernel that makes m, and one that reads m and makes y

A kernel of several levels has one block, or one cluster of them, for each row. Rows that are longer
than a cluster keeps are read again for every level anyway, and a level by itself can be cut into as
many parts as there are units (`long_sums.py`). So are long rows that lie side by side, as the
channels of a batch of images do: a block reads whole lines only where it takes many rows at once,
of which it can keep none. Rows that are strips of a few neighbours, as groups of channels are, are
kept where they are so short that this takes less time than two more kernels and reading them again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from weft.foundation.index_expr import axis
from weft.foundation.records import replace
from weft.region.cost import share_inside
from weft.region.fitting.cutting import needed, removed_axes
from weft.region.forms.columns import short_strips, side_by_side
from weft.region.ir import (
    Check,
    Fold,
    Kernel,
    Let,
    Output,
    Pattern,
    Read,
    Reduce,
    Tensor,
    Words,
    operands,
    row_major,
    walk,
)
from weft.region.row_reads import passes_before
from weft.region.writing.folds import with_moments
from weft.target.target import Kind, Target

# A quarter of all registers of the 16 blocks of a cluster: 16 * 65,536 / 4.
_KEPT: Final = 1 << 18
"""Elements of a row that the registers of a cluster hold."""
_LONG_COLUMN: Final = 1 << 10
"""Elements of a row that lies beside others from which a block keeps none of them."""
_OF_LINE: Final = 16
"""Rows side by side from which a line of memory is wasted on one of them."""
_ROWS_OF_UNIT: Final = 0.5
"""Rows for each unit, at most, where they are few."""
_OF_STRIPS: Final = 0.25e-9
"""Seconds that an element takes that is read for a row, of rows in strips, of which each is a
block's: those of 20,480 elements of bf16, 128 of them, took 5 us beside the launch on an H200."""
_MORE_KERNELS: Final = 2
"""For a norm whose statistics are made in parts."""


def one_level_each(
    kernel: Kernel, known: Mapping[str, Tensor], target: Target
) -> tuple[tuple[Kernel, ...], tuple[Tensor, ...]]:
    """The kernels that take a kernel's place, and the tensors between them."""
    if target.kind is not Kind.GPU or kernel.pattern is not Pattern.ROW:
        return (kernel,), ()
    nobody_keeps = _few_and_long(kernel, target) or _long_columns(kernel, known)
    nobody_keeps = nobody_keeps or _long_strips(kernel, known, target)
    if not nobody_keeps or not _can_be_apart(kernel):
        return (kernel,), ()
    kernel = with_moments(kernel)
    levels = passes_before(kernel)
    last = max(levels.values()) + _stores_rows(kernel)
    if last == 1:
        return (kernel,), ()
    before = [let for let in _handed_on(kernel, levels) if levels[let.name] < last]
    tensors = {let.name: _tensor_for_value(kernel, let) for let in before}
    made, done = [], set[Output]()
    for level in range(1, last):
        outputs = tuple(
            Output(tensors[let.name].name, let.name, tuple(map(axis, let.axes)))
            for let in before
            if levels[let.name] == level
        )
        own = [
            o
            for o in kernel.outputs
            if o.base is None and _is_of(kernel.let(o.value), level, kernel, levels)
        ]
        done.update(own)
        earlier = {n: found for n, found in tensors.items() if levels[n] < level}
        made.append(_level(kernel, f"{kernel.name}_level{level}", (*outputs, *own), earlier))
    rest = tuple(output for output in kernel.outputs if output not in done)
    made.append(_level(kernel, kernel.name, rest, tensors))
    return tuple(made), tuple(tensors.values())


def _handed_on(kernel: Kernel, levels: Mapping[str, int]) -> list[Let]:
    """What later kernels need of the reductions of a level: what follows them and is one for each
    row, as far as it goes."""
    wanted = {output.value for output in kernel.outputs if output.base is not None}
    near = {let.name for let in kernel.body if _is_of(let, levels[let.name], kernel, levels)}
    for let in kernel.body:
        level = levels[let.name]
        wanted.update(n for n in operands(let) if let.name not in near or levels[n] != level)
    return [let for let in kernel.body if let.name in wanted and let.name in near]


def _is_of(let: Let, level: int, kernel: Kernel, levels: Mapping[str, int]) -> bool:
    """Whether a value is one for each row, and known after the reductions of a level."""
    return 0 < levels[let.name] == level and kernel.reduced.isdisjoint(let.axes)


def _few_and_long(kernel: Kernel, target: Target) -> bool:
    """Whether rows are longer than a cluster keeps, and too few for all units."""
    length = math.prod(found.size for found in removed_axes(kernel))
    rows = math.prod(kernel.sizes.values()) // max(1, length)
    return length > _KEPT and 0 < rows <= _ROWS_OF_UNIT * target.limits.units


def _long_columns(kernel: Kernel, tensors: Mapping[str, Tensor]) -> bool:
    """Whether so many rows lie side by side that a line of memory is of as many of them, and they
    are long."""
    gone = {found.name for found in removed_axes(kernel)}
    if math.prod(kernel.sizes[name] for name in gone) < _LONG_COLUMN:
        return False
    strides = {name: row_major(tensors[name].shape) for name in kernel.inputs}
    return side_by_side(kernel, gone, strides) >= _OF_LINE


def _long_strips(kernel: Kernel, tensors: Mapping[str, Tensor], target: Target) -> bool:
    """Whether rows are strips of lines, and so long that it takes less time to go through whole
    lines of them in more kernels."""
    gone = {found.name for found in removed_axes(kernel)}
    if not short_strips(kernel, gone, tensors):
        return False
    length = math.prod(kernel.sizes[name] for name in gone)
    rows = math.prod(kernel.sizes.values()) // length
    every = {found.name for found in kernel.axes if found.size > 1}
    streams = [(let, let.expr) for let in kernel.body if isinstance(let.expr, Read)]
    shares = [
        (share_inside(kernel, read), let.dtype.storage_bytes)
        for let, read in streams
        if every <= {*let.axes}
    ]
    alone = sum(share for share, _ in shares) * -(-rows // target.limits.units) * length
    again = sum(share * width for share, width in shares) * rows * length
    apart = _MORE_KERNELS * target.rates.launch_seconds + again / target.rates.bandwidth
    return apart < alone * _OF_STRIPS


def _can_be_apart(kernel: Kernel) -> bool:
    """Whether all reductions run over the same axes, and nothing reports where it stands: it would
    do so in every kernel."""
    every = {let.expr.axes for let in kernel.body if isinstance(let.expr, Reduce | Fold)}
    bound = any(isinstance(let.expr, Check | Words) for let in walk(kernel.body))
    return len(every) == 1 and not bound and not kernel.params


def _stores_rows(kernel: Kernel) -> bool:
    """Whether some result lives over whole rows."""
    stored = {name for output in kernel.outputs for name in kernel.let(output.value).axes}
    return any(found.name in stored for found in removed_axes(kernel))


def _tensor_for_value(kernel: Kernel, let: Let) -> Tensor:
    shape = tuple(kernel.sizes[name] for name in let.axes)
    return Tensor(f"{kernel.name}_{let.name}_whole", let.dtype, shape)


def _level(
    kernel: Kernel, name: str, outputs: tuple[Output, ...], known: Mapping[str, Tensor]
) -> Kernel:
    """The kernel of some outputs, which reads what is known."""
    wanted = needed((output.value for output in outputs), kernel, known)
    body = tuple(
        replace(let, expr=Read(known[let.name].name, tuple(map(axis, let.axes))))
        if let.name in known
        else let
        for let in kernel.body
        if let.name in wanted
    )
    stored = {axis for output in outputs for axis in kernel.let(output.value).axes}
    reduces = any(isinstance(let.expr, Reduce | Fold) for let in body)
    return replace(
        kernel,
        name=name,
        pattern=Pattern.ROW if reduces else Pattern.MAP,
        axes=tuple(replace(found, reduce=found.name not in stored) for found in kernel.axes),
        body=body,
        outputs=outputs,
        labels={n: label for n, label in kernel.labels.items() if n in wanted},
    )
