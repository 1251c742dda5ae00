"""quantize, dequantize, requantize: per tensor and per axis, every pair of dtypes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from weft.foundation.dtypes import (
    BF16,
    F16,
    F32,
    F64,
    FLOATS,
    SI8,
    UI8,
    UI16,
    DType,
    in_order,
)
from weft.ptir.op import SPELLINGS
from weft.ptir.ops.quantisation import LARGEST
from weft.testing.conformance.case import Case, Trial, Wanted, exactly
from weft.testing.conformance.cases.common import Array, Dims, Shape, apply, case, defined, trial
from weft.testing.conformance.data import counts, edges, sample, source
from weft.testing.conformance.oracles import quantisation as oracle
from weft.testing.conformance.oracles.rounding import from_whole, largest, magnitudes, nearest
from weft.testing.conformance.tolerance import CORRECTLY_ROUNDED

LAYOUTS: dict[str, tuple[Shape, int | None]] = {
    "tensor": ((24,), None),
    "rank0": ((), None),
    "first": ((3, 8), 0),
    "last": ((3, 8), -1),
    "middle": ((2, 4, 3), 1),
    "empty": ((2, 0, 3), 2),
    "large": ((31, 67), 0),
    "dynamic": ((3, 5), 1),
}


def cases() -> Iterator[Case]:
    """The three ops on every layout, with and without zero point, every output dtype."""
    yield from _quantizes()
    yield from _dequantizes()
    yield from _requantizes()


def _open_dims(name: str, parameters: int) -> list[Dims] | None:
    """Symbols for the tensor and its parameters, in the dynamic case."""
    if name != "dynamic":
        return None
    return [["?A", "?B"], *(["?B"] for _ in range(parameters))]


def _count_axis_from_start(shape: Shape, axis: int | None) -> int | None:
    return None if axis is None else axis % len(shape)


def _draw_scale(dtype: DType, shape: Shape, axis: int | None, key: str) -> Array:
    extent = () if axis is None else (shape[axis],)
    return nearest(source(dtype, extent, key).choice([0.25, 0.3, 1.0, 1.7], extent), dtype)


def _zero(dtype: DType, shape: Shape, axis: int | None, key: str, most: int = 1000) -> Array:
    extent = () if axis is None else (shape[axis],)
    if dtype.is_float:
        return nearest(source(dtype, extent, key).choice([0.0, 0.5, -3.0, 20.0], extent), dtype)
    low, high = max(int(dtype.lowest), -most), min(int(dtype.highest), most)
    drawn = np.asarray(source(dtype, extent, key).integers(low, high, extent, endpoint=True))
    return from_whole(drawn.astype(object), dtype)


def _outputs(row: str) -> list[DType]:
    return in_order(SPELLINGS[row][0].dtypes["output_dtype"])


# -- quantize ------------------------------------------------------------------------------------


def _quantizes() -> Iterator[Case]:
    named = partial(case, "quantize")
    for dtype in defined("quantize"):
        for output in _outputs("quantize"):
            make = partial(_quantize_values, dtype, output, None)
            yield named(dtype, f"to={output}", "special", trial=make)
            for name in ("tensor", "middle"):
                make = partial(_quantize, dtype, output, name, zero=True)
                yield named(dtype, f"to={output}", name, trial=make)
        for name in LAYOUTS:
            make = partial(_quantize, dtype, SI8, name, zero=False)
            yield named(dtype, "no-zero-point", name, trial=make)
            make = partial(_quantize, dtype, UI8, name, zero=True)
            yield named(dtype, "zero-point", name, trial=make)
        yield named(dtype, "ties", trial=partial(_quantize_ties, dtype))
        for output in in_order(LARGEST):
            make = partial(_quantize_halves, dtype, output)
            yield named(dtype, f"to={output}", "ties", trial=make)
            for name in LAYOUTS:
                make = partial(_quantize, dtype, output, name, zero=False)
                yield named(dtype, f"to={output}", "no-zero-point", name, trial=make)


def _quantize(dtype: DType, output: DType, name: str, zero: bool) -> Trial:
    shape, axis = LAYOUTS[name]
    place = _count_axis_from_start(shape, axis)
    x = sample(dtype, shape, "quantize", scale=20.0)
    scale = _draw_scale(dtype, shape, place, "quantize")
    zeros = _zero(output, shape, place, "quantize") if zero else None
    return _quantize_trial(x, scale, zeros, output, axis, name)


def _quantize_values(dtype: DType, output: DType, axis: int | None) -> Trial:
    x = edges(dtype)
    scale = nearest(np.array(0.3), dtype)
    return _quantize_trial(x, scale, _zero(output, x.shape, None, "edges"), output, axis, "")


def _quantize_ties(dtype: DType) -> Trial:
    """Halves go to the even step before the zero point is added."""
    x = nearest(np.arange(-15, 16) / 2, dtype)
    zero = np.array(3, np.int8)
    return _quantize_trial(x, np.ones((), dtype.numpy), zero, SI8, None, "")


def _quantize_halves(dtype: DType, output: DType) -> Trial:
    """The middle of every two neighbours, and what lies beyond the largest number."""
    values = magnitudes(output)
    top = largest(output)
    step = values[-1] - values[-2]
    beyond = [top + part * step for part in (0.25, 0.5, 0.75, 1.0, 2.0, 100.0)]
    x = np.concatenate([values, (values[:-1] + values[1:]) / 2, beyond])
    given = nearest(np.concatenate([x, -x]), dtype)
    return _quantize_trial(given, np.ones((), dtype.numpy), None, output, None, "")


def _quantize_trial(
    x: Array, scale: Array, zero: Array | None, output: DType, axis: int | None, name: str
) -> Trial:
    place = _count_axis_from_start(x.shape, axis)
    offset = None if zero is None else oracle.along(zero, x.ndim, place)
    ratio = oracle.quotient(x, oracle.along(scale, x.ndim, place))
    want = oracle.quantised(ratio, offset, output)
    inputs = [x, scale] if zero is None else [x, scale, zero]
    dims = _open_dims(name, len(inputs) - 1)
    build = apply("quantize", inputs, dims=dims, output_dtype=output, axis=axis)
    return trial(build, inputs, exactly(want))


# -- dequantize ----------------------------------------------------------------------------------


def _dequantizes() -> Iterator[Case]:
    named = partial(case, "dequantize")
    for dtype in defined("dequantize"):
        for scale in in_order(FLOATS):
            for output in (None, F16, F32, F64):
                make = partial(_dequantize, dtype, scale, output, "tensor", zero=True)
                parts = (f"scale={scale}", f"to={output}" if output else None)
                yield named(dtype, *parts, trial=make)
        for name in LAYOUTS:
            for output in (None, BF16):
                make = partial(_dequantize, dtype, F32, output, name, zero=True)
                to = f"to={output}" if output else None
                yield named(dtype, "zero-point", name, to, trial=make)
            make = partial(_dequantize, dtype, F32, None, name, zero=False)
            yield named(dtype, "no-zero-point", name, trial=make)
        make = partial(_dequantize, dtype, F32, F64, "tensor", zero=True, extreme=True)
        yield named(dtype, "extreme", trial=make)


def _dequantize(
    dtype: DType,
    scale_dtype: DType,
    output: DType | None,
    name: str,
    zero: bool,
    extreme: bool = False,
) -> Trial:
    shape, axis = LAYOUTS[name]
    place = _count_axis_from_start(shape, axis)
    result = output or scale_dtype
    # An fp8 result holds a few hundred at most.
    most = int(min(dtype.highest, 60 if result.bits == 8 else 1000))
    small = result.bits == 8 or (dtype.bits > 16 and result.bits == 16)
    drawn = counts(dtype, shape, most=most) if small else sample(dtype, shape, "dequantize")
    q = edges(dtype) if extreme else drawn
    scale = _draw_scale(scale_dtype, q.shape, place, "dequantize")
    zeros = _zero(dtype, q.shape, place, "dequantize", most) if zero else None
    if extreme:
        zeros = np.asarray(LARGEST.get(dtype, dtype.highest)).astype(dtype.numpy)
    work = oracle.work_dtype(scale_dtype, result)
    offset = None if zeros is None else oracle.along(zeros, q.ndim, place)
    real = oracle.restored(q, oracle.along(scale.astype(work), q.ndim, place), offset)
    inputs = [q, scale] if zeros is None else [q, scale, zeros]
    dims = _open_dims(name, len(inputs) - 1)
    build = apply("dequantize", inputs, dims=dims, axis=axis, output_dtype=output)
    want = Wanted(real.astype(np.float64), result, CORRECTLY_ROUNDED)
    return trial(build, inputs, want)


# -- requantize ----------------------------------------------------------------------------------


def _requantizes() -> Iterator[Case]:
    named = partial(case, "requantize")
    for dtype in defined("requantize"):
        for output in _outputs("requantize"):
            for scale in (F32, F64, F16):
                make = partial(_requantize, dtype, output, scale, "tensor")
                yield named(dtype, f"to={output}", f"scale={scale}", trial=make)
        for name in LAYOUTS:
            make = partial(_requantize, dtype, SI8, F32, name)
            yield named(dtype, name, trial=make)
        for mixed in ("in", "out"):
            make = partial(_requantize, dtype, UI16, F32, "middle", only=mixed)
            yield named(dtype, f"axis-of-{mixed}", trial=make)


def _requantize(
    dtype: DType, output: DType, scale_dtype: DType, name: str, only: str | None = None
) -> Trial:
    shape, axis = LAYOUTS[name]
    place = _count_axis_from_start(shape, axis)
    inner = None if only == "out" else place
    outer = None if only == "in" else place
    q = sample(dtype, shape, "requantize")
    in_scale, in_zero = (
        _draw_scale(scale_dtype, shape, inner, "in"),
        _zero(dtype, shape, inner, "in"),
    )
    out_scale = _draw_scale(scale_dtype, shape, outer, "out")
    out_zero = _zero(output, shape, outer, "out")
    work = oracle.work_dtype(scale_dtype)
    steps, zero, step, offset = (
        oracle.along(parameter, q.ndim, place)
        for parameter in (in_scale.astype(work), in_zero, out_scale.astype(work), out_zero)
    )
    with np.errstate(all="ignore"):
        ratio = oracle.restored(q, steps, zero) / step
    want = oracle.quantised(ratio, offset, output)
    inputs = [q, in_scale, in_zero, out_scale, out_zero]
    dims = _open_dims(name, 4)
    build = apply("requantize", inputs, dims=dims, output_dtype=output, axis=axis)
    return trial(build, inputs, exactly(want))
