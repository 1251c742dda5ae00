"""`weft.autocast`: mixed precision without casts in the model.

    with weft.autocast("bf16"):
        loss = F.cross_entropy(model(x), y)

Inside the block products and convolutions take their f32 operands in the narrow dtype; what adds up
many numbers or takes exponentials gets f32. Everything else computes in what it is given.
Parameters stay f32, and so do their gradients: a cast hands the cotangent back in the dtype that it
took.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Final

import numpy as np

from weft.foundation.dtypes import BF16, F16, F32, DType, as_dtype_or_none
from weft.foundation.errors import UserError, brief
from weft.ops.calls import public
from weft.ops.tensor import Tensor

NARROW: Final = frozenset({
    "attention", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "einsum", "grouped_matmul", "linear", "matmul",
})  # fmt: skip
"""Functional ops that take f32 operands in the narrow dtype, as `weft.matmul` and `@` do."""

WIDE: Final = frozenset({
    "batch_norm", "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy",
    "cumsum", "group_norm", "huber_loss", "instance_norm", "kl_div", "l1_loss", "layer_norm",
    "log_sigmoid", "log_softmax", "mse_loss", "nll_loss", "rms_norm", "smooth_l1_loss", "softmax",
    "softplus",
})  # fmt: skip
"""Functional ops that take narrow operands in f32."""

_in_force: Final[ContextVar[DType | None]] = ContextVar("autocast", default=None)


@public
def autocast(dtype: Any = "bf16", *, enabled: bool = True) -> AbstractContextManager[None]:
    """Mixed precision in a block of code: bf16 or f16. `enabled=False` turns it off inside another
    one."""
    narrow = as_dtype_or_none(dtype)
    if narrow not in (F16, BF16):
        raise UserError(
            f"the narrow dtype is f16 or bf16, not {narrow or brief(dtype)}; write "
            '"bf16" or weft.bfloat16, or "f16" or weft.float16'
        )
    return _use_narrow(narrow if enabled else None)


@contextmanager
def _use_narrow(narrow: DType | None) -> Iterator[None]:
    token = _in_force.set(narrow)
    try:
        yield
    finally:
        _in_force.reset(token)


def autocast_dtype() -> DType | None:
    """The narrow dtype in force; None outside of every block."""
    return _in_force.get()


def cast_operands(
    op: str, narrow: DType, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a functional op as it wants them in mixed precision."""
    taken: tuple[DType, ...]
    if op in NARROW:
        taken, wanted = (F32,), narrow
    elif op in WIDE:
        taken, wanted = (F16, BF16), F32
    else:
        return args, kwargs

    def cast(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.astype(wanted) if value.dtype in taken else value
        is_taken = isinstance(value, np.ndarray) and value.dtype in [d.numpy for d in taken]
        return value.astype(wanted.numpy) if is_taken else value

    return tuple(map(cast, args)), {name: cast(value) for name, value in kwargs.items()}
