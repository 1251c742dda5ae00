"""Compiled modules through the native executor: threads, concurrency, forks, caches, host calls."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support import kernels
from tests.support.native_kernels import plans_for
from weft.driver.artifact.assembler import Unit, build_artifact
from weft.driver.code.cpu_kernels import (
    compile_sources,
    kernel_codes,
    lower_module,
    natives,
    print_llvm,
)
from weft.driver.compile import compile_program
from weft.foundation.dtypes import F32, SI32
from weft.foundation.errors import SpecViolation, UserError
from weft.foundation.index_expr import axis
from weft.memory.from_region import assign_buffers
from weft.plan.ir import PlanSet
from weft.ptir import Builder
from weft.region.interp import run_module
from weft.region.ir import Kernel, KernelAxis, Module, OpaqueCall, Output, Pattern, Tensor
from weft.runtime import cache
from weft.runtime.artifact import HostFunction
from weft.runtime.executor import Program
from weft.runtime.threads import thread_count
from weft.runtime.timeline import Lap, Recorder
from weft.target.known import target_named

Array = NDArray[Any]


def double(op: object, arrays: Sequence[Array], seed: int = 0) -> list[Array]:
    """Stands for an op that only the host can carry out."""
    return [arrays[0] * 2]


def in_words(op: object, shapes: object, pairs: object) -> str:
    return str(op)


def host(call: str) -> HostFunction:
    """Understands one call."""
    assert call == "double"
    return lambda arrays, seed: double(call, arrays, seed)


def plan_set(module: Module) -> PlanSet:
    native = [kernel for kernel in module.kernels if kernel.opaque is None]
    return PlanSet({k.name: k.name for k in native}, {k.name: plans_for(k)[0] for k in native})


def link(module: Module) -> Program:
    plans = plan_set(module)
    buffer_map = assign_buffers(module)
    code = lower_module(module, buffer_map, plans)
    objects = compile_sources(print_llvm(code), target_named("cpu")).objects
    codes = kernel_codes(code, module, objects, target_named("cpu"))
    unit = Unit(module, buffer_map, natives(code, module), codes, {})
    return Program(build_artifact(unit, "cpu", in_words), host=host)


def inputs_of(module: Module, seed: int = 0) -> list[Array]:
    arrays = kernels.arrays_for(module, seed)
    return [arrays[name] for name in module.inputs]


class Owner:
    """Somebody who holds inputs."""


def test_inputs_of_a_holder_are_not_looked_at_again() -> None:
    module = kernels.mlp(3, 4, 5)
    program, first, other = link(module), inputs_of(module), inputs_of(module, 1)
    owner, data = Owner(), [0]
    want = [
        program.run([other[0], *first[1:]])[0].tobytes(),
        program.run(other)[0].tobytes(),
    ]
    program.run(first, holder=owner, data=data)
    mixed = program.run([other[0], *[np.zeros_like(a) for a in first[1:]]], holder=owner, data=data)
    assert mixed[0].tobytes() == want[0], "what the holder has is where it was"
    assert program.run(other, holder=Owner(), data=data)[0].tobytes() == want[1]
    assert program.run(other)[0].tobytes() == want[1]


def test_of_many_inputs_those_are_asked_for_that_moved() -> None:
    b = Builder()
    params = [b.param("f32", [3]) for _ in range(20)]
    total = params[0]
    for param in params[1:]:
        total = total * 2.0 + param
    executable = compile_program(b.build(total), "cpu")
    program = executable._latest.built.program
    rng, inputs = np.random.default_rng(0), []
    for turn in range(12):
        if turn in (0, 5):
            inputs = [rng.standard_normal(3).astype(np.float32) for _ in params]
        inputs[turn % 20] = rng.standard_normal(3).astype(np.float32)
        want = inputs[0]
        for array in inputs[1:]:
            want = want * np.float32(2.0) + array
        owner = Owner() if turn % 4 == 3 else None
        np.testing.assert_allclose(program.run(inputs, holder=owner, data=[0])[0], want, rtol=1e-5)


def test_a_program_of_several_kernels_agrees_with_playback() -> None:
    module = kernels.mlp(37, 19, 45)
    want = run_module(module, kernels.arrays_for(module))[module.outputs[0]]
    (got,) = link(module).run(inputs_of(module))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_the_number_of_threads_does_not_change_a_bit() -> None:
    module = kernels.softmax(403, 37)
    program = link(module)
    inputs = inputs_of(module)
    first = program.run(inputs, threads=1)[0].tobytes()
    for threads in (2, 3, 7, 2, 1):
        assert program.run(inputs, threads=threads)[0].tobytes() == first


def test_the_timeline_tells_which_thread_ran_what() -> None:
    """Handfuls of pieces right after one another are one lap."""
    recorder = Recorder()
    recorder.add("one", 1.0, 2.0, 7)
    recorder.add("one", 2.00001, 3.0, 7)
    recorder.add("one", 1.5, 2.5, 8)
    recorder.add("two", 4.0, 5.0, 7)
    recorder.started = 1.0
    assert recorder.laps() == [
        Lap("one", 0.0, 2.0, "thread 1"),
        Lap("one", 0.5, 1.0, "thread 2"),
        Lap("two", 3.0, 1.0, "thread 1"),
    ]


def test_concurrent_runs_do_not_disturb_each_other() -> None:
    module = kernels.mlp(64, 32, 48)
    program = link(module)
    data = [inputs_of(module, seed) for seed in range(4)]
    want = [program.run(inputs)[0].tobytes() for inputs in data]
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(50):
            if program.run(data[number])[0].tobytes() != want[number]:
                wrong.append(number)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def test_a_forked_child_has_threads_of_its_own() -> None:
    module = kernels.softmax(200, 64)
    program = link(module)
    inputs = inputs_of(module)
    want = program.run(inputs, threads=2)[0].tobytes()
    child = os.fork()
    if child == 0:
        same = program.run(inputs, threads=2)[0].tobytes() == want
        os._exit(0 if same else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_host_call_stands_between_native_segments() -> None:
    first, second = kernels.elementwise(4, 6), kernels.softmax(4, 6)
    before, after = first.kernels[0], second.kernels[0]
    made = first.tensors[first.outputs[0]]
    taken = second.tensors[second.inputs[0]]
    tensors = {**first.tensors, **second.tensors}
    for internal in (*first.outputs, taken.name):
        tensors[internal] = Tensor(internal, F32, tensors[internal].shape)
    call = Kernel(
        "host", Pattern.OPAQUE, (), (), (Output(taken.name, "", ()),),
        opaque=OpaqueCall("double", (made.name,), (0,)),
    )  # fmt: skip
    outputs = second.outputs
    module = Module(tensors, (before, call, after), first.inputs, outputs)
    want = run_module(module, kernels.arrays_for(first), opaque=double)[outputs[0]]
    program = link(module)
    (got,) = program.run(inputs_of(first))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    laps = program.timeline(inputs_of(first))
    assert [(lap.label, lap.lane) for lap in laps] == [
        (before.name, "thread 1"),
        ("host", "host"),
        (after.name, "thread 1"),
    ]
    ends = [lap.start + lap.seconds for lap in laps]
    assert all(end <= lap.start for end, lap in zip(ends, laps[1:], strict=False))
    (same,) = program.run(inputs_of(first))
    np.testing.assert_array_equal(same, got)


def test_a_zero_divisor_is_reported_with_the_kernel() -> None:
    axes = (KernelAxis("i", 10),)
    body = kernels.body_over(axes)
    divisor = body.check(body.plain("y", SI32, "i"), "nonzero", "IntegerDivideByZero", 0, axis("i"))
    value = body.binary("div", body.plain("x", SI32, "i"), divisor)
    kernel = Kernel(
        "quotient",
        Pattern.MAP,
        axes,
        tuple(body.lets),
        (Output("z", value, kernels.identity("i")),),
    )
    module = kernels.module_of(
        kernel,
        tensors=[
            Tensor("x", SI32, (10,), "input"),
            Tensor("y", SI32, (10,), "input"),
            Tensor("z", SI32, (10,), "output"),
        ],
    )
    program = link(module)
    x = np.array([7, -7, -(2**31), 5, 1, 0, 9, -9, 3, 4], np.int32)
    y = np.array([2, 2, -1, -2, 1, 3, -4, 4, 3, 5], np.int32)
    assert program.run([x, y])[0].tolist() == [3, -3, -(2**31), -2, 1, 0, -2, -2, 1, 0]
    y[8] = 0
    with pytest.raises(SpecViolation) as caught:
        program.run([x, y])
    assert str(caught.value) == "IntegerDivideByZero at quotient: the divisor is zero at element 8"
    y[8] = 2
    assert program.run([x, y])[0][8] == 1, "a run after one that failed"


def test_compiled_code_is_kept_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    cache.save("key", b"payload")
    assert cache.load("key") == b"payload"
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    entry = tmp_path / "cache" / "key"
    entry.write_bytes(entry.read_bytes()[:-1] + b"X")
    assert cache.load("key") is None
    entry.write_bytes(b"")
    assert cache.load("key") is None
    monkeypatch.setenv("WEFT_CACHE", "off")
    assert cache.folder() is None
    cache.save("key", b"other")
    assert cache.load("key") is None


def test_equal_kernels_are_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    module = kernels.softmax(5, 9)
    plans = plan_set(module)
    buffer_map = assign_buffers(module)
    for compiled, reused in ((1, 0), (0, 1)):
        code = lower_module(module, buffer_map, plans)
        made = compile_sources(print_llvm(code), target_named("cpu"))
        assert (made.compiled, made.reused) == (compiled, reused)


@pytest.mark.parametrize("text", ["0", "-1", "two", "99999"])
def test_a_wrong_thread_count_is_a_sentence(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_NUM_THREADS", text)
    with pytest.raises(UserError, match="it must be a number from 1 to 4096"):
        thread_count()
