"""A small GPT in PTIR: built, verified, compiled for this machine, run, and timed kernel by kernel.

    python examples/gpt.py

The model has random weights, so what it predicts means nothing; that it predicts it the same way on
every machine does.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import weft
from weft.ptir import Builder, Program, Value

Array = NDArray[Any]


@dataclass(frozen=True)
class Shape:
    """The sizes of the model."""

    layers: int = 2
    width: int = 64
    heads: int = 4
    sequence: int = 16
    vocabulary: int = 96


class Weights:
    """Declares the parameters of the program, and makes a random array for each."""

    def __init__(self, b: Builder, seed: int = 0) -> None:
        self.b = b
        self.rng = np.random.default_rng(seed)
        self.arrays: list[Array] = []

    def __call__(self, *shape: int, mean: float = 0.0, spread: float = 0.0) -> Value:
        values = mean + spread * self.rng.standard_normal(shape)
        self.arrays.append(values.astype(np.float32))
        return self.b.param("f32", shape)


@dataclass(frozen=True)
class Block:
    """The parameters of one transformer block."""

    norm_1: tuple[Value, Value]
    attention: tuple[Value, Value]
    project: tuple[Value, Value]
    norm_2: tuple[Value, Value]
    expand: tuple[Value, Value]
    contract: tuple[Value, Value]

    @classmethod
    def declare(cls, weights: Weights, width: int) -> Block:
        def norm() -> tuple[Value, Value]:
            return weights(width, mean=1.0), weights(width)

        def dense(inputs: int, outputs: int) -> tuple[Value, Value]:
            return weights(inputs, outputs, spread=inputs**-0.5), weights(outputs)

        return cls(
            norm(), dense(width, 3 * width), dense(width, width),
            norm(), dense(width, 4 * width), dense(4 * width, width),
        )  # fmt: skip


def build_gpt(shape: Shape) -> tuple[Program, list[Array]]:
    """The program from token ids to logits, and its weights. The ids are the first input."""
    b = Builder("gpt")
    tokens = b.param("si64", [shape.sequence])
    weights = Weights(b)
    token_table = weights(shape.vocabulary, shape.width, spread=0.5)
    position_table = weights(shape.sequence, shape.width, spread=0.1)
    blocks = [Block.declare(weights, shape.width) for _ in range(shape.layers)]
    gamma, beta = weights(shape.width, mean=1.0), weights(shape.width)

    x = b.take(token_table, tokens) + position_table
    for block in blocks:
        x = x + self_attention(b, block, layer_norm(b, x, *block.norm_1), shape)
        x = x + feed_forward(b, block, layer_norm(b, x, *block.norm_2))
    x = layer_norm(b, x, gamma, beta)
    logits = b.dot_general(x, token_table, contract=([1], [1]))
    return b.build(logits), weights.arrays


def layer_norm(b: Builder, x: Value, gamma: Value, beta: Value) -> Value:
    return b.layer_norm(x, gamma, beta, epsilon=1e-5, feature_axis=-1)


def dense(b: Builder, x: Value, weight: Value, bias: Value) -> Value:
    y = b.matmul(x, weight)
    return y + b.broadcast_to(bias, y.shape)


def self_attention(b: Builder, block: Block, x: Value, shape: Shape) -> Value:
    depth = shape.width // shape.heads
    joined = dense(b, x, *block.attention)
    split = b.reshape(joined, [1, shape.sequence, 3, shape.heads, depth])
    heads = b.transpose(split, [2, 0, 3, 1, 4])
    parts = [1, 1, shape.heads, shape.sequence, depth]
    q, k, v = (b.reshape(b.slice(heads, [part, 0, 0, 0, 0], parts), parts[1:]) for part in range(3))
    mixed = b.transpose(b.attention(q, k, v, causal=True), [0, 2, 1, 3])
    return dense(b, b.reshape(mixed, [shape.sequence, shape.width]), *block.project)


def feed_forward(b: Builder, block: Block, x: Value) -> Value:
    return dense(b, b.gelu(dense(b, x, *block.expand)), *block.contract)


def reference_times(program: Program, inputs: list[Array]) -> tuple[Array, dict[str, list[float]]]:
    """The logits of the reference backend, and the seconds of each instruction by op."""
    seconds: dict[str, list[float]] = defaultdict(list)

    def observe(body: object, instruction: weft.ptir.Instruction, elapsed: float) -> None:
        seconds[instruction.op.mnemonic].append(elapsed)

    weft.run(program, inputs, backend="reference")
    (logits,) = weft.run(program, inputs, backend="reference", observer=observe)
    return logits, seconds


def kernel_times(
    program: Program, inputs: list[Array]
) -> tuple[Array, dict[str, list[float]], str]:
    """The logits of the compiled program, the seconds of its kernels by kind, and what was
    built."""
    executable = weft.compile(program, "cpu", params=range(1, len(inputs)))
    (logits,) = executable(*inputs)
    executable.profile(inputs)
    seconds: dict[str, list[float]] = defaultdict(list)
    for label, elapsed in executable.profile(inputs):
        seconds[label.rstrip("0123456789")].append(elapsed)
    return logits, seconds, executable.explain()


def print_program(console: Console, program: Program, lines: int = 24) -> None:
    text = str(weft.ptir.dumps(program, "text")).splitlines()
    for line in text[:lines]:
        console.print(line, markup=False, highlight=False, no_wrap=True, overflow="ellipsis")
    console.print(f"  ... {len(text) - lines} more lines\n", markup=False, highlight=False)


def predictions_table(tokens: Array, logits: Array) -> Table:
    """The three likeliest next tokens at each position."""
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances = shifted / shifted.sum(axis=1, keepdims=True)
    table = Table(title="next tokens")
    for heading in ("position", "token", "likeliest", "second", "third"):
        table.add_column(heading, justify="right")
    for position, row in enumerate(chances):
        best = np.argsort(-row, kind="stable")[:3]
        cells = (f"{token} ({row[token]:.1%})" for token in best)
        table.add_row(str(position), str(tokens[position]), *cells)
    return table


def timings_table(seconds: dict[str, list[float]], what: str, backend: str) -> Table:
    """Where the time went, the most expensive first."""
    total = sum(map(sum, seconds.values()))
    table = Table(title=f"time by {what}, {backend} backend")
    for heading in (what, "count", "microseconds", "share"):
        table.add_column(heading, justify="left" if heading == what else "right")
    for op, times in sorted(seconds.items(), key=lambda item: -sum(item[1])):
        spent = sum(times)
        table.add_row(op, str(len(times)), f"{spent * 1e6:.0f}", f"{spent / total:.1%}")
    count = sum(map(len, seconds.values()))
    table.add_section()
    table.add_row("all", str(count), f"{total * 1e6:.0f}", "")
    return table


def main() -> None:
    console = Console()
    shape = Shape()
    started = time.perf_counter()
    program, weights = build_gpt(shape)
    built = time.perf_counter()
    weft.ptir.verify(program)
    verified = time.perf_counter()
    tokens = np.random.default_rng(1).integers(0, shape.vocabulary, shape.sequence)
    inputs = [tokens, *weights]
    logits, kernels, explained = kernel_times(program, inputs)
    expected, ops = reference_times(program, inputs)

    print_program(console, program)
    console.print(
        f"{len(program.main.body)} instructions, {sum(w.size for w in weights):,} weights; "
        f"built in {built - started:.3f} s, verified in {verified - built:.3f} s\n",
        highlight=False,
    )
    console.print(explained, highlight=False)
    console.print(predictions_table(tokens, logits))
    console.print(timings_table(ops, "op", "reference"))
    console.print(timings_table(kernels, "kernel", "cpu"))
    distance = float(np.abs(logits - expected).max())
    console.print(f"largest difference between the two backends: {distance:.1e}", highlight=False)


if __name__ == "__main__":
    main()
