"""Random chains of movements over a small tensor, for the stages that read through them."""

from __future__ import annotations

import random
from math import prod

from weft.foundation.dims import static
from weft.foundation.dtypes import F32, SI32
from weft.foundation.index_expr import Expr, axis, constant
from weft.foundation.scalar import Fn
from weft.tiny.ir import (
    Barrier,
    Const,
    DynamicShrink,
    Expand,
    Flip,
    Graph,
    Input,
    Pad,
    Permute,
    Reshape,
    Shrink,
    Unary,
    Value,
    View,
)

MAX_ELEMENTS = 400


def random_chain(seed: int, length: int = 5, shape: tuple[int, ...] = ()) -> Graph:
    """Movements on top of one another, now and then with a function between them."""
    rng = random.Random(seed)
    sizes = shape or tuple(rng.choice([1, 2, 3, 4, 6]) for _ in range(rng.randint(1, 3)))
    x = Input("x", F32, sizes)
    start = Input("start", SI32, ())
    value: Value = x
    for _ in range(length):
        value = random_movement(value, start, rng)
        if rng.random() < 0.15:
            value = Unary(Fn.NEG, value)
    return Graph((x, start), (("y", value),))


def random_movement(x: Value, start: Value, rng: random.Random) -> Value:
    """One movement of `x`, of a kind that fits it."""
    shape = [static(d) for d in x.shape]
    kind = rng.choice(
        ["reshape"] * 3 + ["permute", "expand", "pad", "shrink", "flip", "view", "at", "barrier"]
    )
    match kind:
        case "permute":
            return Permute(x, tuple(rng.sample(range(len(shape)), len(shape))))
        case "expand":
            wide = [rng.choice([1, 2, 3]) if n == 1 else n for n in shape]
            return Expand(x, tuple(wide)) if prod(wide) <= MAX_ELEMENTS else x
        case "pad":
            low, high = ([rng.choice([0, 0, 1, 2]) for _ in shape] for _ in range(2))
            padded = Pad(x, tuple(low), tuple(high), Const(rng.choice([0.5, -1.0]), F32))
            return padded if prod(static(d) for d in padded.shape) <= MAX_ELEMENTS else x
        case "shrink":
            size = [rng.randint(1, n) for n in shape]
            at = [rng.randint(0, n - s) for n, s in zip(shape, size, strict=True)]
            return Shrink(x, tuple(at), tuple(size))
        case "at" if shape:
            size = [rng.randint(max(1, n - 2), n) for n in shape]
            return DynamicShrink(x, (start,) * len(shape), tuple(size))
        case "barrier":
            return Barrier(x, rng.choice([x, start]))
        case "flip":
            return Flip(x, tuple(k for k in range(len(shape)) if rng.random() < 0.5))
        case "view":
            return windows(x, rng)
        case _:
            return Reshape(x, tuple(random_shape(prod(shape), rng)))


def windows(x: Value, rng: random.Random) -> Value:
    """Windows with stride and dilation along the first axis, and a diagonal where there is one."""
    shape = [static(d) for d in x.shape]
    if not shape or prod(shape) > 100:
        return x
    stride, dilation = rng.choice([1, 2]), rng.choice([1, 2])
    window = rng.randint(1, max(1, (shape[0] - 1) // dilation + 1))
    places = (shape[0] - (window - 1) * dilation - 1) // stride + 1
    index: list[Expr] = [axis("i0") * stride + axis("i1") * dilation]
    sizes = [places, window]
    for n in shape[1:]:
        if rng.random() < 0.3 and n >= window:
            index.append(axis("i1"))
        elif rng.random() < 0.2:
            index.append(constant(rng.randrange(n)))
        else:
            index.append(axis(f"i{len(sizes)}"))
            sizes.append(n)
    return View(x, tuple(sizes), tuple(index))


def random_shape(count: int, rng: random.Random) -> list[int]:
    """A shape of `count` elements."""
    shape = []
    while count > 1:
        divisors = [d for d in range(2, count + 1) if count % d == 0]
        shape.append(rng.choice(divisors))
        count //= shape[-1]
    for _ in range(rng.choice([0, 0, 1])):
        shape.insert(rng.randint(0, len(shape)), 1)
    return shape or [1]
