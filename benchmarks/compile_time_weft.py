"""The Weft side of `compile_time.py`: how long Weft takes to compile one model, as JSON.

    python -m benchmarks.compile_time_weft MODEL

The process has built the program and nothing else, and for a training step not even that: tracing
it and its gradient is part of the time. Compiling and the first call are timed together, what Weft
loads for them included; what later calls take is subtracted.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import weft
from benchmarks.cpu_clock import processor_seconds, seconds_and_work
from examples.gpt import Shape, build_gpt
from examples.make_programs import attention_stack
from weft import functional as wf
from weft.ptir import Program

Array = NDArray[Any]
STEADY_RUNS = 3
GPT2 = Shape(layers=12, width=768, heads=12, sequence=128, vocabulary=50257)


@dataclass(frozen=True)
class Case:
    """How a program is got, with its data and then its parameters."""

    program: Callable[[], Program]
    data: list[Array]
    params: list[Array]


def gpt2() -> Case:
    program, weights = build_gpt(GPT2)
    return Case(lambda: program, [np.arange(GPT2.sequence)], weights)


# -- a training step, as a function of tensors ---------------------------------------------------


def block(x: Any, w: list[Any]) -> Any:
    rows, width = x.shape
    joined = wf.layer_norm(x, (width,), w[0], w[1], 1e-5) @ w[2] + w[3]
    split = weft.reshape(joined, (1, rows, 3, GPT2.heads, width // GPT2.heads))
    q, k, v = (weft.permute_dims(split[:, :, part], (0, 2, 1, 3)) for part in range(3))
    mixed = weft.permute_dims(wf.attention(q, k, v, causal=True), (0, 2, 1, 3))
    x = x + (weft.reshape(mixed, (rows, width)) @ w[4] + w[5])
    hidden = wf.gelu(wf.layer_norm(x, (width,), w[6], w[7], 1e-5) @ w[8] + w[9])
    return x + (hidden @ w[10] + w[11])


def loss(weights: list[Any], ids: Any, following: Any) -> Any:
    table, places, *rest = weights
    x = weft.take(table, ids, axis=0) + places
    for number in range(GPT2.layers):
        x = block(x, rest[12 * number : 12 * number + 12])
    x = wf.layer_norm(x, (GPT2.width,), rest[-2], rest[-1], 1e-5)
    return wf.cross_entropy(x @ weft.permute_dims(table, (1, 0)), following)


def step(ids: Any, following: Any, weights: list[Any]) -> Any:
    value, slopes = weft.value_and_grad(loss)(weights, ids, following)
    return value, [w - 0.01 * slope for w, slope in zip(weights, slopes, strict=True)]


def weight_shapes() -> list[tuple[int, ...]]:
    width = GPT2.width
    row = (width,)
    each = [
        row, row, (width, 3 * width), (3 * width,), (width, width), row,
        row, row, (width, 4 * width), (4 * width,), (4 * width, width), row,
    ]  # fmt: skip
    tables = [(GPT2.vocabulary, width), (GPT2.sequence, width)]
    return [*tables, *(each * GPT2.layers), row, row]


def gpt2_training() -> Case:
    weights = [np.full(shape, 1e-2, np.float32) for shape in weight_shapes()]
    data = [np.arange(GPT2.sequence), np.arange(GPT2.sequence)]
    return Case(lambda: weft.jit(step).program(*data, weights), data, weights)


def attention_12_blocks() -> Case:
    program = attention_stack()
    inputs = [
        np.full(kind.static_shape, 1e-2 if kind.dtype.is_float else 5, kind.dtype.numpy)
        for kind in program.main.parameters
        if isinstance(kind, weft.ptir.TensorType)
    ]
    return Case(lambda: program, inputs, [])


MODELS = {
    "attention_12_blocks": attention_12_blocks,
    "gpt2": gpt2,
    "gpt2_training": gpt2_training,
}


def measure(name: str) -> dict[str, object]:
    case = MODELS[name]()
    data, params = case.data, case.params
    places = range(len(data), len(data) + len(params))
    worked, started = processor_seconds(), time.perf_counter()
    program = case.program()
    traced = time.perf_counter() - started
    executable = weft.compile(program, "cpu", params=places)
    run = executable.bind(params)
    compiled = time.perf_counter() - started
    run(*data)
    taken, work = time.perf_counter() - started, processor_seconds() - worked
    later = [seconds_and_work(run, data) for _ in range(STEADY_RUNS)]
    steady = min(seconds for seconds, _ in later)
    (cluster,) = executable.clusters.values()
    times = {"tracing": traced, **cluster.times}
    checking = compiled - sum(times.values())
    return {
        "compile": taken - steady,
        "run": steady,
        "work": work - min(work for _, work in later),
        "stages": {**times, "checking": checking, "first call": taken - compiled - steady},
        "kernels": len(cluster.built.symbols),
        "distinct": len(set(cluster.built.symbols.values())),
        "version": f"weft {weft.__version__}, Python {platform.python_version()}, "
        f"{platform.machine()}, {os.cpu_count()} processors",
    }


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
