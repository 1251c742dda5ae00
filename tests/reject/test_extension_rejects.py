"""What the functions, bitwise ops, complex parts and factorisations refuse, word for word."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.cases import each
from tests.support.one_op import Array, apply, infer
from weft.foundation.dtypes import ALL, SI64, DType
from weft.foundation.errors import SpecViolation
from weft.ptir.op import BY_TARGET, SPELLINGS, Op
from weft.ptir.ops import bits, complex_parts, functions, linear_algebra
from weft.ptir.types import TensorType, TupleType, ValueType, tensor

MODULES = (bits, complex_parts, functions, linear_algebra)

FLOATS = {"fp8_e4m3", "fp8_e5m2", "bf16", "f16", "f32", "f64"}
COMPLEX = {"cf32", "cf64"}
INTEGERS = {"si4", "ui4", "si8", "ui8", "si16", "ui16", "si32", "ui32", "si64", "ui64"}
LAPACK = {"f32", "f64", "cf32", "cf64"}

# The table op x dtype, written out a second time.
DEFINED: dict[str, set[str]] = {
    **dict.fromkeys(["sqrt", "sin", "cos", "tan", "asin", "acos", "atan"], FLOATS | COMPLEX),
    **dict.fromkeys(["sinh", "cosh", "asinh", "acosh", "atanh"], FLOATS | COMPLEX),
    **dict.fromkeys(["expm1", "log1p", "exp2", "log2", "log10"], FLOATS | COMPLEX),
    **dict.fromkeys(["isnan", "isinf", "isfinite"], FLOATS | COMPLEX),
    **dict.fromkeys(["floor", "ceil", "trunc", "round", "signbit"], FLOATS),
    **dict.fromkeys(["atan2", "copysign", "nextafter", "hypot", "logaddexp"], FLOATS),
    "sign": FLOATS | COMPLEX | INTEGERS,
    "pow": FLOATS | COMPLEX | INTEGERS,
    "fmod": FLOATS | INTEGERS,
    **dict.fromkeys(["bitwise_and", "bitwise_or", "bitwise_xor"], INTEGERS | {"i1"}),
    "bitwise_not": INTEGERS | {"i1"},
    **dict.fromkeys(["shift_left", "shift_right"], INTEGERS),
    **dict.fromkeys(["real", "imag", "conj"], COMPLEX),
    "complex": {"f32", "f64"},
    "bitcast": (FLOATS | INTEGERS) - {"si4", "ui4"},
    **dict.fromkeys(["cholesky", "qr", "eigh", "svd", "lu"], LAPACK),
    "triangular_solve": LAPACK | {"f16", "bf16"},
}
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "bitcast": {"dtype": "f32"},
    "cholesky": {"upper": False},
    "qr": {"mode": "reduced"},
    "svd": {"full_matrices": False},
    "triangular_solve": {"lower": True, "transpose": False, "unit_diagonal": False},
}
# The name of the first operand, which the message about a dtype gives.
FIRST = {
    **dict.fromkeys(["atan2", "copysign", "nextafter", "hypot", "logaddexp", "pow", "fmod"], "lhs"),
    **dict.fromkeys(["bitwise_and", "bitwise_or", "bitwise_xor"], "lhs"),
    "complex": "real",
    "triangular_solve": "a",
}


def make(name: str) -> Op:
    return SPELLINGS[name][0](**ATTRIBUTES.get(name, {}))


def refused(op: Op, *types: ValueType) -> SpecViolation:
    with pytest.raises(SpecViolation) as caught:
        infer(op, *types)
    return caught.value


def refused_run(op: Op, *args: Array) -> SpecViolation:
    with pytest.raises(SpecViolation) as caught:
        apply(op, *args)
    return caught.value


def test_the_table_above_is_complete() -> None:
    names = {module.__name__.rpartition(".")[2] for module in MODULES}
    found = {name for name, (op, _) in SPELLINGS.items() if op.family in names}
    assert found == set(DEFINED)


@each("name", DEFINED)
@each("dtype", ALL)
def test_dtypes(name: str, dtype: DType) -> None:
    op = bits.Bitcast(dtype) if name == "bitcast" else make(name)
    types = [tensor(dtype, [2, 2])] * len(op.operands)
    if dtype.name in DEFINED[name]:
        infer(op, *types)
        return
    error = refused(op, *types)
    assert error.code == "DTypeNotSupported"
    operand = FIRST.get(name, "x")
    assert error.why == f"{name} is not defined for {operand} of dtype {dtype}"


@each("name", DEFINED)
def test_wire_target(name: str) -> None:
    assert BY_TARGET[f"weft.{name}.v1"] is SPELLINGS[name][0]


@each("name", DEFINED)
def test_operand_count(name: str) -> None:
    op = make(name)
    count = len(op.operands) + 1
    error = refused(op, *[tensor("f32", [2, 2])] * count)
    assert error.code == "ArityMismatch"
    names = ", ".join(op.operands)
    assert error.why == f"{name} takes operands ({names}) but got {count}"


TWO_OPERANDS = [
    *[name for name in DEFINED if FIRST.get(name) in ("lhs", "real")],
    "shift_left",
    "shift_right",
]


@pytest.mark.parametrize("name", TWO_OPERANDS)
def test_elementwise_operands_agree(name: str) -> None:
    first, second = sorted(DEFINED[name])[:2]
    error = refused(make(name), tensor(first, [2]), tensor(second, [2]))
    assert error.code == "DTypeMismatch"
    assert error.why == f"the operands of {name} have dtypes {first} and {second}"
    error = refused(make(name), tensor(first, [2, 3]), tensor(first, [2, 1]))
    assert error.code == "ShapeMismatch"
    assert error.why == f"the operands of {name} have shapes [2, 3] and [2, 1]"
    error = refused(make(name), tensor(first, ["B"]), tensor(first, [3]))
    assert error.code == "DynamicDimensionMismatch"
    assert error.why == f"the operands of {name} have shapes [?B] and [3]"


F = "f32"
SHAPES: list[tuple[str, list[TensorType], str, str]] = [
    ("cholesky", [tensor(F, [3])], "RankMismatch",
     "the operand of cholesky has rank 1, at least 2 is needed"),
    ("cholesky", [tensor(F, [2, 3])], "ShapeMismatch",
     "the matrices of cholesky are not square: 2 and 3"),
    ("cholesky", [tensor(F, ["N", 3])], "DynamicDimensionMismatch",
     "the matrices of cholesky are not square: ?N and 3"),
    ("eigh", [tensor(F)], "RankMismatch", "the operand of eigh has rank 0, at least 2 is needed"),
    ("eigh", [tensor(F, [4, 3, 2])], "ShapeMismatch",
     "the matrices of eigh are not square: 3 and 2"),
    ("qr", [tensor(F, [3])], "RankMismatch", "the operand of qr has rank 1, at least 2 is needed"),
    ("svd", [tensor(F, [3])], "RankMismatch",
     "the operand of svd has rank 1, at least 2 is needed"),
    ("lu", [tensor(F, [3])], "RankMismatch", "the operand of lu has rank 1, at least 2 is needed"),
    ("triangular_solve", [tensor(F, [2, 2]), tensor("f64", [2, 1])], "DTypeMismatch",
     "the operands of triangular_solve have dtypes f32 and f64"),
    ("triangular_solve", [tensor(F, [2]), tensor(F, [2])], "RankMismatch",
     "a of triangular_solve has rank 1, at least 2 is needed"),
    ("triangular_solve", [tensor(F, [2, 2]), tensor(F, [2])], "RankMismatch",
     "b of triangular_solve has rank 1, not 2"),
    ("triangular_solve", [tensor(F, [2, 3]), tensor(F, [3, 1])], "ShapeMismatch",
     "the matrices a of triangular_solve are not square: 2 and 3"),
    ("triangular_solve", [tensor(F, [3, 3]), tensor(F, [2, 1])], "ShapeMismatch",
     "a and b of triangular_solve differ in rows: 3 and 2"),
    ("triangular_solve", [tensor(F, [4, 3, 3]), tensor(F, [5, 3, 1])], "ShapeMismatch",
     "a and b of triangular_solve differ in a batch axis: 4 and 5"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "types", "code", "why"), SHAPES)
def test_matrix_shapes(name: str, types: list[TensorType], code: str, why: str) -> None:
    error = refused(make(name), *types)
    assert (error.code, error.why) == (code, why)


def test_a_tuple_is_no_matrix() -> None:
    error = refused(make("lu"), TupleType((tensor(F, [2, 2]),)))
    assert error.code == "TensorExpected"
    assert error.why == "operand x of lu is the tuple (f32[2, 2])"


def test_bits_are_read_at_their_own_width() -> None:
    error = refused(bits.Bitcast(SI64), tensor(F, [2]))
    assert error.code == "InvalidAttributeValue"
    assert error.why == "an element of f32 has 32 bits and one of si64 has 64"
    assert error.hint == "bitcast to a dtype of the same width"


BAD_ATTRIBUTES: list[tuple[type[Op], dict[str, Any], str]] = [
    (linear_algebra.Cholesky, {"upper": 1}, "attribute upper of cholesky: 1 is not true or false"),
    (linear_algebra.Qr, {"mode": "thin"},
     "attribute mode of qr: 'thin' is not one of reduced, complete"),
    (linear_algebra.Svd, {"full_matrices": "yes"},
     "attribute full_matrices of svd: 'yes' is not true or false"),
    (linear_algebra.TriangularSolve, {"lower": True, "transpose": None, "unit_diagonal": False},
     "attribute transpose of triangular_solve: None is not true or false"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "attributes", "why"), BAD_ATTRIBUTES)
def test_attributes(op: type[Op], attributes: dict[str, Any], why: str) -> None:
    with pytest.raises(SpecViolation) as caught:
        op(**attributes)
    assert (caught.value.code, caught.value.why) == ("InvalidAttributeValue", why)


# -- what only the data can show -----------------------------------------------------------------


@pytest.mark.parametrize("dtype", [d for d in ALL if d.is_signed], ids=str)
@pytest.mark.parametrize(
    ("name", "code", "what"),
    [
        ("pow", "InvalidExponent", "exponent"),
        ("shift_left", "InvalidShift", "shift amount"),
        ("shift_right", "InvalidShift", "shift amount"),
    ],
)
def test_negative_exponents_and_shifts(name: str, code: str, what: str, dtype: DType) -> None:
    x = np.ones((2, 2), dtype.numpy)
    second = np.array([[1, 2], [-3, -1]], dtype.numpy)
    error = refused_run(make(name), x, second)
    assert (error.code, error.why) == (code, f"the {what} is -3 at element 2")
    error = refused_run(make(name), x, second.T)
    assert error.why == f"the {what} is -3 at element 1"
    error = refused_run(make(name), np.asarray(x[0, 0]), np.asarray(second[1, 1]))
    assert error.why == f"the {what} is -1 at element 0"


@pytest.mark.parametrize("dtype", [d for d in ALL if d.is_integer], ids=str)
def test_fmod_by_zero(dtype: DType) -> None:
    x = np.ones(3, dtype.numpy)
    error = refused_run(make("fmod"), x, np.array([1, 0, 0], dtype.numpy))
    assert (error.code, error.why) == ("IntegerDivideByZero", "the divisor is zero at element 1")


def indefinite(kind: str) -> Array:
    matrices = {
        "negative": [[1.0, 0.0], [0.0, -1.0]],
        "zero": [[0.0, 0.0], [0.0, 0.0]],
        "nan": [[np.nan, np.nan], [np.nan, np.nan]],
    }
    return np.array(matrices[kind])


@each("upper", [False, True])
@each("dtype", sorted(LAPACK))
@each("kind", ["negative", "zero", "nan"])
def test_cholesky_names_the_matrix(kind: str, dtype: str, upper: bool) -> None:
    op = linear_algebra.Cholesky(upper)
    bad = indefinite(kind).astype(tensor(dtype).dtype.numpy)
    error = refused_run(op, bad)
    assert error.code == "NotPositiveDefinite"
    assert error.why == "the matrix of cholesky is not positive definite"
    batch = np.broadcast_to(np.eye(2, dtype=bad.dtype), (2, 3, 2, 2)).copy()
    batch[1, 0] = bad
    batch[1, 2] = indefinite("negative")
    error = refused_run(op, batch)
    assert error.code == "NotPositiveDefinite"
    assert error.why == "matrix [1, 0] of cholesky is not positive definite"
