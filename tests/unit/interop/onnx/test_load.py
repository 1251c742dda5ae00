"""`weft.onnx.load`: models as modules, their weights, shapes, control flow and functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import weft
import weft.onnx
from tests.support import onnx_models as m
from weft import nn

X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


def loaded(proto: onnx.ModelProto, **options: Any) -> Any:
    return weft.onnx.load(proto.SerializeToString(), **options)


def expected(proto: onnx.ModelProto, **inputs: Any) -> list[Any]:
    return list(ReferenceEvaluator(proto).run(None, inputs))


def test_a_model_has_named_inputs_and_outputs() -> None:
    proto = m.perceptron()
    model = loaded(proto)
    assert (model.inputs, model.outputs) == (("x",), ("y",))
    (wanted,) = expected(proto, x=X)
    for made in (model(X), model(x=X), weft.jit(model)(X)):
        assert list(made) == ["y"]
        np.testing.assert_allclose(made["y"].numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_inputs_may_have_any_name() -> None:
    """Even that of a method's first parameter."""
    for name in ("self", "args", "kwargs", "call", "a.1"):
        model = loaded(
            m.model(m.graph([m.node("Relu", name, "y")], [m.value(name)], [m.value("y")]))
        )
        for call in (model, weft.jit(model)):
            assert call(**{name: X})["y"].shape == (2, 3)


def test_open_axes_under_jit_are_named_by_input() -> None:
    model = loaded(m.perceptron())
    head = weft.jit(model, dynamic={"x": {0: "B"}})
    for rows in (2, 3, 5):
        np.testing.assert_allclose(
            head(X[:1].repeat(rows, 0))["y"].numpy(), model(X[:1].repeat(rows, 0))["y"].numpy()
        )
    assert len(head.versions) == 1
    with pytest.raises(weft.UserError, match=r"dynamic names 'z'; function takes x"):
        weft.jit(model, dynamic={"z": {0: "B"}})
    odd = loaded(m.model(m.graph([m.node("Relu", "a.1", "y")], [m.value("a.1")], [m.value("y")])))
    assert weft.jit(odd)(X)["y"].shape == (2, 3)


def test_a_path_and_data_beside_it_are_read(tmp_path: Path) -> None:
    onnx.save(
        m.perceptron(), str(tmp_path / "m.onnx"), save_as_external_data=True, size_threshold=0,
        location="weights.bin",
    )  # fmt: skip
    model = weft.onnx.load(tmp_path / "m.onnx")
    np.testing.assert_allclose(
        model(X)["y"].numpy(), expected(m.perceptron(), x=X)[0], rtol=1e-5, atol=1e-6
    )


def of_nodes(*nodes: onnx.NodeProto, **constants: Any) -> onnx.ModelProto:
    return m.model(m.graph(list(nodes), [m.value("x", [2, 3])], [m.value("y", None)], constants))


def described_badly() -> onnx.ModelProto:
    """An operator that ONNX describes by a function, whose inner nodes are not in the file."""
    return of_nodes(
        m.node("HardSwish", "x", "h", name="swish"), m.node("Celu", "h", "y", alpha="z", name="ce")
    )


@pytest.mark.parametrize(
    ("proto", "why"),
    [
        (of_nodes(m.node("Add", "x", "y", name="adder")), r"the node Add 'adder': 1 operands are"),
        (of_nodes(m.node("Relu", "x x x", "y", name="r")), r"the node Relu 'r': 3 operands are"),
        (
            of_nodes(m.node("Reshape", "x s", "y", name="rs"), s=np.array([4, 4])),
            r"\[reshape\] the node Reshape 'rs': reshape from \[2, 3\] to \[4, 4\]",
        ),
        (
            of_nodes(m.node("Softmax", "x", "y", axis=9, name="sm")),
            r"\[softmax\] the node Softmax 'sm': axis 9 is out of range",
        ),
        (
            of_nodes(m.node("Softmax", "x", "y", axis="z", name="sm")),
            r"the node Softmax 'sm': axis is 'z'",
        ),
        (
            of_nodes(m.node("ConstantOfShape", "s", "y", name="big"), s=np.array([1 << 20] * 2)),
            r"the node ConstantOfShape 'big': the result would need 4,398,046,511,104 bytes",
        ),
        (
            of_nodes(m.node("Zork", "x", "y", name="zorky")),
            r"Zork \(1, first at the node 'zorky'\)",
        ),
        (described_badly(), r"the node Celu 'ce': "),
    ],
)
def test_errors_name_the_node(proto: onnx.ModelProto, why: str) -> None:
    with pytest.raises(weft.WeftError, match=why) as caught:
        loaded(proto)(X)
    assert str(caught.value).count("the node") == 1


