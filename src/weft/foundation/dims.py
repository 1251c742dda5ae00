"""Dimensions: sizes that are numbers, and sizes that have only a name until a program runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from weft.foundation.errors import SpecViolation, UserError, brief
from weft.foundation.whole_numbers import as_whole


@dataclass(frozen=True, slots=True)
class Symbol:
    """A dimension whose size is known only at run time."""

    name: str

    def __str__(self) -> str:
        return f"?{self.name}"

    def _unknown(self, *others: object) -> NoReturn:
        """There is no number yet that Python could count to, compare or compute with."""
        raise SpecViolation(
            "DynamicDimensionMismatch",
            f"the size of the dynamic dim {self} is needed, but it is known only when the "
            "program runs",
            "leave this axis out of dynamic=, so that its size is a number; or use the shape of a "
            "tensor as it is, in weft.arange, weft.full or reshape",
        )

    __index__ = __int__ = __float__ = __bool__ = _unknown
    __lt__ = __le__ = __gt__ = __ge__ = _unknown
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = _unknown
    __floordiv__ = __rfloordiv__ = __truediv__ = __rtruediv__ = __mod__ = __rmod__ = _unknown


Dim: TypeAlias = int | Symbol
Shape: TypeAlias = tuple[Dim, ...]
UNKNOWN = Symbol("")


def static(dim: Dim) -> int:
    """A dim as a number; a symbol here means that a dynamic program was not specialised first."""
    if isinstance(dim, Symbol):
        raise UserError(f"dimension {dim} is not bound to a size yet")
    return dim


def shape_of(dims: Iterable[int | str | Symbol]) -> Shape:
    """A shape from numbers, symbols, and strings such as "B" or "?B" for symbols."""
    if isinstance(dims, str) or not hasattr(dims, "__iter__"):
        raise UserError(f"a shape is a list of dimensions, not {brief(dims)}")
    return tuple(Symbol(d.removeprefix("?")) if isinstance(d, str) else _check_dim(d) for d in dims)


def _check_dim(dim: object) -> Dim:
    if isinstance(dim, Symbol):
        return dim
    size = as_whole(dim)
    if size is None:
        raise UserError(f"a dimension is a whole number or a name such as '?B', not {brief(dim)}")
    if size < 0:
        raise SpecViolation(
            "NegativeDimension", f"dimension {size} is negative", "sizes are 0 or more"
        )
    return size


def substitute_dims(shape: Sequence[Dim], sizes: Mapping[str, int]) -> Shape:
    """`shape` with every symbol that `sizes` knows replaced by its size."""
    return tuple(sizes.get(d.name, d) if isinstance(d, Symbol) else d for d in shape)


def add_dims(*dims: Dim) -> Dim:
    """The sum of sizes; `UNKNOWN` when a symbol takes part in more than `+ 0`."""
    known = sum(d for d in dims if isinstance(d, int))
    named = [d for d in dims if isinstance(d, Symbol)]
    if not named:
        return known
    return named[0] if len(named) == 1 and known == 0 else UNKNOWN


def multiply_dims(*dims: Dim) -> Dim:
    """The product of sizes; `UNKNOWN` when a symbol takes part in more than `* 1`."""
    known = math.prod(d for d in dims if isinstance(d, int))
    named = [d for d in dims if isinstance(d, Symbol)]
    if not named or known == 0:
        return known
    return named[0] if len(named) == 1 and known == 1 else UNKNOWN


def static_shape(shape: Shape) -> tuple[int, ...]:
    """A shape as numbers; none of its dims is a symbol."""
    return tuple(static(dim) for dim in shape)
