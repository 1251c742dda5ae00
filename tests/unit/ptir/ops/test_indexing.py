"""Indexing ops against loops over indices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.support.cases import each
from tests.support.one_op import Array, apply, bits, by_name, infer, random_array
from weft.foundation.dtypes import (
    ALL,
    BF16,
    CF64,
    F16,
    F32,
    FLOATS,
    INDICES,
    INTEGERS,
    SI4,
    SI32,
    DType,
    as_dtype,
)
from weft.ptir.ops.indexing import (
    DynamicSlice,
    DynamicUpdateSlice,
    Gather,
    ScatterAdd,
    ScatterFn,
    ScatterReduce,
    Take,
)
from weft.ptir.types import tensor

Shape = tuple[int, ...]
FEW = [F32, SI4]
"""One dtype of NumPy's own and one of a few bits: every dtype is in the table of conformance."""


def small(dtype: DType, shape: Shape, seed: int = 0) -> Array:
    """Whole numbers from -2 (or 0) to 3: a few add up exactly in any float, and wrap in si4."""
    rng = np.random.default_rng([seed, dtype.index, *shape])
    signed = dtype.kind.value not in ("unsigned", "bool")
    values = rng.integers(-2 if signed else 0, 4, shape)
    if dtype.is_complex:
        values = values + 1j * rng.integers(-2, 4, shape)
    return np.asarray(values).astype(dtype.numpy)


def strided(x: Array) -> Array:
    """The same elements, read-only and not contiguous."""
    if not x.ndim:
        return x
    gaps = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
    gaps[..., ::2] = x
    gaps.flags.writeable = False
    return gaps[..., ::2]


def some_indices(rng: np.random.Generator, limit: int, shape: Shape) -> Array:
    dtype = np.int32 if rng.integers(2) else np.int64
    return np.asarray(rng.integers(0, max(limit, 1), shape)).astype(dtype)


@each("dtype", FEW)
@each("rows", [(4,), (3, 2), (2, 0), (5, 2, 3)])
@each("shape", [(), (1,), (6,), (0,), (2, 3), (2, 0)])
def test_take(dtype: DType, rows: Shape, shape: Shape) -> None:
    x = random_array(dtype, rows)
    indices = some_indices(np.random.default_rng(len(shape)), rows[0], shape)
    expected = np.zeros((*shape, *rows[1:]), dtype.numpy)
    for at in np.ndindex(*shape):
        for inner in np.ndindex(*rows[1:]):
            expected[(*at, *inner)] = x[(int(indices[at]), *inner)]
    assert bits(apply(Take(), x, indices)) == bits(expected)
    assert bits(apply(Take(), strided(x), strided(indices))) == bits(expected)


def test_take_nothing_from_nothing() -> None:
    x, indices = np.zeros((0, 3), np.float32), np.zeros((2, 0), np.int32)
    assert apply(Take(), x, indices).shape == (2, 0, 3)


@each("dtype", FEW)
@each("shape", [(4,), (3, 2), (2, 0), (2, 3, 2)])
def test_gather(dtype: DType, shape: Shape) -> None:
    x = random_array(dtype, shape)
    rng = np.random.default_rng(len(shape))
    for axis in range(-len(shape), len(shape)):
        if shape[axis] == 0:
            continue
        for extent in (0, 1, 5):
            wanted = list(shape)
            wanted[axis] = extent
            indices = some_indices(rng, shape[axis], tuple(wanted))
            expected = np.zeros(wanted, dtype.numpy)
            for at in np.ndindex(*wanted):
                source = list(at)
                source[axis] = int(indices[at])
                expected[at] = x[tuple(source)]
            assert bits(apply(Gather(axis), x, indices)) == bits(expected)
            assert bits(apply(Gather(axis), strided(x), strided(indices))) == bits(expected)


