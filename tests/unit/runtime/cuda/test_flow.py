"""Branches and loops within graphs, on a GPU made of the dialect's interpreter: the host is asked
for nothing, and what a loop leaves behind is what the reference leaves."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.support import turning_programs as programs
from tests.support.gpu_machine import Machine, MachineBackend
from weft.driver.execute import prepare
from weft.foundation.errors import ExecutionError, SpecViolation
from weft.ptir import Builder


@pytest.mark.parametrize("count", [0, 1, 4])
@pytest.mark.parametrize("name", programs.CASES)
def test_one_graph_and_no_question_to_the_host(
    gpu: Machine, backend: MachineBackend, name: str, count: int
) -> None:
    prepared = prepare(programs.CASES[name](), backend)
    given = programs.inputs(prepared.program, count)
    held = [backend.store(array) for array in given]
    waits, starts = gpu.waits, gpu.graph_launches
    got = prepared.execute(held, seed=3)
    assert gpu.waits == waits
    assert gpu.graph_launches == starts + 1
    want = weft.run(prepared.program, given, backend="reference", seed=3)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("version", [12080, 12040], ids=["in one graph", "step by step"])
@pytest.mark.parametrize("name", programs.CASES)
def test_a_timeline_has_the_work_of_loops_and_branches(
    gpu: Machine, backend: MachineBackend, name: str, version: int
) -> None:
    gpu.version = version
    prepared = prepare(programs.CASES[name](), backend)
    assert backend.last is not None
    laps = backend.last.timeline(programs.inputs(prepared.program, 3), seed=3)
    busy = [lap for lap in laps if lap.lane == "GPU stream"]
    launches = [lap for lap in laps if lap.lane == "launches"]
    assert busy
    assert all(lap.seconds >= 0 for lap in laps)
    assert 1 <= len(launches) <= len(busy)
    if version == 12080:
        assert len(launches) == 1


@pytest.mark.parametrize("name", programs.CASES)
def test_drivers_without_such_graphs_take_steps(
    gpu: Machine, backend: MachineBackend, name: str
) -> None:
    gpu.version = 12040
    program = programs.CASES[name]()
    given = programs.inputs(program, 3)
    got = weft.run(program, given, backend=backend, seed=3)
    want = weft.run(program, given, backend="reference", seed=3)
    assert gpu.graph_launches > 1
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_violation_ends_a_loop_and_the_next_run_is_right(backend: MachineBackend) -> None:
    prepared = prepare(programs.divided(), backend)
    (result,) = prepared.execute([backend.store(np.asarray(3, np.int32))])
    with pytest.raises(SpecViolation, match="IntegerDivideByZero"):
        result.numpy()


def test_too_many_turns_are_told_by_whoever_reads(
    backend: MachineBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_MAX_LOOP_STEPS", "30")
    prepared = prepare(programs.endless(), backend)
    (result,) = prepared.execute([backend.store(np.asarray(0, np.float32))])
    with pytest.raises(ExecutionError, match=r"\(while\) ran 30 region calls without ending"):
        result.numpy()
    monkeypatch.setenv("WEFT_MAX_LOOP_STEPS", "60")
    (result,) = prepared.execute([backend.store(np.asarray(0, np.float32))])
    with pytest.raises(ExecutionError, match="ran 60 region calls"):
        result.numpy()


def test_too_many_turns_are_not_forgotten_by_the_next_run(
    backend: MachineBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_MAX_LOOP_STEPS", "30")
    prepared = prepare(programs.counted(), backend)
    results = []
    for count in (40, 2):
        held = [backend.store(array) for array in programs.inputs(prepared.program, count)]
        results.append(prepared.execute(held)[1])
    with pytest.raises(ExecutionError, match="ran 30 region calls without ending"):
        results[0].numpy()
    (_, again) = prepared.execute(held)
    want = weft.run(prepared.program, programs.inputs(prepared.program, 2), backend="reference")
    np.testing.assert_allclose(again.numpy(), want[1], rtol=1e-6)


def test_graphs_with_loops_are_recorded_for_new_addresses(backend: MachineBackend) -> None:
    prepared = prepare(programs.counted(), backend)
    for count in range(7):
        given = programs.inputs(prepared.program, count)
        held = [backend.store(array) for array in given]
        got = [tensor.numpy() for tensor in prepared.execute(held)]
        want = weft.run(prepared.program, given, backend="reference")
        np.testing.assert_allclose(got[1], want[1], rtol=1e-6)


def test_token_and_position_stay_on_the_device(gpu: Machine, backend: MachineBackend) -> None:
    """A step of decoding: the token's row goes to the cache at the position; the next token is what
    the cache says, the next position one more. Nothing is read or uploaded between steps."""
    b = Builder("decode")
    table, cache = b.param("f32", [10, 8]), b.param("f32", [6, 8])
    token, place = b.param("si32", []), b.param("si32", [])
    row = b.reshape(b.take(table, b.reshape(token, [1])), [1, 8])
    start = b.concat([b.reshape(place, [1]), b.constant(np.zeros(1, np.int32))], axis=0)
    kept = b.dynamic_update_slice(cache, row, start, sizes=[1, 8])
    scores = b.reduce_sum(
        table * b.broadcast_to(b.reduce_sum(kept, [0], keepdims=True), [10, 8]), [1]
    )
    after = b.cast(b.arg_max(scores, axis=0), "si32")
    prepared = prepare(b.build(kept, b.reshape(after, []), place + 1), backend)
    rng = np.random.default_rng(0)
    given = [rng.standard_normal((10, 8)).astype(np.float32), np.zeros((6, 8), np.float32)]
    given += [np.asarray(4, np.int32), np.asarray(0, np.int32)]
    words = [backend.store(array) for array in given[:1]]
    state = [backend.store(array) for array in given[1:]]
    uploads, waits = gpu.uploads, gpu.waits
    for _ in range(5):
        state = prepared.execute([*words, *state])
    assert (gpu.uploads, gpu.waits) == (uploads, waits)
    want = given[1:]
    for _ in range(5):
        want = weft.run(prepared.program, [given[0], *want], backend="reference")
    for got, expected in zip(state, want, strict=True):
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6)
