"""A profile that was saved, as a page: its kernels, lines, layers and timeline, without stages."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from weft.explorer.record import Json, timeline_of
from weft.foundation.errors import UserError
from weft.ops.trace.profile import KERNELS, LANES, RUNS
from weft.runtime.timeline import Lap

_LANES: Final = {RUNS: "whole runs", KERNELS: "kernels", LANES: "lane"}
"""What a lane is called that has no name of its own, by the process that its spans are of."""


_LONGEST: Final = 40
"""Letters of the name of a lane."""


@dataclass(frozen=True)
class _Event:
    """One kernel of one run, a run as a whole, or what a thread or stream did of one."""

    program: str
    name: str
    op: str
    file: str
    place: str
    layer: str
    start: float
    seconds: float
    process: int
    thread: str
    lane: str
    """What the trace calls its thread; nothing where it does not."""

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
    """A program for each that the trace tells of, that which took longest first; one that ran
    several times has all its runs."""
    programs: dict[str, list[_Event]] = {}
    for event in _events_of(events):
        programs.setdefault(event.program, []).append(event)
    programs = {
        name: found
        for name, found in programs.items()
        if any(event.process == KERNELS for event in found)
    }
    if not programs:
        raise UserError(
            f"{where} is a trace without kernels of Weft; weft profile SCRIPT --trace FILE writes "
            "one with them"
        )
    made = [_trace_record(name or "programs", found) for name, found in programs.items()]
    missing = left_out(events)
    for record in made if missing else ():
        record["why"] += f"; {missing}"
    return sorted(made, key=lambda record: -sum(kernel["seconds"] for kernel in record["kernels"]))


def _events_of(events: list[Any]) -> Iterator[_Event]:
    """The kernels and runs of a trace, which may be anybody's."""
    lanes = dict(_thread_names(events))
    for event in events:
        if _is_foreign(event) or _event_fault(event):
            continue
        args = event["args"]
        told = {key: _text_or_empty(args.get(key)) for key in ("program", "op", "file", "layer")}
        yield _Event(
            **told,
            name=_text_or_empty(event.get("name")),
            place=_text_or_empty(args.get("line")),
            start=event["ts"] / 1e6,
            seconds=event["dur"] / 1e6,
            process=event["pid"],
            thread=str(event.get("tid"))[:_LONGEST],
            lane=lanes.get((event["pid"], str(event.get("tid"))[:_LONGEST]), ""),
        )


def _is_foreign(event: Any) -> bool:
    """Whether it is an event of another program, or a name of a thread."""
    return isinstance(event, dict) and event.get("cat") != "weft"


def _event_fault(event: Any) -> str:
    """What is wrong with an event of Weft; nothing where it is whole."""
    if not isinstance(event, dict):
        return "no object"
    if type(event.get("pid")) is not int or event["pid"] not in _LANES:
        return "of no known process"
    if not isinstance(event.get("args"), dict):
        return "without args"
    if not all(_is_time(event.get(key)) for key in ("ts", "dur")):
        return "without a time that could be"
    return ""


def left_out(events: list[Any]) -> str:
    """How many events of a trace are damaged, and how; nothing where none is."""
    faults = Counter(
        fault for event in events if not _is_foreign(event) and (fault := _event_fault(event))
    )
    if not faults:
        return ""
    what = ", ".join(f"{count} {fault}" for fault, count in faults.most_common())
    total = faults.total()
    return f"{total} damaged event{'s' if total > 1 else ''} left out: {what}"


def _thread_names(events: list[Any]) -> Iterator[tuple[tuple[int, str], str]]:
    """What a trace calls its threads, by process and number."""
    for event in events:
        if not isinstance(event, dict) or event.get("name") != "thread_name":
            continue
        args, process = event.get("args"), event.get("pid")
        if event.get("ph") == "M" and isinstance(args, dict) and type(process) is int:
            yield (
                (process, str(event.get("tid"))[:_LONGEST]),
                _text_or_empty(args.get("name"))[:_LONGEST],
            )


def _text_or_empty(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value >= 0


def _trace_record(name: str, events: list[_Event]) -> Json:
    """A program without stages: a kernel stands for an instruction, so that lines lead to it."""
    first: dict[str, _Event] = {}
    seconds: dict[str, float] = {}
    calls: dict[str, int] = {}
    for event in (event for event in events if event.process == KERNELS):
        first.setdefault(event.name, event)
        seconds[event.name] = seconds.get(event.name, 0.0) + event.seconds
        calls[event.name] = calls.get(event.name, 0) + 1
    known = enumerate(first.values())
    return {
        "name": name, "target": "profile", "level": 0, "times": [], "stages": [],
        "values": [[at, e.op or e.name, "", e.file, e.line, e.layer, []] for at, e in known],
        "kernels": [
            {**_kernel(at, e, seconds[e.name]), "calls": calls[e.name]}
            for at, e in enumerate(first.values())
        ],
        "races": {}, "folded": {}, "notes": [],
        "memory": {"arena": 0, "tensors": [], "copies": [], "shares": []},
        "machine": {"bandwidth": 1.0, "matrix": 1.0, "vector": 1.0, "units": 1},
        **timeline_of(_laps(events)),
        "why": "a saved profile: times, lines and layers, no stages",
    }  # fmt: skip


def _laps(events: list[_Event]) -> list[Lap]:
    """One run by threads and streams, where the trace has that; else runs as they were, and kernel
    by kernel, in lanes of their own for every thread."""
    events = [event for event in events if event.process == LANES] or events
    start = min(event.start for event in events)
    threads = list(dict.fromkeys(event.thread for event in events))
    of = [f", thread {at + 1}" for at in range(len(threads))] if threads[1:] else [""]
    lanes = {thread: of[at] for at, thread in enumerate(threads)}
    return [
        Lap(
            e.name, e.start - start, e.seconds,
            e.lane or f"{_LANES[e.process]}{lanes[e.thread]}",
        )
        for e in sorted(events, key=lambda event: event.start)
    ]  # fmt: skip


def _kernel(at: int, event: _Event, seconds: float) -> Json:
    return {
        "name": event.name, "pattern": "", "values": [at], "routine": "", "op": event.op,
        "file": event.file, "line": event.line, "place": event.place, "layer": event.layer,
        "lines": [], "plan": "", "fields": [], "key": "", "nest": "", "inside": {}, "takes": {},
        "reads": [], "writes": [], "after": [], "choices": [], "seconds": seconds, "flops": 0,
        "bytes": 0, "estimate": 0.0, "occupancy": 0.0, "bound": "", "ceiling": 1.0,
    }  # fmt: skip
