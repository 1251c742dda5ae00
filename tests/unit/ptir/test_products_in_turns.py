"""Products in turns: losses of large products, their gradients, and what stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from weft import functional as F
from weft.driver.legalise import without_composites
from weft.ptir import Builder, Program
from weft.ptir.ir import Body
from weft.ptir.ops.control import Scan
from weft.ptir.ops.movement import BroadcastTo, Iota
from weft.ptir.passes import optimise
from weft.ptir.products_in_turns import TurnSizes, in_turns
from weft.ptir.streams import assign_streams
from weft.ptir.types import TensorType, leaves
from weft.ptir.verify import verify

Array = NDArray[Any]
ROWS, DEPTH, CLASSES = 48, 8, 60
SIZES = TurnSizes(least=4 * ROWS * CLASSES, piece=4 * 8 * CLASSES, summing=12)


def simple(program: Program) -> Program:
    return without_composites(assign_streams(optimise(program)))


def turned(program: Program, sizes: TurnSizes = SIZES) -> Program:
    """The program in turns, whose results are those of the program."""
    before = simple(program)
    after = in_turns(before, sizes)
    verify(after)
    rng = np.random.default_rng(1)
    inputs = [numbers(kind, rng) for kind in program.main.parameters]
    wanted = weft.run(before, inputs, backend="reference")
    for got, expected in zip(weft.run(after, inputs, backend="reference"), wanted, strict=True):
        np.testing.assert_allclose(
            np.asarray(got, np.float32), np.asarray(expected, np.float32), rtol=2e-5, atol=2e-6
        )
    return after


def numbers(kind: object, rng: np.random.Generator) -> Array:
    assert isinstance(kind, TensorType)
    if kind.dtype.is_integer:
        return rng.integers(0, 12, kind.static_shape).astype(kind.dtype.numpy)
    return rng.standard_normal(kind.static_shape).astype(kind.dtype.numpy)


def loops(program: Program) -> list[Scan]:
    return [i.op for i in program.main.body if isinstance(i.op, Scan)]


def largest(body: Body) -> int:
    """Elements of the largest tensor that a body computes."""
    made = (i for i in body.body if not isinstance(i.op, BroadcastTo | Iota))
    return max(kind.size for i in made for kind in leaves(i.output))


# -- losses --------------------------------------------------------------------------------------

X, W = np.zeros((ROWS, DEPTH), np.float32), np.zeros((CLASSES, DEPTH), np.float32)
B, Y = np.zeros(CLASSES, np.float32), np.zeros(ROWS, np.int32)
Loss = Callable[..., weft.Tensor]


def by_hand(x: weft.Tensor, w: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
    logs = F.log_softmax(x @ weft.permute_dims(w, (1, 0)))
    picked: weft.Tensor = weft.take_along_axis(logs, y.reshape((ROWS, 1)), axis=1)
    loss: weft.Tensor = -weft.mean(picked)
    return loss


def with_cap(x: weft.Tensor, w: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
    """Scores that a tanh keeps small, and a penalty for large sums."""
    scores = weft.tanh(F.linear(x, w) / 5.0) * 5.0
    total = F.logsumexp(scores, 1)
    loss: weft.Tensor = F.cross_entropy(scores, y) + 1e-2 * weft.mean(total * total)
    return loss


LOSSES: dict[str, Loss] = {
    "mean": lambda x, w, y: F.cross_entropy(F.linear(x, w), y),
    "sum": lambda x, w, y: F.cross_entropy(F.linear(x, w), y, "sum"),
    "ignored": lambda x, w, y: F.cross_entropy(F.linear(x, w), y, ignore_index=3),
    "smoothed": lambda x, w, y: F.cross_entropy(F.linear(x, w), y, label_smoothing=0.1),
    "matrices": lambda x, w, y: F.cross_entropy(
        F.linear(x.reshape((4, 12, DEPTH)), w).reshape((ROWS, CLASSES)), y
    ),
    "by hand": by_hand,
    "capped": with_cap,
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_their_gradients_are_made_in_turns(name: str) -> None:
    both = weft.jit(lambda x, w, y: weft.value_and_grad(LOSSES[name], (0, 1))(x, w, y))
    after = turned(both.program(X, W, Y))
    (loop,) = loops(after)
    assert loop.carry_count >= 2, "the gradient of the weights is carried, and the weights are"
    assert largest(after.main) < ROWS * CLASSES // 2
    assert largest(after.regions_by_id[loop.body_region]) <= max(12 * CLASSES, DEPTH * CLASSES)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_alone_are_made_in_shorter_turns(name: str) -> None:
    after = turned(weft.jit(LOSSES[name]).program(X, W, Y))
    (loop,) = loops(after)
    assert largest(after.main) < ROWS * CLASSES // 2
    assert largest(after.regions_by_id[loop.body_region]) <= 12 * CLASSES


def test_a_bias_and_its_gradient() -> None:
    def loss(x: Any, w: Any, b: Any, y: Any) -> weft.Tensor:
        return F.cross_entropy(F.linear(x, w, b), y)

    both = weft.jit(lambda *given: weft.value_and_grad(loss, (0, 1, 2))(*given))
    after = turned(both.program(X, W, B, Y))
    assert len(loops(after)) == 1
    assert largest(after.main) < ROWS * CLASSES // 2


def test_a_factor_that_is_made_once_more_on_the_way_back() -> None:
    """As the norm before the last layer may be."""
    b = Builder("again")
    h, w = b.param("f32", [ROWS, DEPTH]), b.param("f32", [CLASSES, DEPTH])
    powers = b.exp(b.dot_general(b.tanh(h), w, contract=([1], [1])))
    slopes = powers / b.broadcast_to(b.reduce_sum(powers, [1], keepdims=True), powers.shape)
    late = b.tanh(b.emit("barrier", h, slopes))
    after = turned(b.build(b.dot_general(slopes, late, contract=([0], [0]))))
    assert len(loops(after)) == 1
    assert largest(after.main) < ROWS * CLASSES // 2


def test_a_loss_that_is_computed_again_is_so_in_turns() -> None:
    @weft.checkpoint
    def loss(h: Any, w: Any, y: Any) -> weft.Tensor:
        return F.cross_entropy(F.linear(weft.tanh(h), w), y)

    both = weft.jit(lambda *given: weft.value_and_grad(loss, (0, 1))(*given))
    after = turned(both.program(X, W, Y))
    assert len(loops(after)) == 2


def test_sums_of_narrow_floats_are_carried_in_f32() -> None:
    b = Builder("narrow")
    x, w = b.param("bf16", [ROWS, DEPTH]), b.param("bf16", [CLASSES, DEPTH])
    scores = b.dot_general(x, w, contract=([1], [1]))
    wide = b.cast(scores, "f32")
    slopes = b.cast(
        wide / b.broadcast_to(b.reduce_sum(b.exp(wide), [1], keepdims=True), wide.shape), "bf16"
    )
    after = turned(
        b.build(b.dot_general(slopes, x, contract=([0], [0]))),
        replace(SIZES, least=2 * ROWS * CLASSES),
    )
    (loop,) = loops(after)
    region = after.regions_by_id[loop.body_region]
    assert [str(kind) for kind in region.results[:1]] == [f"f32[{CLASSES}, {DEPTH}]"]


# -- what stays as it is -------------------------------------------------------------------------


def built(make: Callable[[Builder], Any]) -> Program:
    b = Builder("whole")
    made = make(b)
    return simple(b.build(*made if isinstance(made, tuple) else (made,)))


def product(b: Builder) -> Any:
    x, w = b.param("f32", [ROWS, DEPTH]), b.param("f32", [CLASSES, DEPTH])
    return b.dot_general(x, w, contract=([1], [1]))


def returned(b: Builder) -> Any:
    scores = product(b)
    return b.reduce_max(scores, [1]), scores


def over_all(b: Builder) -> Any:
    """Every row needs the largest of all."""
    scores = product(b)
    largest = b.reduce_max(scores, [0, 1], keepdims=True)
    return b.reduce_sum(b.exp(scores - b.broadcast_to(largest, scores.shape)), [1])


def followed(b: Builder) -> Any:
    """The next layer: its product is no gradient's."""
    other = b.param("f32", [CLASSES, DEPTH])
    return b.matmul(b.tanh(product(b)), other)


