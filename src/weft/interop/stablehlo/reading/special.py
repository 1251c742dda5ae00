"""Functions that PTIR has no op for, made of those that it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from weft.foundation.dtypes import SI64, UI64
from weft.interop.stablehlo.reading.bits import wrapped
from weft.interop.stablehlo.reading.elementwise import broadcasting
from weft.interop.stablehlo.reading.site import Lowering, Site
from weft.ops import namespace
from weft.ops.array import special
from weft.ops.tensor import Tensor
from weft.ops.tracing import trace
from weft.ptir.builder import Value
from weft.ptir.ir import Operand, Program
from weft.ptir.literal import TensorLiteral
from weft.ptir.types import TensorType


def _polygamma(n: Tensor, x: Tensor) -> Tensor:
    """Derivative number `n` of digamma, where each element has its own order."""
    size = special.lgamma(n + 1.0).exp() * special.zeta(n + 1.0, x)
    return namespace.where(
        n == 0.0, special.digamma(x), namespace.where(n % 2.0 == 0.0, -size, size)
    )


FORMULAS: Final[Mapping[str, Callable[..., Any]]] = {
    "bessel_i1e": special.i1e,
    "digamma": special.digamma,
    "erf_inv": special.erfinv,
    "erfc": special.erfc,
    "lgamma": special.lgamma,
    "polygamma": _polygamma,
    "zeta": special.zeta,
}
"""Operations of CHLO that `weft.special` has under these names."""


def _formula(at: Site) -> Value:
    """What the function of `weft.special` writes for operands of these types."""
    operands = at.aligned(at.x)
    name = at.op.name.removeprefix("broadcast_")
    program = _trace_formula(name, tuple(TensorType(x.dtype, x.shape) for x in operands))
    values = dict(zip(program.main.parameter_ids, operands, strict=True))

    def value(operand: Operand) -> Value:
        if isinstance(operand, TensorLiteral):
            return at.b.as_value(operand)
        return values[operand.id]

    for instruction in program.main.body:
        found = [value(operand) for operand in instruction.operands]
        values[instruction.id] = at.b.append(instruction.op, found)
    return values[program.main.result_ids[0]]


@cache
def _trace_formula(name: str, kinds: tuple[TensorType, ...]) -> Program:
    function = FORMULAS[name]
    return trace(function, kinds, list, lambda operands: function(*operands)).program


def _mulhi(at: Site) -> Value:
    """The upper half of the product of integers."""
    x, y = at.aligned(at.x)
    if x.dtype.bits < 64:
        wide = SI64 if x.dtype.is_signed else UI64
        product = at.b.cast(x, wide) * at.b.cast(y, wide)
        upper = at.b.emit("shift_right", product, at.full(x.dtype.bits, product))
        return wrapped(at, upper, x.dtype)
    found = _upper(at, *(wrapped(at, value, UI64) for value in (x, y)))
    if not x.dtype.is_signed:
        return found
    # As unsigned numbers, negative ones count 2^64 too much.
    signed, zero = wrapped(at, found, x.dtype), at.full(0, x)
    for one, other in ((x, y), (y, x)):
        signed = signed - at.b.emit("select", one < 0, other, zero)
    return signed


def _upper(at: Site, x: Value, y: Value) -> Value:
    """The upper 64 bits of 128, from the products of halves."""
    shift, low = at.full(32, x), (1 << 32) - 1
    (a, b), (c, d) = ((at.b.emit("shift_right", v, shift), v & low) for v in (x, y))
    inner = at.b.emit("shift_right", b * d, shift) + ((a * d) & low) + ((b * c) & low)
    carried = [at.b.emit("shift_right", v, shift) for v in (a * d, b * c, inner)]
    return a * c + carried[0] + carried[1] + carried[2]


SPECIAL: Final[Mapping[str, Lowering]] = {
    **dict.fromkeys(FORMULAS, _formula),
    **{f"broadcast_{name}": broadcasting(_formula) for name in ("polygamma", "zeta")},
    "mulhi": _mulhi,
}
