"""An attention kernel as its GPU templates see it: operands, elementwise ops on scores, results.

    s[q, j] = sum_d Q[q, d] K[j, d]        x = program(s) * scale where low <= j - q <= high
    y[q, e] = sum_j softmax(x)[q, j] V[j, e]

Scales and bands of visible keys are taken out of the program of a score: a scale is a factor of the
power, and keys outside the band are not even loaded. `analyse` refuses, with a finding, what has no
such form.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Final

from weft.codegen.gpu.attention.reading import Axes, HullTables, Program, Reading, State
from weft.codegen.gpu.ir.element_ops import ElementOp
from weft.codegen.gpu.products.operand import Operand, Refusal
from weft.codegen.gpu.products.problem import Refs, Source, Strides, element_op
from weft.foundation.dtypes import DType
from weft.foundation.records import dataclass
from weft.region.form import Attention, AttentionParts
from weft.region.forms.attention import leads_to, score_sides, source, value_side, weight_of
from weft.region.forms.bands import Band, End, band_of
from weft.region.forms.few_queries import pages_of, reads_pages
from weft.region.forms.pages import find_pages
from weft.region.ir import AxisIndex, Cast, Kernel, Let, Output, Read, attention_parts, form_of

PLAIN: Final = Program("weight", (), (), "weight")
"""Weights that are the powers themselves."""


@dataclass(frozen=True)
class RowResult:
    """A result of every query: `ops` make it from the greatest score, the sum of the powers and
    what is read for the query."""

    tensor: str
    dtype: DType
    strides: Strides
    top: str
    total: str
    ops: tuple[ElementOp, ...]
    result: str
    sources: tuple[Source, ...] = ()

    @property
    def made(self) -> tuple[str, ...]:
        """The names of what is computed and read for it."""
        return (*(op.name for op in self.ops), *(source.name for source in self.sources))


@dataclass(frozen=True)
class Pages:
    """Pages of `size` keys that keys and values lie in. The table has a number for each of those of
    a matrix, whose columns are its pages; of both tensors, how many pages there are and how far
    apart they lie."""

    size: int
    tensor: str
    dtype: DType
    strides: Strides
    counts: tuple[int, int]
    steps: tuple[int, int]


@dataclass(frozen=True)
class KeyEnd:
    """A number of each matrix, read from memory, up to which its keys are seen."""

    tensor: str
    dtype: DType
    strides: Strides
    inclusive: bool


@dataclass(frozen=True)
class Problem:
    """An attention with what is done to its scores and to its results."""

    batch: tuple[int, ...]
    queries: int
    keys: int
    depth: int
    width: int
    """Elements of a value."""
    q: Operand
    k: Operand
    v: Operand
    scale: float
    band: Band
    score: Program
    out_tensor: str
    out_dtype: DType
    out: Strides
    mixed: Program
    """Of a mixed value, its column being the element's place in it."""
    rows: tuple[RowResult, ...]
    tops: tuple[str, ...] = ()
    totals: tuple[str, ...] = ()
    """What the greatest score of a row and the sum of its powers are called in the program of a
    mixed value, where that reads them."""
    pages: Pages | None = None
    ends: tuple[KeyEnd, ...] = ()
    hulls: tuple[HullTables, ...] = ()
    weight: Program = PLAIN
    """Of a weight, from the power that it is a multiple of."""
    states: tuple[State, ...] = ()

    @property
    def matrices(self) -> int:
        return prod(self.batch)

    @property
    def tensors(self) -> list[str]:
        """Everything that is read and stored, in the order of a kernel's buffers."""
        sources = [*self.score.sources, *self.mixed.sources, *self.weight.sources]
        sources += [source for state in self.states for source in state.sources]
        sources += [source for hull in self.hulls for source in hull.each.sources]
        sources += [source for row in self.rows for source in row.sources]
        names = [self.q.tensor, self.k.tensor, self.v.tensor]
        names += [source.tensor for source in sources if source.tensor is not None]
        names += [name for hull in self.hulls for name in hull.tensors]
        names += [self.out_tensor, *(row.tensor for row in self.rows)]
        return list(dict.fromkeys(names))


def analyse(kernel: Kernel, refs: Refs, *, ends: bool = False) -> Problem:
    """The problem a kernel poses, with the ends of what is seen where they are asked for; raises
    `Refusal`."""
    if not isinstance(form_of(kernel), Attention):
        raise Refusal("NotAttention", f"{kernel.name} is not an attention")
    return _Analysis(kernel, refs, attention_parts(kernel)).problem(ends=ends)


