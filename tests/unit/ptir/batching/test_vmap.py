"""Programs over a batch: the same as running them on each value alone."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import weft
from tests.derivatives.case import Array, Case, distinct, normal, whole
from tests.derivatives.cases import CASES
from tests.support.cases import each, one_in
from tests.support.one_op import bits
from weft.foundation.dtypes import as_dtype
from weft.foundation.errors import SpecViolation, Unimplemented, UserError
from weft.ptir import Builder, Program, all_ops, tensor, verify
from weft.ptir.batching.rules import batches
from weft.ptir.decompositions import DECOMPOSITIONS
from weft.ptir.gradient import vjp
from weft.ptir.vmap import vmap

SIZE = 3
CONTROL = {"Cond", "Scan", "While", "MakeTuple"}
WITHOUT_OPERANDS = {"Constant", "Iota", "Rank", "RngUniform", "RngNormal", "RngState"}
WITHOUT_RULE = {"CustomCall"}


def test_every_op_has_a_batching_rule() -> None:
    handled = CONTROL | WITHOUT_OPERANDS | WITHOUT_RULE
    missing = [
        cls.__name__
        for cls in all_ops()
        if cls.__module__.startswith("weft.ptir.ops.")
        and not cls.elementwise
        and cls not in batches
        and cls not in DECOMPOSITIONS
        and cls.__name__ not in handled
    ]
    assert missing == []


def varied(array: Array, number: int) -> Array:
    """Another value of the same kind: floats nearly the same, indices in another order."""
    if number == 0:
        return array
    if array.dtype.kind in "fc":
        return array * (1 + 0.01 * number)
    return np.roll(array, number) if array.ndim else array


def batch_of(inputs: Sequence[Array], axes: Sequence[int | None]) -> list[list[Array]]:
    """The inputs of each value."""
    return [
        [a if axis is None else varied(a, n) for a, axis in zip(inputs, axes, strict=True)]
        for n in range(SIZE)
    ]


def check(program: Program, inputs: Sequence[Array], axes: Sequence[int | None]) -> Program:
    """Run over the batch and one by one."""
    made = vmap(program, SIZE, axes)
    verify(made)
    alone = batch_of(inputs, axes)
    given = [
        inputs[i] if axis is None else np.stack([value[i] for value in alone], axis)
        for i, axis in enumerate(axes)
    ]
    found = weft.run(made, given, backend="reference", seed=2)
    wanted = [weft.run(program, value, backend="reference", seed=2) for value in alone]
    for number, result in enumerate(found):
        together = np.stack([results[number] for results in wanted])
        assert result.dtype == together.dtype
        np.testing.assert_allclose(result, together, rtol=1e-10, atol=1e-10)
    return made


# The results of complex factorisations are unique only up to phases, which a stack may change.
SMOOTH = [c for c in CASES if c.label != "complex-vectors"]


FIRST = list({case.op: case for case in reversed(SMOOTH)}.values())
OTHER = [case for case in SMOOTH if case.id not in {first.id for first in FIRST}]


@each("case", SMOOTH)
def test_a_batch_is_what_its_values_are(case: Case) -> None:
    check(case.program(), case.inputs, [0] * len(case.inputs))


@pytest.mark.parametrize("cases", one_in(2, [FIRST, OTHER]), ids=["first of each op", "others"])
def test_some_inputs_may_be_the_same_for_the_whole_batch(cases: list[Case]) -> None:
    for case in cases:
        inputs = range(len(case.inputs))
        alone = [tuple(0 if i == index else None for i in inputs) for index in inputs]
        others = [tuple(None if i == index else 0 for i in inputs) for index in inputs]
        # Of two inputs, the one alone is all but the other.
        for axes in dict.fromkeys([*alone, *others] if len(inputs) > 1 else []):
            check(case.program(), case.inputs, axes)


def test_the_batch_axis_may_be_anywhere() -> None:
    case = next(c for c in CASES if c.id == "dot_general-batched")
    for axes in ([0, 1], [-1, 2], [3, None], [None, -2], [2, -1]):
        check(case.program(), case.inputs, axes)


BOOLS = np.array([[True, False, True], [False, False, True]])
OTHERS: list[tuple[str, Any, list[Array]]] = [
    ("compare", lambda b, x, y: b.compare(x, y, "less"), [normal(4), normal(4, seed=1)]),
    ("arg_max", lambda b, x: b.arg_max(x, axis=-1, keepdims=True, output_dtype="si32"),
     [distinct(3, 4)]),
    ("argmin", lambda b, x: b.argmin(x, axis=0, keepdims=False, output_dtype="si64"),
     [distinct(3, 4)]),
    ("argsort", lambda b, x: b.argsort(x, axis=0), [distinct(3, 4)]),
    ("reduce_any", lambda b, x: b.emit("reduce_any", x, axes=[1]), [BOOLS]),
    ("reduce_all", lambda b, x: b.emit("reduce_all", x, axes=[0], keepdims=True), [BOOLS]),
    ("isnan", lambda b, x: b.isnan(x), [normal(3)]),
    ("bitwise_and", lambda b, x, y: b.bitwise_and(x, y), [whole(9, 4), whole(9, 4, seed=1)]),
    ("searchsorted", lambda b, s, v: b.searchsorted(s, v), [np.sort(normal(5)), normal(2, 2)]),
    ("quantize", lambda b, x, s: b.quantize(x, s, output_dtype="si8"),
     [normal(4), np.array(0.1)]),
    ("quantize-axis", lambda b, x, s: b.quantize(x, s, output_dtype="si8", axis=1),
     [normal(4, 2), np.array([0.1, 0.2])]),
    ("requantize", lambda b, q: b.requantize(
        q, b.literal(0.5, "f32"), b.literal(1, "si8"), b.literal(0.25, "f32"), b.literal(0, "si8"),
        output_dtype="si8"), [whole(9, 4, dtype=np.int8)]),
    ("requantize-axis", lambda b, q, s, z, t: b.requantize(
        q, s, z, t, b.literal(1, "si8"), output_dtype="si8", axis=1),
     [whole(9, 4, 2, dtype=np.int8), np.array([0.1, 0.4]), np.array([1, 3], np.int8),
      np.array(0.2)]),
    ("barrier", lambda b, x, y: b.barrier(x, y), [normal(4), normal(2)]),
    ("rng", lambda b, x: x * b.rng_uniform(shape=[4], dtype="f64"), [normal(4)]),
    ("iota", lambda b, x: x + b.iota("f64", [4], 0), [normal(4)]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "function", "inputs"), OTHERS, ids=[o[0] for o in OTHERS])
def test_other_ops(name: str, function: Any, inputs: list[Array]) -> None:
    case = Case(name, "", function, tuple(inputs))
    for axes in itertools.product([0, None], repeat=len(inputs)):
        check(case.program(), inputs, axes)


@pytest.mark.parametrize("side", ["left", "right"])
def test_tables_of_each_value_hold_nan_last(side: Any) -> None:
    b = Builder()
    table, values = b.param("f32", [5]), b.param("f32", [2, 3])
    made = vmap(b.build(b.searchsorted(table, values, side=side)), 2)
    tables = np.array([[-1, 0, 0, 2, np.nan], [1, 2, np.inf, np.nan, np.nan]], np.float32)
    wanted = np.array([[[0, 2, np.nan], [-5, 3, -0.0]], [[1, np.inf, np.nan], [2, 0, 7]]], "f4")
    (found,) = weft.run(made, [tables, wanted], backend="reference")
    each = [np.searchsorted(t, v, side=side) for t, v in zip(tables, wanted, strict=True)]
    np.testing.assert_array_equal(found, each)


def test_layer_norm_of_narrow_floats_rounds_once() -> None:
    """Also where scale and shift differ within the batch."""
    b = Builder()
    x, scale, shift = (
        b.param("fp8_e4m3", [5, 4]),
        b.param("fp8_e4m3", [4]),
        b.param("fp8_e4m3", [4]),
    )
    program = b.build(b.layer_norm(x, scale, shift, epsilon=0.5, feature_axis=1))
    dtype = as_dtype("fp8_e4m3").numpy
    values = [normal(5, 4).astype(dtype), normal(4).astype(dtype), normal(4, seed=1).astype(dtype)]
    (once,) = weft.run(program, values, backend="reference")
    (twice,) = weft.run(vmap(program, 2), [np.stack([v, v]) for v in values], backend="reference")
    assert bits(twice) == bits(np.stack([once, once]))


# -- control flow --------------------------------------------------------------------------------


def test_a_loop_with_a_common_end() -> None:
    b = Builder()
    n, x = b.param("si32"), b.param("f64", [2])
    found = b.while_(lambda r, n, x: (n > 0, n, x), lambda r, n, x: (n - 1, r.sin(x) + x), n, x)
    check(b.build(found[1]), [np.array(3, np.int32), normal(2)], [None, 0])


def test_a_loop_whose_end_differs_goes_on_for_those_that_need_it() -> None:
    b = Builder()
    n, x = b.param("si32"), b.param("f64", [2])
    found = b.while_(lambda r, n, x: (n > 0, n, x), lambda r, n, x: (n - 1, r.sin(x) + x), n, x)
    program = b.build(found[0], found[1])
    counts, rows = np.array([3, 0, 1], np.int32), normal(SIZE, 2)
    left, made = weft.run(vmap(program, SIZE, [0, 0]), [counts, rows], backend="reference")
    alone = [
        weft.run(program, [n, x], backend="reference")[1] for n, x in zip(counts, rows, strict=True)
    ]
    assert left.tolist() == [0, 0, 0]
    np.testing.assert_array_equal(made, np.stack(alone))


def test_a_loop_whose_condition_changes_what_is_carried_is_refused() -> None:
    b = Builder()
    n = b.param("si32")
    program = b.build(b.while_(lambda r, n: (n > 0, n + 0), lambda r, n: n - 1, n))
    with pytest.raises(Unimplemented, match="its condition changes the carries"):
        vmap(program, SIZE)


def test_a_choice_that_differs_takes_both_branches() -> None:
    b = Builder()
    p, x = b.param("i1"), b.param("f64", [2])
    found = b.cond(
        p, lambda r, x: (r.sin(x), x * 2.0), lambda r, x: (x, r.full([2], 7.0, "f64")), x
    )
    program = b.build(found[0], found[1])
    made = vmap(program, 2, [0, None])
    x_given = normal(2)
    first, second = weft.run(made, [np.array([True, False]), x_given], backend="reference")
    np.testing.assert_array_equal(first, [np.sin(x_given), x_given])
    np.testing.assert_array_equal(second, [x_given * 2, [7.0, 7.0]])


def test_carries_become_batched_over_several_steps() -> None:
    b = Builder()
    first, second, third = b.param("f64", [2]), b.param("f64", [2]), b.param("f64", [2])
    steps = b.param("f64", [4, 2])
    found = b.scan(lambda r, a, c, d, s: (c, d, a * s), [first, second, third], [steps])
    inputs = [normal(2), normal(2, seed=1), normal(2, seed=2), normal(4, 2)]
    check(b.build(found[0], found[2]), inputs, [None, None, 0, None])


def test_tuples_pass_control_flow() -> None:
    b = Builder()
    p, x = b.param("i1"), b.param("f64", [3])
    pair = b.make_tuple(x, b.full([2], 1.5, "f64"))
    found = b.cond(p, lambda r, t: (t[0] * 2.0, t[1]), lambda r, t: (t[0], t[1] + 1.0), pair)
    check(b.build(found[0], found[1]), [np.array(True), normal(3)], [None, 0])


def test_nested_loops() -> None:
    case = next(c for c in CASES if c.id == "scan-nested")
    check(vmap(case.program(), 2, [None, 0]), [case.inputs[0], np.stack([case.inputs[1]] * 2)],
          [0, 0])  # fmt: skip


# -- the outside ---------------------------------------------------------------------------------


def test_the_size_may_be_dynamic() -> None:
    b = Builder()
    x, w = b.param("f64", [3]), b.param("f64", [3, 2])
    y = b.softmax(b.dot_general(x, w, contract=([0], [0])))
    made = vmap(b.build(y), "?B", [0, None])
    verify(made)
    assert made.main.results == (tensor("f64", ["?B", 2]),)
    for count in (1, 4):
        given = normal(count, 3)
        (found,) = weft.run(made, [given, normal(3, 2)], backend="reference")
        scores = np.exp(given @ normal(3, 2))
        np.testing.assert_allclose(found, scores / scores.sum(1, keepdims=True))


def test_scales_of_a_batch_of_dynamic_size() -> None:
    b = Builder()
    q, scale, scales = b.param("si8", [2, 3]), b.param("f64"), b.param("f64", [3])
    made = vmap(
        b.build(b.dequantize(q, scale), b.dequantize(q, scales, axis=1)), "?B", [0, 0, None]
    )
    numbers, each, common = whole(9, 4, 2, 3, dtype=np.int8), normal(4), normal(3)
    found = weft.run(made, [numbers, each, common], backend="reference")
    np.testing.assert_allclose(found[0], numbers * each[:, None, None])
    np.testing.assert_allclose(found[1], numbers * common)
    with pytest.raises(Unimplemented, match=r"the size \?B: a rule needs it as a number"):
        vmap(b.build(b.dequantize(q, scales, axis=1)), "?B")


def test_results_that_do_not_depend_on_the_batch_are_repeated() -> None:
    b = Builder()
    x, y = b.param("f64", [2]), b.param("f64", [2])
    made = vmap(b.build(x * 2.0, y + 1.0), SIZE, [0, None])
    assert made.main.results[1] == tensor("f64", [SIZE, 2])


def test_out_of_range_stays_out_of_range() -> None:
    """An index past one value's rows must not read those of the next value."""
    b = Builder()
    x, i = b.param("f64", [4]), b.param("si64", [2])
    made = vmap(b.build(b.take(x, i)), 2)
    with pytest.raises(SpecViolation) as caught:
        weft.run(made, [normal(2, 4), np.array([[0, 4], [0, 1]])], backend="reference")
    assert caught.value.code == "GatherIndexOutOfBounds"


