"""The functions by name mean what the PTIR ops of the same name mean, on every dtype."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.cases import each
from tests.support.one_op import apply, random_array
from weft.foundation import functions
from weft.foundation.dtypes import (
    ALL,
    BF16,
    F16,
    F32,
    F64,
    FP8_E4M3,
    I1,
    SI4,
    SI8,
    SI32,
    UI8,
    DType,
)
from weft.foundation.errors import InternalError, SpecViolation
from weft.foundation.scalar import BINARY, COMPARISONS, UNARY
from weft.ptir import Program
from weft.ptir.builder import Builder
from weft.ptir.op import Op
from weft.tiny.ir import ReduceFn

SPELLINGS = {
    "recip": "reciprocal",
    "max": "maximum",
    "min": "minimum",
    "not": "bitwise_not",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
}
COMPARED = {
    "lt": "less", "le": "less_equal", "eq": "equal", "ge": "greater_equal", "gt": "greater",
    "ne": "not_equal",
}  # fmt: skip
COMPOSED = {"relu", "gelu", "silu"}
FLOATS = (F32, F64, BF16, F16, FP8_E4M3)


def op_of(name: str, dtype: DType, count: int) -> Op:
    """The PTIR op that a builder makes for a name."""
    builder = Builder("f")
    args = [builder.param(dtype, [3]) for _ in range(count)]
    if name in COMPARED:
        value = builder.emit("compare", *args, op=COMPARED[name])
    else:
        value = builder.emit(SPELLINGS.get(name, name), *args)
    program: Program = builder.build(value)
    return program.main.body[-1].op


def test_every_function_of_tiny_has_a_row() -> None:
    assert {str(fn) for fn in UNARY} == set(functions.UNARY)
    assert {str(fn) for fn in BINARY} == set(functions.BINARY) | set(functions.COMPARISONS)
    assert {str(fn) for fn in COMPARISONS} == set(functions.COMPARISONS)
    assert {str(fn) for fn in ReduceFn} == set(functions.REDUCTIONS)


def same(found: object, expected: object) -> None:
    a, b = np.asarray(found), np.asarray(expected)
    assert a.dtype == b.dtype
    assert np.array_equal(a.view(np.uint8), b.view(np.uint8)) or np.array_equal(
        a.astype(np.float64), b.astype(np.float64), equal_nan=True
    )


@each("dtype", FLOATS)
@each("fn", sorted(set(functions.UNARY) - COMPOSED - {"not"}))
def test_functions_of_floats(fn: str, dtype: DType) -> None:
    x = random_array(dtype, (200,), scale=3.0)
    with np.errstate(all="ignore"):
        same(functions.unary(fn, dtype, x), apply(op_of(fn, dtype, 1), x))


FLOATS_ONLY = {"atan2", "hypot", "logaddexp", "copysign", "nextafter"}
INTEGERS_ONLY = {"and", "or", "xor", "shift_left", "shift_right"}
ALL_PAIRS = {*functions.BINARY, *functions.COMPARISONS}
PAIRS = [
    *((fn, dtype) for fn in sorted(ALL_PAIRS - INTEGERS_ONLY) for dtype in FLOATS),
    *((fn, dtype) for fn in sorted(ALL_PAIRS - FLOATS_ONLY) for dtype in (SI32, SI8, UI8, SI4)),
]


@each(("fn", "dtype"), PAIRS)
def test_functions_of_pairs(fn: str, dtype: DType) -> None:
    x, y = random_array(dtype, (200,), 1), random_array(dtype, (200,), 2)
    if dtype.is_integer:
        # Divisors are not zero; exponents and amounts are not negative.
        y = np.asarray(np.abs(y.astype(np.int64)) % 7 + 1).astype(y.dtype)
    with np.errstate(all="ignore"):
        same(functions.binary(fn, dtype, x, y), apply(op_of(fn, dtype, 2), x, y))


def test_not_and_and_on_truth_values() -> None:
    x, y = np.asarray([True, True, False]), np.asarray([True, False, False])
    assert functions.unary("not", I1, x).tolist() == [False, False, True]
    assert functions.binary("min", I1, x, y).tolist() == [True, False, False]


def test_composed_functions() -> None:
    x = np.linspace(-4, 4, 33, dtype=np.float32)
    relu, silu = functions.unary("relu", F32, x), functions.unary("silu", F32, x)
    np.testing.assert_array_equal(relu, np.maximum(x, 0))
    np.testing.assert_allclose(silu, x / (1 + np.exp(-x.astype(np.float64))), rtol=1e-6)
    gelu = functions.unary("gelu", F32, np.asarray([0.0, 1.0, -1.0], np.float32))
    np.testing.assert_allclose(gelu, [0.0, 0.8413447, -0.1586553], rtol=1e-6)


def test_integer_division_by_zero_is_a_violation() -> None:
    with pytest.raises(SpecViolation, match="IntegerDivideByZero"):
        functions.binary("div", SI32, np.asarray([1], np.int32), np.asarray([0], np.int32))


@pytest.mark.parametrize("dtype", [d for d in ALL if not d.is_complex], ids=str)
def test_identities(dtype: DType) -> None:
    values = random_array(dtype, (5,))
    for fn in ("max", "min"):
        start = functions.identity(fn, dtype)
        both = functions.binary(fn, dtype, values, np.broadcast_to(start, (5,)))
        np.testing.assert_array_equal(both, values)


def test_there_is_no_other_reduction() -> None:
    with pytest.raises(InternalError, match="no reduction named mean"):
        functions.identity("mean", F32)


def test_a_reduction_of_nothing_is_its_identity() -> None:
    empty = np.zeros((2, 0), np.float32)
    assert functions.reduce("max", F32, empty, [1], F32).tolist() == [-np.inf, -np.inf]
    assert functions.reduce("prod", F32, empty, [1], F32).tolist() == [1.0, 1.0]
