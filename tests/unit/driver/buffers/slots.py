"""Where values lie in the arena: buffer plans of programs without views."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.unit.driver.buffers.case import Case, chain, unit
from weft.ptir import tensor
from weft.ptir.types import TupleType


def diamond(b: Any) -> Any:
    x = unit(b)
    return b.neg(x) + b.neg(x)


def long_lived(b: Any) -> Any:
    a = b.neg(unit(b))
    return chain(b, a, 2) + a


def best_fit(b: Any) -> Any:
    """Holes of 256 and 128 bytes; 128 bytes go into the second."""
    x, y, z = unit(b, 4), unit(b, 2), unit(b)
    big, wall, small, wall2 = b.neg(x), b.neg(z), b.neg(y), b.neg(z)
    b.reduce_sum(big, [0])  # the sum and the two others die at once
    b.reduce_sum(small, [0])
    new = b.neg(y)
    return [new, wall, wall2]


def split_hole(b: Any) -> Any:
    x, z = unit(b, 3), unit(b)
    big = b.neg(x)
    wall = b.neg(z)
    b.stop_gradient(big)
    return [wall, b.neg(z), b.neg(z), b.neg(z)]


def merge_holes(b: Any) -> Any:
    """Two neighbours of 64 bytes die together and make room for 128."""
    x, y = unit(b), unit(b, 2)
    one, two = b.neg(x), b.neg(x)
    wall = b.neg(x)
    b.add(one, two)
    return [wall, b.neg(y)]


def grow_from_end(b: Any) -> Any:
    """The hole at the end of the arena is the beginning of a larger block."""
    x, y = unit(b), unit(b, 3)
    wall = b.neg(x)
    b.neg(x)
    return [wall, b.neg(y)]


def lowest_of_equal_holes(b: Any) -> Any:
    x = unit(b)
    one, wall, two, wall2 = b.neg(x), b.neg(x), b.neg(x), b.neg(x)
    b.add(one, two)
    return [wall, wall2, b.neg(x)]


SLOTS = [
    # -- nothing but inputs
    Case("parameter", lambda b: unit(b), 0, 0, returned=((0, 0),)),
    Case("parameter twice", lambda b: [unit(b)] * 2, 0, 0, returned=((0, 0), (1, 0))),
    Case("second of two", lambda b: [unit(b), unit(b)][1], 0, 0, returned=((0, 1),)),
    Case(
        "tuple parameter",
        lambda b: b.param_of(TupleType((tensor("f32", [4]), tensor("f64", [2])))),
        0,
        returned=((0, 0), (1, 1)),
    ),
    # -- slots
    Case("one op", lambda b: b.neg(unit(b)), 64, 64, owns=(1,), offsets={1: 0}),
    Case("two ops", lambda b: chain(b, unit(b), 2), 128, 128, offsets={1: 0, 2: 64}),
    Case("three ops", lambda b: chain(b, unit(b), 3), 128, 192, offsets={1: 0, 2: 64, 3: 0}),
    Case("ten ops", lambda b: chain(b, unit(b), 10), 128, 640),
    Case("a thousand ops", lambda b: chain(b, unit(b), 1000), 128, 64000),
    Case("diamond", diamond, 192, 192),
    Case("long-lived", long_lived, 192, 256, offsets={1: 0, 2: 64, 3: 128, 4: 64}),
    Case("unused value", lambda b: [x := unit(b), b.neg(x)][:1], 64, 64, returned=((0, 0),)),
    Case(
        "unused values",
        lambda b: [x := unit(b), b.neg(x), b.neg(x)][:1],
        64,
        128,
        returned=((0, 0),),
    ),
    Case(
        "unused, then used",
        lambda b: [x := unit(b), b.neg(x), b.neg(x)][2],
        64,
        128,
        offsets={1: 0, 2: 0},
    ),
    Case(
        "result lives on",
        lambda b: [x := unit(b), y := b.neg(x), b.neg(y), b.neg(y)][1:2],
        128,
        192,
        offsets={1: 0, 2: 64, 3: 64},
    ),
    Case("best fit", best_fit, 576, offsets={3: 0, 5: 320, 9: 320}),
    Case("hole is split", split_hole, 256, 448, offsets={3: 192, 5: 0, 6: 64, 7: 128}),
    Case("holes merge", merge_holes, 256, 384, offsets={2: 0, 3: 64, 4: 128, 5: 192, 6: 0}),
    Case("grow from the end", grow_from_end, 256, 320, offsets={2: 0, 3: 64, 4: 64}),
    Case("lowest of equal holes", lowest_of_equal_holes, 320, 384, offsets={6: 0}),
    # -- sizes
    Case("one element", lambda b: b.neg(b.param("f32", [1])), 64),
    Case("rank 0", lambda b: b.neg(b.param("f32")), 64),
    Case("65 bytes", lambda b: b.neg(b.param("si8", [65])), 128),
    Case("bits take bytes", lambda b: b.maximum(x := b.param("i1", [65]), x), 128),
    Case("4-bit numbers take bytes", lambda b: b.neg(b.param("si4", [129])), 192),
    Case("complex", lambda b: b.neg(b.param("cf64", [5])), 128),
    Case("half", lambda b: b.neg(b.param("bf16", [33])), 128),
    Case("empty", lambda b: b.neg(b.param("f32", [0, 4])), 0, 0),
    Case(
        "empty and not",
        lambda b: [b.neg(x) for x in [b.param("f32", [0]), unit(b)]],
        64,
        64,
    ),
    # -- constants
    Case("constant", lambda b: b.neg(b.constant([1.0] * 16)), 64, 64, constants=64),
    Case("constant returned", lambda b: b.constant([1.0] * 16), 64, 64, owns=(0,), constants=0),
    Case(
        "equal constants",
        lambda b: b.constant([1.0, 2.0]) + b.constant([1.0, 2.0]),
        64,
        constants=8,
        shares={1: 0},
    ),
    Case(
        "literals",
        lambda b: b.add(b.param("f32", [2]), b.literal([1.0, 2.0])),
        64,
        constants=8,
    ),
    Case(
        "equal literals",
        lambda b: b.add(b.add(b.param("f32", [2]), b.literal([1.0, 2.0])), b.literal([1.0, 2.0])),
        128,
        constants=8,
    ),
    Case(
        "zeros of two signs",
        lambda b: b.add(b.add(b.param("f32"), b.literal(0.0)), b.literal(-0.0)),
        128,
        constants=8,
    ),
    Case(
        "view of a constant",
        lambda b: b.neg(b.transpose(b.constant(np.ones((2, 8), np.float32)), [1, 0])),
        64,
        constants=64,
        views={1: (0, (4, 32))},
    ),
    Case(
        "reshape of a constant returned",
        lambda b: b.reshape(b.constant([1.0] * 16), [4, 4]),
        64,
        owns=(1,),
        constants=64,
    ),
]
