"""Values of a graph while it is interpreted.

A value is a tensor, which the program computes; an array, which is known already (constants, shapes
and what follows from them); a list, which is a sequence; or None, an optional without a value or an
operand that is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import DType, as_dtype
from weft.foundation.errors import SpecViolation, Unimplemented, UserError
from weft.ops import namespace
from weft.ops.graph.context import current
from weft.ops.tensor import Tensor, from_array
from weft.ptir.literal import TensorLiteral
from weft.ptir.types import TensorType

Array: TypeAlias = NDArray[Any]
Value: TypeAlias = Any
"""Tensor, Array, a list of values, or None."""
wf: Final[Any] = namespace
"""The functions on tensors, as rules write them."""
LITERAL: Final = 4_096
"""Up to how many elements an array is written into the program; a larger one is data beside it."""


_WHOLE: Final[ContextVar[bool]] = ContextVar("whole", default=False)


@contextmanager
def whole_programs() -> Iterator[None]:
    """Arrays of every size are written into the program inside the `with` block."""
    token = _WHOLE.set(True)
    try:
        yield
    finally:
        _WHOLE.reset(token)


def is_array(value: Value) -> bool:
    return isinstance(value, np.ndarray)


def dtype_of(value: Value) -> DType:
    """The dtype of a tensor or array; a sentence for one that no program has."""
    if isinstance(value, Tensor):
        return value.dtype
    try:
        return as_dtype(value.dtype)
    except UserError:
        raise Unimplemented("dtype", f"there are no tensors of {value.dtype}") from None


def value_as_tensor(value: Value) -> Tensor:
    """A value as a tensor."""
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, np.ndarray):
        raise UserError(f"a tensor is wanted, not {type(value).__name__}")
    dtype = dtype_of(value)
    if value.size > LITERAL and not _WHOLE.get():
        return from_array(np.ascontiguousarray(value))
    kind = TensorType(dtype, tuple(value.shape))
    return Tensor(current().constant(TensorLiteral(kind, np.ascontiguousarray(value).tobytes())))


def axis_in(axis: int, rank: int) -> int:
    """An axis from 0 of a tensor of this rank; it may be counted from the end."""
    if not -rank <= axis < rank:
        raise SpecViolation(
            "InvalidAttributeValue",
            f"axis {axis} is out of range for {rank} axes",
            f"axes run from {-rank} to {rank - 1}",
        )
    return axis + rank if axis < 0 else axis


def array(value: Value, what: str = "a value") -> Array:
    """A value as an array: a tensor is computed, unless a function is being traced."""
    if isinstance(value, np.ndarray):
        return value
    if not isinstance(value, Tensor):
        raise UserError(f"{what} is wanted as a tensor, not {type(value).__name__}")
    if value.is_traced:
        raise Unimplemented(
            "value",
            f"{what} must be known when the model is compiled, since shapes depend on it, but it "
            "is computed; give it as a constant, or run the model without jit",
        )
    return value.numpy()
