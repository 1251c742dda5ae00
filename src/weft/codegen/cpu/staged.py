"""The loop nest of a fused kernel whose stages run one after the other, row by row.

    for piece in ...:                            a strip of rows of the results, of one batch, or
                                                 the columns of a tile in these rows
      for t in first row - warm-up .. last row:
        for each stage, if this piece needs row t + high of it:
          its row t + high, tile by tile, into a ring of `depth` rows
        the results of row t

Stages that the plan has computed at the strip have such a loop each before that of the others.
Row r of a local lies at `r mod depth` in its ring. Whether a row is needed is told by a loop that
turns once or not at all. A row of a stage is made by the code that a kernel of its own would have;
of the results of a tile that are no whole vectors, by code that only the last tile of a row has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from weft.codegen.cpu import ir
from weft.codegen.cpu.from_region import Lowering
from weft.codegen.cpu.scopes import PARALLEL, SERIAL, Scope, Wrapper, plain
from weft.codegen.cpu.tiling import AxisTiling, Segment, Tiling, halved_segments
from weft.foundation.dtypes import DType
from weft.foundation.errors import InternalError
from weft.foundation.index_expr import Expr, Guard, axis, constant, substitute
from weft.memory.ir import MemRef
from weft.plan.ir import StagedPlan
from weft.plan.staged import first_stages, held_by, strip_of, tiles_of
from weft.region.form import Staged
from weft.region.forms.rings import Tile
from weft.region.ir import Kernel, Let, Output, Read, Tensor, form_of
from weft.region.structure import Names, buffers


def lower_staged(
    kernel: Kernel,
    tensors: dict[str, Tensor],
    refs: dict[str, MemRef],
    plan: StagedPlan,
    name: str,
) -> ir.Routine:
    """The routine that computes a kernel with stages."""
    return _Nest(kernel, tensors, refs, plan).routine(name)


class _Nest:
    """The parts of one kernel, and the loops around them."""

    def __init__(
        self,
        kernel: Kernel,
        tensors: dict[str, Tensor],
        refs: dict[str, MemRef],
        plan: StagedPlan,
    ) -> None:
        form = form_of(kernel)
        if not isinstance(form, Staged):
            raise InternalError(f"kernel {kernel.name} has no stages")
        self.kernel, self.form, self.plan = kernel, form, plan
        self.strip, self.tiles = strip_of(kernel, plan), tiles_of(kernel, plan)
        self.held = held_by(kernel, plan)
        self.numbers = {tensor: i for i, tensor in enumerate(buffers(kernel))}
        self.numbers |= {stage.name: len(self.numbers) + i for i, stage in enumerate(kernel.stages)}
        known = kernel.with_locals(tensors)
        self.parts = [
            _Part(self, number, part, known, refs) for number, part in enumerate(kernel.parts)
        ]
        self.tile = constant(0)
        """The number of the tile of columns that a piece computes."""
        self.fresh = 0

    def name(self, stem: str) -> str:
        self.fresh += 1
        return f"{stem}_{self.fresh}"

    def routine(self, name: str) -> ir.Routine:
        rows = self.kernel.sizes[self.form.slide]
        strips = -(-rows // self.strip)
        tiles = 1 if self.tiles is None else self.tiles.count
        pieces = tiles * strips * math.prod(self.kernel.sizes[b] for b in self.form.batch)
        piece = self.name("piece")
        self.tile, rest = axis(piece) % tiles, axis(piece) // tiles
        first = (rest % strips if self.form.batch else rest) * self.strip
        batch = self._batch(rest // strips)
        start, stop = first - self.form.warm_up, first + self.strip
        loops = []
        for together in self._steps():
            time = self.name("t")
            body = tuple(s for number in together for s in self._row(number, time, first, batch))
            end = rows if rows % self.strip else None
            loops.append(ir.For(time, start, stop, 1, SERIAL, body, end))
        nest = ir.For(piece, constant(0), constant(pieces), 1, PARALLEL, tuple(loops))
        args = self.parts[-1].buffer_args()
        return ir.Routine(name, args, pieces, (nest,), (), self._scratch())

    def _steps(self) -> Iterator[list[int]]:
        """The parts that go through the rows of a strip together."""
        early = first_stages(self.plan)
        yield from ([number] for number in sorted(early))
        yield [number for number in range(len(self.parts)) if number not in early]

    def _batch(self, flat: Expr) -> tuple[Expr, ...]:
        found, below = [], 1
        for name in reversed(self.form.batch):
            size = self.kernel.sizes[name]
            place = flat if below == 1 else flat // below
            found.append(place if name == self.form.batch[0] else place % size)
            below *= size
        return tuple(reversed(found))

    def _scratch(self) -> tuple[tuple[DType, int], ...]:
        return tuple((held.stage.local.dtype, held.elements) for held in self.held)

    def _row(
        self, number: int, time: str, first: Expr, batch: Sequence[Expr]
    ) -> tuple[ir.Stmt, ...]:
        """What one step does for a part: a row of it, if the piece needs one."""
        part, stages = self.parts[number], self.kernel.stages
        if number == len(stages):
            slide, own, low, high = self.form.slide, self.form.batch, 0, 0
        else:
            ring = self.form.rings[number]
            slide, own, low, high = ring.axis, ring.batch, ring.low, ring.high
        size, row = part.kernel.sizes[slide], axis(time) + high
        body = part.row({slide: row, **dict(zip(own, batch, strict=True))})
        rows = self.kernel.sizes[self.form.slide]
        before = high - low
        if before < self.form.warm_up:
            body = (self._if(axis(time) - first + before, self.strip + self.form.warm_up, body),)
        if low < 0:
            body = (self._if(row, rows + size + self.form.warm_up, body),)
        if rows - 1 + high >= size:
            body = (self._if(row * -1 + (size - 1), rows + size + self.form.warm_up, body),)
        return body

    def _if(self, expr: Expr, far: int, body: tuple[ir.Stmt, ...]) -> ir.For:
        return ir.For(self.name("on"), constant(0), turns_if(expr, far), 1, SERIAL, body)


def turns_if(expr: Expr, far: int) -> Expr:
    """One where an expression is not negative, else nothing; it lies between -far and far."""
    whole = 1 << far.bit_length()
    return (expr + whole) // whole


class _Part(Lowering):
    """The rows of one part."""

    def __init__(
        self,
        nest: _Nest,
        number: int,
        kernel: Kernel,
        tensors: dict[str, Tensor],
        refs: dict[str, MemRef],
    ) -> None:
        named = _prefix_names(kernel, f"s{number}." if number < len(nest.held) else "")
        along = next(found.name for found in reversed(kernel.axes) if not found.reduce)
        self.tile = AxisTiling(nest.plan.unroll, nest.plan.vector)
        super().__init__(named, tensors, refs, Tiling(along, {along: self.tile}, {}))
        self.nest, self.along = nest, along
        self.numbers = nest.numbers
        self.held = {held.stage.name: held for held in nest.held}
        self.is_result = number == len(nest.held)
        self.cut = None if nest.tiles is None else nest.tiles.parts[number]

    def buffer_args(self) -> tuple[ir.BufferArg, ...]:
        whole = buffers(self.nest.kernel)
        written = {output.tensor for output in self.nest.kernel.outputs}
        return tuple(
            ir.BufferArg(
                self.tensors[name].dtype,
                max(1, math.prod(self.tensors[name].shape)),
                name in written,
                self.refs[name].noalias,
            )
            for name in whole
        )

    def row(self, places: dict[str, Expr]) -> tuple[ir.Stmt, ...]:
        """All elements at some places, or those of a tile, those along the last axis in vectors."""
        root = Scope(None, kind=SERIAL)
        scope = root
        for found in self.kernel.axes:
            if found.reduce or found.name in places or found.name == self.along:
                continue
            if self.cut is not None and found.name == self.cut.axis:
                scope = self._column(scope, self.cut)
            else:
                scope = self._serial(scope, found.name, found.size)
        if self.cut is None or self.cut.axis != self.along:
            size = self.kernel.sizes[self.along]
            self._vectors(scope, places, constant(0), halved_segments(size, self.tile))
        elif self.is_result:
            self._cut_row(scope, places, self.cut)
        else:
            start = self.cut.start(self.nest.tile)
            self._vectors(scope, places, start, halved_segments(self.cut.width, self.tile))
        _close(scope, root)
        return tuple(root.body)

    def _vectors(
        self, scope: Scope, places: dict[str, Expr], start: Expr, segments: Iterable[Segment]
    ) -> None:
        """Elements along the last axis, in vectors."""
        for segment in segments:
            inner = Scope(scope, self._name(f"{plain(self.along)}t"), segment.count, SERIAL)
            place = axis(inner.var) * segment.extent + segment.start + start
            self._segment(inner, places, place, segment)
            inner.close()

    def _segment(self, scope: Scope, places: dict[str, Expr], place: Expr, cut: Segment) -> None:
        wrappers: list[Wrapper] = []
        here = {**places, self.along: self._cut_axis(self.along, place, cut, wrappers)}
        self._tile(scope, here, wrappers)

    # -- tiles of columns ------------------------------------------------------------------------

    def _column(self, scope: Scope, cut: Tile) -> Scope:
        """A loop over the columns of a tile, each of which has elements along the last axis."""
        var, start = self._name(plain(cut.axis)), cut.start(self.nest.tile)
        if not self.is_result:
            return Scope(scope, var, cut.width, SERIAL, {cut.axis: axis(var) + start})
        end = self.kernel.sizes[cut.axis]
        return Scope(scope, var, cut.width, SERIAL, {cut.axis: axis(var)}, start=start, end=end)

    def _cut_row(self, scope: Scope, places: dict[str, Expr], cut: Tile) -> None:
        """The results of a tile along the last axis, each once: whole steps, and in the last tile
        what rows have beyond those."""
        size, step = self.kernel.sizes[cut.axis], self.tile.unroll * self.tile.lanes
        segments, whole = halved_segments(size, self.tile), size // step
        if whole:
            var, start = self._name(f"{plain(cut.axis)}t"), cut.start(self.nest.tile) // step
            inner = Scope(scope, var, cut.width // step, SERIAL, start=start, end=whole)
            self._segment(inner, places, axis(var) * step, segments[0])
            inner.close()
        last = cut.start(self.nest.tile) + cut.width - 1
        on = Scope(scope, self._name("on"), stop=turns_if(last - whole * step, 2 * size))
        rest = [found for found in segments if found.start >= whole * step]
        self._vectors(on, places, constant(0), rest)
        on.close()

    def _name(self, stem: str) -> str:
        return self.nest.name(stem)

    def _load(self, let: Let, read: Read, scope: Scope) -> ir.Load:
        held = self.held.get(read.tensor)
        if held is None:
            return super()._load(let, read, scope)
        bindings = scope.bindings()
        point = tuple(substitute(e, bindings) for e in read.index)
        guards = tuple(
            Guard(substitute(g.expr, bindings), g.size) for g in self.kernel.open_guards(read)
        )
        address = held.address(point, self.nest.tile)
        number = self.numbers[read.tensor]
        return ir.Load(let.name, number, address, guards, read.fill, (), point)

    def _store_value(self, output: Output, scope: Scope) -> None:
        held = self.held.get(output.tensor)
        if held is None:
            super()._store_value(output, scope)
            return
        bindings = scope.bindings()
        point = tuple(bindings[name] for name in self.lets[output.value].axes)
        address = held.address(point, self.nest.tile)
        home = self._home(self.lets[output.value].axes, scope)
        home.body.append(ir.Store(self.numbers[output.tensor], address, output.value, point))


def _close(inner: Scope, outer: Scope) -> None:
    """Close the loops of a scope up to one around them."""
    for made in inner.chain()[: len(outer.chain()) - 1 : -1]:
        made.close()


class _Prefixed(Names):
    """Lets with a prefix, everything else as it is."""

    def __init__(self, kernel: Kernel, prefix: str) -> None:
        same = {name: name for name in buffers(kernel)}
        super().__init__(same, {name: name for name in kernel.sizes}, {})
        self.prefix = prefix

    def fresh(self, name: str) -> str:
        return self.lets.setdefault(name, self.prefix + name)


def _prefix_names(kernel: Kernel, prefix: str) -> Kernel:
    names = _Prefixed(kernel, prefix)
    body = tuple(names.let(let) for let in kernel.body)
    return replace(kernel, body=body, outputs=tuple(map(names.output, kernel.outputs)), labels={})
