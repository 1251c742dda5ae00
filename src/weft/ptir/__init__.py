"""PTIR v0.4, the portable tensor IR: build, read, verify, transform, run and exchange programs.

Loading this package also loads the coarse ops, so that the table of ops is whole whoever asks. No
module inside it knows them.
"""

import weft.coarse  # noqa: F401
from weft.foundation.errors import Finding, SpecViolation
from weft.ptir import ops
from weft.ptir.builder import BodyBuilder, Builder, Value
from weft.ptir.files import dumps, load, loads, save
from weft.ptir.gradient import gradient, jvp, vjp
from weft.ptir.ir import (
    ElementRef,
    Function,
    HintKind,
    HintPolicy,
    HintRegion,
    Instruction,
    Operand,
    Program,
    Ref,
    Region,
)
from weft.ptir.literal import ScalarLiteral, TensorLiteral, literal
from weft.ptir.op import Op, all_ops
from weft.ptir.passes import optimise
from weft.ptir.types import Symbol, TensorType, TupleType, ValueType, tensor
from weft.ptir.verify import verify
from weft.ptir.vmap import vmap

__all__ = [
    "BodyBuilder",
    "Builder",
    "ElementRef",
    "Finding",
    "Function",
    "HintKind",
    "HintPolicy",
    "HintRegion",
    "Instruction",
    "Op",
    "Operand",
    "Program",
    "Ref",
    "Region",
    "ScalarLiteral",
    "SpecViolation",
    "Symbol",
    "TensorLiteral",
    "TensorType",
    "TupleType",
    "Value",
    "ValueType",
    "all_ops",
    "dumps",
    "gradient",
    "jvp",
    "literal",
    "load",
    "loads",
    "ops",
    "optimise",
    "save",
    "tensor",
    "verify",
    "vjp",
    "vmap",
]


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
