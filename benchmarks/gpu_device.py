"""The device side of the GPU benchmark: data, candidates as recorded graphs, checks, timing.

Every candidate, ours and the peers', is recorded as one CUDA graph, so that no host's overhead is
measured. A pass launches each of them once, in random order; before every launch the L2 cache is
filled with other data by reading it, which leaves nothing to be written back meanwhile.
"""

from __future__ import annotations

import gc
import importlib
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Final

import numpy as np

import weft
from benchmarks.gpu_line import Line, Tensor
from benchmarks.time_limit import GivenUp, limited
from weft.runtime.artifact import Artifact, CopyBuffer, Enter, Launch
from weft.runtime.cuda.driver import Device, open_device
from weft.runtime.cuda.kernels import LoadedKernel, load_kernel

FLUSH_BYTES: Final = 256 << 20
COPY_BYTES: Final = 1 << 30
TOLERANCE: Final = {
    "bf16": 1e-2, "f16": 2e-3, "f32": 1e-4, "f64": 1e-13, "fp8_e4m3": 1e-2, "fp8_e5m2": 1e-2,
}  # fmt: skip
FIRST_SEED: Final = 1
SECONDS: Final = 0.5
"""Of timed launches for one line, about."""
PASSES: Final = (11, 60)
SIGNS: Final = 1e-6
"""Of all truths those that may differ: signs of sums that are zero but for their order."""
WIDE_LIMIT: Final = 1 << 32
"""Elements up to which a reference in f32 is worth its memory."""

_MODES: Final = {"compile": "default", "max-autotune": "max-autotune-no-cudagraphs"}
"""How torch.compile is asked, by peer; every candidate is recorded as a graph anyway."""
COMPILED: Final = tuple(f"torch.{name}" for name in _MODES)
PEERS: Final = ("eager", "library", *_MODES)
PEER_SECONDS: Final = 60.0
"""For compiling one peer."""
_RUN_WORDS: Final = 2
"""What random numbers depend on: the seed, and how often their body was entered."""

Call = Callable[[], Any]


