"""Reductions against plain Python: exact sums over lists, integers without a width."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.cases import each
from tests.support.one_op import Array, apply, by_name, random_array
from weft.foundation.dtypes import (
    ALL,
    BF16,
    CF64,
    F16,
    F32,
    F64,
    FLOATS,
    FP8_E4M3,
    FP8_E5M2,
    I1,
    INTEGERS,
    SI4,
    SI8,
    SI16,
    SI32,
    SI64,
    UI8,
    UI64,
    DType,
)
from weft.ptir.ops.reduce_kind import ReduceKind
from weft.ptir.ops.reduction import (
    ArgMax,
    ArgMin,
    CumulativeSum,
    Reduce,
    ReduceProd,
    SegmentKind,
    SegmentReduce,
)

SUM, MAX, MIN = ReduceKind
NAN, INF = float("nan"), float("inf")


def scalars(x: Array) -> list[Any]:
    """The elements as Python numbers; exact."""
    if x.dtype.isbuiltin == 1:
        return list(x.reshape(-1).tolist())
    return [int(v) if "int" in str(x.dtype) else float(v) for v in x.reshape(-1)]


def wrap(value: int, dtype: DType) -> int:
    value %= 1 << dtype.bits
    return value - (1 << dtype.bits) if dtype.is_signed and value >> (dtype.bits - 1) else value


def as_array(values: list[Any], dtype: DType, shape: tuple[int, ...]) -> Array:
    """Python numbers as an array; floats that are exact in f64 are rounded once."""
    if dtype.is_integer:
        return np.asarray(values, dtype=object).astype(dtype.numpy).reshape(shape)
    if dtype.is_float and dtype.bits < 32:
        narrow = np.asarray(values, np.float64).astype(np.float32).astype(dtype.numpy)
        return np.asarray(narrow).reshape(shape)
    return np.asarray(values, dtype.numpy).reshape(shape)


def groups(x: Array, axes: tuple[int, ...]) -> Iterator[list[Any]]:
    """The elements that are reduced together, for each index of the result."""
    rest = [axis for axis in range(x.ndim) if axis not in axes]
    for index in itertools.product(*(range(x.shape[axis]) for axis in rest)):
        where: list[Any] = [slice(None)] * x.ndim
        for axis, position in zip(rest, index, strict=True):
            where[axis] = position
        yield scalars(np.asarray(x[tuple(where)]))


def reduced(x: Array, axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    if keepdims:
        return tuple(1 if axis in axes else n for axis, n in enumerate(x.shape))
    return tuple(n for axis, n in enumerate(x.shape) if axis not in axes)


def small(dtype: DType, shape: tuple[int, ...]) -> Array:
    """Values whose sums are exact in f32, so that no order of additions shows."""
    rng = np.random.default_rng([7, *shape])
    if dtype.is_integer or dtype is I1:
        return random_array(dtype, shape)
    values = rng.integers(-6, 7, shape) / 2
    if dtype.is_complex:
        values = values + 1j * rng.integers(-6, 7, shape) / 2
    return np.asarray(values).astype(dtype.numpy)


def same(out: Array, want: Array) -> None:
    assert out.dtype == want.dtype
    assert out.shape == want.shape
    got, expected = out, want
    if out.dtype.isbuiltin != 1:
        got, expected = out.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(got, expected)


def test_views_are_read_as_they_lie() -> None:
    base = small(F32, (4, 6, 5))
    for x in (base.transpose(2, 0, 1), base[::2, ::-1, 1:4], np.broadcast_to(base[0, 0], (3, 5))):
        want = [math.fsum(g) for g in groups(x, (0,))]
        same(apply(Reduce(SUM, (0,), False, None, None), x), as_array(want, F32, x.shape[1:]))
        same(
            apply(Reduce(SUM, (0,), False, F64, F16), x.astype(np.float32)),
            as_array(want, F16, x.shape[1:]),
        )


# -- accumulators --------------------------------------------------------------------------------

ONES_5000 = {FP8_E4M3: 16.0, FP8_E5M2: 8.0, BF16: 256.0, F16: 2048.0, F32: 5000.0, F64: 5000.0}
"""What 5000 ones add up to, one after the other, in each float dtype."""


def float_accumulators(dtype: DType) -> list[DType]:
    return [dtype] + [d for d in by_name(FLOATS) if d.bits > dtype.bits]


ACCUMULATORS = [(d, a) for d in by_name(FLOATS) for a in float_accumulators(d)]


@each(("dtype", "accum"), ACCUMULATORS)
@each("out", [None, F64, SI8])
@each("layout", ["vector", "rows", "columns", "both axes"])
def test_each_accumulator_and_output(
    dtype: DType, accum: DType, out: DType | None, layout: str
) -> None:
    shape, axes, count = {
        "vector": ((5000,), (0,), 1),
        "rows": ((2, 5000), (1,), 2),
        "columns": ((5000, 2), (0,), 2),
        "both axes": ((50, 2, 100), (2, 0), 2),
    }[layout]
    result = apply(Reduce(SUM, axes, False, accum, out), np.ones(shape, dtype.numpy))
    total = ONES_5000[accum]
    wanted = out or dtype
    discrete = wanted.is_integer or wanted is I1
    value = min(int(total), int(wanted.highest)) if discrete else total
    want = as_array([value] * count, wanted, () if layout == "vector" else (count,))
    same(result, want)


@each("dtype", [FP8_E4M3, FP8_E5M2, BF16, F16])
@each("axes", [(0, 2), (2, 0), (1,), (2,), (0, 1, 2)])
def test_narrow_accumulators_follow_a_scalar_loop(dtype: DType, axes: tuple[int, ...]) -> None:
    x = random_array(dtype, (6, 4, 7), scale=1.0)
    scalar = dtype.numpy.type
    want = []
    for group in groups(x, axes):
        total = scalar(group[0])
        for value in group[1:]:
            total = scalar(np.float32(total) + np.float32(value))
        want.append(float(total))
    out = apply(Reduce(SUM, axes, False, dtype, None), x)
    same(out, as_array(want, dtype, reduced(x, axes, False)))


@each("dtype", by_name(FLOATS))
def test_default_float_accumulator_is_wide(dtype: DType) -> None:
    result = apply(Reduce(SUM, (0,), False, None, F32), np.ones(5000, dtype.numpy))
    assert float(result) == 5000.0


BEYOND_F32: dict[DType, tuple[list[float], float, float]] = {
    FP8_E4M3: ([448.0] * 147 + [2.0**-9], 65856.0, 65856.0 + 2.0**-9),
    FP8_E5M2: ([57344.0, 2.0**-16], 57344.0, 57344.0 + 2.0**-16),
    BF16: ([2.0**25, 1.0], 2.0**25, 2.0**25 + 1.0),
    F16: ([4.0, 2.0**-24], 4.0, 4.0 + 2.0**-24),
    F32: ([2.0**24, 1.0], 2.0**24, 2.0**24 + 1.0),
}
"""Data, its sum in f32, its sum in f64."""


@each("dtype", BEYOND_F32)
@each("rows", [1, 3])
def test_f64_accumulator_keeps_what_f32_loses(dtype: DType, rows: int) -> None:
    data, in_f32, in_f64 = BEYOND_F32[dtype]
    x = np.asarray([data] * rows, np.float64).astype(dtype.numpy)
    for accum, value in ((None, in_f32), (F32, in_f32), (F64, in_f64)):
        same(apply(Reduce(SUM, (1,), False, accum, F64), x), np.full(rows, value, np.float64))


def test_complex_accumulator() -> None:
    x = np.asarray([2.0**24, 1.0], np.complex64) * np.complex64(1 + 1j)
    low, high = 2.0**24 * (1 + 1j), (2.0**24 + 1) * (1 + 1j)
    same(apply(Reduce(SUM, (0,), False, None, CF64), x), np.asarray(low))
    same(apply(Reduce(SUM, (0,), False, CF64, CF64), x), np.asarray(high))
    same(apply(Reduce(SUM, (0,), False, CF64, F64), x), np.asarray(high.real))


def int_accumulators(dtype: DType) -> list[DType]:
    return [dtype] + [d for d in ALL if d.kind is dtype.kind and d.bits > dtype.bits]


@each(
    ("dtype", "accum"),
    [(d, a) for d in by_name(INTEGERS) for a in int_accumulators(d)],
)
@each("out", [None, SI4, UI8, SI16, SI64, UI64, F32])
def test_integer_sums_wrap_in_the_accumulator_and_saturate_at_the_output(
    dtype: DType, accum: DType, out: DType | None
) -> None:
    for sign in (1, -1):
        edge = int(dtype.highest) if sign > 0 else int(dtype.lowest)
        x = np.asarray([edge, edge, edge, 1], dtype=object).astype(dtype.numpy)
        total = wrap(3 * edge + 1, accum)
        wanted = out or dtype
        if wanted.is_integer:
            total = min(max(total, int(wanted.lowest)), int(wanted.highest))
        result = apply(Reduce(SUM, (0,), False, accum, out), x)
        same(result, as_array([total], wanted, ()))


@pytest.mark.parametrize("accum", [SI4, SI8, UI8, SI32, SI64], ids=str)
def test_sum_over_i1_counts_in_an_integer(accum: DType) -> None:
    x = np.asarray([[True] * 20, [False] * 20, [True, False] * 10])
    counts = [wrap(n, accum) for n in (20, 0, 10)]
    same(apply(Reduce(SUM, (1,), False, accum, accum), x), as_array(counts, accum, (3,)))
    same(
        apply(Reduce(SUM, (1,), False, accum, None), x),
        np.asarray([wrap(20, accum) != 0, False, wrap(10, accum) != 0]),
    )


def test_max_is_not_touched_by_accumulators_but_cast_to_the_output() -> None:
    x = np.asarray([1.5, 300.7, -2.0], np.float32)
    same(apply(Reduce(MAX, (0,), False, F64, SI8), x), np.asarray(127, np.int8))
    same(apply(Reduce(MIN, (0,), False, None, SI32), x), np.asarray(-2, np.int32))
    half = np.asarray([0.1, 0.2], np.float16)
    same(apply(Reduce(MAX, (0,), False, F16, F32), half), np.asarray(half[1], np.float32))
    empty = np.zeros((2, 0), FP8_E4M3.numpy)
    same(apply(Reduce(MAX, (1,), False, F32, F32), empty), np.full(2, -448.0, np.float32))


@each("dtype", by_name(FLOATS))
def test_product_accumulators(dtype: DType) -> None:
    """The precision of each dtype shows in (1 + 2^-2) to the sixth power."""
    x = np.full(6, 1.25, np.float64).astype(dtype.numpy)
    for accum in float_accumulators(dtype):
        running = np.asarray(1.25).astype(accum.numpy)
        for _ in range(5):
            running = (running * np.asarray(1.25).astype(accum.numpy)).astype(accum.numpy)
        out = apply(ReduceProd((0,), False, accum, F64), x)
        same(out, running.astype(np.float64))
    assert float(apply(ReduceProd((0,), False, None, F64), x)) == 1.25**6


def test_sums_along_the_last_axis_copy_nothing() -> None:
    x = np.ones((512, 2048), np.float32)
    for kind in (SUM, MAX):
        op = Reduce(kind, (1,), False, None, None)
        apply(op, x)
        tracemalloc.start()
        apply(op, x)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < x.nbytes // 8


# -- positions -----------------------------------------------------------------------------------


def test_argmax_takes_the_first_of_equals_and_the_first_nan() -> None:
    ties = np.asarray([1.0, 3.0, 3.0, -0.0], np.float32)
    assert int(apply(ArgMax(0, False, SI32), ties)) == 1
    zeros = np.asarray([-0.0, 0.0, -0.0], np.float32)
    assert int(apply(ArgMax(0, False, SI32), zeros)) == 0
    assert int(apply(ArgMin(0, False, SI32), zeros)) == 0
    for dtype in by_name(FLOATS):
        broken = np.asarray([1.0, NAN, 448.0, NAN]).astype(dtype.numpy)
        assert int(apply(ArgMax(0, False, SI32), broken)) == 1
        assert int(apply(ArgMin(0, False, SI32), broken)) == 1


# -- segments ------------------------------------------------------------------------------------


@each(("dtype", "accum"), ACCUMULATORS)
@each("tail", [(), (2,)])
def test_segment_sums_accumulate_where_they_are_told(
    dtype: DType, accum: DType, tail: tuple[int, ...]
) -> None:
    data = np.ones((400, *tail), dtype.numpy)
    ids = np.tile(np.asarray([2, 0], np.int32), 200)
    limit = {FP8_E4M3: 16.0, FP8_E5M2: 8.0}.get(accum, 200.0)
    want = np.full((3, *tail), limit)
    want[1] = 0.0
    out = apply(SegmentReduce(SegmentKind.SUM, 3, accum, False, False), data, ids)
    same(out, np.asarray(want.astype(np.float32).astype(dtype.numpy)))


def test_segment_sum_of_i1_and_of_wide_accumulators() -> None:
    data = np.asarray([True, False, False, True])
    ids = np.asarray([0, 1, 1, 0], np.int64)
    out = apply(SegmentReduce(SegmentKind.SUM, 3, SI8, False, False), data, ids)
    same(out, np.asarray([True, False, False]))
    wide = np.asarray([100, 100, -90], np.int8)
    same_ids = np.zeros(3, np.int32)
    wrapped = apply(SegmentReduce(SegmentKind.SUM, 1, None, False, False), wide, same_ids)
    same(wrapped, np.asarray([110], np.int8))
    over = np.asarray([100, 100, 90], np.int8)
    same(
        apply(SegmentReduce(SegmentKind.SUM, 1, SI32, False, False), over, same_ids),
        np.asarray([127], np.int8),
    )
    f32 = np.asarray([2.0**24, 1.0, 1.0], np.float32)
    same(
        apply(SegmentReduce(SegmentKind.SUM, 1, F64, False, False), f32, same_ids),
        np.asarray([2.0**24 + 2.0], np.float32),
    )


# -- running reductions --------------------------------------------------------------------------


def running(values: list[Any], step: Callable[[Any, Any], Any], reverse: bool) -> list[Any]:
    ordered = values[::-1] if reverse else values
    found = list(itertools.accumulate(ordered, step))
    return found[::-1] if reverse else found


@pytest.mark.parametrize("dtype", [FP8_E4M3, FP8_E5M2, BF16, F16], ids=str)
def test_cumulative_sums_of_narrow_floats_do_not_stick(dtype: DType) -> None:
    """In its own precision a running sum of ones stops growing; in f32 it does not."""
    out = apply(CumulativeSum(0), np.ones(4000, dtype.numpy))
    count = 440 if dtype is FP8_E4M3 else 4000
    want = np.arange(1, count + 1, dtype=np.float32).astype(dtype.numpy)
    same(out[:count], np.asarray(want))
