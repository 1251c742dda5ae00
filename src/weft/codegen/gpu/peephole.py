"""Functions that programs spell out, recognised: a GPU has a shorter way for them.

    (x * 0.5) * (erf(x / sqrt(2)) + 1)    ->    gelu(x)
    tanh(x) + 1                           ->    2 / (exp(-2 x) + 1)      where exp may be loose

The second keeps its digits where the sum cancels. The constants must be the dtype's own. Inner
steps that others use stay; those that nobody uses any more are never asked for by code generation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from weft.codegen.gpu.element import loose_functions
from weft.foundation.dtypes import BF16, F16, F32, DType
from weft.region.ir import Binary, Const, Kernel, Let, Unary

_DTYPES: Final = frozenset({F32, F16, BF16})


def recognise(kernel: Kernel) -> Kernel:
    """The kernel with spelled-out functions by their names."""
    lets = {let.name: let for let in kernel.body}
    loose = bool(loose_functions(lets[o.value].dtype for o in kernel.outputs if o.value in lets))
    body: list[Let] = []
    for let in kernel.body:
        x = _gelu_of(let, lets) if let.dtype in _DTYPES else None
        u = _one_plus_tanh_of(let, lets) if loose and let.dtype is F32 else None
        if x is not None:
            body.append(replace(let, expr=Unary("gelu", x)))
        else:
            body += [let] if u is None else _one_plus_tanh(let, u)
    return replace(kernel, body=tuple(body))


def _one_plus_tanh_of(let: Let, lets: Mapping[str, Let]) -> str | None:
    for inner, one in _sides(let, "add"):
        expr = lets[inner].expr
        if _is(lets[one], 1.0, let.dtype) and isinstance(expr, Unary) and expr.fn == "tanh":
            return expr.x
    return None


def _one_plus_tanh(let: Let, u: str) -> list[Let]:
    """The Lets of `2 / (exp(-2 u) + 1)`, the last of which has the old one's name."""
    names = [f"{let.name}.{step}" for step in ("minus", "two", "one", "twice", "power", "below")]
    minus, two, one, twice, power, below = names
    dtype = let.dtype
    return [
        *(
            Let(name, dtype, (), Const(value))
            for name, value in ((minus, -2.0), (two, 2.0), (one, 1.0))
        ),
        Let(twice, dtype, let.axes, Binary("mul", u, minus)),
        Let(power, dtype, let.axes, Unary("exp", twice)),
        Let(below, dtype, let.axes, Binary("add", power, one)),
        Let(let.name, dtype, let.axes, Binary("div", two, below)),
    ]


def _gelu_of(let: Let, lets: Mapping[str, Let]) -> str | None:
    """What a Let is the gelu of."""
    for half, bell in _sides(let, "mul"):
        for x, number in _sides(lets[half], "mul"):
            if not _is(lets[number], 0.5, let.dtype):
                continue
            for inner, one in _sides(lets[bell], "add"):
                if _is(lets[one], 1.0, let.dtype) and _erf_of(lets[inner], lets) == x:
                    return x
    return None


def _erf_of(let: Let, lets: Mapping[str, Let]) -> str | None:
    """x, where a Let is erf(x / sqrt(2))."""
    if not isinstance(let.expr, Unary) or let.expr.fn != "erf":
        return None
    inner = lets[let.expr.x]
    if isinstance(inner.expr, Binary) and inner.expr.fn == "div":
        root = _is(lets[inner.expr.rhs], 2.0**0.5, let.dtype)
        return inner.expr.lhs if root else None
    for x, number in _sides(inner, "mul"):
        if _is(lets[number], 0.5**0.5, let.dtype):
            return x
    return None


def _sides(let: Let, fn: str) -> Iterator[tuple[str, str]]:
    """The operands of a commutative function, both ways round."""
    if isinstance(let.expr, Binary) and let.expr.fn == fn:
        yield let.expr.lhs, let.expr.rhs
        yield let.expr.rhs, let.expr.lhs


def _is(let: Let, number: float, dtype: DType) -> bool:
    """Whether a Let is a number as the dtype has it."""
    if not isinstance(let.expr, Const) or isinstance(let.expr.value, complex):
        return False
    return float(let.expr.value) == float(dtype.numpy.type(number))
