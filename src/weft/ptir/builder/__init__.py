"""Programs written by people: a `Builder` with a method for every op, and values with operators.

    b = Builder("mlp")
    x, w = b.param("f32", [8, 16]), b.param("f32", [16, 4])
    y = b.dot_general(x, w, contract=([1], [0]))
    program = b.build(b.tanh(y) * 2.0)

Every op is type-checked where it is written; a mistake is a `SpecViolation` that names the caller's
line. Operators broadcast a Python number over the tensor (through a literal and `broadcast_to`),
and nothing else: two tensors must have the same type. Methods that are not spelled out here take
the operands, then the attributes of the op by name: `b.sqrt(x)`,
`b.sort(x, axis=-1, descending=False)`. Attributes with an obvious value need not be given.
"""

from weft.ptir.builder.body import BodyBuilder, RegionBody, make_op
from weft.ptir.builder.function import Builder
from weft.ptir.builder.value import Value

__all__ = ["BodyBuilder", "Builder", "RegionBody", "Value", "make_op"]
