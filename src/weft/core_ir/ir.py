"""Core IR: what a module is.

    Module        = extensions, operations, outputs
    CoreOperation = %value_id = opcode (operands) {attributes} : result_type
    result_type   = tensor<dtype[dim, ...]>            dtype = i32 | i64 | f32 | f64
    opcode        = Input
                  | ConstI64 | ConstF32 | ConstF64 | ConstTensor
                  | Add | Sub | Mul | Div               "BinOp" in the second encoding
                  | Sum | Mean
                  | Reshape | Transpose | ExpandDims | Squeeze
                  | Index | Slice | Gather
                  | Dot | MatMul | Conv2d
                  | Relu | Neg | Exp | Log
                  | the instructions of an extension    see `instructions`

Meaning. A module is a flat list of operations; each defines one value and uses only values defined
before it. There are no blocks and no control flow. Inputs are the `Input` operations in their
order, outputs the listed values; everything between is a pure function. Shapes are numbers.
Operands of binary operations broadcast as in NumPy. Integers wrap; floats are IEEE, each operation
rounded once. What every instruction means stands in `instructions.INSTRUCTIONS`; what the
specification leaves to implementations is settled in docs/core-ir.md.

Everything here is immutable. A record checks its own structure (the opcode exists, it has as many
operands as it takes and attributes of the right kinds) when it is made; all else is the verifier's.
`lines` says in which line of a text each operation stands; it is outside equality.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from weft.core_ir.instructions import (
    EXTENSIONS,
    I64_MAX,
    Attribute,
    Instruction,
    checked_attributes,
    instruction,
)
from weft.core_ir.literals import Data, literal_of_values
from weft.core_ir.types import TensorType, as_dtype, as_type
from weft.foundation.errors import SpecViolation, UserError


@dataclass(frozen=True)
class CoreOperation:
    """One value: an opcode applied to earlier values."""

    value_id: int
    opcode: str
    operands: tuple[int, ...]
    attributes: Mapping[str, Attribute]
    result_type: TensorType

    def __post_init__(self) -> None:
        row, operands, kind = instruction(self.opcode), tuple(self.operands), self.result_type
        if len(operands) != len(row.operands):
            wanted = ", ".join(row.operands) or "none"
            raise UserError(f"{self.opcode} takes operands ({wanted}) but got {len(operands)}")
        for value_id in (self.value_id, *operands):
            check_value_id(value_id)
        kind = as_type(kind)
        object.__setattr__(self, "operands", operands)
        object.__setattr__(self, "result_type", kind)
        object.__setattr__(
            self, "attributes", normal_attributes(self.opcode, self.attributes, kind)
        )

    @classmethod
    def of(
        cls,
        value_id: int,
        opcode: str,
        operands: Iterable[int] = (),
        attributes: Mapping[str, Any] | None = None,
        result_type: TensorType | str = "f32[]",
    ) -> CoreOperation:
        """The record from plain values: lists, numbers, and a type such as "f32[2, 3]"."""
        return cls(value_id, opcode, tuple(operands), attributes or {}, as_type(result_type))

    @property
    def instruction(self) -> Instruction:
        """The row of its opcode."""
        return instruction(self.opcode)

    @property
    def summary(self) -> str:
        """`%2 = Add (%0, %1)`, for messages."""
        return f"%{self.value_id} = {self.opcode} ({', '.join(f'%{i}' for i in self.operands)})"


def check_value_id(value_id: int) -> None:
    if isinstance(value_id, bool) or not isinstance(value_id, int) or not 0 <= value_id <= I64_MAX:
        raise UserError("a value id is a whole number from 0 to 2^63 - 1")


def normal_attributes(
    opcode: str, given: Mapping[str, Any], kind: TensorType | None
) -> dict[str, Attribute]:
    """Attributes of the right kinds; the data of constants takes the dtype they declare."""

    def read_data(value: Any) -> Data:
        if "dtype" in given:
            return literal_of_values(value, as_dtype(given["dtype"]))
        if kind is None:
            raise UserError(f"{opcode} needs a dtype for its data")
        return literal_of_values(value, kind.dtype)

    return checked_attributes(opcode, given, read_data)


@dataclass(frozen=True)
class Module:
    """Operations in order, and the values that are the module's results."""

    operations: tuple[CoreOperation, ...]
    outputs: tuple[int, ...]
    extensions: frozenset[str] = frozenset()
    lines: Sequence[int] = field(default=(), compare=False, repr=False)
    """The line of each operation, then that of the outputs; empty where there is no text."""

    def __post_init__(self) -> None:
        for name in self.extensions:
            if name not in EXTENSIONS:
                known = ", ".join(EXTENSIONS)
                raise UserError(f"there is no extension {name!r}; the extensions are {known}")
        for value_id in self.outputs:
            check_value_id(value_id)

    @cached_property
    def inputs(self) -> tuple[CoreOperation, ...]:
        """The `Input` operations, in order."""
        return tuple(op for op in self.operations if op.opcode == "Input")

    @cached_property
    def types(self) -> dict[int, TensorType]:
        """The declared type of every value; of the first definition where there are several."""
        found: dict[int, TensorType] = {}
        for op in self.operations:
            found.setdefault(op.value_id, op.result_type)
        return found

    def place(self, position: int) -> str:
        """Where an operation stands: its line, or its number where there is no text."""
        line = self.line(position)
        return f"{line}: {self.operations[position].summary}"

    def line(self, position: int) -> str:
        """The line of an operation, or of the outputs after the last."""
        if position < len(self.lines):
            return f"line {self.lines[position]}"
        return f"operation {position}" if position < len(self.operations) else "outputs"

    def with_extensions(self, names: Iterable[str]) -> Module:
        """The module with more extensions switched on."""
        more = self.extensions | set(names)
        return Module(self.operations, self.outputs, more, self.lines)


def type_of(value_id: int, types: Mapping[int, TensorType]) -> TensorType:
    """The type of an operand, given those of the values before it."""
    if value_id not in types:
        raise SpecViolation("E4001", f"%{value_id} is used but not defined before")
    return types[value_id]
