"""The SM80 attention of few queries over many keys (decoding): that of SM90 (`few_sm90.py`), but
all warps load tiles of keys and values, by cp.async.

    rows, and all tiles that there are slots for but one, are asked for
    for each tile:  wait for its copies, meet, ask for a tile further on
                    S = Q K',  P = 2^(S - top),  O += P V

Who may touch a slot: after the meeting of a tile all warps have done with the tile before, whose
slot the next copies take. Each tile closes one group of copies, so that waiting for all but the
last `stages - 2` groups is waiting for its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.codegen.gpu import ir
from weft.codegen.gpu.attention.few_layout import FewLayout
from weft.codegen.gpu.attention.few_sm90 import TILE, FewBuilder
from weft.codegen.gpu.attention.filling import Filling
from weft.codegen.gpu.ir.scalar import Lit, Name, Scalar
from weft.foundation.records import dataclass


@dataclass(frozen=True)
class FewSm80Layout(FewLayout):
    """The derived numbers of one kernel."""

    @property
    def threads(self) -> int:
        return self.joiners

    def in_rows(self, name: str) -> bool:
        """Pieces of 16 bytes come in the order of memory in any case."""
        return False

    @property
    def shared_bytes(self) -> int:
        return self.barriers_offset


class FewSm80Builder(FewBuilder):
    """Makes the statements of one kernel."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.filling = Filling(self.layout.threads, self.buffers, self.softmax.batch)

    def maps(self) -> Iterator[ir.TensorMap]:
        return iter(())

    def barriers(self) -> Iterator[ir.Barriers]:
        return iter(())

    def body(self) -> tuple[ir.Stmt, ...]:
        return (*self.located(), *self.first_copies(), *self.consumer())

    # Copies

    def first_copies(self) -> Iterator[ir.Stmt]:
        problem, layout = self.problem, self.layout
        extents = (problem.queries, problem.depth)
        yield from self.filling.rows("q", problem.q, layout.q, Lit(0), Lit(0), extents)
        for number in range(self.plan.stages - 1):
            yield from self.copy(Name("first") + number, Lit(number))

    def copy(self, tile: Scalar, slot: Scalar) -> Iterator[ir.Stmt]:
        """Ask for keys and values, if there are any, and close the group."""
        problem, layout = self.problem, self.layout
        first, start = tile * self.plan.tile_kv, slot * layout.slot_bytes
        behind = layout.slot_bytes - layout.v.bytes
        work: list[ir.Stmt] = []
        for operand, held, place, width in (
            (problem.k, layout.k, start, problem.depth),
            (problem.v, layout.v, start + behind, problem.width),
        ):
            extents = (problem.keys, width)
            work += self.filling.rows("ring", operand, held, place, first, extents)
        yield ir.If(tile < Name("last"), tuple(work))
        yield ir.CommitGroup()

    # Who waits for what

    def await_queries(self) -> Iterator[ir.Stmt]:
        """They came with the first tile."""
        if self.layout.holds_queries:
            yield from self.meet()

    def await_keys(self) -> Iterator[ir.Stmt]:
        yield from self.meet()
        stages = self.plan.stages
        free = (self.ring.slot + (stages - 1)) % stages
        yield from self.copy(TILE + (stages - 1), free)

    def await_values(self) -> Iterator[ir.Stmt]:
        return iter(())

    def release(self) -> Iterator[ir.Stmt]:
        return iter(())

    def meet(self) -> Iterator[ir.Stmt]:
        yield ir.WaitGroup(self.plan.stages - 2)
        yield ir.SyncThreads()
