"""The context of one operation being read: its operands as PTIR values, its attributes, and errors
that name it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Protocol, TypeAlias

from weft.foundation.errors import SpecViolation, Unimplemented
from weft.interop.stablehlo.records import (
    HloBlock,
    HloOp,
    HloTensor,
    HloTuple,
    HloType,
    tensors,
)
from weft.ptir.builder import BodyBuilder, Value
from weft.ptir.literal import TensorLiteral
from weft.ptir.rules import SizesDiffer
from weft.ptir.types import UNKNOWN, Dim, Shape, TensorType, TupleType, ValueType

Results: TypeAlias = "Value | Sequence[Value]"
_FIELD = re.compile(r"(\w+) = (\[[^\]]*\]|-?\d+|true|false)")


class Reader(Protocol):
    """What an operation may ask of the walk around it."""

    def same(self, dims: tuple[Dim, Dim]) -> NoReturn:
        """Start over, knowing that two dims are one."""
        ...

    def declared(self, number: int) -> HloType:
        """The type that the text gives a value."""
        ...

    def is_made(self, size: Dim) -> bool:
        """Whether an operation makes a size, and neither the text nor a parameter has it."""
        ...

    def sizes(self, number: int) -> tuple[Dim, ...] | None:
        """The sizes that an integer value holds, where they are sizes of tensors."""
        ...

    def is_false(self, number: int) -> bool:
        """Whether a condition on sizes is known to fail; sizes that it wants equal become one."""
        ...

    def inline(
        self, b: BodyBuilder, block: HloBlock, args: Sequence[Value], env: Mapping[int, Value]
    ) -> list[Value]:
        """What a block returns, its operations appended to `b`."""
        ...

    def keep_fields(self, b: BodyBuilder, value: Value, fields: Mapping[str, Any]) -> None:
        """Note what the custom call that makes a value says besides its meaning."""
        ...

    def function(self, name: str) -> HloBlock:
        """The body of a function of the module."""
        ...

    def call(self, b: BodyBuilder, name: str, args: Sequence[Value]) -> list[Value]:
        """What a function of the module returns."""
        ...


class Site:
    """An operation, the values of its operands, and the body that its results go to."""

    def __init__(
        self, reader: Reader, b: BodyBuilder, op: HloOp, x: list[Value], env: dict[int, Value]
    ) -> None:
        self.reader, self.b, self.op, self.x, self.env = reader, b, op, x, env

    # -- what the operation says -----------------------------------------------------------------

    def attr(self, name: str, default: Any = None) -> Any:
        return self.op.attributes.get(name, default)

    def ints(self, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
        """A list of numbers, in any of the forms that the dialects write one."""
        value = self.attr(name)
        return tuple(default) if value is None else tuple(int(n) for n in value)

    def pairs(self, name: str, count: int) -> tuple[tuple[int, int], ...]:
        """A table of (low, high), all zero where it is left out."""
        value = self.attr(name)
        return ((0, 0),) * count if value is None else tuple((int(a), int(b)) for a, b in value)

    def fields(self, name: str) -> dict[str, Any]:
        """The fields of an attribute that is a record: `lhs_batching_dimensions = [0]`."""
        found: dict[str, Any] = {}
        for key, value in _FIELD.findall(str(self.attr(name, ""))):
            if value.startswith("["):
                found[key] = tuple(int(n) for n in value[1:-1].replace(",", " ").split())
            else:
                found[key] = value == "true" if value in ("true", "false") else int(value)
        return found

    def word(self, name: str, default: str = "") -> str:
        """The word in an attribute that is one of a list: `#stablehlo<comparison_direction LT>`."""
        text = str(self.attr(name, default))
        return text.rstrip(">").split()[-1] if text else default

    def result(self, index: int = 0) -> HloTensor:
        """The declared type of a tensor result."""
        kind = self.op.types[index]
        if isinstance(kind, HloTuple):
            self.refuse("it makes a tuple")
        return kind

    def kind(self, index: int = 0) -> ValueType:
        """The declared type of a result; dims that are not known get names of their own."""
        return self.named(self.op.types[index])

    def named(self, kind: HloType) -> ValueType:
        """A tuple is one of tensors, whatever lies inside another."""
        if isinstance(kind, HloTuple):
            return TupleType(tuple(self._named_tensor(leaf) for leaf in tensors(kind)))
        return self._named_tensor(kind)

    def _named_tensor(self, kind: HloTensor) -> TensorType:
        fresh = self.b._shared.fresh_symbol
        return TensorType(kind.dtype, tuple(fresh() if dim is None else dim for dim in kind.dims))

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """The declared shape of a result, in numbers."""
        dims = self.result(index).dims
        found = tuple(dim for dim in dims if dim is not None)
        if len(found) != len(dims):
            self.refuse("the size of its result is known only at run time")
        return found

    def static(self, value: Value) -> tuple[int, ...]:
        """The shape of a value, in numbers."""
        found = tuple(dim for dim in value.shape if isinstance(dim, int))
        if len(found) != value.rank:
            self.refuse(f"the size of its operand {value.type} is known only at run time")
        return found

    def constant(self, index: int) -> TensorLiteral | None:
        """The operand's data, where it is a constant."""
        operand = self.x[index].operand
        return operand if isinstance(operand, TensorLiteral) else None

    def sizes(self, index: int) -> tuple[Dim, ...]:
        """The shape that an operand holds."""
        found = self.reader.sizes(self.op.operands[index])
        if found is None or UNKNOWN in found:
            self.refuse("its shape is computed from other values than sizes")
        return found

    def numbers(self, index: int) -> tuple[int, ...]:
        """The numbers that an operand holds, where it is a constant or made of known sizes."""
        found = self.reader.sizes(self.op.operands[index])
        known = tuple(n for n in found or () if isinstance(n, int))
        if found is None or len(known) != len(found):
            self.refuse(f"its operand {index} is known only at run time")
        return known

    def refuse(self, reason: str) -> NoReturn:
        raise Unimplemented(f"stablehlo.{self.op.name}", f"{reason}; {self.op.place}")

    def violation(self, why: str) -> SpecViolation:
        return SpecViolation("InvalidAttributeValue", why, where=self.op.place)

    def is_lifted(self) -> bool:
        """Whether it stands in a region of single elements, which is read on whole tensors."""
        declared = map(self.reader.declared, self.op.operands)
        return any(
            isinstance(kind, HloTensor) and not kind.dims and bool(value.rank)
            for kind, value in zip(declared, self.x, strict=True)
        )

    # -- building --------------------------------------------------------------------------------

    def aligned(self, values: Sequence[Value]) -> list[Value]:
        """The operands of an elementwise operation, in one shape: scalars are repeated (inside a
        region that runs on whole tensors), and dims that must be one become one."""
        model = max(values, key=lambda value: value.rank)
        return [self._like(value, model) for value in values]

    def _like(self, value: Value, model: Value) -> Value:
        if value.rank == 0 and model.rank:
            return self.b.broadcast_to(value, model.shape)
        for dims in zip(value.shape, model.shape, strict=True):
            if dims[0] != dims[1]:
                self.reader.same(dims)
        return value

    def settled(self, make: Callable[[], Value]) -> Value:
        """What is made, where the rule of an op knows which sizes must be one."""
        try:
            return make()
        except SizesDiffer as error:
            self.reader.same(error.dims)

    def full(self, number: complex, model: Value) -> Value:
        """A tensor like `model` with one number everywhere."""
        return self.b.like(number, model)

    def spread(self, x: Value, dims: Shape) -> Value:
        return x if x.shape == dims else self.b.broadcast_to(x, dims)

    def sliced(self, x: Value, starts: Sequence[int], sizes: Sequence[int]) -> Value:
        return x if tuple(sizes) == x.shape else self.b.slice(x, list(starts), list(sizes))

    def joined(self, values: Sequence[Value], axis: int) -> Value:
        return values[0] if len(values) == 1 else self.b.concat(values, axis)


Lowering: TypeAlias = Callable[[Site], Results]