class Machine:
    """A GPU, torch on it, and one stream for everything."""

    def __init__(self) -> None:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(gettempdir()) / "inductor"))
        self.torch = importlib.import_module("torch")
        self.torch.backends.cuda.matmul.allow_tf32 = False
        self.torch.cuda.init()
        self.device: Device = open_device()
        self.stream = self.torch.cuda.Stream()
        self.torch.cuda.set_stream(self.stream)
        # Recording collects garbage: what is imported by now never is.
        gc.freeze()
        self.flush_block = self.torch.ones(FLUSH_BYTES // 4, device="cuda")
        self.flushed = self.torch.empty((), device="cuda")
        self.copy_bytes_per_second = self.copy_rate()

    def flush(self) -> None:
        self.torch.amax(self.flush_block, 0, out=self.flushed)

    def copy_rate(self) -> float:
        """Bytes read and written per second by a device copy of a gibibyte."""
        torch = self.torch
        source = torch.randn(COPY_BYTES // 4, device="cuda")
        target = torch.empty_like(source)
        times = self.interleaved({"copy": lambda: target.copy_(source)}, 20)
        return 2 * COPY_BYTES / statistics.median(times["copy"])

    def tensor(self, found: Tensor, seed: int) -> Any:
        torch = self.torch
        generator = torch.Generator("cuda").manual_seed(seed)
        if found.below:
            # Of both signs where they are operands of a product, else places in a tensor.
            low = -found.below if found.dtype == "si8" else 0
            kind = self.dtype(found.dtype)
            if found.ends:
                (groups,) = found.shape
                dealt = torch.randint(groups, (found.below,), device="cuda", generator=generator)
                return torch.bincount(dealt, minlength=groups).cumsum(0).to(kind)
            return torch.randint(
                low, found.below, found.shape, device="cuda", dtype=kind, generator=generator
            )
        tiny = found.dtype.startswith("fp8")
        kind = torch.float32 if tiny else self.dtype(found.dtype)
        made = torch.empty(found.shape, device="cuda", dtype=kind)
        made.normal_(0.0, found.scale, generator=generator)
        return made.to(self.dtype(found.dtype))

    def dtype(self, name: str) -> Any:
        names = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"}
        names |= {"si8": "int8", "ui8": "uint8", "si32": "int32", "si64": "int64", "i1": "bool"}
        names |= {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}
        return getattr(self.torch, names[name])

    def recorded(self, call: Call) -> tuple[Call, Any]:
        """What launches a recorded call, and the recorded call's result."""
        torch = self.torch
        for _ in range(2):
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            result = call()
        graph.replay()
        torch.cuda.synchronize()
        return graph.replay, result

    def interleaved(self, calls: dict[str, Call], passes: int) -> dict[str, list[float]]:
        """Seconds of every launch, by name."""
        torch = self.torch
        times: dict[str, list[float]] = {name: [] for name in calls}
        shuffled = random.Random(FIRST_SEED)
        for _ in range(passes):
            order = list(calls)
            shuffled.shuffle(order)
            marks = []
            for name in order:
                self.flush()
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record(self.stream)
                calls[name]()
                end.record(self.stream)
                marks.append((name, start, end))
            torch.cuda.synchronize()
            for name, start, end in marks:
                times[name].append(1e-3 * start.elapsed_time(end))
        return times

    def passes_for(self, calls: dict[str, Call]) -> int:
        """As many as fit into the time of a line."""
        once = sum(sum(values) for values in self.interleaved(calls, 2).values()) / 2
        once += len(calls) * FLUSH_BYTES / 4e12
        fewest, most = PASSES
        return max(3 if once > 0.2 else fewest, min(most, int(SECONDS / once)))


class Ours:
    """A compiled program with its buffers on the device."""

    def __init__(
        self,
        machine: Machine,
        line: Line,
        inputs: Sequence[Any],
        overrides: Mapping[str, str] | None = None,
    ) -> None:
        self.machine = machine
        executable = weft.compile(line.program(), line.target, overrides=overrides)
        self.artifact: Artifact = next(iter(executable.clusters.values())).built.artifact
        torch = machine.torch
        self.inputs = list(inputs)
        self.outputs = [
            torch.empty(spec.shape, device="cuda", dtype=machine.dtype(spec.dtype))
            for spec in self.artifact.outputs
        ]
        self.arena = torch.empty(
            max(1, self.artifact.arena_bytes), device="cuda", dtype=torch.uint8
        )
        self.constants = [
            torch.from_numpy(np.frombuffer(data, np.uint8).copy()).cuda()
            for data in self.artifact.constants
        ]
        self.seeds = torch.zeros(
            (self.artifact.bodies, _RUN_WORDS), device="cuda", dtype=torch.int64
        )
        self.errors = torch.zeros(
            max(1, len(self.artifact.steps)), device="cuda", dtype=torch.int64
        )
        self.kernels: list[LoadedKernel | None] = [
            load_kernel(machine.device, code) if code.grid[0] else None
            for code in self.artifact.kernels
        ]

    def address(self, number: int) -> int:
        slot = self.artifact.buffers[number]
        block = {
            "input": self.inputs,
            "output": self.outputs,
            "constant": self.constants,
            "arena": [self.arena],
            "run": self.seeds,
        }
        if slot.space not in block:
            raise weft.UserError(f"the benchmark has no memory of the kind {slot.space}")
        found = block[slot.space][0 if slot.space == "arena" else slot.number]
        return int(found.data_ptr()) + slot.offset

    def run(self) -> list[Any]:
        torch, driver = self.machine.torch, self.machine.device.driver
        stream = driver.CUstream(torch.cuda.current_stream().cuda_stream)
        follows = False
        for number, step in enumerate(self.artifact.steps):
            if isinstance(step, CopyBuffer):
                follows = False
                target, source = self.address(step.target), self.address(step.source)
                (status,) = driver.cuMemcpyDtoDAsync(target, source, step.bytes, stream)
                assert int(status) == 0, status
            elif isinstance(step, Launch):
                kernel = self.kernels[step.kernel]
                addresses = [self.address(n) for n in step.buffers]
                if kernel is not None:
                    if kernel.code.reports:
                        addresses.append(self.errors.data_ptr() + 8 * number)
                    kernel.launch(addresses, stream, early=follows)
                    follows = True
            elif not isinstance(step, Enter):  # turns of a loop, of which these count alone
                raise weft.UserError(f"the benchmark cannot record the step {step.label}")
        return self.outputs

    def moved(self, line: Line) -> int:
        """Bytes of all inputs and outputs, once each."""
        outputs: int = sum(found.numel() * found.element_size() for found in self.outputs)
        return sum(found.bytes for found in line.inputs) + outputs

    def check(self, line: Line) -> str:
        """Empty if every element is written, right, and the same in a second run."""
        torch = self.machine.torch
        runs = []
        for _ in range(2):
            for output in self.outputs:
                bits(output, torch).fill_(0xFF)
            self.run()
            torch.cuda.synchronize()
            runs.append([output.clone() for output in self.outputs])
        for first, second in zip(*runs, strict=True):
            if not torch.equal(bits(first, torch), bits(second, torch)):
                return "two runs differ"
        return self.compare(line, runs[0])

    def compare(self, line: Line, results: Sequence[Any]) -> str:
        """Against torch in f32 (which for f32 and f64 lines means the same precision); empty if all
        is right, or cannot be compared."""
        torch = self.machine.torch
        if line.random or any(result.numel() > WIDE_LIMIT for result in results):
            return ""
        given = [x.float() if x.is_floating_point() and x.itemsize < 4 else x for x in self.inputs]
        expected = line.torch(torch, *given)
        del given
        wanted = expected if isinstance(expected, tuple) else (expected,)
        problems = (self.apart(line, *pair) for pair in zip(results, wanted, strict=True))
        return next(filter(None, problems), "")

    def apart(self, line: Line, result: Any, expected: Any) -> str:
        """What is wrong with one result."""
        torch = self.machine.torch
        if not result.is_floating_point():
            wrong = int((result != expected).sum())
            allowed = result.numel() * SIGNS if result.dtype is torch.bool else 0
            return f"{wrong} of {result.numel()} elements are wrong" if wrong > allowed else ""
        finite = torch.isfinite(result)
        if not bool(finite.all()):
            return f"{int((~finite).sum())} elements are not finite"
        error = float((result.to(expected.dtype) - expected).norm() / expected.norm())
        allowed = line.tolerance or TOLERANCE[line.dtype]
        return "" if error <= allowed else f"relative error {error:.2e}"


def bits(tensor: Any, torch: Any) -> Any:
    """The bytes of a tensor."""
    return tensor.reshape(-1).view(torch.uint8)


def peers_of(line: Line, inputs: Sequence[Any], wanted: set[str], torch: Any) -> dict[str, Call]:
    """What a user would run instead, by name; each is made when it is first called."""
    found: dict[str, Call] = {}
    if "eager" in wanted:
        found["eager"] = partial(line.torch, torch, *inputs)
    if "library" in wanted:
        for name, function in line.library.items():
            found[name] = partial(function, torch, *inputs)
    for name, mode in _MODES.items():
        if name in wanted:
            compiled = torch.compile(
                lambda *given: line.torch(torch, *given), mode=mode, dynamic=False, fullgraph=True
            )
            found[f"torch.{name}"] = partial(compiled, *inputs)
    return found


def measure(
    machine: Machine, line: Line, wanted: set[str], peer_seconds: float = PEER_SECONDS
) -> dict[str, Any]:
    """The record of one line: microseconds of every candidate, or why it has none."""
    torch = machine.torch
    torch._dynamo.reset()
    started = time.perf_counter()
    inputs = [machine.tensor(found, FIRST_SEED + n) for n, found in enumerate(line.inputs)]
    record: dict[str, Any] = {"key": line.key, "flops": line.flops, "notes": {}}
    calls: dict[str, Call] = {}
    kept: list[Any] = [inputs]
    try:
        ours = Ours(machine, line, inputs)
        problem = ours.check(line)
        record["bytes"] = ours.moved(line)
        kept.append(ours)
        if problem:
            record["notes"]["weft"] = f"wrong: {problem}"
        else:
            calls["weft"], _ = machine.recorded(ours.run)
    except weft.ExecutionError:
        # The driver failed: its context is good for nothing more.
        raise
    except weft.WeftError as error:
        record["notes"]["weft"] = f"not yet: {str(error).splitlines()[0]}"
    for name, call in peers_of(line, inputs, wanted, torch).items():
        try:
            if name in COMPILED:
                with limited(peer_seconds):
                    call()
            calls[name], result = machine.recorded(call)
            kept.append(result)
        except GivenUp as error:
            record["notes"][name] = str(error)
        except Exception as error:
            record["notes"][name] = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
    times = machine.interleaved(calls, machine.passes_for(calls)) if calls else {}
    record["us"] = {name: 1e6 * statistics.median(values) for name, values in times.items()}
    record["spread"] = {name: _spread(values) for name, values in times.items()}
    record["seconds"] = time.perf_counter() - started
    return record


def _spread(values: Sequence[float]) -> float:
    """The middle half of the times, as a share of the median."""
    if len(values) < 4:
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4)
    return (high - low) / middle


def versions(machine: Machine) -> dict[str, str]:
    torch = machine.torch
    found = {"torch": torch.__version__, "cuda": str(torch.version.cuda)}
    found["gpu"] = machine.device.name
    for name in ("triton", "jax"):
        try:
            found[name] = importlib.import_module(name).__version__
        except ImportError:
            found[name] = "not installed"
    return found
