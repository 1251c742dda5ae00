"""Matrix products: matmul with batch broadcasting, and the linear layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weft.foundation.dims import Shape
from weft.foundation.dtypes import NUMBERS
from weft.foundation.errors import SpecViolation, UserError
from weft.ops.arithmetic import broadcast_shapes, listed
from weft.ops.array.linear_algebra import matmul as product
from weft.ops.functional.capture import capture
from weft.ops.functional.checks import (
    Checked,
    ensure_dtype,
    ensure_rank,
    ensure_rank_at_least,
    ensure_same_backend,
    ensure_same_dtype,
    ensure_shape,
    ensure_tensor,
)
from weft.ops.functional.registry import functional, implements
from weft.ops.promotion import promoted
from weft.ops.session import Handle, Session
from weft.ops.tensor import Tensor, tensor_method


@dataclass(frozen=True)
class MatmulChecked(Checked):
    """Ranks of at least 1; a vector is a row on the left and a column on the right."""

    batch: Shape
    """What the leading axes of both broadcast to."""
    result: Shape


def check_matmul(lhs: Any, rhs: Any) -> MatmulChecked:
    a, b = ensure_tensor("lhs", lhs), ensure_tensor("rhs", rhs)
    ensure_rank_at_least("lhs", a, 1)
    ensure_rank_at_least("rhs", b, 1)
    ensure_same_backend("lhs", a, "rhs", b)
    ensure_dtype("lhs", a, NUMBERS, "numbers")
    ensure_dtype("rhs", b, NUMBERS, "numbers")
    inner = b.shape[0] if b.ndim == 1 else b.shape[-2]
    if a.shape[-1] != inner:
        raise SpecViolation(
            "ShapeMismatch",
            f"lhs {listed(a.shape)} and rhs {listed(b.shape)}: inner sizes {a.shape[-1]} and "
            f"{inner} differ",
            "the last axis of lhs must match the second last of rhs; transpose one with .mT",
        )
    batch = _batch(a, b)
    rows, columns = a.shape[-2:-1], b.shape[-1:] if b.ndim > 1 else ()
    return MatmulChecked(batch, (*batch, *rows, *columns))


def _batch(a: Tensor, b: Tensor) -> Shape:
    try:
        return broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except SpecViolation as error:
        raise SpecViolation(
            error.code,
            f"lhs {listed(a.shape)} and rhs {listed(b.shape)}: the axes before the last two do not "
            "broadcast",
            "reshape one of them, or insert axes with None",
        ) from None


def _cast_to_common(s: Session, a: Handle, b: Handle) -> tuple[Handle, Handle]:
    dtype = promoted(a.dtype, b.dtype)
    return s.cast(a, dtype), s.cast(b, dtype)


def _batched_product(checked: MatmulChecked, a: Handle, b: Handle) -> Handle:
    left = _broadcast_batch(a.reshape((1, *a.shape)) if a.rank == 1 else a, checked.batch)
    right = _broadcast_batch(b.reshape((*b.shape, 1)) if b.rank == 1 else b, checked.batch)
    axes = range(len(checked.batch))
    product = left.dot_general(right, contract=([-1], [-2]), batch=(axes, axes))
    return product.reshape(checked.result)


def _broadcast_batch(x: Handle, batch: Shape) -> Handle:
    matrix = x.shape[-2:]
    if x.rank - 2 < len(batch):
        x = x.reshape(((1,) * (len(batch) + 2 - x.rank)) + x.shape)
    return x.broadcast_to((*batch, *matrix))


@tensor_method
@functional
def matmul(lhs: Tensor, rhs: Tensor, /) -> Tensor:
    """The matrix product over the last two axes; leading axes broadcast, and operands may be
    vectors. If the right side is a single matrix, it is multiplied by all rows of the left side in
    one product."""
    a, b = ensure_tensor("lhs", lhs), ensure_tensor("rhs", rhs)
    try:
        return product(a, b)
    except (SpecViolation, UserError):
        # The checks cost more than the capture; they run when there is something to say.
        check_matmul(a, b)
        raise


def capture_batched_matmul(s: Session, checked: MatmulChecked, a: Handle, b: Handle) -> Handle:
    return _batched_product(checked, *_cast_to_common(s, a, b))


def _has_batch(lhs: Any, rhs: Any) -> bool:
    return max(getattr(lhs, "ndim", 0), getattr(rhs, "ndim", 0)) > 2


@implements("matmul", "batched", _has_batch)
def matmul_batched(lhs: Tensor, rhs: Tensor) -> Tensor:
    """Every matrix of the batch multiplied on its own, the right side broadcast along the batch."""
    a, b = ensure_tensor("lhs", lhs), ensure_tensor("rhs", rhs)
    return capture(capture_batched_matmul, check_matmul(a, b), a, b)


@dataclass(frozen=True)
class LinearChecked(Checked):
    """x [..., in], weight [out, in], bias [out]."""

    result: Shape


def check_linear(x: Any, weight: Any, bias: Any) -> LinearChecked:
    data, matrix = ensure_tensor("x", x), ensure_tensor("weight", weight)
    ensure_rank_at_least("x", data, 1)
    ensure_rank("weight", matrix, 2, "(out, in)")
    ensure_same_dtype("x", data, "weight", matrix)
    ensure_same_backend("x", data, "weight", matrix)
    if data.shape[-1] != matrix.shape[1]:
        raise SpecViolation(
            "ShapeMismatch",
            f"x {listed(data.shape)} and weight {listed(matrix.shape)}: the last axis of x has "
            f"size {data.shape[-1]}, but the weight takes {matrix.shape[1]}",
            "the weight is (out, in)",
        )
    if bias is not None:
        ensure_same_dtype("x", data, "bias", ensure_tensor("bias", bias))
        ensure_shape("bias", bias, matrix.shape[:1], "one number for each output feature")
    return LinearChecked((*data.shape[:-1], matrix.shape[0]))


def capture_linear(
    s: Session, checked: LinearChecked, x: Handle, weight: Handle, bias: Handle | None
) -> Handle:
    product = x.dot_general(weight, contract=([-1], [1]))
    if bias is None:
        return product
    aligned = bias.reshape((*([1] * (product.rank - 1)), bias.shape[0]))
    return product + aligned.broadcast_to(product.shape)


@functional
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias`, for x [..., in], weight [out, in], bias [out]."""
    checked = check_linear(x, weight, bias)
    return capture(capture_linear, checked, ensure_tensor("x", x), weight, bias)
