"""Programs on a CUDA device, which here is the dialect's interpreter behind a driver of our own:
one graph, what is uploaded and when, state, parameters, and errors that kernels report."""

from __future__ import annotations

import gc
import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from examples.make_programs import attention, mlp
from tests.support.example_inputs import inputs_for
from tests.support.gpu_machine import Machine, machine
from tests.support.gpu_programs import CASES, program
from weft.driver.compile import Executable, compile_program
from weft.driver.cuda import CudaBackend, target_of_device
from weft.foundation.errors import ExecutionError, InternalError, SpecViolation, UserError
from weft.ptir import Builder, Program
from weft.runtime.artifact import Artifact, HostCall
from weft.runtime.cuda import driver
from weft.runtime.cuda.gpu import open_gpu
from weft.runtime.cuda.program import Program as DeviceProgram

Array = NDArray[Any]
PARALLEL = {"matmul": "splitk_parallel_2"}


def on(gpu: Machine, source: Program, target: str = "sm90", **more: Any) -> Executable:
    executable: Executable = compile_program(source, target, **more)
    gpu.learn(executable)
    return executable


def close(got: Array, want: Array) -> bool:
    first, second = (array.astype(np.float64) for array in (got, want))
    return bool(np.allclose(first, second, rtol=2e-2, atol=2e-2))


@pytest.mark.parametrize(("name", "dtype", "target"), [c for c in CASES if c[:2] != ("mlp", "f32")])
def test_examples_agree_with_the_reference(
    gpu: Machine, name: str, dtype: str, target: str
) -> None:
    source = program(name, dtype)
    inputs = inputs_for(source, 1)
    got = on(gpu, source, target).run(inputs)
    want = weft.run(source, inputs, backend="reference")
    assert all(close(a, b) for a, b in zip(got, want, strict=True))


def doubled(size: int = 40) -> Program:
    b = Builder()
    x, w = b.param("f32", [size]), b.param("f32", [size])
    return b.build(x * w + x)


def test_a_run_is_one_graph_that_is_recorded_once(gpu: Machine) -> None:
    executable = on(gpu, mlp(8, 16, 8, 8))
    inputs = inputs_for(executable.source)
    for runs in (1, 2, 3):
        executable.run(inputs)
        assert gpu.graph_launches == runs
        assert len(gpu.launches) == 2 * runs


def test_kernels_start_early_behind_others_of_the_same_graph(gpu: Machine) -> None:
    executable = on(gpu, mlp(8, 16, 8, 8), "sm90")
    executable.run(inputs_for(executable.source))
    assert gpu.early == gpu.launches[1:]
    older = on(gpu, mlp(8, 16, 8, 8), "sm80")
    older.run(inputs_for(older.source))
    assert len(gpu.early) == 1


@pytest.mark.parametrize(("field", "value"), [("split_k", 2), ("algo_choice", PARALLEL)])
def test_sums_in_parts_find_their_counters_at_zero(gpu: Machine, field: str, value: Any) -> None:
    """Two kernels that are one: the second finds the workspace as the first has left it."""
    b = Builder()
    x, w = b.param("bf16", [72, 136]), b.param("bf16", [136, 136])
    source = b.build(b.matmul(b.matmul(x, w), w))
    plain = compile_program(source, "sm90")
    plans = json.loads(plain.stages["plan"])
    for plan in plans["plans"]:
        plan[field] = value
    executable = on(gpu, source, overrides={"plan": json.dumps(plans)})
    inputs = inputs_for(source)
    want = weft.run(source, inputs, backend="reference")
    first, second = (executable.run(inputs)[0] for _ in range(2))
    assert close(first, want[0])
    assert (first.view(np.uint16) == second.view(np.uint16)).all()
    assert open_gpu().pool.held["partial sums"] > 0


def test_kernels_that_are_timed_do_not_start_early(gpu: Machine) -> None:
    executable = on(gpu, mlp(8, 16, 8, 8), "sm90")
    executable.profile(inputs_for(executable.source))
    assert gpu.launches
    assert not gpu.early


def test_runs_do_not_share_their_results(gpu: Machine) -> None:
    executable = on(gpu, doubled())
    first = [np.full(40, 2, np.float32), np.full(40, 3, np.float32)]
    (one,) = executable.run(first)
    (two,) = executable.run([np.zeros(40, np.float32), first[1]])
    assert (one == 8).all()
    assert (two == 0).all()


def test_inputs_may_change_after_a_run_has_taken_them(gpu: Machine) -> None:
    executable = on(gpu, doubled())
    x, w = np.ones(40, np.float32), np.ones(40, np.float32)
    (before,) = executable.run([x, w])
    x[...] = 5
    assert (before == 2).all()
    assert (executable.run([x, w])[0] == 10).all()


