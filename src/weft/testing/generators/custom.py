"""Values with a gradient of their own."""

from __future__ import annotations

from weft.foundation.dtypes import FLOATS
from weft.ptir.builder import Builder
from weft.ptir.ops.custom import CustomGradient
from weft.ptir.text import print_program
from weft.testing.generator import Generator
from weft.testing.generators.registry import generates


@generates(CustomGradient, weight=1)
def custom_gradient(g: Generator) -> None:
    x = g.pick(FLOATS)
    b = Builder()
    kept, cotangent = b.param(x.type.dtype, x.type.shape), b.param(x.type.dtype, x.type.shape)
    backward = print_program(b.build(b.mul(kept, cotangent)))
    g.emit(CustomGradient(1, 1, 1, backward), x, x, x, facts=x.facts)
