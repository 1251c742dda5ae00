"""Keeping less between forward and backward: results stay, memory falls, random numbers stay."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft import functional as F
from weft import nn
from weft.foundation.errors import UserError
from weft.ptir import Builder, Program, Value, optimise, verify
from weft.ptir.gradient import gradient, vjp
from weft.ptir.ops.contraction import DotGeneral
from weft.ptir.ops.random import RngUniform
from weft.ptir.ops.scheduling import Barrier
from weft.ptir.passes.recompute import kept_bytes, recompute
from weft.ptir.types import leaves

Array = np.ndarray[Any, Any]
WIDTH, ROWS = 8, 64


def peak(program: Program) -> int:
    """The most bytes that are alive at once when instructions run in order, parameters aside."""
    body = program.main.body
    last = {use: n for n, i in enumerate(body) for use in i.uses}
    last.update(dict.fromkeys(program.main.result_ids, len(body)))
    alive = most = 0
    sizes = {i.id: sum(leaf.bytes for leaf in leaves(i.output)) for i in body}
    for n, instruction in enumerate(body):
        alive += sizes[instruction.id]
        most = max(most, alive)
        for value_id in {*instruction.uses, instruction.id}:
            if value_id in sizes and last.get(value_id, n) == n:
                alive -= sizes.pop(value_id)
    return most


def inputs(count: int) -> list[Array]:
    source = np.random.default_rng(3)
    weights = [source.standard_normal((WIDTH, WIDTH)).astype(np.float32) for _ in range(count)]
    return [source.standard_normal((ROWS, WIDTH)).astype(np.float32), *weights]


def network(depth: int, layer: Callable[[Builder, Value, Value], Value]) -> tuple[Program, Any]:
    """The loss of a deep network with its gradients, and the instructions of each layer."""
    b = Builder()
    x = b.param("f32", [ROWS, WIDTH])
    weights = [b.param("f32", [WIDTH, WIDTH]) for _ in range(depth)]
    parts = []
    for w in weights:
        first = len(b._body)
        x = layer(b, x, w)
        parts.append({i.id for i in b._body[first:]})
    program = b.build(b.reduce_sum(x * x, [0, 1]))
    return gradient(program, range(1, depth + 1)), parts


def gelu_layer(b: Builder, x: Value, w: Value) -> Value:
    return b.gelu(x @ w)


def residual_layer(b: Builder, x: Value, w: Value) -> Value:
    """Two products, so that there is something expensive inside a layer."""
    return x + b.tanh(b.tanh(x @ w) @ w) * 0.1


def dropout_layer(b: Builder, x: Value, w: Value) -> Value:
    noise = b.rng_uniform(shape=[ROWS, WIDTH], dtype="f32")
    return b.tanh(x @ w) * noise


def assert_same(before: Program, after: Program, depth: int) -> None:
    verify(after)
    given = inputs(depth)
    wanted = weft.run(before, given, backend="reference", seed=5)
    found = weft.run(after, given, backend="reference", seed=5)
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(a, b)


def count(program: Program, cls: type) -> int:
    return sum(isinstance(i.op, cls) for i in program.main.body)


def test_cheap_functions_are_computed_again() -> None:
    before, _ = network(4, gelu_layer)
    after = recompute(before, 1)
    assert_same(before, after, 4)
    assert count(after, DotGeneral) == count(before, DotGeneral)
    # Of each layer only the product is kept, and what the next layer reads; before it was erf, its
    # operand and the two halves of the product as well.
    size = ROWS * WIDTH * 4
    assert kept_bytes(before, 1) >= 4 * 3 * size
    assert kept_bytes(after, 1) <= 4 * size
    assert peak(after) < 0.75 * peak(before)


@pytest.mark.parametrize("layer", [residual_layer, dropout_layer])
def test_marked_parts_are_computed_again(layer: Any) -> None:
    depth = 8
    before, parts = network(depth, layer)
    plain = recompute(before, 1)
    after = recompute(before, 1, parts)
    assert_same(before, after, depth)
    assert kept_bytes(after, 1) <= kept_bytes(plain, 1) < kept_bytes(before, 1)
    assert count(after, DotGeneral) > count(before, DotGeneral)


def test_the_peak_of_a_deep_network_grows_with_its_borders_only() -> None:
    peaks = {}
    for depth in (4, 8, 16):
        before, parts = network(depth, residual_layer)
        peaks[depth] = peak(before), peak(recompute(before, 1, parts))
    size = ROWS * WIDTH * 4
    for depth in (4, 8):
        plain, marked = (b - a for a, b in zip(peaks[depth], peaks[2 * depth], strict=True))
        assert marked < 0.6 * plain
        # One tensor for each layer: what goes from one to the next.
        assert marked <= 1.3 * depth * size
    assert peaks[16][1] < 0.5 * peaks[16][0]


def test_a_loop_inside_a_marked_part_runs_again() -> None:
    b = Builder()
    x, w, xs = b.param("f32", [WIDTH]), b.param("f32", [WIDTH]), b.param("f32", [ROWS, WIDTH])
    first = len(b._body)
    found = b.scan(lambda r, c, w, s: (r.tanh(c * w) + s, w, r.exp(c)), [x, w], [xs])
    inner = b.reduce_sum(found[2] * found[2], [0])
    part = {i.id for i in b._body[first:]}
    program = gradient(b.build(b.reduce_sum(b.sin(inner), [0])), [0, 1, 2])
    after = recompute(program, 1, [part])
    assert kept_bytes(after, 1) <= WIDTH * 4 < kept_bytes(program, 1)
    assert sum(i.op.mnemonic == "scan" for i in after.main.body) == 3
    verify(after)
    source = np.random.default_rng(0)
    given = [
        source.standard_normal(s).astype(np.float32) for s in ((WIDTH,), (WIDTH,), (ROWS, WIDTH))
    ]
    for a, c in zip(weft.run(program, given), weft.run(after, given), strict=True):
        np.testing.assert_array_equal(a, c)


def test_random_numbers_are_drawn_once() -> None:
    before, parts = network(3, dropout_layer)
    after = recompute(before, 1, parts)
    assert count(after, RngUniform) == count(before, RngUniform) == 3
    assert_same(before, after, 3)


def test_it_survives_the_other_passes() -> None:
    before, parts = network(4, residual_layer)
    after = optimise(recompute(before, 1, parts))
    assert_same(before, after, 4)
    assert count(after, Barrier) > 0
    assert kept_bytes(after, 1) <= 4 * ROWS * WIDTH * 4
    assert peak(after) < peak(optimise(before))


def test_it_can_be_differentiated_again() -> None:
    b = Builder()
    x = b.param("f64", [3])
    program = gradient(b.build(b.reduce_sum(b.sin(b.exp(x)) * x, [0])), 0)
    after = recompute(program, 1)
    assert count(after, Barrier) > 0
    given = [np.array([0.3, -0.2, 0.9]), np.array(1.0), np.array([1.0, 2.0, 3.0])]
    wanted, found = (weft.run(vjp(p, 0), given, backend="reference") for p in (program, after))
    for a, c in zip(wanted, found, strict=True):
        np.testing.assert_allclose(a, c, rtol=1e-12)


class _Branches(nn.Module):
    """Two convolutions with batch norms, added up."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = [nn.Conv2d(16, 32, 1, bias=False) for _ in range(2)]
        self.norms = [nn.BatchNorm(32) for _ in range(2)]

    def __call__(self, x: Any) -> Any:
        one, other = (norm(conv(x)) for conv, norm in zip(self.convs, self.norms, strict=True))
        return F.relu(one + other)


