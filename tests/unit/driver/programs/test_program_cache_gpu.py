"""Whole programs for a GPU on disk: a second process plans nothing and compiles nothing, and what
it links does the same, on a GPU made of the dialect's interpreter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.support.gpu_machine import Machine, MachineBackend, machine
from weft.codegen.gpu.body.accept import refuse
from weft.driver.code import gpu_lowering
from weft.driver.compile import Executable
from weft.driver.programs import program_cache
from weft.driver.signature import make_signature
from weft.ptir import Builder, Program
from weft.runtime import cache
from weft.target.known import target_named


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def gpu() -> Iterator[Machine]:
    with machine(keeps=True) as found:
        yield found


def program() -> Program:
    """A product, a factorisation, which is the host's, a random number and a state's update."""
    b = Builder("mixed")
    x, w, past = b.param("f32", [4, 8]), b.param("f32", [8, 6]), b.param("f32", [4, 6])
    y = b.tanh(x @ w)
    square = b.dot_general(y, y, contract=([1], [1])) + b.constant(np.eye(4, dtype=np.float32))
    return b.build(b.cholesky(square), y + b.rng_uniform(dtype="f32", shape=[4, 6]), past + y)


def inputs() -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.standard_normal(shape).astype(np.float32) for shape in ((4, 8), (8, 6))]


def compiled() -> Executable:
    return weft.compile(program(), target="sm90", params=[1], state=[2])


def test_a_kept_program_does_what_the_compiled_one_does(gpu: Machine) -> None:
    first, again = compiled(), compiled()
    assert list(again._latest.times) == ["disk"]
    assert again._latest.built.compiled == 0
    assert again._latest.built.reused == len(again.artifact.kernels) > 0
    assert again.artifact == first.artifact
    for executable in (first, again):
        gpu.learn(executable)
        executable.state[0][...] = 1.0
    for seed in (1, 2):
        want, got = ([a.tobytes() for a in e(*inputs(), seed=seed)] for e in (first, again))
        assert got == want
    bound = again.bind(inputs()[1:])
    assert np.array_equal(bound(inputs()[0])[0], first(*inputs())[0])


def test_the_backend_runs_what_was_kept(gpu: Machine) -> None:
    b = Builder()
    x = b.param("f32", [3, 5])
    made, backend = b.build(b.softmax(x * 2.0, axis=1)), MachineBackend(gpu)
    given = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    for times in ({"machine code"}, set[str]()):
        (got,) = weft.run(made, [given], backend=backend)
        (want,) = weft.run(made, [given], backend="reference")
        np.testing.assert_allclose(got, want, rtol=1e-5)
        assert backend.last is not None
        assert {"machine code"} & backend.last._latest.times.keys() == times


def test_a_kernel_that_is_the_hosts_is_kept_with_its_reason(
    gpu: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = refuse("Odd", "no template likes it")
    monkeypatch.setattr(gpu_lowering, "accepts", lambda *_: [finding])
    for executable in (compiled(), compiled()):
        assert any("no template likes it" in line for line in executable.report())
        assert not executable._latest.built.symbols
        x, w = inputs()
        np.testing.assert_allclose(executable(x, w)[2], np.tanh(x @ w), rtol=1e-5)


def test_a_kept_program_still_tells_its_stages_and_resources(gpu: Machine) -> None:
    first, again = compiled(), compiled()
    assert again.report()[1:] == first.report()[1:]
    assert any("1 registers" in line for line in again.report())
    assert again.stages == first.stages
    assert "from the cache" in again.explain()


def test_a_given_stage_and_another_device_are_other_programs(gpu: Machine) -> None:
    text = compiled().stages["plan"]
    given = [weft.compile(program(), target="sm90", overrides={"plan": text}) for _ in range(2)]
    assert ["machine code" in each._latest.times for each in given] == [True, False]
    with machine((8, 0), keeps=True):
        assert "machine code" in compiled()._latest.times


def test_a_broken_entry_is_compiled_again_and_that_is_said(gpu: Machine, folder: Path) -> None:
    signature = make_signature(program(), params=[1], state=[2])
    key = program_cache.key_of(program(), target_named("sm90"), signature)
    assert key is not None
    assert program_cache.DAMAGED not in compiled().report()
    whole = (folder / key).read_bytes()
    flipped = whole[:200] + bytes([whole[200] ^ 1]) + whole[201:]
    for damage in (b"", whole[:-1], whole + b"x", flipped):
        (folder / key).write_bytes(damage)
        executable = compiled()
        assert "machine code" in executable._latest.times
        assert executable.explain().endswith(program_cache.DAMAGED)
    cache.save(key, b"something else")
    assert compiled().explain().endswith(program_cache.DAMAGED)
    assert list(compiled()._latest.times) == ["disk"]


SECOND_PROCESS = """
import hashlib
import sys
from cuda.bindings import nvrtc
import weft
from weft.runtime import cache
from weft.runtime.packing import Packed, pack

cache.source_digest = lambda: "this version"  # whatever is edited while this runs
made, compile_program = [], nvrtc.nvrtcCompileProgram
nvrtc.nvrtcCompileProgram = lambda *args: made.append(args) or compile_program(*args)
executable = weft.compile(weft.ptir.load(sys.argv[1]), target="sm90")
loaded = [name for name in sys.modules if name.startswith(sys.argv[2])]
data = pack(Packed(executable.artifact, {}))
print(len(made), len(loaded), hashlib.sha256(data).hexdigest())
"""


def another_process(*arguments: str) -> list[str]:
    """How many sources NVRTC compiled, how many modules of stages were loaded, and a digest of the
    program."""
    command = [sys.executable, "-c", SECOND_PROCESS, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_another_process_compiles_and_plans_nothing(folder: Path) -> None:
    path = str(folder / "mixed.ptir.txt")
    Path(path).write_text(str(weft.ptir.dumps(program(), "text")))
    stages = "weft.driver.pipeline"
    sources, loaded, digest = another_process(path, stages)
    assert int(sources) > 0
    assert loaded == "1"
    assert another_process(path, stages) == ["0", "0", digest]
    for stage in ("weft.plan", "weft.region", "weft.codegen.gpu.templates"):
        assert another_process(path, stage) == ["0", "0", digest]
