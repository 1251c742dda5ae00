"""Programs with branches and loops, for whatever carries them out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.ptir import Builder, Program
from weft.ptir.builder import BodyBuilder, Value

Array = NDArray[Any]
TURNS = 37


def counted() -> Program:
    """A loop that knows when to end only from its data."""
    b = Builder("counted")
    x, k = b.param("f32", [300]), b.param("si32", [])
    loop = b.while_(lambda r, n, v: [n > 0, n, v], lambda r, n, v: [n - 1, v * 0.5 + 1.0], k, x)
    return b.build(loop)


def chosen() -> Program:
    """One of two bodies."""
    b = Builder("chosen")
    x, k = b.param("f32", [40]), b.param("si32", [])
    made = b.cond(k > 0, lambda r, v: r.exp(v), lambda r, v: v * 2.0 + 1.0, x)
    return b.build(made + x)


def nested() -> Program:
    """A branch and a loop in a loop, and a loop in a branch."""
    b = Builder("nested")
    x, k = b.param("f32", [64]), b.param("si32", [])

    def inner(r: BodyBuilder, n: Value, v: Value) -> list[Value]:
        return [n - 1, v * 0.75 + 0.25]

    def turn(r: BodyBuilder, n: Value, v: Value) -> list[Value]:
        looped = r.while_(lambda s, m, w: [m > 0, m, w], inner, n, v)
        top = r.cond(
            n > 2, lambda s, w: s.tanh(w), lambda s, w: w * 3.0, r.stop_gradient(looped[1])
        )
        return [n - 1, top]

    def whole(r: BodyBuilder, n: Value, v: Value) -> Value:
        return r.stop_gradient(r.while_(lambda s, m, w: [m > 0, m, w], turn, n, v)[1])

    return b.build(b.cond(k > 0, lambda r, n, v: whole(r, n, v), lambda r, n, v: v, k, x))


def scan_around_all() -> Program:
    """A scan in a loop in a branch in a scan."""
    b = Builder("scan_around_all")
    x = b.param("f32", [3, 4, 5])

    def inner(r: BodyBuilder, total: Value, row: Value) -> list[Value]:
        return [total + row, r.tanh(total)]

    def turn(r: BodyBuilder, k: Value, v: Value) -> list[Value]:
        last, stacked = r.scan(inner, [r.reduce_sum(v, [0])], [v])
        return [k + 1, stacked + r.broadcast_to(r.reshape(last, [1, 5]), [4, 5])]

    def looped(r: BodyBuilder, v: Value) -> Value:
        loop = r.while_(lambda s, k, w: [k < 2, k, w], turn, r.constant(0, "si32"), v)
        return r.stop_gradient(loop[1])

    def outer(r: BodyBuilder, count: Value, v: Value) -> list[Value]:
        odd = r.compare(count - (count / 2) * 2, r.constant(1, "si32"), "equal")
        return [count + 1, r.cond(odd, looped, lambda s, w: w * 0.5, v)]

    return b.build(b.scan(outer, [b.constant(0, "si32")], [x]))


def drawn() -> Program:
    """Random numbers in a loop: others in each turn."""
    b = Builder("drawn")
    x, k = b.param("f32", [16]), b.param("si32", [])

    def turn(r: BodyBuilder, n: Value, v: Value) -> list[Value]:
        return [n - 1, v + r.rng_uniform(dtype="f32", shape=[16])]

    return b.build(b.while_(lambda r, n, v: [n > 0, n, v], turn, k, x))


def divided() -> Program:
    """A loop that divides by zero when its counter comes to 0, and would not end."""
    b = Builder("divided")
    k = b.param("si32", [])
    loop = b.while_(lambda r, v: [r.constant(7, "si32") / v > -9, v], lambda r, v: [v - 1], k)
    return b.build(loop)


def endless() -> Program:
    b = Builder("endless")
    x = b.param("f32", [])
    return b.build(b.while_(lambda r, v: [r.constant(True, "i1"), v], lambda r, v: [v + 1.0], x))


def inputs(program: Program, count: int) -> list[Array]:
    """Numbers, and a counter that begins with `count`."""
    shape = program.main.parameters[0].static_shape  # type: ignore[union-attr]
    numbers = np.random.default_rng(count + 5).standard_normal(shape).astype(np.float32)
    return [numbers, np.asarray(count, np.int32)]


CASES: dict[str, Callable[[], Program]] = {
    "counted": counted,
    "chosen": chosen,
    "nested": nested,
    "drawn": drawn,
}
