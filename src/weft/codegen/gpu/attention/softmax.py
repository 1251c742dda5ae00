"""The online softmax of an SM90 attention: scores of a block of keys to weights, in registers."""

from __future__ import annotations

import math
from collections.abc import Iterator

from weft.codegen.gpu import ir
from weft.codegen.gpu.attention.masks import visible
from weft.codegen.gpu.attention.queries import (
    GROUP,
    QUARTER,
    Queries,
    bits_drawn,
    bits_read,
    chances,
    drawn,
    once_per_warp,
)
from weft.codegen.gpu.attention.reading import Chance
from weft.codegen.gpu.body.quads import BOTH_ROWS, compute, over_quad
from weft.codegen.gpu.ir.element_ops import ElementOp
from weft.codegen.gpu.ir.scalar import LANE, Lit, Name, Scalar
from weft.codegen.gpu.ir.values import Assign, Compute
from weft.codegen.gpu.products.problem import Source
from weft.foundation.dtypes import F32, I1


class Softmax(Queries):
    """Makes the statements between the two products."""

    @property
    def rate(self) -> float:
        """What a score is multiplied by before it is a power of two."""
        return self.problem.scale * math.log2(math.e)

    @property
    def chances(self) -> list[Chance]:
        """What is asked of random words."""
        return chances([self.problem.weight])

    def draw(self, block: Scalar) -> Iterator[ir.Stmt]:
        """Random bits for the weights of a block of keys."""
        problem, start = self.problem, block * self.plan.tile_kv
        fragment = self.fragment(start, self.plan.tile_kv, problem.keys)
        yield from bits_drawn(self.chances, problem.states, self.batch, fragment, self.stem)

    def logits(self, block: Scalar, *, masked: bool) -> Iterator[ir.Stmt]:
        """What the program of a score makes of scores, and -inf where a key is hidden."""
        program, staged = self.problem.score, self.layout.staged
        more: list[ir.ElementSource] = []
        ops, result = list(program.ops), program.result
        if masked:
            more, hidden = visible(self.layout, result)
            more += [self.source(s) for hull in self.problem.hulls for s in hull.each.sources]
            ops, result = ops + hidden, hidden[-1].name
        if not ops:
            return
        for number, _ in enumerate(staged):
            full = ir.BarrierAt(f"beside{number}_full", GROUP)
            yield ir.MbarrierWait(full, Name("beside_phase"))
        # What is staged comes in panels, everything else at once.
        width = min((self.layout.beside(s).panel_columns for s in staged), default=256)
        for column in range(0, self.plan.tile_kv, width):
            count = min(width, self.plan.tile_kv - column)
            start = block * self.plan.tile_kv + column
            sources = [self.score_source(source, column) for source in program.sources]
            yield ir.Epilogue(
                acc=ir.RegAt(f"scores{self.stem}", column // 2),
                fragment=self.fragment(start, count, self.problem.keys),
                value=program.value,
                sources=(*sources, *more),
                ops=tuple(ops),
                result=result,
                out=ir.RegAt(f"scores{self.stem}", column // 2),
                out_dtype=F32,
            )
        for number, _ in enumerate(staged):
            empty = ir.BarrierAt(f"beside{number}_empty", GROUP)
            yield once_per_warp(ir.MbarrierArrive(empty))
        if staged:
            yield ir.Set("beside_phase", Name("beside_phase") ^ 1)

    def score_source(self, source: Source, column: int) -> ir.ElementSource:
        """What lies beside the scores from a column on, in shared memory where it is staged."""
        staged = self.layout.staged
        if source not in staged:
            return self.source(source)
        number, tile = staged.index(source), self.layout.beside(source)
        panel, inside = divmod(column, tile.panel_columns)
        row = QUARTER * 16 + (LANE >> 2)
        start = GROUP * tile.bytes + panel * tile.panel_bytes + row * tile.swizzle.span
        across = (LANE & 3) * (2 * tile.size) + inside * tile.size
        address = ir.Address(f"beside{number}", start)
        return ir.StagedElements(source.name, source.dtype, address, across, tile.swizzle)

    def powers(self, suffix: str) -> Iterator[ir.Stmt]:
        """Scores become powers; `top` and `total` go on, and `factor` is what sums that were made
        with the earlier `top` are too large by."""
        # With t the greatest score of all keys so far, total = sum 2^(rate (x - t)) and O = sum
        # 2^(rate (x - t)) v. A greater one, n, makes every power 2^(rate (t - n)) as large: one
        # factor, for both. Over a whole row these factors multiply to 2^(rate (t - top)), so that
        # the last top is that of all.
        scores, suffix = f"scores{self.stem}", f"{self.stem}{suffix}"
        yield ir.RowMax(tuple(f"peak{row}{suffix}" for row in BOTH_ROWS), scores)
        for row in BOTH_ROWS:
            # The top must be that of all lanes that have a part of the row, or their factors would
            # differ. Sums need not: a lane has its share of `total` until the end.
            yield from over_quad(f"peak{row}{suffix}", "max")
            yield from self.new_top(row, suffix)
        shifts = tuple(f"shift{row}{suffix}" for row in BOTH_ROWS)
        sums = tuple(f"sum{row}{suffix}" for row in BOTH_ROWS)
        yield ir.RowExp(sums, scores, shifts, self.rate, self.problem.score.is_low)
        for row in BOTH_ROWS:
            kept, total = f"kept{row}{suffix}", f"total{row}{self.stem}"
            yield compute(kept, "mul", total, f"factor{row}{suffix}")
            yield compute(f"{total}_new{suffix}", "add", kept, f"sum{row}{suffix}")
            yield Assign(total, f"{total}_new{suffix}", Lit(1))

    def new_top(self, row: int, suffix: str) -> Iterator[ir.Stmt]:
        """While a query has seen no key its powers are shifted by nothing: -inf minus -inf would be
        NaN."""
        top, new, shift = f"top{row}{self.stem}", f"new{row}{suffix}", f"shift{row}{suffix}"
        yield compute(new, "max", top, f"peak{row}{suffix}_all")
        yield Compute(ElementOp(f"blind{row}{suffix}", I1, "eq", (new, "lowest")))
        scaled, before, fall = (f"{x}{row}{suffix}" for x in ("scaled", "before", "fall"))
        # The lowest finite number times the rate is -inf, and -inf less -inf NaN. Such scores are
        # subtracted first; of others the factor is in one multiply-add with the shift.
        if self.problem.score.is_low:
            chosen = (f"blind{row}{suffix}", "zero", new)
            yield Compute(ElementOp(shift, F32, "select", chosen))
            yield compute(before, "sub", top, shift)
            yield compute(fall, "mul", before, "rate")
        else:
            yield compute(scaled, "mul", new, "rate")
            chosen = (f"blind{row}{suffix}", "zero", scaled)
            yield Compute(ElementOp(shift, F32, "select", chosen))
            yield compute(before, "mul", top, "rate")
            yield compute(fall, "sub", before, shift)
        power = ElementOp(f"factor{row}{suffix}", F32, "exp2", (f"fall{row}{suffix}",), loose=True)
        yield Compute(power)
        yield Assign(top, new, Lit(1))

    def pack(self, block: Scalar) -> ir.Stmt:
        """Powers of a block of keys as weights, in the order in which products read them from
        registers."""
        problem, program = self.problem, self.problem.weight
        start = block * self.plan.tile_kv if program.ops else Lit(0)
        sources = [self.source(source) for source in program.sources]
        random = drawn(program, problem.states, self.batch)
        random += bits_read(program, self.chances, self.stem)
        return ir.Epilogue(
            acc=ir.RegAt(f"scores{self.stem}"),
            fragment=self.fragment(start, self.plan.tile_kv, problem.keys),
            value=program.value,
            sources=(*sources, *random),
            ops=program.ops,
            result=program.result,
            out=ir.RegAt(f"weights{self.stem}"),
            out_dtype=problem.v.dtype,
        )