def test_bound_parameters_are_uploaded_once(gpu: Machine) -> None:
    executable = on(gpu, doubled(), params=[1])
    bound = executable.bind([np.full(40, 3, np.float32)])
    x = np.full(40, 2, np.float32)
    assert (bound(x)[0] == 8).all()
    assert gpu.uploads == 2
    assert (bound(2 * x)[0] == 16).all()
    assert gpu.uploads == 3
    other = executable.bind([np.zeros(40, np.float32)])
    assert (other(x)[0] == 2).all()
    assert gpu.uploads == 5


def test_state_stays_on_the_device_and_is_updated_in_place(gpu: Machine) -> None:
    source = attention(1, 2, 4, 8)
    executable = on(gpu, source, state=[3, 4])
    address = [held.ctypes.data for held in executable.state]
    caches = [np.zeros(held.shape, held.dtype) for held in executable.state]
    for step in range(3):
        q, k, v, _, _, position = inputs_for(source, step)
        position = np.asarray(2 * step, position.dtype)
        want = weft.run(source, [q, k, v, *caches, position], backend="reference")
        got = executable.run([q, k, v, position])
        assert all(close(a, b) for a, b in zip(got, want, strict=True))
        caches = [np.array(cache) for cache in want[1:]]
        for held, cache in zip(executable.state, caches, strict=True):
            assert held.tobytes() == cache.tobytes()
    assert [held.ctypes.data for held in executable.state] == address
    assert np.shares_memory(executable.state[0], got[1])


def test_a_violation_that_a_kernel_reports_is_raised(gpu: Machine) -> None:
    b = Builder()
    x, y = b.param("si32", [40]), b.param("si32", [40])
    executable = on(gpu, b.build(x / y))
    ones = np.ones(40, np.int32)
    assert (executable.run([7 * ones, 2 * ones])[0] == 3).all()
    message = r"IntegerDivideByZero at %2 = div\(%0, %1\) .*: the divisor is zero at element 3$"
    with pytest.raises(SpecViolation, match=message):
        executable.run([ones, (np.arange(40) - 3).astype(np.int32) % 20])
    assert (executable.run([7 * ones, 2 * ones])[0] == 3).all()


def test_a_place_that_is_not_there_is_reported_and_not_read(gpu: Machine) -> None:
    b = Builder()
    table, places = b.param("f32", [10, 8]), b.param("si64", [6])
    executable = on(gpu, b.build(b.take(table, places)))
    rows = np.arange(80, dtype=np.float32).reshape(10, 8)
    good = np.array([3, 0, 9, 9, 1, 2])
    assert (executable.run([rows, good])[0] == rows[good]).all()
    message = r"GatherIndexOutOfBounds at %2 = take.*: the index at element 2 is outside \[0, 10\)"
    for bad in (10, -1, 1 << 40):
        with pytest.raises(SpecViolation, match=message):
            executable.run([rows, np.array([3, 0, bad, 9, -5, 2])])
    assert (executable.run([rows, good])[0] == rows[good]).all()


def test_steps_are_timed(gpu: Machine) -> None:
    source = mlp(8, 16, 8, 8)
    steps = on(gpu, source).profile(inputs_for(source))
    assert steps == [("matmul0", 0.0005), ("matmul1", 0.0005)]
    assert gpu.graph_launches == 0


def test_a_timeline_is_that_of_a_run_as_it_is(gpu: Machine) -> None:
    """One launch of the host for all kernels of a graph, and when the stream was busy with each."""
    source = mlp(8, 16, 8, 8)
    executable = on(gpu, source)
    laps = executable.timeline(inputs_for(source))
    in_stream = [lap for lap in laps if lap.lane == "GPU stream"]
    assert [lap.label for lap in in_stream] == ["matmul0", "matmul1"]
    # The machine's clock says half a millisecond from any point to any other.
    assert [lap.start for lap in in_stream] == pytest.approx([0.0005, 0.00075])
    assert [lap.seconds for lap in in_stream] == pytest.approx([0.00025, 0.00025])
    (launch,) = (lap for lap in laps if lap.lane == "launches")
    assert launch.label == "launch of 2 steps"
    assert launch.seconds > 0
    assert gpu.graph_launches == 1
    # The times of single kernels are known, and the graph is there.
    launched = len(gpu.launches)
    executable.timeline(inputs_for(source))
    assert len(gpu.launches) == launched + 2


def test_a_timeline_has_what_the_host_computes_between_launches(gpu: Machine) -> None:
    b = Builder()
    x = b.param("f32", [4, 8])
    q, _ = b.qr(b.exp(x))
    laps = on(gpu, b.build(b.tanh(q))).timeline([np.ones((4, 8), np.float32)])
    first, call, second = (lap for lap in laps if lap.lane != "GPU stream")
    assert [first.lane, call.lane, second.lane] == ["launches", "host", "launches"]
    assert (first.label, second.label) == ("launch of map0", "launch of map2")
    assert first.start + first.seconds <= call.start
    assert call.start + call.seconds <= second.start
    assert [lap.label for lap in laps if lap.lane == "GPU stream"] == ["map0", "map2"]


