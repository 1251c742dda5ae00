"""Modules written by programs: operations appended one by one, each typed where it is made.

    b = ModuleBuilder()
    x, w = b.input("x", "f32", [2, 3]), b.input("w", "f32", [3, 4])
    module = b.build(b.emit("Relu", b.emit("MatMul", x, w)))

Values are their ids. New ids count on from the highest there is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from weft.core_ir.infer import infer
from weft.core_ir.instructions import instruction
from weft.core_ir.ir import CoreOperation, Module, normal_attributes, type_of
from weft.core_ir.literals import Unreadable, literal_of_values
from weft.core_ir.types import Shape, TensorType, as_dtype, dtype_name, scalar
from weft.foundation.dtypes import F32, F64, SI64, DType
from weft.foundation.errors import SpecViolation, UserError

SCALARS = {SI64: "ConstI64", F32: "ConstF32", F64: "ConstF64"}
"""The instructions that hold one number; i32 has none."""


class ModuleBuilder:
    """A module under construction, empty or begun by another one."""

    def __init__(self, module: Module | None = None, extensions: Iterable[str] = ()) -> None:
        self.operations: list[CoreOperation] = list(module.operations) if module else []
        self.types: dict[int, TensorType] = dict(module.types) if module else {}
        self.extensions = frozenset(extensions) | (module.extensions if module else frozenset())
        used = {i for op in self.operations for i in (op.value_id, *op.operands)}
        self._next = max(used, default=-1) + 1

    def type(self, value_id: int) -> TensorType:
        return type_of(value_id, self.types)

    def shape(self, value_id: int) -> Shape:
        return self.type(value_id).shape

    def input(self, name: str, dtype: DType | str, shape: Iterable[int] = ()) -> int:
        """An argument of the module."""
        kind = TensorType(as_dtype(dtype), tuple(shape))
        return self._append("Input", (), {"name": name}, kind)

    def constant(self, value: Any, dtype: DType | str) -> int:
        """A constant from a number, a list or an array."""
        chosen = as_dtype(dtype)
        data = literal_of_values(value, chosen)
        if isinstance(data, Unreadable):
            raise SpecViolation(data.code, data.why)
        shape = data.type.static_shape
        if not shape and chosen in SCALARS:
            return self._append(SCALARS[chosen], (), {"value": data}, scalar(chosen))
        return self.emit("ConstTensor", data=data, dtype=dtype_name(chosen), shape=shape)

    def full(self, value: float, kind: TensorType) -> int:
        """A tensor with one number everywhere."""
        single = self.constant(np.asarray(value, kind.dtype.numpy), kind.dtype)
        return self.emit("BroadcastTo", single, shape=kind.shape) if kind.shape else single

    def emit(self, opcode: str, *operands: int, **attributes: Any) -> int:
        """Append an instruction; its result's type is inferred."""
        row = instruction(opcode)
        if opcode == "Input":
            raise UserError("inputs are made with ModuleBuilder.input, which takes their type")
        if len(operands) != len(row.operands):
            wanted = ", ".join(row.operands) or "none"
            raise UserError(f"{opcode} takes operands ({wanted}) but got {len(operands)}")
        if row.extension and row.extension not in self.extensions:
            raise SpecViolation(
                "E0102",
                f"{opcode} is not part of Core v1 but of the extension {row.extension!r}",
                f"make the module with extensions=[{row.extension!r}]",
            )
        held = _HELD.get(opcode)
        found = normal_attributes(opcode, attributes, None if held is None else scalar(held))
        kind = infer(opcode, found, [self.type(value_id) for value_id in operands])
        return self._append(opcode, operands, found, kind)

    def _append(
        self, opcode: str, operands: tuple[int, ...], attributes: dict[str, Any], kind: TensorType
    ) -> int:
        value_id = self._next
        self.operations.append(CoreOperation(value_id, opcode, operands, attributes, kind))
        self.types[value_id] = kind
        self._next += 1
        return value_id

    def build(self, *outputs: int) -> Module:
        """The module with these outputs."""
        return Module(tuple(self.operations), outputs, self.extensions)


_HELD = {opcode: dtype for dtype, opcode in SCALARS.items()}
