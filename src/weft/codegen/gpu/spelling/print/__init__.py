"""CUDA C from the dialect: each statement becomes a line or a block of lines.

The text printed here is what is compiled. Identifiers are the dialect's own; those that end in an
underscore, which no name of the dialect does, are the printer's. Buffers are `b0, b1`, tensor maps
`m0, m1`. Register arrays are indexed by literals, so that they stay in registers.
"""

from weft.codegen.gpu.spelling.print.kernel import cuda

__all__ = ["cuda"]
