"""What the reference backend costs: a GPT-2-small forward pass against the same maths in NumPy.

    python benchmarks/reference_gpt2.py [--runs N] [--profile]

Both sides use the same weights (random), f32 throughout, and NumPy's BLAS. They take turns, so that
whatever else the machine does hits both; the medians are compared. The bar is a ratio of 1.5.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import weft
from weft.driver.backends import get_backend
from weft.ptir import Builder, Instruction, Program, Value

Array = NDArray[Any]
BAR = 1.5
EPSILON = 1e-5
GELU_SCALE = math.sqrt(2 / math.pi)


@dataclass(frozen=True)
class Shape:
    layers: int = 12
    width: int = 768
    heads: int = 12
    sequence: int = 128
    vocabulary: int = 50257

    @property
    def depth(self) -> int:
        return self.width // self.heads


def make_weights(shape: Shape) -> dict[str, Array]:
    """Every parameter by name, in the order of the program's inputs."""
    rng = np.random.default_rng(0)

    def normal(*dims: int) -> Array:
        return (0.02 * rng.standard_normal(dims)).astype(np.float32)

    width = shape.width
    weights = {"wte": normal(shape.vocabulary, width), "wpe": normal(shape.sequence, width)}
    sizes = {"attn": (width, 3 * width), "proj": (width, width)}
    sizes |= {"fc": (width, 4 * width), "out": (4 * width, width)}
    for layer in range(shape.layers):
        for norm in ("ln1", "ln2"):
            weights[f"{layer}.{norm}.g"] = 1 + normal(width)
            weights[f"{layer}.{norm}.b"] = normal(width)
        for name, (rows, columns) in sizes.items():
            weights[f"{layer}.{name}.w"] = normal(rows, columns)
            weights[f"{layer}.{name}.b"] = normal(columns)
    return {**weights, "lnf.g": 1 + normal(width), "lnf.b": normal(width)}


# -- in NumPy ------------------------------------------------------------------------------------


def numpy_norm(x: Array, gamma: Array, beta: Array) -> Array:
    mean = x.mean(axis=-1, keepdims=True)
    centred = x - mean
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    return np.asarray(centred / np.sqrt(variance + EPSILON) * gamma + beta)


def numpy_gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(GELU_SCALE * (x + 0.044715 * (x * x * x)))))


def numpy_attention(q: Array, k: Array, v: Array) -> Array:
    size = q.shape[-2]
    scores = q @ k.swapaxes(-1, -2) * np.float32(1 / math.sqrt(q.shape[-1]))
    scores = scores + np.where(
        np.tril(np.ones((size, size), bool)), np.float32(0), -np.float32(np.inf)
    )
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True) @ v)


def numpy_gpt2(shape: Shape, w: dict[str, Array], tokens: Array) -> Array:
    def dense(x: Array, name: str) -> Array:
        return np.asarray(x @ w[f"{name}.w"] + w[f"{name}.b"])

    def heads(x: Array) -> Array:
        return x.reshape(1, shape.sequence, shape.heads, shape.depth).transpose(0, 2, 1, 3)

    x = w["wte"][tokens] + w["wpe"]
    for layer in range(shape.layers):
        y = numpy_norm(x, w[f"{layer}.ln1.g"], w[f"{layer}.ln1.b"])
        q, k, v = (heads(part) for part in np.split(dense(y, f"{layer}.attn"), 3, axis=-1))
        mixed = numpy_attention(q, k, v).transpose(0, 2, 1, 3).reshape(shape.sequence, shape.width)
        x = x + dense(mixed, f"{layer}.proj")
        y = numpy_norm(x, w[f"{layer}.ln2.g"], w[f"{layer}.ln2.b"])
        x = x + dense(numpy_gelu(dense(y, f"{layer}.fc")), f"{layer}.out")
    return np.asarray(numpy_norm(x, w["lnf.g"], w["lnf.b"]) @ w["wte"].T)


# -- in PTIR -------------------------------------------------------------------------------------


