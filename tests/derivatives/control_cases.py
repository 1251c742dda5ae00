"""Control flow: branches, loops, loops in loops, and what bodies keep from one way to the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.derivatives.case import case, complex_normal, normal, whole


def _choice(b: Any, x: Any, y: Any) -> Any:
    pred = b.compare(b.reduce_sum(x, [0]), 0.0, "greater")
    return b.cond(pred, lambda r, x, y: r.sin(x) * y, lambda r, x, y: r.exp(y), x, y)


def _torch_choice(t: Any, x: Any, y: Any) -> Any:
    return t.sin(x) * y if x.sum() > 0 else t.exp(y)


case("cond", _choice, np.array([1.0, 2.0]), normal(2), label="true", torch=_torch_choice)
case("cond", _choice, np.array([-1.0, -2.0]), normal(2), label="false", torch=_torch_choice)


def _two_results(b: Any, p: Any, x: Any, w: Any) -> Any:
    def on_true(r: Any, x: Any, w: Any) -> Any:
        h = r.tanh(r.matmul(x, w))
        return r.matmul(h, h), r.reduce_sum(h, [0])

    def on_false(r: Any, x: Any, w: Any) -> Any:
        return x * x, r.reduce_sum(w, [1])

    return list(b.cond(p, on_true, on_false, x, w))


def _torch_two_results(t: Any, p: Any, x: Any, w: Any) -> Any:
    h = t.tanh(x @ w)
    return (h @ h, h.sum(0)) if p else (x * x, w.sum(1))


for pred in (True, False):
    case("cond", _two_results, np.array(pred), normal(2, 2), normal(2, 2, seed=1),
         label=f"kept-{pred}", torch=_torch_two_results)  # fmt: skip


def _nested(b: Any, p: Any, q: Any, x: Any) -> Any:
    def inner(r: Any, q: Any, x: Any) -> Any:
        return r.cond(q, lambda s, x: s.exp(x) * x, lambda s, x: s.sin(x), x) * x

    return b.cond(p, inner, lambda r, q, x: x * 2.0, q, x)


case("cond", _nested, np.array(True), np.array(False), normal(3), label="nested",
     torch=lambda t, p, q, x: t.sin(x) * x)  # fmt: skip


def _sums(b: Any, c: Any, xs: Any) -> Any:
    return list(b.scan(lambda r, c, x: (r.sin(c) * x + c, c * x), [c], [xs]))


def _torch_sums(t: Any, c: Any, xs: Any) -> Any:
    outputs = []
    for x in xs:
        outputs.append(c * x)
        c = t.sin(c) * x + c
    return c, t.stack(outputs) if outputs else xs * 1.0


def _torch_carry(t: Any, c: Any, xs: Any) -> Any:
    for x in xs:
        c = t.sin(c) * x
    return c


case("scan", _sums, normal(2), normal(4, 2), torch=_torch_sums)
case("scan", _sums, normal(2), normal(1, 2), label="one-step", torch=_torch_sums)
case("scan", _sums, normal(2), normal(0, 2), label="no-steps", torch=_torch_sums)
case("scan", lambda b, c, xs: b.scan(lambda r, c, x: r.sin(c) * x, [c], [xs]), normal(2),
     normal(4, 2), label="carry-only", torch=_torch_carry)  # fmt: skip
case("scan", lambda b, xs: b.scan(lambda r, x: r.sin(x) * x, [], [xs]), normal(4, 2),
     label="outputs-only", torch=lambda t, xs: t.sin(xs) * xs)  # fmt: skip
case("scan", lambda b, c, xs: b.scan(lambda r, c, x: (c * x, r.exp(x)), [c], [xs])[1], normal(2),
     normal(3, 2), label="one-result-used", wrt=[1])  # fmt: skip


def _recurrent(b: Any, h: Any, w: Any, u: Any, xs: Any) -> Any:
    """A recurrent network: the weights are carries that never change."""

    def step(r: Any, h: Any, w: Any, u: Any, x: Any) -> Any:
        new = r.tanh(r.matmul(h, w) + r.matmul(x, u))
        return new, w, u, new * new

    found = b.scan(step, [h, w, u], [xs])
    return found[0], found[3]


def _torch_recurrent(t: Any, h: Any, w: Any, u: Any, xs: Any) -> Any:
    outputs = []
    for x in xs:
        h = t.tanh(h @ w + x @ u)
        outputs.append(h * h)
    return h, t.stack(outputs)


case("scan", _recurrent, normal(2, 3), normal(3, 3, seed=1), normal(2, 3, seed=2), normal(4, 2, 2),
     label="recurrent", torch=_torch_recurrent)  # fmt: skip


def _shared(b: Any, h: Any, w: Any, c: Any, xs: Any) -> Any:
    """A weight that a step uses twice, once turned, and an offset; both are results as well."""

    def step(r: Any, h: Any, w: Any, c: Any, x: Any) -> Any:
        turned = r.matmul(r.tanh(r.matmul(h, w)), r.transpose(w, [1, 0]))
        return turned + r.broadcast_to(c, [2, 3]) + x, w, c

    h, w, c = b.scan(step, [h, w, c], [xs])
    return h, w * w, c


def _torch_shared(t: Any, h: Any, w: Any, c: Any, xs: Any) -> Any:
    for x in xs:
        h = t.tanh(h @ w) @ w.T + c + x
    return h, w * w, c


case("scan", _shared, normal(2, 3), normal(3, 3, seed=1), normal(1, 3, seed=2), normal(4, 2, 3),
     label="shared", torch=_torch_shared)  # fmt: skip


def _counting(b: Any, c: Any, table: Any, ids: Any) -> Any:
    """Integers among carries, inputs and outputs."""

    def step(r: Any, n: Any, c: Any, table: Any, i: Any) -> Any:
        row = r.take(table, i)
        grown = c * row * r.broadcast_to(r.cast(n, "f64"), [3])
        return n + 1, grown, table, r.compare(n, 1, "greater"), row

    found = b.scan(step, [b.literal(1, "si32"), c, table], [ids])
    return found[1], found[4]


def _torch_counting(t: Any, c: Any, table: Any, ids: Any) -> Any:
    for n, i in enumerate(ids, 1):
        c = c * table[i] * n
    return c, table[ids]


case("scan", _counting, normal(3), normal(5, 3, seed=1), whole(5, 4), label="integers",
     torch=_torch_counting)  # fmt: skip


def _nested_loops(b: Any, c: Any, xs: Any) -> Any:
    def inner(r: Any, c: Any, x: Any) -> Any:
        return r.sin(c) + x * c

    def outer(r: Any, c: Any, row: Any) -> Any:
        return r.scan(inner, [c], [row]), c * c

    return list(b.scan(outer, [c], [xs]))


def _torch_nested_loops(t: Any, c: Any, xs: Any) -> Any:
    squares = []
    for row in xs:
        squares.append(c * c)
        for x in row:
            c = t.sin(c) + x * c
    return c, t.stack(squares)


case("scan", _nested_loops, normal(), normal(3, 2), label="nested", torch=_torch_nested_loops)


def _branching_loop(b: Any, c: Any, xs: Any) -> Any:
    def step(r: Any, c: Any, x: Any) -> Any:
        up = r.compare(x, 0.0, "greater")
        return r.cond(up, lambda s, c, x: s.exp(c) * x, lambda s, c, x: c - x * x, c, x)

    return b.scan(step, [c], [xs])


def _torch_branching_loop(t: Any, c: Any, xs: Any) -> Any:
    for x in xs:
        c = t.exp(c) * x if x > 0 else c - x * x
    return c


case("scan", _branching_loop, np.array(0.3), np.array([0.5, -0.4, 0.3, -0.8]), label="branching",
     torch=_torch_branching_loop)  # fmt: skip


def _swap(b: Any, x: Any, y: Any, z: Any, steps: Any) -> Any:
    """Carries that reach each other only over several steps."""
    return b.scan(lambda r, x, y, z, s: (y, z, x * s), [x, y, z], [steps])[0]


case("scan", _swap, normal(2), normal(2, seed=1), normal(2, seed=2), normal(5, 2), label="swapped")
case("scan", _sums, complex_normal(2), complex_normal(3, 2), label="complex", torch=_torch_sums)


def _noisy(b: Any, c: Any, xs: Any) -> Any:
    def step(r: Any, c: Any, x: Any) -> Any:
        noise = r.rng_uniform(shape=[2], dtype="f64")
        return r.sin(c * noise) + x * noise

    return b.scan(step, [c], [xs])


case("scan", _noisy, normal(2), normal(4, 2), label="random")
