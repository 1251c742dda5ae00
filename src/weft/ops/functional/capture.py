"""The second half of a functional op: writing its instructions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from weft.ops.functional.checks import Checked
from weft.ops.session import Handle, Session
from weft.ops.tensor import Tensor

C = TypeVar("C", bound=Checked)


def capture(emit: Callable[..., Handle], checked: Checked, *tensors: Tensor | None) -> Tensor:
    """The result of `emit(session, checked, *handles)` as a tensor. An absent tensor stays None."""
    session = Session.of(*tensors)
    handle = emit(session, checked, *_handles(session, tensors))
    return session.export(handle, requires_grad=_wants_grad(handle, tensors))


def capture_several(
    emit: Callable[..., tuple[Handle, ...]], checked: Checked, *tensors: Tensor | None
) -> tuple[Tensor, ...]:
    """The same for an op with several results."""
    session = Session.of(*tensors)
    handles = emit(session, checked, *_handles(session, tensors))
    return tuple(session.export(h, requires_grad=_wants_grad(h, tensors)) for h in handles)


def _handles(session: Session, tensors: tuple[Tensor | None, ...]) -> list[Any]:
    return [None if tensor is None else session.import_(tensor) for tensor in tensors]


def _wants_grad(result: Handle, tensors: tuple[Tensor | None, ...]) -> bool:
    differentiable = result.dtype.is_float or result.dtype.is_complex
    return differentiable and any(t is not None and t.requires_grad for t in tensors)
