"""Where the time goes: one span per instruction or kernel, with the op, the line and the layer that
it comes from.

    with weft.profile("trace.json"):
        step(model, batch)
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from weft.driver.execute import Prepared
from weft.driver.stages.origins import Origin
from weft.foundation.calls import told
from weft.foundation.errors import UserError, brief
from weft.foundation.lines import Place
from weft.ptir.ir import Body, Instruction
from weft.ptir.ops.callback import repeating
from weft.ptir.types import leaves

_NOWHERE: Final = Origin()
_WIDEST: Final = 44
"""Letters of a column of a table."""
_TITLES: Final = ("share", "ms", "least", "calls", "kernel", "op", "line", "layer")
_NUMBERS: Final = 4
"""Columns that are numbers."""
PROCESSES: Final = (
    "programs as they ran",
    "kernels, one after the other",
    "one run of each, by threads and streams",
)
"""What the processes of a trace are, by number."""
RUNS, KERNELS, LANES = range(3)


@dataclass(frozen=True)
class Span:
    """One instruction or kernel of one run: when it began and how long it took, in seconds."""

    name: str
    start: float
    seconds: float
    thread: int
    detail: str = ""
    program: str = ""
    origin: Origin = _NOWHERE
    lane: str = ""
    """Whose time it is, where that is known: a thread of a CPU, a stream of a GPU, or the host."""

    @property
    def line(self) -> str:
        """The user's line, `gpt.py:31`; nothing where it is not known."""
        return self.origin.line

    @property
    def layer(self) -> str:
        """The layer of the model, `blocks[3].attn`; nothing outside of models."""
        return self.origin.layer

    @property
    def layers(self) -> tuple[str, ...]:
        """All layers that it computes something of: a fused kernel may belong to several."""
        return self.origin.layers


KEYS: Final[dict[str, Callable[[Span], tuple[str, ...]]]] = {
    "kernel": lambda span: (span.program, span.name, span.line, span.layer),
    "line": lambda span: (span.line,),
    "layer": lambda span: (span.origin.shared_layers,),
    "op": lambda span: (span.origin.op or span.name,),
}
"""What a table can have a row for each of."""


