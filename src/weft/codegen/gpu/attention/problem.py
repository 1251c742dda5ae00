"""An attention kernel as its GPU templates see it: operands, what happens to a score, results.

    s[q, j] = sum_d Q[q, d] K[j, d]        x = program(s) * scale where low <= j - q <= high
    y[q, e] = sum_j softmax(x)[q, j] V[j, e]

Scales and bands of visible keys are taken out of the program of a score: a scale is a factor of the
power, and keys outside the band are not even loaded. `analyse` refuses, with a finding, what has no
such form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from weft.codegen.gpu.ir.element_ops import ElementOp
from weft.codegen.gpu.products.operand import Operand, Refusal
from weft.codegen.gpu.products.problem import Refs, Source, Strides, affine, element_op, operands
from weft.foundation.dtypes import BF16, F16, DType
from weft.foundation.index_expr import Expr, coefficient, linear
from weft.region.form import Attention, AttentionParts
from weft.region.forms.attention import score_sides, source, value_side
from weft.region.forms.bands import Band, band_of
from weft.region.forms.runs import longest_run
from weft.region.ir import AxisIndex, Kernel, Let, Output, Read, attention_parts, form_of


@dataclass(frozen=True)
class Program:
    """What is made of one element: `value` names it, `result` what comes of it."""

    value: str
    sources: tuple[Source, ...]
    ops: tuple[ElementOp, ...]
    result: str


@dataclass(frozen=True)
class RowResult:
    """A result of every query: `ops` make it from the greatest score and the sum of the powers."""

    tensor: str
    dtype: DType
    strides: Strides
    top: str
    total: str
    ops: tuple[ElementOp, ...]
    result: str


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

    @property
    def matrices(self) -> int:
        return prod(self.batch)


@dataclass(frozen=True)
class _Axes:
    """The axes of one kind of element, and of what it lies in."""

    batch: tuple[str, ...]
    row: str
    columns: tuple[str, ...]
    sizes: Mapping[str, int]

    def strides(self, expr: Expr) -> Strides:
        return Strides(
            expr.constant,
            coefficient(expr, self.row),
            _step(expr, self.columns, self.sizes),
            tuple(coefficient(expr, name) for name in self.batch),
        )


def analyse(kernel: Kernel, refs: Refs) -> Problem:
    """The problem a kernel poses; raises `Refusal`."""
    if not isinstance(form_of(kernel), Attention):
        raise Refusal("NotAttention", f"{kernel.name} is no attention")
    return _Analysis(kernel, refs, attention_parts(kernel)).problem()


class _Analysis:
    """Goes through one kernel."""

    def __init__(self, kernel: Kernel, refs: Refs, found: AttentionParts) -> None:
        self.kernel, self.refs, self.found = kernel, refs, found
        self.lets = {let.name: let for let in kernel.body}
        self.sizes = kernel.sizes
        self.batch = tuple(name for name in found.batch if self.sizes[name] != 1)

    def problem(self) -> Problem:
        found, sizes = self.found, self.sizes
        peeled = band_of(self.kernel, found)
        mixed, others = self.outputs()
        queries, keys = _Axes(self.batch, found.query, (found.key,), sizes), found.key
        values = _Axes(self.batch, found.query, found.value, sizes)
        q, k = score_sides(self.kernel, found)
        return Problem(
            batch=tuple(sizes[name] for name in self.batch),
            queries=sizes[found.query],
            keys=sizes[keys],
            depth=prod(sizes[name] for name in found.depth),
            width=prod(sizes[name] for name in found.value),
            q=self.operand(source(self.kernel, q), found.query, found.depth),
            k=self.operand(source(self.kernel, k), keys, found.depth),
            v=self.operand(source(self.kernel, value_side(self.kernel, found)), keys, found.value),
            scale=peeled.scale,
            band=peeled.band,
            score=self.program(peeled.value, found.scores, queries),
            out_tensor=mixed.tensor,
            out_dtype=self.lets[mixed.value].dtype,
            out=values.strides(self.address(mixed.index, mixed.tensor)),
            mixed=self.program(mixed.value, found.mixed, values),
            rows=tuple(map(self.row_result, others)),
        )

    def outputs(self) -> tuple[Output, list[Output]]:
        """The mixed values, and what is stored of each query besides."""
        value = set(self.found.value)
        mixed = [o for o in self.kernel.outputs if value & set(self.lets[o.value].axes)]
        if len(mixed) != 1:
            raise Refusal("OutputCount", f"{len(mixed)} results are made of the mixed values")
        return mixed[0], [o for o in self.kernel.outputs if o is not mixed[0]]

    # Operands

    def operand(self, let: Let, rows: str, columns: tuple[str, ...]) -> Operand:
        if not isinstance(let.expr, Read):
            raise Refusal("OperandComputed", "an operand of the attention is computed, not read")
        if let.dtype not in (BF16, F16):
            raise Refusal("OperandDType", f"an operand is {let.dtype}, not bf16 or f16")
        expr = self.read_address(let.expr)
        if {*let.axes} - {rows, *columns, *self.found.batch}:
            raise Refusal("OperandForm", "an operand depends on more than its rows and columns")
        across = (
            coefficient(expr, rows)
            if self.sizes[rows] > 1
            else prod(self.sizes[name] for name in columns)
        )
        batch = tuple(coefficient(expr, name) for name in self.batch)
        inner = _step(expr, columns, self.sizes)
        return Operand(let.expr.tensor, let.dtype, expr.constant, across, inner, batch)

    def read_address(self, read: Read) -> Expr:
        if self.kernel.open_guards(read) or read.places:
            raise Refusal("GuardedRead", "a read is guarded, or its place is computed")
        return self.address(read.index, read.tensor)

    def address(self, index: Sequence[Expr], tensor: str) -> Expr:
        return affine(linear(index, self.refs[tensor].strides))

    # Programs

    def program(self, value: str, start: str, axes: _Axes) -> Program:
        """The Lets that `value` needs beyond `start`, as an element program."""
        sources: list[Source] = []
        ops: list[ElementOp] = []
        needed = self.needed(value, {start})
        names = {name: f"v{i}" for i, name in enumerate([start, *needed])}
        for let in map(self.lets.__getitem__, needed):
            match let.expr:
                case Read() as read:
                    strides = axes.strides(self.read_address(read))
                    sources.append(Source(names[let.name], let.dtype, read.tensor, strides))
                case AxisIndex(expr=expr):
                    strides = axes.strides(affine(expr))
                    sources.append(Source(names[let.name], let.dtype, None, strides))
                case _:
                    ops.append(element_op(let, names[let.name], names))
        return Program(names[start], tuple(sources), tuple(ops), names[value])

    def needed(self, value: str, known: set[str]) -> list[str]:
        """The Lets that a value is made of, without those that are known, in order."""
        wanted, stack = set[str](), [value]
        while stack:
            name = stack.pop()
            if name not in known and name not in wanted:
                wanted.add(name)
                stack.extend(operands(self.lets[name]))
        return [name for name in self.lets if name in wanted]

    def row_result(self, output: Output) -> RowResult:
        found = self.found
        rows = {*found.batch, found.query}
        let = self.lets[output.value]
        if not set(let.axes) <= rows:
            raise Refusal("OutputForm", "a result is stored for every key")
        needed = self.needed(output.value, {found.top, found.total})
        names = {name: f"r{i}" for i, name in enumerate([found.top, found.total, *needed])}
        chosen = [self.lets[name] for name in needed]
        if any(isinstance(let.expr, Read | AxisIndex) for let in chosen):
            raise Refusal("OutputForm", "a result of a query reads more than its scores")
        axes = _Axes(self.batch, found.query, (), self.sizes)
        return RowResult(
            output.tensor,
            let.dtype,
            axes.strides(self.address(output.index, output.tensor)),
            names[found.top],
            names[found.total],
            tuple(element_op(let, names[let.name], names) for let in chosen),
            names[output.value],
        )


def _step(expr: Expr, columns: Sequence[str], sizes: Mapping[str, int]) -> int:
    """The stride of the columns, which act as one axis."""
    apart, run = longest_run(columns, [expr], sizes)
    if any(sizes[name] != 1 for name in apart):
        raise Refusal("OperandStride", "the axes of a row do not follow one another in memory")
    present = [name for name in run if sizes[name] != 1]
    return coefficient(expr, present[-1]) if present else 1
