"""Quantised tensors, which are their whole numbers in PTIR.

MLIR has taken apart what computes with them: floats are made of the operands, and the result is
quantised again. Left are the two ways between the numbers and the floats, and operations that only
move numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from weft.interop.stablehlo.quantised import Quantised
from weft.interop.stablehlo.reading.site import Lowering, Site
from weft.interop.stablehlo.records import HloTensor, HloType, tensors
from weft.ptir.builder import Value

_MOVING: Final = frozenset({
    "broadcast", "broadcast_in_dim", "case", "composite", "concatenate", "constant", "copy",
    "dynamic_broadcast_in_dim", "dynamic_gather", "dynamic_reshape", "dynamic_slice",
    "dynamic_update_slice", "func.call", "gather", "get_dimension_size", "get_tuple_element", "if",
    "optimization_barrier", "pad", "real_dynamic_slice", "reshape", "reverse", "select", "slice",
    "transpose", "tuple", "while",
})  # fmt: skip


def check_quantised(at: Site, given: Sequence[HloType]) -> None:
    """Refuse to compute with the numbers of quantised tensors as if they were plain integers."""
    kinds = [leaf for kind in (*given, *at.op.types) for leaf in tensors(kind)]
    found = [kind.quantised for kind in kinds if kind.quantised is not None]
    if not found or at.op.name in QUANTISATION or at.op.name == "bitcast_convert":
        return
    if at.op.name not in _MOVING:
        at.refuse("MLIR does not say it in floats for quantised tensors")
    if any(not found[0].same_numbers(other) for other in found):
        at.refuse("it moves numbers between tensors that are quantised differently")


def _quantised_type(at: Site, kind: HloType) -> Quantised | None:
    return kind.quantised if isinstance(kind, HloTensor) else None


def _number_per_element(at: Site, values: Sequence[float], q: Quantised, model: Value) -> Value:
    """One of the numbers of a type for each element of a tensor of floats."""
    if q.axis is None:
        return at.full(values[0], model)
    thin = [1] * model.rank
    thin[q.axis] = len(values)
    array = np.asarray(values, np.float64).astype(q.real.numpy).reshape(thin)
    return at.spread(at.b.literal(array, q.real), model.shape)


def _dequantise(at: Site, x: Value, q: Quantised) -> Value:
    wide = at.b.cast(x, q.real)
    return (wide - _number_per_element(at, q.zeros, q, wide)) * _number_per_element(
        at, q.scales, q, wide
    )


def _quantize(at: Site) -> Value:
    """Of floats, or of numbers that are quantised otherwise. The zero point is added before what
    does not fit is cut and halves go to the even number, as StableHLO says it."""
    source, q = (
        _quantised_type(at, at.reader.declared(at.op.operands[0])),
        _quantised_type(at, at.result()),
    )
    x = at.x[0] if source is None else _dequantise(at, at.x[0], source)
    assert q is not None
    moved = x / _number_per_element(at, q.scales, q, x) + _number_per_element(at, q.zeros, q, x)
    kept = at.b.emit("clamp", moved, at.full(q.lowest, x), at.full(q.highest, x))
    return at.b.cast(at.b.emit("round", kept), q.storage)


def _dequantize(at: Site) -> Value:
    q = _quantised_type(at, at.reader.declared(at.op.operands[0]))
    assert q is not None
    return _dequantise(at, at.x[0], q)


QUANTISATION: Final[Mapping[str, Lowering]] = {
    "uniform_quantize": _quantize,
    "uniform_dequantize": _dequantize,
}
