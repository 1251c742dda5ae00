"""How well the price orders the plans of a kernel, kernel by kernel, on this machine.

    python -m benchmarks.price LOG.csv [--gpu] [--kernels "softmax;exp"] [--rounds N]

Every plan that the tuner would try is built. On the CPU plans take turns on one core, and the least
processor time of all rounds counts: a clock on the wall also tells who else was at work. On a GPU
it is the device's own clock, as `weft tune --gpu` asks it. `weft log LOG.csv` prints the same table
again.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

import weft
from benchmarks.fusion_programs import blur, jacobi4, step, unsharp
from weft.cli.tuning import tell_log
from weft.driver.cuda import target_of_device
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.driver.stages.generators import generator_for
from weft.driver.tuning import measure
from weft.driver.tuning.measure import Measurement
from weft.driver.tuning.single_kernel import build_alone, module_of, some_data
from weft.driver.tuning.tune import KernelClass, classes_of
from weft.memory.from_region import assign_buffers
from weft.plan.ir import Plan
from weft.plan.text import plan_to_json
from weft.ptir import Builder, Program
from weft.runtime import executor
from weft.target.known import target_named
from weft.target.target import Target

_AT_ONCE: Final = 1.5e-3
"""Seconds that are measured at once, about: so short that nobody else comes between often."""


def built(
    function: Callable[..., Any], *shapes: tuple[int, ...], dtype: str = "f32"
) -> Callable[[], Program]:
    def make() -> Program:
        b = Builder("priced")
        return b.build(function(b, *(b.param(dtype, list(shape)) for shape in shapes)))

    return make


def traced(function: Callable[[Any], Any], size: int) -> Callable[[], Program]:
    return lambda: weft.jit(function).program(weft.tensor(np.zeros((size, size), np.float32)))


def product(m: int, n: int, k: int, dtype: str = "f32") -> Callable[[], Program]:
    return built(lambda b, x, y: x @ y, (m, k), (k, n), dtype=dtype)


def across(m: int, n: int, k: int) -> Callable[[], Program]:
    return built(lambda b, x, y: x @ b.transpose(y, perm=[1, 0]), (m, k), (n, k))


def attention(causal: bool, *shape: int, dtype: str = "f32") -> Callable[[], Program]:
    def function(b: Builder, q: Any, k: Any, v: Any) -> Any:
        return b.emit("weft.attention", q, k, v, causal=causal)[0]

    return built(function, shape, shape, shape, dtype=dtype)


def norm(b: Builder, x: Any, scale: Any, shift: Any) -> Any:
    return b.layer_norm(x, scale, shift, epsilon=1e-5, feature_axis=-1)


SQUARE: Final = (512, 512)
KERNELS: Final[dict[str, Callable[[], Program]]] = {
    "256x256x256": product(256, 256, 256),
    "512x512x512": product(512, 512, 512),
    "384x640x320": product(384, 640, 320),
    "96x96x96": product(96, 96, 96),
    "64x64x1024": product(64, 64, 1024),
    "1024x64x64": product(1024, 64, 64),
    "16x512x512": product(16, 512, 512),
    "200x300x100": product(200, 300, 100),
    "4x1024x768 NT": across(4, 1024, 768),
    "8x512x512 NT": across(8, 512, 512),
    "8*64x64x64": built(lambda b, x, y: x @ y, (8, 64, 64), (8, 64, 64)),
    "gelu of a product": built(lambda b, x, y: b.gelu(x @ y), (256, 128), (128, 512)),
    "exp": built(lambda b, x: b.exp(x), SQUARE),
    "gelu": built(lambda b, x: b.gelu(x), SQUARE),
    "tanh, times": built(lambda b, x, y: b.tanh(x) * y + x, (300, 700), (300, 700)),
    "sum with a transpose": built(
        lambda b, x, y: b.transpose(x, perm=[1, 0]) + y, (600, 800), (800, 600)
    ),
    "sums of columns": built(lambda b, x: b.reduce_sum(x, axes=[0]), (1024, 256)),
    "softmax": built(lambda b, x: b.softmax(x, axis=1), SQUARE),
    "softmax, short rows": built(lambda b, x: b.softmax(x, axis=1), (2048, 64)),
    "softmax of columns": built(lambda b, x: b.softmax(x, axis=0), (256, 512)),
    "layer norm": built(norm, (512, 768), (768,), (768,)),
    "greatest exponential": built(lambda b, x: b.reduce_max(b.exp(x), axes=[1]), (512, 1024)),
    "blur": traced(blur, 600),
    "one step": traced(step, 900),
    "four steps": traced(lambda x: jacobi4(None, x), 700),
    "unsharp": traced(lambda x: unsharp(None, x), 700),
    "attention": attention(False, 2, 4, 256, 64),
    "causal attention": attention(True, 1, 8, 256, 32),
    # Not looked at while the constants of the price were chosen:
    "300x1000x200": product(300, 1000, 200),
    "32x2048x256": product(32, 2048, 256),
    "tanh of a product": built(lambda b, x, y: b.tanh(x @ y), (128, 700), (700, 192)),
    "6x640x900 NT": across(6, 640, 900),
    "silu, times": built(lambda b, x, y: b.silu(x) * y, SQUARE, SQUARE),
    "logarithm": built(lambda b, x: b.log(x * x + x * x), (256, 777)),
    "log-sum-exp": built(lambda b, x: b.log(b.reduce_sum(b.exp(x), axes=[1])), (700, 300)),
    "variance of columns": built(lambda b, x: b.reduce_sum(x * x, axes=[0]), (333, 512)),
    "transpose, exp": built(lambda b, x: b.exp(b.transpose(x, perm=[1, 0])), (512, 640)),
    "softmax, 1000": built(lambda b, x: b.softmax(x + x, axis=1), (256, 1000)),
    "longer attention": attention(False, 1, 4, 512, 32),
}

ROWS: Final = (16384, 1024)
ON_GPU: Final[dict[str, Callable[[], Program]]] = {
    "4096x4096x4096": product(4096, 4096, 4096, "bf16"),
    "1024x1024x8192": product(1024, 1024, 8192, "bf16"),
    "8192x768x3072": product(8192, 768, 3072, "bf16"),
    "64x4096x4096": product(64, 4096, 4096, "bf16"),
    "2000x1000x1500": product(2000, 1000, 1500, "bf16"),
    "gelu of a product": built(
        lambda b, x, y: b.gelu(x @ y), (4096, 768), (768, 3072), dtype="bf16"
    ),
    "1024x1024x1024, f32": product(1024, 1024, 1024),
    "exp": built(lambda b, x: b.exp(x), (8192, 8192), dtype="bf16"),
    "silu, times": built(lambda b, x, y: b.silu(x) * y, ROWS, ROWS),
    "transpose": built(lambda b, x: b.exp(b.transpose(x, perm=[1, 0])), (8192, 4096), dtype="bf16"),
    "softmax": built(lambda b, x: b.softmax(x, axis=1), ROWS, dtype="bf16"),
    "softmax, long rows": built(lambda b, x: b.softmax(x, axis=1), (512, 32768), dtype="bf16"),
    "layer norm": built(norm, (16384, 768), (768,), (768,)),
    "sums of rows": built(lambda b, x: b.reduce_sum(x, axes=[1]), (65536, 256)),
    "sums of columns": built(lambda b, x: b.reduce_sum(x, axes=[0]), (16384, 2048)),
    "softmax of columns": built(lambda b, x: b.softmax(x, axis=0), (1024, 4096)),
    "attention": attention(False, 4, 16, 2048, 64, dtype="bf16"),
    "causal attention": attention(True, 2, 16, 4096, 128, dtype="bf16"),
    # Not looked at while the price was made:
    "3000x2048x1024": product(3000, 2048, 1024, "f16"),
    "512x30000x768": product(512, 30000, 768, "bf16"),
    "silu of a product": built(
        lambda b, x, y: b.silu(x @ y), (2048, 1024), (1024, 5000), dtype="bf16"
    ),
    "16*512x512x512": built(lambda b, x, y: x @ y, (16, 512, 512), (16, 512, 512), dtype="f16"),
    "777x1500x333, f32": product(777, 1500, 333),
    "tanh, times": built(lambda b, x, y: b.tanh(x) * y + x, (3000, 7000), (3000, 7000)),
    "logarithm": built(lambda b, x: b.log(x * x), (4096, 4096), dtype="f16"),
    "sum with a transpose": built(
        lambda b, x, y: b.transpose(x, perm=[1, 0]) + y, (6000, 4000), (4000, 6000)
    ),
    "log-sum-exp": built(lambda b, x: b.log(b.reduce_sum(b.exp(x), axes=[1])), (20000, 600)),
    "greatest exponential": built(
        lambda b, x: b.reduce_max(b.exp(x), axes=[1]), (8192, 4096), dtype="bf16"
    ),
    "softmax, 3000": built(lambda b, x: b.softmax(x + x, axis=1), (8192, 3000)),
    "layer norm, 2048": built(norm, (8192, 2048), (2048,), (2048,), dtype="bf16"),
    "squares of columns": built(lambda b, x: b.reduce_sum(x * x, axes=[0]), (50000, 333)),
    "shorter attention": attention(False, 16, 12, 1024, 64, dtype="f16"),
    "short causal attention": attention(True, 32, 16, 512, 128, dtype="bf16"),
}


def seconds(program: executor.Program, inputs: list[Any]) -> float:
    started = time.process_time()
    program.run(inputs, threads=1)
    return time.process_time() - started


def repeated(artifact: Any, inputs: list[Any]) -> tuple[executor.Program, int]:
    """A program that carries out a kernel so often that a call itself is nothing."""
    once = executor.Program(artifact)
    taken = min(seconds(once, inputs) for _ in range(3))
    turns = max(1, min(2000, int(_AT_ONCE / max(taken, 1e-7))))
    return executor.Program(replace(artifact, steps=artifact.steps * turns)), turns


def measured(name: str, kernels: KernelClass, rounds: int) -> Iterator[Measurement]:
    """Every plan of a kernel, in turns."""
    target, kernel = target_named("cpu"), kernels.kernel
    made = [build_alone(kernel, kernels.module, plan, target).artifact for plan in kernels.plans]
    inputs = [some_data(spec, number) for number, spec in enumerate(made[0].inputs)]
    runs = [repeated(artifact, inputs) for artifact in made]
    times = [float("inf")] * len(runs)
    for _ in range(rounds):
        taken = [seconds(program, inputs) / turns for program, turns in runs]
        times = [min(pair) for pair in zip(times, taken, strict=True)]
    for plan, least in zip(kernels.plans, times, strict=True):
        yield line_of(name, kernels, plan, target, least)


def on_gpu(name: str, kernels: KernelClass, rounds: int) -> Iterator[Measurement]:
    """Every plan of a kernel, in turns, by the device's clock."""
    target, kernel = target_named(target_of_device()), kernels.kernel
    build = partial(build_alone, kernel, kernels.module, target=target)
    with ThreadPoolExecutor() as pool:
        made = list(pool.map(lambda plan: build(plan=plan), kernels.plans))
    specs = made[0].artifact.inputs
    inputs = [some_data(spec, number) for number, spec in enumerate(specs)]
    clock = generator_for(target).clock
    times = [min(clock(one, inputs) for _ in range(rounds)) for one in made]
    for plan, least in zip(kernels.plans, times, strict=True):
        yield line_of(name, kernels, plan, target, least)