def test_attributes_that_an_operator_does_not_have_are_told() -> None:
    proto = of_nodes(m.node("Relu", "x", "y", bogus=3, name="act"))
    with pytest.warns(weft.WeftWarning, match=r"may have no effect: 'bogus' of Relu 'act'"):
        loaded(proto)


def test_initialisers_are_trained_on_request() -> None:
    frozen, model = loaded(m.perceptron()), loaded(m.perceptron(), trainable=True)
    assert not frozen.weights
    assert sorted(model.weights) == ["b1", "b2", "w1", "w2"]
    slopes = weft.grad(lambda each: each(X)["y"].sum())(model)
    np.testing.assert_allclose(slopes.weights["b2"].numpy(), [2.0, 2.0])
    assert isinstance(model, nn.Module)
    assert "weights.w1" in model.state_dict()


def test_the_program_has_the_weights_as_inputs() -> None:
    model = loaded(m.perceptron())
    program = weft.jit(model).program(X)
    weft.ptir.verify(program)
    assert len(program.main.parameters) == 5
    assert sum(instruction.op.name == "dot_general" for instruction in program.main.body) == 2


def test_shapes_are_known_while_a_function_is_traced() -> None:
    nodes = [
        m.node("Shape", "x", "s"), m.node("Gather", "s zero", "n"),
        m.node("Unsqueeze", "n axes", "row"), m.node("Concat", "row minus", "to", axis=0),
        m.node("Reshape", "x to", "y"),
    ]  # fmt: skip
    constants = {"zero": np.int64(0), "axes": np.array([0]), "minus": np.array([-1])}
    proto = m.model(m.graph(nodes, [m.value("x", [2, 3, 4])], [m.value("y", None)], constants))
    made = weft.jit(loaded(proto))(np.zeros((2, 3, 4), np.float32))
    assert made["y"].shape == (2, 12)


def branches(condition: str) -> onnx.ModelProto:
    yes = m.graph([m.node("Neg", "x", "a")], [], [m.value("a")])
    no = m.graph([m.node("Abs", "x", "b")], [], [m.value("b")])
    nodes = [
        m.node("ReduceSum", "x", "total", keepdims=0), m.node(condition, "total zero", "flag"),
        m.node("If", "flag", "y", then_branch=yes, else_branch=no),
    ]  # fmt: skip
    return m.model(m.graph(nodes, [m.value("x")], [m.value("y")], {"zero": np.float32(-1)}))


@pytest.mark.parametrize("condition", ["Greater", "Less"])
def test_a_choice_is_made_by_the_program_where_it_is_computed(condition: str) -> None:
    proto = branches(condition)
    model = loaded(proto)
    (wanted,) = expected(proto, x=X)
    np.testing.assert_array_equal(model(X)["y"].numpy(), wanted)
    np.testing.assert_array_equal(weft.jit(model)(X)["y"].numpy(), wanted)
    assert any(i.op.name == "cond" for i in weft.jit(model).program(X).main.body)


def counted(limit: bool) -> onnx.ModelProto:
    """x doubled three times, with every step kept; or until its sum is over 10."""
    inner = [m.node("Add", "state state", "next")]
    if limit:
        inner += [m.node("Identity", "on", "more"), m.node("Identity", "next", "kept")]
        results = [m.value("more", [], 9), m.value("next"), m.value("kept")]
    else:
        inner += [
            m.node("ReduceSum", "next", "size", keepdims=0), m.node("Less", "size ten", "more"),
        ]  # fmt: skip
        results = [m.value("more", [], 9), m.value("next")]
    body = m.graph(inner, [m.value("i", [], 7), m.value("on", [], 9), m.value("state")], results)
    outputs = [m.value("y"), m.value("all", None)] if limit else [m.value("y")]
    names = "y all" if limit else "y"
    nodes = [m.node("Loop", "three true x" if limit else "- true x", names, body=body)]
    constants = {"three": np.int64(3), "ten": np.float32(10), "true": np.bool_(True)}
    return m.model(m.graph(nodes, [m.value("x")], outputs, constants))


@pytest.mark.parametrize("limit", [True, False])
def test_loops_run_outside_and_inside_of_programs(limit: bool) -> None:
    proto, given = counted(limit), np.abs(X)
    model = loaded(proto)
    steps = [given * 2**n for n in (1, 2, 3)]
    wanted = {"y": steps[2], "all": np.stack(steps)} if limit else {"y": steps[1]}
    for made in (model(given), weft.jit(model)(given)):
        assert made.keys() == wanted.keys()
        for name, other in wanted.items():
            np.testing.assert_allclose(made[name].numpy(), other)


