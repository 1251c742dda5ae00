"""Sums of products, and the normalisation that ends many of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from weft.foundation.dtypes import F32, FLOATS, NUMBERS, ORDERED, SI32, UI32, DType, in_order
from weft.ptir.ops.contraction import DotGeneral
from weft.ptir.ops.normalisation import LayerNorm
from weft.ptir.types import Shape
from weft.testing.draft import Item
from weft.testing.facts import Facts, accumulated, limit, product_facts, within
from weft.testing.generator import MAX_ELEMENTS, Generator, Skip
from weft.testing.generators.reduction import accumulators
from weft.testing.generators.registry import generates

Pairs = list[tuple[int, int]]


@dataclass(frozen=True)
class Axes:
    """Which axes of lhs and rhs pair up."""

    batch: Pairs
    contract: Pairs


@generates(DotGeneral, weight=6)
def dot_general(g: Generator) -> None:
    dtype = g.dtype(NUMBERS)
    lhs = g.pick({dtype}, within(_factor(dtype, 1)))
    rhs = _partner(g, lhs)
    axes = _draw_axes(g, lhs, rhs)
    if g.choices.chance(0.6) and not axes.contract:
        raise Skip
    dot(g, lhs, rhs, axes, accumulators(g, dtype))


def _factor(dtype: DType, depth: int) -> float:
    """The magnitude of factors of which `depth` products are summed; integers may wrap."""
    if dtype.is_integer:
        return math.inf
    spare = 2 if dtype.is_complex else 1
    return 2.0 ** math.floor(math.log2(limit(dtype) / (spare * max(depth, 1))) / 2)


def _partner(g: Generator, lhs: Item) -> Item:
    """Another operand: any value, or a new one that shares axes with `lhs`."""
    want = within(_factor(lhs.dtype, 1))
    if g.choices.chance(0.5):
        return g.pick({lhs.dtype}, want)

    def shape() -> Shape:
        shared = g.choices.subset(lhs.shape, 0.7)
        return tuple(g.choices.shuffled([*shared, *g.shape(0, 2)]))

    return g.pick({lhs.dtype}, want, lambda i: bool(set(i.shape) & set(lhs.shape)), shape)


def _draw_axes(g: Generator, lhs: Item, rhs: Item) -> Axes:
    """A random pairing of axes of equal size, each pair batched, contracted or left alone."""
    batch: Pairs = []
    contract: Pairs = []
    free = set(range(rhs.rank))
    for left in g.choices.shuffled(range(lhs.rank)):
        fitting = [axis for axis in sorted(free) if rhs.shape[axis] == lhs.shape[left]]
        role = g.choices.weighted((contract, batch, None), (5, 3, 2))
        if fitting and role is not None:
            right = g.choices.choose(fitting)
            free.discard(right)
            role.append((left, right))
    return Axes(batch, contract)


def dot(g: Generator, lhs: Item, rhs: Item, axes: Axes, accum: DType | None = None) -> Item:
    """Emit a dot over these axes, the operands brought into range first."""
    dtype = lhs.dtype
    depth = math.prod(lhs.sizes[left] for left, _ in axes.contract)
    if depth * math.prod(lhs.sizes) > 64 * MAX_ELEMENTS:
        raise Skip
    want = within(_factor(dtype, depth))
    sides = []
    for side in (lhs, rhs):
        fitted = g.fit(side, want)
        sides.append(fitted if fitted is not None else g.like(side, want))
    inner = accum or _default(dtype)
    low, high, step = product_facts(sides[0].facts, sides[1].facts)
    bound = depth * max(abs(low), abs(high)) * (2 if dtype.is_complex else 1)
    out = _draw_output_dtype(g, dtype, inner, bound)
    op = DotGeneral(
        tuple(a for a, _ in axes.batch), tuple(b for _, b in axes.batch),
        tuple(a for a, _ in axes.contract), tuple(b for _, b in axes.contract), accum, out,
    )  # fmt: skip
    facts = accumulated(out or dtype, inner, -bound, bound, step)
    return g.emit(op, *sides, facts=facts)


def _default(dtype: DType) -> DType:
    if dtype.is_integer and dtype.bits < 32:
        return SI32 if dtype.is_signed else UI32
    return F32 if dtype.is_float and dtype.bits < 32 else dtype


def _draw_output_dtype(g: Generator, dtype: DType, inner: DType, bound: float) -> DType | None:
    """Nothing, or another dtype that holds the result."""
    if g.choices.chance(0.65):
        return None
    kept = {dtype} if dtype.is_complex else g.rules.dtypes & ORDERED
    fitting = [d for d in kept if d.kind is inner.kind and (d.is_integer or limit(d) >= bound)]
    return g.choices.choose(in_order(fitting)) if fitting else None


@generates(LayerNorm, weight=3)
def layer_norm(g: Generator) -> None:
    x = g.pick(FLOATS, within(8), lambda item: item.rank > 0, lambda: g.shape(1, 3))
    axis = g.choices.integer(0, x.rank - 1)
    feature = x.type.with_shape((x.shape[axis],))
    gamma, beta = (g.of_type(feature, within(2)) for _ in range(2))
    epsilon = g.choices.choose((0.5, 0.125, 0.01))
    written = axis - x.rank if g.choices.chance(0.4) else axis
    # A normalised element is at most the square root of the number of elements.
    bound = 2 * math.sqrt(max(x.sizes[axis], 1)) + 2
    top = 2.0 ** math.ceil(math.log2(bound))
    g.emit(LayerNorm(epsilon, written), x, gamma, beta, facts=Facts(-top, top, None))
