"""The promotion table: the standard's, written out here once more, and what Weft adds to it."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.cases import each
from weft.foundation.dtypes import ALL, DType
from weft.foundation.errors import SpecViolation, UserError
from weft.ops.jit import jit
from weft.ops.promotion import beside, promoted

# The rows and columns of the standard's tables, one per kind.
SIGNED = ["int8", "int16", "int32", "int64"]
UNSIGNED = ["uint8", "uint16", "uint32", "uint64"]
MIXED = {
    ("int8", "uint8"): "int16", ("int8", "uint16"): "int32", ("int8", "uint32"): "int64",
    ("int16", "uint8"): "int16", ("int16", "uint16"): "int32", ("int16", "uint32"): "int64",
    ("int32", "uint8"): "int32", ("int32", "uint16"): "int32", ("int32", "uint32"): "int64",
    ("int64", "uint8"): "int64", ("int64", "uint16"): "int64", ("int64", "uint32"): "int64",
}  # fmt: skip
FLOATING = {
    ("float32", "float32"): "float32", ("float32", "float64"): "float64",
    ("float32", "complex64"): "complex64", ("float32", "complex128"): "complex128",
    ("float64", "float64"): "float64", ("float64", "complex64"): "complex128",
    ("float64", "complex128"): "complex128", ("complex64", "complex64"): "complex64",
    ("complex64", "complex128"): "complex128", ("complex128", "complex128"): "complex128",
}  # fmt: skip


def standard_table() -> dict[tuple[str, str], str]:
    table = MIXED | FLOATING | {("bool", "bool"): "bool"}
    for row in (SIGNED, UNSIGNED):
        table |= {(a, b): max(a, b, key=row.index) for a, b in itertools.product(row, row)}
    return table


def named(name: str) -> DType:
    found: DType = getattr(weft, name)
    return found


@each(("left", "right"), standard_table())
def test_the_standards_table(left: str, right: str) -> None:
    expected = named(standard_table()[left, right])
    assert promoted(named(left), named(right)) is expected
    assert promoted(named(right), named(left)) is expected
    assert weft.result_type(named(left), named(right)) is expected
    tensors = weft.ones(2, dtype=named(left)), weft.ones(2, dtype=named(right))
    assert weft.result_type(*tensors) is expected
    if left != "bool":
        assert (tensors[0] + tensors[1]).dtype is expected


@pytest.mark.parametrize("signed", SIGNED)
def test_uint64_and_a_signed_integer_have_nothing_in_common(signed: str) -> None:
    with pytest.raises(SpecViolation, match="have no integer dtype in common") as error:
        weft.ones(2, dtype=weft.uint64) + weft.ones(2, dtype=named(signed))
    assert error.value.code == "DTypeMismatch"
    assert "astype" in str(error.value)
    assert not weft.can_cast(weft.uint64, named(signed))


# What the standard leaves open: bool takes the other dtype, an integer the float's, and narrow
# floats meet in the narrowest that holds both.
EXTRA = {
    ("bool", "int8"): "int8", ("bool", "float32"): "float32", ("int64", "float32"): "float32",
    ("int8", "bfloat16"): "bfloat16", ("uint64", "complex64"): "complex64",
    ("bfloat16", "float16"): "float32", ("bfloat16", "float32"): "float32",
    ("float16", "float64"): "float64", ("float8_e4m3", "float8_e5m2"): "float16",
    ("float8_e4m3", "bfloat16"): "bfloat16", ("int4", "uint4"): "int8", ("int4", "int8"): "int8",
    ("int8", "uint4"): "int8", ("bfloat16", "complex64"): "complex64",
}  # fmt: skip


@pytest.mark.parametrize(("left", "right"), EXTRA)
def test_beyond_the_standard(left: str, right: str) -> None:
    expected = named(EXTRA[left, right])
    assert promoted(named(left), named(right)) is expected
    assert promoted(named(right), named(left)) is expected


def test_promotion_is_symmetric_and_keeps_equal_dtypes() -> None:
    for left, right in itertools.product(ALL, ALL):
        try:
            found = promoted(left, right)
        except SpecViolation:
            with pytest.raises(SpecViolation):
                promoted(right, left)
            continue
        assert promoted(right, left) is found
        assert promoted(found, left) is found
        assert left is not right or found is left


@pytest.mark.parametrize(
    ("dtype", "number", "expected"),
    [
        ("bool", bool, "bool"), ("bool", int, "int64"), ("bool", float, "float32"),
        ("int8", bool, "int8"), ("int8", int, "int8"), ("int8", float, "float32"),
        ("uint64", int, "uint64"), ("int32", complex, "complex64"),
        ("float32", int, "float32"), ("float64", float, "float64"),
        ("bfloat16", float, "bfloat16"), ("float32", complex, "complex64"),
        ("float64", complex, "complex128"), ("complex64", float, "complex64"),
    ],
)  # fmt: skip
def test_python_numbers(dtype: str, number: type, expected: str) -> None:
    assert beside(named(dtype), number) is named(expected)
    assert weft.result_type(named(dtype), number(1)) is named(expected)
    if dtype != "bool":
        assert (weft.ones(2, dtype=named(dtype)) * number(1)).dtype is named(expected)


def test_result_type_of_numbers_alone() -> None:
    assert weft.result_type(1, 2.0) is weft.float32
    assert weft.result_type(True) is weft.bool
    assert weft.result_type(1, 1j) is weft.complex64
    with pytest.raises(UserError, match="at least one"):
        weft.result_type()


def test_result_type_does_not_depend_on_the_order() -> None:
    dtypes: list[Any] = [weft.int8, weft.uint8, weft.uint32, weft.int16]
    found = {weft.result_type(*order) for order in itertools.permutations(dtypes)}
    assert found == {weft.int64}


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("int8", "int16", True), ("int16", "int8", False), ("float32", "float64", True),
        ("float64", "float32", False), ("uint8", "int16", True), ("bool", "float32", True),
        ("complex64", "float32", False), ("float32", "complex64", True),
    ],
)  # fmt: skip
def test_can_cast(source: str, target: str, expected: bool) -> None:
    assert weft.can_cast(named(source), named(target)) is expected
    assert weft.can_cast(weft.zeros(1, dtype=named(source)), named(target)) is expected


def test_no_dtype_is_none() -> None:
    with pytest.raises(UserError, match="unknown dtype None; the dtypes are"):
        weft.ones((2,)).astype(None)
    with pytest.raises(UserError, match="unknown dtype None; the dtypes are"):
        weft.can_cast(None, "float32")


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("float8_e4m3", [math.nan, math.nan, 448.0, math.nan]),
        ("float8_e5m2", [math.inf, -math.inf, 448.0, math.nan]),
        ("float16", [math.inf, -math.inf, 464.0, math.nan]),
        ("float32", [math.inf, -math.inf, 464.0, math.nan]),
        ("int8", [127, -128, 127, 0]),
    ],
)
def test_what_is_too_large_for_a_dtype(backend: str, dtype: str, expected: list[float]) -> None:
    x = weft.asarray(np.array([1e300, -1e300, 464.0, math.nan])).to(backend)
    np.testing.assert_array_equal(x.astype(dtype).astype("float32").numpy(), expected)


def test_traced_numbers_take_the_dtype_of_the_tensor_beside_them() -> None:
    seen: list[Any] = []

    def scale(x: Any, factor: Any, count: Any) -> Any:
        seen.extend([(x * factor).dtype, (count + x).dtype, (factor * count).dtype])
        return x * factor + count

    x = weft.ones(3, dtype=weft.bfloat16)
    assert jit(scale)(x, 2.0, 3).dtype is weft.bfloat16
    assert seen == [weft.bfloat16, weft.bfloat16, weft.float64]
