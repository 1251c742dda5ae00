"""The builder: programs that people write, and what it tells them when they are wrong."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import weft
from weft.foundation.dtypes import F32, DType
from weft.foundation.errors import SpecViolation, UserError, WeftError
from weft.ptir import (
    BodyBuilder,
    Builder,
    HintKind,
    HintPolicy,
    ScalarLiteral,
    Symbol,
    TensorLiteral,
    TupleType,
    Value,
    dumps,
    loads,
    tensor,
    verify,
)
from weft.ptir.ops.constant import CustomCall
from weft.ptir.ops.functions import Sqrt
from weft.ptir.text import print_attributes


def line_below(lines: int) -> str:
    """`file:line` of the place that many lines below the caller."""
    return f"test_builder.py:{sys._getframe(1).f_lineno + lines}"


def run_one(b: Builder, result: Value, *inputs: Any) -> np.ndarray[Any, Any]:
    program = b.build(result)
    verify(program)
    (out,) = weft.run(program, list(inputs))
    return out


def test_operators_broadcast_a_number_over_the_tensor() -> None:
    b = Builder()
    x = b.param("f32", [2, 2])
    y = 1.0 - (2.0 * x + 3.0) / 4.0 * -x
    data = np.array([[1.0, 2.0], [-3.0, 0.5]], np.float32)
    np.testing.assert_array_equal(run_one(b, y, data), 1 - (2 * data + 3) / 4 * -data)


@pytest.mark.parametrize(
    ("operator", "meaning"),
    [
        (lambda a, b: a < b, np.less),
        (lambda a, b: a <= b, np.less_equal),
        (lambda a, b: a > b, np.greater),
        (lambda a, b: a >= b, np.greater_equal),
        (lambda a, b: 6 - a, lambda a, b: 6 - a),
        (lambda a, b: 6 / a, lambda a, b: 6 // a),
        (lambda a, b: a + b, np.add),
    ],
)
def test_operators_on_integers(
    operator: Callable[[Value, Value], Value], meaning: Callable[..., Any]
) -> None:
    b = Builder()
    lhs, rhs = b.param("si32", [3]), b.param("si32", [3])
    data = np.array([1, 2, 3], np.int32), np.array([3, 2, 1], np.int32)
    np.testing.assert_array_equal(run_one(b, operator(lhs, rhs), *data), meaning(*data))


def test_matmul_has_leading_batch_axes() -> None:
    b = Builder()
    lhs, rhs = b.param("f64", [2, 3, 4]), b.param("f64", [2, 4, 5])
    rng = np.random.default_rng(0)
    data = rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 4, 5))
    np.testing.assert_allclose(run_one(b, lhs @ rhs, *data), np.matmul(*data), rtol=1e-12)


def test_a_violation_names_the_line_that_made_it() -> None:
    b = Builder()
    x = b.param("f32", [2])
    line = line_below(2)
    with pytest.raises(SpecViolation) as caught:
        b.reshape(x, [3])
    assert str(caught.value) == (
        f"ShapeMismatch at {line}: reshape from [2] to [3] changes the number of elements"
    )


def test_a_violation_in_a_library_form_names_the_line_that_called_it() -> None:
    b = Builder()
    x = b.param("si32", [2])
    line = line_below(2)
    with pytest.raises(SpecViolation) as caught:
        b.silu(x)
    assert caught.value.where == line


def test_the_line_of_every_value_is_kept_beside_the_program() -> None:
    b = Builder()
    x = b.param("f32", [2])
    line = line_below(1)
    y = b.exp(x)
    program = b.build(y)
    assert program.locations["function @main", 1] == line
    assert program == weft.ptir.loads(weft.ptir.dumps(program, "json"))


def test_an_axis_may_count_from_the_end() -> None:
    b = Builder()
    x = b.param("f32", [2, 3, 4])
    b.reduce_sum(x, [-1, 0])
    b.transpose(x, [-1, 0, 1])
    b.iota("si32", [5, 6], -1)
    program = b.build(x)
    shown = [print_attributes(instruction.op) for instruction in program.main.body]
    assert shown == [
        "axes=[2, 0], keepdims=false",
        "perm=[2, 0, 1]",
        "shape=[5, 6], dtype=si32, axis=1",
    ]


def without_line(sentence: str) -> str:
    """A message without the caller's line."""
    return re.sub(r"^InvalidCall at test_builder\.py:\d+: ", "", sentence)


