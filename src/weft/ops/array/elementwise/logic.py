"""Comparison, tests of floats, logic and bits, element by element."""

from __future__ import annotations

from typing import Any

from weft.foundation.calls import told
from weft.foundation.dtypes import I1
from weft.foundation.lines import user_line
from weft.ops.arithmetic import TensorLike, as_tensor, binary, comparison, unary
from weft.ops.array.operands import given, taken
from weft.ops.calls import public
from weft.ops.graph.context import arena_for
from weft.ops.graph.forms import cast_form
from weft.ops.numbers import is_number
from weft.ops.tensor import Tensor, tensor_method

__all__ = [
    "bitwise_and", "bitwise_invert", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift",
    "bitwise_xor", "equal", "greater", "greater_equal", "isfinite", "isinf", "isnan", "less",
    "less_equal", "logical_and", "logical_not", "logical_or", "logical_xor", "not_equal",
]  # fmt: skip


# -- comparison ----------------------------------------------------------------------------------


@tensor_method
@told
def equal(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """`x1 == x2`."""
    return comparison("equal", x1, x2)


@tensor_method
@told
def not_equal(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """`x1 != x2`."""
    return comparison("not_equal", x1, x2)


@tensor_method
@told
def less(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """`x1 < x2`."""
    return comparison("less", x1, x2)


@tensor_method
@told
def less_equal(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """`x1 <= x2`."""
    return comparison("less_equal", x1, x2)


@tensor_method
@told
def greater(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """`x1 > x2`."""
    return comparison("greater", x1, x2)


@tensor_method
@told
def greater_equal(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """`x1 >= x2`."""
    return comparison("greater_equal", x1, x2)


# -- tests of floats -----------------------------------------------------------------------------


@tensor_method
@public
def isfinite(x: Tensor, /) -> Tensor:
    """Whether it is neither NaN nor an infinity."""
    return _float_test("isfinite", as_tensor(x), whole=True)


@tensor_method
@public
def isinf(x: Tensor, /) -> Tensor:
    """Whether it is an infinity."""
    return _float_test("isinf", as_tensor(x), whole=False)


@tensor_method
@public
def isnan(x: Tensor, /) -> Tensor:
    """Whether it is NaN."""
    return _float_test("isnan", as_tensor(x), whole=False)


def _float_test(name: str, x: Tensor, whole: bool) -> Tensor:
    """The answer for integers, `whole`, is the same everywhere."""
    if x.dtype.is_float or x.dtype.is_complex:
        return unary(name, x)
    handle = taken(x)
    return given(handle.session.full(whole, I1, handle.shape))


# -- logic and bits ------------------------------------------------------------------------------


@tensor_method
@told
def logical_and(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Whether both are true; a number is true unless it is zero."""
    return binary("bitwise_and", _as_truth(x1), _as_truth(x2), "logical_and")


@tensor_method
@told
def logical_or(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Whether either is true."""
    return binary("bitwise_or", _as_truth(x1), _as_truth(x2), "logical_or")


@tensor_method
@told
def logical_xor(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Whether exactly one is true."""
    return binary("bitwise_xor", _as_truth(x1), _as_truth(x2), "logical_xor")


@tensor_method
@told
def logical_not(x: Tensor, /) -> Tensor:
    """Whether it is false."""
    return unary("bitwise_not", _as_truth(x), "logical_not")


def _as_truth(x: Any) -> Any:
    """An operand of logic: its elements as i1."""
    if is_number(x):
        return bool(x)
    if not isinstance(x, Tensor) or x.dtype is I1:
        return x
    node = x._node
    return Tensor(arena_for(node).emit(cast_form(node.type, I1), (node,), user_line()))


@tensor_method
@told
def bitwise_and(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """The bits set in both."""
    return binary("bitwise_and", x1, x2)


@tensor_method
@told
def bitwise_or(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """The bits set in either."""
    return binary("bitwise_or", x1, x2)


@tensor_method
@told
def bitwise_xor(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """The bits set in exactly one."""
    return binary("bitwise_xor", x1, x2)


@tensor_method
@told
def bitwise_invert(x: Tensor, /) -> Tensor:
    """Every bit flipped."""
    return unary("bitwise_not", x, "bitwise_invert")


@tensor_method
@told
def bitwise_left_shift(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """`x1` moved `x2` bits up."""
    return binary("shift_left", x1, x2, "bitwise_left_shift")


@tensor_method
@told
def bitwise_right_shift(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """`x1` moved `x2` bits down, keeping its sign."""
    return binary("shift_right", x1, x2, "bitwise_right_shift")
