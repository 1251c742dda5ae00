"""Values that lie in the buffers of others: buffer plans of programs with views."""

from __future__ import annotations

from typing import Any

from tests.unit.driver.buffers.case import Case, chain, full, unit


def slice_keeps_root(b: Any) -> Any:
    """One row of a large value is needed to the end: all of it stays."""
    big = b.neg(b.param("f32", [4, 16]))
    row = b.slice(big, [1, 0], [1, 16])
    return b.add(chain(b, b.neg(row), 3), row)


VIEWS = [
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
]
