"""Bundles from C: what a call costs, how soon the first result is there, how large they are.

    python -m benchmarks.aot [--models one,mlp,gpt2] [--peers onnxruntime,aotinductor]

`one` adds 1 to one element: all that it takes is the call. `mlp` is 256-512-64 on a row. `gpt2` is
a step of decoding in the shape of GPT-2 (random weights), whose caches are state; `--size small`
makes it small. Every line is a C program of its own on one thread and on all, the least of its
calls counts. `start` is the time from starting that process to its end after one call, files in the
page cache, the least of nine. Beside the clock stands the time of all processors together (user and
system), which says what was worked where others keep a machine busy; the title has their load.
From Python the same function under `jit`, and the bundle, on all threads.

Peers run `mlp` on one thread: ONNX Runtime by its C API, whose library is in its wheel and whose
headers are not (`--headers`: a folder with `onnxruntime_c_api.h`, of its source at the same version
or an older one, or of Debian's libonnxruntime-dev), and AOTInductor from C++ with the headers of
torch. Their size is that of the model's file, and of the libraries that it runs with.

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
STARTS = 9
TITLES = (
    "model", "how", "build, s", "call, µs", "its work, µs", "start, ms", "its work, ms",
    "resident, MB", "size, kB",
)  # fmt: skip


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
    starts = [started([*command, "0"]) for _ in range(STARTS)]
    done = subprocess.run([*command, str(SECONDS)], check=True, capture_output=True, text=True)
    clock, worked = (min(times) for times in zip(*starts, strict=True))
    return {**json.loads(done.stdout), "start": clock, "start_worked": worked}


def started(command: list[str]) -> tuple[float, float]:
    """The seconds of a process, by the clock and of all processors."""
    began = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{command[0]} ended with {child.returncode}")
    return time.perf_counter() - began, used.ru_utime + used.ru_stime


def fastest(call: Callable[[], object], seconds: float = SECONDS) -> tuple[float, float]:
    """The least seconds of a call, by the clock and of all processors."""
    call()
    best, least, end = float("inf"), float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        began, worked = time.perf_counter(), time.process_time()
        call()
        least = min(least, time.process_time() - worked)
        best = min(best, time.perf_counter() - began)
    return best, least


def from_python(function: Any, example: list[Any]) -> tuple[float, float]:
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
        for how, times in (("jit, Python", python), ("bundle, Python", bundled)):
            yield name, how, "", *(f"{1e6 * each:,.1f}" for each in times), "", "", "", ""
        for threads in sorted({1, os.cpu_count() or 1}):
            found = from_c(bundle, name, threads)
            told = f"{sum(sizes.values()) / 1e3:,.0f} + {weights / 1e3:,.0f}"
            yield line(name, f"bundle, C, {threads} threads", f"{built:.1f}", found, told)


def line(name: str, how: str, built: str, found: dict[str, Any], size: str) -> tuple[str, ...]:
    """What a program says, as a line of the table."""
    calls = (f"{1e6 * found[key]:,.2f}" for key in ("call", "worked"))
    starts = (f"{1e3 * found[key]:,.1f}" for key in ("start", "start_worked"))
    return name, how, built, *calls, *starts, f"{found['resident'] / 1e6:,.0f}", size


def zeros(entry: Any) -> Any:
    kinds = {"f32": np.float32, "si32": np.int32, "si64": np.int64}
    return np.zeros(entry.shape, kinds[entry.dtype])


# -- peers ---------------------------------------------------------------------------------------


def onnxruntime(folder: Path, headers: str) -> tuple[str, ...]:
    """The perceptron in ONNX Runtime, on one thread."""
    need("onnx", "onnxruntime")
    if not (Path(headers) / "onnxruntime_c_api.h").is_file():
        sys.exit(f"{headers} has no onnxruntime_c_api.h: --headers is the folder that has it")
    library = next(package("onnxruntime").glob("capi/libonnxruntime.so.*"))
    (folder / "libonnxruntime.so.1").symlink_to(library)
    linked = [str(folder / "libonnxruntime.so.1"), f"-Wl,-rpath,{folder}"]
    program = compiled(folder, "aot_onnxruntime.c", [f"-I{headers}"], linked)
    path = onnx_file(folder)
    return peer_line("ONNX Runtime, C", "", [program, str(path)], path, [library])


def onnx_file(folder: Path) -> Path:
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
    return path


def aotinductor(folder: Path, _: str) -> tuple[str, ...]:
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
        path = torch._inductor.aoti_compile_and_package(
            torch.export.export(model, (x,)), package_path=str(folder / "mlp.pt2")
        )
    built = time.perf_counter() - started
    installed = package("torch")
    includes = [f"-I{installed}/include", f"-I{installed}/include/torch/csrc/api/include"]
    libraries = [installed / "lib" / f"lib{name}.so" for name in ("torch", "torch_cpu", "c10")]
    linked = [*map(str, libraries), f"-Wl,-rpath,{installed}/lib"]
    program = compiled(folder, "aot_inductor.cpp", ["-std=c++20", *includes], linked)
    return peer_line(
        "AOTInductor, C++", f"{built:.1f}", [program, str(path)], Path(path), libraries
    )


def package(name: str) -> Path:
    """Where an installed package is."""
    return Path(str(import_module(name).__file__)).parent


def compiled(folder: Path, name: str, flags: list[str], linked: list[str]) -> str:
    """The program of a source file beside this one."""
    source, program = SOURCE.with_name(name), str(folder / Path(name).stem)
    compiler = "c++" if source.suffix == ".cpp" else "cc"
    command = [compiler, "-O2", *flags, str(source), *linked, "-o", program]
    subprocess.run(command, check=True)
    return program


def peer_line(
    how: str, built: str, command: list[str], path: Path, libraries: list[Path]
) -> tuple[str, ...]:
    """The line of a peer that has written its model to a file."""
    size = (
        f"{path.stat().st_size / 1e3:,.0f} + {sum(p.stat().st_size for p in libraries) / 1e3:,.0f}"
    )
    return line("mlp", how, built, measured(command), size)


PEERS = {"onnxruntime": onnxruntime, "aotinductor": aotinductor}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="one,mlp")
    parser.add_argument("--size", default="gpt2", choices=SIZES)
    parser.add_argument("--peers", default="")
    parser.add_argument("--headers", default="/usr/include/onnxruntime")
    options = parser.parse_args()
    before = os.getloadavg()[0]
    table = Table()
    for title in TITLES:
        table.add_column(title, justify="left" if title in TITLES[:2] else "right")
    with tempfile.TemporaryDirectory() as folder:
        for row in lines(list(filter(None, options.models.split(","))), options.size, Path(folder)):
            table.add_row(*row)
        for peer in filter(None, options.peers.split(",")):
            table.add_row(*PEERS[peer](Path(folder), options.headers))
    table.title = f"load before {before:.1f}, after {os.getloadavg()[0]:.1f}"
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
