"""Where a first call's time goes: what this process did, when its helpers were busy, and which
kernels the GPU's compiler took longest for.

    python -m benchmarks.first_timeline --models "gpt2 training*"    on the GPU
    python -m benchmarks.first_timeline --ahead                      no GPU: up to the machine code
    python -m benchmarks.first_timeline --ahead --profile 40         and functions, by cProfile

Each model is a process of its own, with an empty cache. Times are seconds of the host's clock since
the call. What begins inside something else is indented below it; what takes less than a hundredth
of a second is left out.
"""

from __future__ import annotations

import argparse
import cProfile
import functools
import importlib
import os
import pstats
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import IO, Any, Final

import numpy as np

import weft
from benchmarks import model_zoo as zoo
from benchmarks.model_cases import Weft, cases
from benchmarks.needed import need_gpu
from weft.driver import pipeline
from weft.driver.code import gpu_ahead, gpu_kernels, gpu_tasks
from weft.ops.pytree import flatten
from weft.runtime.compilers import Workers

DEFAULT: Final = "gpt2 training*,resnet-50 training*,vit* training*,resnet-50 forward b32"
LOOKED_AT: Final = (
    ("weft.ops.jit", "Jitted.trace", "tracing"),
    ("weft.driver.programs.program_cache", "key_of", "key"),
    ("weft.driver.programs.program_cache", "load_kept", "disk"),
    ("weft.driver.programs.program_cache", "save_kept", "keeping"),
    ("weft.driver.compile", "generator_for", "loading the generator"),
    ("weft.driver.compile", "pipeline", "loading the stages"),
    ("weft.driver.code.gpu_ahead", "Ahead.expect", "starting processes"),
    ("weft.driver.code.gpu_ahead", "Ahead.stop", "ending processes"),
    ("weft.driver.code.gpu_ahead", "Ahead._do_tasks", "waiting for plans"),
    ("weft.driver.code.gpu_generator", "compile_bodies", "bodies"),
    ("weft.driver.code.gpu_reactions", "compiled", "machine code"),
    ("weft.driver.code.gpu_reactions", "_Reactions._make_again", "moved kernels made again"),
    ("weft.driver.code.gpu_reactions", "_Reactions._next_step", "next plan"),
    ("weft.driver.code.gpu_reactions", "_Reactions._wait_for", ""),
    ("weft.driver.code.gpu_generator", "build_artifact", "artifact"),
    ("weft.driver.code.gpu_generator", "link", "linking"),
    ("weft.runtime.cuda.program", "Program._ready", "getting ready to run"),
    ("weft.runtime.cuda.resident", "Resident._load_code", ""),
    ("weft.runtime.cuda.stretches", "Stretches._record_graph", "recording a graph"),
)
"""Functions that are timed, with what they do; those without a name only in sums."""
LEAST: Final = 0.01
BIN: Final = 0.25
SYMBOL: Final = re.compile(rb"\bk_[0-9a-f]{16}\b")


@dataclass
class Span:
    label: str
    start: float
    depth: int
    end: float = 0.0