def rejected(action: Callable[[Builder, Value], object], sentence: str) -> None:
    b = Builder()
    x = b.param("f32", [2, 3])
    with pytest.raises(UserError) as caught:
        action(b, x)
    assert without_line(str(caught.value)) == sentence


def test_mistakes_of_the_caller_are_told_in_a_sentence() -> None:
    rejected(lambda b, x: b.sqrt(x, fast=True), "sqrt has no attribute 'fast'; it has none")
    rejected(lambda b, x: b.cumulative_sum(x), "cumulative_sum needs the attribute 'axis'")
    rejected(lambda b, x: b.emit("frob", x), "there is no op called 'frob'")
    rejected(
        lambda b, x: b.build(x[0]), "<%0 : f32[2, 3]> is not a tuple; slice tensors with b.slice"
    )
    for asked in (list, len):
        rejected(lambda b, x: asked(x), "<%0 : f32[2, 3]> is not a tuple and cannot be unpacked")  # noqa: B023
    rejected(
        lambda b, x: 1 if x < 0 else 2,
        "<%2 : i1[2, 3]> has no truth value while the program is being written; "
        "use b.select or b.cond to choose by it",
    )
    rejected(lambda b, x: b.cast(x, "si8") + 300, "the value 300 is not representable in si8")
    rejected(
        lambda b, x: (b.neg(x), b.param("f32", [1])), "declare every parameter before the first op"
    )
    rejected(
        lambda b, x: b.custom_call("other.kernel.v1", x, output=x.type, k=None),
        "None cannot be a custom-call attribute: use ints, floats, bools, strings",
    )


def test_an_unknown_method_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="there is no op called 'frobnicate'"):
        Builder().frobnicate()
    assert not hasattr(Builder(), "frobnicate")


def test_a_value_of_another_builder_is_refused() -> None:
    mine, other = Builder("mine"), Builder("other")
    x, y = mine.param("f32", [2]), other.param("f32", [2])
    sentence = (
        "<%0 : f32[2]> belongs to function @other, not to function @mine; a region sees only its "
        "own parameters, pass the value as an argument"
    )
    with pytest.raises(UserError) as caught:
        mine.add(x, y)
    assert without_line(str(caught.value)) == sentence
    assert str(caught.value) != sentence, "the caller's line is missing"
    with pytest.raises(UserError, match="belongs to function @other, not to function @mine"):
        mine.build(y)


def test_a_region_does_not_see_the_values_around_it() -> None:
    b = Builder()
    flag, x = b.param("i1"), b.param("f32", [2])

    def captures(inner: BodyBuilder, y: Value) -> Value:
        return inner.add(y, x)

    with pytest.raises(UserError, match=r"belongs to function @main, not to region \^0"):
        b.cond(flag, captures, captures, x)


def test_results_that_are_no_plain_values_are_copied() -> None:
    b = Builder()
    x = b.param("f32", [4])
    top = b.top_k(x, k=2, axis=0, largest=True, indices_dtype="si32")
    program = b.build(top[1], b.literal(2.5), x)
    verify(program)
    positions, number, same = weft.run(program, [np.array([3, 1, 4, 1], np.float32)])
    np.testing.assert_array_equal(positions, [2, 0])
    assert (float(number), number.shape) == (2.5, ())
    np.testing.assert_array_equal(same, [3, 1, 4, 1])


