"""Coarse ops on rows and elements: softmax, norms, activations, the positions of extremes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from weft.foundation.dtypes import SI32, SI64, DType
from weft.testing.conformance.bounds import function_rule
from weft.testing.conformance.case import Case, Trial, Wanted, exactly
from weft.testing.conformance.cases.common import (
    EMPTY,
    ODD,
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
from weft.testing.conformance.oracles import normalisation, rows
from weft.testing.conformance.oracles.functions import REAL_UNARY
from weft.testing.conformance.oracles.normalisation import rounding
from weft.testing.conformance.oracles.rounding import wide

LAYOUTS: dict[str, tuple[Shape, int]] = {
    "line": ((9,), 0),
    "last": ((3, 5, 7), 2),
    "first": ((6, 4), 0),
    "middle": ((2, 5, 3), 1),
    "no-rows": ((0, 4), 1),
    "dynamic": ((3, 5), 1),
}


def cases() -> Iterator[Case]:
    """Every layout and every attribute."""
    yield from _softmaxes()
    yield from _norms()
    yield from _activations()
    yield from _sums()
    yield from _extremes()
    yield from _top_k()


def _open_dims(name: str, *shapes: Dims) -> list[Dims] | None:
    """Symbols, in a dynamic case."""
    return list(shapes) if name.startswith("dynamic") else None


# -- softmax -------------------------------------------------------------------------------------

_SOFTMAXES: dict[str, Callable[..., Array]] = {
    "byteir.softmax": normalisation.softmax,
    "byteir.log_softmax": rows.log_softmax,
}


def _softmaxes() -> Iterator[Case]:
    for row in _SOFTMAXES:
        for dtype in defined(row):
            for name in LAYOUTS:
                yield case(row, dtype, name, trial=partial(_softmax, row, dtype, name))
            if dtype.bits > 8:
                yield case(row, dtype, "special", trial=partial(_softmax, row, dtype, "special"))


def _softmax(row: str, dtype: DType, name: str) -> Trial:
    shape, axis = LAYOUTS.get(name, ((4, 6), 1))
    x = sample(dtype, shape, row)
    if name == "special":
        x[0, 2:], x[1], x[2, 3] = -np.inf, -np.inf, np.nan
    work, oracle = work_dtype(dtype), _SOFTMAXES[row]
    want = near(
        oracle(wide(x), axis), oracle(x.astype(np.float64), axis, rounding(work)), dtype, work
    )
    build = apply(row, [x], dims=_open_dims(name, ["?A", "?B"]), axis=axis)
    return trial(build, [x], want)


# -- norms ---------------------------------------------------------------------------------------

_AXES: dict[str, tuple[Shape, tuple[int, ...]]] = {
    "line": ((8,), (0,)),
    "last": ((3, 16), (1,)),
    "first": ((6, 4), (0,)),
    "two": ((2, 3, 5), (1, 2)),
    "turned": ((2, 3, 5), (2, 0)),
    "no-rows": ((0, 4), (1,)),
    "no-features": ((3, 0), (1,)),
    "dynamic": ((3, 5), (1,)),
    "dynamic-two": ((3, 5), (1, 0)),
}


def _norms() -> Iterator[Case]:
    for row, make in (("byteir.layer_norm", _layer_norm), ("byteir.l2_norm", _l2_norm)):
        for dtype in defined(row):
            for name in _AXES:
                for outside in (None, True):
                    parts = [name] if outside is None else [name, "outside"]
                    yield case(row, dtype, *parts, trial=partial(make, dtype, name, outside))
            if row == "byteir.layer_norm":
                for kind in dict.fromkeys([dtype, work_dtype(dtype)]):
                    found = partial(_layer_norm, dtype, "two", None, kind)
                    yield case(row, dtype, "two", f"statistics={kind}", trial=found)


def _layer_norm(
    dtype: DType, name: str, outside: bool | None, statistics: DType | None = None
) -> Trial:
    shape, axes = _AXES[name]
    x = sample(dtype, shape, name, scale=1.0)
    extents = tuple(shape[axis] for axis in axes)
    weight, bias = (sample(dtype, extents, name, key, scale=1.0) for key in "wb")
    inputs, work = [x, weight, bias], work_dtype(dtype)
    oracle = partial(rows.layer_norm, axes=axes, epsilon=1e-3, outside=bool(outside))
    exact = oracle(*map(wide, inputs))
    plain = oracle(*(a.astype(np.float64) for a in inputs), step=rounding(work))
    kinds = [dtype, *([] if statistics is None else [statistics] * 2)]
    parts = zip(exact, plain, kinds, strict=False)
    symbols: Dims = [{0: "?A", 1: "?B"}[axis] for axis in axes if axis < 2]
    build = apply(
        "byteir.layer_norm", inputs, dims=_open_dims(name, ["?A", "?B"], symbols, symbols),
        epsilon=1e-3, axis=axes, eps_outside_sqrt=outside, results=len(kinds),
        statistics=None if statistics is dtype else statistics,
    )  # fmt: skip
    return trial(build, inputs, *(near(a, b, kind, work) for a, b, kind in parts))


def _l2_norm(dtype: DType, name: str, outside: bool | None) -> Trial:
    shape, axes = _AXES[name]
    x, work = sample(dtype, shape, "l2", scale=1.0), work_dtype(dtype)
    if x.ndim > 1 and x.size:
        x[0] = 0
    oracle = partial(rows.l2_norm, axes=axes, epsilon=1e-2, outside=bool(outside))
    want = near(oracle(wide(x)), oracle(x.astype(np.float64), step=rounding(work)), dtype, work)
    build = apply(
        "byteir.l2_norm", [x], dims=_open_dims(name, ["?A", "?B"]), epsilon=1e-2, axis=axes,
        eps_outside_sqrt=outside,
    )  # fmt: skip
    return trial(build, [x], want)


# -- elements ------------------------------------------------------------------------------------

_SHAPES: dict[str, Shape] = {"odd": ODD, "rank0": (), "empty": EMPTY, "dynamic": (3, 5)}


def _activations() -> Iterator[Case]:
    for dtype in defined("byteir.gelu"):
        for form in ("none", "erf", "tanh"):
            for name in _SHAPES:
                make = partial(_gelu, dtype, form, name)
                yield case("byteir.gelu", dtype, form, name, trial=make)
    for dtype in defined("byteir.erf"):
        for name in _SHAPES:
            yield case("byteir.erf", dtype, name, trial=partial(_erf, dtype, name))


def _gelu(dtype: DType, form: str, name: str) -> Trial:
    x, work = sample(dtype, _SHAPES[name], "gelu"), work_dtype(dtype)
    oracle = rows.gelu_tanh if form == "tanh" else normalisation.gelu
    want = near(oracle(wide(x)), oracle(x.astype(np.float64), rounding(work)), dtype, work)
    build = apply("byteir.gelu", [x], dims=_open_dims(name, ["?A", "?B"]), approximate=form)
    return trial(build, [x], want)


def _erf(dtype: DType, name: str) -> Trial:
    x = sample(dtype, _SHAPES[name], "erf")
    want = Wanted(REAL_UNARY["erf"](wide(x)), dtype, function_rule("erf", dtype))
    return trial(apply("byteir.erf", [x], dims=_open_dims(name, ["?A", "?B"])), [x], want)


def _sums() -> Iterator[Case]:
    for dtype in defined("byteir.addn"):
        for count in (1, 2, 5):
            make = partial(_addn, dtype, ODD, count, "")
            yield case("byteir.addn", dtype, f"count={count}", trial=make)
        yield case("byteir.addn", dtype, "rank0", trial=partial(_addn, dtype, (), 3, ""))
        yield case("byteir.addn", dtype, "empty", trial=partial(_addn, dtype, EMPTY, 2, ""))
        make = partial(_addn, dtype, (3, 5), 2, "dynamic")
        yield case("byteir.addn", dtype, "dynamic", trial=make)


def _addn(dtype: DType, shape: Shape, count: int, name: str) -> Trial:
    inputs = [counts(dtype, shape, "addn", key) for key in range(count)]
    # Small whole numbers: every sum is exact in every dtype.
    total = np.sum([x.astype(np.complex128) for x in inputs], axis=0).reshape(shape)
    plain = total if dtype.is_complex else total.real
    build = apply("byteir.addn", inputs, dims=_open_dims(name, *[["?A", "?B"]] * count))
    return trial(build, inputs, exactly(plain.astype(dtype.numpy), zeros=False))


# -- extremes ------------------------------------------------------------------------------------


def _extremes() -> Iterator[Case]:
    for row in ("byteir.arg_max", "byteir.arg_min"):
        for dtype in defined(row):
            for name in LAYOUTS:
                for last in (False, True):
                    parts = [name, "last-index"] if last else [name]
                    make = partial(_extreme_trial, row, dtype, name, last, SI64, False)
                    yield case(row, dtype, *parts, trial=make)
            for last in (False, True):
                make = partial(_extreme_trial, row, dtype, "last", last, SI32, True)
                yield case(row, dtype, "last", f"kept-{last}", trial=make)
                if dtype.is_float:
                    make = partial(_extreme_trial, row, dtype, "special", last, SI64, False)
                    yield case(row, dtype, "special", str(last), trial=make)


def _extreme_trial(
    row: str, dtype: DType, name: str, last: bool, indices: DType, keep: bool
) -> Trial:
    shape, axis = LAYOUTS.get(name, ((4, 6), 1))
    x = counts(dtype, shape, row, name)
    if name == "special":
        x[0, 2], x[1, [1, 4]], x[2] = np.nan, np.nan, np.nan
    keys = x.astype(np.float64) if dtype.is_float else x.astype(object)
    lines = np.moveaxis(keys, axis, -1)
    found = np.zeros(lines.shape[:-1], indices.numpy)
    for place in np.ndindex(found.shape):
        found[place] = _extreme_position(list(lines[place]), row == "byteir.arg_max", last)
    kept = np.expand_dims(found, axis)
    values = np.take_along_axis(x, kept.astype(np.int64), axis)
    attrs = {"axis": axis, "keep_dims": keep, "select_last_index": last, "indices": indices}
    build = apply(row, [x], dims=_open_dims(name, ["?A", "?B"]), results=1 + keep, **attrs)
    if keep:
        return trial(build, [x], exactly(values, zeros=False), exactly(kept))
    return trial(build, [x], exactly(found))


def _extreme_position(line: Sequence[Any], largest: bool, last: bool) -> int:
    """NaN comes before everything else."""
    places = [i for i, value in enumerate(line) if isinstance(value, float) and math.isnan(value)]
    if not places:
        best = max(line) if largest else min(line)
        places = [i for i, value in enumerate(line) if value == best]
    return places[-1] if last else places[0]


def _top_k() -> Iterator[Case]:
    row = "byteir.top_k"
    for dtype in defined(row):
        for name in LAYOUTS:
            for k, ordered in ((1, True), (3, False)):
                make = partial(_top_k_trial, dtype, name, k, ordered, SI64)
                yield case(row, dtype, name, f"k={k}", trial=make)
        yield case(
            row, dtype, "first", "si32", trial=partial(_top_k_trial, dtype, "first", 2, True, SI32)
        )


def _top_k_trial(dtype: DType, name: str, k: int, ordered: bool, indices: DType) -> Trial:
    shape, axis = LAYOUTS[name]
    x = counts(dtype, shape, "top_k", name)
    keys = -x.astype(np.float64 if dtype.is_float else object)
    order = np.argsort(keys, axis=axis, kind="stable")
    chosen = np.take(order, range(k), axis=axis)
    build = apply(
        "byteir.top_k", [x], dims=_open_dims(name, ["?A", "?B"]), k=k, axis=[axis], sorted=ordered,
        indices=indices,
    )  # fmt: skip
    values = np.take_along_axis(x, chosen, axis)
    return trial(build, [x], exactly(values), exactly(chosen.astype(indices.numpy)))
