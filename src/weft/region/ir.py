"""Region Buffer SSA: kernels. Only kernel outputs are buffers; inside, values are SSA over axes.

    Module  = tensors, kernels in order, inputs and outputs by tensor name
    Kernel  = axes, inputs, stages, body [Let], outputs, form (what it is: `form.py`)
    Stage   = local tensor, axes, body [Let], value
    Let     = name : dtype over axes = Expr
    Expr    = Read(tensor, index, guards, fill, places) | Const | AxisIndex | Unary | Cast | Binary
            | Select | Reduce(fn, axes, value, acc) | Fold(...) | Check(rule) | Words
    Output  = tensor[index] <- value            (base: the tensor whose other elements stay)

Semantics. A kernel has named axes with sizes. A value lives over a subset of them, listed in the
kernel's order, and is a function of those axes alone; an operand that lives over fewer axes is the
same for all others (nothing is broadcast in memory). `Reduce` combines its operand over axes that
its result no longer has. `AxisIndex` is an axis expression as a number. `Read` loads the element at
`index`, or gives `fill` where a guard fails, and then touches no memory; a param of its index that
`places` lists is a value of the kernel, kept inside its size. `Check` is its operand, reported as a
violation where it breaks a rule (and then any number that keeps it). `Words` are random bits of a
state at a place. An output stores its value
at `index` for every point of the value's axes; each element is written once. With `base`, the
elements that are not written are those of the tensor `base`, which has as many, in row-major order:
the memory stage puts both into one buffer or inserts a copy.

`Fold` is a loop with state: for each step over `axes`, in order, the carries are updated by `step`;
two partial results can be merged by `combine`, which is associative with `init` as identity. Online
softmax, Welford and log-sum-exp are folds. `carries` are named, and `step` and `combine` are bodies
of Lets over them. A step sees one point of `axes`: a value of the kernel that lives over them is
taken at that point, and no value of the step lives over them. Two Lets whose folds differ only in
`result` are one loop.

A stage is what would be a kernel before this one, were its result in memory: `local[axes] <- value`
for every point of its axes. Its body is its own: it reads what the kernel reads, and the locals of
stages before it. Stages come in order, each over all its axes, and then the kernel's body, which
reads their locals as it reads any tensor. They are pure, so that a plan may compute an element of a
local twice, or only those that are read, and keep no more of them than are still to be read.

An opaque kernel carries an op whole: it has no body, and its outputs are the op's results.

Playback (`interp.py`) executes exactly this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from enum import Enum
from functools import cached_property
from typing import Any, Final, TypeAlias

from weft.foundation.dtypes import DType
from weft.foundation.errors import InternalError
from weft.foundation.index_expr import Expr as IndexExpr
from weft.foundation.index_expr import Guard, Index, always, axis
from weft.foundation.json_records import APART, LAST, SAID, called
from weft.foundation.memo import memo
from weft.foundation.records import dataclass, replace
from weft.region.form import (
    Attention,
    AttentionParts,
    Form,
    Map,
    Problem,
    Product,
    Row,
    Rows,
    Stream,
    StreamParts,
)

Scalar: TypeAlias = bool | int | float | complex


class Materialize(Enum):
    """When a result goes to memory.

    Deferred: what the kernel's contraction produced is consumed at once, on chip, and only the
    value at the end of its epilogue is stored. Gmem: the result is stored as it is.
    """

    DEFERRED = "deferred"
    GMEM = "gmem"


@dataclass(frozen=True)
class Place:
    """A param of one read that is a value: `$param` in its index is `value`, in [0, size)."""

    param: str
    value: str
    size: int


@dataclass(frozen=True)
class Read:
    """`tensor[index]`, or `fill` where a guard fails."""

    tensor: str
    index: Index
    guards: tuple[Guard, ...] = ()
    fill: Scalar | None = field(default=None, metadata=LAST)
    places: tuple[Place, ...] = ()


@dataclass(frozen=True)
class Const:
    """A number."""

    value: Scalar


@dataclass(frozen=True)
class AxisIndex:
    """An axis expression as a value."""

    expr: IndexExpr


@dataclass(frozen=True)
class Unary:
    """`fn(x)`; function names are Tiny's."""

    fn: str
    x: str


@dataclass(frozen=True)
class Cast:
    """`x` in the dtype of the Let."""

    x: str


@dataclass(frozen=True)
class Binary:
    """`fn(lhs, rhs)`; a comparison gives i1."""

    fn: str
    lhs: str
    rhs: str


@dataclass(frozen=True)
class Select:
    """`pred ? x : y`."""

    pred: str
    x: str
    y: str


