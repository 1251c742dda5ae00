"""Every registered implementation of a functional op agrees with the op's default, on every backend
that runs here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from tests.support.tensors import Array, data, wide
from weft import functional as F
from weft.ops.functional import registry

Call = tuple[list[Array], dict[str, Any]]

CALLS: dict[str, list[Call]] = {
    "attention": [
        ([data((1, 4, 5, 8)), data((1, 2, 7, 8)), data((1, 2, 7, 8), seed=2)], {"causal": True}),
        ([data((2, 2, 3, 4)), data((2, 2, 200, 4)), data((2, 2, 200, 4), seed=1)], {}),
    ],
    "matmul": [
        ([data((2, 3, 4)), data((4, 5))], {}),
        ([data((2, 1, 3, 4)), data((3, 4, 5))], {}),
    ],
    "conv1d": [([data((2, 4, 9)), data((6, 2, 3)), data((6,))], {"groups": 2, "padding": 1})],
    "conv2d": [
        ([data((1, 3, 6, 6)), data((4, 3, 3, 3))], {"stride": 2, "padding": "same"}),
        ([data((1, 6, 6, 3)), data((4, 3, 3, 3)), data((4,))], {"layout": "NHWC"}),
    ],
    "conv3d": [([data((1, 2, 4, 4, 4)), data((3, 2, 2, 2, 2))], {"dilation": 2})],
    "layer_norm": [([data((3, 7)), data((7,)), data((7,), seed=1)], {"normalized_shape": 7})],
}


def call(op: str, arrays: list[Array], settings: dict[str, Any], dtype: Any) -> Array:
    tensors = [weft.asarray(a.astype(dtype)) for a in arrays]
    if op == "layer_norm":
        x, weight, bias = tensors
        return wide(F.layer_norm(x, weight=weight, bias=bias, **settings).numpy())
    return wide(getattr(F, op)(*tensors, **settings).numpy())


def test_every_op_with_a_choice_is_compared() -> None:
    assert {op for op in registry._ENTRIES if len(F.implementations(op)) > 1} == set(CALLS)


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [("reference", np.float32), ("reference", np.float64), ("cpu", np.float32)],
)
@pytest.mark.parametrize(
    ("op", "name"), [(op, name) for op in CALLS for name in F.implementations(op)[1:]]
)
def test_implementations_agree(op: str, name: str, dtype: Any, backend: str) -> None:
    tolerance = 2e-5 if dtype is np.float32 else 1e-12
    for arrays, settings in CALLS[op]:
        with weft.graph(backend=backend):
            with F.overrides({op: "default"}):
                expected = call(op, arrays, settings, dtype)
            with F.overrides({op: f"force={name}"}):
                found = call(op, arrays, settings, dtype)
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