def test_tuples_unpack() -> None:
    b = Builder()
    x = b.param("f32", [4])
    values, positions = b.top_k(x, k=2, axis=0, largest=False, indices_dtype="si64")
    assert (values.type, positions.type) == (tensor("f32", [2]), tensor("si64", [2]))
    with pytest.raises(UserError, match="take an element of it first"):
        _ = b.top_k(x, k=1, axis=0, largest=True, indices_dtype="si32").shape


def test_a_parameter_may_be_a_tuple() -> None:
    b = Builder()
    pair = b.param_of(TupleType((tensor("f32", [2]), tensor("si32"))))
    program = b.build(pair[0] + 1.0, pair[1])
    verify(program)
    first, second = weft.run(program, [np.zeros(2, np.float32), np.int32(7)])
    np.testing.assert_array_equal(first, [1, 1])
    assert second == 7


def test_derived_dims_get_names_that_nothing_else_has() -> None:
    b = Builder()
    x = b.param("f32", ["?B", "?d0"])
    joined = b.concat([x, x], 0)
    flat = b.reshape(joined, [-1])
    names = {dim for value in (joined, flat) for dim in value.shape}
    assert len(names) == 3
    assert Symbol("d0") in names
    assert all(isinstance(dim, Symbol) for dim in names)


def test_output_names_a_derived_dim() -> None:
    b = Builder()
    x = b.param("f32", ["?B"])
    y = b.emit("concat", x, x, axis=0, output=tensor("f32", ["?twice"]))
    assert y.shape == (Symbol("twice"),)
    with pytest.raises(SpecViolation, match="OutputTypeMismatch"):
        b.emit("exp", x, output=tensor("f32", ["?other"]))


def test_a_custom_call_of_a_known_target_becomes_its_op() -> None:
    b = Builder()
    x = b.param("f32", [2])
    known = b.custom_call("weft.sqrt.v1", x, output=x.type)
    other = b.custom_call("other.kernel.v1", known, output=x.type, width=3)
    body = b.build(other).main.body
    assert isinstance(body[0].op, Sqrt)
    assert isinstance(body[1].op, CustomCall)
    with pytest.raises(SpecViolation, match=r"weft\.sqrt\.v1 has no attribute 'fast'"):
        b.custom_call("weft.sqrt.v1", x, output=x.type, fast=True)


def test_literals_take_their_dtype_from_python() -> None:
    b = Builder()
    kinds = [b.literal(value).type for value in (True, 3, 2.5, 1j, np.float64(2), [1, 2])]
    assert [str(kind) for kind in kinds] == [
        "i1[]",
        "si64[]",
        "f32[]",
        "cf64[]",
        "f64[]",
        "si64[2]",
    ]
    assert isinstance(b.literal(1).operand, TensorLiteral)


def test_full_and_constant() -> None:
    b = Builder()
    program = b.build(b.full([2, 2], 7, "si8"), b.constant([[1.5]]))
    sevens, number = weft.run(program)
    np.testing.assert_array_equal(sevens, np.full((2, 2), 7, np.int8))
    np.testing.assert_array_equal(number, np.array([[1.5]], np.float32))


def test_equality_is_a_comparison_in_the_program() -> None:
    b = Builder()
    ids = b.param("si32", [3])
    program = b.build(ids == 3, ids != 3)
    equal, different = weft.run(program, [[3, 4, 3]])
    assert equal.tolist() == [True, False, True]
    assert different.tolist() == [False, True, False]
    assert len({ids, ids}) == 1


def test_select_takes_the_dtype_of_its_branches() -> None:
    b = Builder()
    x = b.param("f32", [2])
    (out,) = weft.run(b.build(b.select(x > 0.0, x, 7.5)), [[1.0, -1.0]])
    assert out.tolist() == [1.0, 7.5]
    with pytest.raises(UserError, match="select between two numbers has no dtype"):
        b.select(x > 0.0, 2.0, 0.0)


