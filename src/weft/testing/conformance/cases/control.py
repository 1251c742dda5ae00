"""Control flow with values of every dtype: branches, loops, scans, and nests of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from weft.foundation.dtypes import F32, I1, SI32, DType
from weft.ptir.builder import BodyBuilder, Builder, Value
from weft.testing.conformance.case import Case, Trial, exactly
from weft.testing.conformance.cases.common import Array, Dims, Shape, case, defined, program, trial
from weft.testing.conformance.data import counts, sample


def cases() -> Iterator[Case]:
    """cond, while and scan on every dtype; then what is particular to each."""
    for dtype in defined("cond"):
        for answer in (False, True):
            for name, shape in _SHAPES.items():
                make = partial(_cond, dtype, answer, shape)
                yield case("cond", dtype, str(answer).lower(), name, trial=make)
        yield case("cond", dtype, "several", trial=partial(_cond_several, dtype))
        yield case("cond", dtype, "constant", trial=partial(_cond_constant, dtype))
        yield case("cond", dtype, "dynamic", trial=partial(_cond, dtype, True, (5,), dynamic=True))
        for steps in (0, 1, 4):
            yield case("while", dtype, f"steps={steps}", trial=partial(_while, dtype, steps))
        yield case("while", dtype, "dynamic", trial=partial(_while, dtype, 3, dynamic=True))
        for length in (0, 1, 5):
            yield case("scan", dtype, f"length={length}", trial=partial(_scan, dtype, length))
        yield case("scan", dtype, "stack", trial=partial(_scan_stack, dtype))
        yield case("scan", dtype, "last", trial=partial(_scan_last, dtype))
        yield case("scan", dtype, "dynamic", trial=partial(_scan, dtype, 5, dynamic=True))
    for name, make_trial in _PARTICULAR.items():
        row, _, rest = name.partition("/")
        dtype = F32 if rest == "fibonacci" else SI32
        yield case(row, dtype, rest, trial=make_trial)


_SHAPES: dict[str, Shape] = {"rank0": (), "odd": (3, 5), "empty": (0, 2)}


# -- cond ----------------------------------------------------------------------------------------


def _cond(dtype: DType, answer: bool, shape: Shape, dynamic: bool = False) -> Trial:
    pred, x, y = np.array(answer), sample(dtype, shape, "x"), sample(dtype, shape, "y")

    def body(b: Builder, p: Value, left: Value, right: Value) -> Value:
        return b.cond(
            p,
            lambda r, one, two: r.stop_gradient(one),
            lambda r, one, two: r.stop_gradient(two),
            left,
            right,
        )

    dims = [[], ["?N"], ["?N"]] if dynamic else None
    inputs = [pred, x, y]
    return trial(program(inputs, body, dims=dims), inputs, exactly(x if answer else y))


def _cond_several(dtype: DType) -> Trial:
    """Two results, which one branch exchanges: a tuple, flattened when it is returned."""
    pred, x, y = np.array(False), sample(dtype, (2, 3), "x"), sample(dtype, (4,), "y")

    def body(b: Builder, p: Value, left: Value, right: Value) -> Value:
        def keep(r: BodyBuilder, one: Value, two: Value) -> list[Value]:
            return [r.stop_gradient(one), r.stop_gradient(two)]

        def turn(r: BodyBuilder, one: Value, two: Value) -> list[Value]:
            return [r.transpose(r.transpose(one, [1, 0]), [1, 0]), r.concat([two], 0)]

        return b.cond(p, keep, turn, left, right)

    inputs = [pred, x, y]
    return trial(program(inputs, body), inputs, exactly(x), exactly(y))


def _cond_constant(dtype: DType) -> Trial:
    """Branches without arguments."""
    pred, x, y = np.array(True), sample(dtype, (3,), "x"), sample(dtype, (3,), "y")

    def body(b: Builder, p: Value) -> Value:
        return b.cond(p, lambda r: r.constant(x), lambda r: r.constant(y))

    return trial(program([pred], body), [pred], exactly(x))


# -- while ---------------------------------------------------------------------------------------


def _while(dtype: DType, steps: int, dynamic: bool = False) -> Trial:
    """Counts down while two values change places at each step."""
    x, y = sample(dtype, (3,), "x"), sample(dtype, (3,), "y")
    count = np.array(steps, np.int32)

    def cond(r: BodyBuilder, n: Value, one: Value, two: Value) -> list[Value]:
        return [n > 0, r.stop_gradient(n), r.stop_gradient(one), r.stop_gradient(two)]

    def step(r: BodyBuilder, n: Value, one: Value, two: Value) -> list[Value]:
        return [n - 1, r.stop_gradient(two), r.stop_gradient(one)]

    def body(b: Builder, n: Value, left: Value, right: Value) -> Value:
        return b.while_(cond, step, n, left, right)

    dims = [[], ["?N"], ["?N"]] if dynamic else None
    last = (y, x) if steps % 2 else (x, y)
    inputs = [count, x, y]
    want = [exactly(np.array(0, np.int32)), *(exactly(a) for a in last)]
    return trial(program(inputs, body, dims=dims), inputs, *want)


# -- scan ----------------------------------------------------------------------------------------


def _scan(dtype: DType, length: int, dynamic: bool = False) -> Trial:
    """The carry is the last slice, the output the one before it."""
    start, x = sample(dtype, (2,), "start"), sample(dtype, (length, 2), "x")

    def step(r: BodyBuilder, carry: Value, row: Value) -> list[Value]:
        return [r.stop_gradient(row), r.stop_gradient(carry)]

    def body(b: Builder, first: Value, rows: Value) -> Value:
        return b.scan(step, [first], [rows])

    rows = [start, *x]
    outputs = np.array(rows[:-1], dtype.numpy).reshape(length, 2)
    dims: list[Dims] | None = [[2], ["?T", 2]] if dynamic else None
    want = [exactly(rows[-1]), exactly(outputs)]
    return trial(program([start, x], body, dims=dims), [start, x], *want)


def _scan_stack(dtype: DType) -> Trial:
    """No carries, two inputs, one bare output."""
    x, y = sample(dtype, (4, 3), "x"), sample(dtype, (4, 2), "y")

    def body(b: Builder, left: Value, right: Value) -> Value:
        return b.scan(lambda r, one, two: r.concat([two, one], 0), [], [left, right])

    want = np.concatenate([y, x], axis=1)
    return trial(program([x, y], body), [x, y], exactly(want))


def _scan_last(dtype: DType) -> Trial:
    """One carry and no outputs: a bare result. The choice at each step is an input as well."""
    start, x, choose = sample(dtype, (), "s"), sample(dtype, (6,), "x"), sample(I1, (6,), "c")

    def body(b: Builder, first: Value, rows: Value, flags: Value) -> Value:
        def step(r: BodyBuilder, carry: Value, row: Value, flag: Value) -> Value:
            return r.select(flag, row, carry)

        return b.scan(step, [first], [rows, flags])

    last = start
    for value, flag in zip(x, choose, strict=True):
        last = np.asarray(value) if flag else last
    inputs = [start, x, choose]
    return trial(program(inputs, body), inputs, exactly(last))


# -- particular programs -------------------------------------------------------------------------


def _collatz() -> Trial:
    """A loop whose length depends on the data, with a branch inside."""
    start = np.array(27, np.int32)

    def body(b: Builder, n: Value) -> Value:
        def cond(r: BodyBuilder, value: Value, count: Value) -> list[Value]:
            return [value > 1, value, count]

        def step(r: BodyBuilder, value: Value, count: Value) -> list[Value]:
            half = value / 2
            odd = r.compare(half * 2, value, "not_equal")
            new = r.cond(odd, lambda s, v: v * 3 + 1, lambda s, v: v / 2, value)
            return [new, count + 1]

        return b.while_(cond, step, n, b.constant(0, "si32"))

    want = [exactly(np.array(1, np.int32)), exactly(np.array(111, np.int32))]
    return trial(program([start], body), [start], *want)


def _carries_of_cond() -> Trial:
    """What the body receives, and the loop returns, is what cond returned."""
    start = np.array(10, np.int32)

    def body(b: Builder, n: Value) -> Value:
        return b.while_(lambda r, v: [v > 3, v - 1], lambda r, v: r.stop_gradient(v), n)

    # 10 -> cond: 9, true ... cond sees 3, answers false and 2.
    return trial(program([start], body), [start], exactly(np.array(2, np.int32)))


def _fibonacci() -> Trial:
    """A scan with two carries, of which one is stacked as well."""
    steps = np.zeros((10, 1), np.float32)

    def body(b: Builder, rows: Value) -> Value:
        def step(r: BodyBuilder, a: Value, c: Value, _: Value) -> list[Value]:
            return [r.stop_gradient(c), a + c, r.stop_gradient(a)]

        zero, one = b.constant(0.0, "f32"), b.constant(1.0, "f32")
        return b.scan(step, [zero, one], [rows])

    numbers = [0.0, 1.0]
    for _ in range(10):
        numbers.append(numbers[-1] + numbers[-2])
    want = [np.float32(numbers[10]), np.float32(numbers[11]), np.array(numbers[:10], np.float32)]
    return trial(program([steps], body), [steps], *(exactly(np.asarray(w)) for w in want))


def _nested_scans() -> Trial:
    """A scan over the rows of a matrix whose body scans over the row."""
    x = counts(SI32, (4, 5), "nested")

    def inner(r: BodyBuilder, total: Value, value: Value) -> list[Value]:
        return [total + value, total + value]

    def outer(r: BodyBuilder, total: Value, row: Value) -> list[Value]:
        last, running = r.scan(inner, [total], [row])
        return [r.stop_gradient(last), r.stop_gradient(running)]

    def body(b: Builder, rows: Value) -> Value:
        return b.scan(outer, [b.constant(0, "si32")], [rows])

    running = np.cumsum(x.reshape(-1).astype(np.int64)).astype(np.int32)
    want: list[Array] = [np.asarray(running[-1]), running.reshape(4, 5)]
    return trial(program([x], body), [x], *(exactly(w) for w in want))


def _same_region_twice() -> Trial:
    """One region for both branches of a cond is allowed, and is run either way."""
    pred, x = np.array(False), sample(SI32, (3,), "twice")

    def body(b: Builder, p: Value, v: Value) -> Value:
        double = b.region([v.type], lambda r, a: a + a)
        return b.emit("cond", p, v, true_region=double, false_region=double)

    want = (x.astype(np.int64) * 2).astype(np.int32)
    return trial(program([pred, x], body), [pred, x], exactly(want))


_PARTICULAR = {
    "while/collatz": _collatz,
    "while/carries-of-cond": _carries_of_cond,
    "scan/fibonacci": _fibonacci,
    "scan/nested": _nested_scans,
    "cond/one-region": _same_region_twice,
}
