"""Bundles on a GPU: from Python and from C they give what the program gives that is compiled here,
bit for bit; only gcc is needed beside the GPU."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import weft
from examples.make_programs import attention, mlp
from tests.support.example_inputs import inputs_for
from tests.unit.bundles import models
from weft import functional as F
from weft import nn
from weft.driver.compile import compile_program
from weft.foundation.errors import BackendUnavailable, SpecViolation
from weft.ptir import Program
from weft.runtime.cuda.driver import compute_capability

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    compute_capability() != (9, 0) or shutil.which("gcc") is None,
    reason="these bundles are for an SM90 GPU, and gcc links them",
)


PROGRAMS: dict[str, Callable[[], Program]] = {
    "mixture": models.mixture,
    "halving": models.halving,
    "noise": models.noise,
    "same": models.same,
    "updated": models.updated,
    "mlp": lambda: mlp(dtype="bf16"),
    "attention": lambda: attention(dtype="bf16"),
    "mlp_f32": lambda: mlp(dtype="f32"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_computes_the_same(tmp_path: Path, name: str) -> None:
    program = PROGRAMS[name]()
    bundle = weft.load_bundle(weft.build(program, out=tmp_path / "made", name="m", target="sm90"))
    executable = compile_program(program, "sm90")
    for seed in (0, 7, 7):
        inputs = inputs_for(program, seed)
        got, want = bundle(*inputs, seed=seed), executable.run(inputs, seed=seed)
        assert [(a.dtype, a.shape) for a in got] == [(a.dtype, a.shape) for a in want]
        assert [a.tobytes() for a in got] == [np.asarray(a).tobytes() for a in want]


def test_open_sizes_share_programs(tmp_path: Path) -> None:
    nn.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 16))

    @weft.jit(dynamic={"x": {0: "B", 1: "T"}}, shapes=weft.ShapeSet({"B": (4, 16), "T": (8,)}))
    def classify(x):  # type: ignore[no-untyped-def]
        return F.softmax(model(x), axis=-1)

    x = np.zeros((4, 8, 64), np.float32)
    ranges = {"B": (1, 16), "T": (1, 8)}
    bundle = weft.load_bundle(
        weft.build(classify, x, out=tmp_path / "made", sizes=ranges, target="sm90")
    )
    for rows, length in ((1, 1), (3, 8), (4, 5), (16, 7), (5, 8)):
        x = np.random.default_rng(rows).standard_normal((rows, length, 64)).astype(np.float32)
        (got,) = bundle(x)
        np.testing.assert_allclose(got, classify(x).numpy(), rtol=2e-5, atol=1e-6)


def test_states_stay_in_instances(tmp_path: Path) -> None:
    @weft.jit
    def smooth(x, mean):  # type: ignore[no-untyped-def]
        mean = 0.5 * mean + 0.5 * x
        return mean * 2, mean

    zeros = np.zeros(1000, np.float32)
    made = weft.build(smooth, zeros, zeros, out=tmp_path / "smooth", state="mean", target="sm90")
    bundle = weft.load_bundle(made)
    one, other = bundle.instance(), bundle.instance()
    for turn in range(3):
        (got,) = one(np.ones(1000, np.float32))
        assert got[-1] == 2 * (1 - 0.5 ** (turn + 1))
    other(np.ones(1000, np.float32))
    assert (one.states["mean"][0], other.states["mean"][999]) == (0.875, 0.5)
    one.reset()
    assert not one.states["mean"].any()


def test_code_for_other_gpus_is_refused(tmp_path: Path) -> None:
    made = weft.build(models.added(), out=tmp_path / "made", target="sm80")
    with pytest.raises(BackendUnavailable, match=r"built for sm80 \(sm_80\), whose code NVIDIA"):
        weft.load_bundle(made)


def test_violations_are_told(tmp_path: Path) -> None:
    bundle = weft.load_bundle(weft.build(models.division(), out=tmp_path / "made", target="sm90"))
    good, bad = np.array([1, 2, 3], np.int32), np.array([1, 0, 3], np.int32)
    for _ in range(2):
        with pytest.raises(SpecViolation, match="the divisor is zero at element 1"):
            bundle(good, bad)
        assert bundle(good, good)[0].tolist() == [1, 1, 1]


def test_c_programs_run(tmp_path: Path) -> None:
    """Asynchronous runs, memory of the device, threads; and the example of a bundle."""
    made = weft.build(models.added(), out=tmp_path / "added", target="sm90")
    source = ROOT / "tests" / "unit" / "bundles" / "on_gpu.c"
    for file, told in ((source, "all is well\n"), (made / "example.c", "out0[0] = 0\n")):
        program = tmp_path / file.stem
        options = ["-std=c11", "-Wall", "-Werror", "-O1", f"-I{made}", "-o", str(program)]
        libraries = [str(made / "libadded.a"), "-lpthread", "-ldl"]
        subprocess.run(["gcc", *options, str(file), *libraries], check=True)
        done = subprocess.run(
            [str(program), str(made)], capture_output=True, text=True, check=False
        )
        assert (done.stdout, done.stderr) == (told, "")
    entry = json.loads((made / "manifest.json").read_text())
    assert entry["targets"][0]["processor"] == "sm_90a"
