"""Core IR: flat modules of tensor instructions, verified, differentiated, and lowered to PTIR."""

from weft.core_ir.builder import ModuleBuilder
from weft.core_ir.canonicalise import canonicalise
from weft.core_ir.files import dumps, load, loads, save
from weft.core_ir.gradient import gradient
from weft.core_ir.instructions import EXTENSIONS, INSTRUCTIONS, Instruction, Padding
from weft.core_ir.ir import CoreOperation, Module
from weft.core_ir.surface import from_expression
from weft.core_ir.to_ptir import Lowered, lower, to_ptir
from weft.core_ir.types import TensorType, tensor
from weft.core_ir.verify import verify

__all__ = [
    "EXTENSIONS",
    "INSTRUCTIONS",
    "CoreOperation",
    "Instruction",
    "Lowered",
    "Module",
    "ModuleBuilder",
    "Padding",
    "TensorType",
    "canonicalise",
    "dumps",
    "from_expression",
    "gradient",
    "load",
    "loads",
    "lower",
    "save",
    "tensor",
    "to_ptir",
    "verify",
]


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
