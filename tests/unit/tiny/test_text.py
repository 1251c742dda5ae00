"""Tiny as JSON: the document's example loads as printed, and every node survives a round trip."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from examples.make_programs import PROGRAMS
from tests.support.tiny_example import EXAMPLE
from weft.foundation.dims import Symbol
from weft.foundation.dtypes import BF16, F16, F32, I1, SI32
from weft.foundation.errors import SpecViolation, Unimplemented, UserError
from weft.foundation.index_expr import axis
from weft.foundation.scalar import Fn
from weft.testing.random_programs import random_program
from weft.tiny import build
from weft.tiny.from_ptir import lower_program
from weft.tiny.interp import run
from weft.tiny.ir import (
    Barrier,
    Binary,
    Cast,
    Const,
    DynamicShrink,
    DynamicUpdate,
    Expand,
    Graph,
    Input,
    Iota,
    Opaque,
    Reduce,
    ReduceFn,
    Reshape,
    Unary,
    View,
    Where,
)
from weft.tiny.specialise import specialise
from weft.tiny.text import dumps, from_json, loads, to_json
from weft.tiny.verify import verify


def test_the_example_of_the_document() -> None:
    graph = loads(EXAMPLE)
    verify(graph)
    m, n = Symbol("M"), Symbol("N")
    assert [i.name for i in graph.inputs] == ["A", "B", "bias"]
    ((name, relu),) = graph.outputs
    assert (name, relu.dtype, relu.shape) == ("C2", F16, (m, n))
    named = {name: value for value, name in graph.op_names.items()}
    assert isinstance(named["sum_k"], Reduce)
    assert named["sum_k"].acc is F32
    assert named["sum_k"].axes == (1,)
    assert isinstance(named["mul"], Binary)
    assert isinstance(named["mul"].lhs, Expand)
    values = {name: value for value, name in graph.names.items()}
    assert (values["C0"].dtype, values["C0"].shape) == (F16, (m, n))
    assert isinstance(values["bias_mn"], Expand)
    assert isinstance(values["bias_mn"].x, Reshape)
    assert '"A": {"dtype": "f16", "shape": ["M", "K"]}' in dumps(graph)


def test_the_example_computes_what_it_says() -> None:
    graph = specialise(loads(EXAMPLE), {"M": 3, "K": 4, "N": 5})
    verify(graph)
    rng = np.random.default_rng(0)
    a, b, bias = (rng.standard_normal(s).astype(np.float16) for s in ((3, 4), (4, 5), (5,)))
    (out,) = run(graph, {"A": a, "B": b, "bias": bias})
    products = (a[:, :, None] * b[None]).astype(np.float32).sum(axis=1)
    assert np.array_equal(out, np.maximum(products.astype(np.float16) + bias, 0))


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        ({"M": -3}, "the size of ?M is -3, not a whole number from 0 on"),
        ({"M": 3.0}, "the size of ?M is 3.0, not a whole number from 0 on"),
        ({"M": True}, "the size of ?M is True, not a whole number from 0 on"),
        ({"L": 3}, "a size is given for 'L', which the graph does not have: its symbols are M, K"),
        ({"M": None}, "the size of ?M is None, not a whole number from 0 on"),
    ],
)
def test_sizes_that_are_none_are_refused(sizes: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=re.escape(why)):
        specialise(loads(EXAMPLE), {"M": 3, "K": 4, "N": 5, **sizes})


@pytest.mark.parametrize("name", ["M K", "?", "??M", "3M", "M-1", "M\n"])
def test_names_of_symbols_are_names(name: str) -> None:
    document = json.loads(EXAMPLE if isinstance(EXAMPLE, str) else json.dumps(EXAMPLE))
    with pytest.raises(SpecViolation, match="is not a size"):
        loads(json.dumps(document).replace('"M"', json.dumps(name)))


def test_a_wrong_input_is_named() -> None:
    graph = loads(EXAMPLE)
    arrays = {name: np.ones((2, 2), np.float16) for name in ("A", "B", "bias")}
    with pytest.raises(UserError, match=r"the input 'A' has type f16\[\?M, \?K\] but"):
        run(graph, arrays)


def test_the_example_reads_back_equal() -> None:
    graph = loads(EXAMPLE)
    again = loads(dumps(graph))
    assert again == graph
    assert dumps(again) == dumps(graph)


def every_node() -> Graph:
    """A graph with each kind of node."""
    x, y = Input("x", F32, (2, 6)), Input("y", F32, (2, 6))
    position = Input("position", SI32, ())
    table = Input("table", F32, (3,))
    total = Binary(Fn.ADD, Unary(Fn.TANH, x), y)
    chosen = Where(Binary(Fn.LT, x, y), total, build.splat(float("-inf"), F32, (2, 6)))
    moved = build.flip(build.permute(build.reshape(chosen, (2, 2, 3)), (2, 0, 1)), (0,))
    padded = build.pad(moved, (1, 0, 0), (0, 2, 0), Const(-0.0, F32))
    part = build.shrink(padded, (1, 0, 0), (3, 2, 2))
    view = View(part, (2, 2), (axis("i0") + 1, axis("i1"), axis("i1")))
    window = DynamicShrink(view, (position, Const(0, SI32)), (1, 2))
    update = DynamicUpdate(view, window, (Const(1, SI32), position))
    counted = build.cast(Iota(SI32, (2, 2), 1), F32)
    narrow = Cast(Binary(Fn.MUL, update, counted), BF16)
    summed = build.reduce(ReduceFn.SUM, Barrier(narrow, table), [1], F32)
    whole = Opaque("sorting", (summed,), 1, SI32, (2,))
    anything = Reduce(ReduceFn.MAX, Binary(Fn.NE, x, y), (0, 1), I1)
    scaled = Binary(Fn.MUL, table, build.splat(2.5, F32, (3,)))
    outputs = (("a", summed), ("b", whole), ("c", anything), ("d", scaled), ("e", x))
    data = {"table": np.arange(3, dtype=np.float32)}
    return Graph((x, y, position, Input("unused", BF16, (0, 1))), outputs, constants=data)


def test_every_node_reads_back() -> None:
    graph = every_node()
    verify(graph)
    text = dumps(graph, encode_op=lambda op: {"named": op})
    again = loads(text, decode_op=lambda document: document["named"])
    assert again == graph
    assert np.array_equal(again.constants["table"], graph.constants["table"])
    assert dumps(again, encode_op=lambda op: {"named": op}) == text


def test_an_opaque_op_needs_its_codec() -> None:
    with pytest.raises(Unimplemented, match="needs the codec of its ops"):
        dumps(every_node())


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_example_programs_read_back(name: str) -> None:
    graph = lower_program(PROGRAMS[name]())
    verify(graph)
    assert loads(dumps(graph)) == graph


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_read_back(seed: int) -> None:
    case = random_program(seed, 25, control_flow=False, dynamic=False)
    graph = lower_program(case.program)
    verify(graph)
    ops: list[Any] = []

    def encode(op: Any) -> int:
        ops.append(op)
        return len(ops) - 1

    again = loads(dumps(graph, encode), decode_op=ops.__getitem__)
    assert again == graph
    for name, array in graph.constants.items():
        assert again.constants[name].tobytes() == array.tobytes()


def test_golden_text(golden: Any) -> None:
    golden("tiny/softmax_layernorm.json", dumps(lower_program(PROGRAMS["softmax_layernorm"]())))


REJECTED = {
    "an unknown function": (
        {"op": "Unary", "name": "n", "fn": "sinc", "inputs": ["x"], "outputs": ["y"]},
        "MalformedJson at the graph.ops[0]: there is no function 'sinc'",
    ),
    "an unknown op": (
        {"op": "Conv", "name": "n", "inputs": ["x"], "outputs": ["y"]},
        "MalformedJson at the graph.ops[0]: there is no op 'Conv'",
    ),
    "operands that do not broadcast": (
        {"op": "Binary", "name": "n", "fn": "add", "inputs": ["x", "z"], "outputs": ["y"]},
        "E1001 BroadcastMismatch at the graph.ops[0]: the operands have shapes [2, 3] and [4]",
    ),
    "an axis that is not there": (
        {
            "op": "Reduce",
            "name": "n",
            "fn": "sum",
            "inputs": ["x"],
            "outputs": ["y"],
            "axes": ["K"],
        },
        "MalformedJson at the graph.ops[0]: 'K' names 0 axes of a value of shape [2, 3], not one",
    ),
    "a number that is not an axis": (
        {"op": "Reduce", "name": "n", "fn": "sum", "inputs": ["x"], "outputs": ["y"], "axes": [2]},
        "MalformedJson at the graph.ops[0]: 2 is not an axis of a value of shape [2, 3]",
    ),
    "half of an integer": (
        {
            "op": "Leaf",
            "name": "n",
            "kind": "const",
            "inputs": [],
            "outputs": ["y"],
            "attrs": {"value": 1.5, "dtype": "si32"},
        },
        "MalformedJson at the graph.ops[0].attrs: 1.5 is not a number of si32",
    ),
    "a complex number around real ones": (
        {
            "op": "Movement",
            "name": "n",
            "kind": "pad",
            "inputs": ["x"],
            "outputs": ["y"],
            "attrs": {"low": [1, 0], "high": [0, 0], "value": {"re": 0.0, "im": 1.0}},
        },
        "MalformedJson at the graph.ops[0].attrs: 1j is not a number of f32",
    ),
    "operands that a movement does not have": (
        {"op": "Movement", "name": "n", "kind": "barrier", "inputs": ["x"], "outputs": ["y"]},
        "MalformedJson at the graph.ops[0]: it takes 2 inputs, not 1",
    ),
    "an axis twice": (
        {
            "op": "Reduce",
            "name": "n",
            "fn": "sum",
            "inputs": ["x"],
            "outputs": ["y"],
            "axes": [1, 1],
        },
        "MalformedJson at the graph.ops[0]: an axis is reduced twice: [1, 1]",
    ),
    "a size of thousands of digits": (
        {
            "op": "Movement",
            "name": "n",
            "kind": "reshape",
            "inputs": ["x"],
            "outputs": ["y"],
            "attrs": {"new_shape": ["7" * 5000]},
        },
        f"MalformedJson at the graph.ops[0].attrs: '{'7' * 996}...",
    ),
    "a type that is wrong": (
        {"op": "Unary", "name": "n", "fn": "exp", "inputs": ["x"], "outputs": ["w"]},
        "E1104 ShapeMismatch: 'w' is f32[2, 3], but 'values' says f32[7]",
    ),
    "an input without a type": (
        {"op": "Unary", "name": "n", "fn": "exp", "inputs": ["q"], "outputs": ["y"]},
        "E1107 GraphInvalid: the input 'q' has no type in 'values'",
    ),
}


@pytest.mark.parametrize("what", REJECTED)
def test_bad_files_are_named(what: str) -> None:
    op, message = REJECTED[what]
    shapes: dict[str, Any] = {"x": [2, 3], "z": [4], "w": [7]}
    values = {name: {"dtype": "fp32", "shape": shape} for name, shape in shapes.items()}
    with pytest.raises(SpecViolation) as caught:
        from_json({"ops": [op], "values": values})
    assert str(caught.value) == message


def test_json_is_plain() -> None:
    graph = every_node()
    document = to_json(graph, encode_op=str)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
