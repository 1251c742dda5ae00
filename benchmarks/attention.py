"""The causal attention of the CPU benchmark by each of its algorithms: milliseconds of processor
time, and errors.

    python -m benchmarks.attention [--threads N] [--rounds N]

Interleaved, the least time of all rounds; errors are against f64, over the largest result.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

import weft
from weft.coarse.attention import ALGORITHMS
from weft.ptir import Builder, Program

Array = NDArray[Any]
HEADS, ROWS, DEPTH = 12, 512, 64


def attention(algorithm: str) -> Program:
    b = Builder("attention")
    q, k, v = (b.param("f32", [1, HEADS, ROWS, DEPTH]) for _ in range(3))
    return b.build(b.emit("weft.attention", q, k, v, causal=True, algo_set=[algorithm])[0])


def exact(q: Array, k: Array, v: Array) -> Array:
    scores = q.astype(np.float64) @ np.swapaxes(k, -1, -2) / np.sqrt(DEPTH)
    scores = np.where(np.tri(ROWS, dtype=bool), scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True) @ v)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    shape = (1, HEADS, ROWS, DEPTH)
    arrays = [rng.standard_normal(shape).astype(np.float32) for _ in range(3)]
    ways = {name: weft.compile(attention(name)) for name in ALGORITHMS}
    times = dict.fromkeys(ways, np.inf)
    for _ in range(options.rounds):
        for name, way in ways.items():
            started = time.process_time()
            way.run(arrays, threads=options.threads)
            times[name] = min(times[name], time.process_time() - started)
    truth = exact(*arrays)
    print("| causal attention 1x12x512x64, f32 | ms of processor time | error |\n|---|---:|---:|")
    for name, way in ways.items():
        error = np.abs(way.run(arrays)[0] - truth).max() / np.abs(truth).max()
        print(f"| {name} | {1e3 * times[name]:.2f} | {error:.1e} |")


if __name__ == "__main__":
    main()