def batched(b: Builder) -> Any:
    q = b.param("f32", [2, ROWS, DEPTH])
    scores = b.dot_general(q, q, contract=([2], [2]), batch=([0], [0]))
    return b.reduce_max(scores, [2])


def squared(b: Builder) -> Any:
    """The slopes depend on the loss of all rows."""
    scores = product(b)
    total = b.reduce_sum(scores * scores, [0, 1])
    slopes = scores * b.broadcast_to(total, scores.shape)
    return b.reduce_sum(slopes, [1])


@pytest.mark.parametrize("make", [returned, over_all, followed, batched, squared])
def test_what_needs_all_rows_or_is_read_elsewhere_stays(make: Callable[[Builder], Any]) -> None:
    program = built(make)
    assert in_turns(program, SIZES) is program


def test_small_products_stay() -> None:
    program = simple(weft.jit(LOSSES["mean"]).program(X, W, Y))
    assert in_turns(program, replace(SIZES, least=SIZES.least + 1)) is program


@pytest.mark.parametrize(("rows", "turns"), [(48, 4), (54, 6), (53, 0), (106, 0)])
def test_turns_are_of_one_size(rows: int, turns: int) -> None:
    """About as many as are wanted: none of one row each."""
    x, y = np.zeros((rows, DEPTH), np.float32), np.zeros(rows, np.int32)
    both = weft.jit(lambda x, w, y: weft.value_and_grad(LOSSES["mean"], (0, 1))(x, w, y))
    after = in_turns(simple(both.program(x, W, y)), SIZES)
    found = [after.regions_by_id[loop.body_region] for loop in loops(after)]
    sizes = [kind.static_shape[0] for region in found for kind in region.results[-1:]]  # type: ignore[union-attr]
    assert sizes == [rows // turns] if turns else not sizes


def test_sums_that_take_more_memory_than_the_product_are_not_carried() -> None:
    wide = np.zeros((ROWS, 2 * ROWS), np.float32), np.zeros((CLASSES, 2 * ROWS), np.float32)
    both = weft.jit(lambda x, w, y: weft.value_and_grad(LOSSES["mean"], (0, 1))(x, w, y))
    program = simple(both.program(*wide, Y))
    assert in_turns(program, SIZES) is program
