"""Writing a PTIR body without dynamic dims: instructions by name, each typed where it is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.core_ir.types import Shape
from weft.foundation.dtypes import DType
from weft.foundation.errors import InternalError
from weft.ptir.ir import Instruction, Operand, Ref
from weft.ptir.literal import TensorLiteral, literal, scalar_literal
from weft.ptir.op import SPELLINGS, Op
from weft.ptir.ops.constant import Constant
from weft.ptir.schema import Maybe
from weft.ptir.types import TensorType
from weft.ptir.verify import BodyScope


@dataclass(frozen=True)
class Value:
    """A PTIR operand with its type."""

    operand: Operand
    dtype: DType
    shape: Shape

    @property
    def rank(self) -> int:
        return len(self.shape)


class Writer:
    """Appends PTIR instructions by name; each is typed where it is made."""

    def __init__(self, parameters: int) -> None:
        self.body: list[Instruction] = []
        self.scope = BodyScope({})
        self._next = parameters

    def emit(self, name: str, *values: Value, **attrs: Any) -> Value:
        cls, fixed = SPELLINGS[name]
        absent = {n: None for n, kind in cls.all_attributes().items() if isinstance(kind, Maybe)}
        types = [TensorType(value.dtype, value.shape) for value in values]
        op = cls.make(types, **{**absent, **fixed, **attrs})
        output = op.result_type(types, self.scope)
        if not isinstance(output, TensorType):
            raise InternalError(f"{name} gives {output} and not a tensor")
        return self._define(op, tuple(value.operand for value in values), output)

    def constant(self, data: TensorLiteral) -> Value:
        """A constant as an instruction of its own."""
        return self._define(Constant(data), (), data.type)

    def _define(self, op: Op, operands: tuple[Operand, ...], output: TensorType) -> Value:
        made = Instruction(self._next, op, operands, output)
        self.body.append(made)
        self._next += 1
        return Value(Ref(made.id), output.dtype, output.static_shape)

    # -- shapes ----------------------------------------------------------------------------------

    def literal(self, value: Any, dtype: DType) -> Value:
        """A literal, to be an operand."""
        made = literal(np.asarray(value, dtype.numpy))
        return Value(made, dtype, made.type.static_shape)

    def full(self, number: float, dtype: DType, shape: Shape) -> Value:
        """A tensor with one number everywhere."""
        return self.broadcast_to(self.literal(number, dtype), shape)

    def broadcast_to(self, x: Value, shape: Shape) -> Value:
        return x if x.shape == shape else self.emit("broadcast_to", x, result_shape=shape)

    def reshape(self, x: Value, shape: Shape) -> Value:
        return x if x.shape == shape else self.emit("reshape", x, new_shape=shape)

    def transpose(self, x: Value, perm: tuple[int, ...]) -> Value:
        return x if perm == tuple(range(x.rank)) else self.emit("transpose", x, perm=perm)

    def slice(self, x: Value, starts: Shape, sizes: Shape) -> Value:
        return x if sizes == x.shape else self.emit("slice", x, starts=starts, sizes=sizes)

    def pad(self, x: Value, low: Shape, high: Shape, interior: Shape) -> Value:
        if not any((*low, *high, *interior)):
            return x
        zero = scalar_literal(0, x.dtype)
        return self.emit("pad", x, low=low, high=high, interior=interior, pad_value=zero)

    def dot(
        self, x: Value, y: Value, contract: tuple[Shape, Shape], batch: tuple[Shape, Shape]
    ) -> Value:
        return self.emit(
            "dot_general", x, y, batch_lhs=batch[0], batch_rhs=batch[1],
            contract_lhs=contract[0], contract_rhs=contract[1],
        )  # fmt: skip