def test_what_runs_again_waits_for_what_it_is_computed_with() -> None:
    """Not for a cast that says again what the forward part has: it would be stored to be waited
    for, and statistics would take two passes over it."""
    model = _Branches().map(lambda x: x.astype("bf16"))
    images = weft.zeros((8, 16, 32, 32), dtype="bf16")

    def step(model: Any, x: Any) -> Any:
        with nn.training():
            return weft.value_and_grad(lambda m: weft.mean(m(x).astype("f32") ** 2))(model)

    region = weft.compile(weft.jit(step).program(model, images), "sm90").stages["region"]
    kept = re.findall(r'"f32", "shape": \[([\d, ]+)\], "role": "internal"', region)
    assert kept
    assert max(math.prod(map(int, shape.split(", "))) for shape in kept) < 8 * 32 * 32 * 32


def test_nothing_to_gain_is_no_change() -> None:
    b = Builder()
    x, w = b.param("f32", [4, 4]), b.param("f32", [4, 4])
    program = gradient(b.build(b.reduce_sum(x @ w, [0, 1])), [0, 1])
    assert recompute(program, 1) is program
    assert kept_bytes(program, 1) == 0


def test_a_tuple_among_the_results_is_kept() -> None:
    b = Builder()
    x = b.param("f32", [6])
    values = b.emit("top_k", x, k=3, axis=0, largest=True, indices_dtype="si32")
    y = b.exp(values[0])
    program = gradient(b.build(b.reduce_sum(y * y, [0]), values), 0)
    after = recompute(program, 2)
    verify(after)
    given = [np.array([1.0, -1.0, 0.5, 2.0, 0.1, 0.3], np.float32)]
    for a, c in zip(weft.run(program, given), weft.run(after, given), strict=True):
        np.testing.assert_array_equal(a, c)


def test_more_forward_results_than_there_are() -> None:
    before, _ = network(1, gelu_layer)
    with pytest.raises(UserError, match="the forward part cannot have 3 of 2 results"):
        recompute(before, 3)
