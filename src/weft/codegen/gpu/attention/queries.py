"""The queries of one consumer warpgroup: their addresses, the accumulator rows that a thread holds,
and statements on these rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.attention.layout import ROWS, Layout
from weft.codegen.gpu.attention.problem import Problem
from weft.codegen.gpu.attention.reading import Chance, Program, State
from weft.codegen.gpu.attention.work import TILE
from weft.codegen.gpu.ir.element_ops import ElementOp, Number
from weft.codegen.gpu.ir.scalar import LANE, Lit, Name, Scalar
from weft.codegen.gpu.ir.values import Compute
from weft.codegen.gpu.products.problem import Source
from weft.codegen.gpu.products.ring import Ring
from weft.codegen.gpu.products.tile_place import offset
from weft.foundation.dtypes import I1, UI32, DType
from weft.foundation.records import dataclass
from weft.plan.ir import AttentionPlan

GROUP: Final = Name("group")
QUARTER: Final = Name("quarter")
MEMBER: Final = Name("member")
STEP: Final = 16
"""Elements along which a matrix instruction adds up."""


@dataclass(frozen=True)
class Queries:
    """What a consumer knows of its 64 queries."""

    layout: Layout
    buffers: Sequence[str]

    @property
    def problem(self) -> Problem:
        return self.layout.problem

    @property
    def plan(self) -> AttentionPlan:
        return self.layout.plan

    @property
    def tiles_ahead(self) -> Ring:
        """The tiles whose queries there is room for."""
        return Ring(self.layout.q_slots, "q_")

    @property
    def batch(self) -> tuple[Scalar, ...]:
        return tuple(Name(f"batch{axis}") for axis, _ in enumerate(self.problem.batch))

    @property
    def stem(self) -> str:
        """What registers and values of these queries are told apart by from those of others that
        the same thread has."""
        return ""

    @property
    def q_slot(self) -> Scalar:
        """Where this consumer's queries of this tile are."""
        return GROUP * self.layout.q_slots + self.tiles_ahead.slot

    @property
    def first_query(self) -> Scalar:
        return TILE * self.plan.tile_q + GROUP * ROWS

    @property
    def warp_query(self) -> Scalar:
        """The first of the 16 queries of a warp."""
        return self.first_query + QUARTER * 16

    def fragment(self, column: Scalar, columns: int, count: int) -> ir.Fragment:
        """`columns` columns, of `count` that there are, from the given one on."""
        row = self.warp_query + (LANE >> 2)
        across = column + (LANE & 3) * 2
        return ir.Fragment(columns // 8, row, across, self.problem.queries, count)

    def source(self, source: Source) -> ir.ElementSource:
        return read_from(source, self.buffers, self.batch)


def read_from(
    source: Source, buffers: Sequence[str], batch: tuple[Scalar, ...]
) -> ir.ElementSource:
    """What an element program reads, from memory, or as a number of its place."""
    strides, start = source.strides, replace(source.strides, row=0, column=0)
    if source.tensor is None:
        narrow = offset(start, Lit(0), Lit(0), batch, widen=False)
        return ir.IndexElements(source.name, source.dtype, narrow, strides.row, strides.column)
    base, buffer = offset(start, Lit(0), Lit(0), batch), buffers.index(source.tensor)
    return ir.GlobalElements(source.name, source.dtype, buffer, base, strides.row, strides.column)


def drawn(
    program: Program, states: Sequence[State], batch: tuple[Scalar, ...]
) -> list[ir.ElementSource]:
    """The random words of an element program."""
    found: list[ir.ElementSource] = []
    for name, draw in program.draws:
        state, strides = states[draw.state], draw.strides
        base = offset(replace(strides, row=0, column=0), Lit(0), Lit(0), batch)
        factors = (strides.row, strides.column)
        found.append(
            ir.RandomElements(name, UI32, state.seed, state.offset, base, *factors, draw.paired)
        )
    return found


def chances(programs: Iterable[Program]) -> list[Chance]:
    """What element programs ask of random words, each once: its number is that of its registers."""
    return [*dict.fromkeys(bit.chance for program in programs for bit in program.bits)]


def bit_registers(found: Sequence[Chance], columns: int, stem: str = "") -> Iterator[ir.Stmt]:
    """Room for the bits of a thread's elements of a block of columns."""
    for number, _ in enumerate(found):
        yield ir.Registers(f"bits{number}{stem}", ir.RegisterKind.B32, -(-columns // 64))


def bits_drawn(
    found: Sequence[Chance],
    states: Sequence[State],
    batch: tuple[Scalar, ...],
    fragment: ir.Fragment,
    stem: str = "",
) -> Iterator[ir.Stmt]:
    """The bits of a thread's elements. They depend on places alone, so that they can be made while
    matrix instructions run."""
    for number, chance in enumerate(found):
        draw = chance.draw
        state, strides = states[draw.state], draw.strides
        base = offset(replace(strides, row=0, column=0), Lit(0), Lit(0), batch)
        yield ir.DrawBits(
            ir.RegAt(f"bits{number}{stem}"),
            fragment,
            state.seed,
            state.offset,
            base,
            strides.row,
            strides.column,
            chance.least,
            draw.shared,
            draw.narrow,
        )


def bits_read(program: Program, found: Sequence[Chance], stem: str = "") -> list[ir.ElementSource]:
    """The truth values of an element program that were drawn before."""
    places = [(bit, f"bits{found.index(bit.chance)}{stem}") for bit in program.bits]
    return [ir.BitElements(bit.name, I1, ir.RegAt(name), bit.inverted) for bit, name in places]


def states_read(states: Sequence[State], buffers: Sequence[str]) -> Iterator[ir.Stmt]:
    """The states of random streams."""
    for state in states:
        for source in state.sources:
            assert source.tensor is not None
            place, buffer = Lit(source.strides.offset), buffers.index(source.tensor)
            yield ir.LoadElement(source.name, buffer, source.dtype, place, Lit(1))
        yield from map(Compute, state.ops)


def once_per_warp(statement: ir.Stmt) -> ir.Stmt:
    return ir.If(LANE.equals(0), (statement,))


def constant(name: str, dtype: DType, value: Number) -> Compute:
    return Compute(ElementOp(name, dtype, "const", (), value))