@pytest.mark.parametrize("name", ["scan-recurrent", "layer_norm-axis-1", "cond-kept-True"])
def test_gradients_of_each_value(name: str) -> None:
    case = next(c for c in CASES if c.id == name)
    smooth = [i for i, a in enumerate(case.inputs) if a.dtype.kind == "f"]
    program = vjp(case.program(), smooth)
    results = weft.run(case.program(), case.inputs, backend="reference")
    inputs = [*case.inputs, *results]
    check(program, inputs, [0 if a.dtype.kind == "f" else None for a in inputs])


def test_the_gradient_of_a_batch() -> None:
    """By what is the same for all it is the sum over the values."""
    b = Builder()
    x, w = b.param("f64", [3]), b.param("f64", [3, 2])
    program = b.build(b.tanh(b.dot_general(x, w, contract=([0], [0]))))
    xs, weights, seeds = normal(4, 3), normal(3, 2), normal(4, 2, seed=1)
    made = vjp(vmap(program, 4, [0, None]), [0, 1])
    _, by_x, by_w = weft.run(made, [xs, weights, seeds], backend="reference")
    alone = vjp(program, [0, 1])
    each = [
        weft.run(alone, [x, weights, s], backend="reference")
        for x, s in zip(xs, seeds, strict=True)
    ]
    np.testing.assert_allclose(by_x, [found[1] for found in each])
    np.testing.assert_allclose(by_w, sum(found[2] for found in each))


@pytest.mark.parametrize(
    ("axes", "size", "message"),
    [
        ([0], 3, "1 axes are given for the 2 parameters"),
        ([0, "x"], 3, "the axis of parameter 1 is 'x', not a number or None"),
        ([None, None], "?B", r"the size \?B is not that of any parameter"),
    ],
)
def test_wrong_calls(axes: Any, size: Any, message: str) -> None:
    b = Builder()
    program = b.build(b.param("f32", [2]) + b.param("f32", [2]))
    with pytest.raises(UserError, match=message):
        vmap(program, size, axes)


def test_an_axis_beyond_the_rank() -> None:
    b = Builder()
    program = b.build(b.param("f32", [2]) * 2.0)
    with pytest.raises(SpecViolation, match="axis 2"):
        vmap(program, 3, [2])


def test_an_unknown_call_is_refused() -> None:
    b = Builder()
    x = b.param("f32", [2])
    program = b.build(b.custom_call("other.kernel.v1", x, output=x.type))
    with pytest.raises(Unimplemented, match=r"vmap of custom_call: there is no batching rule"):
        vmap(program, 3)
