"""Where the time goes: one span per instruction or kernel."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.driver.execute import Prepared
from weft.ptir.ir import Body, Instruction
from weft.ptir.types import leaves


@dataclass(frozen=True)
class Span:
    """One instruction or kernel of one run: when it began and how long it took, in seconds."""

    name: str
    start: float
    seconds: float
    thread: int
    detail: str = ""


@dataclass
class Profile:
    """Every span seen, in order."""

    spans: list[Span] = field(default_factory=list)
    origin: float = field(default_factory=time.perf_counter)

    def add(self, name: str, end: float, seconds: float, detail: str = "") -> None:
        start = end - seconds - self.origin
        self.spans.append(Span(name, start, seconds, threading.get_ident(), detail))

    def summary(self, *, kinds: bool = False) -> str:
        """A table: share of the time, seconds, calls, name; the most expensive first. With `kinds`,
        kernels whose names differ in their numbers only are one row."""
        seconds: dict[str, float] = defaultdict(float)
        calls: dict[str, int] = defaultdict(int)
        for span in self.spans:
            name = span.name.rstrip("0123456789") if kinds else span.name
            seconds[name] += span.seconds
            calls[name] += 1
        total = sum(seconds.values()) or 1.0
        rows = sorted(seconds.items(), key=lambda item: -item[1])
        lines = [f"{'share':>6} {'seconds':>10} {'calls':>7}  name"]
        lines += [f"{s / total:6.1%} {s:10.6f} {calls[n]:7d}  {n}" for n, s in rows]
        return "\n".join(lines)

    def chrome(self) -> dict[str, Any]:
        """The spans in the Trace Event Format, times in microseconds."""
        events = [
            {
                "name": span.name,
                "cat": "weft",
                "ph": "X",
                "ts": span.start * 1e6,
                "dur": span.seconds * 1e6,
                "pid": 1,
                "tid": span.thread,
                "args": {"detail": span.detail},
            }
            for span in self.spans
        ]
        return {"traceEvents": events, "displayTimeUnit": "ms"}


def unshared(compiled: Prepared, inputs: Sequence[Any]) -> list[Any]:
    """The inputs for another run: those that the first one may overwrite are copied."""
    kinds = [leaf for kind in compiled.program.main.parameters for leaf in leaves(kind)]
    made = list(inputs)
    for index in compiled.donated:
        elements = compiled.backend.read_storage(made[index], kinds[index])
        made[index] = compiled.backend.store(elements.copy())
    return made


def profiled(compiled: Prepared, inputs: Sequence[Any], seed: int, profile: Profile) -> list[Any]:
    """The results of a run whose parts are timed. A backend with kernels is profiled by kernel, in
    a second run; others tell of every instruction while they run."""
    by_kernel = getattr(compiled.executable, "profile", None)
    if by_kernel is not None:
        again = unshared(compiled, inputs)
        results = compiled.execute(inputs, seed=seed)
        end = time.perf_counter()
        for name, seconds in by_kernel(again, seed=seed):
            # Kernels run one after the other; those of a loop are one span with all their time.
            end += seconds
            profile.add(name, end, seconds)
        return results

    def observe(body: Body, instruction: Instruction, seconds: float) -> None:
        line = compiled.program.locations.get((body.label, instruction.id), "")
        detail = f"{instruction.summary} : {instruction.output} {line}".strip()
        profile.add(instruction.op.mnemonic, time.perf_counter(), seconds, detail)

    started = time.perf_counter()
    before = len(profile.spans)
    results = compiled.executable.execute(inputs, seed=seed, observer=observe)
    if len(profile.spans) == before:
        end = time.perf_counter()
        profile.add(f"@{compiled.program.entry}", end, end - started)
    return results
