"""Library forms: the subgraphs that producers write one way, as whole programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from weft.foundation.dtypes import BF16, F16, F32, F64, FLOATS, DType, in_order
from weft.ptir import library
from weft.ptir.builder import Builder, Value
from weft.testing.conformance.case import Case, Trial, exactly
from weft.testing.conformance.cases.common import (
    Array,
    Dims,
    Shape,
    near,
    program,
    trial,
    work_dtype,
)
from weft.testing.conformance.data import sample
from weft.testing.conformance.oracles import normalisation as oracle
from weft.testing.conformance.oracles.rounding import nearest, wide

FAMILY = "library"


def cases() -> Iterator[Case]:
    """softmax, gelu, silu, causal_mask, attention, and layer_norm in simpler ops."""
    for dtype in in_order(FLOATS):
        yield from _softmaxes(dtype)
        yield from _activations(dtype)
    for dtype in (BF16, F16, F32, F64):
        yield from _masks(dtype)
        yield from _attentions(dtype)
        yield from _layer_norms(dtype)


def _library_case(row: str, dtype: DType, *parts: object, trial: Callable[[], Trial]) -> Case:
    name = "/".join(str(part) for part in (row, dtype, *parts))
    return Case(name, FAMILY, row, dtype, trial)


# -- softmax -------------------------------------------------------------------------------------


def _softmaxes(dtype: DType) -> Iterator[Case]:
    layouts: dict[str, tuple[Shape, int]] = {
        "line": ((9,), 0),
        "last": ((3, 5, 7), -1),
        "first": ((6, 4), 0),
        "no-rows": ((0, 4), 1),
        "large": ((31, 131), 1),
    }
    for name, (shape, axis) in layouts.items():
        make = partial(_softmax, dtype, shape, axis, None)
        yield _library_case("softmax", dtype, name, trial=make)
    make = partial(_softmax, dtype, (3, 5), -1, [["?A", "?B"]])
    yield _library_case("softmax", dtype, "dynamic", trial=make)
    make = partial(_softmax, dtype, (3, 5), -1, None, shift=True)
    yield _library_case("softmax", dtype, "shifted", trial=make)
    if dtype.bits > 8:
        yield _library_case("softmax", dtype, "special", trial=partial(_masked_softmax, dtype))


def _softmax(
    dtype: DType, shape: Shape, axis: int, dims: list[Dims] | None, shift: bool = False
) -> Trial:
    x = sample(dtype, shape, "softmax")
    if shift:
        # Without the shift by the largest element every exponential would overflow.
        x = nearest(x.astype(np.float64) + 200.0, dtype)
    return _softmax_trial(x, dtype, axis, dims)


def _masked_softmax(dtype: DType) -> Trial:
    """-inf hides an element; a row with nothing but -inf, and one with NaN, are NaN."""
    x = sample(dtype, (4, 6), "softmax")
    x[0, 2:] = -np.inf
    x[1] = -np.inf
    x[2, 3] = np.nan
    return _softmax_trial(x, dtype, 1, None)


def _softmax_trial(x: Array, dtype: DType, axis: int, dims: list[Dims] | None) -> Trial:
    work = work_dtype(dtype)
    plain = oracle.softmax(x.astype(np.float64), axis, oracle.rounding(work))
    want = near(oracle.softmax(wide(x), axis), plain, dtype, work)
    build = program([x], lambda b, v: b.softmax(v, axis), dims=dims)
    return trial(build, [x], want)


# -- activations ---------------------------------------------------------------------------------


def _activations(dtype: DType) -> Iterator[Case]:
    for row, function in (("gelu", oracle.gelu), ("silu", oracle.silu)):
        for name, shape in {"rank0": (), "odd": (3, 5, 7), "empty": (0, 3)}.items():
            make = partial(_activation, row, function, dtype, shape, None)
            yield _library_case(row, dtype, name, trial=make)
        make = partial(_activation, row, function, dtype, (3, 5), [["?A", "?B"]])
        yield _library_case(row, dtype, "dynamic", trial=make)


def _activation(
    row: str, function: Callable[..., Array], dtype: DType, shape: Shape, dims: list[Dims] | None
) -> Trial:
    x = sample(dtype, shape, row)
    plain = function(x.astype(np.float64), oracle.rounding(dtype))
    want = near(function(wide(x)), plain, dtype, dtype)
    build = program([x], lambda b, v: getattr(b, row)(v), dims=dims)
    return trial(build, [x], want)


# -- attention -----------------------------------------------------------------------------------


def _masks(dtype: DType) -> Iterator[Case]:
    for rows, columns in ((4, 4), (2, 5), (1, 1), (0, 3)):
        make = partial(_mask, dtype, rows, columns)
        yield _library_case("causal_mask", dtype, f"{rows}x{columns}", trial=make)


def _mask(dtype: DType, rows: int, columns: int) -> Trial:
    want = nearest(oracle.causal(rows, columns), dtype)
    return trial(program([], lambda b: b.causal_mask(rows, columns, dtype)), [], exactly(want))


def _attentions(dtype: DType) -> Iterator[Case]:
    for name in ("plain", "causal", "mask", "scale", "longer-keys", "large"):
        yield _library_case("attention", dtype, name, trial=partial(_attention, dtype, name))


def _attention(dtype: DType, name: str) -> Trial:
    batch, heads, rows, depth = (1, 3, 17, 16) if name == "large" else (2, 2, 5, 4)
    columns = 7 if name == "longer-keys" else rows
    q = sample(dtype, (batch, heads, rows, depth), "q", scale=1.0)
    k, v = (sample(dtype, (batch, heads, columns, depth), key, scale=1.0) for key in "kv")
    causal = name in ("causal", "longer-keys", "large")
    scale = 0.25 if name == "scale" else 1.0 / math.sqrt(depth)
    mask = sample(dtype, (1, 1, rows, columns), "mask") if name == "mask" else None
    hidden = oracle.causal(rows, columns) if causal else None
    added = hidden if mask is None else wide(mask)

    def body(b: Builder, *operands: Value) -> Value:
        given = operands[3] if mask is not None else None
        chosen = scale if name == "scale" else None
        return b.attention(*operands[:3], mask=given, causal=causal, scale=chosen)

    work = work_dtype(dtype)
    exact = oracle.attention(wide(q), wide(k), wide(v), scale=scale, mask=added)
    narrow = [a.astype(np.float64) for a in (q, k, v)]
    plain = oracle.attention(
        *narrow, scale=scale, mask=added, step=oracle.rounding(work), weights=oracle.rounding(dtype)
    )
    inputs = [q, k, v] if mask is None else [q, k, v, mask]
    return trial(program(inputs, body), inputs, near(exact, plain, dtype, work))


# -- layer_norm ----------------------------------------------------------------------------------


def _layer_norms(dtype: DType) -> Iterator[Case]:
    layouts: dict[str, tuple[Shape, int]] = {"last": ((3, 8), -1), "first": ((6, 4), 0)}
    for name, (shape, axis) in layouts.items():
        make = partial(_layer_norm, dtype, shape, axis)
        yield _library_case("layer_norm-form", dtype, name, trial=make)


def _layer_norm(dtype: DType, shape: Shape, axis: int) -> Trial:
    place = axis % len(shape)
    x = sample(dtype, shape, "form", scale=1.0)
    gamma, beta = (sample(dtype, (shape[place],), "form", i, scale=1.0) for i in (1, 2))

    def body(b: Builder, value: Value, scale: Value, shift: Value) -> Value:
        return library.layer_norm(value, scale, shift, epsilon=1e-5, feature_axis=axis)

    work = work_dtype(dtype)
    exact = oracle.layer_norm(wide(x), wide(gamma), wide(beta), 1e-5, place)
    one, two, three = (a.astype(np.float64) for a in (x, gamma, beta))
    plain = oracle.layer_norm(one, two, three, 1e-5, place, oracle.rounding(work))
    inputs = [x, gamma, beta]
    return trial(program(inputs, body), inputs, near(exact, plain, dtype, work))
