"""Groups of ops that models are made of, which chance alone would hardly put together."""

from __future__ import annotations

from weft.foundation.dtypes import ANY, F32, F64, FLOATS
from weft.ptir.ops.elementwise import BinaryFn, ElementwiseBinary, ElementwiseUnary, UnaryFn
from weft.ptir.ops.movement import BroadcastTo
from weft.ptir.ops.reduce_kind import ReduceKind
from weft.ptir.ops.reduction import Reduce
from weft.testing.draft import Item
from weft.testing.facts import Facts, within
from weft.testing.generator import Generator
from weft.testing.generators import movement
from weft.testing.generators.contraction import Axes, dot
from weft.testing.generators.elementwise import sum_of
from weft.testing.generators.registry import idiom


@idiom(4, "reduce_max", "broadcast_to", "sub", "exp", "reduce_sum", "div")
def softmax(g: Generator) -> None:
    """reduce_max, broadcast, sub, exp, reduce_sum, broadcast, div."""
    x = g.pick({F32, F64}, within(4), lambda i: i.rank > 0 and i.sizes[-1] > 0, lambda: (2, 5))
    last = (x.rank - 1,)
    top = g.emit(Reduce(ReduceKind.MAX, last, True, None, None), x, facts=x.facts.rounded())
    peak = g.emit(BroadcastTo(x.shape), top, facts=top.facts)
    shifted = g.emit(ElementwiseBinary(BinaryFn.SUB), x, peak, facts=Facts(-8, 0, None))
    powers = g.emit(ElementwiseUnary(UnaryFn.EXP), shifted, facts=Facts(0, 1, None))
    bound = float(2 * x.sizes[-1])
    total = g.emit(
        Reduce(ReduceKind.SUM, last, True, None, None), powers, facts=Facts(0.75, bound, None)
    )
    whole = g.emit(BroadcastTo(x.shape), total, facts=total.facts)
    g.emit(ElementwiseBinary(BinaryFn.DIV), powers, whole, facts=Facts(0, 1.25, None))


@idiom(4, "dot_general", "broadcast_to", "add", "tanh")
def dense_layer(g: Generator) -> None:
    """A matrix product, a bias on every row, an activation."""
    x = g.pick(FLOATS, within(8), lambda item: item.rank == 2, lambda: g.shape(2, 2))
    weight = g.new(x.dtype, (x.shape[1], g.choices.choose((1, 2, 3, 5))), within(1))
    y = dot(g, x, weight, Axes([], [(1, 0)]))
    bias = g.new(y.dtype, y.shape[1:], within(1))
    y = sum_of(g, y, g.broadcast(bias, y.shape))
    fitted = g.fit(y, within(8))
    if fitted is not None:
        g.emit(ElementwiseUnary(UnaryFn.TANH), fitted, facts=Facts(-1, 1, None))


@idiom(5, "reshape", "transpose", "broadcast_to", "slice", "pad", "tile")
def movements(g: Generator) -> None:
    """A chain of ops that move elements, each applied to the result of the one before."""
    x: Item = g.pick(ANY)
    steps = (movement.reshape_of, movement.transpose_of, movement.broadcast_of, movement.slice_of,
             movement.pad_of, movement.tile_of)  # fmt: skip
    for _ in range(g.choices.integer(2, 5)):
        x = g.choices.choose(steps)(g, x)
