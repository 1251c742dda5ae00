"""Elementwise functions and operators, against NumPy, over dtypes and shapes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.cases import each
from tests.unit.ops.array.arrays import (
    ALL,
    COMPLEX,
    FLOATS,
    INTEGERS,
    NUMBERS,
    SHAPES,
    agrees,
    data,
)
from weft.foundation.errors import SpecViolation, UserError

REALS = INTEGERS + FLOATS
SIGNED = [name for name in NUMBERS if not name.startswith("u")]

# function, NumPy's function, dtypes; domains that need it get data of their own below
UNARY: list[tuple[str, Callable[..., Any], list[str]]] = [
    ("abs", np.abs, NUMBERS),
    ("negative", np.negative, SIGNED),
    ("positive", np.positive, NUMBERS),
    ("square", np.square, NUMBERS),
    ("sign", np.sign, NUMBERS),
    ("reciprocal", lambda x: 1 / x, FLOATS + COMPLEX),
    ("ceil", np.ceil, FLOATS),
    ("floor", np.floor, FLOATS),
    ("trunc", np.trunc, FLOATS),
    ("round", np.round, FLOATS + COMPLEX),
    ("conj", np.conj, NUMBERS),
    ("real", np.real, NUMBERS),
    ("imag", np.imag, NUMBERS),
    ("isfinite", np.isfinite, NUMBERS),
    ("isinf", np.isinf, NUMBERS),
    ("isnan", np.isnan, NUMBERS),
    ("signbit", np.signbit, FLOATS),
    ("bitwise_invert", np.invert, ["bool", *INTEGERS]),
    ("logical_not", np.logical_not, ALL),
    ("exp", np.exp, FLOATS + COMPLEX),
    ("expm1", np.expm1, FLOATS + COMPLEX),
    ("sin", np.sin, FLOATS + COMPLEX),
    ("cos", np.cos, FLOATS + COMPLEX),
    ("tan", np.tan, FLOATS + COMPLEX),
    ("sinh", np.sinh, FLOATS + COMPLEX),
    ("cosh", np.cosh, FLOATS + COMPLEX),
    ("tanh", np.tanh, FLOATS + COMPLEX),
    ("asinh", np.arcsinh, FLOATS + COMPLEX),
    ("atan", np.arctan, FLOATS + COMPLEX),
]
POSITIVE = [("sqrt", np.sqrt), ("log", np.log), ("log2", np.log2), ("log10", np.log10),
            ("log1p", np.log1p)]  # fmt: skip
SMALL = [("asin", np.arcsin), ("acos", np.arccos), ("atanh", np.arctanh)]
BINARY: list[tuple[str, Callable[..., Any], list[str]]] = [
    ("add", np.add, NUMBERS),
    ("subtract", np.subtract, NUMBERS),
    ("multiply", np.multiply, NUMBERS),
    ("divide", np.divide, FLOATS + COMPLEX),
    ("floor_divide", np.floor_divide, REALS),
    ("remainder", np.remainder, REALS),
    ("maximum", np.maximum, REALS),
    ("minimum", np.minimum, REALS),
    ("equal", np.equal, ALL),
    ("not_equal", np.not_equal, ALL),
    ("less", np.less, REALS),
    ("less_equal", np.less_equal, REALS),
    ("greater", np.greater, REALS),
    ("greater_equal", np.greater_equal, REALS),
    ("logical_and", np.logical_and, ALL),
    ("logical_or", np.logical_or, ALL),
    ("logical_xor", np.logical_xor, ALL),
    ("bitwise_and", np.bitwise_and, ["bool", *INTEGERS]),
    ("bitwise_or", np.bitwise_or, ["bool", *INTEGERS]),
    ("bitwise_xor", np.bitwise_xor, ["bool", *INTEGERS]),
    ("copysign", np.copysign, FLOATS),
    ("nextafter", np.nextafter, FLOATS),
    ("hypot", np.hypot, FLOATS),
    ("atan2", np.arctan2, FLOATS),
    ("logaddexp", np.logaddexp, FLOATS),
]


@pytest.mark.parametrize(("name", "oracle", "dtypes"), UNARY, ids=[row[0] for row in UNARY])
def test_unary_functions(name: str, oracle: Callable[..., Any], dtypes: list[str]) -> None:
    for dtype in dtypes:
        for shape in SHAPES:
            x = data(dtype, shape)
            expected = np.asarray(oracle(x))
            agrees(getattr(weft, name)(weft.asarray(x)), expected)


@pytest.mark.parametrize(("name", "oracle"), [*POSITIVE, *SMALL])
def test_functions_with_a_domain(name: str, oracle: Callable[..., Any]) -> None:
    rng = np.random.default_rng(1)
    for dtype in FLOATS:
        x = np.asarray(rng.uniform(0.01, 0.99, (3, 4)), dtype)
        agrees(getattr(weft, name)(weft.asarray(x)), oracle(x))


def test_acosh() -> None:
    x = np.asarray([1.0, 1.5, 10.0], np.float64)
    agrees(weft.acosh(weft.asarray(x)), np.arccosh(x))


@pytest.mark.parametrize(("name", "oracle", "dtypes"), BINARY, ids=[row[0] for row in BINARY])
def test_binary_functions(name: str, oracle: Callable[..., Any], dtypes: list[str]) -> None:
    for dtype in dtypes:
        for left, right in [((), ()), ((2, 3), (2, 3)), ((3,), (2, 1)), ((2, 0), (1,)), ((4,), ())]:
            x, y = data(dtype, left, 1), data(dtype, right, 2)
            expected = np.asarray(oracle(x, y))
            agrees(getattr(weft, name)(weft.asarray(x), weft.asarray(y)), expected)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_shifts_and_powers_of_integers(dtype: str) -> None:
    x, n = data(dtype, (6,)), np.asarray([0, 1, 2, 3, 0, 1], dtype)
    agrees(weft.asarray(x) << weft.asarray(n), x << n)
    agrees(weft.asarray(x) >> weft.asarray(n), x >> n)
    agrees(weft.asarray(x) ** weft.asarray(n), x**n)
    agrees(weft.asarray(x) ** 2, x**2)


@pytest.mark.parametrize("dtype", FLOATS)
def test_powers_of_floats(dtype: str) -> None:
    x, y = np.abs(data(dtype, (3, 4))), data(dtype, (3, 4), 1)
    agrees(weft.asarray(x) ** weft.asarray(y), x**y)
    agrees(2 ** weft.asarray(y), 2**y)
    agrees(weft.asarray(x) ** 0.5, x**0.5)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_take_the_default_float_where_fractions_are_needed(dtype: str) -> None:
    x = data(dtype, (5,))
    agrees(weft.asarray(x) / weft.asarray(x), (x / x), "float32")
    agrees(weft.sqrt(weft.asarray(np.abs(x))), np.sqrt(np.abs(x.astype(float))), "float32")
    agrees(weft.atan2(weft.asarray(x), 2), np.arctan2(x.astype(float), 2.0), "float32")
    for name in ("ceil", "floor", "trunc", "round"):
        agrees(getattr(weft, name)(weft.asarray(x)), x)


# -- floor division and remainder ----------------------------------------------------------------

_SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.1, 0.3, -0.7, 7.5, 1e300, -1e-300, 5e-324]


@pytest.mark.parametrize("dtype", FLOATS)
def test_floor_division_is_exact_where_the_quotient_rounds_up(dtype: str) -> None:
    x, y = (np.asarray(v, dtype) for v in ([1.0, 1.0, -1.0, 6.0, 0.3], [0.1, -0.1, 0.1, 2.0, 0.1]))
    agrees(weft.asarray(x) // weft.asarray(y), np.floor_divide(x, y))
    agrees(weft.asarray(x) % weft.asarray(y), np.remainder(x, y))


def test_floor_division_and_remainder_follow_python_on_finite_floats() -> None:
    pairs = [(a, b) for a in _SPECIAL for b in _SPECIAL if b != 0.0]
    x, y = (np.asarray(column) for column in zip(*pairs, strict=True))
    quotients = (weft.asarray(x) // weft.asarray(y)).numpy()
    rests = (weft.asarray(x) % weft.asarray(y)).numpy()
    for (a, b), quotient, rest in zip(pairs, quotients, rests, strict=True):
        with np.errstate(all="ignore"):
            assert quotient == np.floor_divide(a, b), (a, b)
        assert rest == a % b, (a, b)
        assert np.signbit(rest) == np.signbit(b), (a, b)


def test_floor_division_of_infinities_and_by_zero() -> None:
    inf = np.inf
    x = np.asarray([inf, -inf, 3.0, -3.0, 1.0, -1.0, inf, 0.0])
    y = np.asarray([2.0, 2.0, inf, inf, 0.0, 0.0, inf, 0.0])
    with np.errstate(all="ignore"):
        expected = np.floor(x / y)
    got = (weft.asarray(x) // weft.asarray(y)).numpy()
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(np.signbit(got[2:4]), [False, True])


def test_integer_division_by_zero_is_an_error_when_it_runs() -> None:
    quotient = weft.asarray([1, 2]) // weft.asarray([1, 0])
    with pytest.raises(SpecViolation) as error:
        quotient.numpy()
    assert error.value.code == "IntegerDivideByZero"


# -- zeros with signs that the standard fixes ----------------------------------------------------


def test_sign_has_no_negative_zero() -> None:
    for dtype in FLOATS:
        x = np.asarray([-0.0, 0.0, -2.0, np.nan], dtype)
        found = weft.sign(weft.asarray(x)).numpy()
        np.testing.assert_array_equal(found, [0, 0, -1, np.nan])
        assert not np.signbit(found[:2]).any()
    zeros = np.asarray([complex(-0.0, 0.0), complex(0.0, -0.0)])
    found = weft.sign(weft.asarray(zeros)).numpy()
    assert not np.signbit(found.real).any()
    assert not np.signbit(found.imag).any()


def test_complex_functions_at_their_edges() -> None:
    found = weft.expm1(weft.asarray(np.asarray([complex(-0.0, 0.0), complex(-0.0, -0.0)]))).numpy()
    assert not np.signbit(found.real).any()
    assert list(np.signbit(found.imag)) == [False, True]
    far = np.asarray([complex(np.inf, 2.0), complex(-np.inf, -2.0), complex(np.inf, 5.0)])
    found = weft.tanh(weft.asarray(far)).numpy()
    np.testing.assert_array_equal(found, [1, -1, 1])
    assert list(np.signbit(found.imag)) == [False, True, False]


# -- clip ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", REALS)
def test_clip(dtype: str) -> None:
    x = data(dtype, (4, 5))
    low, high = (2, 9) if np.dtype(dtype).kind in "iu" else (-0.5, 1.5)
    agrees(weft.clip(weft.asarray(x), low, high), np.clip(x, low, high))
    agrees(weft.clip(weft.asarray(x), min=low), np.clip(x, low, None))
    agrees(weft.clip(weft.asarray(x), max=high), np.clip(x, None, high))
    agrees(weft.clip(weft.asarray(x)), x)
    bound = data(dtype, (5,), 3)
    agrees(weft.asarray(x).clip(weft.asarray(bound)), np.maximum(x, bound))


def test_clip_propagates_nan() -> None:
    x = np.asarray([np.nan, 1.0])
    agrees(weft.clip(weft.asarray(x), 0.0, 2.0), [np.nan, 1.0])
    agrees(weft.clip(weft.asarray([1.0, 2.0]), min=float("nan")), [np.nan] * 2, "float32")


# -- operators -----------------------------------------------------------------------------------

_OPERATORS = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv,
              operator.mod, operator.lt, operator.le, operator.gt, operator.ge, operator.eq,
              operator.ne]  # fmt: skip


@pytest.mark.parametrize("op", _OPERATORS, ids=[op.__name__ for op in _OPERATORS])
def test_operators_with_tensors_numbers_and_arrays_on_either_side(op: Any) -> None:
    x = data("float64", (2, 3))
    agrees(op(weft.asarray(x), weft.asarray(x[0])), op(x, x[0]))
    agrees(op(weft.asarray(x), 2.5), op(x, 2.5))
    agrees(op(2.5, weft.asarray(x)), op(2.5, x))
    agrees(op(weft.asarray(x), x[:, :1]), op(x, x[:, :1]))
    agrees(op(x[:, :1], weft.asarray(x)), op(x[:, :1], x))


def test_logic_operators() -> None:
    a, b = np.asarray([True, True, False]), np.asarray([True, False, False])
    x, y = weft.asarray(a), weft.asarray(b)
    agrees(x & y, a & b)
    agrees(x | y, a | b)
    agrees(x ^ True, a ^ True)
    agrees(~x, ~a)
    agrees(7 & weft.asarray([3, 5]), np.asarray([3, 5]))


def test_in_place_operators_change_the_tensor_wherever_it_is_held() -> None:
    x = weft.asarray([1.0, 2.0])
    before, held = x + 0, x
    x += 1
    x *= weft.asarray([2.0, 3.0])
    agrees(held, [4.0, 9.0], "float32")
    agrees(before, [1.0, 2.0], "float32")
    m = weft.asarray([[0.0, 1.0], [1.0, 0.0]])
    m @= m
    agrees(m, np.eye(2), "float32")


def test_in_place_operators_keep_dtype_and_shape() -> None:
    x = weft.asarray([1, 2])
    with pytest.raises(SpecViolation, match=r"\[iadd\] the result is f32\[2\]"):
        x += 1.5
    with pytest.raises(SpecViolation, match=r"si64\[3, 2\].*assigned to is si64\[2\]"):
        x += weft.zeros((3, 1), dtype=weft.int64)
    agrees(x, [1, 2], "int64")


def test_operators_leave_other_types_to_python() -> None:
    x = weft.ones(2)
    with pytest.raises(TypeError):
        x + "a"
    assert (x == "a") is False
    assert (x != None) is True  # noqa: E711


# -- numbers -------------------------------------------------------------------------------------


def test_a_number_keeps_its_sign_and_kind() -> None:
    zero = weft.asarray([1.0]) * -0.0
    assert np.signbit(zero.numpy()).all()
    assert not np.signbit((weft.asarray([1.0]) * 0.0).numpy()).any()
    assert np.signbit(weft.asarray(-float("nan"), dtype=weft.float64).numpy())
    assert not np.signbit(weft.asarray(float("nan"), dtype=weft.float64).numpy())
    turned = weft.asarray([1 + 0j]) * complex(-0.0, 0.0)
    np.testing.assert_array_equal(
        turned.numpy(), np.asarray([1 + 0j], np.complex64) * complex(-0.0, 0)
    )


def test_numpy_scalars_are_numbers_or_tensors() -> None:
    x = weft.asarray([1.0, 2.0])
    agrees(x * np.float64(2.0), [2.0, 4.0], "float32")
    agrees(x * np.float32(2.0), [2.0, 4.0], "float32")
    agrees(np.float64(2.0) * x, [2.0, 4.0], "float32")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (300, "the number 300 is not representable in si8"),
        (2**70, "is not representable in si8"),
    ],
)
def test_a_number_must_fit_the_integer_beside_it(value: int, message: str) -> None:
    with pytest.raises(SpecViolation, match=message) as error:
        weft.asarray([1], dtype=weft.int8) + value
    assert error.value.code == "LiteralInvalid"
    assert "-128 to 127" in str(error.value)


def test_a_number_larger_than_every_float() -> None:
    with pytest.raises(SpecViolation, match="larger than every float"):
        weft.asarray([1.0]) + 10**400


def test_two_numbers_are_no_operands() -> None:
    with pytest.raises(UserError, match=r"\[add\] at least one operand must be a tensor"):
        weft.add(1, 2)


# -- operators that remember ---------------------------------------------------------------------

REMEMBERED: list[tuple[Callable[..., Any], str]] = [
    (operator.add, "add"), (operator.sub, "subtract"), (operator.mul, "multiply"),
    (operator.truediv, "divide"), (operator.floordiv, "floor_divide"), (operator.mod, "remainder"),
    (operator.pow, "pow"), (operator.and_, "bitwise_and"), (operator.lshift, "bitwise_left_shift"),
    (operator.lt, "less"), (operator.eq, "equal"), (operator.matmul, "matmul"),
]  # fmt: skip


@each(("symbol", "name"), REMEMBERED)
@each("dtype", ["int8", "uint16", "float32"])
def test_an_operator_captures_what_its_function_does(
    symbol: Callable[..., Any], name: str, dtype: str
) -> None:
    if dtype == "float32" and name.startswith("bitwise"):
        return
    x, y = (weft.full((2, 2), value, dtype=getattr(weft, dtype)).eval() for value in (3, 2))
    expected = getattr(weft, name)(x, y)
    for _ in range(3):  # the first time by its function, then from memory
        found = symbol(x, y)
        assert found.program() == expected.program()
    np.testing.assert_array_equal(found.numpy(), expected.numpy())


def test_what_an_operator_remembers_is_not_for_tensors_that_want_gradients() -> None:
    x = weft.ones((2, 5)).eval()
    _ = x * x
    wanted = weft.tensor(np.ones((2, 5), np.float32), requires_grad=True)
    assert (x * wanted).requires_grad
    assert (wanted * x).requires_grad
    assert not (x * x).requires_grad


def test_an_operator_forces_no_implementation_of_matmul() -> None:
    x = weft.ones((2, 2, 2)).eval()
    seen = []

    def told(lhs: Any, rhs: Any) -> Any:
        seen.append(lhs.shape)
        return lhs

    _ = x @ x, x @ x
    weft.functional.register("matmul", "told", told)
    try:
        with weft.functional.overrides({"matmul": "force=told"}):
            _ = x @ x
    finally:
        weft.functional.unregister("matmul", "told")
    assert seen == [(2, 2, 2)]
