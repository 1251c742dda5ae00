"""Writing instructions into a body that is being rebuilt, by name and with Python numbers, as the
builder does for whole programs. Library forms (`weft.ptir.library`) can be written into it too."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from weft.foundation.dtypes import DType, as_dtype
from weft.foundation.errors import InternalError
from weft.ptir.ir import ElementRef, Instruction, Operand, Ref
from weft.ptir.literal import literal
from weft.ptir.op import make_op
from weft.ptir.passes.edit import Editor
from weft.ptir.types import Dim, OfTensorType, TensorType, TupleType, ValueType

Number = bool | int | float | complex


@dataclass(frozen=True)
class Handle(OfTensorType):
    """An operand with its type."""

    operand: Operand
    type: ValueType

    @property
    def tensor(self) -> TensorType:
        if not isinstance(self.type, TensorType):
            raise InternalError(f"{self.operand} is the tuple {self.type}")
        return self.type

    def __getitem__(self, index: int) -> Handle:
        """An element of a tuple."""
        if not isinstance(self.type, TupleType) or not isinstance(self.operand, Ref):
            raise InternalError(f"{self.operand} of type {self.type} has no elements")
        return Handle(ElementRef(self.operand.id, index), self.type.elements[index])


class Emitter:
    """Makes the instructions that take the place of one; each is typed where it is made."""

    def __init__(self, editor: Editor) -> None:
        self._editor = editor
        self.made: list[Instruction] = []

    def values(self, instruction: Instruction) -> list[Handle]:
        """The operands of an instruction."""
        return [Handle(o, self._editor.type_of(o)) for o in instruction.operands]

    def emit(self, name: str, *operands: Handle | Number, **attrs: Any) -> Handle:
        """The op called `name`. A number takes the dtype and shape of the first operand."""
        model = next((operand for operand in operands if isinstance(operand, Handle)), None)
        values = [o if isinstance(o, Handle) else self._like(o, model) for o in operands]
        op = make_op(name, [value.type for value in values], attrs)
        made = self._editor.make(op, tuple(value.operand for value in values))
        self.made.append(made)
        return Handle(Ref(made.id), made.output)

    def _like(self, number: Number, model: Handle | None) -> Handle:
        if model is None:
            raise InternalError(f"nothing says which dtype the number {number} has")
        return self.full(number, model.dtype, model.shape)

    def full(self, number: Number, dtype: DType, dims: Iterable[Dim]) -> Handle:
        """A tensor with the same number everywhere."""
        return self.broadcast_to(self.literal(number, dtype), dims)

    def literal(self, value: Any, dtype: DType | str) -> Handle:
        made = literal(value, dtype)
        return Handle(made, made.type)

    def broadcast_to(self, x: Handle, dims: Iterable[Dim]) -> Handle:
        """`x` itself where it has that shape already."""
        shape = tuple(dims)
        return x if shape == x.shape else self.emit("broadcast_to", x, result_shape=shape)

    def cast(self, x: Handle, dtype: DType | str) -> Handle:
        """`x` itself where it has that dtype already."""
        return x if as_dtype(dtype) is x.dtype else self.emit("cast", x, dtype=dtype)

    def iota(self, dtype: DType | str, dims: Iterable[Dim], axis: int) -> Handle:
        return self.emit("iota", shape=tuple(dims), dtype=dtype, axis=axis)
