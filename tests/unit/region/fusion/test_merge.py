"""Kernels made one: statistics of rows are stored by the kernel that reads the rows."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.gpu_programs import through_stages
from tests.support.lowered import lowered
from weft.foundation.tally import Tally, tallied
from weft.ptir import Builder, Program, vjp
from weft.region.fusion.greedy import DRAFTS
from weft.region.fusion.merge import LONGEST, PAIRS
from weft.region.interp import run_module
from weft.region.ir import Pattern
from weft.testing.compare import compare
from weft.tiny.from_ptir import lower_program

pytestmark = pytest.mark.usefixtures("small_machine")
ROWS, WIDTH = 96, 160


def norm_backward() -> Program:
    """The gradients of a layer norm with respect to its operand, scale and shift."""
    b = Builder("norm")
    x, gamma, beta = b.param("f32", [ROWS, WIDTH]), b.param("f32", [WIDTH]), b.param("f32", [WIDTH])
    return vjp(b.build(b.layer_norm(x, gamma, beta, epsilon=1e-5, feature_axis=-1)), wrt=[0, 1, 2])


def test_one_pass_over_the_rows_of_a_norm_gives_its_gradient_and_what_others_read() -> None:
    """Mean and deviation are for the columns' kernels; a sum of rows times a vector is a sum along
    rows like the others."""
    module = lowered(lower_program(norm_backward())).module
    stored = [[len(module.tensors[o.tensor].shape) for o in k.outputs] for k in module.kernels]
    assert [sorted(ranks) for ranks in stored if 2 in ranks] == [[1, 1, 2, 2]]
    assert all(kernel.pattern is Pattern.ROW for kernel in module.kernels)


def test_what_one_pass_gives_is_right() -> None:
    program, rng = norm_backward(), np.random.default_rng(0)
    shapes = [kind.static_shape for kind in program.main.parameters]  # type: ignore[union-attr]
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    expected = weft.run(program, inputs, backend="reference")
    for got, wanted in zip(weft.run(program, inputs, backend="cpu"), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)


def test_sums_of_one_tensor_share_a_kernel_whatever_follows_each_of_them() -> None:
    """What follows a sum joins it first; only then is it seen that both read one tensor."""
    b = Builder("sums")
    x, y = b.param("f32", [300, 64]), b.param("f32", [300, 64])
    p, q = b.param("f32", [64]), b.param("f32", [64])
    one, two = b.reduce_sum(x * y, [0]), b.reduce_sum(y, [0])
    program = b.build(one, two, b.exp(one) * p, b.exp(two) * q)
    made = through_stages(program, "sm90")["region"].kernels
    assert [kernel.pattern for kernel in made].count(Pattern.ROW) == 1


def cross_entropy(order: tuple[int, ...]) -> Program:
    """A loss of logits and its gradient by them, with results in some order."""
    b = Builder("loss")
    x, target = b.param("f32", [ROWS, WIDTH]), b.param("si32", [ROWS])
    shape = [ROWS, WIDTH]
    largest = b.broadcast_to(b.reduce_max(x, [1], keepdims=True), shape)
    power = b.exp(x - largest)
    total = b.reduce_sum(power, [1])
    wanted = b.broadcast_to(b.reshape(target, [ROWS, 1]), shape)
    chosen = b.compare(b.iota("si32", shape, 1), wanted, "equal")
    picked = b.reduce_sum(b.select(chosen, x - largest, 0.0), [1])
    scale = b.broadcast_to(b.reshape(b.reciprocal(total), [ROWS, 1]), shape)
    results = scale * power + b.select(chosen, b.full(shape, -1.0, "f32"), 0.0), total, picked
    return b.build(*(results[number] for number in order))


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (2, 0, 1)])
def test_a_loss_and_its_gradient_read_the_logits_once(order: tuple[int, ...]) -> None:
    """What is picked is no part of the gradient, but a number of the same rows."""
    module = through_stages(cross_entropy(order), "sm90")["region"]
    assert [module.inputs[0] in kernel.inputs for kernel in module.kernels].count(True) == 1


@pytest.mark.parametrize("target", ["sm80", "sm90"])
def test_what_is_read_once_is_right(target: str) -> None:
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((ROWS, WIDTH)).astype(np.float32)
    inputs = [logits, rng.integers(0, WIDTH, ROWS).astype(np.int32)]
    report = compare(cross_entropy((0, 1, 2)), inputs, InterpretedGpu(target))
    assert report.agrees, str(report)


def test_a_product_does_not_store_many_things_that_are_not_made_of_it() -> None:
    """As the updates of other tensors, which read the same rate."""
    b = Builder("updates")
    x, y, rate = b.param("bf16", [256, 128]), b.param("bf16", [128, 256]), b.param("f32", [])
    tensors = [b.param("f32", [256, 256]) for _ in range(6)]
    rates = b.broadcast_to(rate, [256, 256])
    slope = b.cast(b.matmul(x, y), "f32")
    steps = [slope, *tensors[:5]]
    program = b.build(*(t - rates * step for t, step in zip(tensors, steps, strict=True)))
    made = through_stages(program, "sm90")["region"].kernels
    (product,) = (kernel for kernel in made if kernel.pattern is Pattern.MATMUL)
    assert len(product.outputs) <= 2


def several_vectors(length: int) -> Program:
    """Two that share nothing, and one of another length."""
    b = Builder("vectors")
    x, y, z = (b.param("f32", [n]) for n in (length, length, length + 1))
    return b.build(b.exp(x), b.log(y), b.exp(z))


def test_short_vectors_that_share_nothing_are_one_kernel_on_a_gpu() -> None:
    program = several_vectors(300)
    module = through_stages(program, "sm90")["region"]
    stored = [len(k.outputs) for k in module.kernels if k.pattern is Pattern.MAP]
    assert sorted(stored) == [1, 2]
    given = [np.linspace(0.5, 1.5, n, dtype=np.float32) for n in (300, 300, 301)]
    made = run_module(module, dict(zip(module.inputs, given, strict=True)))
    expected = weft.run(program, given, backend="reference")
    for name, wanted in zip(module.outputs, expected, strict=True):
        np.testing.assert_allclose(made[name], wanted, rtol=1e-5)
    long = through_stages(several_vectors(LONGEST + 1), "sm90")["region"].kernels
    assert all(len(k.outputs) == 1 for k in long if k.pattern is Pattern.MAP)


def updates(shape: list[int], count: int) -> Program:
    """Tensors and their moments after a step, all by one rate."""
    b = Builder("updates")
    given = [[b.param("f32", shape) for _ in range(3)] for _ in range(count)]
    rate = b.broadcast_to(b.param("f32", []), shape)
    made = []
    for x, old, slope in given:
        mean = old * 0.9 + slope * 0.1
        made += [x - rate * mean / (b.sqrt(b.abs(mean)) + 1.0), mean]
    return b.build(*made)


@pytest.mark.parametrize("side", [2048, 64])
def test_a_step_of_an_optimiser_takes_each_tensor_with_its_moment(side: int) -> None:
    """A rate in common is no reason to compute several tensors in one kernel: large ones would wait
    for one another, and one launch carries out all of one text."""
    module = through_stages(updates([side, side], 20), "sm90")["region"]
    kernels = [k for k in module.kernels if k.pattern is Pattern.MAP]
    homes = {output.tensor: kernel.name for kernel in kernels for output in kernel.outputs}
    found = [homes[name] for name in module.outputs]
    assert found[::2] == found[1::2]
    assert len(kernels) == 20


def test_pairs_of_one_structure_are_looked_at_once() -> None:
    """More tensors of an optimiser's step are more pairs, but no more work for each kind."""
    few, many = (through_stages(updates([512, 512], count), "sm90").tally for count in (10, 20))
    assert many.asked[PAIRS] > 2 * few.asked[PAIRS]
    assert many.done[PAIRS] == few.done[PAIRS] < few.asked[PAIRS] / 2


