"""Functions that programs spell out are known by their names in every order of their operands, and
nothing else is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy.special import erf

from tests.support.cases import each
from weft.foundation.dtypes import BF16, DType, as_dtype
from weft.foundation.scalar import Fn
from weft.ptir import Builder, Program
from weft.tiny.from_ptir import lower_program
from weft.tiny.interp import run
from weft.tiny.ir import Binary, Graph, Unary, Value, Where, operands

SIZE = 40


@dataclass(frozen=True)
class Spelling:
    """How a gelu is written: which operand stands first, and its constants."""

    outer: bool = False
    halved: bool = False
    shifted: bool = False
    scaled: bool = False
    divides: bool = False
    half: float = 0.5
    one: float = 1.0
    root: float | None = None
    other_x: bool = False
    keeps: bool = False
    """Whether the erf is a result too."""


def gelu_of(spelling: Spelling, dtype: str = "f32") -> Program:
    b = Builder()
    x = b.param(dtype, [SIZE])

    def applied(fn: Callable[[Any, Any], Any], lhs: Any, rhs: Any, turned: bool) -> Any:
        return fn(rhs, lhs) if turned else fn(lhs, rhs)

    within = -x if spelling.other_x else x
    root = spelling.root or (2.0**0.5 if spelling.divides else 0.5**0.5)
    inner = within / root if spelling.divides else applied(_mul, within, root, spelling.scaled)
    bent = b.erf(inner)
    bell = applied(_add, bent, spelling.one, spelling.shifted)
    half = applied(_mul, x, spelling.half, spelling.halved)
    result = applied(_mul, half, bell, spelling.outer)
    return b.build(*([result, bent] if spelling.keeps else [result]))


def _mul(x: Any, y: Any) -> Any:
    return x * y


def _add(x: Any, y: Any) -> Any:
    return x + y


def values(graph: Graph) -> Iterator[Value]:
    seen: set[Value] = set()
    waiting = [value for _, value in graph.outputs]
    while waiting:
        value = waiting.pop()
        if value not in seen:
            seen.add(value)
            waiting += operands(value)
            yield value


def functions(program: Program) -> set[Fn]:
    found = values(lower_program(program))
    return {value.fn for value in found if isinstance(value, Unary | Binary)}


ORDERS = [
    Spelling(*flags) for flags in product((False, True), repeat=5) if not (flags[3] and flags[4])
]


@each("spelling", ORDERS)
def test_gelu_in_every_order(spelling: Spelling) -> None:
    assert functions(gelu_of(spelling)) == {Fn.GELU}


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_gelu_of_every_float(dtype: str) -> None:
    for divides in (False, True):
        assert functions(gelu_of(Spelling(divides=divides), dtype)) == {Fn.GELU}


OTHERS = {
    "a third": Spelling(half=1 / 3),
    "plus two": Spelling(one=2.0),
    "another root": Spelling(root=0.7),
    "multiplied by the root of two": Spelling(root=2.0**0.5),
    "divided by the root of a half": Spelling(root=0.5**0.5, divides=True),
    "another number inside": Spelling(other_x=True),
    "a root with the digits of bf16": Spelling(root=float(BF16.numpy.type(0.5**0.5))),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_only_looks_like_gelu(name: str) -> None:
    assert Fn.GELU not in functions(gelu_of(OTHERS[name]))


def test_steps_that_something_else_reads_stay() -> None:
    assert functions(gelu_of(Spelling(keeps=True))) == {Fn.GELU, Fn.ERF, Fn.MUL}


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_a_gelu_means_the_same(dtype: str) -> None:
    kind: DType = as_dtype(dtype)
    x = np.linspace(-6, 6, SIZE).astype(kind.numpy)
    exact = 0.5 * x.astype(np.float64) * (1 + erf(x.astype(np.float64) / np.sqrt(2)))
    (found,) = run(lower_program(gelu_of(Spelling(), dtype)), {"in0": x})
    np.testing.assert_allclose(found, exact, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize(("op", "limit", "named"), [
    ("less_equal", 0.0, True), ("less", 0.0, False), ("less_equal", 0.5, False),
])  # fmt: skip
def test_relu_is_what_is_above_zero(op: str, limit: float, named: bool) -> None:
    b = Builder()
    x = b.param("f32", [SIZE])
    zeros, limits = (b.full([SIZE], number, "f32") for number in (0.0, limit))
    program = b.build(b.select(b.compare(x, limits, op), zeros, x))
    assert (Fn.RELU in functions(program)) is named
    assert any(isinstance(value, Where) for value in values(lower_program(program))) is not named
