"""Hand-written programs with the exact buffer plan of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.ptir import Builder, Program, Value, tensor
from weft.ptir.types import TupleType
from weft.ptir.verify import verify

Build = Callable[[Any], Any]
"""Builds a program and answers its result or results."""


def program_of(build: Build) -> Program:
    b = Builder()
    results = build(b)
    program = b.build(*([results] if isinstance(results, Value) else results))
    verify(program)
    return program


@dataclass(frozen=True)
class Case:
    """A program and what its plan must be. Value ids count the parameters, then the ops."""

    name: str
    build: Build
    peak: int
    total: int | None = None
    shares: dict[int, int] = field(default_factory=dict)
    """value: the value whose buffer it lies in."""
    views: dict[int, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    """value: (offset in the buffer, strides)."""
    owns: tuple[int, ...] = ()
    """Values in the arena that no earlier value shares."""
    offsets: dict[int, int] = field(default_factory=dict)
    """value: offset of its buffer in the arena."""
    returned: tuple[tuple[int, int], ...] = ()
    constants: int = 0
    scratch: tuple[int, ...] = ()


def unit(b: Any, units: int = 1) -> Any:
    """A parameter of `units` * 64 bytes."""
    return b.param("f32", [16 * units])


def chain(b: Any, x: Value, length: int) -> Value:
    for _ in range(length):
        x = b.neg(x)
    return x


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


def slice_keeps_root(b: Any) -> Any:
    """One row of a large value is needed to the end: all of it stays."""
    big = b.neg(b.param("f32", [4, 16]))
    row = b.slice(big, [1, 0], [1, 16])
    return b.add(chain(b, b.neg(row), 3), row)


def one_element_used(b: Any) -> Any:
    values, _ = b.top_k(b.param("f32", [16]), k=16, axis=0, largest=True, indices_dtype="si32")
    return chain(b, values, 3)


def swap(b: Any) -> Any:
    """Two carries change places in each step: the region must copy them."""
    x, y = unit(b), unit(b)
    return b.while_(lambda r, p, q: [r.constant(False), p, q], lambda r, p, q: [q, p], x, y)


def pass_through(b: Any) -> Any:
    x, y = unit(b), unit(b)
    return b.while_(lambda r, p, q: [r.constant(False), p, q], lambda r, p, q: [p, r.neg(q)], x, y)


def cond(b: Any) -> Any:
    pred, x = b.param("i1"), unit(b)
    return b.cond(pred, lambda r, p: r.neg(p), lambda r, p: chain(r, p, 3), x)


def cond_of_views(b: Any) -> Any:
    pred, x = b.param("i1"), b.param("f32", [4, 8])
    args = [b.transpose(x, [1, 0]), b.slice(x, [1, 0], [2, 8]), b.slice(x, [0, 1], [4, 2])]
    return b.cond(pred, lambda r, p, q, s: r.neg(p), lambda r, p, q, s: p, *args)


def scan(b: Any) -> Any:
    carry, xs = unit(b), b.param("f32", [3, 16])

    def step(r: Any, c: Value, x: Value) -> list[Value]:
        total = c + x
        return [total, r.neg(total)]

    return b.scan(step, [carry], [xs])


def scan_of_old_carry(b: Any) -> Any:
    """The stacked output is the carry before the step."""
    carry, xs = unit(b), b.param("f32", [3, 16])
    return b.scan(lambda r, c, x: [r.add(c, x), c], [carry], [xs])


def nested(b: Any) -> Any:
    """A cond in a scan in the middle of live values."""
    pred, x, xs = b.param("i1"), unit(b), b.param("f32", [2, 16])
    live = b.neg(x)

    def step(r: Any, p: Value, c: Value, x: Value) -> list[Value]:
        chosen = r.cond(p, lambda i, u: chain(i, u, 2), lambda i, u: i.neg(u), c)
        return [p, chosen + x]

    out = b.scan(step, [pred, x], [xs])
    return live + out[1]


def two_conds(b: Any) -> Any:
    pred, x = b.param("i1"), unit(b)
    first = b.cond(pred, lambda r, p: chain(r, p, 2), lambda r, p: chain(r, p, 2), x)
    return b.cond(pred, lambda r, p: chain(r, p, 2), lambda r, p: chain(r, p, 2), first)


def full(b: Any, dims: Sequence[int]) -> Any:
    """A value in the arena."""
    return b.neg(b.param("f32", dims))


NESTED = TupleType((TupleType((tensor("f32", [4]), tensor("f64", [2]))), tensor("f32", [8])))

CASES = [
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
    # -- reshape and stop_gradient
    Case(
        "reshape in the middle",
        lambda b: b.neg(b.reshape(full(b, [16]), [4, 4])),
        128,
        128,
        shares={2: 1},
        views={2: (0, (16, 4))},
    ),
    Case("reshape of a parameter", lambda b: b.neg(b.reshape(unit(b), [4, 4])), 64, shares={1: 0}),
    Case("reshape returned", lambda b: b.reshape(full(b, [16]), [4, 4]), 64, 64, shares={2: 1}),
    Case("reshape of a parameter returned", lambda b: b.reshape(unit(b), [4, 4]), 64, owns=(1,)),
    Case(
        "stop_gradient in the middle",
        lambda b: b.neg(b.stop_gradient(full(b, [16]))),
        128,
        shares={2: 1},
    ),
    Case("stop_gradient returned", lambda b: b.stop_gradient(full(b, [16])), 64, shares={2: 1}),
    Case(
        "stop_gradient of a parameter returned", lambda b: b.stop_gradient(unit(b)), 64, owns=(1,)
    ),
    Case(
        "an alias extends the range",
        lambda b: [
            x := full(b, [16]),
            r := b.reshape(x, [4, 4]),
            y := b.neg(x),
            z := b.neg(y),
            b.reduce_sum(r, [0, 1]),
            z,
        ][4:],
        192,
        offsets={1: 0, 3: 64, 4: 128, 5: 64},
    ),
    Case(
        "chain of aliases",
        lambda b: b.neg(b.stop_gradient(b.reshape(b.reshape(full(b, [16]), [4, 4]), [2, 8]))),
        128,
        128,
        shares={2: 1, 3: 1, 4: 1},
    ),
    Case(
        "value and its reshape returned",
        lambda b: [x := full(b, [16]), b.reshape(x, [4, 4])],
        64,
        shares={2: 1},
    ),
    Case("value twice", lambda b: [full(b, [16])] * 2, 64, 64),
    # -- views
    Case(
        "slice of rows",
        lambda b: b.neg(b.slice(full(b, [4, 16]), [1, 0], [2, 16])),
        384,
        shares={2: 1},
        views={2: (64, (64, 4))},
    ),
    Case(
        "slice of columns",
        lambda b: b.neg(b.slice(full(b, [4, 16]), [0, 3], [4, 2])),
        320,
        shares={2: 1},
        views={2: (12, (64, 4))},
    ),
    Case(
        "slice of a parameter",
        lambda b: b.neg(b.slice(b.param("f32", [4, 16]), [2, 0], [1, 16])),
        64,
        shares={1: 0},
        views={1: (128, (64, 4))},
    ),
    Case(
        "slice of a slice",
        lambda b: b.neg(b.slice(b.slice(b.param("f32", [8, 8]), [2, 2], [4, 4]), [1, 1], [2, 2])),
        64,
        views={2: (32 * 3 + 12, (32, 4))},
    ),
    Case("slice keeps its root", slice_keeps_root, 384, 576),
    Case(
        "slice returned", lambda b: b.slice(full(b, [4, 16]), [1, 0], [1, 16]), 320, 320, owns=(2,)
    ),
    Case(
        "whole slice returned",
        lambda b: b.slice(full(b, [4, 16]), [0, 0], [4, 16]),
        256,
        256,
        shares={2: 1},
    ),
    Case(
        "empty slice at the end",
        lambda b: b.neg(b.slice(full(b, [4]), [4], [0])),
        64,
        shares={2: 1},
    ),
    Case(
        "transpose",
        lambda b: b.neg(b.transpose(full(b, [2, 8]), [1, 0])),
        128,
        shares={2: 1},
        views={2: (0, (4, 32))},
    ),
    Case(
        "transpose of rank 3",
        lambda b: b.neg(b.transpose(b.param("f64", [2, 3, 4]), [2, 0, 1])),
        192,
        shares={1: 0},
        views={1: (0, (8, 96, 32))},
    ),
    Case("transpose returned", lambda b: b.transpose(full(b, [2, 8]), [1, 0]), 128, 128, owns=(2,)),
    Case(
        "transposed twice, returned",
        lambda b: b.transpose(b.transpose(full(b, [2, 8]), [1, 0]), [1, 0]),
        64,
        64,
        shares={2: 1, 3: 1},
    ),
    Case(
        "transpose of a parameter returned",
        lambda b: b.transpose(b.param("f32", [2, 8]), [1, 0]),
        64,
        owns=(1,),
    ),
    Case(
        "transpose of a unit axis returned",
        lambda b: b.transpose(full(b, [1, 16]), [1, 0]),
        64,
        shares={2: 1},
    ),
    Case(
        "broadcast",
        lambda b: b.neg(b.broadcast_to(full(b, [16]), [4, 16])),
        320,
        shares={2: 1},
        views={2: (0, (0, 4))},
    ),
    Case(
        "broadcast of a unit axis",
        lambda b: b.neg(b.broadcast_to(full(b, [4, 1]), [4, 16])),
        320,
        shares={2: 1},
        views={2: (0, (4, 0))},
    ),
    Case(
        "broadcast returned", lambda b: b.broadcast_to(full(b, [16]), [4, 16]), 320, 320, owns=(2,)
    ),
    Case(
        "broadcast to itself returned",
        lambda b: b.broadcast_to(full(b, [16]), [16]),
        64,
        64,
        shares={2: 1},
    ),
    Case(
        "broadcast to nothing",
        lambda b: b.neg(b.broadcast_to(full(b, [1]), [0])),
        64,
        shares={2: 1},
    ),
    Case(
        "broadcast of a literal",
        lambda b: b.neg(b.broadcast_to(b.literal(1.0), [16])),
        64,
        constants=4,
    ),
    # -- reshapes of views
    Case(
        "reshape of a transpose",
        lambda b: b.neg(b.reshape(b.transpose(full(b, [2, 8]), [1, 0]), [16])),
        128,
        192,
        shares={2: 1},
        owns=(3,),
    ),
    Case(
        "reshape of rows",
        lambda b: b.neg(b.reshape(b.slice(full(b, [4, 16]), [1, 0], [2, 16]), [32])),
        384,
        384,
        shares={2: 1, 3: 1},
        views={3: (64, (4,))},
    ),
    Case(
        "reshape of columns",
        lambda b: b.neg(b.reshape(b.slice(full(b, [4, 16]), [0, 0], [4, 8]), [32])),
        384,
        512,
        owns=(3,),
        offsets={1: 0, 3: 256, 4: 0},
    ),
    Case(
        "reshape of one column element",
        lambda b: b.neg(b.reshape(b.slice(full(b, [4, 16]), [2, 3], [1, 1]), [])),
        320,
        shares={3: 1},
        views={3: (140, ())},
    ),
    Case(
        "reshape of a broadcast",
        lambda b: b.neg(b.reshape(b.broadcast_to(unit(b), [4, 16]), [64])),
        512,
        owns=(2,),
    ),
    Case(
        "reshape of a unit transpose",
        lambda b: b.neg(b.reshape(b.transpose(full(b, [1, 16]), [1, 0]), [4, 4])),
        128,
        shares={3: 1},
    ),
    Case(
        "reshape of an empty transpose",
        lambda b: b.reshape(b.transpose(full(b, [0, 3]), [1, 0]), [0]),
        0,
        shares={3: 1},
    ),
    Case(
        "reshape of rows returned",
        lambda b: b.reshape(b.slice(full(b, [4, 16]), [1, 0], [1, 16]), [16]),
        320,
        owns=(3,),
    ),
    Case(
        "stop_gradient of a view",
        lambda b: b.neg(b.stop_gradient(b.transpose(full(b, [2, 8]), [1, 0]))),
        128,
        shares={3: 1},
        views={3: (0, (4, 32))},
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
    # -- tuples
    Case(
        "tuple returned",
        lambda b: b.top_k(unit(b), k=16, axis=0, largest=True, indices_dtype="si32"),
        128,
        128,
    ),
    Case("one element used", one_element_used, 128, 320, offsets={1: 0, 2: 64, 3: 0, 4: 64}),
    Case(
        "element returned",
        lambda b: b.top_k(unit(b), k=16, axis=0, largest=True, indices_dtype="si64")[1],
        192,
        192,
    ),
    Case(
        "element of a parameter",
        lambda b: b.neg(b.param_of(TupleType((tensor("f32", [4]), tensor("f64", [9]))))[1]),
        128,
        128,
    ),
    Case(
        "view of an element",
        lambda b: b.neg(
            b.reshape(b.param_of(TupleType((tensor("f32", [4]), tensor("f32", [4]))))[1], [2, 2])
        ),
        64,
        64,
        views={1: (0, (8, 4))},
    ),
    Case(
        "element after a nested tuple",
        lambda b: b.neg(b.slice(b.param_of(NESTED)[1], [2], [4])),
        64,
        64,
        views={1: (8, (4,))},
    ),
    Case(
        "nested element as an argument",
        lambda b: b.cond(
            b.literal(True),
            lambda r, p: r.neg(p[1]),
            lambda r, p: r.abs(p[1]),
            b.param_of(NESTED)[0],
        ),
        128,
        128,
        constants=1,
        scratch=(64,),
    ),
    # -- custom calls
    Case(
        "custom call of rows",
        lambda b: b.custom_call(
            "t.v1", b.slice(full(b, [4, 16]), [1, 0], [1, 16]), output=tensor("f32", [16])
        ),
        320,
        shares={2: 1},
    ),
    Case(
        "custom call of a transpose",
        lambda b: b.custom_call(
            "t.v1", b.transpose(full(b, [2, 8]), [1, 0]), output=tensor("f32", [16])
        ),
        128,
        192,
        owns=(2,),
    ),
    Case(
        "custom call with a tuple",
        lambda b: b.custom_call(
            "t.v1", unit(b), output=TupleType((tensor("f32", [16]), tensor("f32", [32])))
        ),
        192,
    ),
    # -- regions
    Case("cond", cond, 64 + 128, 64 + 128, scratch=(128,)),
    Case(
        "cond of views",
        cond_of_views,
        128 + 64 + 128 + 128,
        owns=(2, 4),
        shares={3: 1},
        views={3: (32, (32, 4))},
        scratch=(128,),
    ),
    Case("loop that passes through", pass_through, 128 + 64, 128 + 64, scratch=(64,)),
    Case("loop that swaps", swap, 128 + 128, 128 + 128, scratch=(128,)),
    Case("scan", scan, 64 + 192 + 128, scratch=(128,)),
    Case("scan of the old carry", scan_of_old_carry, 64 + 192 + 64, scratch=(64,)),
    Case("nested", nested, 64 + 64 + 64 + (64 + 128), scratch=(192,)),
    Case(
        "two conds",
        two_conds,
        64 + 64 + 128,
        64 * 2 + 128 * 2,
        offsets={2: 0, 3: 64},
        scratch=(128, 128),
    ),
]
