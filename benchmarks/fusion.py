"""Nothing fused, greedy fusion and exact fusion, on the example programs and their gradients.

    python -m benchmarks.fusion [--rounds N]
    python -m benchmarks.fusion --prices

Levels take turns, one thread each, and the least processor time of all rounds counts: a clock on
the wall also tells who else was at work. Estimates are the cost model's, for all kernels of a
program together, on all cores. With --prices there are estimates alone, of the twelve programs of
`fusion_programs` and of its filters for a CPU and a GPU, beside a bound of all choices; it ends
with 1 if exact fusion is dearer than greedy on one.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import weft
from benchmarks import fusion_programs
from benchmarks.fusion_peers import weft_program
from examples.gpt import Shape, build_gpt
from weft.driver.compile import Executable
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import DEFAULT_LEVEL, EXACT_LEVEL, LEVELS, Compilation
from weft.poly_view.ir import BlockKind, PolyBlock
from weft.ptir import Builder, Program, gradient, load
from weft.region.cost import kernel_seconds, kernel_work, operations_of
from weft.region.fusion.greedy import is_shorter
from weft.target.known import target_named
from weft.target.roofline import Work, time_estimate
from weft.target.target import Target

Array = NDArray[Any]
TARGETS = ("cpu", "sm90")
EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name: str) -> Program:
    return load(EXAMPLES / f"{name}.ptir.txt")


def gpt() -> Program:
    shape = Shape(layers=2, width=192, heads=6, sequence=64, vocabulary=512)
    return build_gpt(shape)[0]


def mlp_loss() -> Program:
    """The squared error of two layers, with the gradients of all weights."""
    b = Builder("mlp_loss")
    x, y = b.param("f32", [128, 256]), b.param("f32", [128, 64])
    first, second = b.param("f32", [256, 512]), b.param("f32", [512, 64])
    wrong = b.gelu(x @ first) @ second - y
    loss = b.reduce_sum(wrong * wrong, axes=[0, 1])
    return gradient(b.build(loss), wrt=[2, 3])


def norm_loss() -> Program:
    """A norm and a softmax one after the other, with gradients: rows, columns, and both again."""
    b = Builder("norm_loss")
    x, gamma, beta = b.param("f32", [512, 384]), b.param("f32", [384]), b.param("f32", [384])
    y = b.softmax(b.layer_norm(x, gamma, beta, epsilon=1e-5, feature_axis=-1), axis=1)
    loss = b.reduce_sum(y * y * x, axes=[0, 1])
    return gradient(b.build(loss), wrt=[0, 1, 2])


def scaled() -> Program:
    """The case in which greedy takes the wrong first step."""
    b = Builder("scaled")
    x, y = b.param("f32", [2048, 1024]), b.param("f32", [2048, 1024])
    z = b.exp(x)
    top = b.broadcast_to(b.reduce_max(z, axes=[1], keepdims=True), [2048, 1024])
    return b.build(b.log(z * top), z * top * y)


PROGRAMS: dict[str, Callable[[], Program]] = {
    "attention": lambda: example("attention"),
    "attention, 12 blocks": lambda: example("attention_12_blocks"),
    "mlp": lambda: example("mlp"),
    "softmax, layer norm": lambda: example("softmax_layernorm"),
    "mlp, loss and gradients": mlp_loss,
    "norm and softmax, gradients": norm_loss,
    "GPT, 2 layers of 192": gpt,
    "scaled by the greatest": scaled,
}


def data_for(executable: Executable) -> list[Array]:
    rng = np.random.default_rng(0)
    return [
        (0.1 * rng.standard_normal(kind.static_shape)).astype(kind.dtype.numpy)
        if kind.dtype.is_float
        else np.zeros(kind.static_shape, kind.dtype.numpy)
        for kind in executable.inputs
    ]


def estimate(executable: Executable) -> float:
    (cluster,) = executable.clusters.values()
    module = cluster.compilation["region"]
    return sum(
        kernel_seconds(kernel, module.tensors, executable.target) for kernel in module.kernels
    )


def seconds(executable: Executable, inputs: list[Array]) -> float:
    """Processor time of one run."""
    started = time.process_time()
    executable.run(inputs, threads=1)
    return time.process_time() - started


def row(name: str, program: Program, rounds: int) -> str:
    """One line of the table: kernels, estimates and times of every level."""
    made = [weft.compile(program, opt_level=level) for level in LEVELS]
    inputs = data_for(made[0])
    times = [min(seconds(exe, inputs) for _ in range(3)) for exe in made]
    for _ in range(rounds):
        times = [min(t, seconds(exe, inputs)) for t, exe in zip(times, made, strict=True)]
    kernels = " | ".join(str(len(exe.artifact.steps)) for exe in made)
    guesses = " | ".join(f"{1e6 * estimate(exe):,.0f}" for exe in made)
    taken = " | ".join(f"{1e6 * t:,.0f}" for t in times)
    return f"| {name} | {kernels} | {guesses} | {taken} |"


def lowered(program: Program, target: str, level: int) -> Compilation:
    """A program up to its kernels."""
    made = Compilation(program, target_named(target), make_signature(program), {}, level)
    return run_pipeline(made, "region")


def price(made: Compilation) -> float:
    """Estimated seconds of all kernels."""
    module = made["region"]
    return sum(kernel_seconds(kernel, module.tensors, made.target) for kernel in module.kernels)


def bound(made: Compilation) -> float:
    """Estimated seconds of one kernel that computes every block once, with matrix units where the
    program's kernels use them, and moves inputs and results alone: no choice takes less."""
    module, target = made["region"], made.target
    works = [
        kernel_work(part, kernel.with_locals(module.tensors), target)
        for kernel in module.kernels
        for part in kernel.parts
    ]
    vector = sum(_seconds_once(block, target) for block in made["poly_view"].blocks)
    outside = (module.tensors[name] for name in (*module.inputs, *module.outputs))
    matrix = sum(work.matrix_seconds for work in works)
    least = Work(matrix, vector, sum(tensor.bytes for tensor in outside))
    return time_estimate(target, least) + target.rates.launch_seconds


