"""Convolutions over a padded copy of the image, where every tap of a window is a shifted read
(`plan.images`).

    parallel piece:                 a block of rows of weights, and lines of results of one image
      for each block of channels:
        copy the image     [channel][phase][lines and what windows reach beyond][places of a line]
        pack the weights   [panels of mr rows][phase][channel][tap][mr]   (turned where they lie so)
        for each nr results, flat over lines, for each panel of weights:
          for each phase, channel, tap:
            registers (mr x nr) += weights x image, from where the tap shifts it to
          sums += registers, or = for the first
      for each row, for each line: what follows the convolution, and the stores

The copy has the border that reads beyond the image are filled with, so that nothing is asked while
multiplying. What results beyond the end of a line come to is never read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from weft.codegen.cpu import ir
from weft.codegen.cpu.blocked import FAR_AHEAD, Block, BlockedContraction, first_apart
from weft.codegen.cpu.panels import MANY_LANES, Cut, close, cuts, halves, repeat
from weft.codegen.cpu.scopes import LANES, SERIAL, UNROLLED, Scope
from weft.codegen.cpu.tiling import AxisTiling, Blocking, Segment, Tiling, segments
from weft.foundation.dtypes import DType
from weft.foundation.errors import InternalError
from weft.foundation.index_expr import (
    Expr,
    Guard,
    always,
    axes_of,
    axis,
    coefficient,
    constant,
    evaluate,
    linear,
)
from weft.memory.ir import MemRef
from weft.plan.blocks import PANELS
from weft.plan.images import (
    Phase,
    block_of,
    image_of,
    memory_follows_steps,
    places_of,
    results_of,
    scratch_elements,
    steps_of,
)
from weft.plan.ir import MmaPlan
from weft.region.ir import Kernel, Let, Read, Tensor, operands


class ImageContraction(BlockedContraction):
    """The nest of one convolution kernel."""

    packs_rows = False

    def __init__(
        self,
        kernel: Kernel,
        tensors: dict[str, Tensor],
        refs: dict[str, MemRef],
        plan: MmaPlan,
    ) -> None:
        image = image_of(kernel, tensors)
        if image is None or kernel.roles is None:
            raise InternalError(f"{kernel.name} has no image")
        lanes = plan.vectorize.width if plan.vectorize else 1
        self.image, self.block = image, block_of(kernel, image, plan)
        block = self.block
        blocking = Blocking(
            block.rows, block.lines, block.channels, block.register_rows,
            block.register_results, lanes, lies=any(c.where == PANELS for c in plan.cache),
        )  # fmt: skip
        places = kernel.roles.m if image.side == "A" else kernel.roles.n
        super().__init__(kernel, tensors, refs, Tiling(places[-1], {}, {}, blocking=blocking))

    def _begin(self) -> None:
        super()._begin()
        if self.image.side == "A":
            a, b = self.b, self.a
            weights, pixels = (a.scratch, b.scratch) if a.lies else (b.scratch, a.scratch)
            self.a = replace(a, width=self.block.register_rows, scratch=weights)
            self.b = replace(b, width=self.block.register_results, scratch=pixels)
        self.totals = self.sums
        places = places_of(self.kernel, self.image, self.block.lines)
        self.extents = self.image.extents(places)
        self.plane = math.prod(self.extents)
        self.width = results_of(self.kernel, self.image, self.block)
        self.phases = list(self.image.phases())
        self.turned_weights = memory_follows_steps(
            self.kernel, self.image, lambda name: self.refs[name].strides
        )

    def _scratch(self) -> tuple[tuple[DType, int], ...]:
        weights, pixels, sums = scratch_elements(self.kernel, self.image, self.block)
        packed = [] if self.a.lies else [(self._packed_dtype(self.a), weights)]
        return (
            *packed,
            (self._packed_dtype(self.b), pixels),
            (self.reduce.dtype, sums),
        )

    # -- pieces ----------------------------------------------------------------------------------

    def _pieces(self) -> tuple[list[ir.Stmt], int]:
        body, pieces = list[ir.Stmt](), 0
        images = self._size((*self.roles.batch, *self.image.others))
        rows = cuts(self._size(self.a.axes), self.block.rows)
        lines = cuts(self.kernel.sizes[self.image.windows[0].place], self.block.lines)
        for across, along in product(rows, lines):
            total = images * across.count * along.count
            body.append(self._piece_loop(across, along, pieces, total))
            pieces += total
        return body, pieces

    def _batch_axes(self) -> tuple[str, ...]:
        return (*self.roles.batch, *self.image.others)

    def _block(self, root: Scope, block: Block) -> None:
        channels = self._size(self.image.channels)
        for cut in first_apart(cuts(channels, self.block.channels)):
            scope = Scope(root, self._name("cb"), cut.count, SERIAL)
            start = axis(scope.var) * cut.extent + cut.start
            self._copy_image(scope, block, start, cut.extent)
            if not self.a.lies:
                self._pack_weights(scope, block, start, cut.extent)
            self._multiply_image(scope, block, cut, start)
            scope.close()
        self._finish_block(root, block)

    # -- the copy --------------------------------------------------------------------------------

    def _copy_image(self, root: Scope, block: Block, start: Expr, channels: int) -> None:
        """Every phase of every channel, line after line."""
        for number, phase in enumerate(self.phases):
            channel = Scope(root, self._name("c"), channels, SERIAL)
            channel.axes.update(self._unflatten(self.image.channels, start + axis(channel.var)))
            base = (axis(channel.var) * len(self.phases) + number) * self.plane
            scope = channel
            sizes = self._lines_of(phase, block)
            if sizes != self.extents:
                self._clear_run(channel, base, self.plane)
            for window, part, size, below in zip(
                self.image.windows[:-1], phase[:-1], sizes[:-1], self._below()[:-1], strict=True
            ):
                scope = Scope(scope, self._name("y"), size, SERIAL)
                first = block.column if window is self.image.windows[0] else constant(0)
                scope.axes[window.place] = axis(scope.var) + first
                scope.axes[window.tap] = constant(part.first)
                base = base + axis(scope.var) * below
            self._copy_line(scope, block, phase[-1], sizes[-1], base)
            close(scope, root)
        self._clear_run(root, constant(channels * len(self.phases) * self.plane), self.width)

    def _clear_run(self, root: Scope, first: Expr, size: int) -> None:
        """Zeros where nothing is copied to: results that are not used are made of it, and of what
        memory happens to hold a product may take a hundred times as long."""
        for cut in segments(size, AxisTiling(1, self.lanes)):
            loop = Scope(root, self._name("z"), cut.count * cut.unroll, SERIAL)
            kind = LANES if cut.lanes > 1 else UNROLLED
            inner = Scope(loop, self._name("zl"), cut.lanes, kind)
            place = first + axis(loop.var) * cut.lanes + axis(inner.var) + cut.start
            inner.body += [
                ir.Let("zero", self._packed_dtype(self.b), "const", value=0),
                ir.Store(self.b.scratch, place, "zero", ()),
            ]
            close(inner, root)

    def _lines_of(self, phase: Sequence[Phase], block: Block) -> list[int]:
        """How much of each axis of a plane a phase needs."""
        places = places_of(self.kernel, self.image, block.columns)
        return [
            count + (part.count - 1) * part.shift for count, part in zip(places, phase, strict=True)
        ]

    def _below(self) -> list[int]:
        """Elements from one place to the next, along each axis of a plane."""
        return [math.prod(self.extents[number + 1 :]) for number in range(len(self.extents))]

    def _copy_line(self, scope: Scope, block: Block, phase: Phase, size: int, base: Expr) -> None:
        """A line: what is beyond the image element by element, what is inside in vectors, of which
        the last may write again what the one before it wrote."""
        low, high = self._inside(phase, size)
        lanes = self.lanes
        while lanes > 1 and lanes > high - low:
            lanes //= 2
        for first, last in ((0, low), (high, size)) if lanes > 1 else ((0, size),):
            self._copy_run(scope, block, phase, base, first, last - first, 1)
        if lanes > 1:
            whole = (high - low) // lanes
            self._copy_run(scope, block, phase, base, low, whole, lanes)
            # Elements that two vectors write are the same ones: the last vector ends with the line,
            # and nothing is copied one by one.
            if (high - low) % lanes:
                self._copy_run(scope, block, phase, base, high - lanes, 1, lanes)

    def _copy_run(
        self, scope: Scope, block: Block, phase: Phase, base: Expr, first: int, count: int,
        lanes: int,
    ) -> None:  # fmt: skip
        if not count:
            return
        window = self.image.windows[-1]
        loop = Scope(scope, self._name("x"), count, SERIAL)
        inner = Scope(loop, self._name("xl"), lanes, LANES if lanes > 1 else UNROLLED)
        place = axis(loop.var) * lanes + axis(inner.var) + first
        start = block.column if len(self.image.windows) == 1 else constant(0)
        inner.axes[window.place] = place + start
        inner.axes[window.tap] = constant(phase.first)
        self._emit(self.b.value, inner)
        inner.body.append(ir.Store(self.b.scratch, base + place, self.b.value, ()))
        close(inner, scope)

    def _inside(self, phase: Phase, size: int) -> tuple[int, int]:
        """The part of a line in which no read is beyond the image on the left or on the right."""
        window = self.image.windows[-1]
        if len(self.image.windows) == 1 and self.kernel.sizes[window.place] != self.block.lines:
            return 0, 0
        own = {window.place, window.tap}
        guards = [g for g in self._guards() if own & axes_of(g.expr) and axes_of(g.expr) <= own]
        found = [
            place
            for place in range(size)
            if all(
                0 <= evaluate(g.expr, {window.place: place, window.tap: phase.first}) < g.size
                for g in guards
            )
        ]
        return (found[0], found[-1] + 1) if found else (0, 0)

    def _guards(self) -> Iterator[Guard]:
        stack = [self.b.value]
        while stack:
            let = self.lets[stack.pop()]
            if isinstance(let.expr, Read):
                yield from let.expr.guards
            stack += operands(let)

    def _load(self, let: Let, read: Read, scope: Scope) -> ir.Load:
        """Guards that hold wherever the loops lead are not asked."""
        load = super()._load(let, read, scope)
        ranges = {found.var: (0, found.count - 1) for found in scope.chain() if found.var}
        open_guards = tuple(
            guard
            for guard in load.guards
            if not (axes_of(guard.expr) <= ranges.keys() and always(guard, ranges))
        )
        return replace(load, guards=open_guards, fill=load.fill if open_guards else None)

    # -- the weights -----------------------------------------------------------------------------

    def _pack_weights(self, root: Scope, block: Block, start: Expr, channels: int) -> None:
        """All panels: the whole ones in a loop, then the last, filled up with zeros."""
        side = self.a
        whole, rest = divmod(block.rows, side.width)
        depth = channels * self._taps()
        if self.turned_weights:
            ordered = replace(side, summed=steps_of(self.image))
            self._pack_side(root, ordered, block.row, block.rows, start * self._taps(), depth)
            return
        if whole:
            panel = Scope(root, self._name("p"), whole, SERIAL)
            self._weights_of_panel(panel, block, axis(panel.var), side.width, start, channels)
            panel.close()
        if rest:
            self._weights_of_panel(root, block, constant(whole), rest, start, channels)
            self._zeros(root, side, rest, depth, whole)

    def _taps(self) -> int:
        return math.prod(window.taps for window in self.image.windows)

    def _weights_of_panel(
        self, root: Scope, block: Block, panel: Expr, width: int, start: Expr, channels: int
    ) -> None:
        base, before = panel * (channels * self._taps() * self.a.width), 0
        for phase in self.phases:
            taps = math.prod(part.count for part in phase)
            channel = Scope(root, self._name("c"), channels, SERIAL)
            channel.axes.update(self._unflatten(self.image.channels, start + axis(channel.var)))
            scope, step = self._tap_loops(channel, phase, axis(channel.var))
            address = base + (step + before) * self.a.width
            for cut in segments(width, AxisTiling(1, min(self.lanes, 8))):
                self._weights_of_step(scope, block, panel * self.a.width, cut, address)
            close(scope, root)
            before += channels * taps

    def _tap_loops(self, scope: Scope, phase: Sequence[Phase], step: Expr) -> tuple[Scope, Expr]:
        """Loops over the taps of a phase, and how many steps come before one of them."""
        for window, part in zip(self.image.windows, phase, strict=True):
            scope = Scope(scope, self._name("t"), part.count, SERIAL)
            scope.axes[window.tap] = axis(scope.var) * part.step + part.first
            step = step * part.count + axis(scope.var)
        return scope, step

    def _weights_of_step(
        self, scope: Scope, block: Block, first: Expr, cut: Segment, address: Expr
    ) -> None:
        each = Scope(scope, self._name("w"), cut.count * cut.unroll, UNROLLED)
        inner = Scope(each, self._name("wl"), cut.lanes, LANES if cut.lanes > 1 else UNROLLED)
        place = axis(each.var) * cut.lanes + axis(inner.var) + cut.start
        inner.axes.update(self._unflatten(self.a.axes, block.row + first + place))
        self._emit(self.a.value, inner)
        inner.body.append(ir.Store(self.a.scratch, address + place, self.a.value, ()))
        close(inner, scope)

    # -- the product -----------------------------------------------------------------------------

    def _multiply_image(self, root: Scope, block: Block, cut: Cut, start: Expr) -> None:
        """Every panel of weights with every tile of results."""
        tiles = -(-self._flat(block) // self.b.width)
        over_b = Scope(root, self._name("jp"), tiles, SERIAL)
        over_a = Scope(over_b, self._name("ip"), -(-block.rows // self.a.width), SERIAL)
        vectors = self.b.width // self.lanes
        u, v, lane = self._name("u"), self._name("v"), self._name("l")
        loops = ((u, self.a.width, UNROLLED), (v, vectors, UNROLLED), (lane, self.lanes, LANES))
        over_a.body.append(ir.Init("tile", self.reduce.dtype, "sum", loops))
        base = axis(over_a.var) * (cut.extent * self._taps() * self.a.width)
        before = 0
        for number, phase in enumerate(self.phases):
            channel = Scope(over_a, self._name("c"), cut.extent, SERIAL)
            scope, step = self._tap_loops(channel, phase, axis(channel.var))
            place = (axis(channel.var) * len(self.phases) + number) * self.plane
            place = place + axis(over_b.var) * self.b.width
            for loop, part, below in zip(
                scope.chain()[-len(phase) :], phase, self._below(), strict=True
            ):
                place = place + axis(loop.var) * (part.shift * below)
            weights = base + (step + before) * self.a.width
            if self.turned_weights:
                weights = base + self._flat_step(scope, axis(channel.var)) * self.a.width
            if self.a.lies:
                row = block.row + axis(over_a.var) * self.a.width
                weights = self._lying_weights(scope, row, start + axis(channel.var))
            self._image_step(scope, (u, v, lane), weights, place)
            close(scope, over_a)
            before += cut.extent * math.prod(part.count for part in phase)
        self._keep_tile(
            over_a, (u, v, lane), axis(over_a.var), axis(over_b.var), self.width, adds=cut.start > 0
        )
        close(over_a, root)

    def _flat_step(self, scope: Scope, channel: Expr) -> Expr:
        """Which of the steps of a block a tap of a channel is, taps inside channels."""
        taken = {tap: place for loop in scope.chain() for tap, place in loop.axes.items()}
        for window in self.image.windows:
            channel = channel * window.taps + taken[window.tap]
        return channel

    def _lying_weights(self, scope: Scope, row: Expr, channel: Expr) -> Expr:
        """Where the weights of a tap and a channel are, for the rows of a panel."""
        places = self._unflatten(self.image.channels, channel)
        for loop in scope.chain():
            places |= {tap: loop.axes[tap] for tap in self.a.summed if tap in loop.axes}
        flat = constant(0)
        for name in self.a.summed:
            flat = flat * self.kernel.sizes[name] + places[name]
        return row * self._size(self.a.summed) + flat * self.a.width

    def _flat(self, block: Block) -> int:
        """Flat results of a block."""
        return results_of(self.kernel, self.image, replace(self.block, lines=block.columns))

    def _image_step(
        self, deep: Scope, tile: tuple[str, str, str], weights: Expr, place: Expr
    ) -> None:
        """One tap of one channel: its weights times the image from where it shifts it to."""
        u, v, lane = tile
        vectors = self.b.width // self.lanes
        if self.a.lies:
            deep.body.append(ir.Prefetch(self.a.scratch, weights + FAR_AHEAD))
        deep.body.append(ir.LoadRun("a", u, self.a.width, self.a.scratch, weights))
        load = ir.Load("b", self.b.scratch, place + axis(v) * self.lanes + axis(lane))
        deep.body.append(repeat(v, vectors, UNROLLED, repeat(lane, self.lanes, LANES, load)))
        added = repeat(lane, self.lanes, LANES, *self._product(self.a))
        deep.body.append(repeat(u, self.a.width, UNROLLED, repeat(v, vectors, UNROLLED, added)))

    # -- the rest of the kernel ------------------------------------------------------------------

    def _finish_block(self, root: Scope, block: Block) -> None:
        """The sums are read back, and everything after them is computed: with lanes along lines, or
        across rows where results lie so. Wide vectors store every second element of a line."""
        along = self.image.windows[-1].place
        rows = self.a.axes[-1]
        steps = [
            self._step_of(output.tensor, output.index, along) for output in self.kernel.outputs
        ]
        near = {1, 2} if self.lanes >= MANY_LANES else {1}
        across = near.isdisjoint(steps) and self._size(self.a.axes) == self.kernel.sizes[rows]
        if across and block.rows >= self.lanes:
            self._finish_rows(root, block)
        else:
            self._finish_lines(root, block)

    def _step_of(self, tensor: str, index: Sequence[Expr], name: str) -> int:
        return coefficient(linear(index, self.refs[tensor].strides), name)

    def _places(self, root: Scope, block: Block, windows: int) -> tuple[Scope, Expr]:
        """Loops over the places of the outer windows, and where their line of sums begins."""
        scope, flat = root, constant(0)
        sizes = places_of(self.kernel, self.image, block.columns)
        parts = zip(self.image.windows, sizes, self._below(), strict=True)
        for number, (window, size, below) in enumerate(parts):
            if number == windows:
                break
            scope = Scope(scope, self._name("y"), size, SERIAL)
            first = block.column if number == 0 else constant(0)
            scope.axes[window.place] = axis(scope.var) + first
            flat = flat + axis(scope.var) * below
        return scope, flat

    def _finish_lines(self, root: Scope, block: Block) -> None:
        over = Scope(root, self._name("i"), block.rows, SERIAL)
        over.axes.update(self._unflatten(self.a.axes, block.row + axis(over.var)))
        count = len(self.image.windows)
        scope, flat = self._places(over, block, count - 1)
        flat = flat + axis(over.var) * self.width
        size = places_of(self.kernel, self.image, block.columns)[-1]
        start = block.column if count == 1 else constant(0)
        for cut in halves(size, self.lanes):
            inner, place = self._lanes_loop(scope, cut)
            inner.axes[self.image.windows[-1].place] = place + start
            self._finish(inner, flat + place)
            close(inner, scope)
        close(scope, root)

    def _finish_rows(self, root: Scope, block: Block) -> None:
        scope, flat = self._places(root, block, len(self.image.windows))
        for cut in halves(block.rows, self.lanes):
            inner, place = self._lanes_loop(scope, cut)
            inner.axes.update(self._unflatten(self.a.axes, block.row + place))
            self._finish(inner, flat + place * self.width)
            close(inner, scope)
        close(scope, root)

    def _lanes_loop(self, scope: Scope, cut: Segment) -> tuple[Scope, Expr]:
        loop = Scope(scope, self._name("j"), cut.count, SERIAL)
        inner = Scope(loop, self._name("jl"), cut.lanes, LANES if cut.lanes > 1 else UNROLLED)
        return inner, axis(loop.var) * cut.lanes + axis(inner.var) + cut.start

    def _finish(self, inner: Scope, address: Expr) -> None:
        inner.body.append(ir.Load(self.reduce.name, self.sums, address))
        inner.names.add(self.reduce.name)
        self._store(self.kernel.outputs, inner)
