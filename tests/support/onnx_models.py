"""Small ONNX models, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper
from onnx.numpy_helper import from_array

FLOAT = TensorProto.FLOAT
INT64 = TensorProto.INT64


def value(name: str, shape: Sequence[Any] | None = (2, 3), kind: int = FLOAT) -> ValueInfoProto:
    """An input or output."""
    return helper.make_tensor_value_info(name, kind, shape)


def node(op: str, inputs: str, outputs: str, name: str = "", **attributes: Any) -> NodeProto:
    """A node; names are separated by blanks, and `-` is left out."""
    split = [["" if each == "-" else each for each in names.split()] for names in (inputs, outputs)]
    return helper.make_node(op, split[0], split[1], name=name, **attributes)


def graph(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    constants: dict[str, Any] | None = None,
) -> GraphProto:
    """A graph with initialisers by name."""
    stored = [from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
    return helper.make_graph(list(nodes), "test", list(inputs), list(outputs), stored)


def model(body: GraphProto, version: int = 21, functions: Sequence[Any] = ()) -> ModelProto:
    """A model of the standard operators in one version."""
    imports = [helper.make_opsetid("", version)]
    imports += [helper.make_opsetid(each.domain, 1) for each in functions]
    made = helper.make_model(body, opset_imports=imports, functions=list(functions))
    made.ir_version = 10
    return made


def perceptron() -> ModelProto:
    """Two layers, f32[?, 3] to f32[?, 2]."""
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.standard_normal((3, 4), np.float32), "b1": np.zeros(4, np.float32),
        "w2": rng.standard_normal((4, 2), np.float32), "b2": np.ones(2, np.float32),
    }  # fmt: skip
    nodes = [
        node("Gemm", "x w1 b1", "h", "first"), node("Relu", "h", "r", "act"),
        node("Gemm", "r w2 b2", "y", "second"),
    ]  # fmt: skip
    return model(graph(nodes, [value("x", ["batch", 3])], [value("y", ["batch", 2])], weights))
