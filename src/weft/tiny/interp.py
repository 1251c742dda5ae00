"""The meaning of a Tiny graph, executed with NumPy, node by node.

Functions of elements are those of `foundation.functions`; a value is dropped after its last use.
Ops that stayed whole are handed to `opaque`, which knows what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.foundation import functions, numeric, philox
from weft.foundation.dims import static_shape
from weft.foundation.dtypes import SI64
from weft.foundation.errors import Unimplemented, UserError
from weft.foundation.index_expr import evaluate
from weft.tiny.ir import (
    Barrier,
    Binary,
    Cast,
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
    Opaque,
    Pad,
    Permute,
    Reduce,
    Reshape,
    Shrink,
    Unary,
    Value,
    View,
    Where,
    Words,
    operands,
)

Array: TypeAlias = NDArray[Any]
Whole: TypeAlias = Callable[[Opaque, Sequence[Array]], Array]


def run(graph: Graph, inputs: Mapping[str, Array], opaque: Whole | None = None) -> list[Array]:
    """The outputs of a graph, in order."""
    every = evaluate_all(graph, inputs, opaque, keep_all=False)
    return [every[value] for _, value in graph.outputs]


def evaluate_all(
    graph: Graph, inputs: Mapping[str, Array], opaque: Whole | None = None, *, keep_all: bool = True
) -> dict[Value, Array]:
    """The arrays of the outputs, or of every value, by value."""
    data = {**graph.constants, **inputs}
    order = graph.values
    uses = _last_uses(order, [value for _, value in graph.outputs])
    arrays: dict[Value, Array] = {}
    with np.errstate(**functions.QUIET):
        for position, value in enumerate(order):
            args = [arrays[operand] for operand in operands(value)]
            arrays[value] = _check_result(value, _evaluate(value, args, data, opaque))
            for dead in [] if keep_all else uses.get(position, []):
                del arrays[dead]
    return arrays


def _last_uses(order: Sequence[Value], outputs: Sequence[Value]) -> dict[int, list[Value]]:
    last = {
        operand: position for position, value in enumerate(order) for operand in operands(value)
    }
    dead: dict[int, list[Value]] = {}
    for value, position in last.items():
        if value not in outputs:
            dead.setdefault(position, []).append(value)
    return dead


def _check_result(value: Value, array: Array) -> Array:
    if array.shape != value.shape or array.dtype != value.dtype.numpy:
        what = f"the input {value.name!r}" if isinstance(value, Input) else type(value).__name__
        shape = ", ".join(map(str, value.shape))
        raise UserError(
            f"{what} has type {value.dtype}[{shape}] but its array is "
            f"{array.dtype}{list(array.shape)}"
        )
    return array


def _evaluate(
    value: Value, args: Sequence[Array], data: Mapping[str, Array], opaque: Whole | None
) -> Array:
    match value:
        case Input(name=name):
            if name not in data:
                raise UserError(f"the input {name!r} was not given")
            return np.asarray(data[name])
        case Const(value=scalar):
            return _scalar_array(scalar, value)
        case Iota():
            return _iota(value)
        case Unary(fn=fn, x=x):
            return functions.unary(str(fn), x.dtype, args[0])
        case Cast(x=x, dtype=dtype):
            return numeric.cast(args[0], x.dtype, dtype)
        case Binary(fn=fn, lhs=lhs):
            return functions.binary(str(fn), lhs.dtype, *args)
        case Where():
            return np.asarray(np.where(*args))
        case Reduce(fn=reduce_fn, x=x, axes=axes, acc=acc):
            return functions.reduce(str(reduce_fn), x.dtype, args[0], axes, acc)
        case DynamicUpdate():
            return _write_window(args[0], args[1], args[2:])
        case Gather(axis=axis):
            return _gather_places(args[0], args[1], axis)
        case Check(rule=rule, size=size, code=code):
            return functions.checked(args[0], str(rule), size, code)
        case Words():
            return _random_words(args[0], static_shape(value.shape[value.lead :]))
        case Opaque():
            if opaque is None:
                raise Unimplemented(str(value.op), "Tiny does not know what it means")
            return opaque(value, args)
        case _:
            return _move_elements(value, args)


def _scalar_array(scalar: object, value: Const) -> Array:
    if value.dtype.is_float:
        return numeric.round_float(np.asarray(scalar, np.float64), value.dtype)
    return np.asarray(np.asarray(scalar).astype(value.dtype.numpy))


def _iota(value: Iota) -> Array:
    shape = static_shape(value.shape)
    counts = numeric.cast(np.arange(shape[value.axis]), SI64, value.dtype)
    column = (-1, *(1 for _ in shape[value.axis + 1 :]))
    if 0 in shape:
        return np.empty(shape, value.dtype.numpy)
    return np.broadcast_to(counts.reshape(column), shape)


def _move_elements(value: Value, args: Sequence[Array]) -> Array:
    x = args[0]
    match value:
        case Reshape(shape=shape):
            return x.reshape(static_shape(shape))
        case Permute(perm=perm):
            return x.transpose(perm)
        case Expand(shape=shape):
            return np.broadcast_to(x, static_shape(shape))
        case Pad(low=low, value=fill):
            result = np.full(static_shape(value.shape), _scalar_array(fill.value, fill), x.dtype)
            result[_window_index(low, x.shape)] = x
            return result
        case Shrink(start=start, size=size):
            return np.asarray(x[_window_index(start, static_shape(size))])
        case Flip(axes=axes):
            return np.flip(x, axes)
        case View(shape=shape, index=index):
            places = np.indices(static_shape(shape), sparse=True)
            env = {f"i{k}": place for k, place in enumerate(places)}
            found = x[tuple(evaluate(e, env) for e in index)] if index else x
            return np.asarray(np.broadcast_to(found, static_shape(shape)))
        case DynamicShrink(size=size):
            return np.asarray(x[_clamp_window(x, static_shape(size), args[1:])])
        case Barrier():
            return x
    raise UserError(f"{type(value).__name__} is not a node of Tiny")


def _write_window(x: Array, update: Array, starts: Sequence[Array]) -> Array:
    result = np.array(x)
    result[_clamp_window(x, update.shape, starts)] = update
    return result


def _gather_places(x: Array, index: Array, axis: int) -> Array:
    places: list[Array] = list(np.indices(index.shape, sparse=True))
    places[axis] = index
    return np.asarray(x[tuple(places)]).reshape(index.shape)


def _random_words(states: Array, shape: Sequence[int]) -> Array:
    """Words of this shape for each state."""
    seeds, offsets = (states.reshape(-1, 2)[:, k : k + 1].astype(np.uint64) for k in (0, 1))
    found = philox.words_at(np.arange(prod(shape), dtype=np.uint64), seeds, offsets)
    return found.reshape(*states.shape[:-1], *shape)


def _clamp_window(x: Array, size: Sequence[int], starts: Sequence[Array]) -> tuple[Any, ...]:
    """The window whose start is moved as little as needed for it to lie inside `x`."""
    bounds = zip(starts, x.shape, size, strict=True)
    return _window_index([min(max(int(s), 0), dim - n) for s, dim, n in bounds], size)


def _window_index(start: Sequence[int], size: Sequence[int]) -> tuple[Any, ...]:
    """The ellipsis keeps a rank-0 result an array."""
    return (..., *(slice(s, s + n) for s, n in zip(start, size, strict=True)))