class Scatter:
    """A random scatter: its attributes, and operands that fit them."""

    def __init__(self, rng: np.random.Generator, dtype: DType, *, windows_at_indices: bool) -> None:
        rank = int(rng.integers(0, 4))
        self.shape = tuple(int(n) for n in rng.integers(1, 5, rank))
        inserted = [d for d in range(rank) if rng.integers(2)]
        scattered = [int(d) for d in rng.permutation(rank) if rng.integers(2)]
        gone = set(inserted) if windows_at_indices else {*inserted, *scattered}
        self.window_axes = [d for d in range(rank) if d not in gone]
        self.sizes = {d: int(rng.integers(1, self.shape[d] + 1)) for d in self.window_axes}
        batch = tuple(
            int(n) for n in rng.integers(0 if rng.integers(4) == 0 else 1, 4, rng.integers(3))
        )
        implicit = len(scattered) == 1 and bool(rng.integers(2))
        vector_dim = int(rng.integers(0, len(batch) + 1))
        if implicit:
            vector_dim = len(batch)
        total = len(batch) + len(self.window_axes)
        window_dims = sorted(int(d) for d in rng.permutation(total)[: len(self.window_axes)])
        self.scattered, self.batch, self.window_dims = scattered, batch, window_dims
        self.explicit, self.vector_dim = not implicit, vector_dim
        stored = vector_dim if self.explicit or rng.integers(2) else None
        self.op = ScatterAdd(tuple(window_dims), tuple(inserted), tuple(scattered), stored)
        self.indices = self._indices(rng)
        self.updates = small(dtype, self._update_shape(), int(rng.integers(1000)))
        self.x = small(dtype, self.shape, int(rng.integers(1000)))

    def _indices(self, rng: np.random.Generator) -> Array:
        shape = list(self.batch)
        if self.explicit:
            shape.insert(self.vector_dim, len(self.scattered))
        indices = np.zeros(shape, np.int32 if rng.integers(2) else np.int64)
        for at in np.ndindex(*shape):
            axis = self.scattered[at[self.vector_dim] if self.explicit else 0]
            indices[at] = rng.integers(0, self.shape[axis] - self.sizes.get(axis, 1) + 1)
        return indices

    def _update_shape(self) -> Shape:
        batch, window = iter(self.batch), iter(self.window_axes)
        total = len(self.batch) + len(self.window_axes)
        return tuple(
            self.sizes[next(window)] if d in self.window_dims else next(batch) for d in range(total)
        )

    def target(self, at: Shape) -> Shape:
        """Where XLA's definition puts the update at `at`."""
        place = [0] * len(self.shape)
        batch = [i for d, i in enumerate(at) if d not in self.window_dims]
        for k, axis in enumerate(self.scattered):
            vector = [*batch[: self.vector_dim], k, *batch[self.vector_dim :]]
            place[axis] = int(self.indices[tuple(vector if self.explicit else batch)])
        for d, axis in zip(self.window_dims, self.window_axes, strict=True):
            place[axis] += at[d]
        return tuple(place)


def wrapped(value: Any, dtype: DType) -> Any:
    if not dtype.is_integer:
        return value
    low = value % (1 << dtype.bits)
    return low - (1 << dtype.bits) if dtype.is_signed and low > dtype.highest else low


@each("dtype", [F32, BF16, SI4, CF64])
@each("windows_at_indices", [True, False])
def test_scatter_add(dtype: DType, windows_at_indices: bool) -> None:
    rng = np.random.default_rng(dtype.index)
    for _ in range(30):
        case = Scatter(rng, dtype, windows_at_indices=windows_at_indices)
        totals = {at: case.x[at].item() for at in np.ndindex(*case.shape)}
        for at in np.ndindex(*case.updates.shape):
            totals[case.target(at)] += case.updates[at].item()
        expected = np.zeros(case.shape, dtype.numpy)
        for at, total in totals.items():
            expected[at] = wrapped(total, dtype)
        kept = bits(case.x)
        out = apply(case.op, case.x, case.indices, case.updates)
        np.testing.assert_array_equal(out.astype(np.complex128), expected.astype(np.complex128))
        assert bits(case.x) == kept
        views = [strided(a) for a in (case.x, case.indices, case.updates)]
        assert bits(apply(case.op, *views)) == bits(out)


def test_scatter_add_of_index_vectors_of_length_zero() -> None:
    op = ScatterAdd((1,), (), (), 1)
    x, indices = np.zeros(3, np.float32), np.zeros((2, 0), np.int32)
    out = apply(op, x, indices, np.ones((2, 2), np.float32))
    assert out.tolist() == [2.0, 2.0, 0.0]


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_scatter_add_of_narrow_floats_rounds_once(dtype: DType) -> None:
    """One at a time, ones added to 2^precision would all be lost."""
    base, count = float(2**dtype.precision), 64
    x = np.full(3, base).astype(dtype.numpy)
    updates = np.ones(count).astype(dtype.numpy)
    indices = np.zeros((count, 1), np.int32)
    out = apply(ScatterAdd((), (0,), (0,), 1), x, indices, updates)
    assert out.astype(float).tolist() == [base + count, base, base]
    out = apply(ScatterReduce(0, ScatterFn.ADD), x, indices[:, 0], updates)
    assert out.astype(float).tolist() == [base + count, base, base]


