"""Quantisation to and from fp8: against a search over all its values, and against ONNX."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

import weft
from tests.support.cases import each
from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.one_op import Array, apply, random_array
from weft.foundation.dtypes import BF16, F16, F32, F64, FP8_E4M3, FP8_E5M2, DType, as_dtype
from weft.ptir import Builder, Program
from weft.ptir.gradient import gradient
from weft.ptir.ops.quantisation import Dequantize, Quantize
from weft.testing.compare import compare

FP8 = [FP8_E4M3, FP8_E5M2]
WIDE = [F16, BF16, F32, F64]
LARGEST = {FP8_E4M3: 448.0, FP8_E5M2: 57344.0}


def finite_values(dtype: DType) -> list[tuple[float, int]]:
    """Every finite value that is not negative, with its bits."""
    found = np.arange(128, dtype=np.uint8).view(dtype.numpy).astype(float)
    return [(value, bits) for bits, value in enumerate(found.tolist()) if math.isfinite(value)]


def nearest_one(value: float, dtype: DType) -> float:
    """The nearest finite value; of two that are as near, the one with even bits."""
    if math.isnan(value):
        return value
    if math.isinf(value):
        return math.copysign(LARGEST[dtype], value)
    ranked = [(abs(size - abs(value)), bits % 2, size) for size, bits in finite_values(dtype)]
    return math.copysign(min(ranked)[2], value)


def numbers(dtype: DType, output: DType) -> Array:
    """Ties, values around the largest one, subnormals, zeros of both signs, infinities, NaN."""
    top = LARGEST[output]
    found = [0.0, 2.0**-10, 2.0**-17, 0.75 * 2.0**-9, 1.0625, 1.1875, 17.0, 19.0, 27.0]
    found += [top, top * 1.03, top * 1.0714, top * 1.2, 1e4, math.inf, math.nan]
    x = np.asarray([*found, *(-v for v in found)])
    drawn = random_array(F64, (40,), scale=top / 3)
    with np.errstate(over="ignore"):
        return np.asarray(np.concatenate([x, drawn]).astype(dtype.numpy))


def same_bits(found: Array, wanted: Array) -> None:
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    real = ~np.isnan(wanted.astype(np.float32))
    assert np.array_equal(np.isnan(found.astype(np.float32)), ~real)
    np.testing.assert_array_equal(found.view(np.uint8)[real], wanted.view(np.uint8)[real])


@each("output", FP8)
@each("dtype", WIDE)
@each("scale", [1.0, 0.3, 4.0])
def test_quantize_takes_the_nearest_value(dtype: DType, output: DType, scale: float) -> None:
    x, step = numbers(dtype, output), np.asarray(scale).astype(dtype.numpy)
    with np.errstate(all="ignore"):
        quotients = (x / step).astype(dtype.numpy).astype(float)
    wanted = np.asarray([nearest_one(q, output) for q in quotients.tolist()], np.float32)
    same_bits(apply(Quantize(output, None), x, step), wanted.astype(output.numpy))


@each("output", FP8)
def test_the_zero_point_is_added_before_the_rounding(output: DType) -> None:
    x = np.asarray([1.0625, 15.5, -60.0, 1e9, -0.0], np.float32)
    one, zero = np.asarray(1, np.float32), np.asarray(0.5, output.numpy)
    found = apply(Quantize(output, None), x, one, zero).astype(float)
    assert found.tolist() == [nearest_one(v + 0.5, output) for v in x.tolist()]
    none = apply(Quantize(output, None), x, one, np.asarray(0, output.numpy)).astype(float)
    assert none.tolist() == [nearest_one(v, output) for v in x.tolist()]


def test_known_values() -> None:
    x = np.asarray([0.1, 1.0, 464.0, 465.0, 1e6, -np.inf, np.nan], np.float32)
    one = np.asarray(1.0, np.float32)
    found = apply(Quantize(FP8_E4M3, None), x, one).view(np.uint8).tolist()
    assert found == [0x1D, 0x38, 0x7E, 0x7E, 0x7E, 0xFE, 0x7F]
    assert apply(Quantize(FP8_E5M2, None), x, one).view(np.uint8).tolist()[4:6] == [0x7B, 0xFB]


@each("source", FP8)
@each("scale", WIDE)
@each("output", [None, F16, F32, F64, FP8_E5M2])
def test_dequantize_multiplies_every_value(
    source: DType, scale: DType, output: DType | None
) -> None:
    q = np.arange(256, dtype=np.uint8).view(source.numpy)
    steps = np.asarray([0.3, 1.7]).astype(scale.numpy)
    zero = np.asarray([0.0, 0.5]).astype(source.numpy)
    result = output or scale
    wide = np.float64 if F64 in (scale, result) else np.float32
    with np.errstate(all="ignore"):
        plain = q.astype(wide)[:, None] * steps.astype(wide)
        moved = (q.astype(wide)[:, None] - zero.astype(wide)) * steps.astype(wide)
        pair = np.stack([q, q], axis=1)
        for wanted, rest in ((plain, ()), (moved, (zero,))):
            narrow = wanted if result.bits > 8 else wanted.astype(np.float32)
            found = apply(Dequantize(1, output), pair, steps, *rest)
            np.testing.assert_array_equal(
                found.astype(float), narrow.astype(result.numpy).astype(float)
            )


def quantising(dtype: str, output: str, axis: int | None, zero: bool) -> Program:
    b = Builder()
    extent = [] if axis is None else [50]
    x, scale = b.param(dtype, [3, 50]), b.param(dtype, extent)
    rest = [b.param(output, extent)] if zero else []
    q = b.emit("quantize", x, scale, *rest, output_dtype=output, axis=axis)
    return b.build(q, b.emit("dequantize", q, scale, *rest, axis=axis, output_dtype="f32"))


def values_for(program: Program, seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    kinds = [kind for kind in program.main.parameters if isinstance(kind, weft.ptir.TensorType)]
    x = rng.standard_normal((3, 50)) * 500
    x[0, :4] = [1e6, -1e6, np.inf, 0.0]
    drawn = [x, rng.uniform(0.2, 2, kinds[1].static_shape), np.zeros(kinds[1].static_shape)]
    with np.errstate(over="ignore"):
        return [a.astype(k.dtype.numpy) for a, k in zip(drawn, kinds, strict=False)]


@pytest.mark.parametrize("output", ["fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize(("dtype", "axis", "zero"), [("f32", None, False), ("f16", 1, True)])
def test_the_gpu_agrees(dtype: str, output: str, axis: int | None, zero: bool) -> None:
    program = quantising(dtype, output, axis, zero)
    inputs = values_for(program, 1)
    wanted = weft.run(program, inputs, backend="reference")
    found = InterpretedGpu("sm90").compile(program).execute(inputs)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a.astype(float), b.astype(float))
    report = compare(program, inputs, InterpretedGpu("sm90"))
    assert report.agrees, str(report)


@pytest.mark.parametrize("output", FP8, ids=str)
@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize(("axis", "zero"), [(None, False), (1, True)])
def test_onnx_agrees(dtype: str, output: DType, axis: int | None, zero: bool) -> None:
    onnx = pytest.importorskip("onnx", reason="the oracle is the onnx package: pip install onnx")
    reference = pytest.importorskip("onnx.reference")
    program = quantising(dtype, output.name, axis, zero)
    inputs = values_for(program, 2)
    kinds = {ml_dtypes.float8_e4m3fn: "FLOAT8E4M3FN", ml_dtypes.float8_e5m2: "FLOAT8E5M2"}
    kind = getattr(onnx.TensorProto, kinds[output.numpy.type])
    names = ["x", "scale", "zero"][: len(inputs)]
    along = {} if axis is None else {"axis": axis}
    told = {} if zero else {"output_dtype": kind}
    nodes = [
        onnx.helper.make_node("QuantizeLinear", names, ["q"], **along, **told),
        onnx.helper.make_node("DequantizeLinear", ["q", *names[1:]], ["y"], **along),
    ]
    given = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape
        )
        for name, a in zip(names, inputs, strict=True)
    ]
    results = [onnx.helper.make_empty_tensor_value_info(name) for name in ("q", "y")]
    graph = onnx.helper.make_graph(nodes, "quantise", given, results)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)])
    with np.errstate(over="ignore"):
        q, y = reference.ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))
    for backend in ("reference", "cpu"):
        found, back = weft.run(program, inputs, backend=backend)
        assert as_dtype(found.dtype) is output
        np.testing.assert_array_equal(found.astype(float), np.asarray(q).astype(float))
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(back.astype(y.dtype), y)


def test_gradients() -> None:
    """Dequantised values vary with x, the scale and the zero point; quantised ones are steps."""
    q = np.asarray([[1.5, -3.0], [0.25, 8.0]], ml_dtypes.float8_e4m3fn)
    scale, zero = np.asarray([2.0, 0.5], np.float32), np.asarray([0.5, 1.0], q.dtype)
    b = Builder()
    x, s, z = b.param("fp8_e4m3", [2, 2]), b.param("f32", [2]), b.param("fp8_e4m3", [2])
    weights = b.literal(np.asarray([[1.0, 2.0], [3.0, 4.0]], np.float32))
    loss = b.reduce_sum(b.emit("dequantize", x, s, z, axis=1) * weights, [0, 1])
    program = gradient(b.build(loss), [0, 1, 2])
    _, by_x, by_scale, by_zero = weft.run(program, [q, scale, zero])
    assert by_x.astype(float).tolist() == [[2.0, 1.0], [6.0, 2.0]]
    assert by_scale.tolist() == [1.0 - 0.75, -8.0 + 28.0]
    assert by_zero.astype(float).tolist() == [-8.0, -3.0]
