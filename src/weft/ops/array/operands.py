"""How the arguments of an array function become handles of a session, and a handle a tensor."""

from __future__ import annotations

from typing import Any

from weft.foundation.dims import Dim
from weft.foundation.errors import SizeWanted
from weft.foundation.lines import Line, user_line
from weft.ops.arithmetic import as_tensor, listed, matched
from weft.ops.graph.context import arena_for
from weft.ops.promotion import promoted
from weft.ops.session import Handle, Session
from weft.ops.tensor import Tensor


def taken(x: Any) -> Handle:
    """A tensor as a handle of a new session, for the user's current line."""
    tensor = as_tensor(x)
    return Handle(Session(arena_for(tensor._node), user_line()), tensor._node)


def given(handle: Handle, *sources: Any) -> Tensor:
    """A handle as a tensor; it wants gradients where a source does and fractions exist."""
    dtype = handle.dtype
    if not (dtype.is_float or dtype.is_complex):
        return Tensor(handle.node)
    wanted = [isinstance(source, Tensor) and source._wants_grad for source in sources]
    return Tensor(handle.node, True in wanted)


def paired(x1: Any, x2: Any, line: Line | None) -> tuple[Tensor, Tensor]:
    """Two operands in their common dtype and shape; each keeps what it wants of gradients."""
    nodes = matched(x1, x2, line)
    wanted = [isinstance(source, Tensor) and source._wants_grad for source in (x1, x2)]
    return Tensor(nodes[0], wanted[0]), Tensor(nodes[1], wanted[1])


def in_common_dtype(x: Handle, y: Handle) -> tuple[Handle, Handle]:
    """Two handles in the dtype they have in common, their shapes as they are."""
    dtype = promoted(x.dtype, y.dtype)
    return x.cast(dtype), y.cast(dtype)


def known(dim: Dim, what: str) -> int:
    """A size that must be a number here."""
    if not isinstance(dim, int):
        raise SizeWanted(
            "DynamicDimensionMismatch",
            f"{what} is the dynamic dim {dim}, but its size must be known here",
            "trace the function with this dim fixed",
        )
    return dim


def known_shape(x: Handle) -> tuple[int, ...]:
    """A shape of numbers."""
    return tuple(known(dim, f"a size of {listed(x.shape)}") for dim in x.shape)
