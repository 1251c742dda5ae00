"""The op set, one file per family. Importing this package fills the table in `weft.ptir.op`."""

from weft.ptir.ops import (
    bits,
    complex_parts,
    constant,
    contraction,
    control,
    elementwise,
    functions,
    indexing,
    linear_algebra,
    movement,
    normalisation,
    ordering,
    quantisation,
    random,
    reduction,
    window,
)

__all__ = [
    "bits",
    "complex_parts",
    "constant",
    "contraction",
    "control",
    "elementwise",
    "functions",
    "indexing",
    "linear_algebra",
    "movement",
    "normalisation",
    "ordering",
    "quantisation",
    "random",
    "reduction",
    "window",
]
