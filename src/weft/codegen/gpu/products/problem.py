"""A matrix product as the tensor-core templates see it: three sizes, two operands, results.

    Problem = batch sizes, m, n, k, operands A[m, k] and B[k, n], results C[m, n], epilogues

A kernel's axes are made of atoms; here the rows, the columns and the contracted axes each become
one number again. They can, where in every tensor they index the strides follow one another; outer
axes of rows or columns for which they do not become batch axes. Everything after the contraction
becomes an element program over (row, column) with its sources. `analyse` refuses, with a finding,
what has no such form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Final, TypeAlias

from weft.codegen.gpu.body.peephole import recognise
from weft.codegen.gpu.ir.element_ops import ElementOp, loose_functions
from weft.codegen.gpu.products.operand import Operand, Refusal, filter_operand, image_operand
from weft.codegen.gpu.products.shortening import shortened
from weft.codegen.gpu.products.walks import ROW
from weft.codegen.gpu.products.walks import Axes as WalkAxes
from weft.foundation.dtypes import BF16, F16, F32, DType
from weft.foundation.index_expr import Expr, FloorDiv, coefficient, linear, params_of
from weft.foundation.records import dataclass
from weft.memory.ir import MemRef
from weft.region.forms.multiplied import multiplies_reads
from weft.region.forms.part_sums import is_part_sum, summed_value
from weft.region.forms.row_folds import (
    common_start,
    folded_value,
    folds_parts,
    is_row_fold,
    part_width,
)
from weft.region.ir import (
    AxisIndex,
    Binary,
    Cast,
    Const,
    Kernel,
    Let,
    Output,
    Read,
    Reduce,
    Roles,
    Select,
    Unary,
    problem_of,
)
from weft.target.matrix_atoms import ATOMS

Refs: TypeAlias = Mapping[str, MemRef]
_SUMS: Final = frozenset(atom.acc for atoms in ATOMS.values() for atom in atoms)
"""Dtypes in which matrix instructions add up."""


@dataclass(frozen=True)
class Strides:
    """`offset + row * i + column * j + sum(batch * b)`: where an element lies, or a number."""

    offset: int
    row: int
    column: int
    batch: tuple[int, ...]
    digits: tuple[tuple[int, int], ...] = ()
    """Where rows do not follow one another: sizes and strides of what a row's number is made of,
    outermost first, and `row` that of the innermost."""

    def transposed(self) -> Strides:
        return replace(self, row=self.column, column=self.row)


@dataclass(frozen=True)
class Source:
    """A value of the epilogue that is read (`tensor`) or computed from indices (no tensor)."""

    name: str
    dtype: DType
    tensor: str | None
    strides: Strides

    @property
    def by_column(self) -> bool:
        """Whether it is read once for a column, of whatever row, and f32 holds it exactly."""
        read = self.tensor is not None and self.strides.column != 0 and self.strides.row == 0
        return read and self.dtype in (BF16, F16, F32)


@dataclass(frozen=True)
class Stored:
    """A result of the contraction's size: `ops` make it, called `result`, from sums and sources."""

    tensor: str
    dtype: DType
    strides: Strides
    ops: tuple[ElementOp, ...]
    result: str

    def uses(self, source: Source) -> bool:
        return _uses_value(self, source.name)


@dataclass(frozen=True)
class Folded:
    """A number of f32 for each row, called `name`: the sum, or the greatest, of what `ops` make of
    the elements of a row, called `result`."""

    name: str
    fn: str
    ops: tuple[ElementOp, ...]
    result: str

    def uses(self, source: Source) -> bool:
        return _uses_value(self, source.name)


@dataclass(frozen=True)
class Number:
    """A number of each part of a row that is stored, `fold`; `strides.column` is the step from part
    to part."""

    tensor: str
    dtype: DType
    strides: Strides
    fold: str


@dataclass(frozen=True)
class Summed:
    """Sums of columns, each over `rows` rows that follow one another, of a result's elements;
    `strides.row` is the step from sum to sum."""

    tensor: str
    strides: Strides
    of: int
    """The number of the result."""
    rows: int


@dataclass(frozen=True)
class Head:
    """What all programs of a contraction whose rows are folded begin with: `ops` make of a sum,
    called `value`, a number of f32, called `result`, that takes its place."""

    value: str
    ops: tuple[ElementOp, ...]
    result: str

    def uses(self, source: Source) -> bool:
        return _uses_value(self, source.name)


def _uses_value(program: Stored | Folded | Head, name: str) -> bool:
    return name == program.result or any(name in op.args for op in program.ops)