def test_many_updates_of_few_places() -> None:
    rng = np.random.default_rng(0)
    indices = rng.integers(0, 100, 1_000_000)
    for dtype in (SI32, SI4, F32, BF16):
        updates = small(dtype, indices.shape)
        out = apply(ScatterReduce(0, ScatterFn.ADD), np.zeros(100, dtype.numpy), indices, updates)
        sums = np.bincount(indices, weights=updates.astype(np.float64), minlength=100)
        if dtype.is_integer:
            expected = [wrapped(int(total), dtype) for total in sums]
        else:
            expected = sums.astype(np.float32).astype(dtype.numpy).astype(float).tolist()
        np.testing.assert_array_equal(out.astype(float), expected)


def combine(fn: ScatterFn, old: Any, new: Any) -> Any:
    if fn is ScatterFn.ADD:
        return old + new
    if fn is ScatterFn.REPLACE:
        return new
    if isinstance(old, float) and (math.isnan(old) or math.isnan(new)):
        return math.nan
    return max(old, new) if fn is ScatterFn.MAX else min(old, new)


@each(("fn", "dtype"), [(fn, dtype) for fn in ScatterFn for dtype in FEW])
def test_scatter_reduce(fn: ScatterFn, dtype: DType) -> None:
    rng = np.random.default_rng(dtype.index)
    for shape in [(5,), (3, 2), (2, 0), (2, 3, 2)]:
        for axis in range(-len(shape), len(shape)):
            wanted = list(shape)
            wanted[axis] = 0 if shape[axis] == 0 else int(rng.integers(0, 8))
            indices = some_indices(rng, shape[axis], tuple(wanted))
            x, updates = (small(dtype, s, axis + 9) for s in (shape, tuple(wanted)))
            check_scatter_reduce(ScatterReduce(axis, fn), x, indices, updates)


def check_scatter_reduce(op: ScatterReduce, x: Array, indices: Array, updates: Array) -> None:
    dtype, axis = as_dtype(x.dtype), op.axis
    values = {at: x[at].item() for at in np.ndindex(*x.shape)}
    for at in np.ndindex(*updates.shape):
        place = list(at)
        place[axis] = int(indices[at])
        values[tuple(place)] = combine(op.reduce, values[tuple(place)], updates[at].item())
    expected = np.zeros(x.shape, dtype.numpy)
    for at, value in values.items():
        expected[at] = wrapped(value, dtype)
    kept = bits(x)
    for given in ((x, indices, updates), tuple(map(strided, (x, indices, updates)))):
        out = apply(op, *given)
        np.testing.assert_array_equal(out.astype(np.complex128), expected.astype(np.complex128))
    assert bits(x) == kept


@each("fn", [ScatterFn.MAX, ScatterFn.MIN])
@each("dtype", by_name(FLOATS))
def test_scatter_max_and_min_propagate_nan(fn: ScatterFn, dtype: DType) -> None:
    x = np.array([1.0, np.nan, 2.0, 3.0]).astype(dtype.numpy)
    indices = np.array([0, 0, 0, 1, 3])
    updates = np.array([5.0, np.nan, -5.0, 7.0, 3.0]).astype(dtype.numpy)
    check_scatter_reduce(ScatterReduce(0, fn), x, indices, updates)


def test_scatter_extremes_reach_the_ends_of_the_range() -> None:
    for dtype in by_name(INTEGERS):
        x = np.array([1, 1], dtype.numpy)
        ends = np.array([int(dtype.lowest), int(dtype.highest)], dtype.numpy)
        indices = np.array([0, 1])
        high = apply(ScatterReduce(0, ScatterFn.MAX), x, indices, ends)
        low = apply(ScatterReduce(0, ScatterFn.MIN), x, indices, ends)
        assert [int(v) for v in high] == [1, int(dtype.highest)]
        assert [int(v) for v in low] == [int(dtype.lowest), 1]
        total = apply(ScatterReduce(0, ScatterFn.ADD), x, indices, ends)
        assert int(total[1]) == int(dtype.lowest)


