"""Gradient clipping by global norm."""

from __future__ import annotations

from typing import Any, TypeVar

from weft.foundation.errors import UserError
from weft.ops.array.elementwise import minimum, sqrt
from weft.ops.array.statistics import sum as total
from weft.ops.calls import public
from weft.ops.optim.optimiser import like, tensor_leaves, trainable
from weft.ops.optim.settings import number
from weft.ops.pytree import unflatten
from weft.ops.tensor import Tensor

P = TypeVar("P")


@public
def global_norm(tree: Any) -> Tensor:
    """The length of all float tensors of a container as one vector, in f32."""
    leaves = [leaf for leaf in tensor_leaves(tree)[0] if trainable(leaf)]
    if not leaves:
        raise UserError("[global_norm] there is no float tensor in the container")
    # In f32 before they are squared: the square of a large f16 is infinite.
    squares = [total(wide * wide) for wide in (leaf.astype("f32") for leaf in leaves)]
    whole = squares[0]
    for square in squares[1:]:
        whole = whole + square
    return sqrt(whole)


@public
def clip_by_global_norm(gradients: P, limit: float | Tensor) -> tuple[P, Tensor]:
    """The gradients, all scaled down by one factor where together they are longer than `limit`, and
    their length before."""
    if not isinstance(limit, Tensor):
        number("clip_by_global_norm", "limit", limit)
    length = global_norm(gradients)
    factor = minimum(limit / (length + 1e-12), 1.0)
    leaves, structure = tensor_leaves(gradients)
    scaled = [leaf * like(factor, leaf) if trainable(leaf) else leaf for leaf in leaves]
    return unflatten(structure, scaled), length