@dataclass(frozen=True)
class Problem:
    """A contraction with what is stored of it, `y` and `gelu(y)` for instance."""

    batch: tuple[int, ...]
    m: int
    n: int
    k: int
    a: Operand
    b: Operand
    value: str
    sources: tuple[Source, ...]
    stored: tuple[Stored, ...]
    total: DType = F32
    """The dtype of the sums."""
    folds: tuple[Folded, ...] = ()
    """Numbers of whole rows, each of which programs after it may take."""
    head: Head | None = None
    numbers: tuple[Number, ...] = ()
    """Numbers of parts of rows; where there are any, nothing else is stored."""
    width: int = 0
    """The columns of a part."""
    sums: tuple[Summed, ...] = ()
    """Of columns, in parts of rows."""

    def folds_of(self, program: Stored | Folded | Head) -> tuple[Folded, ...]:
        """Those that a program takes."""
        return tuple(fold for fold in self.folds if _uses_value(program, fold.name))

    @property
    def first(self) -> Stored:
        return self.stored[0]

    @property
    def out_dtype(self) -> DType:
        return self.first.dtype if self.stored else F32

    @property
    def out(self) -> Strides:
        """Where the first result lies."""
        return self.first.strides

    @property
    def tensors(self) -> list[str]:
        """All that are read or written, each once."""
        read = [source.tensor for source in self.sources if source.tensor is not None]
        written = [stored.tensor for stored in self.stored]
        written += [number.tensor for number in self.numbers]
        written += [made.tensor for made in self.sums]
        return list(dict.fromkeys([self.a.tensor, self.b.tensor, *read, *written]))

    @property
    def scattered(self) -> bool:
        """Whether rows of what is stored or read beside do not follow one another."""
        places = [*(s.strides for s in self.stored), *(s.strides for s in self.sources)]
        places += [number.strides for number in self.numbers]
        return any(strides.digits for strides in places)

    @property
    def batches(self) -> int:
        return prod(self.batch)

    @property
    def operands_and_sums(self) -> str:
        return f"{self.a.dtype} and {self.b.dtype} with sums of {self.total}"

    def swapped(self) -> Problem:
        """The transposed problem, which has the same result: rows for columns, A for B."""
        sources = tuple(replace(s, strides=s.strides.transposed()) for s in self.sources)
        stored = tuple(replace(s, strides=s.strides.transposed()) for s in self.stored)
        return replace(self, m=self.n, n=self.m, a=self.b, b=self.a, sources=sources, stored=stored)


@dataclass(frozen=True)
class _Axes:
    """The kernel's axes by role, outermost first."""

    batch: tuple[str, ...]
    m: tuple[str, ...]
    n: tuple[str, ...]
    k: tuple[str, ...]
    sizes: Mapping[str, int]

    def size(self, names: Sequence[str]) -> int:
        return prod(self.sizes[name] for name in names)


def analyse(
    kernel: Kernel, refs: Refs, *, kept: bool = False, folds: bool = False, row: int = ROW
) -> Problem:
    """The problem a kernel poses; raises `Refusal`. Functions that its epilogue spells out are
    recognised here: plans speak of the kernel as it was written. An image that is `kept`, with its
    border, is not gone through window by window: its operand says where its elements lie. Whoever
    asks for `folds` computes numbers of whole rows too. `row` are the bytes of a row of a copy of
    windows."""
    kernel = recognise(kernel)
    roles = _check_roles(kernel)
    lets = {let.name: let for let in kernel.body}
    own = [let for let in kernel.body if is_row_fold(let, roles)] if folds else []
    folded = frozenset(let.name for let in own)
    sums = [o for o in kernel.outputs if folds and is_part_sum(kernel.let(o.value), roles)]
    whole = [output for output in kernel.outputs if output not in sums]
    ends = [*(output.value for output in whole), *map(folded_value, own)]
    epilogue = _slice(ends, roles.contraction, lets, folded)
    start = common_start(kernel, roles) if own else roles.contraction
    reads = {let.name: _source_address(let, kernel, refs) for let in epilogue}
    axes = _matrix_axes(kernel, roles, refs)
    every = [lets[roles.contraction], *epilogue, *own]
    names = {let.name: f"v{i}" for i, let in enumerate(every)}
    sources, ops = _epilogue_program(epilogue, reads, names, axes, lets)
    operands = _operands_as_matrices(kernel, roles, refs, axes) if kept else None
    a, b = operands or _both_operands(kernel, roles, refs, axes, row)
    program = _Programs(lets, names, ops, start, folded)
    parts = folds and folds_parts(kernel)
    stored = () if parts else whole
    numbers = whole if parts else ()
    return Problem(
        batch=tuple(axes.sizes[name] for name in axes.batch),
        m=axes.size(axes.m),
        n=axes.size(axes.n),
        k=_depth(a, b) or axes.size(axes.k),
        a=a,
        b=b,
        value=names[start],
        sources=sources,
        stored=tuple(program.stored(o, kernel, refs, axes) for o in stored),
        total=lets[roles.contraction].dtype,
        folds=tuple(program.folded_row(let, kernel.outputs) for let in own),
        head=program.head(roles.contraction),
        numbers=tuple(program.number(o, kernel, refs, axes) for o in numbers),
        width=part_width(kernel) if own else 0,
        sums=tuple(program.summed(o, stored, kernel, refs, axes) for o in sums),
    )