@dataclass
class Watch:
    """What was seen."""

    began: float = 0.0
    spans: list[Span] = field(default_factory=list)
    sums: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    counts: Counter[str] = field(default_factory=Counter)
    added: list[tuple[float, bool]] = field(default_factory=list)
    """When messages went out, and whether they are tasks."""
    answered: list[tuple[float, float, int, bytes]] = field(default_factory=list)
    """From when to when which helper, by its thread, worked on which message."""
    compilations: list[Any] = field(default_factory=list)
    _depth: int = 0
    _main: int = field(default_factory=threading.get_ident)

    def now(self) -> float:
        return time.perf_counter() - self.began

    @contextmanager
    def span(self, label: str) -> Iterator[None]:
        if threading.get_ident() != self._main:
            yield
            return
        found = Span(label, self.now(), self._depth)
        self.spans.append(found)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            found.end = self.now()

    def timed(self, label: str, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if label:
                with self.span(label):
                    return call(*args, **kwargs)
            started = self.now()
            try:
                return call(*args, **kwargs)
            finally:
                self.sums[name] += self.now() - started
                self.counts[name] += 1

        return timed

    def look(self) -> None:
        """Time everything from here on."""
        for module, name, label in LOOKED_AT:
            owner: Any = importlib.import_module(module)
            *path, last = name.split(".")
            for part in path:
                owner = getattr(owner, part)
            setattr(owner, last, self.timed(label, getattr(owner, last), name))
        self._look_at_stages()
        self._look_at_workers()

    def _look_at_stages(self) -> None:
        enter = pipeline._enter

        def entered(stage: Any, compilation: Any) -> None:
            if all(c is not compilation for c in self.compilations):
                self.compilations.append(compilation)
            with self.span(f"stage {stage.name}"):
                enter(stage, compilation)

        pipeline._enter = entered

    def _look_at_workers(self) -> None:
        add, start = Workers.add, Workers.start

        def added(workers: Workers, message: bytes, urgency: int | None = None) -> int:
            self.added.append((self.now(), gpu_tasks.is_task(message)))
            return add(workers, message, urgency)

        def started(workers: Workers, count: int) -> None:
            with self.span(f"{count} processes"):
                start(workers, count)

        def work(workers: Workers, *pipes: IO[bytes]) -> None:
            mine = threading.get_ident()
            given = workers._next

            class Seen:
                """The workers, as one thread sees them."""

                def __getattr__(self, name: str) -> Any:
                    return getattr(workers, name)

                def _next(inner) -> int | None:  # noqa: N805
                    if open_:
                        at, message = open_.pop()
                        self.answered.append((at, self.now(), mine, message))
                    number = given()
                    if number is not None:
                        open_.append((self.now(), workers._messages[number]))
                    return number

            open_: list[tuple[float, bytes]] = []
            _WORK(Seen(), *pipes)  # type: ignore[arg-type]

        for name, call in (("add", added), ("start", started), ("work", work)):
            setattr(Workers, name, call)
        for module, name in (
            (gpu_ahead, "compile_cuda"),
            (gpu_kernels, "compile_cuda"),
            (gpu_tasks, "do"),
        ):
            setattr(module, name, self._own(getattr(module, name)))

    def _own(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def own(given: Any, *rest: Any) -> Any:
            started = self.now()
            try:
                return call(given, *rest)
            finally:
                message = given.encode() if isinstance(given, str) else b"{"
                who = threading.get_ident()
                self.answered.append((started, self.now(), who, message))

        return own

    # -- what it says ----------------------------------------------------------------------------

    def lines(self) -> Iterator[str]:
        for span in sorted(self.spans, key=lambda span: span.start):
            if span.end - span.start >= LEAST:
                name = "  " * span.depth + span.label
                yield f"{span.start:7.3f} {span.end:7.3f}  {span.end - span.start:6.3f}  {name}"
        for name, seconds in self.sums.items():
            yield f"{'':14}  {seconds:6.3f}  {name}, {self.counts[name]} times in all"
        yield from self._messages()
        yield from self._busy()
        yield from self._longest()

    def _messages(self) -> Iterator[str]:
        for is_task, what in ((True, "tasks"), (False, "sources")):
            times = [at for at, kind in self.added if kind == is_task]
            ends = [end for _, end, _, m in self.answered if gpu_tasks.is_task(m) == is_task]
            if times and ends:
                yield (
                    f"{len(times)} {what}: sent {min(times):.2f} to {max(times):.2f}, "
                    f"answered {min(ends):.2f} to {max(ends):.2f}"
                )
        firsts: dict[int, tuple[float, float]] = {}
        for start, end, who, _ in sorted(self.answered):
            firsts.setdefault(who, (start, end))
        told = ", ".join(f"{a:.2f}-{b:.2f}" for a, b in sorted(firsts.values()))
        yield f"{len(firsts)} workers, the first message of each: {told}"

    def _busy(self) -> Iterator[str]:
        yield f"busy workers in every {BIN} s: with tasks, with sources"
        end = max((end for _, end, _, _ in self.answered), default=0.0)
        cells = []
        for n in range(int(end / BIN) + 1):
            shares = [0.0, 0.0]
            for start, stop, _, message in self.answered:
                inside = min(stop, (n + 1) * BIN) - max(start, n * BIN)
                shares[not gpu_tasks.is_task(message)] += max(0.0, inside) / BIN
            if sum(shares) >= 0.05:
                cells.append(f"{n * BIN:.2f}: {shares[0]:.1f} {shares[1]:.1f}")
        yield from (" | ".join(cells[n : n + 10]) for n in range(0, len(cells), 10))

    def _longest(self) -> Iterator[str]:
        names: dict[str, str] = {}
        for compilation in self.compilations:
            for name, launch in getattr(compilation.values.get("gpu"), "launches", {}).items():
                names.setdefault(launch.symbol, name)
        found = [entry for entry in self.answered if not gpu_tasks.is_task(entry[3])]
        total = sum(end - start for start, end, _, _ in found)
        yield f"sources took {total:.2f} s in all; the longest, and the last ones"
        last = sorted(found, key=lambda entry: -entry[1])[:6]
        longest = sorted(found, key=lambda entry: entry[0] - entry[1])[:12]
        for start, end, _, message in [*longest, *last]:
            symbols = [s.decode() for s in SYMBOL.findall(message)]
            name = next((names[s] for s in symbols if s in names), (symbols or ["?"])[0])
            yield f"  {start:6.2f} {end:6.2f} {end - start:6.2f} {len(message):7,} B  {name}"
        tasks = [entry for entry in self.answered if gpu_tasks.is_task(entry[3])]
        total = sum(end - start for start, end, _, _ in tasks)
        longest = sorted(tasks, key=lambda entry: entry[0] - entry[1])[:5]
        told = ", ".join(f"{end - start:.2f} from {start:.2f}" for start, end, _, _ in longest)
        yield f"tasks took {total:.2f} s in all; the longest {told}"


_WORK: Final = Workers.work


def show(name: str, options: argparse.Namespace) -> None:
    (case,) = (case for case in cases() if case.name == name)
    ours, watch = Weft(case, case.make(zoo.WEFT), case.data(False), weft.bfloat16), Watch()
    if options.ahead:
        _ahead(watch)
    call = ours.call(case, case.cache(False) if case.cache else None)
    watch.look()
    profiler = None
    if options.profile:
        profiler = cProfile.Profile(time.process_time)
    watch.began, used = time.perf_counter(), time.process_time()
    if profiler:
        profiler.enable()
    result = call()
    if profiler:
        profiler.disable()
    called = watch.now()
    if not options.ahead:
        np.asarray(result)
    read, used = watch.now(), time.process_time() - used
    print(f"== {name}: call {called:.2f} s, result read {read:.2f}, this process {used:.2f} s")
    print("\n".join(watch.lines()), flush=True)
    if profiler:
        for key in ("tottime", "cumtime"):
            pstats.Stats(profiler).sort_stats(key).print_stats(options.profile)


def _ahead(watch: Watch) -> None:
    """Let functions under `weft.jit` be compiled for a GPU that need not be there, and not run."""
    made = weft.jit

    def jit(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        jitted = made(function, **options)

        def call(*args: Any) -> Any:
            with watch.span("tracing"):
                program = jitted.seen(args, {}).trace.program
                donated = jitted._donated_leaves(flatten((args, {}))[1])
            compiled = weft.compile(program, target="sm90", donate=donated)
            return compiled, None, None

        return call

    weft.jit = jit  # type: ignore[assignment]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--models", default=DEFAULT, help="names, with * for any letters and commas"
    )
    parser.add_argument("--ahead", action="store_true", help="up to the machine code, with no GPU")
    parser.add_argument("--profile", type=int, default=0, help="so many lines of cProfile's")
    parser.add_argument("--one", action="store_true", help="in this process")
    options = parser.parse_args()
    if not options.ahead:
        need_gpu("`--ahead` needs none")
    names = [
        case.name
        for case in cases()
        if any(fnmatch(case.name, name) for name in options.models.split(","))
    ]
    weft.set_default_backend("reference" if options.ahead else "cuda")
    for name in names:
        if options.one:
            show(name, options)
            continue
        with tempfile.TemporaryDirectory() as kept:
            flags = ["--one", "--models", name, f"--profile={options.profile}"]
            flags += ["--ahead"] * options.ahead
            command = [sys.executable, "-m", "benchmarks.first_timeline", *flags]
            subprocess.run(command, env={**os.environ, "WEFT_CACHE": kept}, check=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
