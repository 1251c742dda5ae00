"""Elementwise ops that compute nothing: comparisons, choices, and the parts of complex numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from weft.foundation.dtypes import I1, DType
from weft.testing.conformance.case import Case, Trial, Wanted, exactly
from weft.testing.conformance.cases.common import (
    DYNAMIC,
    ODD,
    SHAPES,
    Array,
    Shape,
    apply,
    case,
    defined,
    symbolic,
    trial,
)
from weft.testing.conformance.data import edges, pairs, sample, source, special
from weft.testing.conformance.oracles.functions import sign_bits
from weft.testing.conformance.oracles.rounding import PART, part_dtype, whole, wide

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "less": lambda x, y: x < y,
    "less_equal": lambda x, y: x <= y,
    "equal": lambda x, y: x == y,
    "greater_equal": lambda x, y: x >= y,
    "greater": lambda x, y: x > y,
    "not_equal": lambda x, y: x != y,
}
WHOLE = {small: large for large, small in PART.items()}


def cases() -> Iterator[Case]:
    """Comparisons, select, clamp, stop_gradient, real, imag, conj, complex."""
    yield from _compare_cases()
    makers: dict[str, Callable[..., Trial]] = {
        "select": _select,
        "clamp": _clamp,
        "stop_gradient": _copy_trial,
        "real": _part_trial,
        "imag": _part_trial,
        "conj": _part_trial,
        "complex": _complex,
    }
    for name, make in makers.items():
        for dtype in defined(name):
            for shape_class, shape in SHAPES.items():
                x = partial(_draw_three, name, dtype, shape)
                yield case(name, dtype, shape_class, trial=partial(make, name, dtype, x))
            odd = partial(_draw_three, name, dtype, ODD)
            yield case(name, dtype, "dynamic", trial=partial(make, name, dtype, odd, dynamic=True))
            values = partial(_draw_special, name, dtype)
            yield case(name, dtype, "special", trial=partial(make, name, dtype, values))


Draw = Callable[[], tuple[Array, Array, Array]]


def _draw_three(name: str, dtype: DType, shape: Shape) -> tuple[Array, Array, Array]:
    x, y, z = (sample(dtype, shape, name, i) for i in range(3))
    return x, y, z


def _draw_special(name: str, dtype: DType) -> tuple[Array, Array, Array]:
    values = special(dtype)
    x, y = pairs(values, values)
    return x, y, source(name, dtype).permutation(x)


def _dims_of(arrays: list[Array], dynamic: bool) -> Any:
    return [symbolic(x.shape, DYNAMIC) for x in arrays] if dynamic else None


# -- comparisons ---------------------------------------------------------------------------------


def _compare_cases() -> Iterator[Case]:
    for dtype in defined("compare"):
        names = ("equal", "not_equal") if dtype.is_complex else tuple(COMPARISONS)
        for op in names:
            make = partial(_compare, op, dtype)
            yield case("compare", dtype, op, "odd", trial=partial(make, ODD))
            yield case("compare", dtype, op, "special", trial=partial(_compare_edges, op, dtype))
        for shape_class in ("rank0", "empty", "large"):
            make = partial(_compare, "not_equal", dtype, SHAPES[shape_class])
            yield case("compare", dtype, "not_equal", shape_class, trial=make)
        make = partial(_compare, "equal", dtype, ODD, dynamic=True)
        yield case("compare", dtype, "equal", "dynamic", trial=make)


def _compare(op: str, dtype: DType, shape: Shape, dynamic: bool = False) -> Trial:
    x, y = sample(dtype, shape, op, 0), sample(dtype, shape, op, 1)
    y = np.asarray(np.where(sample(I1, shape, op), x, y), dtype.numpy)
    build = apply("compare", [x, y], dims=_dims_of([x, y], dynamic), op=op)
    return trial(build, [x, y], _comparison(op, x, y, dtype))


def _compare_edges(op: str, dtype: DType) -> Trial:
    x, y = pairs(edges(dtype), edges(dtype))
    return trial(apply("compare", [x, y], op=op), [x, y], _comparison(op, x, y, dtype))


def _comparison(op: str, x: Array, y: Array, dtype: DType) -> Wanted:
    numbers = wide if dtype.is_float or dtype.is_complex else whole
    return exactly(np.asarray(COMPARISONS[op](numbers(x), numbers(y)), np.bool_))


# -- choices -------------------------------------------------------------------------------------


def _select(name: str, dtype: DType, draw: Draw, dynamic: bool = False) -> Trial:
    x, y, _ = draw()
    pred = sample(I1, x.shape, name, dtype)
    want = np.array(y)
    want[pred] = x[pred]
    inputs = [pred, x, y]
    return trial(apply(name, inputs, dims=_dims_of(inputs, dynamic)), inputs, exactly(want))


def _clamp(name: str, dtype: DType, draw: Draw, dynamic: bool = False) -> Trial:
    inputs = list(draw())
    x, low, high = (wide(a) if dtype.is_float else whole(a) for a in inputs)
    raised = np.where(x < low, low, x)
    cut = np.where(raised > high, high, raised)
    if dtype.is_float:
        missing = np.isnan(x) | np.isnan(low) | np.isnan(high)
        cut = np.where(missing, np.nan, cut)
    want = exactly(np.asarray(cut).astype(dtype.numpy), zeros=False)
    return trial(apply(name, inputs, dims=_dims_of(inputs, dynamic)), inputs, want)


def _copy_trial(name: str, dtype: DType, draw: Draw, dynamic: bool = False) -> Trial:
    x = draw()[0]
    return trial(apply(name, [x], dims=_dims_of([x], dynamic)), [x], exactly(x.copy()))


# -- complex parts -------------------------------------------------------------------------------


def _part_trial(name: str, dtype: DType, draw: Draw, dynamic: bool = False) -> Trial:
    x = draw()[0]
    parts = x.reshape(-1).view(part_dtype(dtype).numpy).reshape(-1, 2).copy()
    if name == "conj":
        parts[:, 1] = np.where(sign_bits(parts[:, 1].copy()), 1, -1) * np.abs(parts[:, 1])
        want = parts.view(dtype.numpy)
    else:
        want = parts[:, 0 if name == "real" else 1].copy()
    dims = _dims_of([x], dynamic)
    return trial(apply(name, [x], dims=dims), [x], exactly(want.reshape(x.shape)))


def _complex(name: str, dtype: DType, draw: Draw, dynamic: bool = False) -> Trial:
    real, imag, _ = draw()
    both = np.stack([real, imag], axis=-1)
    want = both.view(WHOLE[dtype].numpy).reshape(real.shape)
    inputs = [real, imag]
    return trial(apply(name, inputs, dims=_dims_of(inputs, dynamic)), inputs, exactly(want))
