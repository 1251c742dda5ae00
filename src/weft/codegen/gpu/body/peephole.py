"""Peephole rewrites: `tanh(u) + 1` and its product with x / 2, as in gelu, by one exp2 where
functions may be less exact.

    (x * 0.5) * (tanh(u) + 1)             ->    x / (2^(u * -2 log2(e)) + 1)
    tanh(u) + 1                           ->    2 / (2^(u * -2 log2(e)) + 1)

They keep their digits where the sum cancels; a constant that u is a multiple of joins the one in
the power, and `c (x + k x^3)` becomes `x (c + c k x^2)`. The constants must be the dtype's own.
Inner steps that others use stay; those that nobody uses any more are never asked for by code
generation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from weft.codegen.gpu.ir.element_ops import loose_functions
from weft.foundation.dtypes import F32, DType
from weft.region.ir import Binary, Const, Kernel, Let, Unary


def recognise(kernel: Kernel) -> Kernel:
    """The kernel with such sums in their shorter form."""
    lets = {let.name: let for let in kernel.body}
    if not loose_functions(lets[o.value].dtype for o in kernel.outputs if o.value in lets):
        return kernel
    body: list[Let] = []
    for let in kernel.body:
        shifted = _shifted_tanh_of(let, lets) if let.dtype is F32 else None
        body += [let] if shifted is None else _shifted_tanh(let, *shifted, lets)
    return replace(kernel, body=tuple(body))


def _one_plus_tanh_of(let: Let, lets: Mapping[str, Let]) -> str | None:
    for inner, one in _operands_both_ways(let, "add"):
        expr = lets[inner].expr
        if (
            _equals_number(lets[one], 1.0, let.dtype)
            and isinstance(expr, Unary)
            and expr.fn == "tanh"
        ):
            return expr.x
    return None


def _shifted_tanh_of(let: Let, lets: Mapping[str, Let]) -> tuple[str, str | None] | None:
    """u, where a Let is tanh(u) + 1; and x, where it is that times half of x."""
    alone = _one_plus_tanh_of(let, lets)
    if alone is not None:
        return alone, None
    for half, bell in _operands_both_ways(let, "mul"):
        u = _one_plus_tanh_of(lets[bell], lets)
        for x, number in _operands_both_ways(lets[half], "mul"):
            if u is not None and _equals_number(lets[number], 0.5, let.dtype):
                return u, x
    return None


def _shifted_tanh(let: Let, u: str, x: str | None, lets: Mapping[str, Let]) -> list[Let]:
    """The Lets of `x / (2^(u * -2 log2(e)) + 1)`, 2 for no x; the last has the old one's name."""
    names = [f"{let.name}.{step}" for step in ("two", "one", "power", "below")]
    two, one, power, below = names
    factor, inner = _multiple(lets[u], lets)
    exponent = _exponent(let, -2.0 * math.log2(math.e) * factor, inner, lets)
    dtype, axes = let.dtype, lets[inner].axes
    return [
        _constant_let(two, 2.0, dtype),
        _constant_let(one, 1.0, dtype),
        *exponent,
        Let(power, dtype, axes, Unary("exp2", exponent[-1].name)),
        Let(below, dtype, axes, Binary("add", power, one)),
        Let(let.name, dtype, let.axes, Binary("div", two if x is None else x, below)),
    ]


def _exponent(let: Let, rate: float, inner: str, lets: Mapping[str, Let]) -> list[Let]:
    """The Lets of `inner * rate`, the last of them the product."""
    cubic, dtype, axes = _cubic(lets[inner], lets), let.dtype, lets[inner].axes
    names = [f"{let.name}.{step}" for step in ("rate", "bend", "square", "bent", "slope", "scaled")]
    first, bend, square, bent, slope, scaled = names
    found = [_constant_let(first, rate, dtype)]
    if cubic is None:
        return [*found, Let(scaled, dtype, axes, Binary("mul", inner, first))]
    x, share = cubic
    return [
        *found,
        _constant_let(bend, rate * share, dtype),
        Let(square, dtype, axes, Binary("mul", x, x)),
        Let(bent, dtype, axes, Binary("mul", square, bend)),
        Let(slope, dtype, axes, Binary("add", bent, first)),
        Let(scaled, dtype, axes, Binary("mul", x, slope)),
    ]


def _constant_let(name: str, value: float, dtype: DType) -> Let:
    return Let(name, dtype, (), Const(float(dtype.numpy.type(value))))


def _cubic(let: Let, lets: Mapping[str, Let]) -> tuple[str, float] | None:
    """x and k, where a Let is `x + k x^3`."""
    for x, rest in _operands_both_ways(let, "add"):
        share, cube = _multiple(lets[rest], lets)
        for square, other in _operands_both_ways(lets[cube], "mul"):
            if other == x and lets[square].expr == Binary("mul", x, x):
                return x, share
    return None


def _multiple(let: Let, lets: Mapping[str, Let]) -> tuple[float, str]:
    """The number that a Let is a multiple of something by, and that something."""
    for inner, number in _operands_both_ways(let, "mul"):
        expr = lets[number].expr
        if isinstance(expr, Const) and not isinstance(expr.value, complex):
            return float(expr.value), inner
    return 1.0, let.name


def _operands_both_ways(let: Let, fn: str) -> Iterator[tuple[str, str]]:
    """The operands of a commutative function, both ways round."""
    if isinstance(let.expr, Binary) and let.expr.fn == fn:
        yield let.expr.lhs, let.expr.rhs
        yield let.expr.rhs, let.expr.lhs


def _equals_number(let: Let, number: float, dtype: DType) -> bool:
    """Whether a Let is a number as the dtype has it."""
    if not isinstance(let.expr, Const) or isinstance(let.expr.value, complex):
        return False
    return float(let.expr.value) == float(dtype.numpy.type(number))
