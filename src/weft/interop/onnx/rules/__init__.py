"""The rules of the operators, family by family; importing this fills the table."""

from __future__ import annotations

from weft.interop.onnx.rules import (
    activation,
    attention,
    control,
    convolution,
    elementwise,
    indexing,
    normalisation,
    pooling,
    products,
    quantisation,
    random,
    recurrent,
    reduction,
    resizing,
    sampling,
    sequences,
    shapes,
    signals,
    sizes,
    training,
)
from weft.interop.onnx.table import RULES

__all__ = ["RULES"]
FAMILIES = (
    activation, attention, control, convolution, elementwise, indexing, normalisation, pooling,
    products, quantisation, random, recurrent, reduction, resizing, sampling, sequences, shapes,
    signals, sizes, training,
)  # fmt: skip
"""The modules that hold rules, which are filled in when they are imported."""
