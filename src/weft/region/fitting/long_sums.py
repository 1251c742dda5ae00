"""Long sums in parts: a kernel that reduces much to little becomes two.

    y[o] = g(reduce over r of f(o, r))

      -->  t[q, o] = reduce over r' of f(o, q * L + r')         the parts, as many as fill the units
           y[o]    = g(reduce over q of t[q, o])

Leading axes of r go to q as they are, and of the next one a divisor. The order of additions is that
of the kernels, the same in every run. Contractions are cut where `target.matrix_time` says that
two kernels are done before one. On a CPU sums over the columns of a large matrix are cut, so that
every thread reads whole rows; how often depends on the sizes alone, not on the threads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from weft.foundation.dtypes import BF16, F16, F32
from weft.foundation.index_expr import Expr, Guard, axis, substitute
from weft.region.forms.columns import (
    matrix_bytes,
    pieces_of_columns,
    reduced_once,
    side_by_side,
    summed_columns,
)
from weft.region.forms.multiplied import usual_atom
from weft.region.forms.thin import FEW, LONG_SIDE, tiles_per_unit
from weft.region.ir import (
    AxisIndex,
    Check,
    Kernel,
    KernelAxis,
    Let,
    Materialize,
    Output,
    Pattern,
    Read,
    Reduce,
    Roles,
    Tensor,
    Words,
    operands,
    row_major,
)
from weft.target.matrix_tiles import Extent
from weft.target.matrix_time import split_for
from weft.target.target import Kind, Target

_BLOCKS_PER_UNIT: Final = 4
"""Blocks of a unit that run at once, so that the parts are reduced in one wave."""
_WAVES: Final = 8
"""Of blocks for the parts of very long sums: where they end one by one, others begin."""
_LONG_PART: Final = 1 << 17
"""Bytes of each of so many parts, at least: 2^29 numbers of f32 take 463.4 us in 512 parts, 461.7
in 4096."""
_SHORTEST: Final = 256
"""Elements of a part, at least."""
_STRIP_BYTES: Final = 512
"""Of neighbouring columns that a block reduces side by side."""
_STREAM_BYTES: Final = 1 << 20
"""Bytes of a part of a matrix whose columns a CPU sums up."""
_LEAST_PARTS: Final = 4
_MOST_PARTS: Final = 32
_LEAST_ROWS: Final = 32


@dataclass(frozen=True)
class Cut:
    """Axes that go to the parts whole, and one of which a divisor does."""

    whole: tuple[str, ...]
    axis: str = ""
    count: int = 1


def in_parts(
    kernel: Kernel, tensors: Mapping[str, Tensor], target: Target
) -> tuple[tuple[Kernel, ...], tuple[Tensor, ...]]:
    """The kernels that take a kernel's place, and the tensors between them."""
    if not _can_be_cut(kernel):
        return (kernel,), ()
    if target.kind is Kind.CPU:
        cut = _column_cut(kernel, tensors)
    elif kernel.roles:
        cut = _contraction_cut(kernel, target)
    else:
        cut = _row_cut(kernel, tensors, target)
    return _Cutting(kernel, cut).kernels() if cut is not None else ((kernel,), ())


def _can_be_cut(kernel: Kernel) -> bool:
    """One level of plain reductions, of what can be computed apart from what follows them."""
    if kernel.pattern not in (Pattern.ROW, Pattern.MATMUL) or kernel.params:
        return False
    if not reduced_once(kernel):
        return False
    sums = [let.name for let in kernel.body if isinstance(let.expr, Reduce)]
    before = _needed(sums, kernel, stop=())
    return not any(let.name in before and _is_bound(let) for let in kernel.body)


def _is_bound(let: Let) -> bool:
    """Whether a value reports where it stands, or depends on it."""
    return isinstance(let.expr, Check | Words) or bool(
        isinstance(let.expr, Read) and let.expr.places
    )


def _reduced(kernel: Kernel) -> list[KernelAxis]:
    found = {a for let in kernel.body if isinstance(let.expr, Reduce) for a in let.expr.axes}
    return [axis for axis in kernel.axes if axis.name in found]


# -- how many parts ------------------------------------------------------------------------------


