"""Other processes plan, write and compile kernels while stages run: the same plans, text and
machine code, and no process is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.support.gpu_programs import through_stages
from weft.codegen.gpu.compile import compile_cuda
from weft.codegen.gpu.spelling.print import cuda
from weft.codegen.gpu.verify import verify
from weft.driver.code import gpu_ahead, gpu_kernels, gpu_tasks
from weft.driver.code.gpu_ahead import Ahead
from weft.driver.code.plans import Choice, choose_plans
from weft.driver.compile import Executable
from weft.foundation.errors import InternalError, SpecViolation
from weft.plan import text as plan_text
from weft.plan.ir import MmaPlan
from weft.ptir import Builder, Program
from weft.runtime.compilers import Workers


def program() -> Program:
    """Some kernels."""
    b = Builder()
    x, w = b.param("f32", [64, 1024]), b.param("f32", [1024, 32])
    y = b.sort(x, axis=1)
    return b.build(y, b.exp(y) @ w, b.reduce_sum(b.reshape(b.exp(x), [512, 128]), axes=[1]))


def chain() -> Program:
    """Kernels one after the other, a product in the midst of them."""
    b = Builder()
    x, w = b.param("bf16", [512, 512]), b.param("bf16", [512, 512])
    y = b.softmax(b.sort(x, axis=1), axis=1) @ w
    return b.build(b.sort(b.softmax(y, axis=0), axis=1))


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Workers]:
    """The workers of a machine on which three processes pay."""
    made: list[Workers] = []

    def noted(module: str) -> Workers:
        made.append(Workers(module))
        return made[-1]

    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    monkeypatch.setattr(gpu_kernels, "worth", lambda count: 3)
    monkeypatch.setattr(gpu_ahead, "Workers", noted)
    return made


def code_of(executable: Executable) -> dict[str, bytes]:
    return {kernel.symbol: kernel.code for kernel in executable.artifact.kernels}


def test_the_same_machine_code_as_afterwards(
    monkeypatch: pytest.MonkeyPatch, workers: list[Workers], tmp_path: Path
) -> None:
    made = weft.compile(program(), target="sm90")
    first, *_ = workers
    sources = made._latest.compilation["cu"].sources
    assert len(first.made) == len(sources) + len(made._latest.compilation["plan"].plans) > 4
    monkeypatch.setattr(gpu_kernels, "worth", lambda count: 1)
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "other"))
    after = weft.compile(program(), target="sm90")
    assert after.stages == made.stages
    assert code_of(after) == code_of(made)
    assert made._latest.built.compiled == len(sources)


def test_bodies_are_compiled_beside_the_program(
    monkeypatch: pytest.MonkeyPatch, workers: list[Workers]
) -> None:
    b = Builder()
    x, more = b.param("f32", [64, 1024]), b.param("i1", [])
    y = b.cond(more, lambda r, x: r.sort(x, axis=1), lambda r, x: r.softmax(x, axis=1), b.exp(x))

    def afterwards(sources: list[str], arch: str) -> list[Any]:
        assert not sources
        return []

    monkeypatch.setattr(gpu_kernels, "compile_all", afterwards)
    made = weft.compile(b.build(b.softmax(y, axis=0)), target="sm90")
    compilation = made._latest.compilation
    parts = compilation, *compilation.bodies.values()
    sources = {source for part in parts for source in part["cu"].sources.values()}
    assert len(parts) > 1
    compiled = [m for m in workers[0]._messages if not gpu_tasks.is_task(m)]
    assert len(compiled) == len(sources) > len(compilation["cu"].sources)
    assert made._latest.built.compiled == len(sources)


def test_what_is_kept_is_not_compiled_again(
    monkeypatch: pytest.MonkeyPatch, workers: list[Workers]
) -> None:
    made = weft.compile(program(), target="sm90")
    monkeypatch.setattr("weft.driver.compile.program_cache.key_of", lambda *parts: None)
    workers.clear()
    again = weft.compile(program(), target="sm90")
    assert all(map(gpu_tasks.is_task, workers[0]._messages))
    assert (again._latest.built.compiled, again._latest.built.reused) == (
        0,
        made._latest.built.compiled,
    )


def _look_for(group: int) -> None:
    """Look for processes as long as there are some."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        os.killpg(group, 0)
        time.sleep(0.01)


def test_a_failure_ends_the_processes(
    monkeypatch: pytest.MonkeyPatch, workers: list[Workers]
) -> None:
    seen: list[int] = []

    def check(*parts: object) -> None:
        seen.extend(family.pid for family in workers[0]._families)
        raise SpecViolation("Broken", "the kernels are refused")

    monkeypatch.setattr(gpu_kernels, "check_module", check)
    with pytest.raises(InternalError, match="the kernels are refused"):
        weft.compile(program(), target="sm90")
    assert seen
    assert not workers[0]._families
    for pid in seen:
        with pytest.raises(ProcessLookupError):
            _look_for(pid)