@dataclass(frozen=True)
class Check:
    """`x`, which must be `inside` [0, size), `nonzero` or `nonnegative`: else a violation with
    `code` at `element` of the value that the program checks."""

    x: str
    rule: str
    code: str
    size: int
    element: IndexExpr


@dataclass(frozen=True)
class Words:
    """Word `element` of the random stream of a state (`seed`, `offset`)."""

    seed: str
    offset: str
    element: IndexExpr


@dataclass(frozen=True)
class Reduce:
    """`value` combined by `fn` over `axes`, accumulated in the dtype of the Let."""

    fn: str
    axes: tuple[str, ...]
    value: str


@dataclass(frozen=True)
class Fold:
    """A loop with state over `axes`; the Let's value is the carry named `result`."""

    axes: tuple[str, ...]
    carries: tuple[Carry, ...]
    step: tuple[Let, ...]
    combine: tuple[Let, ...]
    result: str


@dataclass(frozen=True)
class Carry:
    """One state of a fold: its start, and the names that step and combine give its next value.

    In `step` the carry is known by `name`. In `combine` the two sides are `name.a` and `name.b`.
    """

    name: str
    dtype: DType
    axes: tuple[str, ...]
    init: Scalar
    next: str
    merged: str


ValueExpr: TypeAlias = (
    Read | Const | AxisIndex | Unary | Cast | Binary | Select | Reduce | Fold | Check | Words
)


@dataclass(frozen=True)
class Let:
    """A value of a kernel."""

    name: str = field(metadata=called("let"))
    dtype: DType
    axes: tuple[str, ...]
    expr: ValueExpr = field(metadata=called("op"))


@dataclass(frozen=True)
class KernelAxis:
    """An axis of a kernel. Reduction axes are those no output is stored over."""

    name: str
    size: int
    reduce: bool = False


@dataclass(frozen=True)
class Output:
    """`tensor[index] <- value` over the value's axes."""

    tensor: str
    value: str
    index: Index
    base: str | None = None
    materialize: Materialize = field(default=Materialize.GMEM, metadata=SAID)


@dataclass(frozen=True)
class Param:
    """A run-time index parameter: the element of a rank-0 or rank-1 integer tensor, clamped."""

    name: str
    tensor: str
    element: int
    low: int
    high: int


class Pattern(Enum):
    """What a kernel was recognised as; it decides which plan kinds can carry it out."""

    MAP = "map"
    ROW = "row"
    MATMUL = "matmul"
    CONV = "conv"
    ATTENTION = "attention"
    STREAM = "stream"
    STAGED = "staged"
    OPAQUE = "opaque"


@dataclass(frozen=True)
class Roles:
    """For contractions: which axes are batch, rows, columns and reduced, and which Let is it.

    `contraction` names the Let that is the `Reduce`; `lhs` and `rhs` name the Lets that are the
    `Read`s of its operands, before any widening cast.
    """

    batch: tuple[str, ...]
    m: tuple[str, ...]
    n: tuple[str, ...]
    k: tuple[str, ...]
    contraction: str
    lhs: str
    rhs: str


@dataclass(frozen=True)
class OpaqueCall:
    """An op that no kernel language expresses, on whole tensors.

    `results[i]` says which result of the op the kernel's output number i is; -1 is memory that the
    op needs for itself. `pairs` are the inputs, by position, that are complex for the op.
    """

    op: object
    inputs: tuple[str, ...]
    results: tuple[int, ...]
    pairs: tuple[int, ...] = ()