def _row_cut(kernel: Kernel, tensors: Mapping[str, Tensor], target: Target) -> Cut | None:
    reduced = _reduced(kernel)
    length = math.prod(axis.size for axis in reduced)
    rows = math.prod(kernel.sizes.values()) // max(1, length)
    together, width = _rows_of_a_block(kernel, tensors, {axis.name for axis in reduced})
    wave = target.limits.units * _BLOCKS_PER_UNIT
    wanted = wave / max(1, rows // together)
    if together == 1 and rows * length * width >= wave * _WAVES * _LONG_PART:
        wanted *= _WAVES
    if wanted < 2 or length < 2 * _SHORTEST:
        return None
    return _cut_into(reduced, min(wanted, length / _SHORTEST))


def _column_cut(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Cut | None:
    """Parts that are long streams, where a matrix is large and its columns are few pieces."""
    strides = {name: row_major(tensors[name].shape) for name in kernel.inputs}
    columns = summed_columns(kernel, strides)
    if columns is None or pieces_of_columns(kernel, columns) >= _LEAST_PARTS:
        return None
    size, reduced = matrix_bytes(kernel, columns), _reduced(kernel)
    rows = math.prod(axis.size for axis in reduced)
    wanted = min(max(_LEAST_PARTS, size / _STREAM_BYTES), _MOST_PARTS, rows / _LEAST_ROWS)
    if size < _STREAM_BYTES or wanted < _LEAST_PARTS:
        return None
    return _cut_into(reduced, wanted)


def _rows_of_a_block(
    kernel: Kernel, tensors: Mapping[str, Tensor], reduced: set[str]
) -> tuple[int, int]:
    """One, or where rows lie side by side as many as a strip of them has; and the bytes of their
    widest elements."""
    strides = {name: row_major(tensors[name].shape) for name in kernel.inputs}
    reads = [let for let in kernel.body if isinstance(let.expr, Read) and reduced & set(let.axes)]
    width = max((let.dtype.storage_bytes for let in reads), default=1)
    return max(1, min(side_by_side(kernel, reduced, strides), _STRIP_BYTES // width)), width


def _cut_into(reduced: Sequence[KernelAxis], wanted: float) -> Cut | None:
    """The cut whose number of parts is closest to what is wanted, on a logarithmic scale."""
    best, chosen = abs(math.log(wanted)), None
    before = 1
    for place, found in enumerate(reduced):
        whole = tuple(axis.name for axis in reduced[:place])
        for count in _divisors(found.size):
            distance = abs(math.log(before * count / wanted))
            last = place == len(reduced) - 1
            if distance < best and before * count > 1 and not (last and count == found.size):
                best = distance
                chosen = Cut(whole) if count == 1 else Cut(whole, found.name, count)
        before *= found.size
    return chosen


def _divisors(size: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(size) + 1) if size % d == 0]
    return sorted({*small, *(size // d for d in small)})


def _contraction_cut(kernel: Kernel, target: Target) -> Cut | None:
    roles, sizes = kernel.roles, kernel.sizes
    assert roles is not None
    sides = [kernel.let(name).dtype for name in (roles.lhs, roles.rhs)]
    long = [name for name in roles.k if sizes[name] > 1]
    wide = kernel.let(roles.contraction).dtype is F32
    if len(long) != 1:
        return None
    batch, m, n, k = (
        math.prod(sizes[a] for a in axes) for axes in (roles.batch, roles.m, roles.n, roles.k)
    )
    if target.has("wgmma") and sides[0] in (BF16, F16) and wide:
        parts = split_for(Extent(batch, m, n, k), target)
    elif min(m, n) <= FEW[-1] and usual_atom(kernel, "sm90") is None:
        word = 8 if kernel.let(roles.contraction).dtype.bits == 64 else 4
        tiles = batch * -(-max(m, n) // LONG_SIDE)
        parts = _thin_parts(tiles, k, target.limits.units * tiles_per_unit(m, n, word))
    else:
        return None
    return Cut((), long[0], parts) if parts > 1 else None


def _thin_parts(tiles: int, k: int, most: int) -> int:
    """Parts of a long sum whose result has few rows: as many as run at once, `most` tiles in all,
    which keeps memory busy."""
    fitting = [d for d in _divisors(k) if d * tiles <= most and k // d >= _SHORTEST]
    return max(fitting, default=1)


# -- the two kernels -----------------------------------------------------------------------------


class _Cutting:
    """One kernel and its cut."""

    def __init__(self, kernel: Kernel, cut: Cut) -> None:
        self.kernel, self.cut = kernel, cut
        self.reduced = [axis.name for axis in _reduced(kernel)]
        self.part = _free("part", kernel.sizes)
        self.sums = [let for let in kernel.body if isinstance(let.expr, Reduce)]
        sizes = kernel.sizes
        self.parts = [KernelAxis(name, sizes[name]) for name in cut.whole]
        if cut.axis:
            self.parts.append(KernelAxis(self.part, cut.count))
        self.kept = [found for found in kernel.axes if found.name not in self.reduced]

    def kernels(self) -> tuple[tuple[Kernel, ...], tuple[Tensor, ...]]:
        shape = tuple(axis.size for axis in (*self.parts, *self.kept))
        tensors = tuple(
            Tensor(f"{self.kernel.name}_{let.name}_parts", let.dtype, shape) for let in self.sums
        )
        return (self.first(tensors), self.second(tensors)), tensors

    def first(self, tensors: Sequence[Tensor]) -> Kernel:
        """Every part reduced by itself."""
        kernel, cut = self.kernel, self.cut
        sizes = dict(kernel.sizes)
        if cut.axis:
            sizes[cut.axis] //= cut.count
        left = [name for name in self.reduced if name not in cut.whole]
        axes = [*self.parts, *self.kept, *(KernelAxis(n, sizes[n], reduce=True) for n in left)]
        order = [axis.name for axis in axes]
        step = sizes[cut.axis] if cut.axis else 1
        moved = {cut.axis: axis(self.part) * step + axis(cut.axis)} if cut.axis else {}
        wanted = _needed([let.name for let in self.sums], kernel, stop=())
        body = tuple(
            self.moved(let, moved, order, left) for let in kernel.body if let.name in wanted
        )
        place = tuple(axis(found.name) for found in (*self.parts, *self.kept))
        outputs = tuple(
            Output(tensor.name, let.name, place)
            for tensor, let in zip(tensors, self.sums, strict=True)
        )
        return replace(
            kernel,
            name=f"{kernel.name}_parts",
            axes=tuple(axes),
            body=body,
            outputs=outputs,
            roles=self.roles(),
            labels={name: label for name, label in kernel.labels.items() if name in wanted},
        )

    def roles(self) -> Roles | None:
        roles = self.kernel.roles
        if roles is None:
            return None
        return replace(roles, batch=(*(axis.name for axis in self.parts), *roles.batch))

    def moved(
        self, let: Let, moved: Mapping[str, Expr], order: Sequence[str], left: Sequence[str]
    ) -> Let:
        """A Let of the first kernel: the axis that is cut is a part and a place in it."""
        held = {*let.axes, *((self.part,) if self.cut.axis in let.axes else ())}
        expr = let.expr
        if isinstance(expr, Read):
            index = tuple(substitute(e, moved) for e in expr.index)
            guards = tuple(Guard(substitute(g.expr, moved), g.size) for g in expr.guards)
            expr = replace(expr, index=index, guards=guards)
        elif isinstance(expr, AxisIndex):
            expr = AxisIndex(substitute(expr.expr, moved))
        elif isinstance(expr, Reduce):
            expr = replace(expr, axes=tuple(left))
            held |= {axis.name for axis in self.parts}
        axes = tuple(name for name in order if name in held)
        return Let(let.name, let.dtype, axes, expr)

    def second(self, tensors: Sequence[Tensor]) -> Kernel:
        """The parts reduced to one, and what follows."""
        kernel = self.kernel
        names = tuple(axis.name for axis in self.parts)
        # Parts stay in the order in which they were cut.
        axes = (*self.kept, *(replace(axis, reduce=True) for axis in self.parts))
        order = [axis.name for axis in axes]
        place = tuple(axis(found.name) for found in (*self.parts, *self.kept))
        body: list[Let] = []
        for tensor, let in zip(tensors, self.sums, strict=True):
            assert isinstance(let.expr, Reduce)
            partial = _free(f"{let.name}_part", {found.name: 0 for found in kernel.body})
            body.append(Let(partial, let.dtype, tuple(order), Read(tensor.name, place)))
            whole = tuple(found.name for found in self.kept)
            body.append(
                Let(let.name, let.dtype, whole, replace(let.expr, axes=names, value=partial))
            )
        sums = {let.name for let in self.sums}
        wanted = _needed([output.value for output in kernel.outputs], kernel, stop=sums)
        body += [let for let in kernel.body if let.name in wanted - sums]
        return replace(
            kernel,
            pattern=Pattern.ROW,
            axes=axes,
            body=tuple(body),
            outputs=tuple(replace(o, materialize=Materialize.GMEM) for o in kernel.outputs),
            roles=None,
            labels={},
        )


def _needed(values: Sequence[str], kernel: Kernel, stop: Sequence[str] | set[str]) -> set[str]:
    """The Lets that values need, themselves included, but nothing before those in `stop`."""
    lets = {let.name: let for let in kernel.body}
    found: set[str] = set()
    stack = list(values)
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            stack += () if name in stop else operands(lets[name])
    return found


def _free(stem: str, taken: Mapping[str, object]) -> str:
    while stem in taken:
        stem += "_"
    return stem
