"""The cuda backend on a GPU made of the dialect's interpreter: branches and loops as steps, ops and
kernels that are the host's, tensors that stay on the device, donation, and what errors say."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.gpu_machine import Machine, MachineBackend
from tests.support.turning_programs import scan_around_all
from weft.codegen.gpu.body.accept import refuse
from weft.driver.code import gpu_lowering
from weft.driver.cuda import CudaExecutable
from weft.driver.execute import Prepared, prepare
from weft.foundation.errors import ExecutionError, ResourceExceeded, SpecViolation
from weft.ptir import Builder, Program
from weft.ptir.builder import BodyBuilder, Value
from weft.runtime.artifact import HostCall
from weft.runtime.cuda.gpu import open_gpu
from weft.runtime.cuda.graphs import recording
from weft.runtime.cuda.tensors import DeviceTensor

Array = NDArray[Any]


def numbers(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def agrees(backend: MachineBackend, program: Program, inputs: list[Array], seed: int = 0) -> None:
    got = weft.run(program, inputs, backend=backend, seed=seed)
    want = weft.run(program, inputs, backend="reference", seed=seed)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


# -- branches and loops ----------------------------------------------------------------------------


def test_loops_nest(backend: MachineBackend) -> None:
    agrees(backend, scan_around_all(), [numbers(3, 4, 5)])


def test_a_counted_loop_waits_for_nothing(gpu: Machine, backend: MachineBackend) -> None:
    b = Builder()
    x = b.param("f32", [6, 4])
    loop = b.scan(lambda r, c, v: [c + v, c * v], [b.constant(np.zeros(4, np.float32))], [x])
    prepared = prepare(b.build(loop), backend)
    held = backend.store(numbers(6, 4))
    before = gpu.waits
    last, stacked = prepared.execute([held])
    assert gpu.waits == before
    want = weft.run(prepared.program, [numbers(6, 4)], backend="reference")
    np.testing.assert_allclose(last.numpy(), want[0], rtol=1e-6)
    np.testing.assert_allclose(stacked.numpy(), want[1], rtol=1e-6)


def test_a_counted_loop_of_few_turns_is_one_graph_that_copies_no_slices(
    gpu: Machine, backend: MachineBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = Builder()
    x = b.param("f32", [5, 32])
    loop = b.scan(lambda r, c, v: [c * 0.5 + v, c], [b.constant(np.ones(32, np.float32))], [x])
    program = b.build(loop)
    before = gpu.graph_launches
    agrees(backend, program, [numbers(5, 32)])
    assert gpu.graph_launches == before + 1
    monkeypatch.setenv("WEFT_MAX_LOOP_STEPS", "4")
    with pytest.raises(ExecutionError, match="ran 4 region calls without ending"):
        weft.run(program, [numbers(5, 32)], backend=backend)


def test_random_numbers_differ_from_turn_to_turn_as_they_should(backend: MachineBackend) -> None:
    b = Builder()
    x = b.param("f32", [3, 8])

    def body(r: BodyBuilder, total: Value, v: Value) -> list[Value]:
        return [total + r.rng_uniform(dtype="f32", shape=[8]) * v, total]

    program = b.build(b.scan(body, [b.constant(np.zeros(8, np.float32))], [x]))
    agrees(backend, program, [np.ones((3, 8), np.float32)], seed=7)


def test_a_loop_that_does_not_end_is_stopped(
    backend: MachineBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_MAX_LOOP_STEPS", "50")
    b = Builder()
    x = b.param("f32", [])
    loop = b.while_(lambda r, v: [r.constant(True, "i1"), v], lambda r, v: [v + 1.0], x)
    with pytest.raises(ExecutionError, match="ran 50 region calls without ending"):
        weft.run(b.build(loop), [np.float32(0)], backend=backend)


# -- the host's part -------------------------------------------------------------------------------


def test_an_op_without_a_kernel_is_a_step_of_the_host(backend: MachineBackend) -> None:
    b = Builder()
    x = b.param("f32", [3, 4, 4])
    gram = x @ b.transpose(x, [0, 2, 1])
    eye = b.constant(np.broadcast_to(np.eye(4, dtype=np.float32) * 4, (3, 4, 4)).copy())
    agrees(backend, b.build(b.cholesky(gram + eye) * 2.0), [numbers(3, 4, 4)])
    assert backend.last is not None
    (step,) = (s for s in backend.last.artifact.steps if isinstance(s, HostCall))
    assert f"{step.label} runs on the host: cholesky" in "\n".join(backend.last.report())


def test_a_kernel_that_no_template_takes_is_a_step_of_the_host(
    gpu: Machine, backend: MachineBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_lowering, "accepts", lambda *args: [refuse("Odd", "it is odd")])
    b = Builder()
    x, y = b.param("f32", [5, 7]), b.param("f32", [5, 7])
    agrees(backend, b.build(b.exp(b.reduce_sum(x * y, [1]))), [numbers(5, 7)] * 2)
    assert gpu.launches == []
    assert backend.last is not None
    assert "runs on the host: it is odd" in "\n".join(backend.last.report())
    assert 'host row0 "it is odd"' in backend.last.stages["gpu"]


# -- tensors on the device -------------------------------------------------------------------------


def doubled(backend: MachineBackend) -> Prepared:
    b = Builder()
    return prepare(b.build(b.param("f32", [40]) * 2.0), backend)


def test_results_stay_on_the_device_until_they_are_read(
    gpu: Machine, backend: MachineBackend
) -> None:
    double = doubled(backend)
    (once,) = double.execute([backend.store(np.ones(40, np.float32))])
    uploads, waits = gpu.uploads, gpu.waits
    (twice,) = double.execute([once])
    assert (gpu.uploads, gpu.waits) == (uploads, waits)
    assert isinstance(twice, DeviceTensor)
    assert (twice.numpy() == 4).all()
    assert (once.numpy() == 2).all()


def test_graphs_are_kept_for_addresses_and_updated_for_new_ones(
    gpu: Machine, backend: MachineBackend
) -> None:
    double = doubled(backend)
    held = [backend.store(np.full(40, n, np.float32)) for n in range(6)]
    for tensor in held[:4]:
        (result,) = double.execute([tensor])
        del result
    assert gpu.graph_updates == 0
    for tensor in held[:4]:
        double.execute([tensor])
    assert gpu.graph_updates == 0
    for n, tensor in enumerate(held):
        (result,) = double.execute([tensor])
        assert (result.numpy() == 2 * n).all()
        del result
    assert gpu.graph_updates == 2


def test_a_donated_tensor_is_overwritten(backend: MachineBackend) -> None:
    held = backend.store(np.ones(40, np.float32))
    program = doubled(backend).program
    (result,) = backend.compile_donating(program, frozenset({0})).execute([held])
    assert result.address == held.address
    assert (result.numpy() == 2).all()


class Owner:
    """Somebody who holds inputs."""


def test_inputs_of_a_holder_are_where_they_were(backend: MachineBackend) -> None:
    b = Builder()
    x, w = b.param("f32", [40]), b.param("f32", [40])
    made = backend.compile(b.build(x * w + x))
    first, second = numbers(40), numbers(40) * 3
    held, owner = backend.store(first), Owner()
    held.numpy()  # It is made, and nothing can go wrong with it any more.
    for turn, array in enumerate((first, second, first)):
        given = backend.store(array)
        if turn == 2:  # Another one is not looked at, and must not be, as long as the owner stays.
            (got,) = made.execute_held([given, backend.store(second)], owner, [0])
        else:
            (got,) = made.execute_held([given, held], owner, [0])
        np.testing.assert_allclose(got.numpy(), array * first + array, rtol=1e-6)
    for other in (Owner(), None):
        (got,) = made.execute_held([held, backend.store(second)], other, [0])
        np.testing.assert_allclose(got.numpy(), first * second + first, rtol=1e-6)


def test_what_may_still_go_wrong_with_a_held_input_is_told(backend: MachineBackend) -> None:
    b = Builder()
    x, y = b.param("si32", [4]), b.param("si32", [4])
    divided = backend.compile(b.build(x / y))
    b = Builder()
    x, y = b.param("si32", [4]), b.param("si32", [4])
    added = backend.compile(b.build(x + y))
    ones, zeros, owner = np.ones(4, np.int32), np.zeros(4, np.int32), Owner()
    good = backend.store(ones)
    (bad,) = divided.execute([good, backend.store(zeros)])
    added.execute_held([good, bad], owner, [0])
    with pytest.raises(SpecViolation):
        bad.numpy()
    with pytest.raises(SpecViolation):
        added.execute_held([good, bad], owner, [0])


def divided_in_place(backend: MachineBackend) -> CudaExecutable:
    """A program that puts its first input, divided by the second, where it was."""
    b = Builder()
    x, y = b.param("si32", [4]), b.param("si32", [4])
    return backend.compile_donating(b.build(x / y), frozenset({0}))


def test_a_donated_input_of_a_holder_is_overwritten_in_every_run(backend: MachineBackend) -> None:
    made, owner = divided_in_place(backend), Owner()
    state, two = backend.store(np.full(4, 64, np.int32)), backend.store(np.full(4, 2, np.int32))
    for turn in range(5):
        (result,) = made.execute_held([state, two], owner, [1])
        assert result is state
        assert state.writes == turn + 1
    assert (state.numpy() == 2).all()
    assert made._program._launched() is owner


def test_donated_inputs_that_are_returned_as_they_are(
    gpu: Machine, backend: MachineBackend
) -> None:
    b = Builder()
    made = backend.compile_donating(
        b.build(b.param("f32", [4]), b.param("f32", [4])), frozenset((0, 1))
    )
    state, owner = [backend.store(np.full(4, n, np.float32)) for n in range(2)], Owner()
    for _ in range(4):
        gpu.launches.clear()
        assert made.execute_held(state, owner, []) == state
        assert not gpu.launches
    assert [tensor.numpy()[0] for tensor in state] == [0.0, 1.0]


def test_what_went_wrong_with_a_donated_input_of_a_holder_is_told(backend: MachineBackend) -> None:
    made, owner = divided_in_place(backend), Owner()
    state, one = backend.store(np.ones(4, np.int32)), backend.store(np.ones(4, np.int32))
    for _ in range(3):
        made.execute_held([state, one], owner, [1])
    made.execute_held([state, backend.store(np.zeros(4, np.int32))], owner, [1])
    with pytest.raises(SpecViolation):
        state.numpy()
    with pytest.raises(SpecViolation):
        made.execute_held([state, one], owner, [1])


def test_an_input_that_is_returned_is_a_tensor_of_its_own(backend: MachineBackend) -> None:
    b = Builder()
    x = b.param("f32", [40])
    held = backend.store(numbers(40))
    (result,) = prepare(b.build(x), backend).execute([held])
    assert result.address != held.address
    assert (result.numpy() == numbers(40)).all()


def test_memory_of_dropped_tensors_serves_again(gpu: Machine, backend: MachineBackend) -> None:
    double = doubled(backend)
    held = backend.store(np.ones(40, np.float32))
    double.execute([held])
    pieces = len(gpu.memory)
    for _ in range(5):
        double.execute([held])
    assert len(gpu.memory) == pieces


def test_a_violation_is_raised_by_whoever_reads(backend: MachineBackend) -> None:
    b = Builder()
    x, y = b.param("si32", [40]), b.param("si32", [40])
    prepared = prepare(b.build(x / y), backend)
    ones, zeros = (backend.store(np.full(40, n, np.int32)) for n in (1, 0))
    (result,) = prepared.execute([ones, zeros])
    assert (ones.numpy() == 1).all()
    for _ in range(2):
        with pytest.raises(SpecViolation, match="IntegerDivideByZero"):
            result.numpy()
    with pytest.raises(SpecViolation, match="IntegerDivideByZero"):
        prepared.execute([ones, result])
    (result,) = prepared.execute([ones, ones])
    assert (result.numpy() == 1).all()


def divided(backend: MachineBackend, size: int = 40) -> Prepared:
    b = Builder()
    return prepare(b.build(b.param("si32", [size]) / b.param("si32", [size])), backend)


def test_a_violation_is_told_when_the_program_is_gone(
    gpu: Machine, backend: MachineBackend
) -> None:
    ones, zeros = (backend.store(np.full(40, n, np.int32)) for n in (1, 0))
    (result,) = divided(backend).execute([ones, zeros])
    gpu.executables.clear()
    backend.last = None
    gc.collect()
    with pytest.raises(SpecViolation, match="IntegerDivideByZero"):
        result.numpy()


def test_all_violations_of_an_era_are_forgotten_with_it(backend: MachineBackend) -> None:
    programs = [divided(backend, size) for size in (40, 50)]
    results = []
    for prepared, size in zip(programs, (40, 50), strict=True):
        given = [backend.store(np.full(size, n, np.int32)) for n in (1, 0)]
        results += prepared.execute(given)
    for result in results:
        with pytest.raises(SpecViolation, match="IntegerDivideByZero"):
            result.numpy()
    for prepared, size in zip(programs, (40, 50), strict=True):
        ones = backend.store(np.ones(size, np.int32))
        (result,) = prepared.execute([ones, ones])
        assert (result.numpy() == 1).all()


def test_a_violation_that_a_later_run_comes_upon_is_told_to_readers_of_the_earlier(
    backend: MachineBackend,
) -> None:
    b = Builder()
    square, x, y = b.param("f32", [2, 2]), b.param("si32", [2, 2]), b.param("si32", [2, 2])
    prepared = prepare(b.build(x / (y * b.cast(b.cholesky(square) + 1.0, "si32"))), backend)
    ones, zeros = (backend.store(np.full((2, 2), n, np.int32)) for n in (1, 0))
    eye = backend.store(np.eye(2, dtype=np.float32))
    (early,) = prepared.execute([eye, ones, zeros])
    with pytest.raises(SpecViolation, match="IntegerDivideByZero"):
        prepared.execute([eye, ones, ones])
    with pytest.raises(SpecViolation, match="IntegerDivideByZero"):
        early.numpy()
    (right,) = prepared.execute([eye, ones, ones])
    assert right.numpy().tolist() == [[0, 1], [1, 0]]


def test_a_violation_in_a_loop_ends_it(backend: MachineBackend) -> None:
    b = Builder()
    x = b.param("si32", [])
    loop = b.while_(lambda r, v: [r.constant(7, "si32") / v > -9, v], lambda r, v: [v - 1], x)
    with pytest.raises(SpecViolation, match="IntegerDivideByZero"):
        weft.run(b.build(loop), [np.int32(3)], backend=backend)


def test_a_block_that_comes_back_while_others_are_freed_is_kept(
    gpu: Machine, backend: MachineBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = open_gpu()
    pool = found.pool
    with found.lock:
        idle, late = pool.take(1000, "tests"), pool.take(5000, "tests")
    address = late.address
    idle.free()

    def collecting(where: int) -> tuple[int]:
        late.free()
        gpu.do_cuMemFree(where)
        return (0,)

    monkeypatch.setattr(gpu, "cuMemFree", collecting, raising=False)
    pool.trim()
    assert pool.idle_bytes == late.bytes
    with found.lock:
        assert pool.take(5000, "tests").address == address


def test_what_is_collected_during_a_recording_is_given_back(
    gpu: Machine, backend: MachineBackend
) -> None:
    backend.store(np.ones(40, np.float32))
    found = open_gpu()
    with found.lock, recording(found.stream):
        found.pool.trim()
    assert gpu.memory == {}


def test_a_program_that_has_no_room_leaves_nothing_behind(
    gpu: Machine, backend: MachineBackend
) -> None:
    b = Builder()
    x = b.param("f32", [1 << 10, 1 << 10])
    table = b.constant(np.random.default_rng(0).standard_normal((1 << 10, 1 << 10), np.float32))
    prepared = prepare(b.build(b.reduce_sum((x @ table) @ x, [0, 1])), backend)
    held = backend.store(np.ones((1 << 10, 1 << 10), np.float32))
    pool, gpu.room = open_gpu().pool, 11 << 20
    before = pool.held.copy()
    with pytest.raises(ResourceExceeded, match=r"no room for .* of intermediate results"):
        prepared.execute([held])
    gc.collect()
    assert +pool.held == +before


def test_memory_in_use_and_its_peak(gpu: Machine, backend: MachineBackend) -> None:
    array = np.ones(1 << 20, np.float32)
    held = backend.store(array)
    before = weft.gpu_memory(reset_peak=True)
    assert before.in_use["tensors"] >= held.nbytes
    assert before.free < before.whole == gpu.room
    more = [backend.store(array) for _ in range(2)]
    more.pop()
    after = weft.gpu_memory()
    assert after.peak - sum(before.in_use.values()) >= 2 * array.nbytes
    assert after.kept - before.kept >= array.nbytes
    assert sum(after.in_use.values()) < after.peak
    assert weft.gpu_memory(reset_peak=True).peak == after.peak
    assert weft.gpu_memory().peak < after.peak


def test_a_full_device_says_who_holds_what(gpu: Machine, backend: MachineBackend) -> None:
    gpu.room = 10 << 20
    held = backend.store(np.ones(1 << 20, np.float32))
    message = (
        r"Interpreter has no room for 8.4 MB of tensors: .* of 10.5 MB are free, and Weft holds "
        r"4.2 MB of tensors; drop tensors"
    )
    with pytest.raises(ResourceExceeded, match=message):
        backend.store(np.ones(1 << 21, np.float32))
    del held
    assert backend.store(np.ones(1 << 21, np.float32)).nbytes == 1 << 23
