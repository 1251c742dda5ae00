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
    """The first `results` operands, unchanged, but with a gradient that the attribute `backward`
    defines. Then follow `kept` operands that `backward` reads, and `inputs` float operands whose
    gradients it computes. The results may also depend on the operands after these, which must not
    be differentiated. `backward` is a program in its text form: from the `kept` operands and the
    cotangents of the float and complex results it computes the cotangents of the inputs. No
    gradient passes through the first `results` operands."""

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
