"""The reference interpreter of kernels: NumPy, exactly as `ir.py` says, slow and obvious.

A value is held as an array with one dimension per axis of the kernel, in order, of extent 1 for
axes that it does not live over; NumPy's broadcasting is then the rule that an operand is the same
for all axes it does not have. A store checks that no element is written twice and, without a base,
that none is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.foundation import functions, numeric, philox
from weft.foundation.dtypes import SI64, DType
from weft.foundation.errors import InternalError, Unimplemented
from weft.foundation.index_expr import evaluate
from weft.region.ir import (
    AxisIndex,
    Binary,
    Carry,
    Cast,
    Check,
    Const,
    Fold,
    Kernel,
    Let,
    Module,
    Output,
    Read,
    Reduce,
    Scalar,
    Select,
    Tensor,
    Unary,
    Words,
    operands,
)

Array = NDArray[Any]
OpaqueRunner: TypeAlias = Callable[[object, Sequence[Array]], Sequence[Array]]

_LARGE = 1 << 16
"""Products under a sum with more elements than this are contracted without being built."""


def run_module(
    module: Module,
    arrays: Mapping[str, Array],
    *,
    opaque: OpaqueRunner | None = None,
    fold_parts: int = 1,
) -> dict[str, Array]:
    """Every tensor after all kernels ran; `arrays` holds inputs, state and constants."""
    found = dict(arrays)
    for kernel in module.kernels:
        found.update(
            run_kernel(kernel, module.tensors, found, opaque=opaque, fold_parts=fold_parts)
        )
    return found


def run_kernel(
    kernel: Kernel,
    tensors: Mapping[str, Tensor],
    arrays: Mapping[str, Array],
    *,
    opaque: OpaqueRunner | None = None,
    fold_parts: int = 1,
) -> dict[str, Array]:
    """The tensors one kernel writes. With `fold_parts` above 1 each fold is cut into that many
    pieces, which are merged by `combine`."""
    if kernel.opaque is not None:
        return _run_opaque(kernel, tensors, arrays, opaque)
    if kernel.stages:
        return _run_stages(kernel, tensors, arrays)
    with np.errstate(**functions.QUIET):
        playback = Playback(kernel, tensors, arrays, fold_parts)
        playback.run(kernel.body)
        return {output.tensor: playback.store(output) for output in kernel.outputs}


def _run_stages(
    kernel: Kernel, tensors: Mapping[str, Tensor], arrays: Mapping[str, Array]
) -> dict[str, Array]:
    """Every stage over all its axes, then the rest."""
    known, found = kernel.with_locals(tensors), dict(arrays)
    for part in kernel.parts:
        found.update(run_kernel(part, known, found))
    return {output.tensor: found[output.tensor] for output in kernel.outputs}


def _run_opaque(
    kernel: Kernel,
    tensors: Mapping[str, Tensor],
    arrays: Mapping[str, Array],
    runner: OpaqueRunner | None,
) -> dict[str, Array]:
    call = kernel.opaque
    if call is None or runner is None:
        raise Unimplemented(kernel.name, "playback was given nothing that can run an opaque op")
    given = [arrays[name] for name in call.inputs]
    whole = [numeric.as_complex(a) if n in call.pairs else a for n, a in enumerate(given)]
    results = runner(call.op, whole)
    found = {}
    for output, number in zip(kernel.outputs, call.results, strict=True):
        shape = tensors[output.tensor].shape
        if number >= 0:
            found[output.tensor] = numeric.as_pairs(results[number]).reshape(shape)
    return found


@dataclass
class Playback:
    """The state of one kernel: where each axis stands, and the values so far."""

    kernel: Kernel
    tensors: Mapping[str, Tensor]
    arrays: Mapping[str, Array]
    fold_parts: int
    grid: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)
    dtypes: dict[str, DType] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.place = {axis.name: n for n, axis in enumerate(self.kernel.axes)}
        rank = len(self.kernel.axes)
        for number, axis in enumerate(self.kernel.axes):
            shape = [1] * rank
            shape[number] = axis.size
            self.grid[axis.name] = np.arange(axis.size, dtype=np.int64).reshape(shape)
        for param in self.kernel.params:
            start = int(self.arrays[param.tensor].reshape(-1)[param.element])
            self.grid[param.name] = min(max(start, param.low), param.high)
        self.unbuilt = _large_products(self.kernel)

    # -- values ----------------------------------------------------------------------------------

    def run(self, body: Iterable[Let]) -> None:
        for let in body:
            self.dtypes[let.name] = let.dtype
            if let.name not in self.unbuilt:
                self.values[let.name] = self._spread_over_axes(let, self._evaluate(let))

    def shape(self, axes: Iterable[str]) -> tuple[int, ...]:
        """The extents of a value over `axes`: where an axis stands at one point, 1."""
        held = set(axes)
        return tuple(
            self.grid[axis.name].size if axis.name in held else 1 for axis in self.kernel.axes
        )

    def _spread_over_axes(self, let: Let, array: Array) -> Array:
        return np.broadcast_to(np.asarray(array, let.dtype.numpy), self.shape(let.axes))

    def _evaluate(self, let: Let) -> Array:
        match let.expr:
            case Read():
                return self._play_read(let.expr, let.dtype)
            case Const(value=value):
                return self._scalar(value, let.dtype)
            case AxisIndex(expr=expr):
                number = np.asarray(evaluate(expr, self.grid), np.int64)
                return numeric.cast(number, SI64, let.dtype)
            case Unary(fn=fn, x=x):
                return functions.unary(fn, self.dtypes[x], self.values[x])
            case Cast(x=x):
                return numeric.cast(self.values[x], self.dtypes[x], let.dtype)
            case Binary(fn=fn, lhs=lhs, rhs=rhs):
                dtype, right = self.dtypes[lhs], self.values[rhs]
                if fn in ("div", "fmod") and dtype.is_integer:
                    # Divisors were checked; what stands outside a guarded read is wanted by nobody.
                    right = np.where(right == 0, np.ones((), right.dtype), right)
                return functions.binary(fn, dtype, self.values[lhs], right)
            case Select(pred=pred, x=x, y=y):
                return np.where(self.values[pred], self.values[x], self.values[y])
            case Check(x=x, rule=rule, size=size, code=code):
                return functions.checked(self.values[x], rule, size, code)
            case Words():
                return self._words(let.expr)
            case Reduce():
                return self._reduce(let.expr, let.dtype)
            case Fold():
                return self._fold(let.expr, operands(let))

    def _lies_at(self, read: Read, index: Sequence[Array]) -> tuple[Array, ...]:
        """Where the elements at an index lie in what is kept of a tensor: here it is all of it."""
        return tuple(index)

    def _single(self, source: Array) -> Array:
        return source.reshape((1,) * len(self.place))

    def _scalar(self, value: Scalar, dtype: DType) -> Array:
        return np.asarray(np.asarray(value).astype(dtype.numpy)).reshape((1,) * len(self.place))

    def _play_read(self, read: Read, dtype: DType) -> Array:
        source = self.arrays[read.tensor]
        env = {**self.grid, **{p.param: self.values[p.value] for p in read.places}}
        inside = self._inside(read, env)
        index = [np.where(inside, evaluate(e, env), 0) for e in read.index]
        if source.size == 0:
            found = np.zeros(np.broadcast_shapes(inside.shape, *(i.shape for i in index)))
            found = found.astype(dtype.numpy)
        else:
            found = source[self._lies_at(read, index)] if index else self._single(source)
        if read.fill is None:
            return found
        return np.where(inside, found, self._scalar(read.fill, dtype))

    def _words(self, words: Words) -> Array:
        where = np.asarray(evaluate(words.element, self.grid), np.int64)
        return philox.words_at(where, self.values[words.seed], self.values[words.offset])

    def _inside(self, read: Read, env: Mapping[str, Any]) -> Array:
        inside = np.ones((1,) * len(self.place), np.bool_)
        for guard in read.guards:
            at = np.asarray(evaluate(guard.expr, env))
            inside = inside & (at >= 0) & (at < guard.size)
        return inside

    # -- reductions ------------------------------------------------------------------------------

    def _reduce(self, reduce: Reduce, accum: DType) -> Array:
        axes = [self.place[name] for name in reduce.axes]
        if reduce.value in self.unbuilt:
            return self._contract(self.unbuilt[reduce.value], axes, accum)
        x, dtype = self.values[reduce.value], self.dtypes[reduce.value]
        x = np.broadcast_to(x, self._whole(x, reduce.axes))
        total = functions.reduce(reduce.fn, dtype, x, axes, accum)
        return np.expand_dims(total, tuple(axes))

    def _whole(self, x: Array, axes: Iterable[str]) -> tuple[int, ...]:
        """The shape of `x` with its reduced axes at full extent: a value that does not live over a
        reduced axis counts once for each of its points."""
        shape = list(x.shape)
        for name in axes:
            shape[self.place[name]] = self.grid[name].size
        return tuple(shape)

    def _contract(self, product: Binary, axes: Sequence[int], accum: DType) -> Array:
        lhs, rhs = self.values[product.lhs], self.values[product.rhs]
        names = list(range(len(self.place)))
        kept = [n for n in names if n not in axes]
        sides: list[Any] = []
        for side in (lhs, rhs):
            live = [n for n in names if side.shape[n] > 1]
            sides += [side.reshape([side.shape[n] for n in live]).astype(accum.numpy), live]
        live_out = [n for n in kept if max(lhs.shape[n], rhs.shape[n]) > 1]
        total = np.einsum(*sides, live_out, optimize=True)
        shape = [max(lhs.shape[n], rhs.shape[n]) if n in kept else 1 for n in names]
        return np.asarray(total).reshape(shape)

    # -- folds -----------------------------------------------------------------------------------

    def _fold(self, fold: Fold, outside: Iterable[str]) -> Array:
        needed = {name: self.values[name] for name in outside}
        sizes = [self.grid[name].size for name in fold.axes]
        count = math.prod(sizes)
        cuts = [part * count // self.fold_parts for part in range(self.fold_parts + 1)]
        states = [
            self._steps(fold, sizes, range(first, last), needed) for first, last in pairwise(cuts)
        ]
        state = states[0]
        for other in states[1:]:
            state = self._merge(fold, state, other)
        return state[fold.result]

    def _steps(
        self, fold: Fold, sizes: Sequence[int], steps: range, needed: Mapping[str, Array]
    ) -> dict[str, Array]:
        state = {c.name: self._start(c) for c in fold.carries}
        for step in steps:
            inner = self._at(fold.axes, np.unravel_index(step, sizes), needed)
            state = inner.advance(fold.carries, fold.step, state, lambda c: c.next)
        return state

    def _start(self, carry: Carry) -> Array:
        return np.broadcast_to(self._scalar(carry.init, carry.dtype), self.shape(carry.axes))

    def _at(
        self, axes: Sequence[str], point: Sequence[Any], needed: Mapping[str, Array]
    ) -> Playback:
        """This kernel with some axes standing at one point."""
        inner = copy(self)
        inner.grid, inner.dtypes, inner.values = dict(self.grid), dict(self.dtypes), dict(needed)
        for name, index in zip(axes, point, strict=True):
            where = self.place[name]
            inner.grid[name] = np.full((1,) * len(self.place), index, np.int64)
            for value, array in inner.values.items():
                if array.shape[where] > 1:
                    inner.values[value] = np.take(array, [int(index)], axis=where)
        return inner

    def advance(
        self,
        carries: Sequence[Carry],
        body: Sequence[Let],
        state: Mapping[str, Array],
        chosen: Callable[[Carry], str],
    ) -> dict[str, Array]:
        """The state after `body`, which knows the carries by name."""
        for carry in carries:
            self.dtypes[carry.name] = carry.dtype
        self.values.update(state)
        self.run(body)
        return {carry.name: self.values[chosen(carry)] for carry in carries}

    def _merge(
        self, fold: Fold, left: Mapping[str, Array], right: Mapping[str, Array]
    ) -> dict[str, Array]:
        inner = self._at((), (), self.values)
        for carry in fold.carries:
            inner.dtypes[f"{carry.name}.a"] = inner.dtypes[f"{carry.name}.b"] = carry.dtype
        both = {f"{name}.a": array for name, array in left.items()}
        both |= {f"{name}.b": array for name, array in right.items()}
        return inner.advance(fold.carries, fold.combine, both, lambda c: c.merged)

    # -- stores ----------------------------------------------------------------------------------

    def store(self, output: Output) -> Array:
        """The tensor that an output writes, the elements of its base included."""
        tensor = self.tensors[output.tensor]
        value = self.values[output.value]
        grids = [np.broadcast_to(evaluate(e, self.grid), value.shape) for e in output.index]
        places = np.ravel_multi_index(tuple(grids), tensor.shape) if grids else 0
        flat = np.asarray(places, np.int64).ravel()
        times = np.bincount(flat, minlength=math.prod(tensor.shape))
        if times.size and times.max() > 1:
            raise InternalError(f"{self.kernel.name} writes an element of {tensor.name} twice")
        rows = times.reshape(tensor.shape)[..., : tensor.extents[-1]] if tensor.room else times
        if output.base is None and not rows.all():
            raise InternalError(f"{self.kernel.name} leaves elements of {tensor.name} unwritten")
        result = np.empty(tensor.shape, tensor.dtype.numpy)
        if output.base is not None:
            result[...] = self.arrays[output.base].reshape(tensor.shape)
        result.reshape(-1)[flat] = value.ravel()
        return result


def _large_products(kernel: Kernel) -> dict[str, Binary]:
    """Products that only a sum reads and that are too large to build, by name."""
    users: dict[str, list[Let]] = {}
    for let in kernel.body:
        for name in operands(let):
            users.setdefault(name, []).append(let)
    stored = {output.value for output in kernel.outputs}
    found: dict[str, Binary] = {}
    for let in kernel.body:
        size = math.prod(kernel.sizes[name] for name in let.axes)
        if isinstance(let.expr, Binary) and let.expr.fn == "mul" and size > _LARGE:
            only = users.get(let.name, [])
            if let.name not in stored and len(only) == 1 and _is_sum(only[0], let):
                found[let.name] = let.expr
    return found


def _is_sum(let: Let, product: Let) -> bool:
    """Whether a Let sums a product in a float dtype wide enough to contract in."""
    return (
        isinstance(let.expr, Reduce)
        and let.expr.fn == "sum"
        and let.dtype.is_float
        and let.dtype.bits >= 32
        and set(let.expr.axes) <= set(product.axes)
    )