def _check_roles(kernel: Kernel) -> Roles:
    if kernel.roles is None:
        raise Refusal("NotAContraction", f"{kernel.name} has no contraction roles")
    contraction = kernel.let(kernel.roles.contraction)
    if contraction.dtype not in _SUMS:
        raise Refusal("AccumulatorDType", f"the contraction accumulates in {contraction.dtype}")
    if not multiplies_reads(kernel):
        raise Refusal("OperandComputed", "an operand of the contraction is computed, not read")
    return kernel.roles


@dataclass(frozen=True)
class _Programs:
    """The ops of an epilogue, from which those of each of its ends are taken."""

    lets: Mapping[str, Let]
    names: Mapping[str, str]
    ops: Sequence[ElementOp]
    start: str
    """The Let that programs begin with."""
    folded: frozenset[str]

    def needed(self, end: str, start: str) -> list[ElementOp]:
        found = _slice([end], start, self.lets, self.folded)
        own = {self.names[let.name] for let in found}
        return [op for op in self.ops if op.name in own]

    def stored(self, output: Output, kernel: Kernel, refs: Refs, axes: _Axes) -> Stored:
        """One result, with the ops that it needs."""
        assert kernel.roles is not None
        whole = self.lets[kernel.roles.contraction].axes
        if set(self.lets[output.value].axes) != set(whole):
            raise Refusal("OutputForm", f"{output.tensor} has not an element for each sum")
        dtype, result = self.lets[output.value].dtype, self.names[output.value]
        strides = _strides(_affine_address(output.index, refs[output.tensor], kernel), axes)
        ops = shortened(self.needed(output.value, self.start), dtype, result)
        return Stored(output.tensor, dtype, strides, ops, result)

    def number(self, output: Output, kernel: Kernel, refs: Refs, axes: _Axes) -> Number:
        """A number of each part of a row."""
        roles = kernel.roles
        assert roles is not None
        if output.value not in self.folded:
            raise Refusal("OutputForm", f"{output.tensor} is not a number of parts of rows")
        address = _affine_address(output.index, refs[output.tensor], kernel)
        strides = replace(_strides(address, axes), column=coefficient(address, roles.n[0]))
        return Number(output.tensor, F32, strides, self.names[output.value])

    def summed(
        self, output: Output, stored: Sequence[Output], kernel: Kernel, refs: Refs, axes: _Axes
    ) -> Summed:
        """Sums of the columns of a result, as it is stored."""
        *parts, within = axes.m
        value = summed_value(self.lets[output.value], self.lets)
        of = [number for number, found in enumerate(stored) if found.value == value]
        if not of:
            raise Refusal("OutputForm", f"{output.tensor} sums what is not stored")
        address = _affine_address(output.index, refs[output.tensor], kernel)
        if len(_run_digits(address, parts, axes.sizes)) > 1:
            raise Refusal(
                "OutputForm", f"parts of rows do not follow one another in {output.tensor}"
            )
        row = _run_stride(address, parts, axes.sizes)
        strides = replace(_strides(address, axes), row=row, digits=())
        return Summed(output.tensor, strides, of[0], axes.sizes[within])

    def folded_row(self, let: Let, outputs: Sequence[Output]) -> Folded:
        """A number of each row, with the ops that its elements need."""
        value = folded_value(let)
        if let.dtype is not F32 or self.lets[value].dtype is not F32:
            raise Refusal("EpilogueForm", f"numbers of rows are f32, not {self.lets[value].dtype}")
        assert isinstance(let.expr, Reduce)
        loose = loose_functions([self.lets[output.value].dtype for output in outputs])
        ops = (
            replace(op, loose=op.dtype is F32 and op.fn in loose)
            for op in self.needed(value, self.start)
        )
        return Folded(self.names[let.name], let.expr.fn, tuple(ops), self.names[value])

    def head(self, contraction: str) -> Head | None:
        """What comes before the Let that programs begin with."""
        if self.start == contraction:
            return None
        ops = self.needed(self.start, contraction)
        return Head(self.names[contraction], tuple(ops), self.names[self.start])