class _Analysis(Reading):
    """Goes through one attention."""

    def __init__(self, kernel: Kernel, refs: Refs, found: AttentionParts) -> None:
        super().__init__(kernel, refs, found.batch)
        self.found = found

    def problem(self, *, ends: bool) -> Problem:
        found, sizes = self.found, self.sizes
        peeled = band_of(self.kernel, found, ends=ends)
        mixed, others = self.outputs()
        queries, keys = Axes(self.batch, found.query, (found.key,), sizes), found.key
        values = Axes(self.batch, found.query, found.value, sizes)
        q, k = score_sides(self.kernel, found)
        weight = self.weight(queries)
        known = [
            name
            for name in (found.top, found.total)
            if leads_to(self.lets, mixed.value, name, past=self.beyond(name))
        ]
        starts = {name: f"v{number}" for number, name in enumerate([found.mixed, *known])}
        return Problem(
            batch=tuple(sizes[name] for name in self.batch),
            queries=sizes[found.query],
            keys=sizes[keys],
            depth=prod(sizes[name] for name in found.depth),
            width=prod(sizes[name] for name in found.value),
            q=self.operand(source(self.kernel, q), found.query, found.depth),
            k=self.streamed(source(self.kernel, k), found.depth),
            v=self.streamed(source(self.kernel, value_side(self.kernel, found)), found.value),
            scale=peeled.scale,
            band=replace(peeled.band, ends=(), hulls=()),
            score=self.program(peeled.value, [found.scores], queries),
            out_tensor=mixed.tensor,
            out_dtype=self.lets[mixed.value].dtype,
            out=values.strides(self.address(mixed.index, mixed.tensor)),
            mixed=self.program(mixed.value, [*starts], values),
            tops=tuple(starts[name] for name in known if name == found.top),
            totals=tuple(starts[name] for name in known if name == found.total),
            rows=tuple(map(self.row_result, others)),
            pages=self.pages(),
            ends=tuple(map(self.end, peeled.band.ends)),
            hulls=tuple(self.hulls(peeled.band, found.query, [found.scores], queries)),
            weight=weight,
            states=tuple(self.states.values()),
        )

    def beyond(self, name: str) -> tuple[str, ...]:
        """What a mixed value is made of that is made of rows' numbers itself."""
        return (self.found.mixed, *(n for n in (self.found.top, self.found.total) if n != name))

    def weight(self, axes: Axes) -> Program:
        """What is made of a power before it is rounded to the dtype of values."""
        name, share = weight_of(self.kernel, self.found)
        while isinstance(cast := self.lets[name].expr, Cast):
            name = cast.x
        return PLAIN if name == share else self.program(name, [share], axes)

    def end(self, end: End) -> KeyEnd:
        let = self.lets[end.value]
        assert isinstance(let.expr, Read)
        strides = Axes(self.batch, self.found.query, (), self.sizes).strides(
            self.read_address(let.expr)
        )
        return KeyEnd(let.expr.tensor, let.dtype, strides, end.inclusive)

    def streamed(self, let: Let, columns: tuple[str, ...]) -> Operand:
        """Keys or values, of the first page where they lie in pages."""
        paged = find_pages(self.kernel, let, self.found.key)
        return self.operand(let, self.found.key, columns, paged.index if paged else ())

    def pages(self) -> Pages | None:
        found, kernel = self.found, self.kernel
        if not reads_pages(kernel, found):
            return None
        paged = pages_of(kernel, found)
        if paged is None:
            raise Refusal("Pages", "keys and values do not lie in the same pages")
        table = self.lets[paged.table]
        assert isinstance(table.expr, Read)
        expr = self.address(paged.table_index, table.expr.tensor)
        axes = Axes(self.batch, found.query, (found.key,), self.sizes)
        names = (score_sides(kernel, found)[1], value_side(kernel, found))
        lets = [source(kernel, name) for name in names]
        refs = [self.refs[let.expr.tensor] for let in lets if isinstance(let.expr, Read)]
        dims = [find_pages(kernel, let, found.key) for let in lets]
        both = [(ref, found.dim) for ref, found in zip(refs, dims, strict=True) if found]
        counts, steps = zip(*((ref.shape[n], ref.strides[n]) for ref, n in both), strict=True)
        strides = axes.strides(expr)
        return Pages(paged.size, table.expr.tensor, table.dtype, strides, counts, steps)

    def outputs(self) -> tuple[Output, list[Output]]:
        """The mixed values, and what is stored of each query besides."""
        value = set(self.found.value)
        mixed = [o for o in self.kernel.outputs if value & set(self.lets[o.value].axes)]
        if len(mixed) != 1:
            raise Refusal("OutputCount", f"{len(mixed)} results are made of the mixed values")
        return mixed[0], [o for o in self.kernel.outputs if o is not mixed[0]]

    def row_result(self, output: Output) -> RowResult:
        found = self.found
        rows = {*found.batch, found.query}
        let = self.lets[output.value]
        if not set(let.axes) <= rows:
            raise Refusal("OutputForm", "a result is stored for every key")
        needed = self.needed(output.value, {found.top, found.total})
        names = {name: f"r{i}" for i, name in enumerate([found.top, found.total, *needed])}
        chosen = [self.lets[name] for name in needed]
        if any(isinstance(let.expr, AxisIndex) for let in chosen):
            raise Refusal("OutputForm", "a result of a query is made of its number")
        axes = Axes(self.batch, found.query, (), self.sizes)
        reads = [(let, let.expr) for let in chosen if isinstance(let.expr, Read)]
        return RowResult(
            output.tensor,
            let.dtype,
            axes.strides(self.address(output.index, output.tensor)),
            names[found.top],
            names[found.total],
            tuple(
                element_op(let, names[let.name], names)
                for let in chosen
                if not isinstance(let.expr, Read)
            ),
            names[output.value],
            tuple(
                Source(
                    names[let.name], let.dtype, read.tensor, axes.strides(self.read_address(read))
                )
                for let, read in reads
            ),
        )
