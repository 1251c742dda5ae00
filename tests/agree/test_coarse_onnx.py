"""Coarse ops against the reference evaluator of ONNX, over their attributes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.cases import each
from tests.support.one_op import Array
from weft.foundation.dtypes import as_dtype
from weft.ptir import Builder

onnx = pytest.importorskip("onnx", reason="the oracle is the onnx package: pip install onnx")
reference = pytest.importorskip("onnx.reference")
OPSET = 21


def of_onnx(op: str, inputs: Sequence[Array | None], outputs: int = 1, **attrs: Any) -> list[Array]:
    """The results of one ONNX op."""
    helper = onnx.helper
    named = {f"x{i}": a for i, a in enumerate(inputs) if a is not None}
    names = [f"x{i}" if a is not None else "" for i, a in enumerate(inputs)]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, names, results, **attrs)
    graph = helper.make_graph(
        [node],
        op,
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in named.items()
        ],
        [helper.make_empty_tensor_value_info(n) for n in results],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    return [np.asarray(a) for a in reference.ReferenceEvaluator(model).run(None, named)]


def ours(name: str, inputs: Sequence[Array], **attrs: Any) -> list[Array]:
    b = Builder()
    parameters = [b.param(as_dtype(a.dtype), a.shape) for a in inputs]
    return weft.run(b.build(b.emit(name, *parameters, **attrs)), inputs)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def close(found: Sequence[Array], wanted: Sequence[Array], rounding: float = 2e-6) -> None:
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=rounding * 10, atol=rounding)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax_and_its_logarithm(axis: int) -> None:
    x = normal(3, 4, 5) * 6
    close(ours("byteir.softmax", [x], axis=axis), of_onnx("Softmax", [x], axis=axis))
    close(ours("byteir.log_softmax", [x], axis=axis), of_onnx("LogSoftmax", [x], axis=axis), 1e-5)


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("epsilon", [1e-5, 0.1])
def test_layer_norm(first: int, epsilon: float) -> None:
    """ONNX normalises all axes from one on."""
    x, axes = normal(2, 3, 4), list(range(first, 3))
    weight, bias = (normal(*x.shape[first:], seed=seed) for seed in (1, 2))
    inputs = [x, weight, bias]
    found = ours("byteir.layer_norm", inputs, epsilon=epsilon, axis=axes, results=3)
    wanted = of_onnx("LayerNormalization", inputs, 3, axis=first, epsilon=epsilon)
    close(found, wanted, 1e-5)


@pytest.mark.parametrize("axis", [0, 1])
def test_l2_norm(axis: int) -> None:
    x = normal(3, 4)
    found = ours("byteir.l2_norm", [x], epsilon=0.0, axis=[axis])
    close(found, of_onnx("LpNormalization", [x], axis=axis, p=2), 1e-6)


@pytest.mark.parametrize("form", ["none", "tanh"])
def test_gelu(form: str) -> None:
    x = normal(40) * 3
    close(ours("byteir.gelu", [x], approximate=form), of_onnx("Gelu", [x], approximate=form), 1e-5)


def test_erf_and_sums() -> None:
    x = [normal(7, seed=seed) for seed in range(4)]
    close(ours("byteir.erf", x[:1]), of_onnx("Erf", x[:1]))
    close(ours("byteir.addn", x), of_onnx("Sum", x))


@pytest.mark.parametrize("row", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize(
    ("axis", "keep", "last"), [*itertools.product([0, 1], [False, True], [False, True])]
)
def test_positions_of_extremes(row: str, axis: int, keep: bool, last: bool) -> None:
    x = np.random.default_rng(3).integers(0, 3, (4, 6)).astype(np.float32)
    name = {"ArgMax": "byteir.arg_max", "ArgMin": "byteir.arg_min"}[row]
    found = ours(name, [x], axis=axis, keep_dims=keep, select_last_index=last)
    wanted = of_onnx(row, [x], axis=axis, keepdims=int(keep), select_last_index=int(last))
    np.testing.assert_array_equal(found[0], wanted[0])


@pytest.mark.parametrize(("axis", "k"), [(0, 1), (1, 3), (2, 5)])
def test_top_k(axis: int, k: int) -> None:
    x = np.random.default_rng(4).permutation(60).reshape(3, 4, 5).astype(np.float32)
    found = ours("byteir.top_k", [x], axis=[axis], k=k)
    wanted = of_onnx("TopK", [x, np.array([k])], 2, axis=axis, largest=1, sorted=1)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_one_hot(axis: int) -> None:
    indices, depth = np.array([[0, 3, -1], [2, -4, 1]]), 4
    found = ours(
        "byteir.one_hot", [indices], depth=depth, axis=axis, on_value=2.5, off_value=-1.0,
        dtype="f32",
    )  # fmt: skip
    values = np.array([-1.0, 2.5], np.float32)
    wanted = of_onnx("OneHot", [indices, np.array(depth), values], axis=axis)
    np.testing.assert_array_equal(found[0], wanted[0])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_quantisation(dtype: Any, axis: int | None) -> None:
    x = normal(4, 6) * 40
    extent = () if axis is None else (x.shape[axis],)
    rng = np.random.default_rng(7)
    scale = rng.uniform(0.1, 0.9, extent).astype(np.float32)
    zero = rng.integers(0, 50, extent).astype(dtype)
    attrs = {} if axis is None else {"axis": axis}
    (found,) = ours("byteir.quantize", [x, scale, zero], axis=axis)
    (wanted,) = of_onnx("QuantizeLinear", [x, scale, zero], **attrs)
    np.testing.assert_array_equal(found, wanted)
    real = ours("byteir.dequantize", [found, scale, zero], axis=axis, dtype="f32")
    close(real, of_onnx("DequantizeLinear", [found, scale, zero], **attrs))


SIZES = [((1, 1, 4, 4), (1, 1, 8, 8)), ((1, 2, 5, 3), (1, 2, 7, 4)), ((1, 1, 6, 6), (1, 1, 3, 2))]


@each(("old", "new"), SIZES)
@each("mode", ["nearest", "linear"])
@each("coordinates", ["asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners"])
def test_resize(old: tuple[int, ...], new: tuple[int, ...], mode: str, coordinates: str) -> None:
    x, target = normal(*old), np.array(new)
    found = ours(
        "byteir.resize", [x, target], target_mode="size", mode=mode, shape=new,
        coordinate_transformation_mode=coordinates,
    )  # fmt: skip
    wanted = of_onnx(
        "Resize", [x, None, None, target], mode=mode, nearest_mode="floor",
        coordinate_transformation_mode=coordinates,
    )  # fmt: skip
    close(found, wanted, 1e-5)


def test_non_zero() -> None:
    x = np.array([[0.0, 1.5, 0.0], [np.nan, 0.0, -2.0]], np.float32)
    (found,) = ours("byteir.non_zero", [x], bound=5)
    (wanted,) = of_onnx("NonZero", [x])
    np.testing.assert_array_equal(found[:3], wanted.T)
    assert (found[3:] == -1).all()


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(
    ("stride", "pad", "dilation"),
    [
        ((1, 1), (0, 0, 0, 0), (1, 1)),
        ((2, 1), (1, 2, 0, 1), (1, 1)),
        ((1, 2), (1, 1, 1, 1), (2, 1)),
    ],
)
def test_convolution(
    groups: int,
    with_bias: bool,
    stride: tuple[int, ...],
    pad: tuple[int, ...],
    dilation: tuple[int, ...],
) -> None:
    x, weight = normal(2, 4, 7, 6), normal(6, 4 // groups, 3, 2, seed=1)
    inputs = [x, weight, normal(6, seed=2)][: 2 + with_bias]
    found = ours(
        "weft.conv", inputs, layout="NCHW", stride=stride, pad=pad, dilation=dilation, groups=groups
    )
    wanted = of_onnx("Conv", inputs, strides=stride, pads=pad, dilations=dilation, group=groups)
    close(found, wanted, 1e-5)


@pytest.mark.parametrize("size", [5, 9])
def test_convolution_of_lines_and_volumes(size: int) -> None:
    x, weight = normal(2, 3, size), normal(4, 3, 3, seed=1)
    close(ours("weft.conv", [x, weight], layout="NCW"), of_onnx("Conv", [x, weight]), 1e-5)
    x, weight = normal(1, 2, size, 4, 5), normal(3, 2, 2, 3, 2, seed=1)
    close(ours("weft.conv", [x, weight], layout="NCDHW"), of_onnx("Conv", [x, weight]), 1e-5)
