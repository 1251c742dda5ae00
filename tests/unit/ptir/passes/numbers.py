"""Programs that put a vector together from numbers, each made by itself."""

from __future__ import annotations

from collections.abc import Callable

from tests.unit.ptir.passes.programs import Case
from weft.foundation.dtypes import DType
from weft.ptir import Value


def numbers_of(
    count: int, number: Callable[[Case, Value, int], Value]
) -> Callable[[Case, DType], Case]:
    """Numbers of a vector, each made by itself, side by side."""

    def make(c: Case, dtype: DType) -> Case:
        x = c.param(dtype, [count])
        made = [number(c, c.b.slice(x, [n], [1]), n) for n in range(count)]
        return c.done(c.b.concat([c.b.reshape(one, [1]) for one in made], axis=0))

    return make


def scaled(c: Case, x: Value, n: int) -> Value:
    """A number times 0, 1, 2, ...; what is left of the second one is the number."""
    scaled = c.b.mul(x, c.b.literal([float(n)], x.dtype)) if n != 1 else x
    return c.b.reshape(c.b.add(c.b.exp(scaled), c.b.literal([-0.0 + n], x.dtype)), [])


def turned(c: Case, x: Value, n: int) -> Value:
    return (c.b.exp if n % 2 else c.b.tanh)(x)


def sums_of_unknown(c: Case, dtype: DType) -> Case:
    pairs = [(c.param(dtype, [1]), c.param(dtype, [1])) for _ in range(9)]
    return c.done(c.b.concat([c.b.exp(c.b.add(x, y)) for x, y in pairs], axis=0))


def pairs_of(count: int) -> Callable[[Case, DType], Case]:
    """A function of every element of a vector and every other one, each made by itself."""

    def make(c: Case, dtype: DType) -> Case:
        x = c.param(dtype, [count])
        numbers = [c.b.slice(x, [n], [1]) for n in range(count)]
        return c.done(c.b.concat([c.b.exp(c.b.sub(a, b)) for a in numbers for b in numbers], 0))

    return make