def ptir_gpt2(shape: Shape, weights: dict[str, Array]) -> Program:
    b = Builder("gpt2")
    tokens = b.param("si64", [shape.sequence])
    w = {name: b.param("f32", array.shape) for name, array in weights.items()}

    def dense(x: Value, name: str) -> Value:
        y = b.matmul(x, w[f"{name}.w"])
        return y + b.broadcast_to(w[f"{name}.b"], y.shape)

    def norm(x: Value, name: str) -> Value:
        return b.layer_norm(x, w[f"{name}.g"], w[f"{name}.b"], epsilon=EPSILON, feature_axis=-1)

    def gelu(x: Value) -> Value:
        inner = GELU_SCALE * (x + 0.044715 * (x * x * x))
        return 0.5 * x * (1.0 + b.tanh(inner))

    def heads(x: Value, part: int) -> Value:
        piece = b.slice(x, [0, part * shape.width], [shape.sequence, shape.width])
        split = b.reshape(piece, [1, shape.sequence, shape.heads, shape.depth])
        return b.transpose(split, [0, 2, 1, 3])

    x = b.take(w["wte"], tokens) + w["wpe"]
    for layer in range(shape.layers):
        joined = dense(norm(x, f"{layer}.ln1"), f"{layer}.attn")
        q, k, v = (heads(joined, part) for part in range(3))
        mixed = b.transpose(b.attention(q, k, v, causal=True), [0, 2, 1, 3])
        x = x + dense(b.reshape(mixed, [shape.sequence, shape.width]), f"{layer}.proj")
        x = x + dense(gelu(dense(norm(x, f"{layer}.ln2"), f"{layer}.fc")), f"{layer}.out")
    return b.build(b.dot_general(norm(x, "lnf"), w["wte"], contract=([1], [1])))


# -- measuring -----------------------------------------------------------------------------------


def interleaved(sides: dict[str, Callable[[], object]], runs: int) -> dict[str, float]:
    """The median seconds of each side; the sides take turns."""
    times: dict[str, list[float]] = defaultdict(list)
    for run in range(runs + 1):
        for name, side in sides.items():
            started = time.perf_counter()
            side()
            if run:  # the first round warms caches up
                times[name].append(time.perf_counter() - started)
    return {name: statistics.median(measured) for name, measured in times.items()}


def profile(execute: Callable[..., object]) -> Table:
    """Seconds by op of one run."""
    spent: dict[str, list[float]] = defaultdict(list)

    def observe(body: object, instruction: Instruction, seconds: float) -> None:
        spent[instruction.op.mnemonic].append(seconds)

    execute(observer=observe)
    table = Table("op", "count", "ms", title="time by op")
    for name, seconds in sorted(spent.items(), key=lambda item: -sum(item[1])):
        table.add_row(name, str(len(seconds)), f"{sum(seconds) * 1e3:.2f}")
    return table


def results_table(times: dict[str, float], plain: str) -> Table:
    table = Table(title="GPT-2 small forward pass, 128 tokens, f32")
    table.add_column("side")
    table.add_column("median ms", justify="right")
    table.add_column("ratio", justify="right")
    for name, seconds in times.items():
        table.add_row(name, f"{seconds * 1e3:.1f}", f"{seconds / times[plain]:.2f}")
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=9, help="how often each side runs")
    parser.add_argument("--profile", action="store_true", help="also show the time by op")
    options = parser.parse_args()
    shape = Shape()
    weights = make_weights(shape)
    tokens = np.random.default_rng(1).integers(0, shape.vocabulary, shape.sequence)
    program = ptir_gpt2(shape, weights)
    weft.ptir.verify(program)
    inputs = [tokens, *weights.values()]
    executable = get_backend("reference").compile(program)

    def execute(**more: Any) -> Array:
        (logits,) = executable.execute(inputs, **more)
        return np.asarray(logits)

    np.testing.assert_allclose(execute(), numpy_gpt2(shape, weights, tokens), rtol=0, atol=2e-4)
    plain, compiled, whole = "NumPy", "reference, prepared once", "weft.run, verifying each time"
    times = interleaved(
        {
            plain: lambda: numpy_gpt2(shape, weights, tokens),
            compiled: execute,
            whole: lambda: weft.run(program, inputs, backend="reference"),
        },
        options.runs,
    )
    console = Console()
    console.print(results_table(times, plain))
    if options.profile:
        console.print(profile(execute))
    ratio = times[compiled] / times[plain]
    console.print(f"ratio {ratio:.2f}, the bar is {BAR}", highlight=False)
    return 0 if ratio <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
