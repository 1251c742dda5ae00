"""Kernels are compiled while stages run: the same machine code, and no process is left behind."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.support.gpu_programs import through_stages
from weft.codegen.gpu.compile import compile_cuda
from weft.driver.code import gpu_ahead, gpu_kernels
from weft.driver.code.gpu_ahead import Ahead
from weft.driver.code.plans import Tell, choose_plans
from weft.driver.compile import Executable
from weft.foundation.errors import SpecViolation
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
    assert len(first.made) == len(sources) > 2
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
    assert len(workers[0].made) == len(sources) > len(compilation["cu"].sources)
    assert made._latest.built.compiled == len(sources)


def test_what_is_kept_is_not_compiled_again(
    monkeypatch: pytest.MonkeyPatch, workers: list[Workers]
) -> None:
    made = weft.compile(program(), target="sm90")
    monkeypatch.setattr("weft.driver.compile.kept.key_of", lambda *parts: None)
    workers.clear()
    again = weft.compile(program(), target="sm90")
    assert not any(each.made for each in workers)
    assert (again._latest.built.compiled, again._latest.built.reused) == (
        0,
        made._latest.built.compiled,
    )


def test_a_failure_ends_the_processes(
    monkeypatch: pytest.MonkeyPatch, workers: list[Workers]
) -> None:
    seen: list[int] = []

    def check(*parts: object) -> None:
        seen.extend(helper.process.pid for helper in workers[0]._helpers if helper.process)
        raise SpecViolation("Broken", "the kernels are refused")

    monkeypatch.setattr(gpu_kernels, "check_module", check)
    with pytest.raises(SpecViolation, match="the kernels are refused"):
        weft.compile(program(), target="sm90")
    assert seen
    assert not workers[0]._helpers
    assert not any(Path(f"/proc/{pid}").exists() for pid in seen)


def test_processes_are_there_before_the_first_source(
    monkeypatch: pytest.MonkeyPatch, workers: list[Workers]
) -> None:
    seen: dict[str, int] = {}

    def note(stage: str, *more: object) -> None:
        seen[stage] = len(workers[0]._helpers)

    monkeypatch.setattr("weft.driver.pipeline.at", note)
    weft.compile(program(), target="sm90")
    assert seen["frontend"] == seen["plan"] == seen["cu"] == 2


def test_few_kernels_are_not_worth_it() -> None:
    ahead = Ahead("sm_90a")
    assert ahead.teller(3) is None
    ahead.expect(program())
    assert not ahead._workers._helpers


def test_where_nothing_can_be_started_all_is_made_here(
    monkeypatch: pytest.MonkeyPatch, workers: list[Workers]
) -> None:
    monkeypatch.setattr("weft.runtime.compilers._start_process", lambda module: None)
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
        tell=lambda kernel: told.append(kernel.name),
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


def test_kernels_are_told_of_when_their_plans_are_known(
    monkeypatch: pytest.MonkeyPatch, workers: list[Workers]
) -> None:
    """And are the same when all plans are known: no source is compiled that nobody asks for."""
    early: list[int] = []
    lower = gpu_kernels.lower_module

    def lowered(*args: Any, **options: Any) -> Any:
        early.append(len(workers[0]._messages))
        return lower(*args, **options)

    monkeypatch.setattr(gpu_kernels, "lower_module", lowered)
    made = weft.compile(chain(), target="sm90")
    compilation = made._latest.compilation
    _, *inner, _ = (kernel.name for kernel in compilation["region"].kernels)
    planned = [name for name in inner if name in compilation["plan"].kernels]
    assert early[0] == len({compilation["gpu"].launches[name].symbol for name in planned}) > 1
    assert len(workers[0]._messages) == len(compilation["cu"].sources)


def test_plans_and_notes_are_the_same_with_and_without_a_teller() -> None:
    compilation = through_stages(chain(), "sm90")
    parts = compilation["region"], compilation["memory"], compilation.target
    told: list[str] = []
    tell: Tell = lambda kernels, plan, built: told.extend(kernel.name for kernel in kernels)  # noqa: E731
    alone, watched = choose_plans(*parts), choose_plans(*parts, lambda count: tell)
    assert watched == alone
    assert list(watched.plans) == list(alone.plans)
    assert sorted(told) == sorted(alone.kernels)
    products = [name for name in told if isinstance(alone.of(name), MmaPlan)]
    assert told[: len(products)] == products
    bodies = {kernel.name: len(kernel.body) for kernel in compilation["region"].kernels}
    lengths = [bodies[name] for name in told[len(products) :]]
    assert lengths == sorted(lengths, reverse=True)
    assert len(set(lengths)) > 1
