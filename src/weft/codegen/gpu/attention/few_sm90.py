"""The SM90 attention of few queries over many keys (decoding), which is bound by memory bandwidth.

    producer    one thread loads the rows, and tiles of keys and values through a ring
    warps       16 rows and some keys of every tile each:   S = Q K'
                                                            P = 2^(S - top)
                                                            O += P V
    joined      the sums of all warps, then those of all parts, each times 2^(its top - the top)

Products are those of single warps, whose instructions have 16 rows: most are padding, and still ten
times faster than the keys come. Every warp has a greatest score and sums of its own, so that none
waits for another before the end. A block that is done puts its sums into the workspace and counts;
the one that is last joins those of all parts, in their order: the same bits in every run.

Who may touch what: of a slot of the ring, the producer between `empty` and its copies, a warp
between `k_full`, or `v_full`, and its arrival on `empty`. Sums take the place of the ring after the
first meeting, at which all warps have read the last tile, and are read after the second.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.attention.few_layout import ROWS, VECTOR, FewLayout
from weft.codegen.gpu.attention.few_pages import PageTable
from weft.codegen.gpu.attention.few_results import FewResults, Vector
from weft.codegen.gpu.attention.masks import visible
from weft.codegen.gpu.attention.queries import STEP, constant, once_per_warp
from weft.codegen.gpu.attention.softmax import Softmax
from weft.codegen.gpu.body.quads import BOTH_ROWS, compute, over_quad
from weft.codegen.gpu.ir.element_ops import ElementOp
from weft.codegen.gpu.ir.scalar import (
    BLOCK,
    LANE,
    THREAD,
    WARP,
    Lit,
    Name,
    Scalar,
    least,
    most,
    wide,
)
from weft.codegen.gpu.ir.swizzle import TileLayout
from weft.codegen.gpu.ir.values import Assign, Compute, IndexValue, PlaceOf, Variable
from weft.codegen.gpu.products.operand import Operand
from weft.codegen.gpu.products.ring import Ring
from weft.codegen.gpu.products.tile_place import offset, present
from weft.foundation.dtypes import F32, I1, SI32, SI64
from weft.region.forms.bands import Band

Body = tuple[ir.Stmt, ...]
_MEETING: Final = Lit(1)
_GROUP: Final = Name("row_group")
_SHARE: Final = Name("key_share")
TILE: Final = Name("key_tile")
_PART: Final = Name("part")
_MATRIX: Final = Name("matrix")
_SEEN: Final = Name("seen")
_END: Final = "seen_keys"
_AT_ONCE: Final = 8
"""Parts whose sums are asked for at once."""


class _Rows(Softmax):
    """The softmax of one warp's rows and keys."""

    def fragment(self, column: Scalar, columns: int, count: int) -> ir.Fragment:
        row, across = _GROUP * ROWS + (LANE >> 2), column + (LANE & 3) * 2
        return ir.Fragment(columns // 8, row, across, self.problem.queries, count)

    def tile_logits(self, column: Scalar, count: int) -> Iterator[ir.Stmt]:
        """What the program of a score makes of the scores of some keys, and -inf where one is
        hidden."""
        program, layout = self.problem.score, self.layout
        more: list[ir.ElementSource] = []
        ops, result = list(program.ops), program.result
        if layout.band != Band() or layout.columns % layout.tile_columns:
            more, hidden = visible(layout, result)
            ops, result = ops + hidden, hidden[-1].name
        if self.problem.ends:
            more = [source for source in more if source.name != "key"]
            more.append(ir.IndexElements("key", SI32, Lit(0), 0, 1))
            more.append(ir.RowValues("end", SI32, (_END, _END)))
            ops.append(ElementOp("before_end", I1, "lt", ("key", "end")))
            ops.append(ElementOp("behind", F32, "const", (), -math.inf))
            ops.append(ElementOp("before", F32, "select", ("before_end", result, "behind")))
            result = "before"
        if ops:
            yield ir.Epilogue(
                acc=ir.RegAt("scores"),
                fragment=self.fragment(column, count, self.problem.keys),
                value=program.value,
                sources=(*map(self.source, program.sources), *more),
                ops=tuple(ops),
                result=result,
                out=ir.RegAt("scores"),
                out_dtype=F32,
            )


@dataclass
class FewBuilder:
    """Makes the statements of one kernel."""

    layout: FewLayout
    name: str

    def __post_init__(self) -> None:
        self.problem, self.plan = self.layout.problem, self.layout.plan
        problem = self.problem
        sources = (*problem.score.sources, *problem.mixed.sources)
        tensors = [problem.q.tensor, problem.k.tensor, problem.v.tensor]
        tensors += [source.tensor for source in sources if source.tensor is not None]
        tensors += [problem.pages.tensor] if problem.pages else []
        tensors += [end.tensor for end in problem.ends]
        tensors += [problem.out_tensor, *(row.tensor for row in problem.rows)]
        self.buffers = list(dict.fromkeys(tensors))
        self.ring = Ring(self.plan.stages)
        self.softmax = _Rows(self.layout, self.buffers)
        self.results = FewResults(self.layout, self.buffers)
        self.table = PageTable(self.layout, self.buffers)

    def kernel(self) -> ir.Kernel:
        layout = self.layout
        return ir.Kernel(
            name=self.name,
            grid=layout.grid,
            threads=layout.threads,
            buffers=tuple(self.buffers),
            maps=tuple(self.maps()),
            tiles=tuple(self.tiles()),
            barriers=tuple(self.barriers()),
            tables=(),
            body=self.body(),
            resident=layout.resident,
            workspace=self.workspace,
        )

    # Storage

    def maps(self) -> Iterator[ir.TensorMap]:
        problem, layout = self.problem, self.layout
        yield self.map("q", problem.q, layout.q, (problem.depth, problem.queries))
        pages, box = problem.pages, layout.box_keys
        keys = pages.size if pages else problem.keys
        outer = [*zip(pages.counts, pages.steps, strict=True)] if pages else [None, None]
        k, v = (replace(tile, rows=box) for tile in (layout.k, layout.v))
        yield self.map("k", problem.k, k, (problem.depth, keys), outer[0])
        yield self.map("v", problem.v, v, (problem.width, keys), outer[1])

    def map(
        self,
        name: str,
        operand: Operand,
        tile: TileLayout,
        sizes: tuple[int, int],
        pages: tuple[int, int] | None = None,
    ) -> ir.TensorMap:
        """A panel of a tile at a time, or of a page."""
        axes = [(n, s) for n, s in zip(self.problem.batch, operand.batch, strict=True) if s]
        axes = [pages, *axes] if pages else axes
        # A single row has no stride; the copy engine wants a regular one all the same.
        pitch = operand.outer or -(-sizes[0] // 8) * 8
        width = tile.panel_columns
        if name != "q" and self.layout.in_rows(name):
            extents = [(tile.panels, width, tile.panels), (sizes[1], pitch, tile.rows)]
        else:
            width, extents = sizes[0], [(sizes[1], pitch, tile.rows)]
        extents += [(size, stride, 1) for size, stride in axes]
        counts, strides, box = zip(*extents, strict=True)
        return ir.TensorMap(
            name,
            self.buffers.index(operand.tensor),
            operand.dtype,
            operand.offset,
            (width, *counts),
            strides,
            (tile.panel_columns, *box),
            tile.swizzle,
        )

    def tiles(self) -> Iterator[ir.SharedTile]:
        layout, ring = self.layout, self.plan.stages * self.layout.slot_bytes
        yield ir.SharedTile("q", 0, layout.q.bytes, layout.q)
        yield ir.SharedTile("ring", layout.ring_offset, ring, layout.k)
        yield ir.SharedTile("numbers", layout.numbers_offset, layout.numbers_bytes)
        size = layout.joiners * VECTOR * 4
        yield ir.SharedTile("vectors", layout.vectors_offset, size)

    def barriers(self) -> Iterator[ir.Barriers]:
        start, stages = self.layout.barriers_offset, self.plan.stages
        arrays = [("q_full", 1, 1), ("k_full", stages, 1), ("v_full", stages, 1)]
        for name, count, arrivals in (*arrays, ("empty", stages, self.layout.warps)):
            yield ir.Barriers(name, start, count, arrivals)
            start += 8 * count

    @property
    def workspace(self) -> ir.Workspace | None:
        """Of every part of a matrix, what each thread has joined."""
        if self.plan.parts == 1:
            return None
        matrices = self.layout.matrices
        return ir.Workspace(matrices, matrices * self.plan.parts * self.words)

    @property
    def words(self) -> int:
        """Of one part."""
        return self.layout.turns * self.layout.joiners * 2 * VECTOR

    # Roles

    def body(self) -> Body:
        prepare: list[ir.Stmt] = [ir.MbarrierInit(array.name) for array in self.barriers()]
        prepare.append(ir.MbarrierInitFence())
        prepare += [ir.PrefetchMap(found.name) for found in self.maps()]
        warps = self.layout.warps
        roles = (
            ir.Role("consumer", 0, warps, (*self.located(), *self.consumer())),
            ir.Role("producer", warps, 1, (*self.located(), *self.producer())),
        )
        return (ir.If(THREAD.equals(0), tuple(prepare)), ir.SyncThreads(), ir.Roles(roles))

    def located(self) -> Iterator[ir.Stmt]:
        """Which keys of which matrix the block has."""
        layout, parts = self.layout, self.plan.parts
        yield ir.Let(_MATRIX.name, BLOCK // parts)
        yield ir.Let(_PART.name, BLOCK % parts)
        rest: Scalar = _MATRIX
        batch = self.problem.batch
        for axis in reversed(range(len(batch))):
            yield ir.Let(f"batch{axis}", rest % batch[axis] if axis else rest)
            rest = rest // batch[axis]
        yield from self.ends()
        for name, ahead in (("first", 0), ("last", 1)):
            # Neighbouring parts share an end, so that each tile is in one of them; they differ by
            # one tile at most.
            tiles = (_PART + ahead) * self.tile_count // parts
            yield ir.Let(name, tiles + layout.first_tile)

    def ends(self) -> Iterator[ir.Stmt]:
        """How many keys are seen, where numbers of the run say so."""
        keys = self.problem.keys
        seen: Scalar = Lit(keys)
        for number, end in enumerate(self.problem.ends):
            name, place = f"end{number}", offset(end.strides, Lit(0), Lit(0), self.softmax.batch)
            buffer = self.buffers.index(end.tensor)
            yield ir.LoadElement(f"{name}_read", buffer, end.dtype, place, Lit(1))
            yield Compute(ElementOp(f"{name}_wide", SI64, "cast", (f"{name}_read",)))
            # Held to the keys that there are, before anything is added.
            yield constant(f"{name}_most", SI64, keys)
            args = (f"{name}_wide", f"{name}_most")
            yield Compute(ElementOp(f"{name}_held", SI64, "min", args))
            yield constant(f"{name}_more", SI64, int(end.inclusive))
            yield Compute(ElementOp(f"{name}_all", SI64, "add", (f"{name}_held", f"{name}_more")))
            yield PlaceOf(name, f"{name}_all", keys + 1)
            seen = least(seen, Name(name))
        if self.problem.ends:
            yield ir.Let(_SEEN.name, seen)

    @property
    def tile_count(self) -> Scalar:
        """Tiles of keys that are seen, of all parts."""
        layout, size = self.layout, self.plan.tile_kv
        if not self.problem.ends:
            return Lit(layout.tile_count)
        tiles = (_SEEN + (size - 1)) // size
        return most(least(tiles - layout.first_tile, layout.tile_count), 0)

    # The producer

    def producer(self) -> Iterator[ir.Stmt]:
        problem, layout = self.problem, self.layout
        full = ir.BarrierAt("q_full", Lit(0))
        start: list[ir.Stmt] = [ir.MbarrierExpectTx(full, layout.q.bytes)]
        batch = present(self.softmax.batch, problem.q.batch)
        target = ir.Address("q", Lit(0))
        start += self.loads("q", target, layout.q, layout.q.rows, (Lit(0), *batch), full)
        slot = self.ring.slot
        step: list[ir.Stmt] = [*self.table.ahead(TILE)]
        step.append(ir.MbarrierWait(ir.BarrierAt("empty", slot), self.ring.phase ^ 1))
        for name, operand, tile, place in (
            ("k", problem.k, layout.k, self.keys_at),
            ("v", problem.v, layout.v, self.values_at),
        ):
            full = ir.BarrierAt(f"{name}_full", slot)
            step.append(ir.MbarrierExpectTx(full, tile.bytes))
            batch = present(self.softmax.batch, operand.batch)
            for box in range(self.plan.tile_kv // layout.box_keys):
                row_bytes = tile.swizzle.span * (tile.panels if layout.in_rows(name) else 1)
                first = ir.Address("ring", place + box * layout.box_keys * row_bytes)
                coords = (*self.table.rows(name, TILE, box), *batch)
                step += self.loads(name, first, tile, tile.rows, coords, full)
        step += [*self.table.next(), *self.ring.advance()]
        tiles = ir.For(TILE.name, Name("first"), Name("last"), 1, tuple(step))
        yield ir.If(LANE.equals(0), (*self.ring.start(), *start, *self.table.start(), tiles))

    def loads(
        self,
        name: str,
        target: ir.Address,
        tile: TileLayout,
        rows: int,
        coords: tuple[Scalar, ...],
        full: ir.BarrierAt,
    ) -> Iterator[ir.Stmt]:
        """All panels of a box, whose panels lie `rows` rows apart, or side by side."""
        if name != "q" and self.layout.in_rows(name):
            yield ir.TmaLoad(target, name, (Lit(0), Lit(0), *coords), full)
            return
        for panel in range(tile.panels):
            place = ir.Address(target.tile, target.offset + panel * rows * tile.swizzle.span)
            yield ir.TmaLoad(place, name, (Lit(panel * tile.panel_columns), *coords), full)

    def at(self, name: str, tile: TileLayout, row: Scalar, column: Scalar, first: int) -> Scalar:
        """Where an element lies whose column is less than 16 behind a `first` one, a multiple of
        16."""
        panel, inside = divmod(first, tile.panel_columns)
        one = replace(tile, columns=tile.panel_columns)
        across = column - first + inside
        if name != "q" and self.layout.in_rows(name):
            return one.of(row * tile.panels + panel, across)
        return one.of(row, across) + panel * tile.panel_bytes

    @property
    def keys_at(self) -> Scalar:
        """Where the keys of a slot begin in the ring."""
        return self.ring.slot * self.layout.slot_bytes

    @property
    def values_at(self) -> Scalar:
        return self.keys_at + (self.layout.slot_bytes - self.layout.v.bytes)

    # Warps that multiply

    def consumer(self) -> Iterator[ir.Stmt]:
        layout = self.layout
        yield ir.Let(_GROUP.name, WARP // layout.key_warps)
        yield ir.Let(_SHARE.name, WARP % layout.key_warps)
        yield from self.ring.start()
        yield from (constant("zero", F32, 0.0), constant("lowest", F32, -math.inf))
        yield from (constant("one", F32, 1.0), constant("rate", F32, self.softmax.rate))
        if self.problem.ends:
            yield IndexValue(_END, SI32, _SEEN)
        held = layout.depth // STEP if layout.holds_queries else 1
        yield ir.Registers("queries", ir.RegisterKind.B32, 4 * held)
        yield ir.Registers("mixed", ir.RegisterKind.F32, layout.width // 2, zero=True)
        for half in BOTH_ROWS:
            yield Variable(f"top{half}", F32, -math.inf)
            yield Variable(f"total{half}", F32, 0.0)
        yield from self.await_queries()
        if layout.holds_queries:
            for depth in range(0, layout.depth, STEP):
                yield self.load_queries(depth, depth // 4)
        step = (*self.scores(), *self.weights(), *self.mixes(), *self.ring.advance())
        yield ir.For(TILE.name, Name("first"), Name("last"), 1, step)
        yield from self.put_sums()
        yield from self.join()

    def load_queries(self, depth: int, place: int) -> ir.Stmt:
        """Some elements of a warp's queries, into registers from a place on."""
        row, column = _GROUP * ROWS + (LANE & 15), (LANE >> 4) * 8 + depth
        source = ir.Address("q", self.at("q", self.layout.q, row, column, depth))
        return ir.LdMatrix(ir.RegAt("queries", place), source, transposed=False)

    def scores(self) -> Iterator[ir.Stmt]:
        layout, dtype = self.layout, self.problem.q.dtype
        yield ir.Registers("scores", ir.RegisterKind.F32, layout.warp_keys // 2, zero=True)
        yield ir.Registers("weights", ir.RegisterKind.B32, layout.warp_keys // 4)
        yield ir.Registers("key_part", ir.RegisterKind.B32, 4)
        yield from self.await_keys()
        for depth in range(0, layout.depth, STEP):
            rows = ir.RegAt("queries", depth // 4 if layout.holds_queries else 0)
            if not layout.holds_queries:
                yield self.load_queries(depth, 0)
            for key in range(0, layout.warp_keys, STEP):
                row = _SHARE * layout.warp_keys + key + (LANE & 7) + (LANE >> 4) * 8
                place = self.at("k", layout.k, row, ((LANE >> 3) & 1) * 8 + depth, depth)
                source = ir.Address("ring", self.keys_at + place)
                yield ir.LdMatrix(ir.RegAt("key_part"), source, transposed=False)
                for half in (0, 1):
                    acc = ir.RegAt("scores", key // 2 + 4 * half)
                    keys = ir.RegAt("key_part", 2 * half)
                    yield ir.MmaSync(acc, rows, keys, dtype, dtype)

    def weights(self) -> Iterator[ir.Stmt]:
        keys = self.layout.warp_keys
        column = TILE * self.plan.tile_kv + _SHARE * keys
        yield from self.softmax.tile_logits(column, keys)
        yield from self.softmax.powers("")
        yield ir.RowScale("mixed", ("factor0", "factor1"))
        fragment, dtype = self.softmax.fragment(Lit(0), keys, keys), self.problem.v.dtype
        given = (ir.RegAt("scores"), fragment, "weight", (), (), "weight", ir.RegAt("weights"))
        yield ir.Epilogue(*given, dtype)

    def mixes(self) -> Iterator[ir.Stmt]:
        layout, dtype = self.layout, self.problem.v.dtype
        yield ir.Registers("value_part", ir.RegisterKind.B32, 4)
        yield from self.await_values()
        for key in range(0, layout.warp_keys, STEP):
            for column in range(0, layout.width, STEP):
                row = _SHARE * layout.warp_keys + key + (LANE & 15)
                place = self.at("v", layout.v, row, (LANE >> 4) * 8 + column, column)
                source = ir.Address("ring", self.values_at + place)
                yield ir.LdMatrix(ir.RegAt("value_part"), source, transposed=True)
                for half in (0, 1):
                    acc = ir.RegAt("mixed", column // 2 + 4 * half)
                    weights, values = (
                        ir.RegAt("weights", key // 4),
                        ir.RegAt("value_part", 2 * half),
                    )
                    yield ir.MmaSync(acc, weights, values, dtype, dtype)
        yield from self.release()

    # Who waits for what

    def await_queries(self) -> Iterator[ir.Stmt]:
        yield ir.MbarrierWait(ir.BarrierAt("q_full", Lit(0)), Lit(0))

    def await_keys(self) -> Iterator[ir.Stmt]:
        yield ir.MbarrierWait(ir.BarrierAt("k_full", self.ring.slot), self.ring.phase)

    def await_values(self) -> Iterator[ir.Stmt]:
        yield ir.MbarrierWait(ir.BarrierAt("v_full", self.ring.slot), self.ring.phase)

    def release(self) -> Iterator[ir.Stmt]:
        """Hand a slot back that was read."""
        yield ir.SyncWarp()
        yield once_per_warp(ir.MbarrierArrive(ir.BarrierAt("empty", self.ring.slot)))

    # Sums

    def put_sums(self) -> Iterator[ir.Stmt]:
        """The sums of a warp, the greatest score and the sum of weights of each of its rows."""
        layout, rows = self.layout, self.problem.queries
        for half in BOTH_ROWS:
            yield from over_quad(f"total{half}", "add")
        meet = ir.NamedBarrier(_MEETING, layout.joiners)
        yield meet
        for half in BOTH_ROWS:
            row = _GROUP * ROWS + (LANE >> 2) + 8 * half
            place = _SHARE * rows + row
            body: list[ir.Stmt] = []
            for group in range(layout.width // 8):
                column = (LANE & 3) * 2 + 8 * group
                target = ir.Address("ring", place * layout.pitch + column * 4)
                body.append(ir.StSharedVec(target, ir.RegAt("mixed", 4 * group + 2 * half), 2))
            numbers = [
                ir.StShared(ir.Address("numbers", place * 8 + 4 * number), name, F32)
                for number, name in enumerate((f"top{half}", f"total{half}_all"))
            ]
            body.append(ir.If((LANE & 3).equals(0), tuple(numbers)))
            yield ir.If(row < rows, tuple(body))
        yield meet

    def join(self) -> Iterator[ir.Stmt]:
        """Every thread joins what all warps have of its vectors; the last block, what all parts
        have."""
        layout, parts = self.layout, self.plan.parts
        vectors = [*self.vectors()]
        for vector in vectors:
            yield from vector.located
            yield from self.from_warps(vector)
        if parts == 1:
            for vector in vectors:
                yield from self.results.stored(vector)
            return
        place = wide(BLOCK) * self.words
        for vector in vectors:
            yield from self.keep(vector, place)
        member, threads = THREAD, layout.joiners
        yield ir.CountOff("done", _MATRIX, Lit(parts - 1), member, _MEETING, threads)
        body: list[ir.Stmt] = []
        for vector in vectors:
            whole = replace(vector, suffix=f"{vector.suffix}_whole")
            body += [*self.from_parts(whole), *self.results.stored(whole)]
        yield ir.If(Name("done"), tuple(body))

    def vectors(self) -> Iterator[Vector]:
        layout = self.layout
        in_row = layout.width // VECTOR
        for turn in range(layout.turns):
            number, name = THREAD + turn * layout.joiners, f"vector{turn}"
            located = (
                ir.Let(name, least(number, layout.vectors - 1)),
                ir.Let(f"{name}_row", Name(name) // in_row),
                ir.Let(f"{name}_column", Name(name) % in_row * VECTOR),
            )
            inside = (
                Lit(1)
                if (turn + 1) * layout.joiners <= layout.vectors
                else (number < layout.vectors)
            )
            row, column = Name(f"{name}_row"), Name(f"{name}_column")
            yield Vector(turn, row, column, inside, located, f"_{turn}")

    def from_warps(self, vector: Vector) -> Iterator[ir.Stmt]:
        layout, rows = self.layout, self.problem.queries
        yield from self.start(vector)
        for share in range(layout.key_warps):
            place = vector.row + share * rows
            names = [f"{name}{vector.suffix}_{share}" for name in ("warp_top", "warp_total")]
            for number, name in enumerate(names):
                source = ir.Address("numbers", place * 8 + 4 * number)
                yield ir.LoadShared(name, F32, source)
            array = f"warp_sums{vector.suffix}_{share}"
            yield ir.Registers(array, ir.RegisterKind.F32, VECTOR)
            for number in range(VECTOR):
                start = place * layout.pitch + (vector.column + number) * 4
                yield ir.LdRegister(ir.RegAt(array, number), ir.Address("ring", start), F32)
            yield from self.add(vector, (names[0], names[1]), array, f"{vector.suffix}_{share}")

    def start(self, vector: Vector) -> Iterator[ir.Stmt]:
        yield ir.Registers(vector.sums, ir.RegisterKind.F32, VECTOR, zero=True)
        yield Variable(vector.top, F32, -math.inf)
        yield Variable(vector.total, F32, 0.0)

    def add(
        self, vector: Vector, numbers: tuple[str, str], array: str, suffix: str
    ) -> Iterator[ir.Stmt]:
        """Sums of other keys, with their greatest score and their sum of weights. While a row has
        seen no key its sums are shifted by nothing: -inf minus -inf would be NaN."""
        top, total = numbers
        # Both sides are brought to the greater score. Of a warp, or a part, that saw no key the
        # factor is 2^-inf = 0, and of two such both are 2^-inf of sums that are 0.
        new, shift, blind = (f"{name}{suffix}" for name in ("join_top", "join_shift", "join_blind"))
        yield compute(new, "max", vector.top, top)
        yield Compute(ElementOp(blind, I1, "eq", (new, "lowest")))
        chosen = (blind, "zero", new)
        yield Compute(ElementOp(shift, F32, "select", chosen))
        shares = []
        for name, value, sums in (("old", vector.total, vector.top), ("more", total, top)):
            scaled, fall = f"{name}_scaled{suffix}", f"{name}_fall{suffix}"
            yield compute(fall, "sub", sums, shift)
            yield compute(scaled, "mul", fall, "rate")
            factor = ElementOp(f"{name}_factor{suffix}", F32, "exp2", (scaled,), loose=True)
            yield Compute(factor)
            yield compute(f"{name}_share{suffix}", "mul", value, factor.name)
            shares.append(f"{name}_share{suffix}")
            scaled_array = vector.sums if name == "old" else array
            yield ir.RowScale(scaled_array, (factor.name, factor.name))
        yield ir.AddRegisters(vector.sums, array)
        yield compute(f"join_total{suffix}", "add", *shares)
        yield Assign(vector.total, f"join_total{suffix}", Lit(1))
        yield Assign(vector.top, new, Lit(1))

    # Parts

    def keep(self, vector: Vector, place: Scalar) -> Iterator[ir.Stmt]:
        """Sums into the workspace, and their numbers: those of the upper row are the greatest
        score, those of the lower one the sum of weights."""
        array = f"kept{vector.suffix}"
        yield ir.Registers(array, ir.RegisterKind.F32, VECTOR, zero=True)
        # Only whole arrays go to the workspace: the two numbers are spread over one, and the
        # greatest of each row of it is the number again.
        fragment = ir.Fragment(1, Lit(0), Lit(0), ROWS, 8)
        source = ir.RowValues("number", F32, (vector.top, vector.total))
        at = ir.RegAt(array)
        yield ir.Epilogue(at, fragment, "ignored", (source,), (), "number", at, F32)
        for number, name in enumerate((vector.sums, array)):
            start = place + self.line(vector, number)
            yield ir.KeepSums(name, start, THREAD, self.layout.joiners)

    def line(self, vector: Vector, number: int) -> int:
        """Where, of the words of a part, the sums or the numbers of a vector begin."""
        return (2 * vector.turn + number) * VECTOR * self.layout.joiners

    def from_parts(self, vector: Vector) -> Iterator[ir.Stmt]:
        yield from self.start(vector)
        part, threads = Name(f"other{vector.suffix}"), self.layout.joiners
        place = (wide(_MATRIX) * self.plan.parts + part) * self.words
        arrays = [f"{name}{vector.suffix}" for name in ("part_sums", "part_numbers")]
        body: list[ir.Stmt] = []
        for number, array in enumerate(arrays):
            body.append(ir.Registers(array, ir.RegisterKind.F32, VECTOR))
            start = place + self.line(vector, number)
            body.append(ir.GatherSums(array, start, 0, 1, THREAD, threads))
        names = (f"part_top{vector.suffix}", f"part_total{vector.suffix}")
        body.append(ir.RowMax(names, arrays[1]))
        body += self.add(vector, names, arrays[0], vector.suffix)
        times = min(_AT_ONCE, self.plan.parts)
        yield ir.For(part.name, 0, self.plan.parts, 1, tuple(body), times=times)
