"""StableHLO and MHLO text in and out, through the MLIR bindings of jaxlib (`weft[stablehlo]`).

program = stablehlo.load("model.mlir")      a PTIR program; loads(text) likewise
text = stablehlo.dumps(program)             deterministic, accepted by MLIR's verifier
"""

from weft.interop.stablehlo.files import EXTENSION, TARGET, dumps, is_stablehlo, load, loads

__all__ = ["EXTENSION", "TARGET", "dumps", "is_stablehlo", "load", "loads"]