@dataclass(frozen=True)
class Stage:
    """`local[outer axes] <- value`, kept on chip by the kernel that it is part of."""

    local: Tensor
    axes: tuple[KernelAxis, ...]
    body: tuple[Let, ...]
    value: str

    @property
    def name(self) -> str:
        return self.local.name

    @property
    def outer(self) -> tuple[KernelAxis, ...]:
        """The axes of its local; the others are windows that it reduces."""
        return tuple(found for found in self.axes if not found.reduce)

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel that it would be, were its local in memory."""
        index = tuple(axis(found.name) for found in self.outer)
        output = Output(self.local.name, self.value, index)
        whole = Kernel(self.local.name, Pattern.MAP, self.axes, self.body, (output,))
        return _as_part(whole)


@dataclass(frozen=True)
class Kernel:
    """One kernel: everything between its reads and its stores stays in registers or on chip."""

    name: str
    pattern: Pattern
    axes: tuple[KernelAxis, ...]
    body: tuple[Let, ...]
    outputs: tuple[Output, ...]
    params: tuple[Param, ...] = field(default=(), metadata=SAID)
    roles: Roles | None = None
    opaque: OpaqueCall | None = None
    labels: dict[str, str] = field(default_factory=dict, compare=False)
    """For people: Lets that have a name in the program, with that name."""
    form: Form | None = field(default=None, compare=False)
    """What it is, once it is finished; the rest decides it, so that nothing else compares it."""
    stages: tuple[Stage, ...] = ()

    @cached_property
    def sizes(self) -> dict[str, int]:
        return {found.name: found.size for found in self.axes}

    @cached_property
    def structures(self) -> dict[tuple[Tensor, ...], str]:
        """The digests of its structure, by its tensors, as far as somebody asked for them."""
        return {}

    @cached_property
    def problems(self) -> dict[tuple[Tensor, ...], Problem | None]:
        """The problems that it poses to matrix units, by its tensors, likewise."""
        return {}

    @cached_property
    def ranges(self) -> Mapping[str, tuple[int, int]]:
        """Inclusive ranges of axes and params, for interval arithmetic."""
        ranges = {found.name: (0, found.size - 1) for found in self.axes}
        ranges.update((param.name, (param.low, param.high)) for param in self.params)
        return ranges

    def ranges_of(self, read: Read) -> dict[str, tuple[int, int]]:
        """The ranges of all that the index and the guards of a read may name: those of the kernel
        and of the read's own places."""
        return {**self.ranges, **{place.param: (0, place.size - 1) for place in read.places}}

    def open_guards(self, read: Read) -> tuple[Guard, ...]:
        """The guards of a read that may fail somewhere."""
        ranges = self.ranges_of(read)
        return tuple(guard for guard in read.guards if not always(guard, ranges))

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Tensors it reads, in order of first use; locals are its own."""
        names = [let.expr.tensor for let in self.every_let() if isinstance(let.expr, Read)]
        carried = self.opaque.inputs if self.opaque else ()
        own = {stage.name for stage in self.stages}
        found = dict.fromkeys([*names, *(param.tensor for param in self.params), *carried])
        return tuple(name for name in found if name not in own)

    @property
    def parts(self) -> tuple[Kernel, ...]:
        """The stages as kernels, and what comes after them."""
        if not self.stages:
            return (self,)
        return (*(stage.kernel for stage in self.stages), _as_part(self))

    def every_let(self) -> Iterator[Let]:
        """The Lets of all stages and of the body, those inside folds included."""
        for stage in self.stages:
            yield from walk(stage.body)
        yield from walk(self.body)

    def with_locals(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors that its parts read and write, given those of the module."""
        return {**tensors, **{stage.name: stage.local for stage in self.stages}}

    @cached_property
    def lets(self) -> Mapping[str, Let]:
        """The Lets of its body by name; of two with one name, the first."""
        return {found.name: found for found in reversed(self.body)}

    @cached_property
    def points(self) -> dict[tuple[str, ...], int]:
        """The points of some of its axes, as far as somebody asked for them."""
        return {}

    @cached_property
    def reduced(self) -> frozenset[str]:
        """The axes that some reduction or fold of its body removes."""
        removing = [let.expr for let in self.body if isinstance(let.expr, Reduce | Fold)]
        return frozenset([name for expr in removing for name in expr.axes])

    @cached_property
    def draws(self) -> bool:
        """Whether its body has random numbers."""
        return any(isinstance(let.expr, Words) for let in self.body)

    @cached_property
    def buffers(self) -> tuple[str, ...]:
        """Its tensors by position: what it reads, what it writes, what that is based on."""
        outputs = [output.tensor for output in self.outputs]
        bases = [output.base for output in self.outputs if output.base is not None]
        return tuple(dict.fromkeys([*self.inputs, *outputs, *bases]))

    def let(self, name: str) -> Let:
        return self.lets[name]


def _as_part(kernel: Kernel) -> Kernel:
    """A kernel without stages as what it is among the parts of another: a map, or windows that are
    reduced."""
    windows = tuple(found.name for found in kernel.axes if found.reduce)
    form, pattern = (Row(Rows(windows, True)), Pattern.ROW) if windows else (Map(None), Pattern.MAP)
    return replace(kernel, pattern=pattern, stages=(), form=form)


def form_of(kernel: Kernel) -> Form:
    """What a finished kernel is."""
    if kernel.form is None:
        raise InternalError(f"kernel {kernel.name} is not finished: nobody has said what it is")
    return kernel.form


def problem_of(kernel: Kernel) -> Problem | None:
    """The problem that a finished kernel poses to matrix units; None where it poses none."""
    form = form_of(kernel)
    return form.problem if isinstance(form, Product) else None


def attention_parts(kernel: Kernel) -> AttentionParts:
    """What is what in a finished kernel that is an attention."""
    form = form_of(kernel)
    if not isinstance(form, Attention):
        raise InternalError(f"kernel {kernel.name} is not an attention")
    return form.parts


