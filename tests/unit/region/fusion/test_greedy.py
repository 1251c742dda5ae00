"""Which blocks become one kernel, where the choice matters for whole models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
import weft.functional as F
from examples.gpt import Shape, build_gpt
from tests.support.lowered import lowered
from weft.foundation.dtypes import I1
from weft.ptir import Builder, Program
from weft.region.ir import Binary, Pattern, Unary, walk
from weft.tiny.from_ptir import lower_program


def residual_blocks(count: int, rows: int = 64, width: int = 96) -> Program:
    """`x = x + norm(x) @ w + bias`, again and again: what a transformer is made of."""
    b = Builder("residual")
    x = b.param("f32", [rows, width])
    gamma, beta = b.param("f32", [width]), b.param("f32", [width])
    layers = [(b.param("f32", [width, width]), b.param("f32", [width])) for _ in range(count)]
    for weight, bias in layers:
        y = b.layer_norm(x, gamma, beta, epsilon=1e-5, feature_axis=-1) @ weight
        x = x + (y + b.broadcast_to(bias, y.shape))
    return b.build(x)


def test_a_sum_that_later_blocks_read_is_stored_by_the_product_it_ends() -> None:
    """The alternative is to add up the whole past of the sum again in every kernel that reads it:
    then no two blocks are the same, and each reads more than the one before."""
    module = lowered(lower_program(residual_blocks(6))).module
    assert [k.pattern for k in module.kernels] == [Pattern.ROW, Pattern.MATMUL] * 6
    for row, product in zip(module.kernels[::2], module.kernels[1::2], strict=True):
        (x,) = (name for name in row.inputs if module.tensors[name].shape == (64, 96))
        assert x in product.inputs
        assert len(product.outputs) == 1


def test_a_layer_of_a_transformer_is_seven_kernels_and_computes_nothing_twice() -> None:
    """Every norm is a row kernel of its own: in the packing of the product after it, it would be
    computed for every block of columns. Activations, biases and residuals end products."""
    shape = Shape(layers=2, width=96, heads=3, sequence=32, vocabulary=64)
    module = lowered(lower_program(build_gpt(shape)[0])).module
    row, product, attention = Pattern.ROW, Pattern.MATMUL, Pattern.ATTENTION
    layer = [row, product, attention, product, row, product, product]
    assert [kernel.pattern for kernel in module.kernels] == [*layer * 2, row, product]
    functions = [
        (kernel.pattern, let.expr.fn)
        for kernel in module.kernels
        for let in walk(kernel.body)
        if isinstance(let.expr, Unary)
    ]
    per_layer = [(row, "rsqrt"), (attention, "exp"), (row, "rsqrt"), (product, "gelu")]
    assert functions == [*per_layer * 2, (row, "rsqrt")]


def test_what_windows_that_overlap_read_is_the_last_step_of_a_convolution() -> None:
    """A pool reads an activation more than twice an element, and would compute it as often."""
    given = [(1, 3, 40, 40), (16, 3, 3, 3), (16, 1, 1), (16, 1, 1)]
    arrays = [weft.asarray(np.ones(shape, np.float32)) for shape in given]

    def stem(x: Any, w: Any, scale: Any, shift: Any) -> Any:
        return F.max_pool2d(F.relu(F.conv2d(x, w) * scale + shift), 3, stride=2, padding=1)

    module = lowered(lower_program(weft.jit(stem).program(*arrays))).module
    conv, pool = module.kernels
    assert (conv.pattern, pool.pattern) == (Pattern.CONV, Pattern.ROW)
    assert not any(isinstance(let.expr, Unary | Binary) for let in walk(pool.body))


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("target", ["cpu", "sm90"])
def test_who_sees_whom_is_never_stored(target: str, window: int | None) -> None:
    """Many layers share the truth of counters that says which keys a query sees. Read from memory,
    it is a mask like any other, and no layer knows which blocks of keys it can leave out."""

    def layers(x: weft.Tensor) -> weft.Tensor:
        places = weft.arange(x.shape[2])
        apart = places[:, None] - places[None, :]
        for _ in range(6):
            if window is None:
                x = F.attention(x, x, x, causal=True)
            else:
                seen = (apart >= 0) & (apart < window)
                scores = weft.where(seen, x @ x.mT, float("-inf"))
                x = F.softmax(scores, axis=-1) @ x
        return x

    x = weft.asarray(np.zeros((8, 12, 1024, 64), np.float16))
    module = lowered(lower_program(weft.jit(layers).program(x)), target).module
    assert [kernel.pattern for kernel in module.kernels] == [Pattern.ATTENTION] * 6
    assert not [t for t in module.tensors.values() if t.dtype is I1]


@pytest.mark.parametrize("target", ["cpu", "sm90"])
def test_who_sees_whom_of_packed_sequences_is_never_stored(target: str) -> None:
    """Many layers share the numbers of sequences, and the truth that two of them are equal."""

    def layers(x: weft.Tensor, segments: weft.Tensor) -> weft.Tensor:
        for _ in range(6):
            x = F.attention(x, x, x, causal=True, segments=segments)
        return x

    x = weft.asarray(np.zeros((1, 12, 1024, 64), np.float16))
    numbers = weft.asarray(np.zeros(1024, np.int32))
    module = lowered(lower_program(weft.jit(layers).program(x, numbers)), target).module
    assert [k.pattern for k in module.kernels if k.pattern is not Pattern.ROW] == (
        [Pattern.ATTENTION] * 6
    )
    assert max(t.bytes for t in module.tensors.values() if t.name not in module.inputs) <= x.nbytes


def test_hundreds_of_joined_tensors_are_a_few_kernels_of_stored_groups() -> None:
    """Groups of equal shapes are one kernel, and no kernel chooses among many."""
    b = Builder("joined")
    parts = [b.param("f32", [64]) for _ in range(256)]
    whole = b.concat(parts, axis=0)
    module = lowered(lower_program(b.build(b.exp(whole)))).module
    assert len(module.kernels) == 32 + 4 + 2
    assert max(len(kernel.inputs) for kernel in module.kernels) == 8
    assert not [t for t in module.tensors.values() if t.dtype is I1]
