"""A value of a program under construction, with Python's operators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast

import numpy as np

from weft.foundation.calls import told_methods
from weft.foundation.errors import UserError
from weft.ptir.ir import ElementRef, Operand, Ref
from weft.ptir.literal import TensorLiteral
from weft.ptir.types import TensorType, TupleType, ValueType
from weft.ptir.written import Written

Number: TypeAlias = bool | int | float | complex
Like: TypeAlias = "Value | Number | Sequence[Any] | np.ndarray[Any, Any] | TensorLiteral"


class Body(Protocol):
    """What a value asks of the builder of its body."""

    label: str

    def emit(self, name: str, *operands: Like, **attrs: Any) -> Value: ...

    def like(self, other: Like, model: Value) -> Value: ...

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

    def _binary(self, name: str, other: Like, *, swap: bool = False, **attrs: Any) -> Value:
        right = self.builder.like(other, self)
        operands = (right, self) if swap else (self, right)
        return self.builder.emit(name, *operands, **attrs)

    def __add__(self, other: Like) -> Value:
        return self._binary("add", other)

    def __radd__(self, other: Like) -> Value:
        return self._binary("add", other, swap=True)

    def __sub__(self, other: Like) -> Value:
        return self._binary("sub", other)

    def __rsub__(self, other: Like) -> Value:
        return self._binary("sub", other, swap=True)

    def __mul__(self, other: Like) -> Value:
        return self._binary("mul", other)

    def __rmul__(self, other: Like) -> Value:
        return self._binary("mul", other, swap=True)

    def __truediv__(self, other: Like) -> Value:
        return self._binary("div", other)

    def __rtruediv__(self, other: Like) -> Value:
        return self._binary("div", other, swap=True)

    def __neg__(self) -> Value:
        return self.builder.emit("neg", self)

    def __lt__(self, other: Like) -> Value:
        return self._binary("compare", other, op="less")

    def __le__(self, other: Like) -> Value:
        return self._binary("compare", other, op="less_equal")

    def __gt__(self, other: Like) -> Value:
        return self._binary("compare", other, op="greater")

    def __ge__(self, other: Like) -> Value:
        return self._binary("compare", other, op="greater_equal")

    def __eq__(self, other: object) -> Any:
        """A comparison in the program; values themselves are told apart with `is`."""
        return self._binary("compare", cast(Like, other), op="equal")

    def __ne__(self, other: object) -> Any:
        return self._binary("compare", cast(Like, other), op="not_equal")

    __hash__ = object.__hash__

    def __abs__(self) -> Value:
        return self.builder.emit("abs", self)

    def __pow__(self, other: Like) -> Value:
        return self._binary("pow", other)

    def __and__(self, other: Like) -> Value:
        return self._binary("bitwise_and", other)

    def __or__(self, other: Like) -> Value:
        return self._binary("bitwise_or", other)

    def __xor__(self, other: Like) -> Value:
        return self._binary("bitwise_xor", other)

    def __invert__(self) -> Value:
        return self.builder.emit("bitwise_not", self)

    def __matmul__(self, other: Value) -> Value:
        """Matrix product over the last two axes; leading axes are batch axes and must match."""
        return self.builder.matmul(self, other)
