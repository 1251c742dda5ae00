"""Epilogue of the attention of few queries: vectors of the output, and per-row results such as the
log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from weft.codegen.gpu import ir
from weft.codegen.gpu.attention.few_layout import VECTOR, FewLayout
from weft.codegen.gpu.attention.problem import RowResult
from weft.codegen.gpu.attention.queries import constant
from weft.codegen.gpu.body.quads import compute
from weft.codegen.gpu.ir.scalar import THREAD, Lit, Name, Scalar, both
from weft.codegen.gpu.ir.values import Compute, IndexValue, StoreElement, StoreVector
from weft.codegen.gpu.products.problem import Source
from weft.codegen.gpu.products.tile_place import offset
from weft.foundation.dtypes import F32
from weft.foundation.records import dataclass


@dataclass(frozen=True)
class Vector:
    """Neighbouring elements of a row that a thread has, the `turn`-th of its own; `inside` is
    whether they are there. `suffix` tells its names from those of others."""

    turn: int
    row: Scalar
    column: Scalar
    inside: Scalar
    located: tuple[ir.Stmt, ...]
    suffix: str

    @property
    def sums(self) -> str:
        return f"sums{self.suffix}"

    @property
    def top(self) -> str:
        return f"top{self.suffix}"

    @property
    def total(self) -> str:
        return f"total{self.suffix}"


@dataclass(frozen=True)
class FewResults:
    """Makes the statements behind the last sum."""

    layout: FewLayout
    buffers: Sequence[str]

    @property
    def batch(self) -> tuple[Scalar, ...]:
        return tuple(Name(f"batch{axis}") for axis, _ in enumerate(self.layout.problem.batch))

    def stored(self, vector: Vector) -> Iterator[ir.Stmt]:
        """The program of a mixed value on sums divided by the sum of weights."""
        suffix, names = vector.suffix, [f"mixed{vector.suffix}_{n}" for n in range(VECTOR)]
        share = f"share{suffix}"
        yield compute(share, "div", "one", vector.total)
        yield ir.RowScale(vector.sums, (share, share))
        for name in self.layout.problem.tops:
            yield constant(f"{name}_scale{suffix}", F32, self.layout.problem.scale)
            yield compute(f"{name}{suffix}", "mul", vector.top, f"{name}_scale{suffix}")
        own = THREAD * (VECTOR * 4)
        for first in (0, 2):
            target = ir.Address("vectors", own + first * 4)
            yield ir.StSharedVec(target, ir.RegAt(vector.sums, first), 2)
        yield ir.LoadSharedVector(tuple(names), F32, ir.Address("vectors", own))
        results = []
        for number, name in enumerate(names):
            yield from self.element(vector, number, name)
            results.append(self.names(vector, number, name)[self.layout.problem.mixed.result])
        yield from self.store(vector, tuple(results))
        for number, result in enumerate(self.layout.problem.rows):
            yield from self.row_result(vector, number, result)

    def names(self, vector: Vector, number: int, value: str) -> Mapping[str, str]:
        """What the values of the program are called for one element."""
        program, suffix = self.layout.problem.mixed, f"{vector.suffix}_{number}"
        made = [op.name for op in program.ops] + [source.name for source in program.sources]
        rows = {name: f"{name}{vector.suffix}" for name in self.layout.problem.tops}
        rows |= dict.fromkeys(self.layout.problem.totals, vector.total)
        return {program.value: value, **rows, **{name: f"{name}{suffix}" for name in made}}

    def element(self, vector: Vector, number: int, value: str) -> Iterator[ir.Stmt]:
        names, problem = self.names(vector, number, value), self.layout.problem
        column = vector.column + number
        inside = both(vector.inside, self.is_there(column))
        for source in problem.mixed.sources:
            yield self.read(names[source.name], source, vector.row, column, inside)
        for op in problem.mixed.ops:
            args = tuple(names[arg] for arg in op.args)
            yield Compute(replace(op, name=names[op.name], args=args))

    def is_there(self, column: Scalar) -> Scalar:
        width = self.layout.problem.width
        return Lit(1) if width == self.layout.width else column < width

    def read(
        self, name: str, source: Source, row: Scalar, column: Scalar, inside: Scalar
    ) -> ir.Stmt:
        if source.tensor is None:
            place = offset(source.strides, row, column, self.batch, widen=False)
            return IndexValue(name, source.dtype, place)
        place = offset(source.strides, row, column, self.batch)
        return ir.LoadElement(name, self.buffers.index(source.tensor), source.dtype, place, inside)

    def store(self, vector: Vector, results: tuple[str, ...]) -> Iterator[ir.Stmt]:
        problem = self.layout.problem
        out, buffer = problem.out, self.buffers.index(problem.out_tensor)
        whole = all(n % VECTOR == 0 for n in (out.row, out.offset, problem.width, *out.batch))
        if out.column == 1 and whole:
            inside = both(vector.inside, self.is_there(vector.column))
            place = offset(out, vector.row, vector.column, self.batch)
            yield StoreVector(buffer, problem.out_dtype, place, inside, results)
            return
        for number, name in enumerate(results):
            column = vector.column + number
            inside = both(vector.inside, self.is_there(column))
            place = offset(out, vector.row, column, self.batch)
            yield StoreElement(buffer, problem.out_dtype, place, inside, name)

    def row_result(self, vector: Vector, number: int, result: RowResult) -> Iterator[ir.Stmt]:
        """What is stored of a row beside its mixed value: whoever has its first elements does."""
        suffix = f"{vector.suffix}_of{number}"
        names = {
            result.top: f"row_top{suffix}",
            result.total: vector.total,
            **{name: f"{name}{suffix}" for name in result.made},
        }
        for source in result.sources:
            yield self.read(names[source.name], source, vector.row, Lit(0), vector.inside)
        yield constant(f"row_scale{suffix}", F32, self.layout.problem.scale)
        yield compute(names[result.top], "mul", vector.top, f"row_scale{suffix}")
        for op in result.ops:
            args = tuple(names[arg] for arg in op.args)
            yield Compute(replace(op, name=names[op.name], args=args))
        yield StoreElement(
            self.buffers.index(result.tensor),
            result.dtype,
            offset(result.strides, vector.row, Lit(0), self.batch),
            both(vector.inside, vector.column.equals(0)),
            names[result.result],
        )
