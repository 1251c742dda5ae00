"""The verifier of Tiny: every rule of the grammar's docstring, node by node.

    E1001 BroadcastMismatch   operands of different shapes, or an axis that cannot be expanded
    E1102 NegativeStride      a view that walks an axis backwards (only `Flip` may)
    E1103 ViewOutOfRange      a view that leaves its operand
    E1104 ShapeMismatch       a shape that its operand cannot have
    E1105 DTypeMismatch       operands of different dtypes, or a function not defined for one
    E1106 AxisInvalid         axes that are out of range, repeated, or not a permutation
    E1107 GraphInvalid        inputs that are not declared, declared twice, or without their data

Symbols are allowed as sizes; what cannot be decided with them is left to the numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod
from typing import Final

from weft.foundation.dims import Shape, Symbol
from weft.foundation.dtypes import (
    I1,
    INDICES,
    INTEGERS,
    NUMBERS,
    ORDERED,
    SI64,
)
from weft.foundation.dtypes import as_dtype as dtype_of
from weft.foundation.errors import Finding, SpecViolation
from weft.foundation.index_expr import Axis, axes_of, bounds
from weft.foundation.scalar import BINARY, FUNCTIONS, UNARY, Fn
from weft.tiny.ir import (
    Binary,
    Check,
    Const,
    DynamicShrink,
    DynamicUpdate,
    Expand,
    Flip,
    Gather,
    Graph,
    Input,
    Iota,
    Pad,
    Permute,
    Reduce,
    ReduceFn,
    Reshape,
    Shrink,
    Unary,
    Value,
    View,
    Where,
    Words,
    value_ids,
)

BROADCAST: Final = "E1001 BroadcastMismatch"
STRIDE: Final = "E1102 NegativeStride"
RANGE: Final = "E1103 ViewOutOfRange"
SHAPE: Final = "E1104 ShapeMismatch"
DTYPE: Final = "E1105 DTypeMismatch"
AXIS: Final = "E1106 AxisInvalid"
GRAPH: Final = "E1107 GraphInvalid"
Problem = tuple[str, str]
"""A code and the reason."""


def verify(graph: Graph) -> None:
    """Raise a `SpecViolation` that carries everything that is wrong with a graph."""
    found = list(findings(graph))
    if found:
        raise SpecViolation.of(found)


def findings(graph: Graph) -> Iterator[Finding]:
    """Everything that is wrong with a graph."""
    values = graph.values
    ids = value_ids(values)
    for code, why in _graph_problems(graph, values):
        yield Finding(code, "the graph", why)
    for value in values:
        for code, why in _problems(value):
            yield Finding(code, _value_place(graph, value, ids[value]), why)


def _value_place(graph: Graph, value: Value, value_id: str) -> str:
    name = graph.op_names.get(value) or graph.names.get(value) or value_id
    origin = graph.origin.get(value)
    source = f" (from %{', %'.join(map(str, origin))})" if origin else ""
    return f"{type(value).__name__} {name}{source}"


def _graph_problems(graph: Graph, values: Sequence[Value]) -> Iterator[Problem]:
    names = Counter([*(i.name for i in graph.inputs), *graph.constants])
    names.update(Counter(dict.fromkeys(dict(graph.outputs), 0)))
    for name, count in names.items():
        if count > 1:
            yield GRAPH, f"the input {name!r} is declared {count} times"
    for value in values:
        if not isinstance(value, Input):
            continue
        if value not in graph.inputs and value.name not in graph.constants:
            yield GRAPH, f"the input {value.name!r} is used but not declared"
        data = graph.constants.get(value.name)
        if data is not None and (dtype_of(data.dtype), data.shape) != (value.dtype, value.shape):
            kind = f"{value.dtype}{list(value.shape)}"
            yield GRAPH, f"the data of {value.name!r} is {data.dtype}{list(data.shape)}, not {kind}"
    repeated = [n for n, count in Counter(n for n, _ in graph.outputs).items() if count > 1]
    for name in repeated:
        yield GRAPH, f"two outputs are called {name!r}"


def _problems(value: Value) -> Iterator[Problem]:
    match value:
        case Const():
            yield from _const(value)
        case Iota(shape=shape, axis=axis, dtype=dtype):
            if not 0 <= axis < len(shape):
                yield AXIS, f"axis {axis} of a counter of shape {_show(shape)}"
            if dtype not in NUMBERS:
                yield DTYPE, f"a counter cannot be {dtype}"
        case Unary(fn=fn, x=x):
            yield from _function_problems(fn, x, UNARY)
        case Binary() | Where():
            yield from _together(value)
        case Reduce():
            yield from _reduce_problems(value)
        case Gather():
            yield from _gather(value)
        case Check(x=x, size=size):
            if x.dtype not in INTEGERS or size < 0:
                yield DTYPE, f"a check of {x.dtype} against {size}; only integers have rules"
        case Words(state=state):
            if state.dtype is not SI64 or state.shape[-1:] != (2,):
                yield DTYPE, f"a state is {state.dtype}{_show(state.shape)}, not si64[2]"
            elif state.shape[:-1] != value.shape[: value.lead]:
                yield SHAPE, f"{_show(state.shape)} are not the states of {_show(value.shape)}"
        case Reshape(x=x, shape=shape):
            if _static(x.shape) and _static(shape) and _known_count(x.shape) != _known_count(shape):
                why = f"{_show(x.shape)} and {_show(shape)} have different numbers of elements"
                yield SHAPE, why
        case Permute(x=x, perm=perm):
            if sorted(perm) != list(range(len(x.shape))):
                yield AXIS, f"{list(perm)} is not a permutation of the {len(x.shape)} axes"
        case Expand(x=x, shape=shape):
            fits = len(shape) == len(x.shape) and all(
                before in (1, after) for before, after in zip(x.shape, shape, strict=True)
            )
            if not fits:
                yield BROADCAST, f"{_show(x.shape)} cannot be expanded to {_show(shape)}"
        case Flip(x=x, axes=axes):
            yield from _axes_problems(axes, len(x.shape))
        case Pad() | Shrink() | View() | DynamicShrink() | DynamicUpdate():
            yield from _movement_problems(value)


def _const(value: Const) -> Iterator[Problem]:
    wanted: type = float if value.dtype.is_float else int
    if value.dtype is I1:
        wanted = bool
    elif value.dtype.is_complex:
        wanted = complex
    if type(value.value) is not wanted:
        yield DTYPE, f"the constant {value.value!r} is not a {wanted.__name__}, as {value.dtype} is"
    elif value.dtype.is_integer and not (
        value.dtype.lowest <= value.value.real <= value.dtype.highest
    ):
        yield DTYPE, f"the constant {value.value} is outside the range of {value.dtype}"


def _function_problems(fn: Fn, x: Value, allowed: frozenset[Fn]) -> Iterator[Problem]:
    if fn not in allowed:
        yield DTYPE, f"{fn} takes another number of operands"
    elif x.dtype not in FUNCTIONS[fn].dtypes:
        yield DTYPE, f"{fn} is not defined for {x.dtype}"


def _together(value: Binary | Where) -> Iterator[Problem]:
    """Operands that run together: one shape, one dtype; a choice is made by i1."""
    if isinstance(value, Binary):
        sides: tuple[Value, ...] = (value.lhs, value.rhs)
        yield from _function_problems(value.fn, value.lhs, BINARY)
    else:
        sides = (value.pred, value.x, value.y)
        if value.pred.dtype is not I1:
            yield DTYPE, f"the predicate is {value.pred.dtype}, not i1"
    first, last = sides[-2:]
    if first.dtype is not last.dtype:
        yield DTYPE, f"the operands are {first.dtype} and {last.dtype}; nothing is cast implicitly"
    shapes = dict.fromkeys(side.shape for side in sides)
    if len(shapes) > 1:
        shown = " and ".join(map(_show, shapes))
        yield BROADCAST, f"the operands have shapes {shown}; only Expand broadcasts"


def _reduce_problems(value: Reduce) -> Iterator[Problem]:
    yield from _axes_problems(value.axes, len(value.x.shape))
    if value.x.dtype is not value.acc:
        yield DTYPE, f"the operand is {value.x.dtype}, the accumulator {value.acc}; cast it first"
    ordered = value.fn in (ReduceFn.MAX, ReduceFn.MIN)
    if value.acc not in (ORDERED if ordered else NUMBERS):
        yield DTYPE, f"{value.fn} is not defined for {value.acc}"


def _gather(value: Gather) -> Iterator[Problem]:
    x, index, axis = value.x, value.index, value.axis
    if index.dtype not in INDICES:
        yield DTYPE, f"the index is {index.dtype}, not si32 or si64"
    if not 0 <= axis < len(x.shape) or len(x.shape) != len(index.shape):
        yield AXIS, f"axis {axis} of {_show(x.shape)} read by an index of {_show(index.shape)}"
    elif any(
        a != b for k, (a, b) in enumerate(zip(x.shape, index.shape, strict=True)) if k != axis
    ):
        yield SHAPE, f"{_show(x.shape)} and {_show(index.shape)} differ beside axis {axis}"


def _axes_problems(axes: Sequence[int], rank: int) -> Iterator[Problem]:
    if list(axes) != sorted(set(axes)) or not all(0 <= k < rank for k in axes):
        yield AXIS, f"{list(axes)} are not ascending axes of an operand of rank {rank}"


def _movement_problems(
    value: Pad | Shrink | View | DynamicShrink | DynamicUpdate,
) -> Iterator[Problem]:
    rank = len(value.x.shape)
    match value:
        case Pad(low=low, high=high, value=fill):
            if len(low) != rank or len(high) != rank or min((*low, *high), default=0) < 0:
                yield SHAPE, f"a pad of {list(low)} and {list(high)} around rank {rank}"
            if fill.dtype is not value.x.dtype:
                yield DTYPE, f"the operand is {value.x.dtype}, the padding {fill.dtype}"
        case Shrink(start=start, size=size):
            yield from _window_problems(value.x.shape, size, start)
        case View():
            yield from _view(value)
        case DynamicShrink(starts=starts, size=size):
            yield from _window_problems(value.x.shape, size, [0] * len(size))
            yield from _start_problems(starts, rank)
        case DynamicUpdate(update=update, starts=starts):
            yield from _window_problems(value.x.shape, update.shape, [0] * len(update.shape))
            yield from _start_problems(starts, rank)
            if update.dtype is not value.x.dtype:
                yield DTYPE, f"the operand is {value.x.dtype}, the update {update.dtype}"


def _window_problems(shape: Shape, size: Shape, start: Sequence[int]) -> Iterator[Problem]:
    if len(size) != len(shape) or len(start) != len(shape):
        yield SHAPE, f"a window of {_show(size)} at {list(start)} in {_show(shape)}"
        return
    for dim, n, at in zip(shape, size, start, strict=True):
        known = isinstance(dim, int) and isinstance(n, int)
        if at < 0 or (known and at + n > dim) or (not known and (dim != n or at)):
            yield SHAPE, f"a window of {_show(size)} at {list(start)} leaves {_show(shape)}"
            return


def _start_problems(starts: Sequence[Value], rank: int) -> Iterator[Problem]:
    if len(starts) != rank:
        yield SHAPE, f"{len(starts)} starts for an operand of rank {rank}"
    for start in starts:
        if start.shape != () or start.dtype not in INDICES:
            yield DTYPE, f"a start is {start.dtype}{_show(start.shape)}, not a si32 or si64 scalar"


def _view(value: View) -> Iterator[Problem]:
    if len(value.index) != len(value.x.shape):
        yield SHAPE, f"{len(value.index)} index expressions for rank {len(value.x.shape)}"
        return
    own = {f"i{k}": dim for k, dim in enumerate(value.shape)}
    ranges = {name: (0, max(dim - 1, 0)) for name, dim in own.items() if isinstance(dim, int)}
    for expr, dim in zip(value.index, value.x.shape, strict=True):
        unknown = axes_of(expr).difference(own)
        if unknown:
            yield AXIS, f"{expr} uses {', '.join(sorted(unknown))}, which the view does not have"
        elif any(f < 0 and isinstance(t, Axis) for t, f in expr.terms):
            yield STRIDE, f"{expr} walks an axis backwards; use Flip"
        elif axes_of(expr) <= ranges.keys() and isinstance(dim, int) and 0 not in value.shape:
            low, high = bounds(expr, ranges)
            if low < 0 or high >= dim:
                yield RANGE, f"{expr} runs from {low} to {high}, outside [0, {dim})"


def _static(shape: Shape) -> bool:
    return not any(isinstance(d, Symbol) for d in shape)


def _known_count(shape: Shape) -> int:
    return prod(d for d in shape if isinstance(d, int))


def _show(shape: Sequence[object]) -> str:
    return f"[{', '.join(map(str, shape))}]"
