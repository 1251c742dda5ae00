"""The verifier of the GPU dialect: a kernel without findings becomes CUDA that compiles.

Names are defined before they are used, and once where they are visible; every tile, barrier, map,
table, buffer and register that is used exists; functions exist for their dtypes; the kernel fits
its target. Whether waits and barriers are in place is for the interpreter to find out.
"""

from weft.codegen.gpu.verify.kernel import findings, verify

__all__ = ["findings", "verify"]
