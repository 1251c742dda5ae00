"""The SM80 attention: cp.async, `ldmatrix`, `mma.sync`; one tile of queries per block.

    queries, and the first blocks of keys and values, are asked for
    for each block of keys:  wait for the keys, meet;    ask for values further on
                             S = Q K',  P = 2^(S - top)
                             wait for the values, meet;  ask for keys further on
                             O += P V
    O divided by its sums, stored from registers

A warp has one or two bands of 16 queries, all of them with every block of keys: nobody else has
their scores, greatest scores and sums. Blocks of keys come from the first one up; those of which
some keys are hidden (the edges of a band, keys that are not there) have loops of their own.

Who may touch a slot: keys and values take turns, each block closing one group of copies. After the
meeting for keys all warps have mixed the values of the block before, and a copy may take their
slot; after the meeting for values all have multiplied the keys of this block, whose slot is next.
So waiting for all but the last `stages - 2` groups is waiting for the block's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.attention.filling import Filling, element_at
from weft.codegen.gpu.attention.hulls import bounds
from weft.codegen.gpu.attention.queries import (
    STEP,
    Queries,
    bit_registers,
    constant,
    states_read,
)
from weft.codegen.gpu.attention.results import Results
from weft.codegen.gpu.attention.sm80_layout import BAND, Sm80Layout
from weft.codegen.gpu.attention.softmax import Softmax
from weft.codegen.gpu.attention.work import TILE, range_length
from weft.codegen.gpu.body.quads import BOTH_ROWS
from weft.codegen.gpu.ir.scalar import (
    BLOCK,
    LANE,
    WARP,
    Lit,
    Name,
    Scalar,
)
from weft.codegen.gpu.ir.values import Variable
from weft.foundation.dtypes import F32
from weft.foundation.records import dataclass

_AT: Final = Name("key_block")
_SLOT: Final = Name("slot")


@dataclass(frozen=True)
class _Band(Queries):
    """16 queries of a warp, by their number."""

    band: int = 0

    @property
    def stem(self) -> str:
        return f"_{self.band}" if self.band else ""

    @property
    def warp_query(self) -> Scalar:
        return TILE * self.plan.tile_q + self.warp_row

    @property
    def warp_row(self) -> Scalar:
        """The first one, in the tile."""
        bands = self.plan.tile_q // (BAND * self.plan.consumers)
        return WARP * (BAND * bands) + BAND * self.band


class _BandSoftmax(_Band, Softmax):
    """The softmax of a band."""


class _BandResults(_Band, Results):
    """What is stored of a band."""

    def store(self, fragment: ir.Fragment) -> Iterator[ir.Stmt]:
        yield self.store_by_threads(fragment)


@dataclass
class Sm80Builder:
    """Makes the statements of one kernel."""

    layout: Sm80Layout
    name: str

    def __post_init__(self) -> None:
        self.problem, self.plan = self.layout.problem, self.layout.plan
        self.buffers = self.problem.tensors
        bands = range(self.layout.bands)
        self.bands = [_BandSoftmax(self.layout, self.buffers, band) for band in bands]
        self.results = [_BandResults(self.layout, self.buffers, band) for band in bands]
        self.batch = self.bands[0].batch
        self.filling = Filling(self.layout.threads, self.buffers, self.batch)

    def kernel(self) -> ir.Kernel:
        layout, slots = self.layout, self.layout.slots
        return ir.Kernel(
            name=self.name,
            grid=layout.grid,
            threads=layout.threads,
            buffers=tuple(self.buffers),
            maps=(),
            tiles=(
                ir.SharedTile("q", 0, layout.q.bytes, layout.q),
                ir.SharedTile("k", layout.k_offset, slots * layout.k_bytes, layout.k),
                ir.SharedTile("v", layout.v_offset, slots * layout.v_bytes, layout.v),
            ),
            barriers=(),
            tables=(),
            body=tuple(self.body()),
            resident=layout.resident,
        )

    def body(self) -> Iterator[ir.Stmt]:
        layout, problem = self.layout, self.problem
        yield ir.Let("item", BLOCK)
        found = bounds(layout, self.buffers, self.batch, whole=True)
        yield from layout.located(problem.batch, tuple(found))
        yield from self.first_copies()
        yield from states_read(problem.states, self.buffers)
        yield from (constant("zero", F32, 0.0), constant("lowest", F32, -math.inf))
        yield from (constant("one", F32, 1.0), constant("rate", F32, self.bands[0].rate))
        yield from self.registers()
        if layout.slots > 1:
            yield ir.Let(_SLOT.name, Lit(0))
        if layout.holds_queries:
            yield from self.meet()
            for depth in range(0, layout.depth, STEP):
                yield from self.load_queries(depth)
        for number, (start, end, masked) in enumerate(layout.steps_of_tile().ranges):
            if layout.at_most(partial(range_length, number=number)) > 0:
                yield ir.For(_AT.name, start, end, 1, tuple(self.step(masked=masked)))
        for result in self.results:
            yield from result.stored()

    def registers(self) -> Iterator[ir.Stmt]:
        layout = self.layout
        held = layout.depth // STEP if layout.holds_queries else 1
        for band in self.bands:
            yield ir.Registers(f"queries{band.stem}", ir.RegisterKind.B32, 4 * held)
            yield ir.Registers(
                f"mixed{band.stem}", ir.RegisterKind.F32, layout.width // 2, zero=True
            )
            for row in BOTH_ROWS:
                yield Variable(f"top{row}{band.stem}", F32, -math.inf)
                yield Variable(f"total{row}{band.stem}", F32, 0.0)

    def step(self, *, masked: bool) -> Iterator[ir.Stmt]:
        """One block of keys."""
        slots = self.layout.slots
        yield from self.meet()
        behind = (_SLOT + (slots - 1)) % slots if slots > 1 else Lit(0)
        yield from self.copy("v", _AT + (slots - 1), behind, sure=slots == 1)
        yield from self.score_products()
        for band in self.bands:
            yield from bit_registers(band.chances, self.plan.tile_kv, band.stem)
            yield from band.draw(_AT)
            yield from band.logits(_AT, masked=masked)
            yield from band.powers("")
            factors = tuple(f"factor{row}{band.stem}" for row in BOTH_ROWS)
            yield ir.RowScale(f"mixed{band.stem}", factors)
            yield ir.Registers(f"weights{band.stem}", ir.RegisterKind.B32, self.plan.tile_kv // 4)
            yield band.pack(_AT)
        yield from self.meet()
        yield from self.copy("k", _AT + slots, self.slot)
        yield from self.value_products()
        if slots > 1:
            yield ir.Set(_SLOT.name, (_SLOT + 1) % slots)

    def meet(self) -> Iterator[ir.Stmt]:
        """Wait for the copies of the next slot, and for each other."""
        yield ir.WaitGroup(self.plan.stages - 2)
        yield ir.SyncThreads()

    @property
    def slot(self) -> Scalar:
        return _SLOT if self.layout.slots > 1 else Lit(0)

    # Copies

    def first_copies(self) -> Iterator[ir.Stmt]:
        """The queries, with them the first keys, and what there are slots for but the last."""
        problem, layout = self.problem, self.layout
        first = TILE * self.plan.tile_q
        extents = (problem.queries, problem.depth)
        yield from self.filling.rows("q", problem.q, layout.q, Lit(0), first, extents)
        for number in range(self.plan.stages - 1):
            slot, name = number // 2, "kv"[number % 2]
            yield from self.copy(name, Name("first") + slot, Lit(slot), sure=slot == 0)

    def copy(
        self, name: str, block: Scalar, slot: Scalar, *, sure: bool = False
    ) -> Iterator[ir.Stmt]:
        """Ask for a block of keys or of values, if there is one, and close the group."""
        problem, layout = self.problem, self.layout
        operand, tile, size, width = (
            (problem.k, layout.k, layout.k_bytes, problem.depth)
            if name == "k"
            else (problem.v, layout.v, layout.v_bytes, problem.width)
        )
        first, extents = block * self.plan.tile_kv, (problem.keys, width)
        work = tuple(self.filling.rows(name, operand, tile, slot * size, first, extents))
        yield from work if sure else (ir.If(block < Name("last"), work),)
        yield ir.CommitGroup()

    # Products

    def load_queries(self, depth: int) -> Iterator[ir.Stmt]:
        """Some elements of a warp's queries, of 16 from the given one on."""
        place = depth // 4 if self.layout.holds_queries else 0
        for band in self.bands:
            row, column = band.warp_row + (LANE & 15), (LANE >> 4) * 8 + depth
            source = ir.Address("q", element_at(self.layout.q, row, column, depth))
            yield ir.LdMatrix(ir.RegAt(f"queries{band.stem}", place), source, transposed=False)

    def score_products(self) -> Iterator[ir.Stmt]:
        layout, dtype = self.layout, self.problem.q.dtype
        for band in self.bands:
            count = self.plan.tile_kv // 2
            yield ir.Registers(f"scores{band.stem}", ir.RegisterKind.F32, count, zero=True)
        yield ir.Registers("key_part", ir.RegisterKind.B32, 4)
        for depth in range(0, layout.depth, STEP):
            if not layout.holds_queries:
                yield from self.load_queries(depth)
            rows = depth // 4 if layout.holds_queries else 0
            for key in range(0, self.plan.tile_kv, STEP):
                row = key + (LANE & 7) + (LANE >> 4) * 8
                place = element_at(layout.k, row, ((LANE >> 3) & 1) * 8 + depth, depth)
                source = ir.Address("k", self.slot * layout.k_bytes + place)
                yield ir.LdMatrix(ir.RegAt("key_part"), source, transposed=False)
                for band in self.bands:
                    for half in (0, 1):
                        acc = ir.RegAt(f"scores{band.stem}", key // 2 + 4 * half)
                        queries = ir.RegAt(f"queries{band.stem}", rows)
                        keys = ir.RegAt("key_part", 2 * half)
                        yield ir.MmaSync(acc, queries, keys, dtype, dtype)

    def value_products(self) -> Iterator[ir.Stmt]:
        layout, dtype = self.layout, self.problem.v.dtype
        yield ir.Registers("value_part", ir.RegisterKind.B32, 4)
        for key in range(0, self.plan.tile_kv, STEP):
            for column in range(0, layout.width, STEP):
                row = key + (LANE & 15)
                place = element_at(layout.v, row, (LANE >> 4) * 8 + column, column)
                source = ir.Address("v", self.slot * layout.v_bytes + place)
                yield ir.LdMatrix(ir.RegAt("value_part"), source, transposed=True)
                for band in self.bands:
                    for half in (0, 1):
                        acc = ir.RegAt(f"mixed{band.stem}", column // 2 + 4 * half)
                        weights = ir.RegAt(f"weights{band.stem}", key // 4)
                        values = ir.RegAt("value_part", 2 * half)
                        yield ir.MmaSync(acc, weights, values, dtype, dtype)
