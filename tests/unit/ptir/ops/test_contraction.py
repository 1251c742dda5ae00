"""Contractions against a loop over indices in plain Python numbers."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import Any

import numpy as np
import pytest

from tests.support.cases import each
from tests.support.one_op import Array, apply, by_name, random_array
from weft.foundation.dtypes import (
    ALL,
    BF16,
    CF32,
    CF64,
    F16,
    F32,
    F64,
    FLOATS,
    FP8_E4M3,
    FP8_E5M2,
    INTEGERS,
    NUMBERS,
    SI4,
    SI8,
    SI16,
    SI32,
    SI64,
    UI4,
    UI8,
    UI16,
    UI32,
    UI64,
    DType,
)
from weft.ptir.ops.contraction import DotGeneral, _as_matrices, _for_blas

Axes = tuple[int, ...]
Case = tuple[tuple[int, ...], tuple[int, ...], Axes, Axes, Axes, Axes]

CASES: dict[str, Case] = {
    "matrices": ((3, 4), (4, 5), (), (), (1,), (0,)),
    "rhs stored transposed": ((3, 4), (5, 4), (), (), (1,), (1,)),
    "lhs stored transposed": ((4, 3), (4, 5), (), (), (0,), (0,)),
    "vectors": ((4,), (4,), (), (), (0,), (0,)),
    "matrix and vector": ((3, 4), (4,), (), (), (1,), (0,)),
    "scalars": ((), (), (), (), (), ()),
    "outer product": ((3,), (2,), (), (), (), ()),
    "batch": ((2, 3, 4), (2, 4, 5), (0,), (0,), (2,), (1,)),
    "batch of products": ((2, 3), (2, 3), (0, 1), (0, 1), (), ()),
    "batch pairs by position": ((2, 3, 4), (3, 2, 4), (1, 0), (0, 1), (2,), (2,)),
    "batch in the middle": ((3, 2, 4), (4, 5, 2), (1,), (2,), (2,), (0,)),
    "two contracted": ((2, 3, 4), (4, 3, 5), (), (), (2, 1), (0, 1)),
    "contracted apart": ((3, 2, 4), (5, 3, 4), (), (), (0, 2), (1, 2)),
    "many free": ((2, 3, 4, 2), (2, 4, 3, 2), (0,), (3,), (2,), (1,)),
    "empty contraction": ((2, 0), (0, 3), (), (), (1,), (0,)),
    "no contraction of one": ((2, 1), (1, 3), (), (), (1,), (0,)),
    "empty batch": ((0, 2, 3), (0, 3, 2), (0,), (0,), (2,), (1,)),
    "no rows": ((0, 3), (3, 2), (), (), (1,), (0,)),
    "no columns": ((2, 3), (3, 0), (), (), (1,), (0,)),
}

DEFAULT_ACCUMULATOR = {
    **{d: d for d in NUMBERS},
    **dict.fromkeys([SI4, SI8, SI16], SI32),
    **dict.fromkeys([UI4, UI8, UI16], UI32),
    **dict.fromkeys([FP8_E4M3, FP8_E5M2, BF16, F16], F32),
}


def number(value: Any, dtype: DType) -> Any:
    if dtype.is_integer:
        return int(value)
    return complex(value) if dtype.is_complex else float(value)


def wrap(value: int, dtype: DType) -> int:
    value %= 1 << dtype.bits
    return value - (1 << dtype.bits) if dtype.is_signed and value >> (dtype.bits - 1) else value


def convert(value: Any, dtype: DType) -> Any:
    """A Python number as a scalar of `dtype`: integers saturate, floats are rounded."""
    if dtype.is_integer:
        return dtype.numpy.type(min(max(int(value), int(dtype.lowest)), int(dtype.highest)))
    if dtype.is_complex or dtype.bits >= 32:
        return np.asarray(value).astype(dtype.numpy)
    return np.asarray(value, np.float32).astype(dtype.numpy)


def loop_dot(lhs: Array, rhs: Array, case: Case, accum: DType, out: DType) -> Array:
    """The definition, one scalar at a time; floats exactly, so the data must not need rounding."""
    _, _, batch_l, batch_r, contract_l, contract_r = case
    source = {d.numpy: d for d in ALL}[lhs.dtype]
    free_l = [a for a in range(lhs.ndim) if a not in batch_l + contract_l]
    free_r = [a for a in range(rhs.ndim) if a not in batch_r + contract_r]
    extents = (
        [lhs.shape[a] for a in batch_l]
        + [lhs.shape[a] for a in free_l]
        + [rhs.shape[a] for a in free_r]
    )
    result = np.zeros(extents, out.numpy)
    for index in itertools.product(*map(range, extents)):
        b, i = index[: len(batch_l)], index[len(batch_l) : len(batch_l) + len(free_l)]
        j = index[len(batch_l) + len(free_l) :]
        total: Any = 0
        for k in itertools.product(*(range(lhs.shape[a]) for a in contract_l)):
            at_l = {**dict(zip(batch_l, b, strict=True)), **dict(zip(free_l, i, strict=True))}
            at_r = {**dict(zip(batch_r, b, strict=True)), **dict(zip(free_r, j, strict=True))}
            at_l |= dict(zip(contract_l, k, strict=True))
            at_r |= dict(zip(contract_r, k, strict=True))
            a = lhs[tuple(at_l[axis] for axis in range(lhs.ndim))]
            c = rhs[tuple(at_r[axis] for axis in range(rhs.ndim))]
            total += number(a, source) * number(c, source)
        result[index] = convert(wrap(total, accum) if accum.is_integer else total, out)
    return result


def small(dtype: DType, shape: tuple[int, ...], seed: int) -> Array:
    """Integers over the whole range; floats whose dots are exact in every float dtype."""
    if dtype.is_integer:
        return random_array(dtype, shape, seed)
    rng = np.random.default_rng([seed, *shape])
    values = rng.integers(-2, 3, shape) / 2
    if dtype.is_complex:
        values = values + 1j * rng.integers(-2, 3, shape)
    return np.asarray(values).astype(dtype.numpy)


def same(out: Array, want: Array) -> None:
    assert out.dtype == want.dtype
    assert out.shape == want.shape
    if out.dtype.isbuiltin != 1:
        out, want = out.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(out, want)


def dot(case: Case, accum: DType | None = None, out: DType | None = None) -> DotGeneral:
    return DotGeneral(case[2], case[3], case[4], case[5], accum, out)


@each("dtype", [F32, BF16, SI8, CF64])
@each("name", CASES)
def test_every_arrangement_of_axes(dtype: DType, name: str) -> None:
    case = CASES[name]
    lhs, rhs = small(dtype, case[0], 1), small(dtype, case[1], 2)
    want = loop_dot(lhs, rhs, case, DEFAULT_ACCUMULATOR[dtype], dtype)
    same(apply(dot(case), lhs, rhs), want)


@each("dtype", [F32, F16, SI8, CF64])
@each("name", ["matrices", "batch", "two contracted", "many free"])
def test_operands_that_are_views(dtype: DType, name: str) -> None:
    case = CASES[name]
    for view in (
        lambda a: np.asfortranarray(a),
        lambda a: np.flip(np.flip(a).copy()),
        lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
        lambda a: np.broadcast_to(a[..., :1], a.shape),
    ):
        lhs, rhs = view(small(dtype, case[0], 1)), view(small(dtype, case[1], 2))
        want = loop_dot(lhs, rhs, case, DEFAULT_ACCUMULATOR[dtype], dtype)
        same(apply(dot(case), lhs, rhs), want)


def legal_accumulators(dtype: DType) -> list[DType]:
    return [dtype] + [d for d in ALL if d.kind is dtype.kind and d.bits > dtype.bits]


VECTORS: Case = ((0,), (0,), (), (), (0,), (0,))


@each(
    ("dtype", "accum"),
    [(d, a) for d in by_name(INTEGERS) for a in legal_accumulators(d)],
)
@each("out", [None, SI4, UI64])
def test_integer_accumulators_wrap_and_outputs_saturate(
    dtype: DType, accum: DType, out: DType | None
) -> None:
    low, high = int(dtype.lowest), int(dtype.highest)
    lhs = np.asarray([high, high, low, 3], dtype=object).astype(dtype.numpy)
    for last in (high, low, 1):
        rhs = np.asarray([high, last, 1, 2], dtype=object).astype(dtype.numpy)
        want = loop_dot(lhs, rhs, VECTORS, accum, out or dtype)
        same(apply(dot(VECTORS, accum, out), lhs, rhs), want)


@each(
    ("dtype", "large", "unit"),
    [
        (SI8, [127] * 1100, [127] * 1100),
        (UI8, [255] * 300, [255] * 300),
        (SI16, [4096, 1], [4096, 1]),
        (UI16, [65535] * 3 + [1], [65535] * 3 + [1]),
        (SI32, [2**27, 1], [2**26, 1]),
        (SI64, [2**27, 1], [2**26, 1]),
        (SI64, [2**62, 1], [4, 5]),
        (UI64, [2**63, 2**33, 1], [2, 2**30, 7]),
        (SI32, [2**31 - 1, -(2**31)], [2**31 - 1, -(2**31)]),
    ],
)
@each("wide", [False, True])
def test_integer_sums_beyond_the_exact_range_of_floats(
    dtype: DType, large: list[int], unit: list[int], wide: bool
) -> None:
    """Each row has a sum whose last bit is lost at 2^24 or 2^53, were it summed in floats."""
    accum = (SI64 if dtype.is_signed else UI64) if wide else DEFAULT_ACCUMULATOR[dtype]
    total = sum(a * b for a, b in zip(large, unit, strict=True))
    lhs, rhs = (np.asarray(v, dtype=object).astype(dtype.numpy) for v in (large, unit))
    out = apply(dot(VECTORS, accum, accum), lhs, rhs)
    assert int(out) == wrap(total, accum)


ONES_5000 = {FP8_E4M3: 16.0, FP8_E5M2: 8.0, BF16: 256.0, F16: 2048.0, F32: 5000.0, F64: 5000.0}
FLOAT_PAIRS = [(d, a) for d in by_name(FLOATS) for a in legal_accumulators(d)]


@each(("dtype", "accum"), FLOAT_PAIRS)
@each("out", [None, F64, SI8])
def test_float_accumulators_round_where_they_say(
    dtype: DType, accum: DType, out: DType | None
) -> None:
    ones = np.ones((2, 5000), dtype.numpy)
    case: Case = ((2, 5000), (2, 5000), (), (), (1,), (1,))
    wanted = out or dtype
    want = np.full((2, 2), convert(ONES_5000[accum], wanted), wanted.numpy)
    same(apply(dot(case, accum, out), ones, ones), want)


@each(("dtype", "accum"), FLOAT_PAIRS)
def test_products_are_taken_in_the_accumulator(dtype: DType, accum: DType) -> None:
    """The square of the number after 1 needs twice the precision of the operands."""
    step = 2.0 ** -(dtype.precision - 1)
    x = np.asarray([1.0 + step]).astype(dtype.numpy)
    exact = 1.0 + 2 * step + (step * step if accum.precision >= 2 * dtype.precision - 1 else 0.0)
    out = apply(dot(VECTORS, accum, F64), x, x)
    assert float(out) == float(np.asarray(exact).astype(accum.numpy))
    assert (float(out) == 1.0 + 2 * step) == (accum.precision < 2 * dtype.precision - 1)


@pytest.mark.parametrize("dtype", [FP8_E4M3, FP8_E5M2, BF16, F16], ids=str)
def test_narrow_accumulators_follow_a_scalar_loop(dtype: DType) -> None:
    rng = np.random.default_rng(11)
    lhs = rng.standard_normal((2, 3, 20)).astype(np.float32).astype(dtype.numpy)
    rhs = rng.standard_normal((2, 20, 4)).astype(np.float32).astype(dtype.numpy)
    case: Case = ((2, 3, 20), (2, 20, 4), (0,), (0,), (2,), (1,))
    scalar = dtype.numpy.type
    want = np.zeros((2, 3, 4), dtype.numpy)
    for b, i, j in np.ndindex(2, 3, 4):
        total = scalar(np.float32(lhs[b, i, 0]) * np.float32(rhs[b, 0, j]))
        for k in range(1, 20):
            product = scalar(np.float32(lhs[b, i, k]) * np.float32(rhs[b, k, j]))
            total = scalar(np.float32(total) + np.float32(product))
        want[b, i, j] = total
    same(apply(dot(case, dtype, None), lhs, rhs), want)


def test_narrow_accumulators_in_several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    case: Case = ((7, 300), (300, 2), (), (), (1,), (0,))
    lhs = small(F16, (7, 300), 3)
    rhs = small(F16, (300, 2), 4)
    whole = loop_dot(lhs, rhs, case, F16, F16)
    monkeypatch.setattr("weft.ptir.ops.contraction._PRODUCT_BYTES", 3000)
    same(apply(dot(case, F16, None), lhs, rhs), whole)


def test_wide_accumulators_of_f32_and_complex() -> None:
    x = np.asarray([2.0**24, 1.0], np.float32)
    one = np.ones(2, np.float32)
    assert float(apply(dot(VECTORS, None, F64), x, one)) == 2.0**24
    assert float(apply(dot(VECTORS, F64, F64), x, one)) == 2.0**24 + 1
    z = x.astype(np.complex64) * np.complex64(1j)
    assert complex(apply(dot(VECTORS, None, CF64), z, one.astype(np.complex64))) == 2.0**24 * 1j
    wide = apply(dot(VECTORS, CF64, CF64), z, one.astype(np.complex64))
    assert complex(wide) == (2.0**24 + 1) * 1j
    # No conjugation: i * i is -1.
    assert complex(apply(dot(VECTORS, CF32, None), z[1:], z[1:])) == -1


def test_nan_and_infinity_spread_only_along_their_row() -> None:
    lhs = np.asarray([[1.0, np.nan], [np.inf, 1.0], [0.0, 0.0]], np.float32)
    rhs = np.asarray([[1.0, 0.0], [2.0, 3.0]], np.float32)
    out = apply(dot(CASES["matrices"]), lhs, rhs)
    want = np.asarray([[np.nan, np.nan], [np.inf, np.nan], [0.0, 0.0]], np.float32)
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize(
    ("shape", "batch", "rows", "columns"),
    [
        ((2, 3, 8, 4), (0, 1), (2,), (3,)),
        ((2, 3, 8, 4), (0, 1), (3,), (2,)),
        ((2, 8, 3, 4), (0, 2), (1,), (3,)),
        ((2, 8, 3, 4), (0, 2), (3,), (1,)),
        ((6, 5), (), (0,), (1,)),
        ((6, 5), (), (1,), (0,)),
        ((2, 3, 5), (), (0, 1), (2,)),
        ((2, 3, 5), (), (0,), (1, 2)),
    ],
)
def test_layouts_that_blas_can_read_are_not_copied(
    shape: tuple[int, ...], batch: Axes, rows: Axes, columns: Axes
) -> None:
    x = np.zeros(shape, np.float32)
    assert np.shares_memory(_for_blas(_as_matrices(x, batch, rows, columns)), x)


@pytest.mark.parametrize(
    "case",
    [
        ((4, 8, 64, 16), (4, 8, 16, 64), (0, 1), (0, 1), (3,), (2,)),
        ((4, 64, 8, 16), (4, 64, 8, 16), (0, 2), (0, 2), (3,), (3,)),
        ((2, 128, 256), (256, 256), (), (), (2,), (1,)),
    ],
    ids=["attention", "attention with heads inside", "linear"],
)
def test_peak_memory_is_the_result(case: Case) -> None:
    lhs, rhs = np.ones(case[0], np.float32), np.ones(case[1], np.float32)
    size = apply(dot(case), lhs, rhs).nbytes
    tracemalloc.start()
    apply(dot(case), lhs, rhs)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < size + min(lhs.nbytes, rhs.nbytes) // 2
