"""A profile that was saved, as a page: its kernels, lines, layers and timeline, without stages."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from weft.explorer.record import Json, timeline_of
from weft.foundation.errors import UserError
from weft.runtime.timeline import Lap

_LANES: Final = {False: "kernels", True: "whole runs"}


@dataclass(frozen=True)
class _Event:
    """One kernel of one run, or a run as a whole, whose lane is another."""

    program: str
    name: str
    op: str
    file: str
    place: str
    layer: str
    start: float
    seconds: float
    is_run: bool
    thread: str

    @property
    def line(self) -> int:
        number = self.place.rpartition(":")[2]
        return int(number) if number.isascii() and number.isdecimal() and len(number) < 9 else 0


def events_in(file: Path) -> list[Any] | None:
    """What a trace has; None where a file is something else."""
    if file.suffix != ".json":
        return None
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    events = found.get("traceEvents") if isinstance(found, dict) else None
    return events if isinstance(events, list) else None


def records_of_trace(events: list[Any], where: str) -> list[Json]:
    """A program for each that the trace tells of; one that ran several times has all its runs."""
    programs: dict[str, list[_Event]] = {}
    for event in _read(events):
        programs.setdefault(event.program, []).append(event)
    programs = {name: found for name, found in programs.items() if not all(e.is_run for e in found)}
    if not programs:
        raise UserError(
            f"{where} is a trace without kernels of Weft; weft profile SCRIPT --trace FILE writes "
            "one with them"
        )
    return [_record(name or "programs", found) for name, found in programs.items()]


def _read(events: list[Any]) -> Iterator[_Event]:
    """The kernels and runs of a trace, which may be anybody's."""
    for event in events:
        if (
            not isinstance(event, dict)
            or event.get("cat") != "weft"
            or event.get("pid") not in (0, 1)
        ):
            continue
        args, times = event.get("args"), (event.get("ts"), event.get("dur"))
        if not isinstance(args, dict) or not all(_is_time(time) for time in times):
            continue
        told = {key: _text(args.get(key)) for key in ("program", "op", "file", "layer")}
        yield _Event(
            **told,
            name=_text(event.get("name")),
            place=_text(args.get("line")),
            start=event["ts"] / 1e6,
            seconds=event["dur"] / 1e6,
            is_run=event["pid"] == 0,
            thread=str(event.get("tid"))[:40],
        )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value >= 0


def _record(name: str, events: list[_Event]) -> Json:
    """A program without stages: a kernel stands for an instruction, so that lines lead to it."""
    first: dict[str, _Event] = {}
    seconds: dict[str, float] = {}
    for event in (event for event in events if not event.is_run):
        first.setdefault(event.name, event)
        seconds[event.name] = seconds.get(event.name, 0.0) + event.seconds
    known = enumerate(first.values())
    return {
        "name": name, "target": "profile", "level": 0, "times": [], "stages": [],
        "values": [[at, e.op or e.name, "", e.file, e.line, e.layer, []] for at, e in known],
        "kernels": [_kernel(at, e, seconds[e.name]) for at, e in enumerate(first.values())],
        "races": {}, "folded": {}, "notes": [],
        "memory": {"arena": 0, "tensors": [], "copies": [], "shares": []},
        "machine": {"bandwidth": 1.0, "matrix": 1.0, "vector": 1.0, "units": 1},
        **timeline_of(_laps(events)),
        "why": "a saved profile: times, lines and layers, no stages",
    }  # fmt: skip


def _laps(events: list[_Event]) -> list[Lap]:
    """Runs as they were, and kernel by kernel, in lanes of their own for every thread."""
    start = min(event.start for event in events)
    threads = list(dict.fromkeys(event.thread for event in events))
    of = [f", thread {at + 1}" for at in range(len(threads))] if threads[1:] else [""]
    lanes = {thread: of[at] for at, thread in enumerate(threads)}
    return [
        Lap(e.name, e.start - start, e.seconds, f"{_LANES[e.is_run]}{lanes[e.thread]}")
        for e in sorted(events, key=lambda event: event.start)
    ]


def _kernel(at: int, event: _Event, seconds: float) -> Json:
    return {
        "name": event.name, "pattern": "", "values": [at], "routine": "", "op": event.op,
        "file": event.file, "line": event.line, "place": event.place, "layer": event.layer,
        "lines": [], "plan": "", "fields": [], "key": "", "nest": "", "inside": {}, "takes": {},
        "reads": [], "writes": [], "after": [], "choices": [], "seconds": seconds, "flops": 0,
        "bytes": 0, "estimate": 0.0, "occupancy": 0.0, "bound": "", "ceiling": 1.0,
    }  # fmt: skip
