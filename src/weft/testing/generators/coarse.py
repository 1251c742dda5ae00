"""Coarse ops, with the care that what they are made of needs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from weft.coarse import (
    activations,
    affine,
    attention,
    convolution,
    extremes,
    flash,
    fourier,
    grouped,
    norms,
    positions,
    resize,
    sampling,
    softmax,
)
from weft.foundation.dtypes import (
    ANY,
    CF32,
    CF64,
    F32,
    F64,
    FLOATS,
    INDICES,
    INTEGERS,
    NUMBERS,
    ORDERED,
    SI64,
    DType,
)
from weft.foundation.numeric import wide_dtype
from weft.ptir.ops.random import SAMPLED, STATE
from weft.ptir.types import Shape
from weft.testing.draft import Item
from weft.testing.facts import EXACT, Facts, anywhere, default_accumulator, join, sum_facts, within
from weft.testing.generator import Generator, Skip
from weft.testing.generators.reduction import along, summand_bound
from weft.testing.generators.registry import generates

# -- rows ----------------------------------------------------------------------------------------


@generates(softmax.ByteirSoftmax, softmax.ByteirLogSoftmax)
def softmaxes(g: Generator) -> None:
    x, axis, _ = along(g, FLOATS, within(4))
    if g.allows("byteir.softmax") and g.choices.chance(0.5):
        g.emit(softmax.ByteirSoftmax(axis), x, facts=Facts(0, 1.25, None))
    else:
        low = -(2.0 ** math.ceil(math.log2(10 + math.log(x.sizes[axis]))))
        g.emit(softmax.ByteirLogSoftmax(axis), x, facts=Facts(low, 0.5, None))


def _draw_axes(g: Generator, x: Item) -> tuple[int, ...]:
    chosen = g.choices.subset(range(x.rank), 0.5) or [g.choices.integer(0, x.rank - 1)]
    return tuple(g.choices.shuffled(list(chosen)))


@generates(norms.ByteirLayerNorm)
def layer_norm(g: Generator) -> None:
    x = g.pick(FLOATS, within(8), lambda item: item.rank > 0, lambda: g.shape(1, 3))
    axes = _draw_axes(g, x)
    feature = x.type.with_shape(tuple(x.shape[axis] for axis in axes))
    weight, bias = (g.of_type(feature, within(2)) for _ in range(2))
    outside = g.choices.choose((None, False, True))
    epsilon = g.choices.choose((0.5, 0.125))
    results = g.choices.choose((1, 1, 3))
    op = norms.ByteirLayerNorm(epsilon, axes, outside, results)
    count = math.prod(x.sizes[axis] for axis in axes)
    top = 2.0 ** math.ceil(math.log2(2 * math.sqrt(max(count, 1)) + 2))
    facts = [Facts(-top, top, None), Facts(-8, 8, None), Facts(0, 8, None)]
    if results == 1:
        g.emit(op, x, weight, bias, facts=facts[0])
    else:
        g.emit_tuple(op, x, weight, bias, facts=facts)


@generates(norms.ByteirL2Norm)
def l2_norm(g: Generator) -> None:
    x = g.pick(FLOATS, within(8), lambda item: item.rank > 0, lambda: g.shape(1, 3))
    op = norms.ByteirL2Norm(0.25, _draw_axes(g, x), g.choices.choose((None, True)))
    # An element is at most as long as its row, and the bound below is 0.25.
    g.emit(op, x, facts=Facts(-1.25, 1.25, None))


@generates(activations.ByteirGelu, activations.ByteirErf)
def activation(g: Generator) -> None:
    x = g.pick(FLOATS, within(8))
    if g.allows("byteir.gelu") and g.choices.chance(0.7):
        form = g.choices.choose(list(activations.Approximation))
        g.emit(activations.ByteirGelu(form), x, facts=Facts(-0.25, 8, None))
    else:
        g.emit(activations.ByteirErf(), x, facts=Facts(-1, 1, None))


@generates(activations.ByteirAddn)
def addn(g: Generator) -> None:
    count = g.choices.integer(1, 4)
    first = g.pick(NUMBERS)
    want = within(summand_bound(first.dtype, count))
    fitted = g.fit(first, want)
    first = g.like(first, want) if fitted is None else fitted
    items = [first, *(g.like(first, want) for _ in range(count - 1))]
    every = join(*(item.facts for item in items))
    facts = sum_facts(first.dtype, default_accumulator(first.dtype), every, count)
    g.emit(activations.ByteirAddn(), *items, facts=facts)


# -- positions -----------------------------------------------------------------------------------


@generates(extremes.ByteirArgMax, extremes.ByteirArgMin)
def extreme(g: Generator) -> None:
    classes = (extremes.ByteirArgMax, extremes.ByteirArgMin)
    cls = g.choices.choose([cls for cls in classes if g.allows(cls.name)])
    x, axis, _ = along(g, ORDERED, EXACT)
    results = g.choices.integer(1, 2)
    op = cls(axis, g.choices.chance(0.5), g.choices.chance(0.5), results, g.dtype(INDICES))
    place = Facts(0, x.sizes[axis] - 1)
    if results == 1:
        g.emit(op, x, facts=place)
    else:
        g.emit_tuple(op, x, facts=[replace(x.facts, zeros=False), place])


@generates(extremes.ByteirTopK)
def top_k(g: Generator) -> None:
    x, axis, _ = along(g, ORDERED, EXACT)
    k = g.choices.integer(1, x.sizes[axis])
    facts = [replace(x.facts, zeros=False), Facts(0, x.sizes[axis] - 1)]
    op = extremes.ByteirTopK(k, (axis,), g.choices.chance(0.5), g.dtype(INDICES))
    g.emit_tuple(op, x, facts=facts)


@generates(positions.ByteirOneHot)
def one_hot(g: Generator) -> None:
    indices = g.pick(INTEGERS)
    dtype = g.dtype(ANY - {d for d in ANY if d.is_complex})
    on, off = (2.0, -1.0) if dtype.is_float else (1, 0)
    if not dtype.is_float and not dtype.is_integer:
        on, off = True, False
    depth, axis = g.choices.integer(1, 5), g.choices.integer(0, indices.rank)
    op = positions.ByteirOneHot(depth, axis, on, off, dtype)
    g.emit(op, indices, facts=Facts(off, on, zeros=True))


@generates(positions.ByteirRepeat)
def repeat(g: Generator) -> None:
    x = g.pick(ANY, ok=lambda item: item.rank > 0, shape=lambda: g.shape(1, 3))
    dtype, rows = g.dtype(INDICES), x.sizes[0]
    counts = g.data.integers((rows,), 0, 2).astype(dtype.numpy)
    if g.depth and not isinstance(x.shape[0], int):
        raise Skip
    repeats = g.given(dtype, x.shape[:1], lambda _: counts, Facts(0, 2))
    g.emit(positions.ByteirRepeat(int(counts.sum())), x, repeats, facts=x.facts)


@generates(positions.ByteirNonZero)
def non_zero(g: Generator) -> None:
    x = g.pick(ANY, EXACT)
    bound = max(math.prod(x.sizes), 1)
    facts = Facts(-1, max((*x.sizes, 1)))
    g.emit(positions.ByteirNonZero(bound, g.dtype(INDICES)), x, facts=facts)


# -- quantisation --------------------------------------------------------------------------------


def _draw_scale(g: Generator, dtype: DType, shape: Shape) -> Item:
    """Powers of two, so that no rounding is in doubt."""

    def fill(sizes: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
        powers = g.data.integers(sizes, -2, 0).astype(np.int32)
        return np.asarray(np.ldexp(np.float32(1), powers)).astype(dtype.numpy)

    return g.given(dtype, shape, fill, Facts(0.25, 1, 0.25, zeros=True))


@generates(affine.ByteirQuantize)
def quantize(g: Generator) -> None:
    x = g.pick(FLOATS, EXACT)
    axis = g.choices.integer(0, x.rank - 1) if x.rank and g.choices.chance(0.5) else None
    extent = () if axis is None else (x.shape[axis],)
    zero = g.new(g.dtype(affine.QUANTISED), extent, within(7))
    op = affine.ByteirQuantize(axis)
    g.emit(op, x, _draw_scale(g, x.dtype, extent), zero, facts=anywhere(zero.dtype))


@generates(affine.ByteirDequantize)
def dequantize(g: Generator) -> None:
    x = g.pick(affine.QUANTISED, within(40))
    axis = g.choices.integer(0, x.rank - 1) if x.rank and g.choices.chance(0.5) else None
    extent = () if axis is None else (x.shape[axis],)
    dtype = g.dtype({F32, F64})
    zero = g.new(x.dtype, extent, within(7))
    facts = Facts(-48, 48, 0.25)
    op = affine.ByteirDequantize(axis, dtype)
    g.emit(op, x, _draw_scale(g, dtype, extent), zero, facts=facts)


# -- images --------------------------------------------------------------------------------------


@generates(resize.ByteirResize)
def resized(g: Generator) -> None:
    linear = g.choices.chance(0.5)
    want = within(1024) if linear else None
    x = g.pick(FLOATS, want) if want else g.pick(ANY)
    if not all(isinstance(dim, int) for dim in x.shape) or 0 in x.sizes:
        raise Skip
    sizes = tuple(n if g.choices.chance(0.5) else g.choices.integer(1, 5) for n in x.sizes)
    target = g.given(SI64, (x.rank,), lambda _: np.array(sizes, np.int64), Facts(0, 4096))
    op = resize.ByteirResize(
        resize.TargetMode.SIZE,
        resize.ResizeMode.LINEAR if linear else resize.ResizeMode.NEAREST,
        g.choices.choose(list(resize.Coordinates)),
        sizes,
    )
    g.emit(op, x, target, facts=x.facts.rounded() if linear else x.facts)


@generates(convolution.Conv, weight=3)
def conv(g: Generator) -> None:
    spatial = g.choices.integer(1, 2)
    dtype = g.dtype(NUMBERS)
    bound = within(4 if dtype.bits > 8 else 1)
    groups, share, each = (g.choices.integer(1, 2) for _ in range(3))
    image = (g.choices.integer(1, 2), *(g.choices.integer(3, 5) for _ in range(spatial)))
    x = g.new(dtype, (*image, groups * share), bound)
    window = tuple(g.choices.integer(1, 3) for _ in range(spatial))
    weight = g.new(dtype, (*window, share, groups * each), bound)
    op = convolution.Conv(
        (convolution.Layout.NWC, convolution.Layout.NHWC)[spatial - 1],
        tuple(g.choices.integer(1, 2) for _ in range(spatial)),
        tuple(g.choices.integer(0, 2) for _ in range(2 * spatial)),
        None,
        groups,
    )
    depth = math.prod(window) * share
    most = depth * x.facts.bound * weight.facts.bound * (2 if dtype.is_complex else 1)
    facts = anywhere(dtype) if dtype.is_integer else Facts(-most, most, None)
    g.emit(op, x, weight, facts=facts)


# -- random tensors ------------------------------------------------------------------------------


@generates(sampling.ByteirRngUniform, sampling.ByteirRngNormal)
def samples(g: Generator) -> None:
    dtype = g.dtype(SAMPLED)
    first = g.given(dtype, (), lambda _: np.array(-1, dtype.numpy), Facts(-1, -1))
    second = g.given(dtype, (), lambda _: np.array(1, dtype.numpy), Facts(1, 1))
    words = [g.new(SI64, ()) for _ in range(2)]
    dims = g.shape(0, 3)
    operands = (first, second, *words)
    if g.allows("byteir.rng_uniform") and g.choices.chance(0.5):
        g.emit(sampling.ByteirRngUniform(dims), *operands, facts=Facts(-1, 1, None))
    else:
        g.emit(sampling.ByteirRngNormal(dims), *operands, facts=Facts(-12, 12, None))


# -- attention -----------------------------------------------------------------------------------


def _heads(g: Generator, third: bool) -> tuple[list[Item], int]:
    """q, k and v, and how many rows the keys have."""
    dtype = g.dtype(attention.ATTENDED)
    batch, own, shared = 1, g.choices.integer(1, 2), g.choices.integer(1, 2)
    rows, more, depth = (g.choices.integer(1, 3) for _ in range(3))
    found = []
    for heads, length in ((own * shared, rows), (own, rows + more), (own, rows + more)):
        middle = (length, heads) if third else (heads, length)
        found.append(g.new(dtype, (batch, *middle, depth), within(2)))
    return found, rows + more


_VALUE = Facts(-4, 4, None)
_LSE = Facts(-32, 32, None)


@generates(attention.Attention)
def attend(g: Generator) -> None:
    operands, columns = _heads(g, third=False)
    dropout = g.choices.choose((0.0, 0.25))
    if dropout:
        operands.append(g.of_type(STATE))
    if g.choices.chance(0.5):
        operands.append(g.new(operands[0].dtype, (columns,), within(2)))
    op = attention.Attention(None, g.choices.chance(0.5), 0.5, dropout)
    g.emit_tuple(op, *operands, facts=[_VALUE, _LSE])


@generates(grouped.GroupedMatmul)
def grouped_matmul(g: Generator) -> None:
    dtype, kind = g.dtype(grouped.MULTIPLIED), g.dtype(INDICES)
    rows, depth, columns, groups = (g.choices.integer(1, 4) for _ in range(4))
    is_turned = g.choices.chance(0.5)
    x = g.new(dtype, (rows, depth), within(2))
    sides = (columns, depth) if is_turned else (depth, columns)
    weight = g.new(dtype, (groups, *sides), within(2))
    ends = g.data.integers((groups,), -1, rows + 1).astype(kind.numpy)
    offsets = g.given(kind, (groups,), lambda _: ends, Facts(-1, rows + 1))
    g.emit(grouped.GroupedMatmul(is_turned), x, weight, offsets, facts=Facts(-16, 16, None))


@generates(fourier.FourierTransform)
def fourier_transform(g: Generator) -> None:
    dtype = g.dtype(frozenset({CF32, CF64}))
    x = g.new(dtype, (g.choices.integer(1, 3), g.choices.choose((32, 36, 64, 100))), within(2))
    how = g.choices.chance(0.5), g.choices.chance(0.5)
    g.emit(fourier.FourierTransform(*how), x, facts=Facts(-400, 400, None))


@generates(grouped.GroupedOuter)
def grouped_outer(g: Generator) -> None:
    dtype, kind = g.dtype(grouped.MULTIPLIED), g.dtype(INDICES)
    rows, height, width, groups = (g.choices.integer(1, 4) for _ in range(4))
    sides = [g.new(dtype, (rows, size), within(2)) for size in (height, width)]
    ends = g.data.integers((groups,), -1, rows + 1).astype(kind.numpy)
    offsets = g.given(kind, (groups,), lambda _: ends, Facts(-1, rows + 1))
    g.emit(grouped.GroupedOuter(), *sides, offsets, facts=Facts(-16, 16, None))


@generates(flash.ByteirFlashAttnFwd)
def flash_forward(g: Generator) -> None:
    operands, _ = _heads(g, third=True)
    op = flash.ByteirFlashAttnFwd(
        g.choices.choose((0.0, 0.25)), 0.5, g.choices.chance(0.5), g.choices.chance(0.5)
    )
    facts = [_VALUE, _LSE, Facts(0, 1.5, None), anywhere(SI64)]
    g.emit_tuple(op, *operands, facts=facts)


@generates(flash.ByteirFlashAttnBwd)
def flash_backward(g: Generator) -> None:
    (q, k, v), _ = _heads(g, third=True)
    batch, rows, heads, _ = q.shape
    dout, out = (g.like(q, within(2)) for _ in range(2))
    # As large as the scores can be, so that no weight is larger than 1.
    wide = wide_dtype(q.dtype)
    lse = g.given(wide, (batch, heads, rows), lambda n: np.full(n, 8, wide.numpy), Facts(8, 8))
    op = flash.ByteirFlashAttnBwd(g.choices.choose((0.0, 0.25)), 0.5, g.choices.chance(0.5))
    bound = Facts(-512, 512, None)
    operands = (dout, q, k, v, out, lse, g.of_type(STATE))
    g.emit_tuple(op, *operands, facts=[bound] * 5)


@generates(flash.ByteirFlashAttnKvcache)
def flash_cached(g: Generator) -> None:
    (q, k, v), columns = _heads(g, third=True)
    room = (k.shape[0], columns + 3, *k.shape[2:])
    caches = [g.new(q.dtype, room, within(2)) for _ in range(2)]
    dtype = g.dtype(INDICES)
    start = g.given(
        dtype, (1,), lambda n: g.data.integers(n, 0, 3).astype(dtype.numpy), Facts(0, 3)
    )
    op = flash.ByteirFlashAttnKvcache(0.5, g.choices.chance(0.5), 4)
    after = [join(c.facts, new.facts).rounded() for c, new in zip(caches, (k, v), strict=True)]
    g.emit_tuple(op, q, *caches, k, v, start, facts=[_VALUE, _LSE, *after])
