"""PTIR as text that reads back to an equal program.

    ptir.v0.4
    entry @main

    func @main(%0: f32[2, ?B]) -> (f32[2]) {
      %1 = exp(%0) : f32[2, ?B]
      %2 = reduce_sum(%1) {axes=[1], keepdims=false} : f32[2]
      return %2
    }

    region ^0(f32[2]) -> (f32[2]) { ... }

An instruction is `%id = op(operands) {attributes} : type`; absent optional attributes are left out.
Literals are `f32[2]<1.0, -2.5>`, or hex bytes where decimals would be long or lose bits. Negative
axes are accepted and stored as the wire stores them. Comments run from `#` to the end of the line.
"""

from weft.ptir.text.parser import parse_op, parse_program
from weft.ptir.text.printer import (
    print_attributes,
    print_instruction,
    print_literal,
    print_op,
    print_program,
    print_type,
)

__all__ = [
    "parse_op",
    "parse_program",
    "print_attributes",
    "print_instruction",
    "print_literal",
    "print_op",
    "print_program",
    "print_type",
]
