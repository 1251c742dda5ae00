"""extract_patches and reduce_window."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from weft.foundation.dtypes import ALL, NUMBERS, ORDERED, DType
from weft.testing.conformance.case import Case, Trial, Wanted, exactly
from weft.testing.conformance.cases.common import Array, Dims, Shape, apply, case, defined, trial
from weft.testing.conformance.data import filling, sample, unusual
from weft.testing.conformance.oracles import reduction
from weft.testing.conformance.oracles.casts import convert
from weft.testing.conformance.oracles.movement import scalar_array
from weft.testing.conformance.oracles.window import Axis, covered, patches
from weft.testing.conformance.tolerance import PerTensor

PATCHES: dict[str, tuple[Shape, list[Axis], Sequence[Dims] | None]] = {
    "line": ((2, 7, 3), [Axis(3)], None),
    "plane": ((2, 6, 5, 2), [Axis(3, 2, 1, 1, 1), Axis(2, 1, 2, 0, 1)], None),
    "volume": ((1, 4, 3, 3, 2), [Axis(2), Axis(2, 2, 1, 1, 1), Axis(3, 1, 1, 1, 1)], None),
    "stride": ((2, 9, 2), [Axis(2, 3)], None),
    "dilated": ((1, 9, 1), [Axis(3, 2, 3, 1, 2)], None),
    "no-space": ((3, 4), [], None),
    "no-batch": ((0, 5, 2), [Axis(2)], None),
    "no-channels": ((2, 5, 0), [Axis(2)], None),
    "no-elements": ((2, 0, 3), [Axis(3)], None),
    "only-padding": ((1, 0, 2), [Axis(2, 1, 1, 2, 1)], None),
    "large": ((2, 24, 25, 3), [Axis(3, 1, 1, 1, 1), Axis(3, 1, 1, 1, 1)], None),
    "dynamic": ((2, 7, 3), [Axis(3, 2, 1, 1, 1)], [["?N", "?L", 3]]),
}
WINDOWS: dict[str, tuple[Shape, list[Axis], Sequence[Dims] | None]] = {
    "line": ((9,), [Axis(3)], None),
    "pool": ((2, 6, 5, 3), [Axis(), Axis(2, 2), Axis(3, 1, 1, 1, 1), Axis()], None),
    "dilated": ((4, 7), [Axis(2, 1, 2), Axis(3, 2, 2, 1, 2)], None),
    "base-dilated": ((4, 5), [Axis(2, 1, 1, 0, 1, 2), Axis(3, 2, 1, 1, 1, 3)], None),
    "rank0": ((), [], None),
    "empty": ((2, 0), [Axis(2, 1, 1, 1, 0), Axis(3)], None),
    "only-padding": ((0, 2), [Axis(2, 1, 1, 2, 1), Axis()], None),
    "all": ((3, 5), [Axis(3), Axis(5)], None),
    "large": ((31, 29), [Axis(3, 1, 1, 1, 1), Axis(5, 2, 1, 2, 2)], None),
    "dynamic": ((5, 4), [Axis(3, 2, 1, 1, 1), Axis()], [["?A", "?B"]]),
}
KINDS = {"sum": NUMBERS, "max": ORDERED, "min": ORDERED}


def cases() -> Iterator[Case]:
    """Both window ops on every layout and dtype."""
    for dtype in defined("extract_patches"):
        for name, (shape, axes, dims) in PATCHES.items():
            make = partial(_patches_trial, dtype, shape, axes, dims)
            yield case("extract_patches", dtype, name, trial=make)
        make = partial(_patches_trial, dtype, (2, 5, 2), [Axis(2, 1, 1, 1, 0)], None, draw=unusual)
        yield case("extract_patches", dtype, "special", trial=make)
    for dtype in defined("reduce_window"):
        for kind, dtypes in KINDS.items():
            if dtype in dtypes:
                yield from _window_cases(dtype, kind)


def _patches_trial(
    dtype: DType,
    shape: Shape,
    axes: list[Axis],
    dims: Sequence[Dims] | None,
    draw: Callable[..., Array] = sample,
) -> Trial:
    x, fill = draw(dtype, shape, "patches"), filling(dtype)
    build = apply(
        "extract_patches", [x], dims=dims, window=[a.window for a in axes],
        strides=[a.stride for a in axes], dilation=[a.dilation for a in axes],
        padding=[(a.low, a.high) for a in axes], pad_value=fill,
    )  # fmt: skip
    return trial(build, [x], exactly(patches(x, axes, scalar_array(fill, dtype))))


def _window_cases(dtype: DType, kind: str) -> Iterator[Case]:
    named = partial(case, "reduce_window", dtype, kind)
    for name, (shape, axes, dims) in WINDOWS.items():
        yield named(name, trial=partial(_window_trial, dtype, kind, shape, axes, dims))
    if dtype.is_float and kind != "sum":
        make = partial(_window_trial, dtype, kind, (40,), [Axis(2, 2)], None, draw=unusual)
        yield named("special", trial=make)
    if kind == "sum":
        for accum in (d for d in ALL if d.kind is dtype.kind and d.bits >= dtype.bits):
            if accum is dtype or accum.bits > dtype.bits:
                make = partial(_window_trial, dtype, kind, (6, 5), [Axis(2), Axis(3)], None, accum)
                yield named(f"accum={accum}", trial=make)


def _window_trial(
    dtype: DType,
    kind: str,
    shape: Shape,
    axes: list[Axis],
    dims: Sequence[Dims] | None,
    accum: DType | None = None,
    draw: Callable[..., Array] = sample,
) -> Trial:
    x = draw(dtype, shape, f"window {kind}")
    build = apply(
        "reduce_window", [x], dims=dims, window_dims=[a.window for a in axes],
        strides=[a.stride for a in axes], padding=[(a.low, a.high) for a in axes],
        base_dilation=[a.base for a in axes], window_dilation=[a.dilation for a in axes],
        reduce=kind, accum_dtype=accum,
    )  # fmt: skip
    return trial(build, [x], _windows_wanted(x, kind, axes, accum, dtype))


def _windows_wanted(
    x: Array, kind: str, axes: list[Axis], accum: DType | None, dtype: DType
) -> Wanted:
    """Each window as a line of elements; where there is none, the identity stands."""
    nothing: Any = 0 if kind == "sum" else reduction.identity(kind, dtype)
    fill = np.asarray(nothing).astype(dtype.numpy)
    columns = [np.where(valid, values, fill) for values, valid in covered(x, axes)]
    lines = np.stack(columns, axis=-1).astype(dtype.numpy)
    last = (lines.ndim - 1,)
    if kind != "sum":
        return exactly(reduction.extreme(kind, lines, last, dtype), zeros=False)
    work = accum or reduction.sum_accumulator(dtype)
    if work.is_integer:
        return exactly(convert(reduction.integer_total(lines, last, work), work, dtype))
    exact = reduction.total(lines, last, work)
    return Wanted(exact, dtype, PerTensor(work, reduction.plain_error(lines, last, work)))