def test_replace_keeps_nan_payloads_and_takes_the_last() -> None:
    updates = np.array([1.0, -0.0, 2.0, np.nan], np.float32)
    updates.view(np.uint32)[3] = 0xFFC12345
    out = apply(
        ScatterReduce(0, ScatterFn.REPLACE), np.ones(2, np.float32), np.array([0, 0, 1, 1]), updates
    )
    assert out.view(np.uint32).tolist() == [0x80000000, 0xFFC12345]


@each("dtype", FEW)
@each("shape", [(), (4,), (0,), (3, 5), (2, 0, 3)])
def test_dynamic_slices(dtype: DType, shape: Shape) -> None:
    x = random_array(dtype, shape)
    rng = np.random.default_rng(len(shape))
    for turn in range(8):
        sizes = tuple(int(rng.integers(0, n + 1)) for n in shape)
        start = np.asarray(rng.integers(-3, 8, len(shape)))
        if turn == 0:
            start = np.full(len(shape), np.iinfo(np.int64).min)
        elif turn == 1:
            start = np.full(len(shape), np.iinfo(np.int64).max)
        elif turn % 2:
            start = start.astype(np.int32)
        begin = [min(max(int(s), 0), n - k) for s, n, k in zip(start, shape, sizes, strict=True)]
        update = random_array(dtype, sizes, turn + 1)
        window, updated = np.zeros(sizes, dtype.numpy), x.copy()
        for at in np.ndindex(*sizes):
            place = tuple(b + i for b, i in zip(begin, at, strict=True))
            window[at] = x[place]
            updated[place] = update[at]
        kept = bits(x)
        for view in (x, strided(x)):
            assert bits(apply(DynamicSlice(sizes), view, start)) == bits(window)
            out = apply(DynamicUpdateSlice(sizes), view, strided(update), start)
            assert bits(out) == bits(updated)
        assert bits(x) == kept


def test_writes_into_broadcast_operands() -> None:
    """A broadcast view has one element in memory; a result must have its own."""
    x = np.broadcast_to(np.float32(1), (2, 3))
    start, update = np.array([1, 1]), np.zeros((1, 2), np.float32)
    out = apply(DynamicUpdateSlice((1, 2)), x, update, start)
    assert out.tolist() == [[1, 1, 1], [1, 0, 0]]
    out = apply(
        ScatterReduce(1, ScatterFn.ADD),
        x,
        np.broadcast_to(np.int64(2), (2, 2)),
        np.broadcast_to(np.float32(3), (2, 2)),
    )
    assert out.tolist() == [[1, 1, 7], [1, 1, 7]]


def test_dynamic_dims() -> None:
    x = tensor("f32", ["?B", 4])
    assert infer(Take(), x, tensor("si32", ["?N", 2])) == tensor("f32", ["?N", 2, 4])
    assert infer(Gather(0), x, tensor("si64", ["?N", 4])) == tensor("f32", ["?N", 4])
    assert infer(Gather(1), x, tensor("si64", ["?B", 7])) == tensor("f32", ["?B", 7])
    assert infer(DynamicSlice((9, 4)), x, tensor("si32", [2])) == tensor("f32", [9, 4])
    update = tensor("f32", [1, 4])
    assert infer(DynamicUpdateSlice((1, 4)), x, update, tensor("si32", [2])) == x
    updates, indices = tensor("f32", ["?N", 4]), tensor("si32", ["?N", 4])
    assert infer(ScatterReduce(0, ScatterFn.MAX), x, indices, updates) == x
    embedding = ScatterAdd((1,), (0,), (0,), None)
    assert infer(embedding, x, tensor("si32", ["?N"]), updates) == x


@each("dtype", by_name(INDICES))
def test_rank_0_results_are_arrays(dtype: DType) -> None:
    """`apply` checks that the result is an array of the declared type, not a NumPy scalar."""
    one = np.array(1, dtype.numpy)
    for element in ALL:
        x = random_array(element, (3,))
        assert bits(apply(Take(), x, one)) == bits(x[1:2])
        none = np.zeros(0, dtype.numpy)
        assert bits(apply(DynamicSlice(()), x[0].reshape(()), none)) == bits(x[:1])
