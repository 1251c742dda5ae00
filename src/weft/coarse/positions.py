"""Coarse ops on positions: one_hot, repeat, and non_zero."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from weft.coarse.forms import guarded
from weft.coarse.rules import check_axis, result_count
from weft.foundation.dtypes import ANY, I1, INDICES, INTEGERS, SI64, DType
from weft.foundation.errors import SpecViolation
from weft.ptir.composite import Composite
from weft.ptir.op import Array, Op, Scope, coarse_op
from weft.ptir.rules import (
    bound_symbols,
    index_range,
    invalid_attribute,
    rank_at_least,
    rank_is,
    same_dim,
    violation,
)
from weft.ptir.schema import Dimension, DTypeOf, Number, Usize, attr
from weft.ptir.term import Term, known_size
from weft.ptir.types import Dim, TensorType, TupleType, ValueType


def _declared_tensor(output: ValueType, target: str) -> TensorType:
    result_count(output, (1,), target)
    if isinstance(output, TupleType):
        raise SpecViolation("OutputTypeMismatch", f"{target} has 1 result, not {output}")
    return output


def _first_dim(output: ValueType, target: str) -> Dim:
    kind = _declared_tensor(output, target)
    if not kind.rank:
        raise SpecViolation("OutputTypeMismatch", f"the result of {target} has axes, not {kind}")
    return kind.shape[0]


@coarse_op("byteir.one_hot")
class ByteirOneHot(Composite):
    """A new axis of extent `depth` at position `axis` of the result, which holds `on_value` where
    its index is the element of `indices` and `off_value` elsewhere. An index from -depth to -1
    counts from the end; one out of range gives `off_value` everywhere. The result has the dtype
    `dtype` (the declared type says it), and both values are of its class."""

    operands = ("indices",)
    dtypes = {"indices": INTEGERS, "dtype": ANY}
    no_gradient = "integers have no derivative"

    depth: int = attr(Usize())
    axis: int = attr(Usize())
    on_value: bool | int | float = attr(Number())
    off_value: bool | int | float = attr(Number())
    dtype: DType = attr(DTypeOf(), declared=True)

    @classmethod
    def declared_attributes(cls, output: ValueType) -> Mapping[str, Any]:
        return {"dtype": _declared_tensor(output, "byteir.one_hot").dtype}

    def infer(self, *types: TensorType) -> TensorType:
        (indices,) = types
        axis = check_axis(self, self.axis, indices.rank + 1)
        for name in ("on_value", "off_value"):
            self._check_value(name, getattr(self, name))
        shape = (*indices.shape[:axis], self.depth, *indices.shape[axis:])
        return TensorType(self.dtype, shape)

    def _check_value(self, name: str, value: bool | int | float) -> None:
        dtype = self.dtype
        if dtype is I1:
            fits = isinstance(value, bool)
        elif dtype.is_integer:
            whole = isinstance(value, int) and not isinstance(value, bool)
            fits = whole and dtype.lowest <= value <= dtype.highest
        else:
            fits = isinstance(value, float)
        if not fits:
            raise invalid_attribute(f"{name} {value} of {self.mnemonic} is not a value of {dtype}")

    def decompose(self, *operands: Term) -> Term:
        (indices,) = operands
        index = indices.cast(SI64)
        if indices.dtype.is_signed:
            index = (index + self.depth).where(index.compare(0, "less"), index)
        shape = (*index.shape[: self.axis], self.depth, *index.shape[self.axis :])
        column = index.reshape((*index.shape[: self.axis], 1, *index.shape[self.axis :]))
        hot = column.broadcast_to(shape).compare(index.counting(shape, self.axis), "equal")
        on, off = (index.full(v, shape, self.dtype) for v in (self.on_value, self.off_value))
        return on.where(hot, off)


@coarse_op("byteir.repeat")
class ByteirRepeat(Composite):
    """Each row of `input` (along axis 0) repeated as often as `repeats` says, in order. The
    declared type contains the `length`, the number of rows of the result; repeats that are
    negative, or do not add up to the length, are rejected when the program runs."""

    operands = ("input", "repeats")
    dtypes = {"input": ANY, "repeats": INDICES}

    length: Dim = attr(Dimension(), declared=True)

    @classmethod
    def declared_attributes(cls, output: ValueType) -> Mapping[str, Any]:
        return {"length": _first_dim(output, "byteir.repeat")}

    def check_symbols(self, scope: Scope) -> None:
        bound_symbols((self.length,), scope, f"the number of rows of {self.mnemonic}")

    def with_dims(self, replace: Callable[[Dim], Dim]) -> Op:
        return dataclasses.replace(self, length=replace(self.length))

    def infer(self, *types: TensorType) -> TensorType:
        x, repeats = types
        rank_at_least(x, 1, "input")
        rank_is(repeats, 1, "repeats")
        same_dim(repeats.shape[0], x.shape[0], "repeats and axis 0 of input differ in extent")
        return x.with_shape((self.length, *x.shape[1:]))

    def check_values(self, *args: Array) -> None:
        repeats = args[1]
        negative = np.flatnonzero(repeats < 0)
        if negative.size:
            place = int(negative[0])
            raise violation(
                "InvalidRepeats", f"repeats has {int(repeats[place])} at position {place}"
            )
        length = known_size(self.length)
        # Cut where one count alone is too many, no sum can wrap around.
        if int(np.minimum(repeats, length + 1).sum(dtype=np.int64)) != length:
            total = sum(map(int, repeats))
            raise violation(
                "InvalidRepeats", f"repeats adds up to {total} rows, but {length} are declared"
            )

    def rejection(self) -> tuple[str, str]:
        why = f"repeats has a negative number, or does not add up to the {self.length} rows"
        return "InvalidRepeats", f"{why} that are declared"

    def decompose(self, *operands: Term) -> Term:
        x, repeats = operands
        length = known_size(self.length)
        ends = repeats.cast(SI64).cumulative_sum(axis=0)
        # Position p belongs to the first row that ends after it.
        row = ends.searchsorted(ends.counting((length,), 0), side="right", output_dtype=SI64)
        total = repeats.cast(SI64).sum([0])
        whole = total.compare(length, "equal")
        counts = repeats.compare(0, "greater_equal").reduce_min(axes=(0,), keepdims=False)
        return x.emitter.emit("take", x, guarded(row, whole.minimum(counts)))


@coarse_op("byteir.non_zero")
class ByteirNonZero(Composite):
    """The positions of the elements that are not zero, in row-major order, one row each: a tensor
    of si64 with `bound` rows (the declared type says how many) and a column for each axis. Rows
    beyond the last position are -1; more positions than rows are rejected when the program runs.
    NaN is not zero."""

    operands = ("input",)
    dtypes = {"input": ANY, "indices": INDICES}
    no_gradient = "integers have no derivative"

    bound: Dim = attr(Dimension(), declared=True)
    indices: DType = attr(DTypeOf(), declared=True, default=SI64)

    @classmethod
    def declared_attributes(cls, output: ValueType) -> Mapping[str, Any]:
        bound = _first_dim(output, "byteir.non_zero")
        return {"bound": bound, "indices": _declared_tensor(output, "byteir.non_zero").dtype}

    def check_symbols(self, scope: Scope) -> None:
        bound_symbols((self.bound,), scope, f"the bound of {self.mnemonic}")

    def with_dims(self, replace: Callable[[Dim], Dim]) -> Op:
        return dataclasses.replace(self, bound=replace(self.bound))

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        for axis, dim in enumerate(x.shape):
            index_range(dim, self.indices, f"axis {axis} of {self.mnemonic}")
        return TensorType(self.indices, (self.bound, x.rank))

    def check_values(self, *args: Array) -> None:
        count = int(np.count_nonzero(args[0] != np.zeros((), args[0].dtype)))
        if isinstance(self.bound, int) and count > self.bound:
            raise violation(
                "BoundExceeded",
                f"{count} elements are not zero, but {self.mnemonic} has room for {self.bound}",
            )

    def rejection(self) -> tuple[str, str]:
        why = f"more elements are not zero than the {self.bound} that {self.mnemonic} has room for"
        return "BoundExceeded", why

    def decompose(self, *operands: Term) -> Term:
        (x,) = operands
        sizes, bound = tuple(map(known_size, x.shape)), known_size(self.bound)
        count = math.prod(sizes)
        found = x.compare(_zero(x), "not_equal").reshape((count,)).cast(SI64)
        seen = found.cumulative_sum(axis=0)
        wanted = seen.counting((bound,), 0) + 1
        place = seen.searchsorted(wanted, side="left", output_dtype=SI64)
        fits = found.sum([0]).compare(bound, "less_equal")
        return self._unravel_places(guarded(place, fits), sizes, count)

    def _unravel_places(self, place: Term, sizes: tuple[int, ...], count: int) -> Term:
        """Flat positions as one column for each axis; `count` itself stands for none."""
        if not sizes:
            return place.full(0, (*place.shape, 0), self.indices)
        there = place.compare(count, "less")
        columns = []
        for axis, size in enumerate(sizes):
            after = math.prod(sizes[axis + 1 :])
            along = place / max(after, 1)
            index = along - along / max(size, 1) * max(size, 1)
            columns.append(index.where(there, index.like(-1)).reshape((*place.shape, 1)))
        table = place.emitter.emit("concat", *columns, axis=1)
        return table.cast(self.indices)


def _zero(x: Term) -> Term:
    return x.like(False if x.dtype is I1 else 0)
