"""What memory a run takes: nothing that is updated is copied, the arena is the plan's, and runs
leave nothing behind."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import weft
from examples.digits import make_step
from examples.digits_mlp import DigitsMLP
from examples.gpt2_generate import GPT2, Config
from weft import optim
from weft.driver.compile import Executable, compile_program
from weft.memory.ir import Space
from weft.ptir import Builder, Program, TensorType
from weft.runtime.artifact import CopyBuffer, Launch

STATM = Path("/proc/self/statm")
TOKENS, LABELS = np.zeros((1, 8), np.int32), np.zeros(2, np.int32)
IMAGES = np.zeros((2, 1, 8, 8), np.float32)


def small_gpt() -> GPT2:
    return GPT2(Config(vocabulary=32, context=8, width=16, heads=2, layers=2))


def decode() -> tuple[Program, list[int]]:
    """A step of decoding, and which inputs are caches."""
    model = small_gpt()
    step = weft.jit(lambda model, tokens, position, caches: model.step(tokens, position, caches))
    program = step.program(model, TOKENS[:, :1], np.int32(3), model.empty_caches(8))
    kinds = program.main.parameters
    return program, [n for n, k in enumerate(kinds) if isinstance(k, TensorType) and k.rank == 4]


def training(model: weft.nn.Module, x: object, y: object) -> tuple[Program, list[int]]:
    """A step of training, and which inputs are parameters and moments: all but the data."""
    optimiser = optim.AdamW(1e-3)
    program = make_step(optimiser).program(model, optimiser.init(model), x, y)
    return program, list(range(len(program.main.parameters) - 2))


PROGRAMS: dict[str, Callable[[], tuple[Program, list[int]]]] = {
    "decode": decode,
    "GPT, training": lambda: training(small_gpt(), TOKENS, TOKENS),
    "MLP, training": lambda: training(DigitsMLP(), IMAGES, LABELS),
}


@pytest.mark.parametrize(
    "name", ["decode", pytest.param("GPT, training", marks=pytest.mark.slow), "MLP, training"]
)
def test_what_is_given_away_is_not_copied(name: str) -> None:
    program, donated = PROGRAMS[name]()
    executable = compile_program(program, "cpu", donate=donated)
    (cluster,) = executable.clusters.values()
    assert len(donated) > 3
    copied = [step for step in cluster.built.artifact.steps if isinstance(step, CopyBuffer)]
    assert [step.label for step in copied] == []
    assert cluster.compilation["memory"].copies == ()
    assert not any("in a copy" in line for line in executable.report())


def returned(count: int) -> Program:
    """Some inputs as they are, with one that is added to among them, and one from two sides."""
    b = Builder()
    kept = [b.param("f32", [4, 6]) for _ in range(count)]
    added, turned = b.param("f32", [4, 6]), b.param("f32", [5, 5])
    return b.build(*kept, added + 1.0, b.transpose(turned, [1, 0]))


@pytest.mark.parametrize("target", ["cpu", "sm90"])
def test_what_is_returned_as_it_is_given_is_not_moved(target: str) -> None:
    program = returned(3)
    executable = compile_program(program, target, donate=range(5))
    (cluster,) = executable.clusters.values()
    launches = [step for step in cluster.built.artifact.steps if isinstance(step, Launch)]
    assert len(launches) == 2
    if target == "cpu":
        arrays = [np.full((4, 6), n, np.float32) for n in range(4)]
        arrays.append(np.arange(25, dtype=np.float32).reshape(5, 5))
        found = executable.run([array.copy() for array in arrays])
        expected = [*arrays[:3], arrays[3] + 1, arrays[4].T]
        for got, want in zip(found, expected, strict=True):
            np.testing.assert_array_equal(got, want)


def test_a_step_that_does_nothing_but_hand_on() -> None:
    step = weft.jit(lambda state: [state[1], state[0]], donate="state")
    same = weft.jit(lambda state: list(state), donate="state")
    for backend in ("cpu", "reference"):
        state = [(weft.ones((3,)) * float(n)).to(backend).eval() for n in range(2)]
        for _ in range(4):
            state = same(state)
        assert [tensor.numpy()[0] for tensor in state] == [0.0, 1.0]
        for _ in range(5):
            state = step(state)
        assert [tensor.numpy()[0] for tensor in state] == [1.0, 0.0]


def chain(depth: int) -> Program:
    """Products whose intermediate results live one after the other."""
    b = Builder()
    x, w = b.param("f32", [64, 64]), b.param("f32", [64, 64])
    for _ in range(depth):
        x = b.softmax(x @ w)
    return b.build(x)


@pytest.mark.parametrize("depth", [1, 2, 3, 12])
def test_the_arena_is_as_large_as_what_lives_at_once(depth: int) -> None:
    executable = compile_program(chain(depth), "cpu")
    (cluster,) = executable.clusters.values()
    memory, artifact = cluster.compilation["memory"], cluster.built.artifact
    held = [
        (memory.lives[name], ref.buffer)
        for name, ref in memory.refs.items()
        if ref.buffer.space is Space.ARENA
    ]
    moments = range(1 + max((last for (_, last), _ in held), default=0))
    living = [{b for (first, last), b in held if first <= m <= last} for m in moments]
    most = max((sum(buffer.bytes for buffer in alive) for alive in living), default=0)
    assert artifact.arena_bytes == memory.arena_bytes
    assert memory.arena_bytes == most
    assert most <= 2 * 64 * 64 * 4


def resident_bytes() -> int:
    """Memory of this process that is not swapped out."""
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def growth(executable: Executable, inputs: list[np.ndarray], runs: int) -> int:
    """How much larger so many runs make the process: the least of several rounds. What leaks does
    so in each; the system counts pages by processor and adds them up now and then."""
    for _ in range(50):
        executable(*inputs)
    found = []
    for _ in range(3):
        gc.collect()
        before = resident_bytes()
        for _ in range(runs):
            executable(*inputs)
        gc.collect()
        found.append(resident_bytes() - before)
    return min(found)


@pytest.mark.skipif(not STATM.exists(), reason="how large a process is stands in /proc")
@pytest.mark.parametrize(
    "runs", [300, pytest.param(10_000, marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_runs_leave_nothing_behind(runs: int) -> None:
    executable = compile_program(chain(3), "cpu")
    x = np.random.default_rng(0).random((64, 64), np.float32)
    assert growth(executable, [x, x], runs) < 2**20


@pytest.mark.skipif(not STATM.exists(), reason="how large a process is stands in /proc")
def test_large_results_are_given_back() -> None:
    b = Builder()
    x = b.param("f32", [1024, 1024])
    executable = compile_program(b.build(b.exp(x)), "cpu")
    assert growth(executable, [np.zeros((1024, 1024), np.float32)], 60) < 2**24
