"""Buffer plans of programs with tuples, custom calls and regions."""

from __future__ import annotations

from typing import Any

from tests.unit.driver.buffers.case import Case, chain, full, unit
from weft.ptir import Value, tensor
from weft.ptir.types import TupleType


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


NESTED = TupleType((TupleType((tensor("f32", [4]), tensor("f64", [2]))), tensor("f32", [8])))


REGIONS = [
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
            "t.kernel.v1", b.slice(full(b, [4, 16]), [1, 0], [1, 16]), output=tensor("f32", [16])
        ),
        320,
        shares={2: 1},
    ),
    Case(
        "custom call of a transpose",
        lambda b: b.custom_call(
            "t.kernel.v1", b.transpose(full(b, [2, 8]), [1, 0]), output=tensor("f32", [16])
        ),
        128,
        192,
        owns=(2,),
    ),
    Case(
        "custom call with a tuple",
        lambda b: b.custom_call(
            "t.kernel.v1", unit(b), output=TupleType((tensor("f32", [16]), tensor("f32", [32])))
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
