"""Long sums: as near to the truth as pairwise ones, and the same for any number of threads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.cases import one_in
from weft.codegen.cpu import ir
from weft.codegen.cpu.ir import LoopKind
from weft.codegen.cpu.strips import in_strips
from weft.codegen.cpu.text import parse_routines, print_routines
from weft.driver.compile import compile_program
from weft.ptir import Builder, Program
from weft.ptir.builder import Value

Array = NDArray[Any]
Oracle = Callable[[Array], Array]


def summed(*axes: int) -> Callable[[Builder, Value], Value]:
    return lambda b, x: b.reduce_sum(x, axes)


def mean(b: Builder, x: Value) -> Value:
    return b.reduce_sum(x, [1]) * (1.0 / float(x.shape[1]))


def variance(b: Builder, x: Value) -> Value:
    centred = x - b.broadcast_to(b.reshape(mean(b, x), [x.shape[0], 1]), x.shape)
    return mean(b, centred * centred)


def log_sum_exp(b: Builder, x: Value) -> Value:
    top = b.reduce_max(x, [1], keepdims=True)
    return b.log(b.reduce_sum(b.exp(x - b.broadcast_to(top, x.shape)), [1]))


def with_itself(b: Builder, x: Value) -> Value:
    """A product of few rows, summed over a long axis."""
    return x @ b.transpose(x, [1, 0])


def wide_log_sum_exp(x: Array) -> Array:
    return np.asarray(np.log(np.exp(x - x.max(1, keepdims=True)).sum(1)))


TENTH = np.float32(0.1)
CASES: list[tuple[str, tuple[int, ...], Callable[[Builder, Value], Value], Oracle]] = [
    ("all", (2000, 2000), summed(0, 1), lambda x: x.sum()),
    ("one axis", (1_000_003,), summed(0), lambda x: x.sum()),
    ("rows", (3, 300_001), summed(1), lambda x: x.sum(1)),
    ("columns", (70_001, 9), summed(0), lambda x: x.sum(0)),
    ("columns of vectors", (40_000, 64), summed(0), lambda x: x.sum(0)),
    ("three axes", (300, 3, 1001), summed(0, 2), lambda x: x.sum((0, 2))),
    ("short inside long", (100_000, 3), summed(0, 1), lambda x: x.sum()),
    ("mean", (2, 500_000), mean, lambda x: x.mean(1)),
    ("variance", (2, 300_000), variance, lambda x: x.var(1)),
    ("log of exponentials", (2, 30_000), log_sum_exp, wide_log_sum_exp),
    ("log of exponentials, folded", (2, 600_000), log_sum_exp, wide_log_sum_exp),
    ("product", (2, 400_000), with_itself, lambda x: x @ x.T),
    ("product of blocks", (40, 50_000), with_itself, lambda x: x @ x.T),
]


def program_of(shape: tuple[int, ...], write: Callable[[Builder, Value], Value]) -> Program:
    b = Builder()
    x = b.param("f32", shape)
    return b.build(write(b, x))


@pytest.mark.parametrize("case", one_in(3, CASES), ids=lambda case: case[0].replace(" ", "-"))
@pytest.mark.parametrize("data", ["constant", "random"])
def test_long_sums_err_like_pairwise_ones(case: Any, data: str) -> None:
    name, shape, write, oracle = case
    x = np.full(shape, TENTH)
    if data == "random" or name == "variance":
        x = np.random.default_rng(0).random(shape, np.float32)
    made = compile_program(program_of(shape, write), "cpu")
    got = made(x)[0]
    want = oracle(x.astype(np.float64))
    bound = 32 if data == "constant" else 16
    assert np.abs(got - want).max() <= bound * 2**-24 * np.abs(want).max()


@pytest.mark.parametrize("case", CASES[:6], ids=lambda case: case[0].replace(" ", "-"))
def test_the_number_of_threads_does_not_matter(case: Any) -> None:
    _, shape, write, _ = case
    x = np.random.default_rng(1).random(shape, np.float32)
    made = compile_program(program_of(shape, write), "cpu")
    one, two, again = (made.run([x], threads=threads)[0].tobytes() for threads in (1, 2, 2))
    assert one == two == again


def chain_lengths(routine: ir.Routine) -> dict[str, int]:
    """How many steps each accumulator takes between its beginning and its end."""
    begun: dict[str, int] = {}
    found: dict[str, int] = {}
    for stmt, loops in ir.walk(routine.body):
        serial = [loop for loop in loops if loop.kind is LoopKind.SERIAL]
        if isinstance(stmt, ir.Init):
            begun[stmt.acc] = len(serial)
        if isinstance(stmt, ir.Accumulate):
            turns = ((loop.stop - loop.start).constant for loop in serial[begun[stmt.acc] :])
            found[stmt.acc] = found.get(stmt.acc, 0) + math.prod(turns)
    return found


SUM = """\
routine k0 pieces=1
buffer 0 f32[4200]
buffer 1 f32[1] write noalias
parallel p in 0..1 {
  init s:DTYPE FN over []
  serial i in 0..OUTER {
    serial j in 0..INNER {
      load x = b0[INNER*i + j]
      accumulate s <- x
    }
  }
  finish total = s
  store b1[0] = total at []
}
"""


def routine_of(outer: int, inner: int, dtype: str = "f32", fn: str = "sum") -> ir.Routine:
    text = SUM.replace("OUTER", str(outer)).replace("INNER", str(inner))
    return parse_routines(text.replace("DTYPE", dtype).replace("FN", fn))[0]


@pytest.mark.parametrize(
    ("outer", "inner"), [(1, 4200), (4200, 1), (2100, 2), (2, 2100), (60, 70), (1399, 3), (1, 4099)]
)
def test_no_chain_is_long(outer: int, inner: int) -> None:
    cut = in_strips(routine_of(outer, inner))
    assert max(chain_lengths(cut).values()) <= 64
    assert parse_routines(print_routines([cut])) == [cut]


@pytest.mark.parametrize(
    ("outer", "inner", "dtype", "fn"),
    [(8, 8, "f32", "sum"), (60, 70, "f16", "sum"), (60, 70, "f32", "prod"),
     (60, 70, "si32", "sum"), (60, 70, "f32", "max")],
)  # fmt: skip
def test_what_is_short_or_has_an_order_stays(outer: int, inner: int, dtype: str, fn: str) -> None:
    routine = routine_of(outer, inner, dtype, fn)
    assert in_strips(routine) == routine


def test_a_dump_with_strips_is_read_back() -> None:
    program = program_of((50_257,), summed(0))
    x = np.random.default_rng(2).random(50_257, np.float32)
    made = compile_program(program, "cpu")
    text = made.stages["cpu"]
    assert " below " in text
    again = compile_program(program, "cpu", overrides={"cpu": text})
    assert again(x)[0].tobytes() == made(x)[0].tobytes()
