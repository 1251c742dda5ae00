"""Quad shuffles: values exchanged by the four lanes that hold two rows of an accumulator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.ir.element_ops import ElementOp
from weft.codegen.gpu.ir.values import Compute, Shuffle
from weft.foundation.dtypes import F32

BOTH_ROWS: Final = (0, 1)
_QUAD: Final = (1, 2)
"""Bits of the lanes of a quad: an exchange over both reaches all four."""


def compute(name: str, fn: str, *args: str) -> Compute:
    """A function of values of f32."""
    return Compute(ElementOp(name, F32, fn, args))


def over_quad(name: str, fn: str) -> Iterator[ir.Stmt]:
    """`<name>_all`: the values of the four lanes of a quad, put together."""
    # Exchanges with the neighbour and then with the pair beside give all four lanes the same
    # operands in each step; addition and maximum commute, so all have the same bits.
    value = name
    for mask in _QUAD:
        last = mask == _QUAD[-1]
        other, joined = f"{name}_from{mask}", f"{name}_all" if last else f"{name}_two"
        yield Shuffle(other, F32, value, mask)
        yield compute(joined, fn, value, other)
        value = joined
