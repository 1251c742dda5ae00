"""GPT-2 124M, forward, one batch of 128 tokens in bf16: the program and the torch function."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any, Final

from benchmarks.gpu_line import Line, Tensor
from benchmarks.needed import need_gpu
from benchmarks.reference_gpt2 import EPSILON, GELU_SCALE, Shape
from weft.ptir import Builder, Value

DTYPE: Final = "bf16"
SHAPE: Final = Shape()
LAYER: Final = 12
"""Parameters of a block."""


def _weights(shape: Shape) -> list[Tensor]:
    width = shape.width
    vector, wide = Tensor((width,), DTYPE), Tensor((4 * width,), DTYPE, scale=0.02)
    block = [
        vector, vector, _matrix(width, 3 * width), Tensor((3 * width,), DTYPE, scale=0.02),
        _matrix(width, width), vector, vector, vector,
        _matrix(width, 4 * width), wide, _matrix(4 * width, width), vector,
    ]  # fmt: skip
    ends = [_matrix(shape.vocabulary, width), _matrix(shape.sequence, width), vector, vector]
    return [*ends, *block * shape.layers]


def _matrix(rows: int, columns: int) -> Tensor:
    return Tensor((rows, columns), DTYPE, scale=0.02)


def _forward(b: Builder, tokens: Value, *weights: Value) -> Value:
    table, places, gamma, beta, *rest = weights
    x = b.take(table, tokens) + places
    for start in range(0, len(rest), LAYER):
        x = _block(b, x, rest[start : start + LAYER])
    return b.dot_general(_norm(b, x, gamma, beta), table, contract=([1], [1]))


def _block(b: Builder, x: Value, w: list[Value]) -> Value:
    shape = SHAPE
    joined = _dense(b, _norm(b, x, w[0], w[1]), w[2], w[3])
    parts = [b.slice(b.cast(joined, DTYPE), [0, i * 768], [128, 768]) for i in range(3)]
    split = [b.reshape(p, [1, shape.sequence, shape.heads, shape.depth]) for p in parts]
    q, k, v = (b.transpose(p, [0, 2, 1, 3]) for p in split)
    mixed = b.transpose(b.attention(q, k, v, causal=True), [0, 2, 1, 3])
    rows = b.reshape(mixed, [shape.sequence, shape.width])
    x = b.cast(b.cast(x, "f32") + _dense(b, rows, w[4], w[5]), DTYPE)
    hidden = _dense(b, _norm(b, x, w[6], w[7]), w[8], w[9])
    inner = GELU_SCALE * (hidden + 0.044715 * (hidden * hidden * hidden))
    active = b.cast(0.5 * hidden * (1.0 + b.tanh(inner)), DTYPE)
    return b.cast(b.cast(x, "f32") + _dense(b, active, w[10], w[11]), DTYPE)


def _dense(b: Builder, x: Value, w: Value, c: Value) -> Value:
    """Not yet rounded."""
    total = b.dot_general(x, w, contract=([1], [0]), out_dtype="f32")
    return total + b.broadcast_to(b.cast(c, "f32"), total.shape)


def _norm(b: Builder, x: Value, gamma: Value, beta: Value) -> Value:
    parts = (b.cast(value, "f32") for value in (x, gamma, beta))
    return b.cast(b.layer_norm(*parts, epsilon=EPSILON, feature_axis=-1), DTYPE)


def _torch_forward(t: Any, tokens: Any, *weights: Any) -> Any:
    functional, shape = t.nn.functional, SHAPE
    table, places, gamma, beta, *rest = weights
    size = (shape.width,)
    x = functional.embedding(tokens, table) + places
    for start in range(0, len(rest), LAYER):
        w = rest[start : start + LAYER]
        y = t.addmm(w[3], functional.layer_norm(x, size, w[0], w[1], EPSILON), w[2])
        heads = (1, shape.sequence, shape.heads, shape.depth)
        q, k, v = (part.reshape(heads).transpose(1, 2) for part in y.split(shape.width, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + t.addmm(w[5], mixed.transpose(1, 2).reshape(shape.sequence, shape.width), w[4])
        y = t.addmm(w[9], functional.layer_norm(x, size, w[6], w[7], EPSILON), w[8])
        x = x + t.addmm(w[11], functional.gelu(y, approximate="tanh"), w[10])
    return functional.layer_norm(x, size, gamma, beta, EPSILON) @ table.t()


def gpt2_lines() -> Iterator[Line]:
    weights = _weights(SHAPE)
    tokens = Tensor((SHAPE.sequence,), "si64", below=SHAPE.vocabulary)
    count = sum(math.prod(found.shape) for found in weights[:1] + weights[4:])
    yield Line(
        "gpt2", "GPT-2 124M forward b1 s128", DTYPE, (tokens, *weights), _forward,
        _torch_forward, flops=2.0 * SHAPE.sequence * count, tolerance=6e-2,
    )  # fmt: skip


if __name__ == "__main__":
    need_gpu()
    sys.exit("this line is measured by `python -m benchmarks.gpu --family gpt2`")
