"""Branches and loops as steps of the native executor: what runs where, what is copied, what
stops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.turning_programs import scan_around_all
from weft.driver.compile import Executable
from weft.foundation.dtypes import FP8_E4M3
from weft.foundation.errors import ExecutionError, SpecViolation
from weft.ptir import Builder, Program
from weft.ptir.builder import BodyBuilder, Value
from weft.runtime.artifact import CopyBuffer, HostCall, Launch, Step

Array = NDArray[Any]


def compiled(program: Program) -> Executable:
    return weft.compile(program, "cpu")


def steps(executable: Executable) -> tuple[Step, ...]:
    (cluster,) = executable.clusters.values()
    return cluster.built.artifact.steps


def check(program: Program, inputs: Sequence[Array], seed: int = 0) -> Executable:
    """Runs on the cpu as on the reference, with one thread and with two."""
    executable = compiled(program)
    want = weft.run(program, inputs, backend="reference", seed=seed)
    for threads in (1, 2):
        found = executable.run(inputs, seed=seed, threads=threads)
        for a, b in zip(found, want, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return executable


def counted(b: Builder, turns: int, step: Any, *carries: Value) -> Value:
    """A loop of so many turns around `step`."""
    zero = b.constant(0, "si32")

    def cond(r: BodyBuilder, n: Value, *rest: Value) -> list[Value]:
        return [n < turns, n, *rest]

    def body(r: BodyBuilder, n: Value, *rest: Value) -> list[Value]:
        return [n + 1, *step(r, n, *rest)]

    return b.while_(cond, body, zero, *carries)


def test_a_cache_that_a_loop_carries_is_updated_in_place() -> None:
    b = Builder()
    cache, row = b.param("f32", [64, 16]), b.param("f32", [1, 16])

    def step(r: BodyBuilder, n: Value, cache: Value, row: Value) -> list[Value]:
        start = r.concat([r.reshape(n, [1]), r.constant([0], "si32")], 0)
        new = row + r.broadcast_to(r.reshape(r.cast(n, "f32"), [1, 1]), [1, 16])
        return [r.dynamic_update_slice(cache, new, start, sizes=[1, 16]), row]

    _, filled, _ = counted(b, 5, step, cache, row)
    program = b.build(filled)
    inputs = [np.ones((64, 16), np.float32), np.arange(16, dtype=np.float32).reshape(1, 16)]
    executable = check(program, inputs)
    copies = [s for s in steps(executable) if isinstance(s, CopyBuffer)]
    # The input is not given away, so it is copied once; no turn copies the cache again.
    assert [c.bytes for c in copies].count(64 * 16 * 4) == 1


def test_carries_change_places() -> None:
    b = Builder()
    x, y, z = (b.param("f32", [7]) for _ in range(3))
    loop = counted(b, 4, lambda r, n, p, q, s: [q, s, p], x, y, z)
    rng = np.random.default_rng(0)
    check(b.build(loop), [rng.standard_normal(7).astype(np.float32) for _ in range(3)])


def test_a_carry_that_is_also_passed_on_is_not_overwritten_early() -> None:
    """The first carry is replaced by a function of itself, and its old value is the second."""
    b = Builder()
    x, y = b.param("f32", [5]), b.param("f32", [5])
    loop = counted(b, 3, lambda r, n, p, q: [p * 2.0 + q, p], x, y)
    check(b.build(loop), [np.arange(5, dtype=np.float32), np.ones(5, np.float32)])


def test_results_that_nobody_reads_are_carried_all_the_same() -> None:
    b = Builder()
    x, y = b.param("f32", [3]), b.param("f32", [3])
    _, _, last = counted(b, 6, lambda r, n, p, q: [p + 1.0, q + p], x, y)
    check(b.build(last), [np.zeros(3, np.float32), np.zeros(3, np.float32)])


def test_the_predicate_may_be_a_carry() -> None:
    b = Builder()
    go, n = b.param("i1", []), b.param("si32", [])
    loop = b.while_(lambda r, g, k: [g, g, k], lambda r, g, k: [k < 3, k + 1], go, n)
    for start in (True, False):
        check(b.build(loop), [np.array(start), np.array(0, np.int32)])


def test_branches_have_one_frame() -> None:
    b = Builder()
    pred, x = b.param("i1", []), b.param("f32", [40, 30])

    def wide(r: BodyBuilder, v: Value) -> Value:
        return r.reduce_sum(r.exp(v @ r.transpose(v, [1, 0])), [1])

    def plain(r: BodyBuilder, v: Value) -> Value:
        return r.reduce_max(v, [1])

    program = b.build(b.cond(pred, wide, plain, x))
    rng = np.random.default_rng(1)
    data = (rng.standard_normal((40, 30)) / 10).astype(np.float32)
    for chosen in (True, False):
        check(program, [np.array(chosen), data])


def test_loops_nest() -> None:
    rng = np.random.default_rng(2)
    check(scan_around_all(), [rng.standard_normal((3, 4, 5)).astype(np.float32)])


def test_random_numbers_differ_from_turn_to_turn_and_are_those_of_the_reference() -> None:
    b = Builder()
    x = b.param("f32", [4])

    def step(r: BodyBuilder, n: Value, v: Value) -> list[Value]:
        return [v + r.rng_uniform(shape=[4], dtype="f32")]

    _, total = counted(b, 3, step, x)
    program = b.build(total, b.rng_uniform(shape=[4], dtype="f32"))
    check(program, [np.zeros(4, np.float32)], seed=7)


def test_equal_loops_with_random_numbers_are_two_loops() -> None:
    b = Builder()
    x = b.param("f32", [4])
    draw = b.region([x.type], lambda r, v: v + r.rng_uniform(shape=[4], dtype="f32"))
    pred = b.constant(True, "i1")
    twice = [b.emit("cond", pred, x, true_region=draw, false_region=draw) for _ in range(2)]
    program = b.build(*twice)
    check(program, [np.zeros(4, np.float32)], seed=3)
    first, second = compiled(program).run([np.zeros(4, np.float32)], seed=3)
    assert not np.array_equal(first, second)


def test_a_violation_stops_a_loop_that_would_never_end() -> None:
    """The divisor becomes 0, and with it nothing changes any more."""
    b = Builder()
    n = b.param("si32", [])

    def body(r: BodyBuilder, v: Value) -> Value:
        return v / (v - v)

    program = b.build(b.while_(lambda r, v: [v > 0, v], body, n))
    with pytest.raises(SpecViolation) as caught:
        compiled(program).run([np.array(5, np.int32)])
    assert caught.value.code == "IntegerDivideByZero"
    assert "= div(%0, %1) in region ^1" in caught.value.where


def test_a_loop_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_MAX_LOOP_STEPS", "1000")
    b = Builder()
    n = b.param("si32", [])
    program = b.build(b.while_(lambda r, v: [v > 0, v], lambda r, v: r.stop_gradient(v), n))
    told = r"^%1 = while\(%0\) in function @main .*ran 1,000 region calls without ending"
    with pytest.raises(ExecutionError, match=told):
        compiled(program).run([np.array(5, np.int32)])


def test_the_host_may_be_called_from_a_loop() -> None:
    b = Builder()
    x = b.param("f64", [3, 3])

    def step(r: BodyBuilder, n: Value, v: Value) -> list[Value]:
        low = r.cholesky(v)
        return [low @ r.transpose(low, [1, 0]) + v]

    _, last = counted(b, 3, step, x)
    executable = check(b.build(last), [np.eye(3) * 2 + 0.25])
    assert any(isinstance(step, HostCall) for step in steps(executable))
    assert "runs on the host: cholesky" in "\n".join(executable.report())


def test_complex_and_narrow_values_are_carried() -> None:
    b = Builder()
    z, q = b.param("cf32", [3]), b.param("fp8_e4m3", [5])
    loop = counted(b, 3, lambda r, n, a, c: [a * a + a, c + c], z, q)
    program = b.build(loop)
    inputs = [np.array([1 + 1j, 0.5, -1j], np.complex64), np.ones(5).astype(FP8_E4M3.numpy)]
    want = weft.run(program, inputs, backend="reference")
    found = weft.run(program, inputs, backend="cpu")
    for a, c in zip(found, want, strict=True):
        np.testing.assert_allclose(a.astype(np.complex128), c.astype(np.complex128), rtol=1e-5)


def test_equal_kernels_of_different_bodies_are_one() -> None:
    b = Builder()
    pred, x = b.param("i1", []), b.param("f32", [64])
    branch = b.cond(pred, lambda r, v: r.exp(v), lambda r, v: r.exp(v) + 1.0, x)
    executable = check(
        b.build(branch, b.exp(x)), [np.array(True), np.linspace(-1, 1, 64, dtype=np.float32)]
    )
    (cluster,) = executable.clusters.values()
    launches = [s.kernel for s in steps(executable) if isinstance(s, Launch)]
    assert len(launches) == 3
    assert len(set(launches)) == len(cluster.built.artifact.kernels) == 2


def test_a_profile_counts_every_turn() -> None:
    b = Builder()
    _, last = counted(b, 5, lambda r, n, v: [v * 1.5], b.param("f32", [8]))
    executable = compiled(b.build(last))
    profile = executable.profile([np.ones(8, np.float32)])
    assert len(profile) == len(steps(executable))
    assert all(seconds > 0 for _, seconds in profile)
