"""Pools, against ONNX's own evaluator: ceil_mode, dilations, padding that counts, indices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from tests.support import onnx_models as m
from weft.interop.onnx import backend

OPTIONS: list[dict[str, Any]] = [
    {"kernel_shape": [2, 2], "strides": [2, 2]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
    {"kernel_shape": [2, 2], "dilations": [2, 2]},
    {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
    {"kernel_shape": [2, 3], "auto_pad": "SAME_UPPER", "strides": [1, 2]},
    {"kernel_shape": [2, 3], "auto_pad": "SAME_LOWER"},
]


OPS = ["MaxPool", "AveragePool", "AveragePool with padding", "LpPool"]
# ONNX's evaluator scales the sums of an LpPool's windows that reach over the end; nothing says so.
PAIRS = [(op, each) for op in OPS for each in OPTIONS if op != "LpPool" or "ceil_mode" not in each]


@pytest.mark.parametrize(("op", "options"), PAIRS)
def test_pools_agree_with_onnx(op: str, options: dict[str, Any]) -> None:
    more: dict[str, Any] = {"count_include_pad": 1} if op.endswith("padding") else {}
    nodes = [m.node(op.split(maxsplit=1)[0], "x", "y", **options, **more)]
    proto = m.model(m.graph(nodes, [m.value("x", [1, 2, 6, 7])], [m.value("y", None)]), 22)
    x = np.random.default_rng(0).standard_normal((1, 2, 6, 7), np.float32)
    wanted: Any = next(iter(ReferenceEvaluator(proto).run(None, {"x": x})))
    (made,) = backend.prepare(proto, backend="reference").run([x])
    np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("order", [0, 1])
def test_indices_count_all_elements(order: int) -> None:
    nodes = [m.node("MaxPool", "x", "y i", kernel_shape=[2, 2], storage_order=order)]
    outputs = [m.value("y", None), m.value("i", None, m.INT64)]
    proto = m.model(m.graph(nodes, [m.value("x", [2, 2, 3, 4])], outputs), 22)
    x = np.random.default_rng(0).permutation(48).astype(np.float32).reshape(2, 2, 3, 4)
    values, places = backend.prepare(proto, backend="reference").run([x])
    flat = x if order == 0 else x.swapaxes(2, 3)
    np.testing.assert_array_equal(flat.reshape(-1)[places], values)
