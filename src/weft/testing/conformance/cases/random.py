"""Random tensors: the bits of every seed, stream and execution."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np

from weft.foundation.dtypes import I1, SI64, DType
from weft.ptir.builder import BodyBuilder, Builder, Value
from weft.testing.conformance.case import Case, Trial, Wanted, exactly
from weft.testing.conformance.cases.common import (
    Array,
    Dims,
    Shape,
    apply,
    case,
    defined,
    program,
    trial,
)
from weft.testing.conformance.data import sample
from weft.testing.conformance.oracles import philox
from weft.testing.conformance.oracles.rounding import nearest
from weft.testing.conformance.tolerance import Ulps, ulp

SHAPES: dict[str, Shape] = {
    "rank0": (),
    "line": (9,),
    "odd": (3, 5, 7),
    "empty": (2, 0),
    "large": (37, 61),
}
SEEDS = (0, 1, 2**32, 2**64 - 1, 0x299F31D0A4093822)
OFFSETS = (0, 1, 2**32, 2**64 - 1)
ROWS = ("rng_uniform", "rng_normal")
OF_STATE = {
    "philox_bits": "philox_bits",
    "philox_uniform": "rng_uniform",
    "philox_normal": "rng_normal",
}
"""Ops that make the numbers of a state, each with the op that makes those of a stream, if any."""


def cases() -> Iterator[Case]:
    """Both distributions: shapes, seeds, streams, executions in a loop; states."""
    for row in ROWS:
        for dtype in defined(row):
            for name, shape in SHAPES.items():
                yield case(row, dtype, name, trial=partial(_random_trial, row, dtype, shape, 7))
            for seed in SEEDS:
                make = partial(_random_trial, row, dtype, (11,), seed)
                yield case(row, dtype, f"seed={seed}", trial=make)
            yield case(row, dtype, "dynamic", trial=partial(_dynamic, row, dtype))
            yield case(row, dtype, "streams", trial=partial(_streams, row, dtype))
            yield case(row, dtype, "stream=9", trial=partial(_make_numbered, row, dtype))
            yield case(row, dtype, "scan", trial=partial(_make_scanned, row, dtype))
    for row in OF_STATE:
        for dtype in defined(row):
            yield from _states(row, dtype)
    for seed in SEEDS:
        yield case("rng_state", SI64, f"seed={seed}", trial=partial(_state, seed))
    yield case("rng_state", SI64, "nothing-drawn", trial=partial(_state, 5, stream=9))
    yield case("rng_state", SI64, "dynamic-scan", trial=_scanned_state)


def _states(row: str, dtype: DType) -> Iterator[Case]:
    for name, shape in SHAPES.items():
        yield case(row, dtype, name, trial=partial(_of_state, row, dtype, shape, 7, 3))
    for seed in SEEDS:
        make = partial(_of_state, row, dtype, (11,), seed, 2)
        yield case(row, dtype, f"seed={seed}", trial=make)
    for offset in OFFSETS:
        make = partial(_of_state, row, dtype, (11,), 4, offset)
        yield case(row, dtype, f"offset={offset}", trial=make)
    make = partial(_of_state, row, dtype, (5, 3), 4, 1, dims=["?B", 3])
    yield case(row, dtype, "dynamic", trial=make)
    for name, lead in (("states", (3,)), ("states-of-states", (2, 3))):
        yield case(row, dtype, name, trial=partial(_of_states, row, dtype, lead))


def wanted(
    row: str, shape: Shape, dtype: DType, seed: int = 0, stream: int = 0, execution: int = 0
) -> Wanted:
    """What a random instruction must give."""
    if row == "philox_bits":
        return exactly(philox.bits(shape, dtype, seed, stream, execution))
    if row == "rng_uniform":
        return exactly(nearest(philox.uniform(shape, dtype, seed, stream, execution), dtype))
    exact, radius = philox.normal(shape, dtype, seed, stream, execution)
    # Near a zero of sine and cosine the angle, a number in f64, sets the limit.
    room = radius * 2.0**-49 / ulp(exact, dtype)
    return Wanted(exact, dtype, Ulps(4.0 + room, zeros=False))


def _random_trial(row: str, dtype: DType, shape: Shape, seed: int) -> Trial:
    build = apply(row, [], shape=list(shape), dtype=dtype)
    return trial(build, [], wanted(row, shape, dtype, seed), seed=seed)


def _make_numbered(row: str, dtype: DType) -> Trial:
    build = apply(row, [], shape=[6], dtype=dtype, stream=9)
    return trial(build, [], wanted(row, (6,), dtype, 3, stream=9), seed=3)


def _dynamic(row: str, dtype: DType) -> Trial:
    x = sample(I1, (5,), row)

    def body(b: Builder, _: Value) -> Value:
        return b.emit(row, shape=["?B", 3], dtype=dtype)

    build = program([x], body, dims=[["?B"]])
    return trial(build, [x], wanted(row, (5, 3), dtype, 2), seed=2)


def _streams(row: str, dtype: DType) -> Trial:
    """Each random instruction of a program draws from a stream of its own, its ordinal."""

    def body(b: Builder) -> list[Value]:
        return [b.emit(row, shape=[5], dtype=dtype) for _ in range(3)]

    want = [wanted(row, (5,), dtype, 5, stream=i) for i in range(3)]
    return trial(program([], body), [], *want, seed=5)


def _make_scanned(row: str, dtype: DType) -> Trial:
    """In a loop each step draws anew: the last word of the counter is the number of the step."""
    x = sample(I1, (3,), row)

    def body(b: Builder, steps: Value) -> Value:
        def step(inner: BodyBuilder, _: Value) -> Value:
            return inner.emit(row, shape=[5], dtype=dtype)

        return b.scan(step, [], [steps])

    each = [wanted(row, (5,), dtype, 8, execution=i) for i in range(3)]
    exact = np.stack([want.exact for want in each])
    rule = each[0].rule
    if isinstance(rule, Ulps):
        rule = Ulps(np.stack([w.rule.count for w in each if isinstance(w.rule, Ulps)]), zeros=False)
    return trial(program([x], body), [x], Wanted(exact, dtype, rule), seed=8)


def _state_words(seed: int, offset: int) -> Array:
    return np.array([seed, offset], np.uint64).view(np.int64)


def _of_state(
    row: str, dtype: DType, shape: Shape, seed: int, offset: int, dims: Dims | None = None
) -> Trial:
    state, x = _state_words(seed, offset), sample(I1, shape, row)

    def body(b: Builder, words: Value, _: Value) -> Value:
        return b.emit(row, words, shape=dims or shape, dtype=dtype)

    want = wanted(OF_STATE[row], shape, dtype, seed, offset % 2**32, offset // 2**32)
    return trial(program([state, x], body, dims=[[2], dims or shape]), [state, x], want)


def _of_states(row: str, dtype: DType, lead: Shape) -> Trial:
    """An array of states: each makes the numbers that it makes alone."""
    pairs = [(seed, offset) for seed in SEEDS for offset in OFFSETS][: math.prod(lead)]
    states = np.stack([_state_words(*pair) for pair in pairs]).reshape(*lead, 2)

    def body(b: Builder, words: Value) -> Value:
        return b.emit(row, words, shape=[7], dtype=dtype)

    alone = [wanted(OF_STATE[row], (7,), dtype, s, o % 2**32, o // 2**32) for s, o in pairs]
    exact = np.stack([want.exact for want in alone]).reshape(*lead, 7)
    rule = alone[0].rule
    if isinstance(rule, Ulps):
        counts = np.stack([w.rule.count for w in alone if isinstance(w.rule, Ulps)])
        rule = Ulps(counts.reshape(*lead, 7), zeros=False)
    return trial(program([states], body), [states], Wanted(exact, dtype, rule))


def _state(seed: int, stream: int | None = None) -> Trial:
    build = apply("rng_state", [], stream=stream)
    return trial(build, [], exactly(_state_words(seed, stream or 0)), seed=seed)


def _scanned_state() -> Trial:
    """Each step of a loop has another state; the number of the step is in the upper half."""
    x = sample(I1, (3,), "rng_state")

    def body(b: Builder, steps: Value) -> Value:
        return b.scan(lambda inner, _: inner.emit("rng_state"), [], [steps])

    want = np.stack([_state_words(8, step << 32) for step in range(3)])
    return trial(program([x], body, dims=[["?T"]]), [x], exactly(want), seed=8)
