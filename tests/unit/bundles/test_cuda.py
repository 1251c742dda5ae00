"""Bundles for a GPU, without one: what is built, and what it asks of the driver. `fake_cuda.c` is a
driver that writes down what it is asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from examples.make_programs import mlp
from tests.support.c_callers import COMPILERS, STRICT, call, needs
from tests.support.cases import one_in
from tests.unit.bundles import models
from weft.codegen.gpu import compile as nvrtc
from weft.driver.code import gpu_linker
from weft.foundation.errors import Unimplemented
from weft.ptir import Builder
from weft.target.known import target_named

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


@pytest.fixture(scope="module")
def compiled() -> None:
    """Skips where nothing compiles for GPUs."""
    try:
        nvrtc.version()
    except Unimplemented:
        pytest.skip("there is no NVRTC")


@pytest.fixture(scope="module")
def driver(folder: Path) -> Path:
    """The folder of the driver that tests have."""
    made = folder / "driver"
    made.mkdir()
    source, library = HERE / "fake_cuda.c", made / "libcuda.so.1"
    shared = ("-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-D_POSIX_C_SOURCE=200809L")
    call("cc", "-std=c99", "-Wall", "-Wextra", "-Werror", *shared, source, "-o", library)
    return made


@pytest.fixture(scope="module")
def added(folder: Path, compiled: None) -> Path:
    return weft.build(models.added(), out=folder / "added_gpu", target="sm90")


@pytest.fixture(scope="module")
def mixture(folder: Path, compiled: None) -> Path:
    return weft.build(models.mixture(), out=folder / "mixture_gpu", target="sm90")


def on(driver: Path, log: Path, **asked: int | str) -> dict[str, str]:
    """The environment of a machine with that driver."""
    given = {f"FAKE_CUDA_{name.upper()}": str(value) for name, value in asked.items()}
    return {**os.environ, "LD_LIBRARY_PATH": str(driver), "FAKE_CUDA_LOG": str(log), **given}


def example_of(bundle: Path, out: Path, compiler: str = "gcc") -> Path:
    """The example of a bundle, as a program of one file."""
    needs(compiler)
    (library,) = bundle.glob("*.a")
    options = (*COMPILERS[compiler], *STRICT, f"-I{bundle}")
    linked = (library, "-lpthread", "-ldl", "-o", out)
    call(compiler, *options, bundle / "example.c", "-x", "none", *linked)
    return out


def ended(*command: str | Path, env: dict[str, str]) -> tuple[str, str]:
    done = subprocess.run(
        list(map(str, command)), env=env, cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout, done.stderr


@pytest.mark.parametrize("compiler", ["gcc", "g++"])
def test_what_the_driver_is_asked(
    mixture: Path, driver: Path, tmp_path: Path, compiler: str
) -> None:
    """Weights once; memory, and a graph of all launches; and everything is given back."""
    log, program = tmp_path / "log", example_of(mixture, tmp_path / "example", compiler)
    out, told = ended(program, mixture, env=on(driver, log))
    assert (out, told) == ("out0[0] = 0\nout1[0] = 0\n", "")
    said = log.read_text().splitlines()
    (target,) = json.loads((mixture / "manifest.json").read_text())["targets"]
    (entry,) = target["programs"]
    launches = [line.split()[1:] for line in said if line.startswith(("launch ", "early "))]
    wanted = [
        [kernel["symbol"], *map(str, (*kernel["grid"], *kernel["block"], kernel["shared_bytes"]))]
        for kernel in entry["launches"]
    ]
    assert launches == wanted
    count = len(wanted)
    assert [line for line in said if line.startswith("graph ")] == [f"graph {count}"]
    # A table of 9 floats; 5 x 7 and 7 x 9 of them go up, 5 x 9 and 9 come down.
    assert [line for line in said if line.startswith("up ")] == ["up 36", "up 140", "up 252"]
    assert [line for line in said if line.startswith("down ")] == ["down 36", "down 180"]
    for taken, given in (("take", "give"), ("load", "unload"), ("stream", "no stream"),
                         ("recorded", "no graph"), ("retain", "release")):  # fmt: skip
        found = [sum(line.startswith(word) for line in said) for word in (taken, given)]
        assert found[0] == found[1] > 0, (taken, found)


def test_a_program_runs_asynchronously_and_in_threads(
    added: Path, driver: Path, tmp_path: Path
) -> None:
    needs("gcc")
    program = tmp_path / "on_gpu"
    given = ("-std=c11", *STRICT, f"-I{added}", "-o", program)
    libraries = (added / "libadded.a", "-lpthread", "-ldl")
    call("gcc", *given, HERE / "on_gpu.c", *libraries)
    env = on(driver, tmp_path / "log", add=3, parameters=3)
    assert ended(program, added, env=env) == ("all is well\n", "")
    # Each context records its graph once.
    assert (tmp_path / "log").read_text().count("recorded 1\n") == 2


def test_sanitizers_find_nothing(added: Path, driver: Path, tmp_path: Path) -> None:
    needs("gcc")
    program, flags = tmp_path / "on_gpu", ("-fsanitize=address,undefined", "-g")
    source = tmp_path / "one.c"
    source.write_text("int main(void) { return 0; }\n")
    tried = subprocess.run(
        ["gcc", *flags, str(source), "-o", str(tmp_path / "one")], capture_output=True, check=False
    )
    if tried.returncode or subprocess.run([str(tmp_path / "one")], check=False).returncode:
        pytest.skip("this gcc has no sanitizers")
    sources = (HERE / "on_gpu.c", added / "added.c", "-lpthread", "-ldl")
    call("gcc", "-std=c11", *flags, f"-I{added}", "-o", program, *sources)
    env = on(driver, tmp_path / "log", add=3, parameters=3)
    assert ended(program, added, env=env) == ("all is well\n", "")


STATEFUL = """
import sys, numpy as np, weft
bundle = weft.load_bundle(sys.argv[1])
instance = bundle.instance()
for count in (1, 2):
    (total,) = instance(np.full((count, 3), 2, np.float32))
    print(total.tolist(), {k: v.tolist() for k, v in instance.states.items()})
