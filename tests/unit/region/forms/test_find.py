"""Kernels know what they are: found once, said in the text, and checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from examples.make_programs import attention, mlp
from tests.support import kernels
from tests.support.gpu_programs import through_stages
from tests.support.lowered import graph_of, lowered
from tests.support.tiny_example import convolution
from weft.foundation.errors import InternalError, SpecViolation
from weft.ptir import Builder, Program
from weft.region.form import (
    Attention,
    Convolution,
    Crossing,
    Form,
    Map,
    Product,
    Row,
    Rows,
    Whole,
    Windows,
    kind_of,
)
from weft.region.form_text import form_from_json, form_to_json
from weft.region.ir import Module, form_of, problem_of
from weft.region.text import dumps, loads
from weft.region.verify import verify


def forms(program: Program, target: str = "cpu") -> list[Form]:
    return [form_of(kernel) for kernel in through_stages(program, target)["region"].kernels]


def of(*shapes: list[int], op: str, **attributes: object) -> Program:
    b = Builder()
    return b.build(getattr(b, op)(*(b.param("f32", shape) for shape in shapes), **attributes))


def test_a_map_knows_what_lies_across() -> None:
    (plain,) = forms(of([4, 6], op="exp"))
    assert plain == Map(None)
    (turned,) = forms(of([4, 6], op="transpose", perm=[1, 0]))
    assert isinstance(turned, Map)
    assert isinstance(turned.crossing, Crossing)


def test_rows_know_what_they_reduce() -> None:
    module = kernels.softmax()
    assert form_of(module.kernels[0]) == Row(Rows(("j",), regular=True))


def test_sums_of_columns_are_rows_with_columns() -> None:
    (found,) = forms(of([64, 32], op="reduce_sum", axes=[0]))
    assert kind_of(found) == "columns"
    assert found.rows.columns is not None
    assert found.rows.columns not in found.rows.reduced


def test_a_product_knows_its_problem_and_its_end() -> None:
    kernel = kernels.linear(12, 20, 16).kernels[0]
    form, problem = form_of(kernel), problem_of(kernel)
    assert isinstance(form, Product)
    assert form.epilogue == ("bias", "gelu")
    assert problem is not None
    assert (problem.batch, problem.m, problem.n, problem.k) == (1, 12, 20, 16)


def test_attention_and_convolutions_know_their_parts() -> None:
    found = [f for f in forms(attention(2, 64, 64, 64)) if isinstance(f, Attention)]
    assert [form.parts.key in form.rows.reduced for form in found] == [True]
    given, y = convolution()
    form = form_of(lowered(graph_of(tuple(given), y=y), "sm80").module.kernels[0])
    assert isinstance(form, Convolution)
    assert isinstance(form.windows, Windows | str)


def test_an_op_that_stays_whole_says_which() -> None:
    (found,) = [f for f in forms(of([8, 64], op="sort", axis=1)) if isinstance(f, Whole)]
    assert found.op


@pytest.mark.parametrize("target", ["cpu", "sm90"])
@pytest.mark.parametrize("make", [mlp, attention])
def test_forms_read_back(make: Callable[[], Program], target: str) -> None:
    for form in forms(make(), target):
        assert form_from_json(json.loads(json.dumps(form_to_json(form))), "form") == form


def test_an_unfinished_kernel_has_no_form() -> None:
    kernel = replace(kernels.softmax().kernels[0], form=None)
    with pytest.raises(InternalError, match="is not finished"):
        form_of(kernel)


def test_a_wrong_form_is_refused() -> None:
    module = kernels.softmax()
    wrong = replace(module.kernels[0], form=Row(Rows(("i",), regular=True)))
    with pytest.raises(SpecViolation) as caught:
        verify(replace(module, kernels=(wrong,)))
    said = '{"reduced": ["i"], "regular": true}, but it is {"reduced": ["j"], "regular": true}'
    assert f"its form says rows {said}" in str(caught.value)
    assert "leave the form out" in str(caught.value)


def test_a_form_of_no_kind_is_refused() -> None:
    text = dumps(kernels.softmax()).replace('"kind": "row"', '"kind": "columns"')
    with pytest.raises(SpecViolation, match="'columns' is not what its fields say"):
        loads(text)


def test_a_text_may_leave_forms_out() -> None:
    made = through_stages(mlp(8, 16, 32, 16), "cpu")
    document = json.loads(made.text("region"))
    for entry in document["module"]["kernels"]:
        del entry["region"]["form"]
    read: Module = through_stages(mlp(8, 16, 32, 16), "cpu", region=json.dumps(document))["region"]
    assert [k.form for k in read.kernels] == [k.form for k in made["region"].kernels]
