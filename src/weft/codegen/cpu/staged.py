"""The loop nest of a kernel whose stages follow one another row by row.

    for piece in ...:                            a strip of rows of the results, of one batch
      for t in first row - warm-up .. last row:
        for each stage, if this piece needs row t + high of it:
          its row t + high, tile by tile, into a ring of `depth` rows
        the results of row t

Stages that the plan has computed at the strip have such a loop each before that of the others.
Row r of a local lies at `r mod depth` in its ring. Whether a row is needed is told by a loop that
turns once or not at all. A row of a stage is made by the code that a kernel of its own would have.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from weft.codegen.cpu import ir
from weft.codegen.cpu.from_region import Lowering
from weft.codegen.cpu.scopes import PARALLEL, SERIAL, Scope, plain
from weft.codegen.cpu.tiling import AxisTiling, Tiling, halved_segments
from weft.foundation.dtypes import DType
from weft.foundation.errors import InternalError
from weft.foundation.index_expr import Expr, Guard, Index, axis, constant, linear, substitute
from weft.memory.ir import MemRef
from weft.plan.ir import StagedPlan
from weft.plan.staged import depths_of, first_stages, strip_of
from weft.region.form import Ring, Staged
from weft.region.forms.staged import row_elements
from weft.region.ir import Kernel, Let, Output, Read, Stage, Tensor, form_of, row_major
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


def ring_address(stage: Stage, ring: Ring, depth: int, point: Index) -> Expr:
    """Where a point of a local lies in its ring."""
    places = dict(zip((found.name for found in stage.outer), point, strict=True))
    outside = {ring.axis, *ring.batch}
    inside = [found for found in stage.outer if found.name not in outside]
    strides = row_major(tuple(found.size for found in inside))
    row = linear([places[found.name] for found in inside], strides)
    return (places[ring.axis] % depth) * row_elements(stage, ring) + row


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
        self.strip, self.depths = strip_of(kernel, plan), depths_of(kernel, plan)
        self.numbers = {tensor: i for i, tensor in enumerate(buffers(kernel))}
        self.numbers |= {stage.name: len(self.numbers) + i for i, stage in enumerate(kernel.stages)}
        known = kernel.with_locals(tensors)
        self.parts = [
            _Part(self, part, known, refs, f"s{number}." if number < len(kernel.stages) else "")
            for number, part in enumerate(kernel.parts)
        ]
        self.fresh = 0

    def name(self, stem: str) -> str:
        self.fresh += 1
        return f"{stem}_{self.fresh}"

    def routine(self, name: str) -> ir.Routine:
        rows = self.kernel.sizes[self.form.slide]
        strips = -(-rows // self.strip)
        pieces = strips * math.prod(self.kernel.sizes[b] for b in self.form.batch)
        piece = self.name("piece")
        first = (axis(piece) % strips if self.form.batch else axis(piece)) * self.strip
        batch = self._batch(axis(piece) // strips)
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
        stages = zip(self.kernel.stages, self.form.rings, self.depths, strict=True)
        return tuple((s.local.dtype, depth * row_elements(s, ring)) for s, ring, depth in stages)

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
        """The body where an expression is not negative; it lies between -far and far."""
        whole = 1 << far.bit_length()
        turns = (expr + whole) // whole
        return ir.For(self.name("on"), constant(0), turns, 1, SERIAL, body)


class _Part(Lowering):
    """The rows of one part."""

    def __init__(
        self,
        nest: _Nest,
        kernel: Kernel,
        tensors: dict[str, Tensor],
        refs: dict[str, MemRef],
        prefix: str,
    ) -> None:
        named = _prefix_names(kernel, prefix)
        along = next(found.name for found in reversed(kernel.axes) if not found.reduce)
        tile = AxisTiling(nest.plan.unroll, nest.plan.vector)
        super().__init__(named, tensors, refs, Tiling(along, {along: tile}, {}))
        self.nest, self.along = nest, along
        self.numbers = nest.numbers
        self.rings = {
            stage.name: (stage, ring, depth)
            for stage, ring, depth in zip(
                nest.kernel.stages, nest.form.rings, nest.depths, strict=True
            )
        }

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
        """All elements at some places, those along the last axis in tiles."""
        root = Scope(None, kind=SERIAL)
        scope = root
        for found in self.kernel.axes:
            if not (found.reduce or found.name in places or found.name == self.along):
                scope = self._serial(scope, found.name, found.size)
        for tile in halved_segments(self.kernel.sizes[self.along], self.tiling.outer(self.along)):
            inner = Scope(scope, self._name(f"{plain(self.along)}t"), tile.count, SERIAL)
            wrappers: list[tuple[str, int, ir.LoopKind]] = []
            place = axis(inner.var) * tile.extent + tile.start
            here = {**places, self.along: self._cut_axis(self.along, place, tile, wrappers)}
            self._tile(inner, here, wrappers)
            inner.close()
        for made in scope.chain()[:0:-1]:
            made.close()
        return tuple(root.body)

    def _name(self, stem: str) -> str:
        return self.nest.name(stem)

    def _load(self, let: Let, read: Read, scope: Scope) -> ir.Load:
        if read.tensor not in self.rings:
            return super()._load(let, read, scope)
        bindings = scope.bindings()
        stage, ring, depth = self.rings[read.tensor]
        point = tuple(substitute(e, bindings) for e in read.index)
        guards = tuple(
            Guard(substitute(g.expr, bindings), g.size) for g in self.kernel.open_guards(read)
        )
        address = ring_address(stage, ring, depth, point)
        number = self.numbers[read.tensor]
        return ir.Load(let.name, number, address, guards, read.fill, (), point)

    def _store_value(self, output: Output, scope: Scope) -> None:
        if output.tensor not in self.rings:
            super()._store_value(output, scope)
            return
        bindings = scope.bindings()
        stage, ring, depth = self.rings[output.tensor]
        point = tuple(bindings[name] for name in self.lets[output.value].axes)
        address = ring_address(stage, ring, depth, point)
        home = self._home(self.lets[output.value].axes, scope)
        home.body.append(ir.Store(self.numbers[output.tensor], address, output.value, point))


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
