"""Lowering PTIR to Tiny: every op has a row, and the graph means what the program means."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from examples.make_programs import PROGRAMS
from tests.support.example_inputs import inputs_for
from tests.support.lowered import given
from tests.support.one_op import random_array
from weft.foundation.dtypes import F32, SI32, as_dtype
from weft.foundation.errors import SpecViolation, UserError
from weft.ptir import Builder, Program, all_ops
from weft.tiny.from_ptir import ROWS, evaluate_opaque, lower_program, why_whole
from weft.tiny.interp import run
from weft.tiny.ir import (
    Const,
    DynamicUpdate,
    Gather,
    Graph,
    Input,
    Opaque,
    Pad,
    Reduce,
    Shrink,
    Value,
    View,
    Where,
)
from weft.tiny.verify import verify

Array = NDArray[Any]


def test_every_op_has_a_row() -> None:
    ours = [op for op in all_ops() if op.__module__.startswith("weft.ptir.ops.")]
    assert len(ours) > 90
    missing = [op.name for op in ours if op not in ROWS]
    assert not missing, f"no row in weft.tiny.from_ptir for {missing}"


def test_no_row_is_left_over() -> None:
    assert set(ROWS) <= set(all_ops())


def lowered(program: Program) -> Graph:
    graph = lower_program(program)
    verify(graph)
    return graph


def agree(program: Program, inputs: list[Array], exact: bool = True) -> Graph:
    """The graph of a program, after its results were compared with the reference."""
    graph = lowered(program)
    wanted = weft.run(program, inputs, backend="reference")
    found = run(graph, given(graph, inputs), evaluate_opaque)
    for a, b in zip(wanted, found, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if exact:
            assert a.tobytes() == b.tobytes()
        else:
            np.testing.assert_allclose(
                a.astype(np.float64), b.astype(np.float64), rtol=1e-5, atol=1e-5
            )
    return graph


def kinds(graph: Graph) -> set[type]:
    return {type(v) for v in graph.values}


def test_the_example_programs() -> None:
    for name, make in PROGRAMS.items():
        program = make()
        graph = agree(program, inputs_for(program, 3), exact=False)
        assert Opaque not in kinds(graph), name


# -- movements -----------------------------------------------------------------------------------


def test_concat_is_a_choice_and_keeps_negative_zero() -> None:
    b = Builder()
    parts = [b.param("f32", [2, n]) for n in (1, 0, 3)]
    arrays = [np.full((2, n), -0.0, np.float32) for n in (1, 0, 3)]
    graph = agree(b.build(b.concat(parts, axis=-1)), arrays)
    assert kinds(graph) >= {Where, Pad}


def test_a_concat_of_many_is_one_of_groups() -> None:
    b = Builder()
    sizes = [n % 4 for n in range(300)]
    parts = [b.param("f32", [2, n]) for n in sizes]
    arrays = [random_array(F32, (2, n)) for n in sizes]
    graph = agree(b.build(b.concat(parts, axis=1)), arrays)
    chosen = [value.shape[1] for value in graph.values if isinstance(value, Where)]
    assert chosen.count(sum(sizes)) < 32


@pytest.mark.parametrize("interior", [(0, 0), (2, 1), (0, 3)])
@pytest.mark.parametrize("shape", [(2, 3), (1, 4), (0, 2)])
def test_pad(interior: tuple[int, int], shape: tuple[int, int]) -> None:
    b = Builder()
    x = b.param("f32", shape)
    y = b.pad(x, low=[1, 0], high=[0, 2], interior=interior, pad_value=math.nan)
    agree(b.build(y), [random_array(F32, shape)])


@pytest.mark.parametrize("repeats", [(1, 2), (3, 1), (0, 2)])
def test_tile(repeats: tuple[int, int]) -> None:
    b = Builder()
    agree(b.build(b.tile(b.param("f32", [2, 3]), repeats=repeats)), [random_array(F32, (2, 3))])


@pytest.mark.parametrize("start", [[0, 0], [1, 2], [-4, 9]])
def test_dynamic_windows(start: list[int]) -> None:
    b = Builder()
    x, update, at = b.param("f32", [3, 4]), b.param("f32", [2, 4]), b.param("si32", [2])
    taken = b.dynamic_slice(x, at, sizes=[2, 2])
    written = b.dynamic_update_slice(x, update, at, sizes=[2, 4])
    arrays = [random_array(F32, (3, 4)), random_array(F32, (2, 4), 1), np.array(start, np.int32)]
    agree(b.build(taken, written), arrays)


def test_a_start_built_from_constants_is_a_constant() -> None:
    graph = lowered(PROGRAMS["attention"]())
    (update, *_) = (v for v in graph.values if isinstance(v, DynamicUpdate))
    assert update.starts == (Const(0, SI32), Const(0, SI32), Input("in5", SI32, ()), Const(0, SI32))
    b = Builder()
    x = b.param("f32", [3, 4])
    start = b.select(b.iota("si32", [2], 0) < 1, b.full([2], 7, "si32"), b.full([2], 1, "si32"))
    agreed = agree(b.build(b.dynamic_slice(x, start, sizes=[2, 2])), [random_array(F32, (3, 4))])
    ((_, value),) = agreed.outputs
    assert isinstance(value, Shrink)
    assert value.start == (1, 1)


@pytest.mark.parametrize("start", [0, 1, 2])
def test_rows_at_known_places_in_a_row_are_a_window(start: int) -> None:
    b = Builder()
    x = b.param("f32", [4, 3])
    rows = b.take(x, b.iota("si64", [2], 0) + start)
    one = b.take(x, b.full([], start, "si32"))
    graph = agree(b.build(rows, one), [random_array(F32, (4, 3))])
    assert Gather not in kinds(graph)


EQUAL_STEPS = {
    "backwards": [4, 3, 2, 1, 0],
    "some, backwards": [3, 2],
    "every other": [0, 2, 4],
    "every other, backwards": [3, 1],
    "the same again": [2, 2, 2],
}


@pytest.mark.parametrize("name", EQUAL_STEPS)
def test_rows_at_known_places_in_equal_steps_are_a_movement(name: str) -> None:
    numbers = EQUAL_STEPS[name]
    b = Builder()
    x = b.param("f32", [5, 3])
    first, step = numbers[0], numbers[1] - numbers[0]
    counted = b.iota("si32", [len(numbers)], 0) * step + first
    less = b.full([len(numbers)], first, "si64") - b.iota("si64", [len(numbers)], 0) * -step
    rows = [b.take(x, places) for places in (b.constant(numbers, "si64"), counted, less)]
    graph = agree(b.build(*rows), [random_array(F32, (5, 3))])
    assert Gather not in kinds(graph)
    assert not graph.constants


@pytest.mark.parametrize("numbers", [[0, 3, 1], [3, 4, 5], [1, 0, -1]])
def test_rows_at_other_places_are_gathered(numbers: list[int]) -> None:
    b = Builder()
    program = b.build(b.take(b.param("f32", [5, 3]), b.constant(numbers, "si64")))
    assert Gather in kinds(lowered(program))


def test_places_that_wrap_around_are_gathered() -> None:
    """Indices of 8 bits do not count to 300."""
    b = Builder()
    x = b.param("f32", [400, 2])
    program = b.build(b.take(x, b.cast(b.iota("ui8", [3], 0) * 100 + 100, "si64")))
    assert Gather in kinds(agree(program, [random_array(F32, (400, 2))]))


@pytest.mark.parametrize("dtype", ["si64", "ui8", "bf16"])
def test_numbers_that_count_are_read_as_their_places(dtype: str) -> None:
    b = Builder()
    places = b.param("si32", [5])
    table = b.iota(dtype, [7, 2], 0)
    program = b.build(b.take(b.iota(dtype, [9], 0), places), b.take(table, places))
    graph = agree(program, [np.array([6, 0, 3, 3, 1], np.int32)])
    assert Gather not in kinds(graph)
    with pytest.raises(SpecViolation, match=r"outside \[0, 9\)"):
        weft.run(program, [np.array([9, 0, 3, 3, 1], np.int32)], backend="cpu")


def test_a_count_along_another_axis_is_gathered() -> None:
    b = Builder()
    places = b.param("si32", [5])
    program = b.build(b.take(b.iota("si64", [7, 2], 1), places))
    assert Gather in kinds(agree(program, [np.array([6, 0, 3, 3, 1], np.int32)]))


@pytest.mark.parametrize("start", [-1, 3])
def test_a_window_that_does_not_fit_is_rejected(start: int) -> None:
    b = Builder()
    x = b.param("f32", [4, 3])
    program = b.build(b.take(x, b.iota("si64", [2], 0) + start))
    assert Gather in kinds(lowered(program))
    with pytest.raises(SpecViolation, match=r"outside \[0, 4\)"):
        weft.run(program, [random_array(F32, (4, 3))], backend="cpu")


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("stride", [1, 2])
def test_extract_patches(stride: int, dilation: int) -> None:
    b = Builder()
    x = b.param("f32", [2, 6, 5, 3])
    y = b.extract_patches(
        x, window=[3, 2], strides=[stride, 1], dilation=[dilation, 1], padding=[(1, 2), (0, 1)],
        pad_value=0.5,
    )  # fmt: skip
    graph = agree(b.build(y), [random_array(F32, (2, 6, 5, 3))])
    assert View in kinds(graph)


# -- arithmetic ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "fp8_e4m3", "si8", "ui4", "si64"])
def test_dot_general(dtype: str) -> None:
    b = Builder()
    lhs, rhs = b.param(dtype, [3, 2, 4, 5]), b.param(dtype, [5, 3, 4, 6])
    y = b.dot_general(lhs, rhs, batch=([0], [1]), contract=([3, 2], [0, 2]))
    kind = as_dtype(dtype)
    arrays = [random_array(kind, (3, 2, 4, 5), 1, 1.0), random_array(kind, (5, 3, 4, 6), 2, 1.0)]
    graph = lowered(b.build(y))
    (sum_,) = (v for v in graph.values if isinstance(v, Reduce))
    assert sum_.shape == (3, 2, 6)
    if not kind.is_float:
        agree(b.build(y), arrays)


@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("fn", ["sum", "max", "min"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "fp8_e4m3", "si8", "ui64"])
def test_reduce(dtype: str, fn: str, keepdims: bool) -> None:
    for shape in ((2, 3, 4), (2, 0, 4)):
        b = Builder()
        x = b.param(dtype, shape)
        y = b.emit(f"reduce_{fn}", x, axes=[1], keepdims=keepdims)
        agree(b.build(y), [random_array(as_dtype(dtype), shape)])


def test_sum_of_truth_values() -> None:
    b = Builder()
    x = b.param("i1", [4, 5])
    count = b.reduce_sum(x, [0], accum_dtype="si32", out_dtype="si32")
    both = b.reduce_any(x, axes=[1]), b.reduce_all(x, axes=[1], keepdims=True)
    agree(b.build(count, *both), [random_array(as_dtype("i1"), (4, 5))])


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_layer_norm(dtype: str) -> None:
    b = Builder()
    x, gamma, beta = b.param(dtype, [2, 5, 3]), b.param(dtype, [5]), b.param(dtype, [5])
    y = b.layer_norm(x, gamma, beta, epsilon=1e-3, feature_axis=1)
    kind = as_dtype(dtype)
    arrays = [random_array(kind, (2, 5, 3)), random_array(kind, (5,), 1), random_array(kind, (5,))]
    agree(b.build(y), arrays, exact=dtype == "bf16")


@pytest.mark.parametrize("fn", ["sum", "max", "min"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "si8"])
def test_reduce_window(dtype: str, fn: str) -> None:
    b = Builder()
    x = b.param(dtype, [5, 7])
    y = b.reduce_window(
        x, window_dims=[2, 3], strides=[1, 2], padding=[(1, 0), (0, 2)], base_dilation=[1, 2],
        window_dilation=[2, 1], reduce=fn,
    )  # fmt: skip
    exact = fn != "sum" or dtype == "si8"
    graph = agree(b.build(y), [random_array(as_dtype(dtype), (5, 7), scale=1.0)], exact=exact)
    assert Opaque not in kinds(graph)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "fp8_e4m3", "f64"])
def test_tests_and_signs(dtype: str) -> None:
    values = [0.0, -0.0, 1.5, -2.0, math.inf, -math.inf, math.nan]
    array = np.array(values, np.float32).astype(as_dtype(dtype).numpy)
    b = Builder()
    x = b.param(dtype, [len(values)])
    results = [b.isnan(x), b.isinf(x), b.isfinite(x), b.sign(x)]
    graph = agree(b.build(*results), [array], exact=dtype != "fp8_e4m3")
    assert Opaque not in kinds(graph)


def test_logic_on_truth_values_and_bits() -> None:
    b = Builder()
    p, q, n = b.param("i1", [8]), b.param("i1", [8]), b.param("si8", [8])
    results = [b.bitwise_and(p, q), b.bitwise_or(p, q), b.bitwise_xor(p, q), b.bitwise_not(p)]
    results += [b.bitwise_not(n), b.bitwise_and(n, n)]
    arrays = [random_array(as_dtype(d), (8,), k) for k, d in enumerate(["i1", "i1", "si8"])]
    graph = agree(b.build(*results), arrays)
    assert Opaque not in kinds(graph)


def test_a_factorisation_stays_whole() -> None:
    b = Builder()
    graph = lowered(b.build(b.cholesky(b.param("f32", [3, 3]))))
    (whole,) = (v for v in graph.values if isinstance(v, Opaque))
    assert why_whole(whole.op) == "a factorisation, which the host computes"


def test_a_larger_literal_is_an_input_with_data() -> None:
    b = Builder()
    x = b.param("f32", [3])
    table = b.constant([1.0, 2.0, 3.0], "f32")
    y = (x + table) * b.constant([2.0, 2.0, 2.0], "f32") + table
    graph = agree(b.build(y), [random_array(F32, (3,))])
    assert list(graph.constants) == ["const0"]
    assert graph.inputs == (Input("in0", F32, (3,)),)


def test_results_of_whole_ops_are_told_apart() -> None:
    b = Builder()
    values, indices = b.top_k(
        b.param("f32", [4, 6]), k=2, axis=-1, largest=True, indices_dtype="si32"
    )
    agree(b.build(indices, values), [random_array(F32, (4, 6))])


def test_origin_names_the_instruction() -> None:
    program = PROGRAMS["mlp"]()
    graph = lowered(program)
    made = {i.id for i in program.main.body}
    values: list[Value] = [v for v in graph.values if not isinstance(v, Input)]
    assert values
    for value in values:
        assert set(graph.origin[value]) <= made
    (sum_, *_) = (v for v in graph.values if isinstance(v, Reduce))
    (origin,) = graph.origin[sum_]
    (dot,) = (i for i in program.main.body if i.id == origin)
    assert dot.op.mnemonic == "dot_general"


def test_a_dynamic_program_is_refused() -> None:
    b = Builder()
    with pytest.raises(UserError, match="specialise it first"):
        lower_program(b.build(b.tanh(b.param("f32", ["?B"]))))