def line_of(
    name: str, kernels: KernelClass, plan: Plan, target: Target, actual: float
) -> Measurement:
    """A line of the log."""
    kernel, alone = kernels.kernel, module_of(kernels.kernel, kernels.module)
    guess = generator_for(target).estimate(kernel, alone, assign_buffers(alone), plan, target)
    work, text = guess.work, json.dumps(plan_to_json(plan))
    return Measurement(
        f"{name}: {kernel.name}", kernel.pattern.value, work.operations, work.bytes,
        guess.usage.occupancy, guess.seconds, actual, text,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--kernels", default="")
    parser.add_argument("--rounds", type=int, default=0)
    options = parser.parse_args()
    known, measure_all, rounds = (ON_GPU, on_gpu, 2) if options.gpu else (KERNELS, measured, 30)
    target = target_named(target_of_device() if options.gpu else "cpu")
    if not options.gpu:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for name in options.kernels.split(";") if options.kernels else known:
        program = known[name]()
        for kernels in classes_of(Compilation(program, target, make_signature(program))):
            lines = list(measure_all(name, kernels, options.rounds or rounds))
            measure.append(options.log, lines)
            print(f"{name}: {kernels.kernel.name}, {len(kernels.plans)} plans", flush=True)
    tell_log(options.log)


if __name__ == "__main__":
    main()
