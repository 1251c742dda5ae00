"""Hostile ONNX models: each entry makes one and says what must become of it when it is loaded and
run with ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from onnx import ModelProto, TensorProto, helper
from onnx.numpy_helper import from_array

from tests.support import onnx_models as m

Edit = Callable[[ModelProto], object]
BIG: Final = 1 << 40


def single(op: str, inputs: str = "x", version: int = 21, **attributes: Any) -> ModelProto:
    """One node on x f32[2, 3], with the operands of CONSTANTS by name."""
    used = {name: CONSTANTS[name] for name in inputs.split() if name in CONSTANTS}
    nodes = [m.node(op, inputs, "y", "n", **attributes)]
    body = m.graph(nodes, [m.value("x")], [m.value("y", None)], used)
    return m.model(body, version)


CONSTANTS: Final[dict[str, Any]] = {
    "zero": np.array(0), "one": np.array(1), "minus": np.array([-1]), "ten": np.array(10),
    "huge": np.array([BIG, BIG]), "far": np.array([1 << 62]), "pair": np.array([7, 7]),
    "axes": np.array([5, -9]), "pads": np.array([BIG, 0, BIG, 0]), "none": np.zeros(0, np.int64),
    "half": np.array([0.5, 0.5], np.float32), "nan": np.array([np.nan, np.inf], np.float32),
    "scales": np.array([1e30, 1e30], np.float32), "many": np.array(1 << 50),
    "f": np.ones((2, 3), np.float32), "w": np.ones((1, 1, 3, 3), np.float32),
}  # fmt: skip

SINGLE: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "no-such-operator": ("Unimplemented", {"op": "Frobnicate"}),
    "name-of-a-megabyte": ("Unimplemented", {"op": "A" * 1_000_000}),
    "name-of-newlines": ("Unimplemented", {"op": "A\nB\x00C"}),
    "version-of-the-future": ("Unimplemented", {"op": "Relu", "version": 1 << 40}),
    "version-0": ("Unimplemented", {"op": "Relu", "version": 0}),
    "version-negative": ("Unimplemented", {"op": "Relu", "version": -3}),
    "too-many-operands": ("MalformedModel", {"op": "Relu", "inputs": "x f f"}),
    "too-few-operands": ("MalformedModel", {"op": "Add", "inputs": "x"}),
    "operand-left-out": ("MalformedModel", {"op": "Add", "inputs": "- x"}),
    "no-operands": ("MalformedModel", {"op": "Relu", "inputs": ""}),
    "operand-from-nowhere": ("MalformedModel", {"op": "Relu", "inputs": "nowhere"}),
    "own-result": ("MalformedModel", {"op": "Relu", "inputs": "y"}),
    "reshape-to-nothing-known": ("MalformedModel", {"op": "Reshape", "inputs": "x half"}),
    "reshape-too-large": ("ShapeMismatch", {"op": "Reshape", "inputs": "x huge"}),
    "reshape-two-unknown": ("*", {"op": "Reshape", "inputs": "x axes"}),
    "reshape-wrong-size": ("*", {"op": "Reshape", "inputs": "x pair"}),
    "expand-huge": ("*", {"op": "Expand", "inputs": "x huge"}),
    "expand-far": ("*", {"op": "Expand", "inputs": "x far"}),
    "tile-huge": ("*", {"op": "Tile", "inputs": "x huge"}),
    "tile-negative": ("*", {"op": "Tile", "inputs": "x axes"}),
    "pad-huge": ("ResourceExceeded", {"op": "Pad", "inputs": "x pads"}),
    "pad-too-few": ("*", {"op": "Pad", "inputs": "x one"}),
    "pad-odd-mode": ("MalformedModel", {"op": "Pad", "inputs": "x pads", "mode": "sideways"}),
    "full-huge": ("ResourceExceeded", {"op": "ConstantOfShape", "inputs": "huge"}),
    "full-negative": ("*", {"op": "ConstantOfShape", "inputs": "axes"}),
    "range-huge": ("ResourceExceeded", {"op": "Range", "inputs": "zero many one"}),
    "range-no-step": ("InvalidAttributeValue", {"op": "Range", "inputs": "zero ten zero"}),
    "squeeze-odd-axes": ("*", {"op": "Squeeze", "inputs": "x axes"}),
    "unsqueeze-odd-axes": ("InvalidAttributeValue", {"op": "Unsqueeze", "inputs": "x axes"}),
    "unsqueeze-axis-twice": ("InvalidAttributeValue", {"op": "Unsqueeze", "inputs": "x pair"}),
    "transpose-odd": ("*", {"op": "Transpose", "perm": [0, 0]}),
    "transpose-long": ("*", {"op": "Transpose", "perm": list(range(100))}),
    "concat-odd-axis": ("*", {"op": "Concat", "inputs": "x f", "axis": 9}),
    "concat-axis-lowest": ("*", {"op": "Concat", "inputs": "x f", "axis": -(1 << 63)}),
    "slice-no-step": (
        "InvalidAttributeValue", {"op": "Slice", "inputs": "x minus far zeros zeros"}),
    "split-too-many": ("*", {"op": "Split", "inputs": "x pair"}),
    "split-none": ("*", {"op": "Split", "num_outputs": 0}),
    "flatten-odd-axis": ("*", {"op": "Flatten", "axis": 77}),
    "gather-out": ("*", {"op": "Gather", "inputs": "x ten"}),
    "gather-odd-axis": ("InvalidAttributeValue", {"op": "Gather", "inputs": "x zero", "axis": 8}),
    "scatter-out": ("*", {"op": "ScatterND", "inputs": "x pair2 f"}),
    "top-k-huge": ("*", {"op": "TopK", "inputs": "x far"}),
    "one-hot-huge": ("*", {"op": "OneHot", "inputs": "pair many half"}),
    "cumsum-odd-axis": ("InvalidAttributeValue", {"op": "CumSum", "inputs": "x ten"}),
    "reduce-odd-axes": ("InvalidAttributeValue", {"op": "ReduceSum", "inputs": "x axes"}),
    "argmax-odd-axis": ("*", {"op": "ArgMax", "axis": 12}),
    "softmax-odd-axis": ("*", {"op": "Softmax", "axis": 12}),
    "cast-nowhere": ("MalformedModel", {"op": "Cast"}),
    "cast-to-99": ("Unimplemented", {"op": "Cast", "to": 99}),
    "cast-to-strings": ("Unimplemented", {"op": "Cast", "to": TensorProto.STRING}),
    "resize-huge": ("*", {"op": "Resize", "inputs": "x - scales"}),
    "resize-nan": ("InvalidAttributeValue", {"op": "Resize", "inputs": "x - nan"}),
    "resize-odd-mode": ("MalformedModel", {"op": "Resize", "inputs": "x - half", "mode": "fancy"}),
    "resize-neither": ("MalformedModel", {"op": "Resize", "inputs": "x"}),
    "resize-sizes-huge": ("ResourceExceeded", {"op": "Resize", "inputs": "x - - huge"}),
    "conv-wrong-rank": ("*", {"op": "Conv", "inputs": "x w"}),
    "conv-odd-padding": ("*", {"op": "Conv", "inputs": "w w", "pads": [1, 2, 3]}),
    "conv-no-stride": ("*", {"op": "Conv", "inputs": "w w", "strides": [0, 0]}),
    "conv-huge-padding": ("*", {"op": "Conv", "inputs": "w w", "pads": [BIG] * 4}),
    "conv-odd-auto-pad": ("MalformedModel", {"op": "Conv", "inputs": "w w", "auto_pad": "SOME"}),
    "conv-no-groups": ("*", {"op": "Conv", "inputs": "w w", "group": 0}),
    "pool-no-window": ("MalformedModel", {"op": "MaxPool", "inputs": "w"}),
    "pool-window-0": ("MalformedModel", {"op": "MaxPool", "inputs": "w", "kernel_shape": [0, 0]}),
    "pool-window-huge": ("*", {"op": "MaxPool", "inputs": "w", "kernel_shape": [BIG, BIG]}),
    "einsum-odd": ("*", {"op": "Einsum", "equation": "ij,,->->k"}),
    "einsum-none": ("MalformedModel", {"op": "Einsum"}),
    "matmul-misfit": ("*", {"op": "MatMul", "inputs": "x f"}),
    "gemm-misfit": ("*", {"op": "Gemm", "inputs": "x f"}),
    "lstm-misfit": ("*", {"op": "LSTM", "inputs": "x f f"}),
    "gru-of-3": ("*", {"op": "GRU", "inputs": "w w w"}),
    "grid-sample-misfit": ("*", {"op": "GridSample", "inputs": "x f"}),
    "roi-align-misfit": ("*", {"op": "RoiAlign", "inputs": "x f one"}),
    "depth-to-space-0": ("*", {"op": "DepthToSpace", "inputs": "w", "blocksize": 0}),
    "space-to-depth-huge": ("*", {"op": "SpaceToDepth", "inputs": "w", "blocksize": BIG}),
    "attention-misfit": ("*", {"op": "Attention", "inputs": "x f f", "version": 24}),
    "dft-odd-axis": ("*", {"op": "DFT", "inputs": "x - ten", "version": 20}),
    "mel-huge": ("*", {"op": "MelWeightMatrix", "inputs": "many many one one one"}),
    "bit-shift-of-floats": ("*", {"op": "BitShift", "inputs": "x f", "direction": "LEFT"}),
    "bit-shift-no-way": ("MalformedModel", {"op": "BitShift", "inputs": "one one"}),
    "quantise-odd-axis": ("*", {"op": "QuantizeLinear", "inputs": "x half", "axis": 99}),
    "sequence-at-of-a-tensor": ("*", {"op": "SequenceAt", "inputs": "x zero"}),
    "sequence-of-none": ("MalformedModel", {"op": "ConcatFromSequence", "axis": 0}),
    "nms-misfit": ("*", {"op": "NonMaxSuppression", "inputs": "x f"}),
    "if-without-branches": ("MalformedModel", {"op": "If", "inputs": "one"}),
    "loop-without-a-body": ("MalformedModel", {"op": "Loop", "inputs": "ten"}),
    "divide-by-zero": ("*", {"op": "Div", "inputs": "ten zero"}),
    "trilu-far": ("ok", {"op": "Trilu", "inputs": "x many"}),
    "odd-but-fine": ("ok", {"op": "Relu", "surprise": 3}),
}  # fmt: skip
"""By name: what must become of it ("*" is any sentence), and the one node it has."""
CONSTANTS.update({
    "pad4": np.array([1, 0, 0, 2]), "zeros": np.array([0]),
    "pair2": np.array([[7], [7]]),
})  # fmt: skip


def edited(edit: Edit) -> bytes:
    """A perceptron that something was done to."""
    made = m.perceptron()
    edit(made)
    return bytes(made.SerializeToString())


def weights(made: ModelProto) -> Any:
    return made.graph.initializer


def weight(made: ModelProto) -> Any:
    return made.graph.initializer[0]


def _lengthen(made: ModelProto) -> None:
    made.graph.initializer[0].dims[:] = [1 << 30, 1 << 30]


def _external(location: str, offset: str = "0", length: str = "48") -> Edit:
    def edit(made: ModelProto) -> None:
        stored = made.graph.initializer[0]
        stored.ClearField("raw_data")
        stored.data_location = TensorProto.EXTERNAL
        for key, said in (("location", location), ("offset", offset), ("length", length)):
            stored.external_data.add(key=key, value=said)

    return edit


def _cycle(made: ModelProto) -> None:
    made.graph.node[0].input[0] = "y"


EDITS: Final[dict[str, tuple[str, Edit]]] = {
    "no-graph": ("MalformedModel", lambda p: p.ClearField("graph")),
    "no-operators": ("MalformedModel", lambda p: p.ClearField("opset_import")),
    "two-versions": ("MalformedModel", lambda p: p.opset_import.add(domain="ai.onnx", version=3)),
    "odd-domain": ("Unimplemented", lambda p: setattr(p.graph.node[0], "domain", "com.nobody")),
    "odd-import": ("ok", lambda p: p.opset_import.add(domain="x.y", version=1)),
    "cycle": ("MalformedModel", _cycle),
    "output-from-nowhere": ("MalformedModel", lambda p: p.graph.output.append(m.value("q"))),
    "weight-missing": ("MalformedModel", lambda p: p.graph.initializer.pop(0)),
    "weight-twice": ("MalformedModel", lambda p: weights(p).append(weights(p)[0])),
    "node-twice": ("MalformedModel", lambda p: p.graph.node.append(p.graph.node[0])),
    "input-twice": ("MalformedModel", lambda p: p.graph.input.append(p.graph.input[0])),
    "weight-cut": ("MalformedModel", lambda p: setattr(weight(p), "raw_data", b"abc")),
    "weight-longer": ("MalformedModel", lambda p: setattr(weight(p), "raw_data", b"0" * 99)),
    "weight-claims-2-to-the-60": ("ResourceExceeded", _lengthen),
    "weight-negative": ("MalformedModel", lambda p: weight(p).dims.append(-1)),
    "weight-of-rank-1000": ("MalformedModel", lambda p: weight(p).dims.extend([1] * 1000)),
    "weight-of-type-77": ("Unimplemented", lambda p: setattr(weight(p), "data_type", 77)),
    "weight-of-type-0": ("Unimplemented", lambda p: setattr(weight(p), "data_type", 0)),
    "weight-of-strings": ("MalformedModel", lambda p: setattr(weight(p), "data_type", 8)),
    "weight-empty": ("MalformedModel", lambda p: weight(p).ClearField("raw_data")),
    "weight-of-other-shape": ("*", lambda p: weight(p).dims.pop()),
    "data-elsewhere": ("UserError", _external("weights.bin")),
    "data-above": ("UserError", _external("../../etc/passwd")),
    "data-absolute": ("UserError", _external("/etc/passwd")),
    "sparse-weight": ("Unimplemented", lambda p: p.graph.sparse_initializer.add()),
    "attribute-twice": ("MalformedModel", lambda p: p.graph.node[0].attribute.extend(
        [helper.make_attribute("transB", 0)] * 2)),
    "attribute-of-no-kind": ("Unimplemented", lambda p: p.graph.node[0].attribute.add(name="q")),
    "attribute-of-another-kind": ("*", lambda p: p.graph.node[0].attribute.append(
        helper.make_attribute("transB", "yes"))),
}  # fmt: skip


def nested(depth: int) -> bytes:
    """Choices inside of choices."""
    body = m.graph([m.node("Relu", "x", "y")], [], [m.value("y", None)])
    for level in range(depth):
        inner = m.node("If", "flag", f"y{level}", then_branch=body, else_branch=body)
        body = m.graph([inner], [], [m.value(f"y{level}", None)])
    whole = m.graph(list(body.node), [m.value("x")], list(body.output), {"flag": np.array(True)})
    return bytes(m.model(whole).SerializeToString())


def chain(count: int) -> bytes:
    """Very many nodes, one after the other."""
    nodes = [m.node("Neg", "x" if not i else f"v{i}", f"v{i + 1}") for i in range(count)]
    body = m.graph(nodes, [m.value("x")], [m.value(f"v{count}")])
    return bytes(m.model(body).SerializeToString())


def doubling(levels: int) -> bytes:
    """Functions that each call the next one twice."""
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("mine", 1)]
    functions = []
    for level in range(levels):
        op, domain = (f"F{level + 1}", "mine") if level + 1 < levels else ("Neg", "")
        nodes = [helper.make_node(op, [a], [b], domain=domain) for a, b in (("a", "b"), ("b", "c"))]
        functions.append(helper.make_function("mine", f"F{level}", ["a"], ["c"], nodes, imports))
    return _calling(functions)


def _calling(functions: list[Any]) -> bytes:
    call = helper.make_node("F0", ["x"], ["y"], domain="mine")
    body = m.graph([call], [m.value("x")], [m.value("y")])
    made = helper.make_model(
        body, functions=functions,
        opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("mine", 1)],
    )  # fmt: skip
    return bytes(made.SerializeToString())


def recursive(length: int) -> bytes:
    """Functions that call each other in a ring."""
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("mine", 1)]
    functions = [
        helper.make_function(
            "mine", f"F{i}", ["a"], ["c"],
            [helper.make_node(f"F{(i + 1) % length}", ["a"], ["c"], domain="mine")], imports,
        )
        for i in range(length)
    ]  # fmt: skip
    return _calling(functions)


def looping(count: int, forever: bool = False, counted: bool = True) -> bytes:
    """A loop of very many steps, or one that never ends."""
    inner = [m.node("Identity", "on", "more"), m.node("Neg", "state", "next")]
    if forever:
        inner[0] = m.node("Less", "i far", "more")
    body = m.graph(
        inner, [m.value("i", [], 7), m.value("on", [], 9), m.value("state")],
        [m.value("more", [], 9), m.value("next")],
    )  # fmt: skip
    nodes = [
        m.node("Loop", "count true x" if counted and not forever else "- true x", "y", body=body)
    ]
    constants = {"count": np.array(count), "true": np.array(True), "far": np.array(1 << 62)}
    whole = m.graph(nodes, [m.value("x")], [m.value("y")], constants)
    return bytes(m.model(whole).SerializeToString())


def deep_graph() -> bytes:
    """A message nested deeper than its readers go, which no library writes."""
    inner = from_array(np.ones(1, np.float32)).SerializeToString()
    for _ in range(300):
        inner = b"\x3a" + _varint(len(inner)) + inner
    return bytes(inner)


def _varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found += bytes([number % 128 + 128])
        number //= 128
    return found + bytes([number])


def files() -> Iterator[tuple[str, str, Callable[[], bytes]]]:
    """Name, what must become of it, and what makes it."""
    for name, (expected, made) in SINGLE.items():
        yield name, expected, lambda made=made: single(**made).SerializeToString()  # type: ignore[misc]
    for name, (expected, edit) in EDITS.items():
        yield name, expected, lambda edit=edit: edited(edit)  # type: ignore[misc]
    whole = m.perceptron().SerializeToString()
    yield "empty", "MalformedModel", lambda: b""
    yield "zeros", "MalformedModel", lambda: b"\0" * 1_000
    yield "prose", "MalformedModel", lambda: b"this is no model" * 100
    yield "cut", "MalformedModel", lambda: whole[: len(whole) // 2]
    yield "nested-messages", "MalformedModel", deep_graph
    yield "nested-choices", "ok", lambda: nested(12)
    yield "chain", "ok", lambda: chain(10_000)
    yield "very-long-chain", "ok", lambda: chain(100_000)
    yield "functions-doubling", "ResourceExceeded", lambda: doubling(40)
    yield "functions-doubling-far", "ResourceExceeded", lambda: doubling(3_000)
    yield "function-of-itself", "MalformedModel", lambda: recursive(1)
    yield "functions-in-a-ring", "MalformedModel", lambda: recursive(7)
    yield "long-loop", "ok", lambda: looping(5_000)
    yield "very-long-loop", "ResourceExceeded", lambda: looping(1 << 40)
    yield "endless-loop", "ResourceExceeded", lambda: looping(0, forever=True)
    yield "loop-without-a-count", "ResourceExceeded", lambda: looping(0, counted=False)


FILES: Final = {name: (expected, make) for name, expected, make in files()}
SLOW: Final = {"very-long-chain"}
