"""The reference interpreter: control flow, tuples, lifetimes, random numbers, limits."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.one_op import apply
from weft.foundation.dtypes import F32
from weft.foundation.errors import ExecutionError, ResourceExceeded, SpecViolation, Unimplemented
from weft.ptir import BodyBuilder, Builder, Program, TupleType, Value, tensor, verify
from weft.ptir.op import EvalContext
from weft.ptir.ops.elementwise import ElementwiseUnary
from weft.ptir.ops.random import RngNormal, RngUniform

Array = np.ndarray[Any, Any]


def run(program: Program, *inputs: Any, seed: int = 0) -> list[Array]:
    verify(program)
    return weft.run(program, list(inputs), seed=seed)


def i32(value: int) -> Array:
    return np.asarray(value, np.int32)


# -- cond ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", [True, False])
def test_cond_runs_one_branch(flag: bool) -> None:
    b = Builder()
    pred, x = b.param("i1"), b.param("si32")
    one = b.literal(1, "si32")
    # The branch not taken would divide by zero.
    out = b.cond(pred, lambda r, v: r.div(v, r.sub(v, v)), lambda r, v: r.add(v, one), x)
    program = b.build(out)
    if flag:
        with pytest.raises(SpecViolation, match="IntegerDivideByZero at %2 = div"):
            run(program, flag, i32(4))
    else:
        assert run(program, flag, i32(4))[0] == 5


def test_cond_with_several_results_is_a_tuple() -> None:
    b = Builder()
    x, y = b.param("si32"), b.param("si32")
    low, high = b.cond(
        b.compare(x, y, "less"), lambda r, p, q: (p, q), lambda r, p, q: (q, p), x, y
    )
    program = b.build(low, high)
    assert [int(v) for v in run(program, i32(7), i32(3))] == [3, 7]
    assert [int(v) for v in run(program, i32(3), i32(7))] == [3, 7]


def test_cond_without_arguments() -> None:
    b = Builder()
    pred = b.param("i1")
    out = b.cond(pred, lambda r: r.literal(1.0), lambda r: r.literal(2.0))
    program = b.build(out)
    assert [float(run(program, flag)[0]) for flag in (True, False)] == [1.0, 2.0]


# -- while ---------------------------------------------------------------------------------------


def collatz() -> Program:
    """How many steps a number takes to reach 1: a cond inside a while."""
    b = Builder()
    start = b.param("si64")

    def going(r: BodyBuilder, n: Value, steps: Value) -> tuple[Value, ...]:
        return r.compare(n, r.literal(1), "greater"), n, steps

    def step(r: BodyBuilder, n: Value, steps: Value) -> tuple[Value, ...]:
        half = r.div(n, r.literal(2))
        even = r.compare(r.mul(half, r.literal(2)), n, "equal")
        after = r.cond(even, lambda s, v: s.div(v, s.literal(2)), lambda s, v: v * 3 + 1, n)
        return after, steps + 1

    _, steps = b.while_(going, step, start, b.literal(0))
    return b.build(steps)


@pytest.mark.parametrize("start", [1, 2, 7, 27])
def test_while_with_a_cond_inside(start: int) -> None:
    n, expected = start, 0
    while n > 1:
        n, expected = (n // 2 if n % 2 == 0 else 3 * n + 1), expected + 1
    assert run(collatz(), np.int64(start))[0] == expected


def test_the_body_receives_what_cond_returned_and_the_result_is_conds_last() -> None:
    b = Builder()
    x = b.param("si32")
    ten, one = b.literal(10, "si32"), b.literal(1, "si32")

    def cond(r: BodyBuilder, v: Value) -> tuple[Value, ...]:
        doubled = r.add(v, v)
        return r.compare(doubled, ten, "less"), doubled

    out = b.while_(cond, lambda r, v: r.add(v, one), x)
    program = b.build(out)
    # 1 -> 2 -> 3 -> 6 -> 7 -> 14
    assert run(program, i32(1))[0] == 14
    # Zero trips still double.
    assert run(program, i32(50))[0] == 100


def test_a_loop_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder()
    x = b.param("si32")
    out = b.while_(lambda r, v: (r.constant(True), v), lambda r, v: v, x)
    program = b.build(out)
    monkeypatch.setenv("WEFT_MAX_LOOP_STEPS", "100")
    with pytest.raises(ExecutionError) as caught:
        run(program, i32(0))
    message = str(caught.value)
    assert message.startswith("%1 = while(%0) in function @main (test_interp.py:")
    assert message.endswith(
        "ran 100 region calls without ending; raise WEFT_MAX_LOOP_STEPS if this is meant"
    )


# -- scan ----------------------------------------------------------------------------------------


def running_sums() -> Program:
    b = Builder()
    start, rows = b.param("f32", [2]), b.param("f32", ["?T", 2])

    def step(r: BodyBuilder, total: Value, row: Value) -> tuple[Value, ...]:
        after = r.add(total, row)
        return after, after, r.mul(row, row)

    return b.build(*b.scan(step, [start], [rows]))


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_scan_stacks_its_outputs(steps: int) -> None:
    rows = np.arange(2 * steps, dtype=np.float32).reshape(steps, 2)
    start = np.array([10, 20], np.float32)
    last, sums, squares = run(running_sums(), start, rows)
    expected = start + np.cumsum(rows, axis=0)
    np.testing.assert_array_equal(last, expected[-1] if steps else start)
    np.testing.assert_array_equal(sums, expected)
    np.testing.assert_array_equal(squares, rows * rows)


def test_scan_without_carries_maps() -> None:
    b = Builder()
    rows = b.param("si32", [3, 2])
    program = b.build(b.scan(lambda r, row: r.neg(row), [], [rows]))
    data = np.arange(6, dtype=np.int32).reshape(3, 2)
    np.testing.assert_array_equal(run(program, data)[0], -data)


def test_scan_inside_scan() -> None:
    b = Builder()
    table = b.param("si32", [3, 4])
    zero = b.literal(0, "si32")

    def outer(r: BodyBuilder, total: Value, row: Value) -> tuple[Value, ...]:
        inner = r.scan(lambda s, acc, x: (s.add(acc, x), acc), [total], [row])
        return inner[0], inner[1]

    last, before = b.scan(outer, [zero], [table])
    program = b.build(last, before)
    data = np.arange(12, dtype=np.int32).reshape(3, 4)
    total, exclusive = run(program, data)
    assert total == data.sum()
    np.testing.assert_array_equal(exclusive.reshape(-1), np.cumsum(data) - data.reshape(-1))


def test_a_hundred_regions_deep() -> None:
    def nest(r: BodyBuilder, x: Value, depth: int) -> Value:
        if depth == 0:
            return r.add(x, r.literal(1, "si32"))
        flag = r.constant(True)
        return r.cond(flag, lambda s, v: nest(s, v, depth - 1), lambda s, v: v, x)

    b = Builder()
    program = b.build(nest(b, b.param("si32"), 100))
    assert run(program, i32(1))[0] == 2


# -- values --------------------------------------------------------------------------------------


def test_tuple_parameters_are_flattened_in_order() -> None:
    b = Builder()
    inner = TupleType((tensor("si32"), tensor("si32", [2])))
    nested = b.param_of(TupleType((inner, tensor("f32"))))
    last = b.param("si32")
    program = b.build(nested, nested[1], last)
    given = [i32(1), np.array([2, 3], np.int32), np.float32(4), i32(5)]
    out = run(program, *given)
    assert [v.tolist() for v in out] == [1, [2, 3], 4.0, 4.0, 5]


def test_results_are_the_callers_own() -> None:
    b = Builder()
    x = b.param("f32", [2, 2])
    constant = b.constant([1.0, 2.0])
    program = b.build(x, x, b.transpose(x, [1, 0]), constant, b.broadcast_to(constant, [2, 2]))
    data = np.arange(4, dtype=np.float32).reshape(2, 2)
    out = run(program, data)
    for i, left in enumerate(out):
        assert left.flags.writeable
        assert left.flags.c_contiguous
        assert not np.shares_memory(left, data)
        for right in out[i + 1 :]:
            assert not np.shares_memory(left, right)
    out[3][:] = 7
    np.testing.assert_array_equal(run(program, data)[3], [1, 2])


def test_inputs_are_never_changed() -> None:
    b = Builder()
    x, start = b.param("f32", [3]), b.param("si32", [1])
    program = b.build(b.dynamic_update_slice(x, b.literal([9.0]), start, sizes=[1]), x + 1.0)
    data = np.arange(3, dtype=np.float32)
    data.flags.writeable = False
    run(program, data, np.array([1], np.int32))
    np.testing.assert_array_equal(data, [0, 1, 2])


def test_a_value_is_dropped_after_its_last_use(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder()
    x = b.param("f32", [1000])
    y = x
    for _ in range(50):
        y = b.exp(y)
    program = b.build(y)
    alive: list[weakref.ref[Array]] = []
    most = 0
    evaluate = ElementwiseUnary.evaluate

    def counted(op: ElementwiseUnary, context: EvalContext, *args: Array) -> Array:
        nonlocal most
        made = evaluate(op, context, *args)
        alive.append(weakref.ref(made))
        most = max(most, sum(ref() is not None for ref in alive))
        return made

    monkeypatch.setattr(ElementwiseUnary, "evaluate", counted)
    run(program, np.zeros(1000, np.float32))
    assert len(alive) == 50
    assert most <= 3


# -- random numbers ------------------------------------------------------------------------------


def test_a_random_op_in_a_loop_draws_fresh_numbers() -> None:
    b = Builder()
    rows = b.param("f32", [3, 1])
    program = b.build(b.scan(lambda r, row: r.rng_uniform(shape=[4], dtype="f32"), [], [rows]))
    out = run(program, np.zeros((3, 1), np.float32), seed=5)[0]
    for step in range(3):
        expected = apply(RngUniform((4,), F32, stream=0), seed=5, execution=step)
        np.testing.assert_array_equal(out[step], expected)
    assert len({row.tobytes() for row in out}) == 3


def test_every_random_op_has_a_stream_of_its_own() -> None:
    b = Builder()
    program = b.build(
        b.rng_uniform(shape=[4], dtype="f32"),
        b.rng_normal(shape=[4], dtype="f32"),
        b.rng_uniform(shape=[4], dtype="f32"),
    )
    out = run(program, seed=9)
    ops = [
        RngUniform((4,), F32, stream=0),
        RngNormal((4,), F32, stream=1),
        RngUniform((4,), F32, stream=2),
    ]
    for got, op in zip(out, ops, strict=True):
        np.testing.assert_array_equal(got, apply(op, seed=9))
    assert out[0].tobytes() != out[2].tobytes()


def test_the_seed_decides_and_every_run_starts_again() -> None:
    b = Builder()
    program = b.build(b.rng_normal(shape=[8], dtype="f64"))
    first, again, other = (run(program, seed=s)[0].tobytes() for s in (1, 1, 2))
    assert first == again != other


# -- limits and what is not there ----------------------------------------------------------------


def test_a_tensor_over_the_limit_is_refused_before_it_is_made() -> None:
    b = Builder()
    program = b.build(b.reduce_sum(b.full([2**20, 2**20], 1.0, "f32"), [0, 1]))
    with pytest.raises(ResourceExceeded) as caught:
        run(program)
    assert "would need 4,398,046,511,104 bytes, over the limit of 17,179,869,184" in str(
        caught.value
    )
    assert "raise WEFT_MAX_TENSOR_BYTES if this is meant" in str(caught.value)


def test_an_unknown_custom_call_is_unimplemented() -> None:
    b = Builder()
    x = b.param("f32", [2])
    program = b.build(b.custom_call("other.kernel.v1", x, output=x.type))
    with pytest.raises(Unimplemented, match=r"^Unimplemented custom call '?other\.kernel\.v1"):
        run(program, np.zeros(2, np.float32))


def test_a_violation_of_the_data_names_the_instruction_and_the_line() -> None:
    b = Builder()
    table, index = b.param("f32", [3, 2]), b.param("si64", [2])
    program = b.build(b.take(table, index))
    with pytest.raises(SpecViolation) as caught:
        run(program, np.zeros((3, 2), np.float32), np.array([0, 3]))
    assert caught.value.code == "GatherIndexOutOfBounds"
    assert caught.value.where.startswith("%2 = take(%0, %1) in function @main (test_interp.py:")


def test_the_observer_sees_every_instruction_that_ran() -> None:
    seen: list[tuple[str, str]] = []

    def observe(body: Any, instruction: Any, seconds: float) -> None:
        assert seconds >= 0
        seen.append((body.label, instruction.op.mnemonic))

    weft.run(collatz(), [np.int64(2)], observer=observe)
    labels = {label for label, _ in seen}
    assert ("region ^0", "compare") in seen
    assert labels == {"function @main", "region ^0", "region ^1", "region ^2"}
