"""`weft bench` from the command line: what its columns are, on the CPU and on a GPU made of the
dialect's interpreter."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.command_line import weft_command
from tests.support.gpu_machine import Machine, MachineBackend, machine
from weft.cli import bench
from weft.cli.tuning import products_in
from weft.driver.compile import compile_program
from weft.ptir import Builder, Program, save

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_ROUND_SECONDS", 1e-6)
    monkeypatch.setattr("weft.runtime.cuda.race._MOST_SETS", 2)
    monkeypatch.setattr("weft.runtime.cuda.race._MOST_RUNS", 4)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs `weft bench` in this process: the exit code, and what it printed."""

    def call(*args: object) -> tuple[int, str, str]:
        capfd.readouterr()
        return (weft_command("bench", *args), *capfd.readouterr())

    return call


def two_kernels() -> Program:
    b = Builder()
    x = b.param("f32", [2, 8])
    return b.build(b.sort(b.exp(x), axis=1))


def turning() -> Program:
    b = Builder()
    x = b.param("f32", [4])
    go = b.reduce_sum(x, [0]) < 1e9
    return b.build(b.cond(go, lambda r, v: [v + 1.0], lambda r, v: [v * 2.0], x))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def saved(program: Program) -> str:
    save(program, Path("program.ptir.txt"))
    return "program.ptir.txt"


def columns(text: str) -> tuple[list[str], list[str]]:
    """The titles, and the cells of the only line."""
    title, *_, line = text.rstrip().splitlines()
    return re.split(r"  +", title.strip()), re.split(r"  +", line.strip())


def test_a_call_on_the_cpu_has_one_time(run: Run) -> None:
    code, out, _ = run(saved(two_kernels()))
    titles, cells = columns(out)
    assert code == 0
    assert titles == ["program", "µs", "TFLOP/s"]
    assert float(cells[-1].replace(",", "")) > 0


def on_machine(gpu: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cuda backend is such a machine's, and Weft's own."""
    monkeypatch.setattr(bench, "get_backend", lambda name: MachineBackend(gpu))
    monkeypatch.setattr("weft.driver.execute.guarded", lambda backend: backend)


def test_on_a_gpu_the_device_has_a_clock_of_its_own(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with machine() as gpu:
        on_machine(gpu, monkeypatch)
        code, out, _ = run("--gpu", saved(two_kernels()))
        titles, cells = columns(out)
    assert code == 0
    assert titles == ["program", "device µs", "host µs a call", "TFLOP/s"]
    # The machine's clock says half a millisecond for every graph, and a graph has four runs.
    assert float(cells[-2]) == pytest.approx(500 / 4)
    assert float(cells[-1].replace(",", "")) > 0
    assert gpu.early, "kernels start early where they are timed as where they are used"


def test_a_product_has_a_rate_by_the_devices_time(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with machine() as gpu:
        on_machine(gpu, monkeypatch)
        _, out, _ = run("--gpu", "--shapes", "64x64x64")
    _, cells = columns(out)
    device, rate = float(cells[-3]), float(cells[-1])
    assert rate == pytest.approx(2 * 64**3 / device / 1e6, abs=0.01)


def test_a_gpu_alone_is_measured_by_usual_products(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(products_in(bench.USUAL)) == 4
    monkeypatch.setattr(bench, "USUAL", "64x64x64,16x32x64 NT")
    with machine() as gpu:
        on_machine(gpu, monkeypatch)
        code, out, _ = run("--gpu")
    assert code == 0
    assert [line.split("  ")[0] for line in out.splitlines()[2:]] == ["64x64x64", "16x32x64 NT"]


def test_a_processor_is_told_what_to_run(run: Run) -> None:
    message = "error: weft bench takes programs, or --shapes with matrix products\n"
    assert run() == (1, "", message)


def test_programs_that_turn_have_the_hosts_time_only(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(compile_program(turning(), "sm90").artifact.steps) > 1
    with machine() as gpu:
        on_machine(gpu, monkeypatch)
        code, out, _ = run("--gpu", saved(turning()))
    _, cells = columns(out)
    assert code == 0
    assert len(cells) == 2


def test_models_are_those_of_the_repository(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    def start(command: list[str], cwd: Path, check: bool) -> SimpleNamespace:
        assert (cwd / command[2].replace(".", "/")).with_suffix(".py").is_file()
        started.append(command[3:])
        return SimpleNamespace(returncode=3)

    monkeypatch.setattr("weft.cli.bench.subprocess.run", start)
    assert run("--models", "gpt2*", "vit*") == (3, "", "")
    assert run("--models")[0] == 3
    assert bench._run_models("*", gpu=True) == 3
    assert started == [
        ["--models", "gpt2*,vit*", "--device", "cpu", "--tiny"],
        ["--models", "*", "--device", "cpu", "--tiny"],
        ["--models", "*", "--device", "cuda"],
    ]
    code, _, told = run("--models", "--shapes", "8x8x8")
    assert code == 1
    assert "--models cannot be combined with" in told
    monkeypatch.setattr(bench, "_MODELS", "nowhere.py")
    code, _, told = run("--models")
    assert code == 1
    assert "the models are part of Weft's repository" in told
