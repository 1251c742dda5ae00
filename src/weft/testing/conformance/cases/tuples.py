"""Tuples: returned whole, taken apart, and carried through control flow."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from weft.foundation.dtypes import DType
from weft.ptir.builder import BodyBuilder, Builder, Value
from weft.testing.conformance.case import Case, Trial, exactly
from weft.testing.conformance.cases.common import EMPTY, ODD, case, defined, program, trial
from weft.testing.conformance.data import sample

SHAPES = {"one": (ODD,), "two": (ODD, (4,)), "three": ((), (2, 3), (1,)), "empty": (EMPTY, (2,))}


def cases() -> Iterator[Case]:
    """Every dtype, one to three elements, dynamic dims, and a branch that hands a tuple on."""
    for dtype in defined("make_tuple"):
        for name, shapes in SHAPES.items():
            yield case("make_tuple", dtype, name, trial=partial(_make_tuple_trial, dtype, shapes))
        yield case("make_tuple", dtype, "dynamic", trial=partial(_make_swapped, dtype))
        yield case("make_tuple", dtype, "cond", trial=partial(_through_cond, dtype))


def _make_tuple_trial(dtype: DType, shapes: tuple[tuple[int, ...], ...]) -> Trial:
    inputs = [sample(dtype, shape, position) for position, shape in enumerate(shapes)]
    build = program(inputs, lambda b, *values: b.emit("make_tuple", *values))
    return trial(build, inputs, *map(exactly, inputs))


def _make_swapped(dtype: DType) -> Trial:
    x, y = sample(dtype, (3, 5), "x"), sample(dtype, (4,), "y")

    def body(b: Builder, first: Value, second: Value) -> list[Value]:
        both = b.emit("make_tuple", first, second)
        return [both[1], both[0]]

    build = program([x, y], body, dims=[["?A", "?B"], ["?C"]])
    return trial(build, [x, y], exactly(y), exactly(x))


def _through_cond(dtype: DType) -> Trial:
    x, y, choose = sample(dtype, (3,), "x"), sample(dtype, (2,), "y"), np.array(True)

    def body(b: Builder, flag: Value, first: Value, second: Value) -> Value:
        def branch(inner: BodyBuilder, pair: Value) -> list[Value]:
            return [pair[1], pair[0]]

        return b.cond(flag, branch, branch, b.emit("make_tuple", first, second))

    inputs = [choose, x, y]
    return trial(program(inputs, body), inputs, exactly(y), exactly(x))
