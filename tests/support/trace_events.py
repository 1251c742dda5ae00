"""What holds of a trace that Perfetto and chrome://tracing open: the JSON object form of the Trace
Event Format, as far as it is used here, and what their readers make of it.

Both cut times to whole nanoseconds, hold numbers of processes and threads in 32 bits, and know a
thread by its number alone when they name it. Spans of one thread must lie apart or inside each
other: others are drawn on top of each other.
"""

from __future__ import annotations

from typing import Any


def check_trace(trace: Any) -> None:
    """Complete events, and names of processes and threads."""
    assert set(trace) <= {"traceEvents", "displayTimeUnit", "otherData", "metadata"}
    assert trace.get("displayTimeUnit", "ms") in ("ms", "ns")
    assert trace["traceEvents"]
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    named: set[int] = set()
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str)
        assert event["name"]
        for key in ("pid", "tid"):
            assert type(event[key]) is int
            assert 0 <= event[key] < 1 << 31
        assert isinstance(event["args"], dict)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert isinstance(event["args"]["name"], str)
            assert event["args"]["name"]
            if event["name"] == "thread_name":
                assert event["tid"] not in named
                named.add(event["tid"])
            continue
        assert event["ph"] == "X"
        assert isinstance(event["cat"], str)
        for key in ("ts", "dur"):
            assert type(event[key]) in (int, float)
            assert event[key] >= 0
        start = int(event["ts"] * 1000)
        track = tracks.setdefault((event["pid"], event["tid"]), [])
        track.append((start, start + int(event["dur"] * 1000)))
    assert len({tid for _, tid in tracks}) == len(tracks)
    assert {pid for pid, _ in tracks} <= _processes(trace["traceEvents"])
    for spans in tracks.values():
        _check_nesting(spans)


def _processes(events: list[Any]) -> set[int]:
    return {event["pid"] for event in events if event["name"] == "process_name"}


def _check_nesting(spans: list[tuple[int, int]]) -> None:
    open_until: list[int] = []
    for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        while open_until and open_until[-1] <= start:
            open_until.pop()
        assert not open_until or end <= open_until[-1], "spans of one thread overlap"
        open_until.append(end)
