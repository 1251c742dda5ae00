"""Quantisation with scales that are powers of two, so that no rounding is in doubt."""

from __future__ import annotations

import math

import numpy as np

from weft.foundation.dtypes import F32, F64, FLOATS, SI32, DType
from weft.ptir.ops.quantisation import (
    LARGEST,
    QUANTISED,
    WHOLE,
    Dequantize,
    Quantize,
    Requantize,
)
from weft.ptir.types import Shape
from weft.testing.data import Array
from weft.testing.draft import Item
from weft.testing.facts import EXACT, Facts, anywhere, join, limit, settle, within
from weft.testing.generator import Generator
from weft.testing.generators.registry import generates


def _draw_axis(g: Generator, x: Item) -> int | None:
    return g.choices.integer(0, x.rank - 1) if x.rank and g.choices.chance(0.5) else None


def _parameter_shape(x: Item, axis: int | None) -> Shape:
    return () if axis is None else (x.shape[axis],)


def _draw_scale(g: Generator, dtype: DType, shape: Shape, exponents: tuple[int, int]) -> Item:
    """Powers of two with exponents in this range."""
    low, high = exponents

    def fill(sizes: tuple[int, ...]) -> Array:
        powers = g.data.integers(sizes, low, high).astype(np.int32)
        return np.asarray(np.ldexp(np.float32(1), powers)).astype(dtype.numpy)

    return g.given(dtype, shape, fill, Facts(2.0**low, 2.0**high, 2.0**low, zeros=True))


def _zero_point(g: Generator, dtype: DType, shape: Shape) -> Item:
    return g.new(dtype, shape, within(7, exact=True))


@generates(Quantize, weight=3)
def quantize(g: Generator) -> None:
    output = g.dtype(QUANTISED)
    # Four times as much, and a zero point, stay in range.
    x = g.pick(FLOATS, within(48, exact=True) if output in LARGEST else EXACT)
    axis = _draw_axis(g, x)
    operands = [x, _draw_scale(g, x.dtype, _parameter_shape(x, axis), (-2, 1))]
    if g.choices.chance(0.6):
        operands.append(_zero_point(g, output, _parameter_shape(x, axis)))
    facts = Facts(-256, 256, None) if output in LARGEST else anywhere(output)
    g.emit(Quantize(output, axis), *operands, facts=facts)


@generates(Dequantize, weight=3)
def dequantize(g: Generator) -> None:
    dtype = g.dtype(FLOATS)
    output = g.choices.choose([None, *g.dtypes(FLOATS)])
    narrow = 8 in (dtype.bits, (output or dtype).bits)
    x = g.pick(QUANTISED | {SI32}, within(48 if narrow else 2**16, exact=True))
    axis = _draw_axis(g, x)
    bound = math.ceil(x.facts.bound) + 8
    # The largest scale for which the result stays in range.
    room = math.floor(math.log2(limit(output or dtype) / bound))
    top = min(1, room)
    operands = [x, _draw_scale(g, dtype, _parameter_shape(x, axis), (top - 2, top))]
    known = [x.facts]
    if g.choices.chance(0.6):
        operands.append(_zero_point(g, x.dtype, _parameter_shape(x, axis)))
        known.append(operands[-1].facts)
    wide = F64 if F64 in (dtype, output) else F32
    step = join(*known).step
    inner = settle(wide, -bound * 2.0**top, bound * 2.0**top, step and step * 2.0 ** (top - 2))
    facts = settle(output or dtype, inner.low, inner.high, inner.step)
    g.emit(Dequantize(axis, output), *operands, facts=facts)


@generates(Requantize, weight=3)
def requantize(g: Generator) -> None:
    q = g.pick(WHOLE | {SI32}, within(2**16))
    axis = _draw_axis(g, q)
    dtype = g.dtype(FLOATS)
    output = g.dtype(WHOLE)
    operands = [q]
    for zero_dtype in (q.dtype, output):
        shape = _parameter_shape(q, axis if g.choices.chance(0.7) else None)
        operands += [_draw_scale(g, dtype, shape, (-2, 1)), _zero_point(g, zero_dtype, shape)]
    g.emit(Requantize(output, axis), *operands, facts=anywhere(output))