def test_what_is_held_back_goes_on_whatever_happens(gpu: Machine) -> None:
    def stopped() -> None:
        with open_gpu().stream.held_back():
            assert len(gpu.words) == 1
            raise KeyboardInterrupt

    with open_gpu().lock, pytest.raises(KeyboardInterrupt):
        stopped()
    assert gpu.words == []  # which the machine allows only when the word is set


def test_empty_results_launch_nothing(gpu: Machine) -> None:
    source = mlp(0, 8, 8, 8)
    (result,) = on(gpu, source).run(inputs_for(source))
    assert result.shape == (0, 8)
    assert gpu.launches == []


def test_constants_are_sent_behind_what_is_still_to_be_done(gpu: Machine) -> None:
    b = Builder()
    x = b.param("f32", [4])
    table = b.constant(np.asarray([1, 2, 4, 8], np.float32))
    executable = on(gpu, b.build(x * table))
    assert executable.run([np.ones(4, np.float32)])[0].tolist() == [1, 2, 4, 8]
    assert gpu.uploads == 2


def test_memory_is_given_back(gpu: Machine) -> None:
    executable = on(gpu, mlp(8, 16, 8, 8))
    executable.run(inputs_for(executable.source))
    pool = open_gpu().pool
    assert pool.held.total() > 0
    gpu.executables.clear()
    del executable
    gc.collect()
    assert pool.held.total() == 0
    pool.trim()
    assert gpu.memory == {}


def test_dynamic_programs_have_one_graph_for_each_size(gpu: Machine) -> None:
    executable = on(gpu, mlp("B", 8, 8, 8))
    for rows in (3, 5, 3):
        inputs = inputs_for(mlp(rows, 8, 8, 8))
        want = weft.run(mlp(rows, 8, 8, 8), inputs, backend="reference")
        assert close(executable.run(inputs)[0], want[0])
    assert len(executable.clusters) == 2
    assert gpu.graph_launches == 3


# -- what cannot be run ----------------------------------------------------------------------------


def test_a_step_for_the_host_needs_one() -> None:
    call = HostCall("sort", (), (), "sort0")
    artifact = Artifact("sm_90a", (), (), (call,), (), (), (), 0)
    with pytest.raises(InternalError, match="the step sort0 is for the host, and there is none"):
        DeviceProgram(artifact)


class Absent:
    """A driver without a device."""

    def cuInit(self, flags: int) -> tuple[int]:
        return (0,)

    def cuDeviceGetCount(self) -> tuple[int, int]:
        return (0, 0)


def test_without_a_gpu_a_program_compiles_and_a_run_says_why_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver, "bindings", Absent)
    executable = compile_program(doubled(), "sm90")
    assert "kernel" in executable.stages["gpu"]
    ones = np.ones(40, np.float32)
    with pytest.raises(UserError, match="there is no GPU number 0: the machine has 0"):
        executable.run([ones, ones])
    with pytest.raises(UserError, match="there is no GPU number 0"):
        CudaBackend().compile(doubled())


@pytest.mark.parametrize(
    ("capability", "target"), [((8, 0), "sm80"), ((8, 6), "sm80"), ((9, 0), "sm90")]
)
def test_the_target_of_a_device(capability: tuple[int, int], target: str) -> None:
    with machine(capability):
        assert target_of_device() == target


@pytest.mark.parametrize("capability", [(7, 5), (10, 0), (12, 0)])
def test_gpus_that_run_no_machine_code_of_ours_are_refused(capability: tuple[int, int]) -> None:
    message = f"needs an SM80 or SM90 GPU; this one is SM{capability[0]}{capability[1]}"
    with machine(capability), pytest.raises(UserError, match=message):
        target_of_device()


def test_a_failing_driver_is_a_sentence(gpu: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    executable = on(gpu, doubled())
    ones = np.ones(40, np.float32)
    executable.run([ones, ones])

    def broken(*args: Any) -> tuple[int]:
        return (700,)

    monkeypatch.setattr(gpu, "cuGraphLaunch", broken, raising=False)
    monkeypatch.setattr(gpu, "cuGetErrorString", lambda status: (0, b"an illegal address"), False)
    with pytest.raises(ExecutionError, match="cuGraphLaunch failed: an illegal address"):
        executable.run([ones, ones])


def test_a_loop_that_takes_the_same_sizes_meets_the_same_addresses(gpu: Machine) -> None:
    device, pool = open_gpu().device, open_gpu().pool

    def turn(freed: list[int]) -> list[int]:
        with device.current():
            blocks = [pool.take(4096, "tensors") for _ in freed]
        addresses = [block.address for block in blocks]
        for number in freed:
            blocks[number].free()
        return addresses

    first = turn([2, 0, 3, 1])
    assert turn([1, 3, 2, 0]) == turn([0, 2, 1, 3]) == sorted(first)
