"""Dynamic dims: bound by the inputs, derived where an instruction makes them, and checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft.foundation.errors import SpecViolation
from weft.ptir import BodyBuilder, Builder, Program, Value, tensor, verify
from weft.ptir.specialise import bind_shapes, is_static, specialise

Array = np.ndarray[Any, Any]


def floats(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def test_symbols_take_their_sizes_from_the_inputs() -> None:
    kinds = [tensor("f32", ["?B", 3]), tensor("si32", ["?B", "?N"])]
    assert bind_shapes(kinds, [(2, 3), (2, 5)]) == {"B": 2, "N": 5}


@pytest.mark.parametrize(
    ("shapes", "sentence"),
    [
        (
            [(2, 3), (4, 5)],
            "DynamicDimensionMismatch: axis 0 of input 1 has size 4, not ?B = 2",
        ),
        ([(2, 4), (2, 5)], "DynamicDimensionMismatch: axis 1 of input 0 has size 4, not 3"),
        ([(2,), (2, 5)], "RankMismatch: input 0 has rank 1, not 2 as in f32[?B, 3]"),
    ],
)
def test_inputs_that_do_not_agree_are_rejected(
    shapes: list[tuple[int, ...]], sentence: str
) -> None:
    kinds = [tensor("f32", ["?B", 3]), tensor("si32", ["?B", "?N"])]
    with pytest.raises(SpecViolation) as caught:
        bind_shapes(kinds, shapes)
    assert str(caught.value) == sentence


def test_a_static_program_stays_as_it_is() -> None:
    b = Builder()
    program = b.build(b.exp(b.param("f32", [2])))
    assert is_static(program)
    assert specialise(program, {}) is program


def derived() -> Program:
    """concat, pad, tile, reshape and a window of a dynamic dim."""
    b = Builder()
    x = b.param("f32", ["?B", 2])
    joined = b.concat([x, x], 0)
    padded = b.pad(joined, low=[1, 0], high=[0, 0], interior=[1, 0], pad_value=0.0)
    tiled = b.tile(padded, repeats=[3, 1])
    flat = b.reshape(tiled, [-1])
    window = b.reduce_window(
        flat, window_dims=[2], strides=[2], padding=[(0, 1)], base_dilation=[1],
        window_dilation=[1], reduce="sum",
    )  # fmt: skip
    return b.build(joined, padded, tiled, flat, window)


def derived_by_numpy(x: Array) -> list[Array]:
    joined = np.concatenate([x, x])
    padded = np.zeros((2 * len(joined), 2) if len(joined) else (1, 2), np.float32)
    padded[1::2] = joined
    tiled = np.concatenate([padded] * 3)
    flat = tiled.reshape(-1)
    ends = np.append(flat, np.zeros((2 - (len(flat) + 1) % 2) % 2 + 1, np.float32))
    window = ends[: (len(flat) + 1) // 2 * 2].reshape(-1, 2).sum(axis=1)
    return [joined, padded, tiled, flat, window]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_derived_dims_are_bound_where_they_are_made(size: int) -> None:
    program = derived()
    verify(program)
    x = floats(size, 2)
    for out, expected in zip(weft.run(program, [x]), derived_by_numpy(x), strict=True):
        np.testing.assert_array_equal(out, expected)


def test_a_specialised_program_is_static_and_valid() -> None:
    program = specialise(derived(), {"B": 4})
    assert is_static(program)
    assert verify(program, collect=True) == []
    assert program.main.results[0] == tensor("f32", [8, 2])


def test_a_declared_dim_that_does_not_come_out_is_rejected() -> None:
    b = Builder()
    x = b.param("f32", ["?B"])
    y = b.emit("concat", x, x, axis=0, output=tensor("f32", ["?N"]))
    z = b.emit("concat", y, x, axis=0, output=tensor("f32", ["?N"]))
    program = b.build(z)
    verify(program)
    with pytest.raises(SpecViolation) as caught:
        weft.run(program, [floats(3)])
    assert caught.value.code == "DynamicDimensionMismatch"
    assert caught.value.why == "axis 0 of the result has size 9, not ?N = 6"
    assert caught.value.where.startswith(
        "%2 = concat(%1, %0) in function @main (test_specialise.py"
    )
    assert weft.run(program, [floats(0)])[0].shape == (0,)


def test_what_only_sizes_can_tell_is_checked_when_they_are_known() -> None:
    b = Builder()
    x = b.param("f32", ["?B"])
    program = b.build(b.slice(x, [2], [3]))
    verify(program)
    np.testing.assert_array_equal(weft.run(program, [floats(5)])[0], floats(5)[2:])
    with pytest.raises(SpecViolation) as caught:
        weft.run(program, [floats(4)])
    assert caught.value.why == "slice of f32[4] on axis 0: start 2 + size 3 is more than 4"


def total(b: BodyBuilder, carry: Value, row: Value) -> tuple[Value, Value]:
    return carry + row, b.concat([row, row], 0)


@pytest.mark.parametrize(("steps", "width"), [(0, 2), (3, 2), (2, 0), (4, 5)])
def test_regions_with_dynamic_dims(steps: int, width: int) -> None:
    b = Builder()
    start, rows = b.param("f32", ["?W"]), b.param("f32", ["?T", "?W"])
    carry, doubled = b.scan(total, [start], [rows])
    program = b.build(carry, doubled)
    verify(program)
    begin, data = floats(width), floats(steps, width)
    out, stacked = weft.run(program, [begin, data])
    expected = begin.copy()
    for row in data:
        expected = expected + row
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(stacked, np.concatenate([data, data], axis=1))


def test_one_region_with_different_sizes_becomes_two_with_one_random_stream() -> None:
    def program(batch: int | str, twice: int | str) -> Program:
        def doubled(b: BodyBuilder, y: Value) -> Value:
            return b.emit("concat", y, y, axis=0, output=tensor("f32", [twice]))

        def noise(b: BodyBuilder, x: Value, y: Value) -> Value:
            doubled(b, y)
            return b.add(x, b.rng_uniform(shape=[2], dtype="f32"))

        b = Builder()
        flag, x, y = b.param("i1"), b.param("f32", [2]), b.param("f32", [batch])
        first = b.cond(flag, noise, noise, x, y)
        doubled(b, y)
        op = b.build(first).main.body[0].op
        again = b.append(op, [flag, x, y])
        return b.build(first, again)

    dynamic, static = program("?B", "?S"), program(3, 6)
    made = specialise(dynamic, {"B": 3})
    assert len(made.regions) > len(dynamic.regions)
    inputs = [np.True_, floats(2), floats(3)]
    for left, right in zip(weft.run(dynamic, inputs), weft.run(static, inputs), strict=True):
        np.testing.assert_array_equal(left, right)


def test_sizes_that_a_region_does_not_mention_make_no_copy_of_it() -> None:
    b = Builder()
    flag, x, y = b.param("i1"), b.param("f32", [2]), b.param("f32", ["?B"])
    first = b.cond(flag, lambda r, a: r.neg(a), lambda r, a: r.exp(a), x)
    b.concat([y, y], 0)
    program = b.build(first, b.append(b.build(first).main.body[0].op, [flag, x]))
    assert len(specialise(program, {"B": 3}).regions) == 2


def test_lines_are_kept() -> None:
    program = derived()
    made = specialise(program, {"B": 2})
    assert made.locations == program.locations


def test_symbols_in_attributes() -> None:
    b = Builder()
    x = b.param("f32", ["?B"])
    counts = b.iota("si32", ["?B", 2], 0)
    spread = b.broadcast_to(b.reshape(x, ["?B", 1]), ["?B", 2])
    program = b.build(counts, spread)
    verify(program)
    data = floats(3)
    out, wide = weft.run(program, [data])
    np.testing.assert_array_equal(out, [[0, 0], [1, 1], [2, 2]])
    np.testing.assert_array_equal(wide, np.stack([data, data], axis=1))
    assert program.main.results == (tensor("si32", ["?B", 2]), tensor("f32", ["?B", 2]))