def _slice(
    results: Sequence[str], contraction: str, lets: Mapping[str, Let], folded: frozenset[str]
) -> list[Let]:
    """The Lets that some values need beyond the contraction and numbers of rows, in order."""
    wanted: set[str] = set()
    stack = list(results)
    while stack:
        name = stack.pop()
        if name == contraction or name in wanted or name in folded:
            continue
        wanted.add(name)
        stack.extend(operands(lets[name]))
    return [let for name, let in lets.items() if name in wanted]


def operands(let: Let) -> tuple[str, ...]:
    """The names a Let of an epilogue uses."""
    match let.expr:
        case Read() | Const() | AxisIndex():
            return ()
        case Unary(x=x) | Cast(x=x):
            return (x,)
        case Binary(lhs=lhs, rhs=rhs):
            return (lhs, rhs)
        case Select(pred=pred, x=x, y=y):
            return (pred, x, y)
        case _:
            kind = type(let.expr).__name__.lower()
            raise Refusal("EpilogueForm", f"the epilogue has a second {kind}")


def _both_operands(
    kernel: Kernel, roles: Roles, refs: Refs, axes: _Axes, row: int
) -> tuple[Operand, Operand]:
    """Both operands: matrices, or an image and the filters or the matrix that it meets."""
    found = problem_of(kernel)
    image = found.image if found is not None else None
    sides = []
    for side, name, outer in (("lhs", roles.lhs, axes.m), ("rhs", roles.rhs, axes.n)):
        let, own = kernel.let(name), WalkAxes(axes.batch, outer, axes.k, axes.sizes)
        if image is not None and side == image.side:
            sides.append(image_operand(let, refs, image, own, row))
            continue
        if image is not None and image.is_summed and isinstance(let.expr, Read):
            # Filters may end before others do, where the windows of the image do as well.
            address = _affine_address(let.expr.index, refs[let.expr.tensor], kernel)
            plain = _make_operand(let, address, outer, axes)
            sides.append(filter_operand(plain, address, image, own, row))
            continue
        address = _operand_address(let, kernel, refs)
        sides.append(_make_operand(let, address, outer, axes))
    return sides[0], sides[1]


def _operands_as_matrices(
    kernel: Kernel, roles: Roles, refs: Refs, axes: _Axes
) -> tuple[Operand, Operand]:
    """Both operands, guarded or not, as if they were matrices."""
    lets = (kernel.let(roles.lhs), axes.m), (kernel.let(roles.rhs), axes.n)
    reads = [(let, let.expr, outer) for let, outer in lets if isinstance(let.expr, Read)]
    if len(reads) < len(lets):
        raise Refusal("OperandComputed", "an operand of the contraction is computed, not read")
    found = [
        _make_operand(let, _affine_address(read.index, refs[read.tensor], kernel), outer, axes)
        for let, read, outer in reads
    ]
    return found[0], found[1]


def _depth(a: Operand, b: Operand) -> int:
    """The contracted axes of windows, with channels padded; 0 where matrices are contracted."""
    walk = a.walk or b.walk
    return prod(size for _, size in walk.inner) if walk is not None else 0


def _operand_address(let: Let, kernel: Kernel, refs: Refs) -> Expr:
    if not isinstance(let.expr, Read):
        raise Refusal("OperandComputed", "an operand of the contraction is computed, not read")
    return _read_address(let.expr, kernel, refs)


def _read_address(read: Read, kernel: Kernel, refs: Refs) -> Expr:
    if kernel.open_guards(read):
        raise Refusal("GuardedRead", "a read is guarded: part of the tensor is padding")
    return _affine_address(read.index, refs[read.tensor], kernel)


def _source_address(let: Let, kernel: Kernel, refs: Refs) -> Expr | None:
    match let.expr:
        case Read() as read:
            return _read_address(read, kernel, refs)
        case AxisIndex(expr=expr):
            return affine(expr)
        case _:
            return None


def _affine_address(index: Iterable[Expr], ref: MemRef, kernel: Kernel) -> Expr:
    return affine(linear(index, ref.strides))


