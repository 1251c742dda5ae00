"""Reductions over axes, with every accumulator and output dtype, and positions of extremes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from weft.foundation.dtypes import (
    CF32,
    F16,
    F32,
    F64,
    I1,
    SI8,
    SI32,
    SI64,
    UI4,
    UI8,
    DType,
    as_dtype,
)
from weft.testing.conformance.case import Case, Trial, Wanted, exactly
from weft.testing.conformance.cases.common import (
    DYNAMIC,
    LARGE,
    ODD,
    Array,
    Dims,
    Shape,
    and_wider,
    apply,
    case,
    defined,
    symbolic,
    trial,
)
from weft.testing.conformance.data import counts, edges, near_one, pairs, sample, source, special
from weft.testing.conformance.oracles import reduction as oracle
from weft.testing.conformance.oracles.casts import convert
from weft.testing.conformance.oracles.rounding import from_whole, nearest, rounded
from weft.testing.conformance.tolerance import PerTensor, Ulps

KINDS = {
    "reduce_sum": "sum",
    "reduce_prod": "prod",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_any": "any",
    "reduce_all": "all",
}


@dataclass(frozen=True)
class Layout:
    """A shape and the axes that are reduced."""

    shape: Shape
    axes: tuple[int, ...]
    keepdims: bool = False
    dynamic: bool = False

    @property
    def dims(self) -> Sequence[Dims] | None:
        return [symbolic(self.shape, DYNAMIC)] if self.dynamic else None

    @property
    def normal(self) -> tuple[int, ...]:
        return tuple(axis % len(self.shape) for axis in self.axes)

    def kept(self, result: Array) -> Array:
        """A result without the reduced axes, in the shape the op gives it."""
        if not self.keepdims:
            return result
        gone = self.normal
        return result.reshape([1 if i in gone else n for i, n in enumerate(self.shape)])


LAYOUTS = {
    "rank0": Layout((), ()),
    "empty": Layout((2, 0, 3), (1,)),
    "empty-kept": Layout((2, 0, 3), (0, 1), keepdims=True),
    "no-lines": Layout((0, 3), (1,)),
    "last": Layout(ODD, (2,)),
    "first": Layout(ODD, (0,), keepdims=True),
    "two": Layout(ODD, (2, 0)),
    "all": Layout(ODD, (0, 1, 2)),
    "none": Layout(ODD, ()),
    "negative": Layout(ODD, (-2,), keepdims=True),
    "large": Layout(LARGE, (1,)),
    "dynamic": Layout(ODD, (1,), dynamic=True),
}


def cases() -> Iterator[Case]:
    """Every reduction on every layout and dtype; every accumulator; arg_max and argmin."""
    for row in KINDS:
        for dtype in defined(row):
            for name, layout in LAYOUTS.items():
                yield case(row, dtype, name, trial=partial(_make_reduction, row, dtype, layout))
            if not dtype.is_complex and dtype is not I1:
                yield case(row, dtype, "special", trial=partial(_special_trial, row, dtype))
            yield from _accumulators(row, dtype)
    for accum in (SI8, UI8, SI32, SI64):
        for out in (None, accum):
            make = partial(_make_exact_total, "reduce_sum", I1, accum, out)
            yield _make_count("reduce_sum", accum, out, make)
    yield from _position_cases()


def _make_count(row: str, accum: DType, out: DType | None, make: Any) -> Case:
    """A sum over i1 is defined for the accumulator's sake, so that is its column."""
    named = case(row, I1, f"accum={accum}", f"out={out}" if out else None, trial=make)
    return Case(named.id, named.family, named.row, accum, named.trial)


# -- trials --------------------------------------------------------------------------------------


def _reduce_attributes(
    row: str, layout: Layout, accum: DType | None, out: DType | None
) -> dict[str, Any]:
    attrs: dict[str, Any] = {"axes": layout.axes, "keepdims": layout.keepdims}
    if row not in ("reduce_any", "reduce_all"):
        attrs |= {"accum_dtype": accum, "out_dtype": out}
    return attrs


def _make_reduction(row: str, dtype: DType, layout: Layout) -> Trial:
    around_one = row == "reduce_prod" and not dtype.is_integer
    x = (near_one if around_one else sample)(dtype, layout.shape, row)
    build = apply(row, [x], dims=layout.dims, **_reduce_attributes(row, layout, None, None))
    return trial(build, [x], _compute_wanted(row, x, layout, None, None))


def _compute_wanted(
    row: str, x: Array, layout: Layout, accum: DType | None, out: DType | None
) -> Wanted:
    dtype, axes, kind = as_dtype(x.dtype), layout.normal, KINDS[row]
    result = out or dtype
    if kind in ("any", "all"):
        return exactly(layout.kept(oracle.truth(kind, x, axes)))
    if kind in ("max", "min"):
        found = oracle.extreme(kind, x, axes, dtype)
        return exactly(layout.kept(convert(found, dtype, result)), zeros=False)
    work, product = accum or oracle.sum_accumulator(dtype), kind == "prod"
    if work.is_integer:
        found = oracle.integer_total(x, axes, work, product=product)
        return exactly(layout.kept(convert(found, work, result)))
    exact = layout.kept(oracle.total(x, axes, work, product=product))
    error = oracle.plain_error(x, axes, work, product=product)
    return Wanted(exact, result, PerTensor(work, error))