def test_an_array_on_the_left_is_one_literal() -> None:
    b = Builder()
    x = b.param("f32", [2, 2])
    threes: Any = np.full((2, 2), 3, np.float32)
    program = b.build(threes - x)
    assert len(program.main.body) == 1
    assert weft.run(program, [np.ones((2, 2), np.float32)])[0].tolist() == [[2, 2], [2, 2]]


def test_more_operators() -> None:
    b = Builder()
    x, flag = b.param("f32", [2]), b.param("i1", [2])
    program = b.build(abs(x), x**2, ~flag, flag & flag, flag | ~flag, flag ^ flag)
    results = weft.run(program, [[-3.0, 2.0], [True, False]])
    assert [r.tolist() for r in results] == [
        [3, 2], [9, 4], [False, True], [True, False], [True, True], [False, False],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "action",
    [
        lambda b, x: b.param("f32", 3),
        lambda b, x: b.reshape(x, 9),
        lambda b, x: b.literal([[1, 2], [3]]),
        lambda b, x: b.literal("a"),
        lambda b, x: b.pad(x, low=[0], high=[0], interior=[0], pad_value="a"),
        lambda b, x: x + (2 + 1j),
        lambda b, x: b.cond(b.literal(True), lambda r, a: a, lambda r, a: 3.0, x),
    ],
)
def test_wrong_calls_are_our_errors(action: Callable[[Builder, Value], object]) -> None:
    b = Builder()
    with pytest.raises(WeftError):
        action(b, b.param("f32", [2]))


def test_a_program_survives_a_copy_to_another_process() -> None:
    b = Builder()
    program = b.build(b.exp(b.param("f32", [2])))
    assert copy.deepcopy(program) == program
    assert copyreg_round_trip(F32) is F32


def copyreg_round_trip(dtype: DType) -> DType:
    """What a pickle does with a dtype, without a pickle."""
    function, args = dtype.__reduce__()
    result: DType = function(*args)
    return result


# -- attributes that need not be given -------------------------------------------------------------