def _seconds_once(block: PolyBlock, target: Target) -> float:
    if block.kind is BlockKind.EWISE and block.fn not in ("cast", "const"):
        operations = math.prod(block.shape) * operations_of(block.fn)
    elif block.kind is BlockKind.REDUCE:
        operations = math.prod(axis.size for axis in block.axes)
    else:
        operations = 0
    return operations / target.vector_rate(block.dtype)


def prices() -> int:
    """A table of greedy and exact fusion; how many lines are dearer by the latter."""
    print("| program | " + " | ".join(f"{t} -O2, µs | -O3 | at least" for t in TARGETS) + " |")
    print("|---|" + "---:|" * 3 * len(TARGETS))
    cheaper, dearer = dict.fromkeys(TARGETS, 0), 0
    for name, line in {**fusion_programs.PROGRAMS, **fusion_programs.FILTERS}.items():
        program = weft_program(line, [np.zeros(shape, np.float32) for shape in line.shapes])
        shown = []
        for target in TARGETS:
            levels = [lowered(program, target, level) for level in (DEFAULT_LEVEL, EXACT_LEVEL)]
            greedy, exact = map(price, levels)
            cheaper[target] += is_shorter(exact, greedy)
            dearer += is_shorter(greedy, exact)
            shown += [f"{1e6 * each:,.1f}" for each in (greedy, exact, bound(levels[0]))]
        print(f"| {name} | {' | '.join(shown)} |", flush=True)
    counts = ", ".join(f"{count} for {target}" for target, count in cheaper.items())
    print(f"-O3 is cheaper on {counts}; dearer on {dearer}")
    return dearer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--prices", action="store_true")
    options = parser.parse_args()
    if options.prices:
        raise SystemExit(prices() > 0)
    rounds = options.rounds
    print(
        "| program | steps -O0 | -O2 | -O3 | µs, estimated -O0 | -O2 | -O3 | µs -O0 | -O2 | -O3 |"
    )
    print("|---|" + "---:|" * 9)
    for name, build in PROGRAMS.items():
        print(row(name, build(), rounds), flush=True)


if __name__ == "__main__":
    main()