@dataclass
class Profile:
    """Every span seen, in order; `runs` are the programs that they are part of, as they ran without
    being taken apart; `laps` are who was busy with what in one run of each program."""

    spans: list[Span] = field(default_factory=list)
    origin: float = field(default_factory=time.perf_counter)
    runs: list[Span] = field(default_factory=list)
    laps: list[Span] = field(default_factory=list)
    has_laps: bool = True
    """Whether a program is run once more for its laps."""
    _lapped: set[int] = field(default_factory=set)
    """Programs that have laps."""

    def add(
        self,
        name: str,
        end: float,
        seconds: float,
        detail: str = "",
        program: str = "",
        origin: Origin = _NOWHERE,
    ) -> None:
        start, thread = end - seconds - self.origin, threading.get_ident()
        self.spans.append(Span(name, start, seconds, thread, detail, program, origin))

    def take_over(self, inner: Profile) -> None:
        """What a profile inside this one has seen was run inside this one too."""
        late = inner.origin - self.origin
        pairs = ((self.spans, inner.spans), (self.runs, inner.runs), (self.laps, inner.laps))
        for own, seen in pairs:
            own += [replace(span, start=span.start + late) for span in seen]

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

    @told
    def table(self, by: str = "kernel", *, most: int | None = 30) -> str:
        """Share, milliseconds and calls of each kernel, `line`, `layer` or `op`, with the kernel,
        op, line and layer that took most of it. `least` is what it would take if each kernel took
        as long as in its fastest call: on a busy machine some calls wait for others. Shares are of
        that, and the greatest comes first."""
        if by not in KEYS:
            raise UserError(f"a profile has a row for each {' or '.join(KEYS)}, not {by!r}")
        if most is not None and (type(most) is not int or most < 1):
            raise UserError(f"most is the number of rows, 1 or more, or None, not {brief(most)}")
        groups: dict[tuple[str, ...], list[Span]] = {}
        for span in self.spans:
            groups.setdefault(KEYS[by](span), []).append(span)
        least = self._least_seconds()
        total = sum(least[KEYS["kernel"](span)] for span in self.spans) or 1.0
        sums = {
            key: sum(least[KEYS["kernel"](span)] for span in spans) for key, spans in groups.items()
        }
        ranked = sorted(groups, key=lambda key: -sums[key])
        rows = [_table_row(groups[key], sums[key], total, by) for key in ranked[:most]]
        left = len(ranked) - len(rows)
        return _write_rows(rows) + (f"\n... and {left} more" if left > 0 else "")

    def _least_seconds(self) -> dict[tuple[str, ...], float]:
        """The fastest call of each kernel."""
        found: dict[tuple[str, ...], float] = {}
        for span in self.spans:
            key = KEYS["kernel"](span)
            found[key] = min(span.seconds, found.get(key, span.seconds))
        return found

    def __str__(self) -> str:
        return self.table() if self.spans else "nothing ran"

    def chrome(self) -> dict[str, Any]:
        """The spans in the Trace Event Format, times in microseconds: what chrome://tracing and
        Perfetto open. Programs as they ran are process 0, their parts process 1, and one run of
        each by threads and streams process 2."""
        parts = ((KERNELS, self.spans), (RUNS, self.runs), (LANES, self.laps))
        # Readers hold the number of a thread in 32 bits, and know it by that in all processes.
        tracks: dict[tuple[int, int | str], int] = {}
        events = [
            _event(span, pid, tracks.setdefault((pid, span.lane or span.thread), len(tracks) + 1))
            for pid, spans in parts
            for span in spans
        ]
        used = {event["pid"] for event in events}
        names = [_name_process("process_name", pid, 0, PROCESSES[pid]) for pid in sorted(used)]
        names += [
            _name_process("thread_name", pid, number, lane)
            for (pid, lane), number in tracks.items()
            if isinstance(lane, str)
        ]
        return {"traceEvents": [*names, *events], "displayTimeUnit": "ms"}

    @told
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace for Perfetto."""
        try:
            Path(path).write_text(json.dumps(self.chrome()) + "\n")
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror or error}") from None


def _name_process(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    """What a trace calls a process, or one of its threads."""
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _event(span: Span, process: int, track: int) -> dict[str, Any]:
    place = next((p for p in span.origin.places if isinstance(p, Place)), None)
    start, end = round(span.start * 1e9), round((span.start + span.seconds) * 1e9)
    return {
        "name": span.name,
        "cat": "weft",
        "ph": "X",
        "ts": start / 1e3,
        # Readers cut times to whole nanoseconds: so the next span never begins inside this one.
        "dur": max(0, end - start - 1) / 1e3,
        "pid": process,
        "tid": track,
        "args": {
            "detail": span.detail,
            "program": span.program,
            "op": span.origin.op,
            "line": span.line,
            "file": place.file if place else "",
            "layer": span.layer,
            "layers": list(span.layers),
        },
    }


def _table_row(spans: Sequence[Span], least: float, total: float, by: str) -> tuple[str, ...]:
    seconds = sum(span.seconds for span in spans)
    first = max(spans, key=lambda span: span.seconds)
    names = list(dict.fromkeys(span.name for span in spans))
    several = f"{first.name} and {len(names) - 1} more" if names[1:] else first.name
    sums = (f"{1e3 * each:.3f}" for each in (seconds, least))
    times = f"{least / total:.1%}", *sums, str(len(spans))
    place = first.line + (" ..." if by == "kernel" and len(first.origin.places) > 1 else "")
    layer = first.origin.shared_layers
    if len({span.origin.shared_layers for span in spans}) > 1:
        layer = f"{len({name for span in spans for name in span.layers or ('',)})} layers"
    return (*times, several, first.origin.op or first.name, place, layer)


def _write_rows(rows: Sequence[tuple[str, ...]]) -> str:
    short = [tuple(_shorten_cell(cell) for cell in row) for row in (_TITLES, *rows)]
    widths = [max(len(row[place]) for row in short) for place in range(len(_TITLES))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if place < _NUMBERS else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in short
    )


def _shorten_cell(cell: str) -> str:
    return cell if len(cell) <= _WIDEST else cell[: _WIDEST - 3] + "..."


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
    name = f"@{compiled.program.entry}"
    compiled.agree(inputs)
    if getattr(compiled.executable, "profile", None) is not None:
        again = unshared(compiled, inputs)
        once_more = _for_laps(compiled, inputs, profile)
        started = time.perf_counter()
        results = compiled.execute(inputs, seed=seed)
        _add_run(profile, name, started, time.perf_counter())
        with repeating():
            origins = _by_kernel(compiled, again, seed, profile)
            if once_more is not None:
                _by_lane(compiled, once_more, seed, profile, started, origins)
        return results

    def observe(body: Body, instruction: Instruction, seconds: float) -> None:
        line = compiled.program.locations.get((body.label, instruction.id), "")
        detail = f"{instruction.summary} : {instruction.output} {line}".strip()
        op = instruction.op.mnemonic
        origin = Origin((op,), (line,) if line else ())
        profile.add(op, time.perf_counter(), seconds, detail, name, origin)

    started = time.perf_counter()
    before = len(profile.spans)
    results = compiled.executable.execute(inputs, seed=seed, observer=observe)
    end = time.perf_counter()
    _add_run(profile, name, started, end)
    if len(profile.spans) == before:
        profile.add(name, end, end - started, program=name)
    return results


def _add_run(profile: Profile, name: str, started: float, end: float) -> None:
    thread = threading.get_ident()
    profile.runs.append(Span(name, started - profile.origin, end - started, thread, program=name))


def _for_laps(compiled: Prepared, inputs: Sequence[Any], profile: Profile) -> list[Any] | None:
    """The inputs for a run that tells of its threads and streams; None where there shall be none:
    one for each program is enough."""
    known = id(compiled) in profile._lapped or not profile.has_laps
    if known or getattr(compiled.executable, "timeline", None) is None:
        return None
    profile._lapped.add(id(compiled))
    return unshared(compiled, inputs)


def _by_lane(
    compiled: Prepared,
    inputs: Sequence[Any],
    seed: int,
    profile: Profile,
    started: float,
    origins: Mapping[str, Origin],
) -> None:
    """One more run, with who was busy with what; it is shown where the first one is."""
    executable: Any = compiled.executable
    name, thread = f"@{compiled.program.entry}", threading.get_ident()
    for lap in executable.timeline(inputs, seed=seed):
        origin = origins.get(lap.label, _NOWHERE)
        start = started - profile.origin + lap.start
        detail = f"{origin.op} {origin.line}".strip()
        made = Span(lap.label, start, lap.seconds, thread, detail, name, origin, lap.lane)
        profile.laps.append(made)


def _by_kernel(
    compiled: Prepared, inputs: Sequence[Any], seed: int, profile: Profile
) -> dict[str, Origin]:
    """One more run, kernel by kernel; what the user wrote that each carries out."""
    executable: Any = compiled.executable
    find = getattr(executable, "origins", None)
    origins = find() if find is not None else []
    name = f"@{compiled.program.entry}"
    end = time.perf_counter()
    steps = executable.profile(inputs, seed=seed)
    known = [*origins, *([_NOWHERE] * (len(steps) - len(origins)))]
    for (label, seconds), origin in zip(steps, known, strict=True):
        # Kernels run one after the other; those of a loop are one span with all their time.
        end += seconds
        detail = f"{origin.op} {origin.line}".strip()
        profile.add(label, end, seconds, detail, name, origin)
    return {label: origin for (label, _), origin in zip(steps, known, strict=True)}
