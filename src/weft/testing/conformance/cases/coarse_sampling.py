"""Random tensors of a given state, and quantisation with a zero point that is always there."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from weft.foundation.dtypes import F16, F32, F64, I1, DType, in_order
from weft.ptir.builder import Builder, Value
from weft.ptir.op import SPELLINGS
from weft.testing.conformance.case import Case, Trial, Wanted, exactly
from weft.testing.conformance.cases.common import (
    Array,
    Dims,
    Shape,
    apply,
    case,
    defined,
    program,
    trial,
)
from weft.testing.conformance.data import edges, sample, source
from weft.testing.conformance.oracles import philox, quantisation
from weft.testing.conformance.oracles.rounding import from_whole, nearest
from weft.testing.conformance.tolerance import CORRECTLY_ROUNDED, Ulps, ulp

_SHAPES: dict[str, Shape] = {
    "with-shape": (3, 5),
    "odd": (3, 5, 7),
    "rank0": (),
    "empty": (2, 0),
    "dynamic": (5, 3),
}
_RANGES = {"unit": (0.0, 1.0), "shifted": (-3.0, 5.0), "narrow": (1.0, 1.5), "none": (2.0, 2.0)}


def cases() -> Iterator[Case]:
    """Shapes, states and ranges; layouts and dtypes."""
    for row in ("byteir.rng_uniform", "byteir.rng_normal"):
        for dtype in defined(row):
            for name in _SHAPES:
                make = partial(_sampling_trial, row, dtype, name, (-1.0, 3.0), 7, 2)
                yield case(row, dtype, name, trial=make)
            for name, ends in _RANGES.items():
                make = partial(_sampling_trial, row, dtype, "odd", ends, 7, 2)
                yield case(row, dtype, f"range={name}", trial=make)
            for seed, offset in ((-1, 0), (2**40, 2**33 + 1), (0, -5)):
                make = partial(_sampling_trial, row, dtype, "odd", (0.0, 1.0), seed, offset)
                yield case(row, dtype, f"seed={seed}", f"offset={offset}", trial=make)
    yield from _cases_of_quantize()


def _sampling_trial(
    row: str, dtype: DType, name: str, ends: tuple[float, float], seed: int, offset: int
) -> Trial:
    shape = _SHAPES[name]
    inputs = [nearest(np.array(end), dtype) for end in ends]
    inputs += [np.array(seed, np.int64), np.array(offset, np.int64)]
    if name == "with-shape":
        inputs.append(np.array(shape, np.int64))
    dims: list[Dims] = [x.shape for x in inputs]
    if name == "dynamic":
        inputs.append(sample(I1, shape, row))
        dims.append(["?B", 3])

    def body(b: Builder, *operands: Value) -> Value:
        given = operands[:4] if name == "dynamic" else operands
        return b.emit(row, *given, dims=dims[-1] if name == "dynamic" else shape)

    key, counter = seed % 2**64, offset % 2**64
    state = (key, counter % 2**32, counter // 2**32)
    wanted = _uniform_wanted if row == "byteir.rng_uniform" else _normal_wanted
    want = wanted(ends, dtype, shape, state)
    return trial(program(inputs, body, dims=dims), inputs, want)


def _uniform_wanted(
    ends: tuple[float, float], dtype: DType, shape: Shape, state: tuple[int, int, int]
) -> Wanted:
    low, high = ends
    units = philox.uniform(shape, dtype, *state).astype(np.longdouble)
    found = nearest((low + (high - low) * units).astype(np.float64), dtype)
    last = np.nextafter(np.array(high, dtype.numpy), np.array(low, dtype.numpy))
    inside = np.where(found < np.array(high, dtype.numpy), found, last)
    result = inside if low < high else np.full(shape, low)
    return exactly(result.astype(dtype.numpy))


def _normal_wanted(
    ends: tuple[float, float], dtype: DType, shape: Shape, state: tuple[int, int, int]
) -> Wanted:
    mean, stddev = ends
    drawn, radius = philox.normal(shape, dtype, *state)
    # What is drawn is rounded to the dtype, and then scaled.
    room = 4 * ulp(drawn, dtype) + radius * 2.0**-49
    exact = mean + stddev * nearest(drawn.astype(np.float64), dtype).astype(np.longdouble)
    return Wanted(exact, dtype, Ulps(1.0 + np.abs(stddev) * room / ulp(exact, dtype), zeros=False))


# -- quantisation --------------------------------------------------------------------------------

_LAYOUTS: dict[str, tuple[Shape, int | None]] = {
    "tensor": ((24,), None),
    "rank0": ((), None),
    "first": ((3, 8), 0),
    "last": ((3, 8), 1),
    "empty": ((2, 0, 3), 2),
    "dynamic": ((3, 5), 1),
}


def _cases_of_quantize() -> Iterator[Case]:
    outputs = in_order(SPELLINGS["byteir.quantize"][0].dtypes["zero_point"])
    for dtype in defined("byteir.quantize"):
        for output in outputs:
            for name in _LAYOUTS:
                make = partial(_quantize, dtype, output, name)
                yield case("byteir.quantize", dtype, name, f"to={output}", trial=make)
    for dtype in defined("byteir.dequantize"):
        for scale, output in ((F32, F32), (F16, F16), (F32, F64), (F64, F32)):
            for name in _LAYOUTS:
                make = partial(_dequantize, dtype, scale, output, name)
                parts = (name, f"scale={scale}", f"to={output}")
                yield case("byteir.dequantize", dtype, *parts, trial=make)


def _parameters(
    name: str, scale: DType, zero: DType
) -> tuple[Shape, int | None, Array, Array, list[Dims] | None]:
    shape, axis = _LAYOUTS[name]
    extent = () if axis is None else (shape[axis],)
    scales = nearest(source(scale, extent, name).choice([0.25, 0.3, 1.0, 1.7], extent), scale)
    drawn = np.asarray(source(zero, extent, name).integers(0, 100, extent))
    dims: list[Dims] | None = [["?A", "?B"], ["?B"], ["?B"]] if name == "dynamic" else None
    return shape, axis, scales, from_whole(drawn.astype(object), zero), dims


def _quantize(dtype: DType, output: DType, name: str) -> Trial:
    shape, axis, scale, zero, dims = _parameters(name, dtype, output)
    x = sample(dtype, shape, name, scale=20.0)
    if name == "tensor":
        special = edges(dtype)
        x[: min(special.size, 24)] = special[:24]
    scales, zeros = (quantisation.along(p, x.ndim, axis) for p in (scale, zero))
    want = quantisation.quantised(quantisation.quotient(x, scales), zeros, output)
    build = apply("byteir.quantize", [x, scale, zero], dims=dims, axis=axis)
    return trial(build, [x, scale, zero], exactly(want.reshape(shape)))


def _dequantize(dtype: DType, scale_dtype: DType, output: DType, name: str) -> Trial:
    shape, axis, scale, zero, dims = _parameters(name, scale_dtype, dtype)
    q = sample(dtype, shape, name)
    work = quantisation.work_dtype(scale_dtype, output)
    scales, zeros = (quantisation.along(p, q.ndim, axis) for p in (scale, zero))
    exact = quantisation.restored(q, scales.astype(work), zeros).reshape(shape)
    build = apply("byteir.dequantize", [q, scale, zero], dims=dims, axis=axis, dtype=output)
    return trial(build, [q, scale, zero], Wanted(exact, output, CORRECTLY_ROUNDED))
