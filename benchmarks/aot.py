"""Bundles from C: what a call costs, how soon the first result is there, how large they are.

    python -m benchmarks.aot [--models one,mlp,gpt2] [--peers onnxruntime,aotinductor]

`one` adds 1 to one element: all that it takes is the call. `mlp` is 256-512-64 on a row. `gpt2` is
a step of decoding in the shape of GPT-2 (random weights), whose caches are state; `--size small`
makes it small. Every line is a C program of its own on one thread and on all, the best of its calls
counts; `start` is the time from starting that process to its end after one call, files in the page
cache, the best of five. From Python the same function under `jit`, on all threads. Peers run `mlp`
in a process of their own, from Python (`aot_peer.py`): ONNX Runtime's wheel has no C header, and
AOTInductor's library needs torch. Their size is that of the model's file alone.

The bars: a call of `one` takes 3 µs at most; gpt2 from C is as fast as from Python; its first token
comes within 0.3 s; a bundle of an MLP takes under 200 kB beside its weights.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import weft
from benchmarks.needed import need
from examples.gpt2_generate import GPT2, SIZES
from weft import nn

SOURCE = Path(__file__).with_name("aot_call.c")
SECONDS = 1.0


def one(_: str) -> tuple[Any, list[Any], dict[str, Any]]:
    return weft.jit(lambda x: x + 1), [np.zeros(1, np.float32)], {}


def mlp(_: str) -> tuple[Any, list[Any], dict[str, Any]]:
    nn.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 64))
    return weft.jit(model.__call__), [np.zeros((1, 256), np.float32)], {}


def gpt2(size: str) -> tuple[Any, list[Any], dict[str, Any]]:
    nn.manual_seed(0)
    model = GPT2(SIZES[size])

    def step(model: Any, tokens: Any, position: Any, caches: Any) -> Any:
        return model.step(tokens, position, caches)

    caches = model.empty_caches(SIZES[size].context)
    example = [model, np.zeros((1, 1), np.int32), np.zeros((), np.int32), caches]
    return weft.jit(step, donate="caches"), example, {"state": "caches"}


MODELS: dict[str, Callable[[str], tuple[Any, list[Any], dict[str, Any]]]] = {
    "one": one,
    "mlp": mlp,
    "gpt2": gpt2,
}


def from_c(folder: Path, name: str, threads: int) -> dict[str, Any]:
    """What the C program measures of a bundle."""
    program = folder.parent / f"{name}_call"
    if not program.exists():
        flags = ["-O2", f"-DMODEL={name}", f'-DHEADER="{name}.h"', f"-I{folder}"]
        files = [str(SOURCE), str(folder / f"lib{name}.a"), "-lpthread"]
        subprocess.run(["cc", *flags, *files, "-o", str(program)], check=True)
    return measured([str(program), str(folder), str(threads)])


def measured(command: list[str]) -> dict[str, Any]:
    """What a program says that runs a model for so many seconds, and how soon it is done with one
    call."""
    starts = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run([*command, "0"], check=True, capture_output=True)
        starts.append(time.perf_counter() - started)
    done = subprocess.run([*command, str(SECONDS)], check=True, capture_output=True, text=True)
    return {**json.loads(done.stdout), "start": min(starts)}


def fastest(call: Callable[[], object], seconds: float = SECONDS) -> float:
    """The least seconds of a call."""
    call()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        started = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - started)
    return best


def from_python(function: Any, example: list[Any]) -> float:
    """A call of the function under jit; what is donated comes from the last call."""
    *given, last = example

    def call() -> object:
        nonlocal last
        result = function(*given, last)
        if isinstance(result, tuple):
            result, last = result
        return result.numpy()

    return fastest(call)


def lines(names: list[str], size: str, folder: Path) -> Iterator[tuple[str, ...]]:
    for name in names:
        function, example, options = MODELS[name](size)
        started = time.perf_counter()
        bundle = weft.build(function, *example, out=folder / name, name=name, **options)
        built = time.perf_counter() - started
        sizes = {path.name: path.stat().st_size for path in bundle.iterdir()}
        weights = sizes.pop("weights.safetensors", 0)
        loaded = weft.load_bundle(bundle, threads=os.cpu_count() or 1, verify=False)
        data = [zeros(entry) for entry in loaded.inputs]
        python = from_python(function, example)
        bundled = fastest(lambda loaded=loaded, data=data: loaded(*data))  # type: ignore[misc]
        yield name, "jit, Python", "", f"{1e6 * python:,.1f}", "", "", ""
        yield name, "bundle, Python", "", f"{1e6 * bundled:,.1f}", "", "", ""
        for threads in sorted({1, os.cpu_count() or 1}):
            found = from_c(bundle, name, threads)
            told = f"{sum(sizes.values()) / 1e3:,.0f} + {weights / 1e3:,.0f}"
            yield (
                name, f"bundle, C, {threads} threads", f"{built:.1f}",
                f"{1e6 * found['call']:,.2f}", f"{1e3 * found['start']:,.0f}",
                f"{found['resident'] / 1e6:,.0f}", told,
            )  # fmt: skip


def zeros(entry: Any) -> Any:
    kinds = {"f32": np.float32, "si32": np.int32, "si64": np.int64}
    return np.zeros(entry.shape, kinds[entry.dtype])


# -- peers ---------------------------------------------------------------------------------------


def onnxruntime(folder: Path) -> Iterator[tuple[str, ...]]:
    """The perceptron in ONNX Runtime, on one thread."""
    need("onnx", "onnxruntime")
    onnx = import_module("onnx")
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    rng = np.random.default_rng(0)
    shapes = {"w1": (256, 512), "b1": (512,), "w2": (512, 64), "b2": (64,)}
    weights = [
        numpy_helper.from_array(rng.random(shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "w2", "b2"], ["y"]),
    ]
    kinds = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 256]), ("y", [1, 64]))
    ]
    graph = helper.make_graph(nodes, "mlp", kinds[:1], kinds[1:], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    path = folder / "mlp.onnx"
    onnx.save(made, str(path))
    yield peer_line("ONNX Runtime, Python", "", "onnxruntime", path)


def aotinductor(folder: Path) -> Iterator[tuple[str, ...]]:
    """The perceptron by AOTInductor, on one thread."""
    need("torch")
    torch = import_module("torch")
    torch.set_num_threads(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64)
    ).eval()
    x = torch.zeros(1, 256)
    started = time.perf_counter()
    with torch.no_grad():
        package = torch._inductor.aoti_compile_and_package(
            torch.export.export(model, (x,)), package_path=str(folder / "mlp.pt2")
        )
    built = time.perf_counter() - started
    yield peer_line("AOTInductor, Python", f"{built:.1f}", "aotinductor", Path(package))


def peer_line(how: str, built: str, peer: str, path: Path) -> tuple[str, ...]:
    """The line of a peer that has written its model to a file."""
    found = measured([sys.executable, "-m", "benchmarks.aot_peer", peer, str(path)])
    call, start = f"{1e6 * found['call']:,.1f}", f"{1e3 * found['start']:,.0f}"
    resident, size = f"{found['resident'] / 1e6:,.0f}", f"{path.stat().st_size / 1e3:,.0f}"
    return "mlp", how, built, call, start, resident, size


PEERS = {"onnxruntime": onnxruntime, "aotinductor": aotinductor}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="one,mlp")
    parser.add_argument("--size", default="gpt2", choices=SIZES)
    parser.add_argument("--peers", default="")
    options = parser.parse_args()
    table = Table()
    for title in ("model", "how", "build, s", "call, µs", "start, ms", "resident, MB", "size, kB"):
        table.add_column(title, justify="left" if title in ("model", "how") else "right")
    with tempfile.TemporaryDirectory() as folder:
        for line in lines(options.models.split(","), options.size, Path(folder)):
            table.add_row(*line)
        for peer in filter(None, options.peers.split(",")):
            for line in PEERS[peer](Path(folder)):
                table.add_row(*line)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