def test_functions_of_the_model_are_expanded() -> None:
    body = [m.node("Mul", "a a", "b"), helper.make_node("LeakyRelu", ["b"], ["c"], alpha=0.5)]
    body[1].attribute[0].ref_attr_name = "slope"
    body[1].attribute[0].ClearField("f")
    square = helper.make_function(
        "mine", "Square", ["a"], ["c"], body, [helper.make_opsetid("", 21)], ["slope"]
    )
    call = helper.make_node("Square", ["x"], ["y"], domain="mine", slope=0.1)
    proto = m.model(m.graph([call], [m.value("x")], [m.value("y")]), functions=[square])
    np.testing.assert_allclose(loaded(proto)(X)["y"].numpy(), X * X, rtol=1e-6)


def test_a_size_that_is_an_input_is_read() -> None:
    nodes = [m.node("Reshape", "x to", "y")]
    inputs = [m.value("x"), m.value("to", [1], m.INT64)]
    model = loaded(m.model(m.graph(nodes, inputs, [m.value("y", None)])))
    assert model(X, np.array([6]))["y"].shape == (6,)
    with pytest.raises(weft.Unimplemented, match="must be known when the model is compiled"):
        weft.jit(model)(X, np.array([6]))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "the input 'x' is not given"),
        ({"z": X}, "the input 'z' is none of the model's; they are 'x'"),
        ({"x": X.astype(np.float64)}, "the input 'x' is f64[2, 3], but the model takes f32"),
        ({"x": X[:, :2]}, "the input 'x' is f32[2, 2], but the model takes (?, 3)"),
    ],
)
def test_wrong_inputs_are_told(given: dict[str, Any], message: str) -> None:
    with pytest.raises(weft.WeftError) as caught:
        loaded(m.perceptron())(**given)
    assert message in str(caught.value)


@pytest.mark.parametrize(("kind", "gates", "linear", "products"), [
    ("RNN", 1, 0, 1), ("GRU", 3, 1, 1), ("GRU", 3, 0, 2), ("LSTM", 4, 0, 1),
])  # fmt: skip
def test_a_step_of_a_recurrence_multiplies_only_its_state(
    kind: str, gates: int, linear: int, products: int
) -> None:
    """What a step takes of x is one product for all steps; gates share those of the state."""
    rng = np.random.default_rng(0)
    sizes = {"x": (5, 2, 3), "w": (1, gates * 4, 3), "r": (1, gates * 4, 4), "b": (1, gates * 8)}
    given = {name: rng.standard_normal(size, np.float32) for name, size in sizes.items()}
    more: dict[str, Any] = {"linear_before_reset": linear} if kind == "GRU" else {}
    cell = m.node(kind, "x w r b", "y", hidden_size=4, **more)
    proto = m.model(
        m.graph([cell], [m.value(n, size) for n, size in sizes.items()], [m.value("y", None)])
    )
    model = loaded(proto)
    (wanted,) = expected(proto, **given)
    np.testing.assert_allclose(model(**given)["y"].numpy(), wanted, rtol=1e-5, atol=1e-6)
    text = str(weft.ptir.dumps(weft.jit(model).program(**given), "text"))
    body = text[text.index("scan") :]
    assert (body.count("dot_general"), text.count("dot_general")) == (products, products + 1)


def test_transposed_convolutions_make_only_what_is_wanted() -> None:
    """Padding shortens the product, and the bias is added to it."""
    rng = np.random.default_rng(0)
    sizes = {"x": (1, 3, 5, 4), "w": (3, 2, 4, 3), "b": (2,)}
    given = {name: rng.standard_normal(size, np.float32) for name, size in sizes.items()}
    for pads in ([1, 1, 1, 1], [2, 0, 1, 1]):
        node = m.node("ConvTranspose", "x w b", "y", strides=[2, 3], pads=pads)
        values = [m.value(name, size) for name, size in sizes.items()]
        proto = m.model(m.graph([node], values, [m.value("y", None)]))
        (wanted,) = expected(proto, **given)
        made = weft.jit(loaded(proto))
        np.testing.assert_allclose(made(**given)["y"].numpy(), wanted, rtol=1e-5, atol=1e-5)
        text = str(weft.ptir.dumps(made.program(**given), "text"))
        (product,) = (line for line in text.splitlines() if "dot_general" in line)
        assert product.endswith(f": f32[1, {wanted.shape[2]}, {wanted.shape[3]}, 2]")
