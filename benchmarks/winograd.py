"""The 3 x 3 convolution of the CPU benchmark by a plain sum, by Winograd's algorithm, and by
OpenVINO, which takes Winograd's by itself: milliseconds of processor time, and errors.

    python -m benchmarks.winograd [--threads N] [--rounds N]

Interleaved, the least time of all rounds; errors are against f64, over the largest result.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import weft
from benchmarks.needed import need
from weft.driver.compile import Executable
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.plan import text
from weft.plan.ir import MmaPlan
from weft.plan.winograd import winograd_plan
from weft.ptir import Builder, Program
from weft.target.known import target_named

need("openvino")

import openvino  # noqa: E402
from openvino import opset13  # noqa: E402

Array = NDArray[Any]
SIZE, CHANNELS = 56, 64


def convolution() -> Program:
    b = Builder("conv")
    x = b.param("f32", [1, SIZE, SIZE, CHANNELS])
    w = b.param("f32", [9 * CHANNELS, CHANNELS])
    patches = b.extract_patches(
        x, window=[3, 3], strides=[1, 1], dilation=[1, 1], padding=[(1, 1)] * 2, pad_value=0.0
    )
    return b.build(b.dot_general(patches, w, contract=([3], [0])))


def by_winograd(program: Program) -> Executable:
    target = target_named("cpu")
    made = run_pipeline(Compilation(program, target, make_signature(program)), "plan")
    ((key, first),) = made["plan"].plans.items()
    assert isinstance(first, MmaPlan)
    plan = winograd_plan(made["region"].kernels[0], first, target)
    plans = text.dumps(replace(made["plan"], plans={key: plan}))
    return weft.compile(program, overrides={"plan": plans})


def open_vino(x: Array, w: Array, threads: int) -> Callable[[], Array]:
    filters = w.reshape(3, 3, CHANNELS, CHANNELS).transpose(3, 2, 0, 1).copy()
    given = opset13.parameter(list(x.shape), np.float32)
    image = opset13.transpose(given, np.array([0, 3, 1, 2]))
    ones = [1, 1]
    made = opset13.convolution(image, opset13.constant(filters), ones, ones, ones, ones)
    result = opset13.transpose(made, np.array([0, 2, 3, 1]))
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
    }
    model = openvino.compile_model(openvino.Model([result], [given]), "CPU", settings)
    request = model.create_infer_request()
    return lambda: np.asarray(request.infer([x])[0])


def exact(x: Array, w: Array) -> Array:
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    filters = w.astype(np.float64).reshape(3, 3, CHANNELS, CHANNELS)
    places = [(i, j) for i in range(3) for j in range(3)]
    parts = [padded[:, i : i + SIZE, j : j + SIZE] @ filters[i, j] for i, j in places]
    return np.asarray(np.sum(parts, axis=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, SIZE, SIZE, CHANNELS)).astype(np.float32)
    w = rng.standard_normal((9 * CHANNELS, CHANNELS)).astype(np.float32)
    program = convolution()
    plain, ours = weft.compile(program), by_winograd(program)
    ways: dict[str, Callable[[], Array]] = {
        "Weft, plain sum": lambda: plain.run([x, w], threads=options.threads)[0],
        "Weft, winograd_3x3": lambda: ours.run([x, w], threads=options.threads)[0],
        f"OpenVINO {openvino.__version__.split('-')[0]}": open_vino(x, w, options.threads),
    }
    times = dict.fromkeys(ways, np.inf)
    for _ in range(options.rounds):
        for name, way in ways.items():
            started = time.process_time()
            way()
            times[name] = min(times[name], time.process_time() - started)
    truth = exact(x, w)
    print("| conv 3x3 NHWC 56x56 64->64, f32 | ms of processor time | error |\n|---|---:|---:|")
    for name, way in ways.items():
        error = np.abs(way() - truth).max() / np.abs(truth).max()
        print(f"| {name} | {1e3 * times[name]:.2f} | {error:.1e} |")


if __name__ == "__main__":
    main()
