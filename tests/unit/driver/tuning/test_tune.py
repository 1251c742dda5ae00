"""The tuner: what it measures, keeps, and never measures again."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.driver.programs.program_cache import tuned_key
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.driver.tuning import tune as tuner
from weft.driver.tuning import tuned
from weft.driver.tuning.measure import Measurement, measure
from weft.driver.tuning.tune import MOST_POINTS, KernelClass, Trial, Tuning, classes_of, tune
from weft.foundation.errors import UserError
from weft.plan.ir import MapPlan, MmaPlan
from weft.plan.text import loads
from weft.ptir import Builder, Program, save
from weft.region.ir import Kernel, Module
from weft.runtime import cache
from weft.target.known import target_named
from weft.target.target import Kind, Target

CPU = target_named("cpu")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    return tmp_path


def program() -> Program:
    b = Builder("two")
    x, w = b.param("f32", [96, 64]), b.param("f32", [64, 80])
    return b.build(b.softmax(x @ w, axis=1))


def started(source: Program, target: Target = CPU) -> Compilation:
    return Compilation(source, target, make_signature(source))


def timed_by_vector(kernel: Kernel, module: Module, plan: object, target: Target) -> Measurement:
    """A clock for maps on which wider vectors are faster."""
    assert isinstance(plan, MapPlan)
    return Measurement("map", "map", 1, 1, 1.0, 1e-6, 1.0 / (plan.vector * plan.unroll), "{}")


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "measure", timed_by_vector)


def sums() -> Program:
    b = Builder("sums")
    x, y = b.param("f32", [64, 64]), b.param("f32", [64, 64])
    return b.build(x + y)


@pytest.mark.parametrize("target", ["cpu", "sm90"])
def test_ten_to_twenty_plans_a_kernel_each_of_which_it_takes(target: str) -> None:
    machine = target_named(target)
    dtype = "f32" if target == "cpu" else "bf16"
    b = Builder("three")
    x, w = b.param(dtype, [512, 512]), b.param(dtype, [512, 512])
    y = x @ w
    found = classes_of(started(b.build(b.tanh(y), b.reduce_sum(b.exp(x), axes=[1])), machine))
    assert len(found) == 2
    for kernels in found:
        assert 5 <= len(kernels.plans) <= MOST_POINTS[machine.kind] <= 20
        assert len({repr(plan) for plan in kernels.plans}) == len(kernels.plans)
    assert max(len(kernels.plans) for kernels in found) >= 10


@pytest.mark.usefixtures("pretended")
def test_the_best_plan_is_kept_and_every_compile_takes_it() -> None:
    trials: list[Trial] = []
    tuning = tune(started(sums()), trials.append)
    (found,) = tuning.found.values()
    assert isinstance(found.plan, MapPlan)
    best = found.plan.vector * found.plan.unroll
    assert best == max(
        p.vector * p.unroll for p in tuning.classes[0].plans if isinstance(p, MapPlan)
    )
    assert [t.best for t in trials] == sorted((t.best for t in trials), reverse=True)
    assert found.race[0] == (found.plan, found.seconds)
    assert {seconds for _, seconds in found.race} == {t.measured.actual for t in trials}
    assert tuned.load_tuned(CPU) == tuning.found
    made = weft.compile(sums())
    (cluster,) = made.clusters.values()
    assert list(cluster.compilation["plan"].plans.values()) == [found.plan]
    (line,) = [line for line in made.report() if "tuned" in line]
    assert line.startswith(f"map0: tuned, {found.of} of {found.of} plans measured: ")
    x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    np.testing.assert_array_equal(made(x, x)[0], x + x)


@pytest.mark.usefixtures("pretended")
def test_a_program_that_was_kept_before_tuning_is_compiled_anew() -> None:
    before = weft.compile(sums())
    tune(started(sums()))
    (old,), (new,) = before.clusters.values(), weft.compile(sums()).clusters.values()
    assert old.compilation["plan"].plans != new.compilation["plan"].plans


@pytest.mark.usefixtures("pretended")
def test_nothing_is_measured_twice_unless_asked() -> None:
    first, second = tune(started(sums())), tune(started(sums()))
    third = tune(started(sums()), again=lambda kernels: True)
    assert (len(second.measured), second.known, second.classes) == (0, 1, [])
    assert second.found == first.found
    assert len(third.measured) == len(first.measured)


@pytest.mark.usefixtures("pretended")
def test_what_was_found_before_ctrl_c_is_kept_and_the_rest_measured_later() -> None:
    def stop(trial: Trial) -> None:
        if trial.number == 3:
            raise KeyboardInterrupt

    tuning = tune(started(sums()), stop)
    assert tuning.interrupted
    (kept,) = tuned.load_tuned(CPU).values()
    assert (kept.points, kept.is_done) == (3, False)
    (cluster,) = weft.compile(sums()).clusters.values()
    assert list(cluster.compilation["plan"].plans.values()) == [kept.plan]
    assert not tune(started(sums())).interrupted
    (done,) = tuned.load_tuned(CPU).values()
    assert done.is_done


def test_a_table_that_cannot_be_read_is_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = (b"", b"[]", b'{"k": 1}', b'{"k": {"plan": {"kind": "odd"}}}', b"\xff")
    deep = (b"[" * 100_000, b'{"k":' * 100_000)
    for text in (*broken, *deep):
        monkeypatch.setattr("weft.runtime.cache.load", lambda key, text=text: text)
        assert tuned.load_tuned(CPU) == {}


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seconds", "Infinity"),
        ("seconds", "NaN"),
        ("seconds", "9" * 400),
        ("seconds", "-1"),
        ("seconds", "0"),
        ("first_seconds", "true"),
        ("first_seconds", '"1"'),
        ("points", "1.5"),
        ("of", "null"),
        ("of", "9" * 30),
        ("plan", "[[[]]]"),
        ("race", "[1]"),
        ("race", '[{"plan": {}, "seconds": 1}]'),
        ("odd", "1"),
    ],
)
def test_a_whole_table_with_unsound_numbers_is_no_table(name: str, value: str) -> None:
    tune(started(sums()))
    key = tuned_key(CPU)
    ((kernel, entry),) = json.loads(cache.load(key) or b"").items()
    fields = {field: json.dumps(found) for field, found in entry.items()} | {name: value}
    inside = ", ".join(f'"{field}": {found}' for field, found in fields.items())
    cache.save(key, f'{{"{kernel}": {{{inside}}}}}'.encode())
    assert tuned.load_tuned(CPU) == {}
    x = np.ones((64, 64), np.float32)
    assert (weft.compile(sums())(x, x)[0] == 2).all()
    tune(started(sums()))
    assert len(tuned.load_tuned(CPU)) == 1


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("fields", [{"vector": 0}, {"vector": -3}, {"unroll": 0}, {"vector": 3}])
def test_a_plan_that_is_illegal_is_left_alone(fields: dict[str, int]) -> None:
    tuning = tune(started(sums()))
    ((key, found),) = tuning.found.items()
    assert isinstance(found.plan, MapPlan)
    wrong = MapPlan(found.plan.header, **({"vector": found.plan.vector} | fields))
    tuned.save_tuned(CPU, {key: replace(found, plan=wrong)})
    x = np.ones((64, 64), np.float32)
    assert (weft.compile(sums())(x, x)[0] == 2).all()


@pytest.mark.usefixtures("pretended")
def test_a_plan_that_no_longer_suits_is_left_alone() -> None:
    tuning = tune(started(sums()))
    ((key, found),) = tuning.found.items()
    assert isinstance(found.plan, MapPlan)
    tuned.save_tuned(CPU, {key: replace(found, plan=replace(found.plan, unroll=10_000))})
    (cluster,) = weft.compile(sums()).clusters.values()
    (plan,) = cluster.compilation["plan"].plans.values()
    assert plan.unroll < 10_000


def test_a_kernel_that_fails_is_not_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> Measurement:
        raise UserError("no")

    monkeypatch.setattr(tuner, "measure", fails)
    tuning = tune(started(sums()))
    assert (tuning.found, tuning.measured, tuned.load_tuned(CPU)) == ({}, [], {})


def test_kernels_that_take_longest_come_first() -> None:
    b = Builder("unequal")
    x, y = b.param("f32", [8, 8]), b.param("f32", [512, 512])
    found = classes_of(started(b.build(b.tanh(x), b.exp(y))))
    assert [dict(c.kernel.sizes)["i0"] for c in found] == [512, 8]


def test_kernels_of_loops_are_tuned_too() -> None:
    b = Builder("loop")
    x = b.param("f32", [8, 32])
    scan = b.scan(lambda r, total, row: [total + row, r.tanh(row)], [b.reduce_sum(x, [0])], [x])
    assert len(classes_of(started(b.build(scan)))) == 2


def test_a_second_process_measures_nothing(folder: Path) -> None:
    path, log = folder / "sums.ptir.txt", folder / "log.csv"
    save(sums(), path)
    command = [sys.executable, "-m", "weft", "tune", str(path), "--log", str(log)]
    first, second = (
        subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
        for _ in range(2)
    )
    assert "0 plans measured on the CPU, 1 kernel tuned before" in second.stdout
    assert "map0" in first.stdout
    assert second.stderr == ""
    lines = log.read_text().splitlines()
    assert lines[0] == "kernel,pattern,FLOPs,Bytes,occ,estimate,actual,plan"
    assert len(lines) > 10


def test_a_measurement_says_what_a_kernel_does() -> None:
    (kernels,) = (c for c in classes_of(started(program())) if c.kernel.roles)
    line = measure(kernels.kernel, kernels.module, kernels.plans[0], CPU)
    assert line.FLOPs == 2 * 96 * 64 * 80
    assert line.Bytes == 4 * (96 * 64 + 64 * 80 + 96 * 80)
    assert 0 < line.occ <= 1
    assert 0 < line.estimate < 1e-2
    assert 0 < line.actual < 1
    assert json.loads(line.plan)["kind"] == "mma"


def test_classes_are_counted_not_repeated() -> None:
    b = Builder("layers")
    x, *weights = (b.param("f32", [64, 64]) for _ in range(4))
    for weight in weights:
        x = b.tanh(x @ weight)
    found: list[KernelClass] = classes_of(started(b.build(x)))
    assert [kernels.count for kernels in found] == [3]
    assert Tuning(found).points == len(found[0].plans)
    assert CPU.kind is Kind.CPU


@pytest.mark.usefixtures("pretended")
def test_what_cannot_be_kept_is_not_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    assert tune(started(sums())).is_kept
    tuned.save_tuned(CPU, {})
    monkeypatch.setattr(cache, "_write_entry", full)
    done = tune(started(sums()))
    assert done.found
    assert not done.is_kept


def test_of_a_tuned_product_nothing_else_is_said() -> None:
    b = Builder()
    program = b.build(b.matmul(b.param("bf16", [256, 256]), b.param("bf16", [256, 256])))
    chosen = weft.compile(program, "sm80")
    assert any("tiles of" in line for line in chosen.report())
    (plan,) = loads(chosen.stages["plan"]).plans.values()
    assert isinstance(plan, MmaPlan)
    found = tuned.Tuned(replace(plan, stages=3), 1e-6, 2e-6, 4, 4)
    assert tuned.save_tuned(target_named("sm80"), {plan.header.kernel: found})
    told = [line for line in weft.compile(program, "sm80").report() if "matmul0" in line]
    assert any("tuned, 4 of 4 plans measured" in line for line in told)
    assert not any("tiles of" in line for line in told)