def test_pairs_that_have_other_things_in_common_are_other_pairs() -> None:
    """Two kernels like two others are one where they read one tensor, and two where they do not."""
    b = Builder("pairs")
    x, y, z = (b.param("f32", [2048, 2048]) for _ in range(3))
    program = b.build(b.exp(x), b.log(x), b.exp(y), b.log(z))
    kernels = through_stages(program, "sm90")["region"].kernels
    assert sorted(len(kernel.outputs) for kernel in kernels) == [1, 1, 2]


def test_slices_of_one_tensor_are_told_apart_without_drafts() -> None:
    """Pairs of kernels that read other places are not drafted as one; those that read one are."""
    b = Builder("parts")
    y = b.reduce_sum(b.param("f32", [40 * 64, 8]), axes=[1])
    parts = [b.exp(b.slice(y, [64 * n], [64])) for n in range(40)]
    twice = [f(b.slice(y, [7], [64])) for f in (b.exp, b.tanh)]
    tally = Tally()
    with tallied(tally):
        module = lowered(lower_program(b.build(*parts, *twice))).module
    assert tally.done[DRAFTS] < 200
    assert [len(kernel.outputs) for kernel in module.kernels].count(2) == 1


def test_a_step_of_a_recurrence_is_one_kernel_on_a_gpu() -> None:
    """Gates and what is kept of them are read by one another, in a chain of kernels that take
    hardly more than their start."""
    b = Builder("cell")
    gates, cell = b.param("bf16", [16, 256]), b.param("bf16", [16, 64])
    parts = [b.cast(b.slice(gates, [0, 64 * n], [16, 64]), "f32") for n in range(3)]
    opened = [b.reciprocal(b.exp(-part) + 1.0) for part in parts]
    enters, stays, shown = (b.cast(part, "bf16") for part in opened)
    new = b.tanh(b.slice(gates, [0, 192], [16, 64]))
    after = stays * cell + enters * new
    program = b.build(shown * b.tanh(after), after, new, *opened, *(-part for part in parts))
    kernels = through_stages(program, "sm90")["region"].kernels
    assert [kernel.pattern for kernel in kernels] == [Pattern.MAP]
