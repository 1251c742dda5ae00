"""Other answers about the blocks around stages: what several of them compute becomes one more."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import DEFAULT_LEVEL, EXACT_LEVEL, Compilation
from weft.ptir import Program
from weft.region.cost import kernel_seconds
from weft.region.fitting import join_stages
from weft.region.fusion import stages
from weft.region.ir import Module
from weft.target.known import target_named

pytestmark = pytest.mark.usefixtures("small_machine")


def box(p: Any) -> Any:
    rows = p[:-2] + p[1:-1] + p[2:]
    return rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]


def two_boxes(x: Any) -> Any:
    """Boxes of two functions of one window."""
    across = x[:, 2:] - x[:, :-2]
    slope = across[:-2] + 2 * across[1:-1] + across[2:]
    return box(slope * slope) - box(slope * weft.abs(slope))


def program_of(function: Any, rows: int = 700) -> Program:
    made: Program = weft.jit(function).program(weft.tensor(np.zeros((rows, 640), np.float32)))
    return made


def kernels_of(program: Program, target: str, level: int) -> Module:
    made = Compilation(program, target_named(target), make_signature(program), {}, level)
    found: Module = run_pipeline(made, "region")["region"]
    return found


def seconds(module: Module, target: str) -> float:
    where = target_named(target)
    return sum(kernel_seconds(kernel, module.tensors, where) for kernel in module.kernels)


@pytest.mark.parametrize("target", one_in(2, ["cpu", "sm90"]))
def test_what_two_stages_compute_becomes_a_stage(target: str) -> None:
    program = program_of(two_boxes)
    greedy, exact = (kernels_of(program, target, n) for n in (DEFAULT_LEVEL, EXACT_LEVEL))
    assert seconds(exact, target) < 0.99 * seconds(greedy, target)
    (before,), (after,) = ([k for k in m.kernels if k.stages] for m in (greedy, exact))
    assert len(after.stages) > len(before.stages)
    assert any("with stages chosen" in note for note in exact.notes)
    assert any("stages chosen in 1 window, 1 s each at most" in note for note in exact.notes)


def test_a_window_without_time_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "TIME_LIMIT", -1.0)
    found = kernels_of(program_of(two_boxes), "cpu", EXACT_LEVEL)
    greedy = kernels_of(program_of(two_boxes), "cpu", DEFAULT_LEVEL)
    assert seconds(found, "cpu") == pytest.approx(seconds(greedy, "cpu"))


def test_more_stages_are_allowed_where_more_is_tried() -> None:
    assert stages.MOST_STAGES > join_stages.MOST_STAGES


def test_results_are_those_of_the_reference() -> None:
    program = program_of(two_boxes, 60)
    x = np.random.default_rng(1).standard_normal((60, 640)).astype(np.float32)
    found = weft.compile(program, "cpu", opt_level=EXACT_LEVEL)
    (module,) = (cluster.compilation["region"] for cluster in found.clusters.values())
    assert any(kernel.stages for kernel in module.kernels)
    (got,), (wanted,) = found.run([x]), weft.run(program, [x], backend="reference")
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_a_window_ends_after_answers_in_turn_that_are_no_better(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stages, "TIME_LIMIT", 1e9)
    whole = kernels_of(program_of(two_boxes), "cpu", EXACT_LEVEL)
    monkeypatch.setattr(stages, "MOST_TRIES", 2)
    short = kernels_of(program_of(two_boxes), "cpu", EXACT_LEVEL)
    assert seconds(short, "cpu") == pytest.approx(seconds(whole, "cpu"))
    counts = [int(re.findall(r"(\d+) choices tried", " ".join(m.notes))[0]) for m in (short, whole)]
    assert counts[0] < counts[1]
