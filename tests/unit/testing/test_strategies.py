"""The Hypothesis strategies: what they draw is valid, and failures shrink."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, find, given, settings

import weft
from weft.foundation.dtypes import ALL, BF16, F32, SI32, DType, as_dtype
from weft.foundation.errors import UserError
from weft.ptir import Symbol, TensorType, tensor, verify
from weft.testing import RandomCase, strategies
from weft.testing.strategies import arrays, dtypes, programs, shapes, types

QUICK = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    derandomize=True,
    database=None,
)


@given(case=programs(max_size=8))
@QUICK
def test_drawn_programs_verify_and_run(case: RandomCase) -> None:
    verify(case.program)
    assert len(weft.run(case.program, case.inputs)) >= 1


@given(case=programs(max_size=6, ops=["add", "reshape"], dtypes=[F32, "si32"], dynamic=False))
@QUICK
def test_drawn_programs_keep_the_rules(case: RandomCase) -> None:
    body = case.program.main.body
    assert {i.op.mnemonic for i in body} <= {"add", "reshape"}
    assert {as_dtype(array.dtype) for array in case.inputs} <= {F32, SI32}


@given(dtype=dtypes(), shape=shapes(min_rank=1, max_rank=3, max_dim=4, empty=False))
@QUICK
def test_dtypes_and_shapes(dtype: DType, shape: tuple[int, ...]) -> None:
    assert dtype in ALL
    assert 1 <= len(shape) <= 3
    assert all(1 <= dim <= 4 for dim in shape)


@given(dtype=dtypes(["bf16", F32]))
@QUICK
def test_dtypes_among_some(dtype: DType) -> None:
    assert dtype in (BF16, F32)


@given(array=arrays(types(dtypes(), shapes())))
@QUICK
def test_arrays_of_drawn_types(array: Any) -> None:
    dtype = as_dtype(array.dtype)
    if dtype.is_float or dtype.is_complex:
        assert np.isfinite(array.astype(np.complex128)).all()


@given(array=arrays(tensor("f32", [2, 3])))
@QUICK
def test_arrays_of_one_type(array: Any) -> None:
    assert array.dtype == np.float32
    assert array.shape == (2, 3)


def test_special_values_are_found() -> None:
    kind = tensor("f32", [8])
    found = find(arrays(kind, special=True), lambda a: bool(np.isnan(a).any()), settings=QUICK)
    assert np.isnan(found).any()


def test_dynamic_types_have_no_arrays() -> None:
    kind = TensorType(F32, (Symbol("B"),))
    with pytest.raises(UserError, match="has a dynamic dimension"):
        find(arrays(kind), lambda a: True, settings=QUICK)


def test_a_failing_program_shrinks() -> None:
    many = settings(QUICK, max_examples=300)
    case = find(
        programs(max_size=12, control_flow=False),
        lambda c: any(i.op.mnemonic == "reshape" for i in c.program.main.body),
        settings=many,
    )
    assert case.seed < 2**64, "seeds are drawn from 64 bits"
    assert len(case.program.main.body) <= 20
    assert repr(case).startswith(f"<random program {case.seed} with ")


def test_only_the_strategies_need_hypothesis() -> None:
    assert strategies.__name__ == "weft.testing.strategies"
