"""Profiles that were saved open in the explorer, whoever wrote them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import weft
from tests.support.explorer_pages import EVIL, data_of
from weft.cli.main import app
from weft.explorer.page import page
from weft.explorer.traces import events_in, left_out, records_of_trace
from weft.foundation.errors import UserError


def explore(*args: object) -> Any:
    return CliRunner().invoke(app, ["explore", *map(str, args)])


def test_a_saved_profile_becomes_a_page(tmp_path: Path) -> None:
    trace, out = tmp_path / "trace.json", tmp_path / "page.html"
    with weft.graph(backend="cpu"), weft.profile(trace, show=False) as found:
        weft.jit(lambda x, w: weft.exp(x @ w))(weft.ones((8, 16)), weft.ones((16, 4))).numpy()
    assert explore(trace, "-o", out).exit_code == 0
    data = data_of(out.read_text())
    kernels = [kernel for program in data["programs"] for kernel in program["kernels"]]
    assert {span.name for span in found.spans} == {kernel["name"] for kernel in kernels}
    assert all(kernel["seconds"] > 0 for kernel in kernels)
    assert any(kernel["file"] == __file__ and kernel["line"] for kernel in kernels)
    assert __file__ in data["sources"]
    assert data["programs"][0]["spans"][0][1] == 0
    assert set(data["programs"][0]["lanes"]) <= {"thread 1", "thread 2", "host"}
    served = explore(trace, "--serve")
    assert served.exit_code == 1
    assert "no stages" in str(served.exception)


STREAMS = Path(__file__).parent / "gpu_profile.json"
"""A step on a GPU, as `weft.profile` writes it: a stream, a step that is the host's, and
launches."""


def test_a_profile_of_a_gpu_has_its_stream_the_host_and_the_gaps() -> None:
    events = events_in(STREAMS)
    assert events is not None
    (record,) = records_of_trace(events, "it")
    assert record["lanes"] == ["GPU stream", "host", "launches"]
    on = [lane for _, _, _, lane in record["spans"]]
    assert {0, 1, 2} == set(on)
    assert record["spans"][0][1] == 0
    times = {kernel["name"]: kernel["seconds"] for kernel in record["kernels"]}
    assert times["stream1"] == pytest.approx(412e-6)


def test_the_program_that_took_longest_comes_first() -> None:
    events = [
        {"cat": "weft", "pid": 1, "name": "map0", "ts": 1, "dur": dur, "args": {"program": name}}
        for name, dur in (("@a", 2), ("@b", 3), ("@b", 4), ("@c", 1))
    ]
    found = records_of_trace(events, "it")
    assert [record["name"] for record in found] == ["@b", "@a", "@c"]
    assert found[0]["kernels"][0]["calls"] == 2


def test_runs_and_kernels_are_lanes_where_nothing_else_is_told() -> None:
    events = [
        {"cat": "weft", "pid": pid, "tid": 5, "name": name, "ts": 1, "dur": 2, "args": {}}
        for pid, name in ((0, "@net"), (1, "map0"))
    ]
    (record,) = records_of_trace(events, "it")
    assert record["lanes"] == ["kernels", "whole runs"]


@pytest.mark.parametrize(
    "event",
    [None, 3, {"cat": "weft"}, {"cat": "weft", "pid": 1, "ts": 1, "dur": -1, "args": {}},
     {"cat": "weft", "pid": 1, "ts": "1", "dur": 1, "args": {}},
     {"cat": "other", "pid": 1, "ts": 1, "dur": 1, "args": {}},
     {"cat": "weft", "pid": [1], "ts": 1, "dur": 1, "args": {}},
     {"name": "thread_name", "ph": "M", "pid": 2, "tid": {}, "args": []}],
)  # fmt: skip
def test_a_trace_without_kernels_is_refused(event: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="without kernels of Weft"):
        records_of_trace([event], "it")
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": [event]}))
    assert explore(file, "-o", tmp_path / "page.html").exit_code == 1


def test_a_trace_of_a_stranger_is_data_and_reads_no_other_files(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("hidden")
    args = {"program": EVIL, "op": 3, "file": str(secret), "line": f"{EVIL}:7", "layer": EVIL}
    event = {"cat": "weft", "pid": 1, "name": EVIL, "ts": 5, "dur": 2, "args": args}
    (record,) = records_of_trace([event], "it")
    text = page([record], "a page")
    assert "alert(" not in text
    assert data_of(text)["sources"] == {}
    assert record["kernels"][0]["line"] == 7
    assert record["kernels"][0]["op"] == ""


def test_other_files_are_no_traces(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    assert events_in(file) is None
    for text in ("", "[", "[1]", '{"traceEvents": 3}', "[" * 100_000):
        file.write_text(text)
        assert events_in(file) is None


def test_damaged_events_are_counted_and_told(tmp_path: Path) -> None:
    events = json.loads(STREAMS.read_text())["traceEvents"]
    whole = next(event for event in events if event.get("cat") == "weft")
    damaged = [
        {**whole, "dur": "long"},
        {**whole, "ts": -1},
        {**whole, "args": None},
        {**whole, "pid": "x"},
        7,
    ]
    foreign = {"cat": "other", "name": "theirs"}
    trace, out = tmp_path / "trace.json", tmp_path / "page.html"
    trace.write_text(json.dumps({"traceEvents": [*events, *damaged, foreign]}))
    told = (
        "5 damaged events left out: 2 without a time that could be, 1 without args, "
        "1 of no known process, 1 no object"
    )
    done = explore(trace, "-o", out)
    assert done.exit_code == 0
    assert told in done.stderr
    assert all(program["why"].endswith(told) for program in data_of(out.read_text())["programs"])
    assert not left_out(events)