def affine(expr: Expr) -> Expr:
    """An index that templates can compute from axes alone; raises `Refusal`."""
    if params_of(expr):
        raise Refusal("RuntimeOffset", f"the index {expr} depends on a number known at run time")
    if any(isinstance(term, FloorDiv) for term, _ in expr.terms):
        raise Refusal("NotAffine", f"the index {expr} is not affine")
    return expr


def _matrix_axes(kernel: Kernel, roles: Roles, refs: Refs) -> _Axes:
    """Rows, columns and contracted axes that act as one; the rest is batch."""
    found, sizes = problem_of(kernel), kernel.sizes
    if found is None or found.image is None:
        for name in (roles.lhs, roles.rhs):
            _operand_address(kernel.let(name), kernel, refs)
    if found is None:
        raise Refusal("OperandComputed", "an operand of the contraction is computed, not read")
    if any(sizes[name] != 1 for name in roles.k if name not in found.axes.k):
        raise Refusal("ContractedAxes", "the contracted axes do not follow one another in memory")
    return _Axes(found.axes.batch, found.axes.m, found.axes.n, found.axes.k, sizes)


def _run_stride(expr: Expr, run: Sequence[str], sizes: Mapping[str, int]) -> int:
    """The stride of a run: that of its innermost axis with more than one element."""
    for name in reversed(run):
        if sizes[name] != 1:
            return coefficient(expr, name)
    return 0


def _strides(expr: Expr, axes: _Axes) -> Strides:
    digits = _run_digits(expr, axes.m, axes.sizes)
    return Strides(
        expr.constant,
        _run_stride(expr, axes.m, axes.sizes),
        _run_stride(expr, axes.n, axes.sizes),
        tuple(coefficient(expr, name) for name in axes.batch),
        digits if len(digits) > 1 else (),
    )


def _run_digits(
    expr: Expr, run: Sequence[str], sizes: Mapping[str, int]
) -> tuple[tuple[int, int], ...]:
    """Sizes and strides of the axes of a run, those that follow one another as one."""
    found: list[tuple[int, int]] = []
    for name in run:
        size, stride = sizes[name], coefficient(expr, name)
        if found and found[-1][1] == stride * size:
            found[-1] = (found[-1][0] * size, stride)
        elif size > 1:
            found.append((size, stride))
    return tuple(found)


def _make_operand(let: Let, expr: Expr, outer: tuple[str, ...], axes: _Axes) -> Operand:
    assert isinstance(let.expr, Read)  # `_operand_address` has refused the rest
    inner = _run_stride(expr, axes.k, axes.sizes)
    across = _run_stride(expr, outer, axes.sizes)
    k, rows = axes.size(axes.k), axes.size(outer)
    # An axis of one element may have any stride; this one keeps the operand regular.
    inner = inner if k > 1 else 1
    across = across if rows > 1 else (k if inner == 1 else 1)
    batch = tuple(coefficient(expr, name) for name in axes.batch)
    return Operand(let.expr.tensor, let.dtype, expr.constant, across, inner, batch)


def _epilogue_program(
    epilogue: Sequence[Let],
    addresses: Mapping[str, Expr | None],
    names: Mapping[str, str],
    axes: _Axes,
    lets: Mapping[str, Let],
) -> tuple[tuple[Source, ...], list[ElementOp]]:
    sources: list[Source] = []
    ops: list[ElementOp] = []
    for let in epilogue:
        address = addresses[let.name]
        name = names[let.name]
        if address is None:
            ops.append(element_op(let, name, names))
            continue
        tensor = let.expr.tensor if isinstance(let.expr, Read) else None
        sources.append(Source(name, let.dtype, tensor, _strides(address, axes)))
    return tuple(sources), ops


def element_op(let: Let, name: str, names: Mapping[str, str]) -> ElementOp:
    """A Let without a read or a reduction as an element op; `names` renames its operands."""
    args = tuple(names[operand] for operand in operands(let))
    match let.expr:
        case Const(value=value):
            return ElementOp(name, let.dtype, "const", (), value)
        case Unary(fn=fn) | Binary(fn=fn):
            return ElementOp(name, let.dtype, fn, args)
        case Cast():
            return ElementOp(name, let.dtype, "cast", args)
        case AxisIndex(expr=expr) if not expr.terms:  # element 0 of an axis, say
            return ElementOp(name, let.dtype, "const", (), expr.constant)
        case _:
            assert isinstance(let.expr, Select), f"{name} is no function of elements"
            return ElementOp(name, let.dtype, "select", args)
