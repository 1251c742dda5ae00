"""Traces: the folder they write, the profile, and the first NaN."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.trace_events import check_trace
from weft.foundation.errors import UserError
from weft.ops.graph.cache import PROGRAMS
from weft.ops.graph.hooks import WATCH
from weft.ptir import load, verify


def work(x: Any) -> Any:
    return weft.functional.softmax(weft.exp(x) * 0.0 + x + x)


def test_the_folder_is_laid_out_as_documented(tmp_path: Path) -> None:
    PROGRAMS.clear()
    with weft.trace(weft.TraceConfig(dump_programs=tmp_path, profile_backend=True)):
        work(weft.ones((2, 3))).eval()
        weft.jit(work)(weft.ones((2, 3)))
        work(weft.ones((2, 3))).eval()
    folders = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert [name.partition("_")[2] for name in folders] == ["eval", "eval", "jit"]
    assert [name[:5] for name in folders] == ["00000", "00001", "00002"]
    for name in folders:
        folder = tmp_path / name
        assert {p.name for p in folder.iterdir()} == {
            "program.txt", "program.json", "meta.json", "stats.json",
        }  # fmt: skip
        first, second = load(folder / "program.txt"), load(folder / "program.json")
        verify(first)
        assert first == second
        meta = json.loads((folder / "meta.json").read_text())
        assert meta["backend"] == weft.default_backend()
        assert meta["kind"] == name.partition("_")[2]
        stats = json.loads((folder / "stats.json").read_text())
        assert sum(stats["after_passes"].values()) == len(first.main.body)
        assert sum(stats["captured"].values()) >= len(first.main.body)
    runs = [json.loads(s) for s in (tmp_path / "executions.jsonl").read_text().splitlines()]
    assert len(runs) == 4
    assert all(run["seconds"] > 0 and 0 <= run["program"] <= 2 for run in runs)
    passes = [json.loads(s) for s in (tmp_path / "passes.jsonl").read_text().splitlines()]
    assert passes
    assert all({"program", "rule", "place"} <= set(line) for line in passes)
    check_trace(json.loads((tmp_path / "profile.json").read_text()))


def test_the_profile_has_every_instruction_with_its_line() -> None:
    x = weft.asarray(np.ones((3, 3), np.float32))
    with weft.trace() as tracer:
        (weft.exp(x) @ x).eval()
    assert tracer.profile is not None
    spans = {span.name: span for span in tracer.profile.spans}
    assert {"exp", "dot_general"} <= set(spans)
    assert "test_tracer.py:" in spans["exp"].detail
    summary = tracer.profile.summary().splitlines()
    assert summary[0].split() == ["share", "seconds", "calls", "name"]
    assert len(summary) == 1 + len(spans)
    check_trace(tracer.profile.chrome())


def test_kernels_are_profiled_on_a_compiling_backend() -> None:
    with weft.graph(backend="cpu"), weft.trace() as tracer:
        found = work(weft.asarray(np.ones((4, 4), np.float32)))
        found.eval()
    assert tracer.profile is not None
    assert tracer.profile.spans
    kinds = {span.name.rstrip("0123456789") for span in tracer.profile.spans}
    rows = tracer.profile.summary(kinds=True).splitlines()[1:]
    assert sorted(row.split()[-1] for row in rows) == sorted(kinds)
    np.testing.assert_allclose(found.numpy(), np.full((4, 4), 0.25), rtol=1e-6)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_spans_lie_one_after_the_other(backend: str) -> None:
    with weft.graph(backend=backend), weft.trace() as tracer:
        for size in (40, 50):
            x = weft.ones((size, size))
            weft.eval(weft.sum(x @ weft.exp(x) @ x, axis=0))
    assert tracer.profile is not None
    spans = tracer.profile.spans
    assert len(spans) > 3
    for one, other in itertools.pairwise(spans):
        assert one.start + one.seconds <= other.start + 1e-9


@pytest.mark.parametrize("config", [{"profile_backend": True}, {"debug_tensors": True}])
def test_watching_a_step_that_updates_in_place_does_not_take_it_twice(
    config: dict[str, Any],
) -> None:
    step = weft.jit(lambda x: x * 2.0 + 1.0, donate="x")
    with weft.graph(backend="cpu"):
        x = weft.asarray(np.ones(1_000, np.float32)) + 0.0
        for _ in range(3):
            with weft.trace(weft.TraceConfig(**config)) as tracer:
                x = step(x)
        np.testing.assert_array_equal(x.numpy(), np.full(1_000, 15.0))
    for report in tracer.reports:
        assert report.tensors[-1].mean == 15.0


def test_the_first_nan_is_found_with_its_line() -> None:
    x = weft.asarray(np.asarray([4.0, -1.0, 0.25], np.float32))
    with weft.trace(weft.TraceConfig(debug_tensors=True)) as tracer:
        root = weft.sqrt(x)
        (weft.sum(root * 2.0) + 1.0).eval()
    (report,) = tracer.reports
    first = report.first_nan
    assert first is not None
    assert "sqrt" in first.name
    assert first.nan == 1
    assert first.line.startswith("test_tracer.py:")
    assert (first.low, first.high) == (0.5, 2.0)
    assert first.mean == 1.25
    assert "the first NaN comes from" in str(report)
    assert "f32[3] in [0.5, 2], mean 1.25, 1 NaN" in str(report)


def test_a_nan_that_came_in_is_nobodys_fault() -> None:
    x = weft.asarray(np.asarray([np.nan], np.float32))
    with weft.trace(weft.TraceConfig(debug_tensors=True)) as tracer:
        (x + 1.0).eval()
    assert tracer.reports[0].first_nan is None
    assert tracer.reports[0].tensors[-1].nan == 1


def test_traces_nest_and_end() -> None:
    assert WATCH.tracer is None
    with weft.trace() as outer:
        with weft.trace() as inner:
            weft.exp(weft.ones((2,))).eval()
        assert WATCH.tracer is outer
    assert WATCH.tracer is None
    assert inner.profile is not None
    assert inner.profile.spans
    assert outer.profile is not None
    assert outer.profile.spans


def test_off_it_calls_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("tracing is off")

    for name in ("__init__", "compiled", "execute", "close"):
        monkeypatch.setattr(f"weft.ops.trace.tracer.ProgramTracer.{name}", fail)
    work(weft.ones((5, 7))).eval()
    weft.jit(work)(weft.ones((5, 7)))


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UserError, match="cannot make the trace folder"),
        weft.trace(weft.TraceConfig(dump_programs=tmp_path / "file" / "x")),
    ):
        pass


def test_only_a_trace_config_is_taken() -> None:
    with pytest.raises(UserError, match=r"TraceConfig is wanted, not 'folder'"):
        weft.trace("folder").__enter__()  # type: ignore[arg-type]


def test_the_environment_traces_a_process(tmp_path: Path) -> None:
    code = "import weft\nprint(weft.exp(weft.ones((2,))).tolist())\n"
    source = str(Path(weft.__file__).parents[1])
    folder = tmp_path / "dumps"
    environment = {**os.environ, "WEFT_TRACE": str(folder), "PYTHONPATH": source}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert (folder / "00000_eval" / "program.txt").exists()
    check_trace(json.loads((folder / "profile.json").read_text()))


def test_reports_of_tensors_are_printed(capfd: pytest.CaptureFixture[str]) -> None:
    with weft.trace(weft.TraceConfig(debug_tensors=True)):
        (weft.zeros(3) / weft.zeros(3)).numpy()
    said = capfd.readouterr().err
    assert said.startswith("program 0:\n")
    assert "the first NaN comes from" in said
