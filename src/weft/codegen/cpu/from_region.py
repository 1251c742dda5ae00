"""Lowering: from a kernel, its buffers and its plan to a loop nest.

One scheme serves elementwise kernels, row reductions and contractions. Axes that no reduction
removes are *outer*: they are cut into tiles, and the tiles of all of them, flattened, are the
pieces. Inside a tile an axis is unrolled and, if it is the vector axis, carried by lanes. A
reduction is a loop *around* the unrolled and lanes loops of its tile, with one accumulator per
instance, so that a contraction over an unrolled tile is a register-tiled matrix product and a
reduction along the vector axis keeps several partial sums. Where an axis does not divide evenly,
the rest is a second, smaller tile and the last elements are scalars.

Values are computed in the outermost loop in which all their axes are known. Reductions with the
same axes share one loop. What several loops need is computed again in each, or kept in scratch
where the plan says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from weft.codegen.cpu import ir
from weft.codegen.cpu.choices import Interval, intervals, settled
from weft.codegen.cpu.reductions import Reductions
from weft.codegen.cpu.scopes import (
    LANES,
    PARALLEL,
    SERIAL,
    UNROLLED,
    Scope,
    Wrapper,
    open_tile,
    plain,
    reopen,
)
from weft.codegen.cpu.tiling import (
    AxisTiling,
    Packing,
    Segment,
    Tiling,
    halved_segments,
    segments,
)
from weft.foundation.dtypes import DType
from weft.foundation.errors import InternalError
from weft.foundation.index_expr import (
    Expr,
    FloorDiv,
    add,
    axes_of,
    axis,
    coefficient,
    constant,
    scale,
    simplify,
    substitute,
)
from weft.memory.ir import MemRef
from weft.plan.rows import reduced_axes
from weft.region.form import Crossing
from weft.region.ir import Kernel, Let, Output, Read, Tensor


def lower_kernel(
    kernel: Kernel,
    tensors: dict[str, Tensor],
    refs: dict[str, MemRef],
    tiling: Tiling,
    name: str,
) -> ir.Routine:
    """The routine that computes `kernel`. Its buffers are `buffers(kernel)`, in that
    order."""
    return Lowering(kernel, tensors, refs, tiling).routine(name)


class Lowering(Reductions):
    """The loop nest of one kernel, under construction."""

    def __init__(
        self,
        kernel: Kernel,
        tensors: dict[str, Tensor],
        refs: dict[str, MemRef],
        tiling: Tiling,
    ) -> None:
        super().__init__(kernel, tensors, refs, tiling)
        self.reduced = reduced_axes(kernel)
        self.lifted = self._find_lifted()
        self.packed: tuple[Expr, int] | None = None
        """While a piece with packed columns is built: its first column, and how many it has."""
        self.scratch_elements = 0

    def routine(self, name: str) -> ir.Routine:
        outer = [a.name for a in self.kernel.axes if a.name not in self.reduced]
        body: list[ir.Stmt] = []
        pieces = 0
        for part in self._parts(outer):
            cuts = [self._segments(a, stretch) for a, stretch in zip(outer, part, strict=True)]
            for tiles in product(*cuts):
                count, nest = self._tile_nest(outer, tiles, pieces)
                body.append(nest)
                pieces += count
        return ir.Routine(
            name, self._buffer_args(), pieces, tuple(body), self._params(), self._scratch(),
            self._violations(),
        )  # fmt: skip

    def _parts(self, outer: Sequence[str]) -> Iterator[tuple[Interval, ...]]:
        """The stretches of the axes in which choices by index are the same, with the values as they
        are there."""
        lanes = {name: self.tiling.outer(name).lanes for name in outer}
        found = intervals(self.kernel, lanes)
        whole = self.tiling.packing is not None or self.tiling.blocks is not None
        cuts = [[Interval(0, self.kernel.sizes[a])] if whole else found[a] for a in outer]
        for part in product(*cuts):
            if math.prod(map(len, cuts)) > 1:
                places = zip(outer, part, strict=True)
                box = {name: (cut.start, cut.start + cut.size - 1) for name, cut in places}
                self.lets = settled(self.kernel, box)
            yield part

    def _segments(self, name: str, stretch: Interval) -> list[Segment]:
        found = halved_segments(stretch.size, self._piece_tiling(name))
        return [replace(segment, start=segment.start + stretch.start) for segment in found]

    def _scratch(self) -> tuple[tuple[DType, int], ...]:
        packing = self.tiling.packing
        if packing is None or not self.scratch_elements:
            return self.kept.scratch()
        return ((self.lets[packing.value].dtype, self.scratch_elements),)

    def _piece_tiling(self, name: str) -> AxisTiling:
        """How an axis is cut into pieces: by tiles, or by all the rows that share packed
        columns."""
        packing, blocks = self.tiling.packing, self.tiling.blocks
        if packing is not None and name == packing.rows_axis:
            return AxisTiling(packing.rows, 1)
        if blocks is not None and name in blocks.crossing:
            return AxisTiling(blocks.edge, 1)
        if self._is_block(name):
            return AxisTiling(self.kernel.sizes[name], 1)
        return self.tiling.outer(name)

    # -- the outer loops -------------------------------------------------------------------------

    def _tile_nest(
        self, outer: Sequence[str], tiles: Sequence[Segment], first: int
    ) -> tuple[int, ir.Stmt]:
        """All tiles of one combination of segments, as one parallel loop over flattened tiles."""
        total = 1
        for tile in tiles:
            total *= tile.count
        piece = self._name("piece")
        ranges = {piece: (first, first + total - 1)}
        places: dict[str, Expr] = {}
        wrappers: list[Wrapper] = []
        remaining = total
        for name, tile in zip(outer, tiles, strict=True):
            remaining //= tile.count
            here = simplify(((axis(piece) - first) // remaining) % tile.count, ranges)
            if tile.lanes == tile.extent == math.prod(self.kernel.sizes.values()) > 1:
                # Written as the pieces of longer maps, so that it has the same text.
                here = axis(piece)
            places[name] = add(tile.start, scale(here, tile.extent))
            if not self._is_block(name):
                places[name] = self._cut_axis(name, places[name], tile, wrappers)
        root = Scope(None, kind=PARALLEL)
        inside = {n: t for n, t in zip(outer, tiles, strict=True) if self._is_block(n)}
        if self.tiling.blocks is not None:
            self._cross_tiles(root, places, inside, self.tiling.blocks.crossing)
        elif self.tiling.packing is not None and inside:
            self._packed_rows(root, places, wrappers, next(iter(inside.values())))
        elif inside:
            self._whole_row(root, places, wrappers, inside)
        else:
            self._tile(root, places, wrappers)
        stop = constant(first + total)
        return total, ir.For(piece, constant(first), stop, 1, PARALLEL, tuple(root.body))

    def _is_block(self, name: str) -> bool:
        """Whether a piece has more of the axis than one tile."""
        packing, blocks = self.tiling.packing, self.tiling.blocks
        if blocks is not None:
            return name in blocks.crossing
        if packing is not None:
            return name == packing.rows_axis
        return self.tiling.whole_rows and name == self.tiling.vector_axis

    def _cut_axis(self, name: str, place: Expr, tile: Segment, wrappers: list[Wrapper]) -> Expr:
        """The place of an axis inside its tile; its unrolled and lanes loops join `wrappers`."""
        if tile.unroll > 1:
            wrappers.append((self._name(f"{plain(name)}u"), tile.unroll, UNROLLED))
            place = place + axis(wrappers[-1][0]) * tile.lanes
        if tile.lanes > 1:
            wrappers.append((self._name(f"{plain(name)}l"), tile.lanes, LANES))
            place = place + axis(wrappers[-1][0])
        return place

    def _tile(self, base: Scope, places: dict[str, Expr], wrappers: Sequence[Wrapper]) -> None:
        """Everything that is stored in one tile."""
        leaf = open_tile(base, places, wrappers, self.tiling.groups)
        self.kept.begin_tile(wrappers)
        self._stores(leaf)
        for scope in leaf.chain()[: len(base.chain()) - 1 : -1]:
            scope.close()

    def _whole_row(
        self,
        root: Scope,
        places: dict[str, Expr],
        wrappers: Sequence[Wrapper],
        row: dict[str, Segment],
    ) -> None:
        """All tiles of a row, or of a stretch of it, one after the other."""
        ((along, stretch),) = row.items()
        for tile in halved_segments(stretch.extent, self.tiling.outer(along)):
            scope = Scope(root, self._name(f"{plain(along)}t"), tile.count, SERIAL)
            inner = list(wrappers)
            place = places[along] + axis(scope.var) * tile.extent + tile.start
            self._tile(scope, {**places, along: self._cut_axis(along, place, tile, inner)}, inner)
            scope.close()

    # -- blocks of two axes ----------------------------------------------------------------------

    def _cross_tiles(
        self, root: Scope, places: dict[str, Expr], block: dict[str, Segment], crossing: Crossing
    ) -> None:
        """The tiles of a block, the rows of each strip of columns one after the other."""
        columns, rows = crossing
        cuts = [segments(block[name].extent, self.tiling.outer(name)) for name in crossing]
        for across, down in product(*cuts):
            strip = Scope(root, self._name(f"{plain(columns)}t"), across.count, SERIAL)
            scope = Scope(strip, self._name(f"{plain(rows)}t"), down.count, SERIAL)
            wrappers: list[Wrapper] = []
            here = dict(places)
            for name, cut, loop in ((rows, down, scope), (columns, across, strip)):
                place = places[name] + cut.start + axis(loop.var) * cut.extent
                here[name] = self._cut_axis(name, place, cut, wrappers)
            self._tile(scope, here, wrappers)
            scope.close()
            strip.close()

    def _read_otherwise(self, let: Let, home: Scope) -> bool:
        """Read an operand that lies across the lanes in vectors along another loop of the tile, and
        turn it round; False where it does not lie so."""
        rows = self._loop_across(home) if home.kind is LANES else None
        if rows is None or not isinstance(let.expr, Read):
            return False
        load = self._load(let, let.expr, home)
        if not self._lies_across(load, rows, home):
            return False
        tile, base = reopen(home)
        scope = base
        for outer in tile:
            if outer is not rows:
                scope = Scope(scope, outer.var, outer.count, outer.kind)
        address = substitute(load.address, {rows.var: constant(0)})
        run = (let.name, rows.var, rows.count, load.buffer, address)
        scope.body.append(ir.LoadRun(*run, load.guards, load.fill))
        for made in scope.chain()[: len(base.chain()) - 1 : -1]:
            made.close()
        return True

    def _loop_across(self, home: Scope) -> Scope | None:
        """The unrolled loop along which operands that lie across the lanes are read."""
        blocks = self.tiling.blocks
        if blocks is None:
            return None
        steps = axes_of(home.bindings()[blocks.crossing.rows])
        return next((s for s in home.chain() if s.kind is UNROLLED and s.var in steps), None)

    def _lies_across(self, load: ir.Load, rows: Scope, lanes: Scope) -> bool:
        """Whether neighbours in memory are neighbours along `rows`, and far apart along `lanes`."""
        if load.places or coefficient(load.address, rows.var) != 1:
            return False
        quotients = [term for term, _ in load.address.terms if isinstance(term, FloorDiv)]
        if any(rows.var in axes_of(term.value) for term in quotients):
            # Somewhere among the neighbours the next line, or the next image, begins.
            return False
        if any(rows.var in axes_of(guard.expr) for guard in load.guards):
            return False
        if load.guards:
            # Where a guard fails, so many elements are read from the beginning.
            tensor = self.tensors[list(self.numbers)[load.buffer]]
            if math.prod(tensor.shape) < rows.count:
                return False
        return coefficient(load.address, lanes.var) not in (0, 1)

    # -- packed operands -------------------------------------------------------------------------

    def _packed_rows(
        self,
        root: Scope,
        places: dict[str, Expr],
        wrappers: Sequence[Wrapper],
        block: Segment,
    ) -> None:
        """All rows of a piece, tile by tile, next to its columns, which may be copied first."""
        packing = self._find_packing()
        start = substitute(
            places[packing.columns_axis], {var: constant(0) for var, _, _ in wrappers}
        )
        width = math.prod(count for _, count, _ in wrappers)
        if packing.copies:
            self._pack(root, places, wrappers, (start, width))
            self.packed = (start, width)
        rows = packing.rows_axis
        for segment in segments(block.extent, self.tiling.outer(rows)):
            scope = Scope(root, self._name(f"{plain(rows)}t"), segment.count, SERIAL)
            # Rows outside of columns: what a row has is used up at once, and takes one register.
            inner: list[Wrapper] = []
            place = places[rows] + segment.start + axis(scope.var) * segment.extent
            place = self._cut_axis(rows, place, segment, inner)
            self._tile(scope, {**places, rows: place}, [*inner, *wrappers])
            scope.close()
        self.packed = None

    def _pack(
        self,
        root: Scope,
        places: dict[str, Expr],
        wrappers: Sequence[Wrapper],
        columns: tuple[Expr, int],
    ) -> None:
        """Loops that copy the operand: one row of columns for every summed index."""
        packing = self._find_packing()
        let = self.lets[packing.value]
        if not isinstance(let.expr, Read):
            raise InternalError("only a read can be packed")
        scope, depth = root, 1
        for name in self._summed_axes():
            scope = self._serial(scope, name, self.kernel.sizes[name])
            depth *= self.kernel.sizes[name]
        known = {name: place for name, place in places.items() if name != packing.rows_axis}
        leaf = open_tile(scope, known, wrappers)
        load = replace(self._load(let, let.expr, leaf), name="packed")
        address = self._scratch_address(leaf.bindings(), columns)
        self.scratch_elements = max(self.scratch_elements, depth * columns[1])
        leaf.body += [load, ir.Store(len(self.numbers), address, "packed", ())]
        for made in leaf.chain()[:0:-1]:
            made.close()

    def _find_packing(self) -> Packing:
        if self.tiling.packing is None:
            raise InternalError("nothing is packed here")
        return self.tiling.packing

    def _summed_axes(self) -> tuple[str, ...]:
        return self.kernel.roles.k if self.kernel.roles else ()

    def _scratch_address(self, bindings: dict[str, Expr], columns: tuple[Expr, int]) -> Expr:
        """Where an element of the packed operand lies."""
        start, width = columns
        row = constant(0)
        for name in self._summed_axes():
            row = row * self.kernel.sizes[name] + bindings[name]
        return row * width + (bindings[self._find_packing().columns_axis] - start)

    def _load(self, let: Let, read: Read, scope: Scope) -> ir.Load:
        if self.packed is not None and let.name == self._find_packing().value:
            address = self._scratch_address(scope.bindings(), self.packed)
            return ir.Load(let.name, len(self.numbers), address)
        return super()._load(let, read, scope)

    # -- statements ------------------------------------------------------------------------------

    def _stores(self, leaf: Scope) -> None:
        """Every output, in loops over the axes that are not known yet."""
        groups: dict[tuple[str, ...], list[Output]] = {}
        known = set(leaf.bindings())
        for output in self.kernel.outputs:
            missing = tuple(a for a in self.lets[output.value].axes if a not in known)
            groups.setdefault(missing, []).append(output)
        for missing, outputs in sorted(groups.items(), key=lambda item: len(item[0])):
            if missing:
                # Around the tile's loops, so that neighbours in a tile are stored together.
                self._emit_needed([output.value for output in outputs], leaf)
                tile, base = reopen(leaf)
                self._loop(base, missing, partial(self._store, outputs), tile)
            else:
                self._store(outputs, leaf)

    def _store(self, outputs: Iterable[Output], scope: Scope, _: str = "") -> None:
        for output in outputs:
            self._emit(output.value, scope)
            self._store_value(output, scope)
