"""The types of PTIR values.

    Dim       = int | Symbol            a size, or a named size bound when the program runs (`?B`)
    TensorType= dtype x (Dim, ...)      text: f32[2, ?B]
    TupleType = (ValueType, ...)        text: (f32[2], si32[2])

A dim that a type rule cannot name yet (the size of a reshape of a dynamic tensor, say) is inferred
as `UNKNOWN`; the declared output type of the instruction gives it a name.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from weft.foundation.calls import told_outside
from weft.foundation.dims import (
    UNKNOWN,
    Dim,
    Shape,
    Symbol,
    add_dims,
    multiply_dims,
    shape_of,
    static,
    substitute_dims,
)
from weft.foundation.dtypes import DType, as_dtype

MOST_SHOWN: Final = 64


def listed(items: Sequence[object]) -> str:
    """Items for a message, the first of them where there are more than any valid type has."""
    more = ", ..." if len(items) > MOST_SHOWN else ""
    return ", ".join(map(str, items[:MOST_SHOWN])) + more


@dataclass(frozen=True, slots=True)
class TensorType:
    """A dense row-major tensor: element type and shape."""

    dtype: DType
    shape: Shape

    def __str__(self) -> str:
        return f"{self.dtype}[{listed(self.shape)}]"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        return all(isinstance(dim, int) for dim in self.shape)

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The shape as plain numbers; only for types without symbols."""
        return tuple(static(dim) for dim in self.shape)

    @property
    def size(self) -> int:
        """Number of elements; only for types without symbols."""
        return math.prod(self.static_shape)

    @property
    def bytes(self) -> int:
        return self.size * self.dtype.storage_bytes

    def with_shape(self, shape: Iterable[Dim]) -> TensorType:
        return TensorType(self.dtype, tuple(shape))

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(dtype, self.shape)


@dataclass(frozen=True, slots=True)
class TupleType:
    """Several values as one."""

    elements: tuple[ValueType, ...]

    def __str__(self) -> str:
        return f"({listed(self.elements)})"


ValueType: TypeAlias = TensorType | TupleType


class OfTensorType:
    """Whatever has the type of a tensor, and so its shape, dtype and rank."""

    __slots__ = ()

    @property
    @abstractmethod
    def tensor(self) -> TensorType:
        """Its type; an error where it is a tuple."""

    @property
    def shape(self) -> Shape:
        return self.tensor.shape

    @property
    def dtype(self) -> DType:
        return self.tensor.dtype

    @property
    def rank(self) -> int:
        return self.tensor.rank


@told_outside
def tensor(dtype: DType | str, dims: Iterable[int | str | Symbol] = ()) -> TensorType:
    """The tensor type written as in `tensor("f32", [2, "?B"])`."""
    return TensorType(as_dtype(dtype), shape_of(dims))


def leaves(value: ValueType) -> Iterator[TensorType]:
    """The tensors of a type in order; a tensor is its own only leaf."""
    stack: list[ValueType] = [value]
    while stack:
        top = stack.pop()
        if isinstance(top, TensorType):
            yield top
        else:
            stack.extend(reversed(top.elements))


def symbols_of(value: ValueType) -> list[Symbol]:
    """Every symbol of a type, in order, repeats included."""
    if isinstance(value, TensorType):
        for dim in value.shape:
            if type(dim) is not int:
                return [dim for dim in value.shape if isinstance(dim, Symbol)]
        return []
    return [symbol for leaf in leaves(value) for symbol in symbols_of(leaf)]


def substitute(value: ValueType, sizes: Mapping[str, int]) -> ValueType:
    """`value` with every symbol that `sizes` knows replaced by its size."""
    if isinstance(value, TensorType):
        return TensorType(value.dtype, substitute_dims(value.shape, sizes))
    return TupleType(tuple(substitute(element, sizes) for element in value.elements))


def agrees(inferred: ValueType, declared: ValueType) -> bool:
    """Whether a declared type can be what was inferred: equal, but for dims inferred as unknown."""
    if isinstance(inferred, TupleType) and isinstance(declared, TupleType):
        return len(inferred.elements) == len(declared.elements) and all(
            agrees(a, b) for a, b in zip(inferred.elements, declared.elements, strict=True)
        )
    if isinstance(inferred, TensorType) and isinstance(declared, TensorType):
        return (
            inferred.dtype is declared.dtype
            and inferred.rank == declared.rank
            and all(a in (UNKNOWN, b) for a, b in zip(inferred.shape, declared.shape, strict=True))
        )
    return False


__all__ = [
    "UNKNOWN",
    "Dim",
    "Shape",
    "Symbol",
    "TensorType",
    "TupleType",
    "ValueType",
    "add_dims",
    "agrees",
    "leaves",
    "listed",
    "multiply_dims",
    "shape_of",
    "static",
    "substitute",
    "substitute_dims",
    "symbols_of",
    "tensor",
]
