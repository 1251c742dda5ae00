"""What a gradient computes again is computed again by compiled programs too, and so saves memory:
the arena that a run takes is smaller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from examples.text_gpt import Sizes, TextGPT
from weft import functional as F
from weft import nn
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.ptir import Builder, Program
from weft.target.known import target_named

Block = Callable[..., Any]
LAYERS, ROWS, WIDTH = 9, 256, 16


def peak_bytes(program: Program) -> int:
    """What a compiled program takes."""
    (cluster,) = weft.compile(program, "cpu").clusters.values()
    slots = cluster.built.artifact.buffers
    return max(s.offset + s.bytes for s in slots if s.space == "arena")


def arena_bytes(program: Program) -> int:
    """Of a program without control flow, before any machine code is made."""
    signature = make_signature(program, (), (), ())
    compilation = Compilation(program, target_named("cpu"), signature)
    found: int = run_pipeline(compilation, until="memory")["memory"].arena_bytes
    return found


def joint(loss: Callable[..., Any], *args: Any) -> Program:
    """The program of value and gradient."""
    found: Program = weft.jit(weft.value_and_grad(loss)).program(*args)
    return found


def assert_same_values(program: Program, other: Program, inputs: list[Any]) -> None:
    expected = weft.run(other, inputs, backend="reference")
    for found, wanted in zip(weft.run(program, inputs, backend="cpu"), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5)


def arrays(*shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(0)
    return [(rng.standard_normal(shape) / 4).astype(np.float32) for shape in shapes]


def layer(x: Any, up: Any, down: Any) -> Any:
    return x + F.tanh(F.gelu(x @ up) @ down)


def stacked(block: Block) -> Callable[..., Any]:
    def loss(weights: Any, x: Any) -> Any:
        for up, down in weights:
            x = block(x, up, down)
        return weft.mean(x * x)

    return loss


def looped(block: Block) -> Callable[..., Any]:
    def loss(weights: Any, x: Any) -> Any:
        last, _ = weft.scan(lambda x, w: (block(x, *w), None), x, weights)
        return weft.mean(last * last)

    return loss


@pytest.mark.parametrize("network", [stacked, looped])
def test_a_checkpointed_network_takes_a_third_of_the_memory(network: Any) -> None:
    shapes = (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)
    x, *weights = arrays((ROWS, WIDTH), *(shapes * LAYERS))
    pairs: Any = list(zip(weights[::2], weights[1::2], strict=True))
    if network is looped:
        pairs = tuple(np.stack(side) for side in zip(*pairs, strict=True))
    plain = joint(network(layer), pairs, x)
    less = joint(network(weft.checkpoint(layer)), pairs, x)
    assert peak_bytes(less) < peak_bytes(plain) / 3
    inputs = [*(pairs if network is looped else weights), x]
    assert_same_values(less, plain, inputs)


class Checkpointed(nn.Module):
    """A module of which a gradient keeps the input only."""

    def __init__(self, inner: nn.Module) -> None:
        self.inner = inner

    def __call__(self, x: Any) -> Any:
        return weft.checkpoint(lambda module, value: module(value))(self.inner, x)


def test_a_checkpointed_gpt_takes_half_of_the_memory() -> None:
    sizes = Sizes(context=32, width=16, heads=2, layers=4, batch=4)
    text = np.random.default_rng(0).integers(0, 30, (4, 33)).astype(np.int32)

    def loss(model: Any, text: Any) -> Any:
        return F.cross_entropy(model(text[:, :-1]), text[:, 1:])

    plain = TextGPT(30, sizes)
    less = TextGPT(30, sizes)
    wrapped: list[Any] = [Checkpointed(block) for block in less.blocks]
    less.blocks = wrapped
    before, after = (arena_bytes(joint(loss, model, text)) for model in (plain, less))
    assert after < before / 2


def test_a_checkpoint_inside_a_branch() -> None:
    def chosen(block: Block) -> Callable[..., Any]:
        def loss(w: Any, flag: Any) -> Any:
            def deep(w: Any) -> Any:
                x = weft.ones((64, 8))
                for _ in range(4):
                    x = block(x, w)
                return weft.sum(x)

            return weft.cond(flag, deep, lambda w: weft.sum(w), w)

        return loss

    def inner(x: Any, w: Any) -> Any:
        return F.tanh(F.tanh(x @ w) @ w)

    (w,) = arrays((8, 8))
    flag = np.asarray(True)
    plain, less = (joint(chosen(f), w, flag) for f in (inner, weft.checkpoint(inner)))
    assert_same_values(less, plain, [w, flag])
    assert peak_bytes(less) < peak_bytes(plain)


@pytest.mark.parametrize("transform", [weft.jit, lambda f: weft.vmap(f, (0, None, None))])
def test_a_checkpoint_under_another_transformation(transform: Any) -> None:
    x, *weights = arrays((ROWS, 1, WIDTH), *(((WIDTH, WIDTH),) * 6))

    def inner(x: Any, w: Any, v: Any) -> Any:
        return F.tanh(F.tanh(x @ w) @ v)

    def through(block: Block) -> Callable[..., Any]:
        def loss(weights: Any) -> Any:
            y = weft.asarray(x)
            for w, v in zip(weights[::2], weights[1::2], strict=True):
                y = transform(block)(y, w, v)
            return weft.sum(y)

        return loss

    plain, less = (joint(through(f), weights) for f in (inner, weft.checkpoint(inner)))
    assert arena_bytes(less) < arena_bytes(plain)


def test_an_op_that_stays_whole_is_run_again_behind_a_barrier() -> None:
    """Two sorts of one input: the second waits for the first, and is not the first."""
    b = Builder()
    x = b.param("f32", [32])
    first = b.emit("sort", x, axis=0)
    later = b.emit("sort", b.emit("barrier", x, first), axis=0)
    program = b.build(first + 1.0, later * 2.0)
    (cluster,) = weft.compile(program, "cpu").clusters.values()
    kernels = cluster.compilation["region"].kernels
    assert sum(kernel.opaque is not None for kernel in kernels) == 2
    (values,) = arrays((32,))
    found = weft.run(program, [values], backend="cpu")
    np.testing.assert_array_equal(found[1], 2 * np.sort(values))


def test_a_complex_value_behind_a_barrier() -> None:
    b = Builder()
    x, y = b.param("cf32", [4]), b.param("f32", [4])
    late = b.emit("barrier", x, y) * x
    real = b.emit("barrier", y, x) + y
    program = b.build(late, real)
    left, right = arrays((4,), (4,))
    found = weft.run(program, [left + 1j * right, right], backend="cpu")
    np.testing.assert_allclose(found[0], (left + 1j * right) ** 2, rtol=1e-5)
    np.testing.assert_allclose(found[1], 2 * right)
