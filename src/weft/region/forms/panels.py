"""Packed operands of a product: panels of a few rows or columns over the whole summed axis.

w[n, k]    as    t[n / 32, k, n % 32]
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.foundation.index_expr import axis
from weft.foundation.records import dataclass
from weft.region.ir import Kernel, Read, Tensor


@dataclass(frozen=True)
class Panels:
    """How an operand lies: panels of `width` along an axis, with the summed axes in an order."""

    side: str
    """A or B."""
    tensor: str
    axis: str
    width: int
    summed: tuple[str, ...]


def panels_of(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Panels | None:
    """The operand of a contraction that lies in panels; None where none does."""
    roles = kernel.roles
    if roles is None or roles.lhs == roles.rhs:
        return None
    for side, name, axes in (("A", roles.lhs, roles.m), ("B", roles.rhs, roles.n)):
        found = _panels(kernel, tensors, side, name, axes)
        if found is not None:
            return found
    return None


def _panels(
    kernel: Kernel,
    tensors: Mapping[str, Tensor],
    side: str,
    name: str,
    axes: tuple[str, ...],
) -> Panels | None:
    read = kernel.let(name).expr
    if not isinstance(read, Read) or read.guards or read.places or len(axes) != 1:
        return None
    assert kernel.roles is not None
    own, shape = axes[0], tensors[read.tensor].shape
    summed = [expr.single_axis for expr in read.index[1:-1]]
    names = tuple(found.name for found in summed if found is not None)
    if len(read.index) < 3 or len(names) != len(summed) or {*names} != {*kernel.roles.k}:
        return None
    width = shape[-1]
    whole = tuple(kernel.sizes[each] for each in names) == shape[1:-1]
    lies = read.index[0] == axis(own) // width and read.index[-1] == axis(own) % width
    # The last panel may have rows or columns that nobody asks for.
    if not whole or not lies or shape[0] * width < kernel.sizes[own]:
        return None
    return Panels(side, read.tensor, own, width, names)
