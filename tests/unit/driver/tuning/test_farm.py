"""Tuning by the workers of an executor: nothing is lost, and nobody measures beside another."""

from __future__ import annotations

import json
import os
import sys
import threading
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import weft
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.driver.tuning import farm
from weft.driver.tuning import tune as tuner
from weft.driver.tuning.farm import dask_executor, measured_by_worker
from weft.driver.tuning.measure import Measurement
from weft.ptir import Builder, Program
from weft.region.ir import Kernel, Module
from weft.target.known import target_named
from weft.target.target import Target


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    return tmp_path


def timed(kernel: Kernel, module: Module, plan: object, target: Target) -> Measurement:
    """A clock that tells the same for the same plan, wherever it stands."""
    seconds = 1e-3 + len(repr(plan)) % 7 * 1e-4
    return Measurement(kernel.name, kernel.pattern.value, 1, 1, 1.0, 1e-6, seconds, "{}")


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "measure", timed)


def program() -> Program:
    b = Builder("two")
    x, w = b.param("f32", [96, 64]), b.param("f32", [64, 80])
    return b.build(b.softmax(x @ w, axis=1))


class Killed(Executor):
    """Workers of whom the first is killed."""

    def __init__(self) -> None:
        self.asked = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.asked += 1
        made: Future[Any] = Future()
        if self.asked == 1:
            made.set_exception(RuntimeError("the worker died"))
        else:
            made.set_result(fn(*args, **kwargs))
        return made


@pytest.mark.usefixtures("pretended")
def test_a_farm_finds_what_one_process_finds() -> None:
    alone = weft.tune(program())
    assert len(alone.found) > 1
    with ThreadPoolExecutor(2) as pool:
        found = weft.tune(program(), executor=pool, again=True)
    assert found.found == alone.found
    assert sorted(map(repr, found.measured)) == sorted(map(repr, alone.measured))
    assert not found.notes
    assert weft.tune(program()).known == len(alone.found)


@pytest.mark.usefixtures("pretended")
def test_a_worker_that_is_killed_loses_nothing() -> None:
    alone = weft.tune(program())
    found = weft.tune(program(), executor=Killed(), again=True)
    assert found.found == alone.found
    (note,) = found.notes
    assert note.endswith("is measured here: its worker failed, RuntimeError: the worker died")


@pytest.mark.usefixtures("pretended")
def test_an_executor_that_is_over_leaves_the_work_here() -> None:
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    found = weft.tune(program(), executor=pool)
    assert len(found.notes) == len(found.found) > 1


@pytest.mark.usefixtures("pretended")
def test_another_kind_of_machine_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = iter(range(1000))
    monkeypatch.setattr(farm, "tuned_key", lambda target: f"key {next(keys)}")
    found = weft.tune(program(), executor=Killed())
    assert len(found.found) > 1
    assert any("is another kind of machine" in note for note in found.notes)


def test_a_process_measures_what_it_reads(tmp_path: Path) -> None:
    """Nothing is pretended: a kernel goes to another process as text, and its times come back."""
    b = Builder("sums")
    x = b.param("f32", [64, 64])
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        found = weft.tune(b.build(x + x), executor=pool)
    assert not found.notes
    (best,) = found.found.values()
    assert 0 < best.seconds <= best.first_seconds
    assert best.is_done


def _die(task: str) -> str:
    os._exit(3)


@pytest.mark.usefixtures("pretended")
def test_a_process_that_dies_breaks_the_pool_and_not_the_tuner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(farm, "measured_by_worker", _die)
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        found = weft.tune(program(), executor=pool)
    assert len(found.notes) == len(found.found) > 1
    assert all("its worker failed" in note for note in found.notes)


def test_workers_of_one_machine_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    inside: list[int] = []
    most: list[int] = []

    def slow(*given: Any) -> Any:
        inside.append(1)
        most.append(len(inside))
        threading.Event().wait(0.02)
        inside.pop()
        return timed(*given)

    monkeypatch.setattr(tuner, "measure", slow)
    with ThreadPoolExecutor(3) as pool:
        weft.tune(program(), executor=pool)
    assert max(most) == 1


@pytest.mark.usefixtures("pretended")
def test_the_address_of_a_farm(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Client:
        def __init__(self, address: str, timeout: float) -> None:
            asked.append(address)
            if "nowhere" in address:
                raise OSError("timed out")

        def get_executor(self, **options: Any) -> Executor:
            return Killed()

    monkeypatch.setitem(sys.modules, "distributed", SimpleNamespace(Client=Client))
    assert isinstance(dask_executor("tcp://here:8786"), Killed)
    assert asked == ["tcp://here:8786"]
    with pytest.raises(weft.UserError, match="there is no farm at 'tcp://nowhere': timed out"):
        dask_executor("tcp://nowhere")
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(weft.UserError, match="install the package distributed"):
        dask_executor("tcp://here:8786")


def test_what_is_no_executor_or_no_program_is_told() -> None:
    wrong: Any = 3
    with pytest.raises(weft.UserError, match=r"executor is one of concurrent\.futures, not an int"):
        weft.tune(program(), executor=wrong)
    b = Builder("open")
    with pytest.raises(weft.UserError, match="a program with dynamic dims"):
        weft.tune(b.build(-b.param("f32", ["?N"])))


def test_a_task_is_text() -> None:
    (first, *_) = tuner.classes_of(_compilation())
    text = farm._task(first, target_named("cpu"))
    assert set(json.loads(text)) == {"target", "key", "region", "plans"}
    changed = json.dumps({**json.loads(text), "key": "another"})
    assert "refused" in json.loads(measured_by_worker(changed))


def _compilation() -> Compilation:
    source = program()
    return Compilation(source, target_named("cpu"), make_signature(source))