def stream_parts(kernel: Kernel) -> StreamParts:
    """What is what in a finished kernel that is a stream."""
    form = form_of(kernel)
    if not isinstance(form, Stream):
        raise InternalError(f"kernel {kernel.name} is not a stream")
    return form.parts


def epilogue_of(kernel: Kernel) -> tuple[str, ...]:
    """The steps between the contraction of a finished kernel and its first result."""
    form = form_of(kernel)
    return form.epilogue if isinstance(form, Product) else ()


def walk(body: tuple[Let, ...]) -> tuple[Let, ...]:
    """Every Let of a body, those inside folds included."""
    if not any(type(let.expr) is Fold for let in body):
        return body
    found: list[Let] = []
    for let in body:
        found.append(let)
        if isinstance(let.expr, Fold):
            found += walk(let.expr.step)
            found += walk(let.expr.combine)
    return tuple(found)


def operands(let: Let) -> tuple[str, ...]:
    """The values a Let is made of; of a fold, those its bodies take from outside."""
    found: tuple[str, ...] = _OPERANDS[type(let.expr)](let.expr)
    return found


def _taken_by_fold(fold: Fold) -> tuple[str, ...]:
    bodies = (*fold.step, *fold.combine)
    own = {c.name + side for c in fold.carries for side in ("", ".a", ".b")}
    own |= {inner.name for inner in walk(bodies)}
    names = [name for inner in bodies for name in operands(inner)]
    return tuple(name for name in dict.fromkeys(names) if name not in own)


_OPERANDS: Final[dict[type, Callable[[Any], tuple[str, ...]]]] = {
    Const: lambda expr: (),
    AxisIndex: lambda expr: (),
    Read: lambda expr: tuple(place.value for place in expr.places) if expr.places else (),
    Unary: lambda expr: (expr.x,),
    Cast: lambda expr: (expr.x,),
    Check: lambda expr: (expr.x,),
    Words: lambda expr: (expr.seed, expr.offset),
    Binary: lambda expr: (expr.lhs, expr.rhs),
    Select: lambda expr: (expr.pred, expr.x, expr.y),
    Reduce: lambda expr: (expr.value,),
    Fold: _taken_by_fold,
}
"""By the kind of an expression: fusion asks hundreds of thousands of times."""


@dataclass(frozen=True)
class Tensor:
    """A tensor that kernels read or write."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    role: str = field(default="internal", metadata=SAID)
    """input, param, state, constant, run (what random numbers depend on), output, internal, or
    local: of a stage, in no memory of the program."""
    room: int = 0
    """Elements at the end of each row, among those of the shape, that nobody reads: with them rows
    begin at whole lines of memory."""

    @property
    def extents(self) -> tuple[int, ...]:
        """The shape without room."""
        return (*self.shape[:-1], *(size - self.room for size in self.shape[-1:]))

    @cached_property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.storage_bytes


@memo(1 << 12)
def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements of a tensor whose last axis is contiguous."""
    return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))


@dataclass(frozen=True)
class Chain:
    """Kernels that together are something with a name: a `row_softmax`, an `attention`, a `stream`.
    A template for the whole may take their place."""

    kind: str
    kernels: tuple[str, ...]


@dataclass(frozen=True)
class Weighed:
    """A choice that was made when values were put into kernels, with what it was estimated at."""

    value: str
    """A block of Poly-View."""
    together: float
    """Seconds of all kernels concerned if it is computed where it is read, or, with another value
    beside it, if both are stored by one kernel."""
    apart: float
    """The same if it goes through memory, or if each is stored by a kernel of its own."""
    beside: str = ""
    stage: bool = False
    """Whether `together` is as a stage of the kernel that reads it."""


@dataclass(frozen=True)
class Module:
    """The kernels of a program, in order."""

    tensors: dict[str, Tensor]
    kernels: tuple[Kernel, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    origin: dict[str, tuple[int, ...]] = field(default_factory=dict, compare=False)
    """Kernel name to the ids of the PTIR values it computes."""
    chains: tuple[Chain, ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False, metadata=APART)
    """What was decided about all kernels together, a sentence each."""
    stops: dict[str, str] = field(default_factory=dict, compare=False, metadata=APART)
    """Kernel of a contraction to why what follows it is computed by other kernels."""
    stored: dict[str, str] = field(default_factory=dict, compare=False, metadata=APART)
    """Blocks that go through memory to why they do."""
    weighed: tuple[Weighed, ...] = field(default=(), compare=False, metadata=APART)
    """What the estimates said where a choice was left to them."""
