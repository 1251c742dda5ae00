"""An attention gradient (a *stream*) as its GPU template sees it: products, elementwise ops,
results.

    s[r, j] = sum_d A[r, d] B[j, d]      t[r, j] = sum_e C[r, e] D[j, e]
    x = program(s) * scale where low <= j - r <= high, -inf elsewhere;   p = exp(x - shift)
    y[r, d] = sum_j weight(p, t)[r, j] B[j, d]

Rows r are a block's own, columns j stream by. `analyse_stream` refuses, with a finding, what has no
such form.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import prod

from weft.codegen.gpu.attention.reading import Axes, HullTables, Program, Reading, State
from weft.codegen.gpu.products.operand import Operand, Refusal
from weft.codegen.gpu.products.problem import Refs, Source, Strides
from weft.foundation.dtypes import F32, DType
from weft.foundation.records import dataclass
from weft.region.form import Stream, StreamParts
from weft.region.forms.attention import leads_to
from weft.region.forms.bands import Band, band_of_stream
from weft.region.forms.stream import is_narrow, sides, summed_axes, value_axes, weight_and_rows
from weft.region.ir import Cast, Kernel, Output, Read, form_of, operands, stream_parts


@dataclass(frozen=True)
class Product:
    """Sums over `depth` elements of a row's and a column's operand."""

    own: Operand
    streamed: Operand
    depth: int


@dataclass(frozen=True)
class Result:
    """A sum over columns: a weight, made of the power and of the other product, times the column's
    operand of product number `of`; and where what `stored` makes of it goes."""

    weight: Program
    uses_power: bool
    uses_other: bool
    of: int
    tensor: str
    dtype: DType
    out: Strides
    stored: Program


@dataclass(frozen=True)
class StreamProblem:
    """A stream. Indices of matrices come with those of the group behind them."""

    batch: tuple[int, ...]
    group: tuple[int, ...]
    rows: int
    columns: int
    products: tuple[Product, ...]
    scale: float
    band: Band
    score: Program
    shift: Source
    results: tuple[Result, ...]
    hulls: tuple[HullTables, ...] = ()
    states: tuple[State, ...] = ()

    @property
    def matrices(self) -> int:
        return prod(self.batch)

    @property
    def turns(self) -> int:
        return prod(self.group)

    @property
    def sources(self) -> tuple[Source, ...]:
        """Everything that element programs of rows and columns read."""
        weights = (source for result in self.results for source in result.weight.sources)
        seen = (source for hull in self.hulls for source in hull.each.sources)
        return (self.shift, *self.score.sources, *weights, *seen)


def analyse_stream(kernel: Kernel, refs: Refs) -> StreamProblem:
    """The problem a kernel poses; raises `Refusal`."""
    if not isinstance(form_of(kernel), Stream):
        raise Refusal("NotStream", f"{kernel.name} is not a stream")
    return _Analysis(kernel, refs, stream_parts(kernel)).problem()


class _Analysis(Reading):
    """Goes through one stream."""

    def __init__(self, kernel: Kernel, refs: Refs, found: StreamParts) -> None:
        super().__init__(kernel, refs, (*found.batch, *found.group))
        self.found = found

    def problem(self) -> StreamProblem:
        found, sizes = self.found, self.sizes
        peeled = band_of_stream(self.kernel, found)
        wide = Axes(self.batch, found.row, (found.column,), sizes)
        products = tuple(self.product(name) for name in found.products)
        results: list[Result] = []
        for name in found.results:
            results.append(self.result(name, products, {made.of for made in results}, wide))
        return StreamProblem(
            batch=tuple(sizes[name] for name in self.batch if name in found.batch),
            group=tuple(sizes[name] for name in self.batch if name in found.group),
            rows=sizes[found.row],
            columns=sizes[found.column],
            products=products,
            scale=peeled.scale,
            band=replace(peeled.band, hulls=()),
            score=self.program(peeled.value, [found.products[0]], wide),
            shift=self.shift(wide),
            results=tuple(results),
            hulls=tuple(self.hulls(peeled.band, found.row, [found.products[0]], wide)),
            states=tuple(self.states.values()),
        )

    def product(self, name: str) -> Product:
        own, streamed = sides(self.kernel, self.found, name)
        axes = summed_axes(self.kernel, name)
        return Product(
            self.operand(own, self.found.row, axes),
            self.operand(streamed, self.found.column, axes),
            prod(self.sizes[axis] for axis in axes),
        )

    def shift(self, wide: Axes) -> Source:
        let = self.lets[self.found.shift]
        if not isinstance(let.expr, Read) or let.dtype is not F32:
            raise Refusal("ShiftComputed", "what scores are shifted by is computed, not read")
        strides = wide.strides(self.read_address(let.expr))
        if strides.row and strides.column:
            raise Refusal("ShiftForm", "scores are shifted by a number for every row and column")
        return Source("shift", let.dtype, let.expr.tensor, strides)

    def result(
        self, name: str, products: Sequence[Product], taken: Collection[int], wide: Axes
    ) -> Result:
        found = self.found
        weight, rows = weight_and_rows(self.kernel, found, name)
        width = value_axes(self.kernel, found, name)
        operand = self.operand(rows, found.column, width)
        # Results take the places of products' own rows in shared memory, each of another product's,
        # also where one tensor is both operands.
        of = [n for n, x in enumerate(products) if x.streamed == operand and n not in taken]
        if not of:
            raise Refusal("OperandForm", "a result sums what no product reads for it")
        output = self.output(name)
        stored = self.lets[output.value].dtype
        if not is_narrow(self.kernel, weight, operand.dtype) and stored is not operand.dtype:
            raise Refusal("WeightDType", f"weights are not rounded to {operand.dtype}")
        value = self.unrounded(weight)
        used = self.needed(value, {found.power, *found.products})
        starts = {found.power, *found.products[1:]}
        made_of = {value} | {arg for let in used for arg in operands(self.lets[let])}
        values = Axes(self.batch, found.row, width, self.sizes)
        return Result(
            self.program(value, [found.power, *found.products[1:]], wide),
            found.power in made_of,
            bool(starts - {found.power} & made_of),
            of[0],
            output.tensor,
            stored,
            values.strides(self.address(output.index, output.tensor)),
            self.program(output.value, [name], values),
        )

    def unrounded(self, weight: str) -> str:
        """A weight before it is rounded to the dtype of what it is multiplied by."""
        while isinstance(cast := self.lets[weight].expr, Cast):
            weight = cast.x
        return weight

    def output(self, name: str) -> Output:
        """Where a result goes."""
        results, outputs = self.found.results, self.kernel.outputs
        made_of = [[r for r in results if leads_to(self.lets, o.value, r)] for o in outputs]
        chosen = [o for o, of in zip(outputs, made_of, strict=True) if of == [name]]
        if len(chosen) != 1 or len(outputs) != len(results):
            raise Refusal("OutputCount", f"{len(chosen)} results are made of one sum")
        return chosen[0]
