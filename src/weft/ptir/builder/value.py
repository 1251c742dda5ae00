"""A value of a program under construction, with Python's operators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast

from weft.foundation.calls import told_methods
from weft.foundation.errors import UserError
from weft.ptir.ir import ElementRef, Operand, Ref
from weft.ptir.types import Dim, TensorType, TupleType, ValueType
from weft.ptir.written import Data, Emits, Written

Like: TypeAlias = "Value | Data"


class Body(Emits["Value"], Protocol):
    """What a value asks of the builder of its body."""

    label: str

    def matmul(self, lhs: Value, rhs: Value) -> Value: ...


@told_methods
@dataclass(frozen=True, eq=False)
class Value(Written):
    """A value of the program under construction: an operand with its type."""

    CHOOSING = "use b.select or b.cond to choose by it"
    READING = "build the program and run it"

    builder: Body
    operand: Operand
    type: ValueType

    @property
    def tensor(self) -> TensorType:
        """The type of a tensor value; a tuple has none."""
        if isinstance(self.type, TupleType):
            raise UserError(f"{self.operand} is the tuple {self.type}; take an element of it first")
        return self.type

    @property
    def emitter(self) -> Body:
        return self.builder

    def __repr__(self) -> str:
        return f"<{self.operand} : {self.type}>"

    def __getitem__(self, index: int) -> Value:
        """An element of a tuple."""
        if not isinstance(self.type, TupleType):
            raise UserError(f"{self!r} is not a tuple; slice tensors with b.slice")
        if not isinstance(self.operand, Ref):
            raise UserError(
                f"{self!r} is a tuple inside a tuple, and PTIR can only name elements of a value; "
                "take the inner values as parameters or results of their own"
            )
        if not 0 <= index < len(self.type.elements):
            raise UserError(f"the tuple {self.type} has no element {index}")
        return Value(self.builder, ElementRef(self.operand.id, index), self.type.elements[index])

    def __iter__(self) -> Iterator[Value]:
        """The elements of a tuple, for unpacking."""
        return iter([self[index] for index in range(len(self))])

    def __len__(self) -> int:
        if not isinstance(self.type, TupleType):
            raise UserError(f"{self!r} is not a tuple and cannot be unpacked")
        return len(self.type.elements)

    def broadcast_to(self, dims: Iterable[Dim]) -> Value:
        """An instruction in any case, as `b.broadcast_to` is: what is written is the program."""
        return self.builder.emit("broadcast_to", self, result_shape=tuple(dims))

    def __eq__(self, other: object) -> Any:
        """A comparison in the program; values themselves are told apart with `is`."""
        return self.apply("compare", cast(Like, other), op="equal")

    def __ne__(self, other: object) -> Any:
        return self.apply("compare", cast(Like, other), op="not_equal")

    __hash__ = object.__hash__

    def __matmul__(self, other: Value) -> Value:
        """Matrix product over the last two axes; leading axes are batch axes and must match."""
        return self.builder.matmul(self, other)
