"""Canonical modules: what gradients, lowerings and comparisons of modules start from.

    before                                          after
    %0 = Input () {name=x} : tensor<i64[]>          %0 = Input () {name=x} : tensor<i64[]>
    %1 = ConstI64 () {value=2} : tensor<i64[]>      %3 = ConstI64 () {value=5} : tensor<i64[]>
    %2 = ConstI64 () {value=3} : tensor<i64[]>      %5 = Mul (%0, %3) : tensor<i64[]>
    %3 = Add (%1, %2) : tensor<i64[]>               outputs: %5
    %4 = Neg (%0) : tensor<i64[]>
    %5 = Mul (%3, %0) : tensor<i64[]>
    outputs: %5

1. A binary operation on constants becomes a constant, unless an integer would overflow, a float
   would not be finite, or the constant would be far larger than what it is made of.
2. The operands of `Add` and `Mul` stand in ascending order of their ids.
3. Operations that no output needs are gone. Inputs stay, they are the module's signature.

Values keep their ids and their order. The result means the same, integer wrapping included; doing
it twice changes nothing, and equal modules give equal results.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weft.core_ir.builder import SCALARS
from weft.core_ir.instructions import BINARY, COMMUTATIVE, CONSTANTS, data_of
from weft.core_ir.ir import CoreOperation, Module
from weft.core_ir.types import dtype_name
from weft.core_ir.verify import verify
from weft.foundation.calls import told_outside
from weft.ptir.literal import TensorLiteral, from_array

Array = NDArray[Any]
SMALL: Final = 1024
"""Constants of up to this many elements are folded however large they grow."""


@told_outside
def canonicalise(module: Module) -> Module:
    """The canonical form of a module, which is verified first."""
    verify(module)
    return canonical(module)


def canonical(module: Module) -> Module:
    """The canonical form of a module that its caller has verified."""
    constants: dict[int, Array] = {}
    folded = [_simplify_operation(op, constants) for op in module.operations]
    alive = set(module.outputs)
    kept: list[int] = []
    for position in range(len(folded) - 1, -1, -1):
        op = folded[position]
        if op.value_id in alive or op.opcode == "Input":
            alive.update(op.operands)
            kept.append(position)
    kept.reverse()
    lines = [module.lines[i] for i in (*kept, len(folded))] if module.lines else ()
    return Module(tuple(folded[i] for i in kept), module.outputs, module.extensions, lines)


def _simplify_operation(op: CoreOperation, constants: dict[int, Array]) -> CoreOperation:
    """The operation folded or ordered; constants are remembered."""
    if op.opcode in CONSTANTS:
        data = data_of(op.attributes)
        if isinstance(data, TensorLiteral):
            constants[op.value_id] = data.array
        return op
    if op.opcode not in BINARY:
        return op
    value = _fold_operation(op, constants)
    if value is not None:
        constants[op.value_id] = value
        return _constant(op, value)
    if op.opcode in COMMUTATIVE and op.operands[0] > op.operands[1]:
        return replace(op, operands=(op.operands[1], op.operands[0]))
    return op


def _fold_operation(op: CoreOperation, constants: dict[int, Array]) -> Array | None:
    """The value of an operation on constants; None where it is not to be folded."""
    lhs, rhs = (constants.get(value_id) for value_id in op.operands)
    kind = op.result_type
    if lhs is None or rhs is None or kind.size > max(lhs.size, rhs.size, SMALL):
        return None
    if not lhs.dtype == rhs.dtype == kind.dtype.numpy or _joint(lhs, rhs) != kind.shape:
        return None  # It does not verify; that is for others to say.
    if lhs.dtype.kind == "f":
        with np.errstate(all="ignore"):
            value = np.asarray(_FLOATS[op.opcode](lhs, rhs))
        return value if np.isfinite(value).all() else None
    return _fold_integers(op, lhs, rhs)


def _joint(lhs: Array, rhs: Array) -> tuple[int, ...] | None:
    try:
        return np.broadcast_shapes(lhs.shape, rhs.shape)
    except ValueError:
        return None


_FLOATS: Final = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}


def _fold_integers(op: CoreOperation, lhs: Array, rhs: Array) -> Array | None:
    """Integers without bounds, so that an overflow shows."""
    a, b = lhs.astype(object), rhs.astype(object)
    if op.opcode == "Div":
        if not np.all(rhs):
            return None
        exact = np.frompyfunc(_divide_toward_zero, 2, 1)(a, b)
    else:
        exact = _FLOATS[op.opcode](a, b)
    dtype = op.result_type.dtype
    whole = np.asarray(exact, object)
    if whole.min() < dtype.lowest or whole.max() > dtype.highest:
        return None
    return whole.astype(dtype.numpy)


def _divide_toward_zero(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _constant(op: CoreOperation, value: Array) -> CoreOperation:
    kind, data = op.result_type, from_array(value)
    if not kind.shape and kind.dtype in SCALARS:
        return CoreOperation(op.value_id, SCALARS[kind.dtype], (), {"value": data}, kind)
    attributes = {"data": data, "dtype": dtype_name(kind.dtype), "shape": kind.shape}
    return CoreOperation.of(op.value_id, "ConstTensor", (), attributes, kind)