def test_stages_are_checked_while_others_compile(
    monkeypatch: pytest.MonkeyPatch, workers: list[Workers]
) -> None:
    """And what is wrong is told before anything runs, or whatever a later stage says of it."""
    asked: list[int] = []

    def refuse(buffer_map: object) -> None:
        asked.append(sum(not gpu_tasks.is_task(m) for m in workers[-1]._messages))
        raise SpecViolation("Broken", "the buffers are refused")

    def fail(*parts: object, **options: object) -> None:
        raise AssertionError

    monkeypatch.setattr("weft.driver.pipeline.memory_verify.verify", refuse)
    with pytest.raises(InternalError, match=r"^Broken at stage memory"):
        weft.compile(program(), target="sm90")
    assert asked.pop() > 3
    monkeypatch.setattr(gpu_kernels, "lower_module", fail)
    with pytest.raises(InternalError, match=r"^Broken at stage memory"):
        weft.compile(program(), target="sm90")
    assert len(asked) == 1


@pytest.mark.slow
def test_processes_are_there_before_the_first_source(
    monkeypatch: pytest.MonkeyPatch, workers: list[Workers]
) -> None:
    seen: dict[str, int] = {}

    def note(stage: str, *more: object) -> None:
        seen[stage] = len(workers[0]._threads)

    monkeypatch.setattr("weft.driver.pipeline.at", note)
    weft.compile(program(), target="sm90")
    assert seen["frontend"] == seen["plan"] == seen["cu"] == 2


def test_processes_load_only_what_makes_kernels() -> None:
    """All kernels wait until they have: the stages before, ops and the runtime take as long."""
    code = "import sys; import weft.driver.code.gpu_process; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    names = {".".join(name.split(".")[:2]) for name in loaded.stdout.split()}
    assert {"weft.region", "weft.plan", "weft.codegen"} <= names
    assert not names & {"weft.ptir", "weft.coarse", "weft.tiny", "weft.runtime", "weft.ops"}
    assert not any(name.startswith("llvmlite") for name in names)


def test_few_kernels_are_not_worth_it() -> None:
    ahead = Ahead("sm_90a")
    compilation = through_stages(program(), "sm90")
    parts = compilation["region"], compilation["memory"], compilation.target
    assert ahead.teller(3) is None
    ahead.expect(program())
    assert choose_plans(*parts, ahead.chooser(*parts)) == compilation["plan"]
    assert not ahead._workers._families
    assert not ahead._workers._messages


def test_where_nothing_can_be_started_all_is_made_here(
    monkeypatch: pytest.MonkeyPatch, workers: list[Workers]
) -> None:
    monkeypatch.setattr("weft.runtime.compilers._start_family", lambda module, count: None)
    taken: list[str] = []

    def counted(source: str, arch: str) -> object:
        taken.append(source)
        return compile_cuda(source, arch)

    monkeypatch.setattr(gpu_ahead, "compile_cuda", counted)
    made = weft.compile(program(), target="sm90")
    assert sorted(taken) == sorted(made._latest.compilation["cu"].sources.values())


def test_what_takes_the_compiler_longest_is_told_first() -> None:
    """Kernels that were made with their plans can wait for those that are yet to be made."""
    compilation = through_stages(program(), "sm90")
    told: list[str] = []
    gpu_kernels.lower_module(
        compilation["region"],
        compilation["memory"],
        replace(compilation["plan"], built=dict(compilation["plan"].built)),
        compilation.target,
        tell=lambda kernel, is_inside: told.append(kernel.name),
    )
    launches = compilation["gpu"].launches
    built = {launches[name].symbol for name in compilation["plan"].built if name in launches}
    assert told
    assert [symbol in built for symbol in told] == sorted(symbol in built for symbol in told)


def test_all_processes_are_there_from_the_first_source_on(
    monkeypatch: pytest.MonkeyPatch, workers: list[Workers]
) -> None:
    started: list[int] = []
    monkeypatch.setattr(Workers, "start", lambda self, count: started.append(count))
    interval = sys.getswitchinterval()
    weft.compile(program(), target="sm90")
    assert started[0] == 2
    assert sys.getswitchinterval() == interval


