"""Padding rules of ops that need an axis whole (they sort it, normalise it, or move windows over
it), and of elementwise ops that reject some elements.
"""

from __future__ import annotations

from weft.foundation.axes import normalise_axis
from weft.ptir.op_rules import op_as
from weft.ptir.ops.bits import ShiftLeft, ShiftRight
from weft.ptir.ops.elementwise import BinaryFn, ElementwiseBinary
from weft.ptir.ops.functions import Fmod, Pow
from weft.ptir.ops.normalisation import LayerNorm
from weft.ptir.ops.ordering import Argsort, Searchsorted, Sort, TopK
from weft.ptir.ops.quantisation import Dequantize, Quantize, Requantize
from weft.ptir.ops.window import ExtractPatches, ReduceWindow
from weft.ptir.padding.rules import Padding, aligned, elementwise, pads
from weft.ptir.term import Term


@pads(Sort, Argsort, TopK)
def order(p: Padding) -> Term:
    axis = normalise_axis(getattr(p.op, "axis", 0), p.operands[0].rank)
    p.require_whole(0, [axis], "orders")
    return p.replay()


@pads(Searchsorted)
def searchsorted(p: Padding) -> Term:
    p.require_whole(0, range(p.operands[0].rank), "looks things up in")
    return p.replay()


@pads(LayerNorm)
def layer_norm(p: Padding) -> Term:
    axis = normalise_axis(op_as(p, LayerNorm).feature_axis, p.operands[0].rank)
    p.require_whole(0, [axis], "normalises over")
    return p.replay()


@pads(ReduceWindow)
def reduce_window(p: Padding) -> Term:
    op = op_as(p, ReduceWindow)
    steps = zip(op.window_dims, op.strides, op.base_dilation, strict=True)
    moving = {axis for axis, step in enumerate(steps) if step != (1, 1, 1)}
    moving |= {axis for axis, around in enumerate(op.padding) if any(around)}
    p.require_whole(0, moving, "moves windows over")
    return p.replay()


@pads(ExtractPatches)
def extract_patches(p: Padding) -> Term:
    p.require_whole(0, range(1, p.operands[0].rank), "moves windows over")
    return p.replay()


@pads(Quantize, Dequantize, Requantize)
def quantise(p: Padding) -> Term:
    for index in range(1, len(p.operands)):
        p.require_whole(index, range(p.operands[index].rank), "has scales along")
    return p.replay()


@pads(ElementwiseBinary)
def binary(p: Padding) -> Term:
    divides = op_as(p, ElementwiseBinary).fn is BinaryFn.DIV
    return rejecting(p) if divides else elementwise(p)


@pads(Fmod, Pow, ShiftLeft, ShiftRight)
def rejecting(p: Padding) -> Term:
    """Integers are not divided by 0, raised to a negative power, nor shifted by less than 0."""
    if not p.operands[1].dtype.is_integer:
        return elementwise(p)
    aligned(p)
    return p.replay(p.operands[0], p.masked(1, 1))
