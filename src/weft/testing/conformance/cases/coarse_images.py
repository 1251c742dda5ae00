"""weft.conv and resize: layouts, strides, padding, groups; modes and coordinates."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from weft.foundation.dtypes import DType
from weft.testing.conformance.case import Case, Trial, exactly
from weft.testing.conformance.cases.common import (
    Array,
    Dims,
    Shape,
    apply,
    case,
    defined,
    near,
    trial,
    work_dtype,
)
from weft.testing.conformance.data import counts, sample
from weft.testing.conformance.oracles.images import convolution, nearest_of, resize_linear
from weft.testing.conformance.oracles.rounding import wide

_CONVS: dict[str, dict[str, Any]] = {
    "bias": {"bias": True},
    "plain": {},
    "stride": {"stride": [2, 1], "pad": [1, 0, 2, 1]},
    "dilation": {"dilation": [1, 2]},
    "groups": {"groups": 2, "channels": 4},
    "depthwise": {"groups": 4, "channels": 4, "outputs": 8, "bias": True},
    "line": {"spatial": 1},
    "volume": {"spatial": 3, "stride": [1, 2, 1]},
    "empty": {"batch": 0},
    "dynamic": {"dynamic": True, "pad": [1, 1, 1, 1]},
}


def cases() -> Iterator[Case]:
    """Both orders of axes for the convolution; every mode, coordinate and target for resize."""
    for dtype in defined("weft.conv"):
        for name in _CONVS:
            for first in (False, True):
                parts = [name, "channels-first"] if first else [name]
                yield case("weft.conv", dtype, *parts, trial=partial(_conv, dtype, name, first))
    yield from _resizes()


def _conv(dtype: DType, name: str, first: bool) -> Trial:
    chosen = _CONVS[name]
    spatial, groups = chosen.get("spatial", 2), chosen.get("groups", 1)
    channels, outputs = chosen.get("channels", 3), chosen.get("outputs", 6)
    shape = (chosen.get("batch", 2), *(5, 6, 4)[:spatial], channels)
    # Small whole numbers: every product and sum is exact in every dtype.
    x = counts(dtype, shape, "conv", most=1)
    kernel = (*(3, 2, 2)[:spatial], channels // groups, outputs)
    weight = counts(dtype, kernel, "weight", most=1)
    bias = counts(dtype, (outputs,), "bias", most=2)
    inputs = [x, weight, *([bias] if chosen.get("bias") else [])]
    attrs: dict[str, list[int]] = {
        key: chosen[key] for key in ("stride", "dilation", "pad") if key in chosen
    }
    want = _convolve_inputs(inputs, groups, spatial, attrs)
    if dtype.is_integer:
        want = np.clip(want, float(dtype.lowest), float(dtype.highest))
    want = want.astype(dtype.numpy)
    if first:
        x, weight = np.moveaxis(x, -1, 1), np.moveaxis(weight, [-1, -2], [0, 1])
        want = np.moveaxis(want, -1, 1)
    inputs[:2] = [np.ascontiguousarray(x), np.ascontiguousarray(weight)]
    names = ("NCW", "NCHW", "NCDHW") if first else ("NWC", "NHWC", "NDHWC")
    dims: list[Dims] | None = None
    if chosen.get("dynamic"):
        sizes: Dims = ["?B", channels, 5, "?W"] if first else ["?B", 5, "?W", channels]
        dims = [sizes, list(weight.shape)]
    layout = names[spatial - 1]
    build = apply("weft.conv", inputs, dims=dims, layout=layout, groups=groups, **attrs)
    return trial(build, inputs, exactly(want, zeros=False))


def _convolve_inputs(
    inputs: list[Array], groups: int, spatial: int, attrs: dict[str, list[int]]
) -> Array:
    ends = attrs.get("pad", [0] * (2 * spatial))
    complex_ = inputs[0].dtype.kind == "c"
    x, weight, *bias = (a.astype(np.complex128 if complex_ else np.float64) for a in inputs)
    found = convolution(
        x, weight, stride=attrs.get("stride", [1] * spatial), low=ends[:spatial],
        high=ends[spatial:], dilation=attrs.get("dilation", [1] * spatial), groups=groups,
    )  # fmt: skip
    return found + bias[0] if bias else found


# -- resize --------------------------------------------------------------------------------------

_SIZES: dict[str, tuple[Shape, Shape]] = {
    "up": ((2, 3, 4), (2, 7, 5)),
    "double": ((1, 3, 4), (1, 6, 8)),
    "down": ((5, 7), (2, 3)),
    "one": ((4, 3), (1, 1)),
    "from-one": ((1, 3), (4, 3)),
    "same": ((2, 3), (2, 3)),
    "empty": ((2, 0, 3), (2, 0, 5)),
    "dynamic": ((3, 5), (3, 8)),
}
_COORDINATES = ("asymmetric", "pytorch_half_pixel", "half_pixel", "align_corners")


def _resizes() -> Iterator[Case]:
    row = "byteir.resize"
    for dtype in defined(row):
        for mode in ("nearest", "linear") if dtype.is_float else ("nearest",):
            for coordinates in _COORDINATES:
                for name in _SIZES:
                    make = partial(_resize, dtype, mode, coordinates, name, "size")
                    yield case(row, dtype, mode, coordinates, name, trial=make)
            make = partial(_resize, dtype, mode, "half_pixel", "double", "scale")
            yield case(row, dtype, mode, "half_pixel", "scale", trial=make)


def _resize(dtype: DType, mode: str, coordinates: str, name: str, target: str) -> Trial:
    old, new = _SIZES[name]
    x, work = sample(dtype, old, "resize", name), work_dtype(dtype)
    given: Array = np.array(new, np.int64)
    if target == "scale":
        given = np.array([b / a for a, b in zip(old, new, strict=True)], np.float32)
    if mode == "nearest":
        want = exactly(nearest_of(x, new, coordinates))
    else:
        exact = resize_linear(wide(x), new, coordinates)
        room = 8 * 2.0**-(work.precision) * float(np.max(np.abs(wide(x)), initial=0.0))
        want = near(exact, exact + room, dtype, work)
    dims: list[Dims] | None = [["?A", 5], [2]] if name == "dynamic" else None
    shape: Dims = ["?A", 8] if name == "dynamic" else new
    build = apply(
        "byteir.resize", [x, given], dims=dims, target_mode=target, mode=mode,
        coordinate_transformation_mode=coordinates, shape=shape,
    )  # fmt: skip
    if math.prod(new) == 0:
        want = exactly(np.zeros(new, dtype.numpy))
    return trial(build, [x, given], want)
