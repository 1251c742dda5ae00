"""The second half of a functional op: writing its instructions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.foundation.dtypes import F32
from weft.ops.arithmetic import TensorLike, as_tensor
from weft.ops.array.manipulation import expand_dims, squeeze
from weft.ops.functional.checks import Checked, ensure_tensor
from weft.ops.session import Handle, Session
from weft.ops.tensor import Tensor


def widened(x: Handle) -> Handle:
    """x in f32 at least: statistics, sums and exponentials are computed there."""
    return x if x.dtype.bits >= 32 else x.cast(F32)


def capture(emit: Callable[..., Handle], checked: Checked, *operands: TensorLike | None) -> Tensor:
    """The result of `emit(session, checked, *handles)` as a tensor. Arrays among the operands have
    been checked and become tensors here; an absent operand stays None."""
    tensors = _tensors_or_none(operands)
    session = Session.of(*tensors)
    handle = emit(session, checked, *_handles(session, tensors))
    return session.export(handle, requires_grad=_wants_grad(handle, tensors))


def capture_several(
    emit: Callable[..., tuple[Handle, ...]], checked: Checked, *operands: TensorLike | None
) -> tuple[Tensor, ...]:
    """The same for an op with several results."""
    tensors = _tensors_or_none(operands)
    session = Session.of(*tensors)
    handles = emit(session, checked, *_handles(session, tensors))
    return tuple(session.export(h, requires_grad=_wants_grad(h, tensors)) for h in handles)


def with_batch(rank: int, x: Any, run: Callable[[Tensor], Any]) -> Any:
    """`run` on x with a batch of one in front where x has one axis less than `rank`, and the
    results without it."""
    tensor = ensure_tensor("x", x)
    if tensor.ndim != rank - 1:
        return run(tensor)
    found = run(expand_dims(tensor, axis=0))
    if isinstance(found, Tensor):
        return squeeze(found, 0)
    return tuple(squeeze(each, 0) for each in found)


def _tensors_or_none(operands: tuple[TensorLike | None, ...]) -> list[Tensor | None]:
    return [None if operand is None else as_tensor(operand) for operand in operands]


def _handles(session: Session, tensors: Sequence[Tensor | None]) -> list[Any]:
    return [None if tensor is None else session.import_(tensor) for tensor in tensors]


def _wants_grad(result: Handle, tensors: Sequence[Tensor | None]) -> bool:
    differentiable = result.dtype.is_float or result.dtype.is_complex
    return differentiable and any(t is not None and t._wants_grad for t in tensors)