instance.reset()
print(instance.states)
"""


def test_states_stay_on_the_device(folder: Path, driver: Path, tmp_path: Path) -> None:
    @weft.jit(dynamic={"x": {0: "B"}}, shapes=weft.ShapeSet({"B": (2,)}))
    def grown(x, total):  # type: ignore[no-untyped-def]
        return x + 0, total + 1

    example = np.zeros((2, 3), np.float32), np.arange(3, dtype=np.float32)
    out = folder / "grown"
    weft.build(grown, *example, out=out, sizes={"B": (1, 2)}, state="total", target="sm80")
    env = on(driver, tmp_path / "log", capability=86)
    told = ended(sys.executable, "-c", STATEFUL, out, env=env)
    assert told[1] == ""
    *runs, last = told[0].splitlines()
    assert len(runs) == 2
    assert last == "{'total': array([0., 1., 2.], dtype=float32)}"


def test_tensor_maps_are_made_for_the_places_of_buffers(
    folder: Path, driver: Path, tmp_path: Path, compiled: None
) -> None:
    made = weft.build(mlp(dtype="bf16"), out=folder / "mapped", name="mapped", target="sm90")
    log = tmp_path / "log"
    out, told = ended(example_of(made, tmp_path / "example"), made, env=on(driver, log))
    assert (out.startswith("out0[0] = "), told) == (True, "")
    assert "\nmap 9 2 " in log.read_text()


def test_a_launch_for_tensors_of_several_sizes_has_one_table(
    folder: Path, driver: Path, tmp_path: Path, compiled: None
) -> None:
    b = Builder("sums")
    pairs = [[b.param("f32", [size]) for _ in range(2)] for size in (5, 3)]
    sums = b.build(*(x + y for x, y in pairs))
    made = weft.build(sums, out=folder / "sums", name="sums", target="sm90")
    program, log = example_of(made, tmp_path / "example"), tmp_path / "log"
    out, told = ended(program, made, env=on(driver, log, parameters=6, table=1, add=3))
    assert (out.count("[0] = "), told) == (2, "")
    assert log.read_text().count("\nlaunch ") == 1


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"devices": 0}, "error -10: there is no GPU number 0: the machine has 0"),
        (
            {"capability": 80},
            "error -10: mixture was built for sm90 (sm_90a), whose code Fake 0, an SM80, does not",
        ),
        ({"memory": 100}, "error -2: Fake 0 has no memory for 256 bytes of weights"),
        ({"memory": 1000}, "error -2: Fake 0 has no memory for a context of "),
    ],
)
def test_what_is_missing_is_told(
    mixture: Path, driver: Path, tmp_path: Path, asked: dict[str, Any], why: str
) -> None:
    program = example_of(mixture, tmp_path / "example")
    _, told = ended(program, mixture, env=on(driver, tmp_path / "log", **asked))
    assert told.startswith(why)


def test_no_driver_or_an_old_one_is_told(mixture: Path, tmp_path: Path) -> None:
    program = example_of(mixture, tmp_path / "example")
    old = tmp_path / "old"
    old.mkdir()
    source, library = HERE / "fake_cuda.c", old / "libcuda.so.1"
    shared = ("-shared", "-fPIC", "-D_POSIX_C_SOURCE=200809L", "-DWITHOUT_EARLY")
    call("cc", "-std=c99", *shared, source, "-o", library)
    _, told = ended(program, mixture, env=on(old, tmp_path / "log"))
    assert told.startswith("error -10: the CUDA driver of this machine is too old: it has no cuLa")
    (old / "libcuda.so.1").write_bytes(b"nothing")
    _, told = ended(program, mixture, env=on(old, tmp_path / "log"))
    assert told == (
        "error -10: there is no CUDA driver on this machine: libcuda.so.1 cannot be loaded\n"
    )


def test_changed_machine_code_is_refused(mixture: Path, driver: Path, tmp_path: Path) -> None:
    program = example_of(mixture, tmp_path / "example")
    path = mixture / "kernels.cubins"
    code = path.read_bytes()
    try:
        path.write_bytes(code[:-100] + bytes(100))
        _, told = ended(program, mixture, env=on(driver, tmp_path / "log"))
        with pytest.raises(weft.WeftError, match=r"kernels.cubins is not the file that was built"):
            weft.load_bundle(mixture)
    finally:
        path.write_bytes(code)
    wanted = "error -4: kernels.cubins is not the file that this library was built with\n"
    assert told == wanted
    assert "load\n" not in (tmp_path / "log").read_text()


def test_violations_are_told_and_forgotten(
    folder: Path, driver: Path, tmp_path: Path, compiled: None
) -> None:
    made = weft.build(models.division(), out=folder / "division_gpu", target="sm90")
    source = """
