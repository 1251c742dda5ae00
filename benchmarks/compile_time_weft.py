"""The Weft side of `compile_time.py`: how long Weft takes to compile one model, as JSON.

    python -m benchmarks.compile_time_weft MODEL

The process has built the program and nothing else. Compiling and the first call are timed together,
what Weft loads for them included; what later calls take is subtracted.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

import weft
from examples.gpt import Shape, build_gpt
from examples.make_programs import attention_stack
from weft.ptir import Program

Array = NDArray[Any]
STEADY_RUNS = 3


def gpt2() -> tuple[Program, list[Array], list[Array]]:
    """A program with its data and its parameters, in this order."""
    shape = Shape(layers=12, width=768, heads=12, sequence=128, vocabulary=50257)
    program, weights = build_gpt(shape)
    return program, [np.arange(shape.sequence)], weights


def attention_12_blocks() -> tuple[Program, list[Array], list[Array]]:
    program = attention_stack()
    inputs = [
        np.full(kind.static_shape, 1e-2 if kind.dtype.is_float else 5, kind.dtype.numpy)
        for kind in program.main.parameters
        if isinstance(kind, weft.ptir.TensorType)
    ]
    return program, inputs, []


MODELS = {"attention_12_blocks": attention_12_blocks, "gpt2": gpt2}


def measure(name: str) -> dict[str, object]:
    program, data, params = MODELS[name]()
    places = range(len(data), len(data) + len(params))
    started = time.perf_counter()
    executable = weft.compile(program, "cpu", params=places)
    run = executable.bind(params)
    run(*data)
    taken = time.perf_counter() - started
    steady = min(_seconds(run, data) for _ in range(STEADY_RUNS))
    (cluster,) = executable.clusters.values()
    return {
        "compile": taken - steady,
        "run": steady,
        "stages": cluster.times,
        "kernels": len(cluster.built.symbols),
        "distinct": len(set(cluster.built.symbols.values())),
        "version": f"weft {weft.__version__}, Python {platform.python_version()}, "
        f"{platform.machine()}, {os.cpu_count()} processors",
    }


def _seconds(function: Any, inputs: list[Array]) -> float:
    started = time.perf_counter()
    function(*inputs)
    return time.perf_counter() - started


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
