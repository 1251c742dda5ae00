"""How the CPU cuts kernels: rows whose dear values are kept, columns side by side, blocks of two
axes. Results are compared with NumPy, and a plan's say is seen in the loop nest."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.cases import one_in
from weft.foundation.dtypes import BY_NAME
from weft.foundation.errors import WeftError
from weft.ptir import Builder, Program

pytestmark = pytest.mark.usefixtures("small_machine")

Array = NDArray[Any]


def normal(shape: tuple[int, ...], seed: int = 0, dtype: str = "f4") -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def softmax(shape: tuple[int, ...], axis: int) -> Program:
    b = Builder("softmax")
    return b.build(b.softmax(b.param("f32", list(shape)), axis=axis))


def with_plan(program: Program, **changes: Any) -> weft.Executable:
    """The program compiled with fields of its only plan changed."""
    plans = json.loads(weft.compile(program).stages["plan"])
    plans["plans"][0].update(changes)
    return weft.compile(program, overrides={"plan": json.dumps(plans)})


def expected_softmax(x: Array, axis: int) -> Array:
    power = np.exp(x.astype("f8") - x.max(axis, keepdims=True))
    return np.asarray(power / power.sum(axis, keepdims=True))


@pytest.mark.parametrize("axis", one_in(2, [0, 1, 2]))
@pytest.mark.parametrize("shape", one_in(2, [(5, 7, 37), (3, 33, 64), (130, 2, 18)]))
def test_kept_values_are_those_of_the_row(shape: tuple[int, ...], axis: int) -> None:
    program, x = softmax(shape, axis), normal(shape)
    for keep in (True, False):
        exe = with_plan(program, keep_row=keep)
        one, two = (exe.run([x], threads=threads)[0] for threads in (1, 2))
        np.testing.assert_allclose(one, expected_softmax(x, axis), rtol=2e-6)
        np.testing.assert_array_equal(one, two)


def test_rows_of_two_axes_are_kept() -> None:
    """Most operands lie across the others, so that there is no axis for vectors to run along."""
    b = Builder("shares")
    x, gain, shift = b.param("f32", [8, 7, 5]), b.param("f32", [5, 8]), b.param("f32", [5, 8])
    power = b.exp(x)
    share = power / b.broadcast_to(b.reduce_sum(power, [0, 2], keepdims=True), x.shape)
    across = [b.reshape(b.transpose(y, [1, 0]), [8, 1, 5]) for y in (gain, shift)]
    factor, term = (b.broadcast_to(y, x.shape) for y in across)
    exe = with_plan(b.build(share * factor + term), keep_row=True)
    data, by, plus = normal((8, 7, 5)), normal((5, 8), seed=1), normal((5, 8), seed=2)
    want = np.exp(data.astype("f8"))
    share_of = want / want.sum((0, 2), keepdims=True)
    expected = share_of * by.T[:, None, :] + plus.T[:, None, :]
    np.testing.assert_allclose(exe.run([data, by, plus])[0], expected, rtol=1e-5, atol=1e-6)


def test_what_two_passes_need_is_computed_once() -> None:
    program = softmax((8, 64), 1)
    kept, again = (with_plan(program, keep_row=keep).stages["cpu"] for keep in (True, False))
    assert (kept.count(" = exp_"), again.count(" = exp_")) == (1, 2)
    assert "scratch" in kept


def test_keeping_what_is_not_needed_twice_is_refused() -> None:
    b = Builder("sum")
    program = b.build(b.reduce_sum(b.param("f32", [8, 64]), [1]))
    with pytest.raises(WeftError, match="no dear value is needed by two passes"):
        with_plan(program, keep_row=True)


def test_a_row_that_a_thread_cannot_hold_is_computed_again() -> None:
    program = softmax((2, 100_000), 1)
    assert '"keep_row": false' in weft.compile(program).stages["plan"]
    with pytest.raises(WeftError, match="takes 400000 bytes of a thread"):
        with_plan(program, keep_row=True)


@pytest.mark.parametrize("shape", one_in(2, [(40, 1024), (7, 130), (3, 5), (9, 66, 34)]))
def test_columns_are_reduced_side_by_side(shape: tuple[int, ...]) -> None:
    b = Builder("sum")
    program = b.build(b.reduce_sum(b.param("f32", list(shape)), [0]))
    x = normal(shape)
    (found,) = weft.compile(program).run([x])
    np.testing.assert_allclose(found, x.astype("f8").sum(0), rtol=1e-5, atol=1e-5)


TRANSPOSED = {
    "x.T + y": ((70, 150), [1, 0], True),
    "x.T": ((64, 64), [1, 0], False),
    "edges": ((131, 67), [1, 0], True),
    "batch": ((3, 40, 90), [0, 2, 1], True),
    "first to last": ((33, 5, 47), [2, 1, 0], True),
}


@pytest.mark.parametrize("dtype", one_in(3, ["f32", "f64", "bf16", "si8"]))
@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposing_maps(name: str, dtype: str) -> None:
    shape, order, added = TRANSPOSED[name]
    b = Builder("transposed")
    x = b.param(dtype, list(shape))
    others = [b.param(dtype, [shape[i] for i in order])] if added else []
    result = b.neg(b.transpose(x, order))
    program = b.build(result + others[0] if added else result)
    element = BY_NAME[dtype].numpy
    given = [(4 * normal(shape)).astype(element)]
    if added:
        given.append((4 * normal(tuple(shape[i] for i in order), 1)).astype(element))
    want = -given[0].transpose(order)
    want = want + given[1] if added else want
    exe = weft.compile(program)
    assert '"block": 64' in exe.stages["plan"]
    np.testing.assert_array_equal(exe.run(given, threads=2)[0], want)


def test_blocks_change_the_loops_and_not_the_result() -> None:
    b = Builder("transposed")
    x, y = b.param("f32", [80, 96]), b.param("f32", [96, 80])
    program = b.build(b.transpose(x, [1, 0]) + y)
    given = [normal((80, 96)), normal((96, 80), 1)]
    made = [with_plan(program, block=block) for block in (1, 16, 64)]
    assert len({exe.stages["cpu"] for exe in made}) == 3
    for exe in made:
        np.testing.assert_array_equal(exe.run(given)[0], given[0].T + given[1])


@pytest.mark.parametrize(
    ("block", "why"), [(24, "block=24 is not a multiple of 4 vectors of 4 lanes"), (0, "block")]
)
def test_blocks_that_hold_no_whole_tiles_are_refused(block: int, why: str) -> None:
    b = Builder("transposed")
    program = b.build(b.neg(b.transpose(b.param("f32", [80, 96]), [1, 0])))
    with pytest.raises(WeftError, match=why):
        with_plan(program, block=block, vector=4, unroll=4)