import sys, numpy as np, weft
bundle = weft.load_bundle(sys.argv[1])
for _ in range(2):
    try:
        print(len(bundle(np.ones(3, np.int32), np.ones(3, np.int32))))
    except weft.WeftError as error:
        print(error)
"""
    env = on(driver, tmp_path / "log", fault=1, parameters=4)
    out, told = ended(sys.executable, "-c", source, made, env=env)
    first, second = out.splitlines()
    assert "IntegerDivideByZero" in first
    assert first.endswith("the divisor is zero at element 1")
    assert (second, told) == ("1", "")


def test_what_runs_on_the_host_is_refused(folder: Path, compiled: None) -> None:
    b = weft.ptir.Builder("factor")
    program = b.build(b.emit("cholesky", b.param("f32", [3, 3])))
    with pytest.raises(Unimplemented, match=r"cholesky.*test_cuda.py:\d+.*no NumPy"):
        weft.build(program, out=folder / "factor_gpu", target="sm90")


def test_the_gpu_of_the_builder_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.runtime.cuda.driver.compute_capability", lambda: (9, 0))
    target = target_named("sm80")
    assert gpu_linker.arch_for(target) == "sm_90"
    assert gpu_linker.arch_for(replace(target, machine="sm80")) == "sm_80"


@pytest.fixture(scope="module")
def generations(folder: Path, compiled: None) -> Path:
    """A model for two generations of GPUs."""
    out = folder / "generations"
    return weft.build(models.added(), out=out, name="mixture", target=["sm80", "sm90"])


CHOSEN = """
import sys, weft
try:
    print(weft.load_bundle(sys.argv[1], target=sys.argv[2] if len(sys.argv) > 2 else None).target)
except weft.WeftError as error:
    print(error)
"""


_UNAVAILABLE = "BackendUnavailable at <string>:4: mixture was built for "


@pytest.mark.parametrize(
    ("capability", "named", "told"),
    one_in(
        2,
        [
            (90, (), "sm90"),
            (80, (), "sm80"),
            (89, (), "sm80"),
            (90, ("sm90",), "sm90"),
            (90, ("sm80",), f"{_UNAVAILABLE}sm80, whose code Fake 0, an SM90, does not run"),
            (75, (), f"{_UNAVAILABLE}sm80 (sm_80), sm90 (sm_90a), whose code Fake 0, an SM75, "),
        ],
        unpack=True,
    ),
)
def test_a_gpu_runs_the_code_of_its_generation(
    generations: Path, driver: Path, tmp_path: Path, capability: int, named: Any, told: str
) -> None:
    env = on(driver, tmp_path / "log", capability=capability)
    out, wrong = ended(sys.executable, "-c", CHOSEN, generations, *named, env=env)
    assert out.startswith(told)
    assert wrong == ""


def test_generations_share_a_file_of_code(generations: Path) -> None:
    content = json.loads((generations / "manifest.json").read_text())
    assert [target["processor"] for target in content["targets"]] == ["sm_80", "sm_90a"]
    launches = [target["programs"][0]["launches"][0] for target in content["targets"]]
    assert launches[0]["offset"] != launches[1]["offset"]
    assert content["files"]["kernels.cubins"]["bytes"] >= sum(each["bytes"] for each in launches)
