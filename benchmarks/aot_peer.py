"""Runs a model of a peer many times and says, in one line of JSON, what `aot_call.c` says of a
bundle: seconds from the start to the first result, seconds of a call, the most resident memory.

    python -m benchmarks.aot_peer onnxruntime|aotinductor FILE SECONDS

Both are called from Python on one thread: ONNX Runtime with its inputs and results bound to memory,
which is the least that a call of it costs from here; its wheel has the library of its C API without
the header.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np

BEGAN = time.perf_counter()


def onnxruntime(path: str) -> Callable[[], object]:
    ort = import_module("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    x, y = (ort.OrtValue.ortvalue_from_numpy(np.zeros((1, n), np.float32)) for n in (256, 64))
    binding.bind_ortvalue_input("x", x)
    binding.bind_ortvalue_output("y", y)
    return lambda: session.run_with_iobinding(binding)


def aotinductor(path: str) -> Callable[[], object]:
    torch = import_module("torch")
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    runner = torch._inductor.aoti_load_package(path)
    x = torch.zeros(1, 256)
    return lambda: runner(x)


def resident() -> int:
    """The most bytes of this process that were resident."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def main() -> None:
    peer, path, seconds = sys.argv[1:]
    call = {"onnxruntime": onnxruntime, "aotinductor": aotinductor}[peer](path)
    call()
    first = time.perf_counter() - BEGAN
    best, end = float("inf"), time.perf_counter() + float(seconds)
    while time.perf_counter() < end:
        started = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - started)
    print(json.dumps({"first": first, "call": best, "resident": resident()}))


if __name__ == "__main__":
    main()
