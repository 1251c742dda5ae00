"""The op `custom_gradient`: values with a gradient of their own."""

from __future__ import annotations

from weft.foundation.dtypes import ANY
from weft.ptir.op import Array, EvalContext, Op, Value, extension_op
from weft.ptir.ops.control import pack, packed
from weft.ptir.rules import invalid_attribute
from weft.ptir.schema import String, Usize, attr
from weft.ptir.types import TensorType, ValueType


@extension_op("custom_gradient")
class CustomGradient(Op):
    """The first operands, `results` of them, as they are, but with a gradient that the program
    brings along. `kept` operands follow, which it reads, then `inputs` operands of floats, to which
    it leads; what follows those the results depend on too, and they must not be differentiated.
    `backward` is a program in its text form: from what is kept and the cotangents of those results
    that are floats or complex numbers to the cotangents of the inputs. No gradient passes through
    the operands that are the results."""

    operands = ("*values",)
    dtypes = {"values": ANY}

    results: int = attr(Usize())
    kept: int = attr(Usize())
    inputs: int = attr(Usize())
    backward: str = attr(String())

    @property
    def first_input(self) -> int:
        """The place of the first operand that has a cotangent."""
        return self.results + self.kept

    def infer(self, *types: TensorType) -> ValueType:
        if not self.results or self.first_input + self.inputs > len(types):
            raise invalid_attribute(
                f"custom_gradient has {len(types)} operands, but {self.results} results, "
                f"{self.kept} kept values and {self.inputs} inputs",
                "there is at least one result, and an operand for each of them",
            )
        return packed(types[: self.results])

    def evaluate(self, ctx: EvalContext, *args: Array) -> Value:
        return pack(args[: self.results])