def _special_trial(row: str, dtype: DType) -> Trial:
    """Pairs of special values: one addition each, so that the rounding of a single one counts."""
    x = np.stack(pairs(edges(dtype), special(dtype)), axis=1)
    layout = Layout(x.shape, (1,))
    wanted = _compute_wanted(row, x, layout, None, None)
    if isinstance(wanted.rule, PerTensor):
        wanted = Wanted(wanted.exact, dtype, Ulps(0.501, zeros=False))
    return trial(apply(row, [x], **_reduce_attributes(row, layout, None, None)), [x], wanted)


# -- accumulators and outputs --------------------------------------------------------------------

OUTPUTS = (F16, F32, F64, SI8, UI4, SI64, I1, CF32)


def _accumulators(row: str, dtype: DType) -> Iterator[Case]:
    if row in ("reduce_any", "reduce_all") or dtype is I1:
        return
    chosen: list[tuple[DType | None, DType | None]] = [(None, out) for out in OUTPUTS]
    if row in ("reduce_sum", "reduce_prod"):
        chosen += [(accum, None) for accum in and_wider(dtype)]
        chosen += [(accum, accum) for accum in and_wider(dtype)[1:]]
    else:
        chosen = [(None, F32), (None, SI64), (and_wider(dtype)[-1], None)]
    for accum, out in chosen:
        parts = [f"accum={accum}" if accum else None, f"out={out}" if out else None]
        make = partial(_make_exact_total, row, dtype, accum, out)
        yield case(row, dtype, *parts, trial=make)
    if row == "reduce_sum" and dtype.is_float and dtype is not F64:
        yield case(row, dtype, "accum=f64", "fine", trial=partial(_fine, dtype))


def _make_exact_total(row: str, dtype: DType, accum: DType | None, out: DType | None) -> Trial:
    """Totals that every accumulator holds exactly, so that the cast to the output is all that
    shows; integers wrap in the accumulator first."""
    layout = Layout((4, 3), (1,))
    x = counts(dtype, layout.shape, row, accum, out, most=1)
    if dtype.is_integer:
        x = sample(dtype, layout.shape, row, accum, out)
    wanted = _compute_wanted(row, x, layout, accum, out)
    if isinstance(wanted.rule, PerTensor):
        work = wanted.rule.accum
        held = rounded(wanted.exact, work)
        wanted = exactly(convert(held, work, out or dtype), zeros=False)
    return trial(apply(row, [x], **_reduce_attributes(row, layout, accum, out)), [x], wanted)


def _fine(dtype: DType) -> Trial:
    """A sum that f32 cannot hold and f64 can."""
    top = {"fp8_e4m3": [448.0] * 147 + [2.0**-9], "fp8_e5m2": [57344.0, 2.0**-16]}
    values = top.get(dtype.name, [2.0**12, 2.0**-13] if dtype is F16 else [2.0**25, 1.0])
    x = nearest(np.array([values, values[::-1]]), dtype)
    layout = Layout(x.shape, (1,))
    build = apply("reduce_sum", [x], **_reduce_attributes("reduce_sum", layout, F64, F64))
    return trial(build, [x], exactly(np.full(2, float(np.sum(values)))))


# -- positions -----------------------------------------------------------------------------------


def _position_cases() -> Iterator[Case]:
    layouts = {
        "line": Layout((9,), (0,)),
        "last": Layout(ODD, (2,)),
        "first": Layout(ODD, (0,), keepdims=True),
        "negative": Layout(ODD, (-2,)),
        "no-lines": Layout((0, 3), (1,)),
        "large": Layout(LARGE, (1,)),
        "dynamic": Layout(ODD, (1,), dynamic=True),
    }
    for row, kind in (("arg_max", "max"), ("argmin", "min")):
        for dtype in defined(row):
            for index in (SI32, SI64):
                for name, layout in layouts.items():
                    make = partial(_position_trial, row, kind, dtype, index, layout, ties=False)
                    yield case(row, dtype, index, name, trial=make)
                make = partial(
                    _position_trial, row, kind, dtype, index, layouts["large"], ties=True
                )
                yield case(row, dtype, index, "ties", trial=make)
                if dtype.is_float:
                    make = partial(_special_position, row, kind, dtype, index)
                    yield case(row, dtype, index, "special", trial=make)


def _position_trial(
    row: str, kind: str, dtype: DType, index: DType, layout: Layout, ties: bool
) -> Trial:
    x = counts(dtype, layout.shape, row) if ties else sample(dtype, layout.shape, row)
    return _position_of(row, kind, x, index, layout)


def _special_position(row: str, kind: str, dtype: DType, index: DType) -> Trial:
    """Lines of special values; every third has no NaN."""
    values = special(dtype)
    x = np.array(source(row, dtype).choice(values, (40, 6)), dtype.numpy)
    plain = values[~np.isnan(values.astype(np.float64))]
    x[::3] = source(row, dtype, "plain").choice(plain, x[::3].shape)
    return _position_of(row, kind, x, index, Layout(x.shape, (1,)))


def _position_of(row: str, kind: str, x: Array, index: DType, layout: Layout) -> Trial:
    (axis,) = layout.axes
    found = oracle.extreme_position(kind, x, layout.normal[0], as_dtype(x.dtype))
    build = apply(
        row, [x], dims=layout.dims, axis=axis, keepdims=layout.keepdims, output_dtype=index
    )
    return trial(build, [x], exactly(layout.kept(from_whole(found, index))))
