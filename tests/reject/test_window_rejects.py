"""Every rejection of the window ops, with its code and exact text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.cases import each
from tests.support.one_op import apply, infer
from weft.foundation.dtypes import BF16, F16, F32, F64, SI8, SI32, DType
from weft.foundation.errors import ResourceExceeded, SpecViolation
from weft.ptir.literal import ScalarLiteral, ScalarTag
from weft.ptir.op import Op
from weft.ptir.ops.reduce_kind import ReduceKind
from weft.ptir.ops.window import ExtractPatches, ReduceWindow
from weft.ptir.schema import USIZE_MAX
from weft.ptir.types import tensor

ZERO = ScalarLiteral(ScalarTag.FLOAT, 0.0)
PATCHES = ExtractPatches((3,), (1,), (1,), ((0, 0),), ZERO)
POOL = ReduceWindow((3,), (1,), ((0, 0),), (1,), (1,), ReduceKind.MAX, None)


def f32(*dims: Any) -> Any:
    return tensor("f32", dims)


CASES: list[tuple[Op, Any, str, str]] = [
    # extract_patches
    (PATCHES, f32(4), "RankMismatch", "x has rank 1, at least 2 is needed"),
    (PATCHES, f32(1, 5, 5, 2), "InvalidAttributeValue", "window has 1 entries, not 2"),
    (
        replace(PATCHES, strides=()),
        f32(1, 5, 2),
        "InvalidAttributeValue",
        "strides has 0 entries, not 1",
    ),
    (
        replace(PATCHES, dilation=(1, 1)),
        f32(1, 5, 2),
        "InvalidAttributeValue",
        "dilation has 2 entries, not 1",
    ),
    (
        replace(PATCHES, padding=()),
        f32(1, 5, 2),
        "InvalidAttributeValue",
        "padding has 0 entries, not 1",
    ),
    (
        replace(PATCHES, window=(0,)),
        f32(1, 5, 2),
        "InvalidAttributeValue",
        "window [0] must be at least 1 everywhere",
    ),
    (
        replace(PATCHES, strides=(0,)),
        f32(1, 5, 2),
        "InvalidAttributeValue",
        "strides [0] must be at least 1 everywhere",
    ),
    (
        replace(PATCHES, dilation=(0,)),
        f32(1, 5, 2),
        "InvalidAttributeValue",
        "dilation [0] must be at least 1 everywhere",
    ),
    (
        PATCHES,
        tensor("si8", [1, 5, 2]),
        "InvalidAttributeValue",
        "pad_value Float(0.0) cannot fill a tensor of dtype si8",
    ),
    (
        PATCHES,
        f32(1, 2, 4),
        "InvalidAttributeValue",
        "the window on axis 1 spans 3 places, more than the 2 of the padded operand",
    ),
    (
        replace(PATCHES, dilation=(3,), padding=((1, 0),)),
        f32(1, 5, 4),
        "InvalidAttributeValue",
        "the window on axis 1 spans 7 places, more than the 6 of the padded operand",
    ),
    (
        replace(PATCHES, padding=((1, 1),)),
        f32(1, 0, 4),
        "InvalidAttributeValue",
        "the window on axis 1 spans 3 places, more than the 2 of the padded operand",
    ),
    (
        replace(PATCHES, window=(USIZE_MAX,)),
        f32(1, 5, 4),
        "InvalidAttributeValue",
        "the window on axis 1 spans 18446744073709551615 places, more than the 5 of the padded "
        "operand",
    ),
    # reduce_window
    (POOL, f32(5, 5), "InvalidAttributeValue", "window_dims has 1 entries, not 2"),
    (
        replace(POOL, strides=(1, 1)),
        f32(5),
        "InvalidAttributeValue",
        "strides has 2 entries, not 1",
    ),
    (replace(POOL, padding=()), f32(5), "InvalidAttributeValue", "padding has 0 entries, not 1"),
    (
        replace(POOL, base_dilation=()),
        f32(5),
        "InvalidAttributeValue",
        "base_dilation has 0 entries, not 1",
    ),
    (
        replace(POOL, window_dilation=()),
        f32(5),
        "InvalidAttributeValue",
        "window_dilation has 0 entries, not 1",
    ),
    (
        replace(POOL, window_dims=(0,)),
        f32(5),
        "InvalidAttributeValue",
        "window_dims [0] must be at least 1 everywhere",
    ),
    (
        replace(POOL, strides=(0,)),
        f32(5),
        "InvalidAttributeValue",
        "strides [0] must be at least 1 everywhere",
    ),
    (
        replace(POOL, base_dilation=(0,)),
        f32(5),
        "InvalidAttributeValue",
        "base_dilation [0] must be at least 1 everywhere",
    ),
    (
        replace(POOL, window_dilation=(0,)),
        f32(5),
        "InvalidAttributeValue",
        "window_dilation [0] must be at least 1 everywhere",
    ),
    (
        POOL,
        f32(2),
        "InvalidAttributeValue",
        "the window on axis 0 spans 3 places, more than the 2 of the padded operand",
    ),
    (
        replace(POOL, base_dilation=(2,), window_dims=(6,)),
        f32(3),
        "InvalidAttributeValue",
        "the window on axis 0 spans 6 places, more than the 5 of the padded operand",
    ),
    (
        replace(POOL, reduce=ReduceKind.SUM),
        tensor("i1", [5]),
        "DTypeNotSupported",
        "reduce_window is not defined for x of dtype i1",
    ),
    (
        POOL,
        tensor("cf32", [5]),
        "DTypeNotSupported",
        "reduce_window is not defined for x of dtype cf32",
    ),
]


@each(("op", "x", "code", "why"), CASES)
def test_type_rules(op: Op, x: Any, code: str, why: str) -> None:
    with pytest.raises(SpecViolation) as caught:
        infer(op, x)
    assert (caught.value.code, caught.value.why) == (code, why)


ACCUMULATORS: list[tuple[str, DType, str]] = [
    ("f32", F16, "reduce_window of f32 cannot accumulate in f16"),
    ("f16", BF16, "reduce_window of f16 cannot accumulate in bf16"),
    ("si32", SI8, "reduce_window of si32 cannot accumulate in si8"),
    ("si8", F32, "reduce_window of si8 cannot accumulate in f32"),
    ("ui8", SI32, "reduce_window of ui8 cannot accumulate in si32"),
    ("i1", SI32, "reduce_window of i1 cannot accumulate in si32"),
]


@pytest.mark.parametrize(("dtype", "accum", "why"), ACCUMULATORS, ids=str)
def test_accumulators(dtype: str, accum: DType, why: str) -> None:
    with pytest.raises(SpecViolation) as caught:
        infer(replace(POOL, accum_dtype=accum), tensor(dtype, [5]))
    assert (caught.value.code, caught.value.why) == ("InvalidAccumDTypeOverride", why)


def test_a_reduction_is_one_of_three() -> None:
    with pytest.raises(SpecViolation) as caught:
        replace(POOL, reduce="prod")  # type: ignore[arg-type]
    why = "attribute reduce of reduce_window: 'prod' is not one of sum, max, min"
    assert (caught.value.code, caught.value.why) == ("InvalidAttributeValue", why)


def test_padding_beyond_the_memory_limit_is_refused() -> None:
    """Operand and result are small; only the padded operand in between is not."""
    around, stride = ((2**40, 2**40),), (2**60,)
    patches = ExtractPatches((1,), stride, (1,), around, ZERO)
    with pytest.raises(ResourceExceeded) as caught:
        apply(patches, np.ones((1, 1, 1), np.float32))
    assert str(caught.value) == (
        "the padded operand of a window op would need 8,796,093,022,212 bytes, over the limit of "
        "17,179,869,184; raise WEFT_MAX_TENSOR_BYTES if this is meant"
    )
    pool = ReduceWindow((1,), stride, around, (1,), (1,), ReduceKind.MAX, F64)
    with pytest.raises(ResourceExceeded):
        apply(pool, np.ones(1, np.float32))