USUAL: list[tuple[str, list[str], dict[str, Any], dict[str, Any]]] = [
    ("reduce_sum", ["f32 2 3"], {"axes": [1]}, {"keepdims": False}),
    ("reduce_any", ["i1 2 3"], {"axes": [1]}, {"keepdims": False}),
    ("arg_max", ["f32 2 3"], {"axis": 1}, {"keepdims": False, "output_dtype": "si64"}),
    ("argmin", ["f32 2 3"], {"axis": 1}, {"keepdims": False, "output_dtype": "si64"}),
    ("sort", ["f32 2 3"], {}, {"axis": -1, "descending": False}),
    ("argsort", ["f32 2 3"], {}, {"axis": -1, "descending": False, "output_dtype": "si64"}),
    ("top_k", ["f32 2 3"], {"k": 2}, {"axis": -1, "largest": True, "indices_dtype": "si64"}),
    ("pad", ["f32 2 3"], {"low": [1, 0]},
     {"high": [0, 0], "interior": [0, 0], "pad_value": ScalarLiteral("Float", 0.0)}),
    ("extract_patches", ["f32 1 4 4 2"], {"window": [2, 2]},
     {"strides": [1, 1], "dilation": [1, 1], "padding": [(0, 0)] * 2}),
    ("reduce_window", ["f32 2 3"], {"window_dims": [1, 2], "reduce": "max"},
     {"strides": [1, 1], "padding": [(0, 0)] * 2, "base_dilation": [1, 1],
      "window_dilation": [1, 1]}),
    ("segment_sum", ["f32 4", "si32 4"], {"num_segments": 2},
     {"indices_are_sorted": False, "unique": False}),
    ("layer_norm", ["f32 2 3", "f32 3", "f32 3"], {}, {"epsilon": 1e-5, "feature_axis": -1}),
    ("rng_uniform", [], {"shape": [2]}, {"dtype": "f32"}),
    ("cholesky", ["f32 2 2"], {}, {"upper": False}),
    ("qr", ["f32 2 2"], {}, {"mode": "reduced"}),
    ("svd", ["f32 2 2"], {}, {"full_matrices": True}),
    ("triangular_solve", ["f32 2 2", "f32 2 3"], {"lower": True},
     {"transpose": False, "unit_diagonal": False}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kinds", "given", "usual"), USUAL, ids=[name for name, *_ in USUAL]
)
def test_attributes_with_an_obvious_value_need_not_be_given(
    name: str, kinds: list[str], given: dict[str, Any], usual: dict[str, Any]
) -> None:
    built = []
    for attrs in (given, {**given, **usual}):
        b = Builder()
        words = [kind.split() for kind in kinds]
        operands = [b.param(dtype, [int(dim) for dim in dims]) for dtype, *dims in words]
        b.emit(name, *operands, **attrs)
        built.append(b.build(b.literal(0)))
    assert built[0] == built[1]
    assert not verify(built[0], collect=True)


def test_emitted_dots_have_no_batch_axes() -> None:
    b = Builder()
    x = b.param("f32", [2, 2])
    product = b.emit("dot_general", x, x, contract_lhs=[1], contract_rhs=[0])
    assert product.shape == (2, 2)


def test_files_say_every_attribute() -> None:
    text = "ptir.v0.4\nentry @main\nfunc @main(%0: f32[2]) -> (f32[]) {\n"
    with pytest.raises(SpecViolation, match="reduce_sum needs the attribute 'keepdims'"):
        loads(f"{text}  %1 = reduce_sum(%0) {{axes=[0]}} : f32[]\n  return %1\n}}\n")


# -- hints -----------------------------------------------------------------------------------------


def test_a_hint_holds_the_ops_of_its_block() -> None:
    b = Builder()
    x, y = b.param("f32", [4]), b.param("f32", [4])
    before = b.neg(x)
    with b.hint("elementwise_dag", "required", width=8):
        inner = b.exp(before)
        both = inner * y
        aside = b.tanh(inner)
    with b.hint(HintKind.REDUCTION_CHAIN):
        total = b.reduce_sum(both, [0])
    program = b.build(total, aside)
    first, second = program.main.hints
    ids = {i.op.mnemonic: i.id for i in program.main.body}
    assert (first.id, first.kind, first.policy) == (
        0, HintKind.ELEMENTWISE_DAG, HintPolicy.REQUIRED
    )  # fmt: skip
    assert first.inputs == (1, ids["neg"])
    assert first.exports == (ids["mul"], ids["tanh"])
    assert [i.op.mnemonic for i in first.body] == ["exp", "mul", "tanh"]
    assert dict(first.attrs)["width"].value == 8
    assert (second.policy, second.inputs) == (HintPolicy.PREFERRED, (ids["mul"],))
    assert second.exports == (ids["reduce_sum"],)
    assert not verify(program, collect=True)
    for form in ("text", "json", "bincode"):
        assert loads(dumps(program, form)) == program
    wish = replace(first, policy=HintPolicy.PREFERRED)
    program = program.with_main(replace(program.main, hints=(wish, second)))
    results = weft.run(program, [np.ones(4, np.float32)] * 2)
    np.testing.assert_allclose(results[0], 4 * np.exp(-1), rtol=1e-6)


def test_a_hint_that_cannot_be_is_told() -> None:
    b = Builder()
    x = b.param("f32", [4])
    dag = "elementwise_dag"
    with pytest.raises(UserError, match="a hint needs at least one op in its block"), b.hint(dag):
        pass
    with pytest.raises(UserError, match="hints do not nest"), b.hint(dag), b.hint(dag):
        b.exp(x)
    unknown = "'fastest' is not one of optional, preferred, required"
    with pytest.raises(SpecViolation, match=unknown), b.hint(dag, "fastest"):
        b.neg(x)
    with b.hint("elementwise_dag"):
        y = b.sort(x)
    with pytest.raises(SpecViolation) as caught:
        b.build(y)
    assert str(caught.value) == (
        "HintInvalid at hint 0 in function @main: sort does not belong in elementwise_dag"
    )
