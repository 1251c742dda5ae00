"""Programs timed beside each other, on a GPU made of the dialect's interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.gpu_machine import Machine
from weft.driver.compile import compile_program
from weft.foundation.errors import UserError
from weft.ptir import Builder, Program
from weft.runtime.artifact import Artifact, TensorSpec
from weft.runtime.cuda.gpu import open_gpu
from weft.runtime.cuda.race import Race

SIZE = 64


def artifact(gpu: Machine, source: Program) -> Artifact:
    executable = compile_program(source, "sm90")
    gpu.learn(executable)
    (cluster,) = executable.clusters.values()
    return cluster.built.artifact


def scaled(by: float) -> Program:
    b = Builder()
    return b.build(b.param("f32", [SIZE]) * by)


def test_all_run_on_sets_that_rotate(gpu: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.runtime.cuda.race._COLD_BYTES", 4 * 8 * SIZE)
    x = np.arange(SIZE, dtype=np.float32)
    race = Race(open_gpu(), [(x, "f32")], [TensorSpec("", "f32", (SIZE,))])
    assert len(race.sets) == 5
    for by in (2.0, 3.0):
        race.enter(artifact(gpu, scaled(by)))
        np.testing.assert_array_equal(race.results[0].numpy(), by * x)
    before = len(gpu.launches)
    times = race.seconds(rounds=2)
    # The machine's clock says half a millisecond for every graph, which so runs all sets twice.
    assert times == pytest.approx([5e-4 / 10] * 2)
    counts = {symbol: gpu.launches[before:].count(symbol) for symbol in gpu.launches}
    assert len(counts) == 2
    assert {found % 5 for found in counts.values()} == {0}
    for _, results in race.sets:
        assert results[0].numpy()[5] in (10.0, 15.0)
    race.close()


def test_programs_that_turn_enter_no_race(gpu: Machine) -> None:
    b = Builder()
    x = b.param("f32", [4])
    loop = b.while_(lambda r, v: [r.reduce_sum(v, [0]) < 9.0, v], lambda r, v: [v + 1.0], x)
    race = Race(open_gpu(), [(np.ones(4, np.float32), "f32")], [TensorSpec("", "f32", (4,))])
    with pytest.raises(UserError, match="enters no race"):
        race.enter(artifact(gpu, b.build(loop)))