def test_kernels_are_written_when_their_plans_are_known(
    monkeypatch: pytest.MonkeyPatch, workers: list[Workers]
) -> None:
    """And are the same when all plans are known: no source is compiled that nobody asks for, and
    what processes verified and wrote is neither verified nor written again."""
    early: list[int] = []
    here: list[str] = []
    lower = gpu_kernels.lower_module

    def lowered(*args: Any, **options: Any) -> Any:
        early.append(sum(not gpu_tasks.is_task(message) for message in workers[0]._messages))
        return lower(*args, **options)

    monkeypatch.setattr(gpu_kernels, "lower_module", lowered)
    monkeypatch.setattr(gpu_ahead, "cuda", lambda k: here.append(k.name) or cuda(k))  # type: ignore[func-returns-value]
    monkeypatch.setattr(gpu_kernels, "verify", lambda k, t: here.append(k.name) or verify(k, t))  # type: ignore[func-returns-value]
    made = weft.compile(chain(), target="sm90")
    compilation = made._latest.compilation
    launches = compilation["gpu"].launches
    _, *inner, _ = (kernel.name for kernel in compilation["region"].kernels)
    planned = {launches[name].symbol for name in inner if name in compilation["plan"].kernels}
    assert early[0] == len(planned) > 1
    assert planned.isdisjoint(here)
    assert set(here) == compilation["gpu"].kernels.keys() - planned
    sources = [m for m in workers[0]._messages if not gpu_tasks.is_task(m)]
    assert len(sources) == len(compilation["cu"].sources)


def test_products_are_the_first_task() -> None:
    """They take the compiler longest, and of the others those that compute most."""
    compilation = through_stages(chain(), "sm90")
    parts = compilation["region"], compilation["memory"], compilation.target
    seen: list[str] = []

    class Here(Ahead):
        def _do_tasks(self, tasks: Any, built: Any) -> dict[str, Choice]:
            found = {task.key: gpu_tasks.do(task, built).choice for task in tasks}
            seen.extend(found)
            return found

    ahead = Here("sm_90a")
    ahead._started = 1
    plans = choose_plans(*parts, ahead.chooser(*parts))
    products = [key for key in seen if isinstance(plans.plans[key], MmaPlan)]
    assert sorted(seen) == sorted(plans.plans)
    assert seen[: len(products)] == products
    bodies = {plans.kernels.get(k.name): len(k.body) for k in compilation["region"].kernels}
    lengths = [bodies[key] for key in seen[len(products) :]]
    assert lengths == sorted(lengths, reverse=True)
    assert len(set(lengths)) > 1


def updates() -> Program:
    """Results of one text, which one launch carries out by one plan; a kernel that no unit has
    whole lines for; and a matrix whose plan is refused before another one is taken."""
    b = Builder()
    x, w = b.param("f32", [2048, 1536]), b.param("f32", [1536, 2048])
    small = [b.param("f32", [size]) for size in (2048, 96, 7)]
    made = [b.exp(b.tanh(each)) for each in small]
    crossed = b.exp(x) + b.transpose(w, [1, 0])
    return b.build(*made, crossed, b.reduce_sum(b.exp(crossed), axes=[1]), crossed @ w)


@pytest.mark.parametrize("made", [program, chain, updates])
def test_tasks_say_all_that_plans_and_texts_depend_on(made: Callable[[], Program]) -> None:
    """What comes back from another process is what is made without one, to the letter."""
    compilation = through_stages(made(), "sm90")
    parts = compilation["region"], compilation["memory"], compilation.target

    class Packed(Ahead):
        def _do_tasks(self, tasks: Any, built: Any) -> dict[str, Choice]:
            found = {}
            for task in tasks:
                done = gpu_tasks.read_done(gpu_tasks.answer(gpu_tasks.pack_task(task)))
                found[task.key] = done.choice
                self._texts |= done.texts
            return found

    ahead = Packed("sm_90a")
    ahead._started = 1
    plans = choose_plans(*parts, ahead.chooser(*parts))
    wanted = compilation["plan"]
    assert plan_text.dumps(plans) == plan_text.dumps(wanted)
    assert (plans.notes, plans.origins) == (wanted.notes, wanted.origins)
    assert ahead._texts
    assert ahead._texts.items() <= compilation["cu"].sources.items()


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch, workers: list[Workers]) -> list[Workers]:
    """Workers whose processes end when they read a task."""
    monkeypatch.setattr(gpu_tasks, "pack_task", lambda task: b"{")
    return workers


@pytest.mark.slow
def test_what_processes_leave_is_made_here(ending: list[Workers], tmp_path: Path) -> None:
    made = weft.compile(program(), target="sm90")
    assert ending[0]._unanswered
    wanted = through_stages(program(), "sm90")
    assert made.stages["cu"] == wanted.text("cu")
    assert made._latest.compilation["plan"] == wanted["plan"]


def test_what_a_task_comes_upon_is_told_as_ever(
    monkeypatch: pytest.MonkeyPatch, ending: list[Workers]
) -> None:
    def refuse(*parts: object) -> None:
        raise SpecViolation("Broken", "no plan is good enough")

    monkeypatch.setattr(gpu_tasks, "choose_plan", refuse)
    with pytest.raises(SpecViolation, match=r"^Broken at stage plan: no plan is good enough"):
        weft.compile(program(), target="sm90")
    assert not ending[0]._families
