"""dot_general: every way to pair axes, every accumulator and output dtype."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from weft.foundation.dtypes import (
    BF16,
    CF64,
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
)
from weft.testing.conformance.case import Case, Trial, Wanted, exactly
from weft.testing.conformance.cases.common import (
    Array,
    Shape,
    and_wider,
    apply,
    case,
    defined,
    symbolic,
    trial,
)
from weft.testing.conformance.data import counts, sample, special
from weft.testing.conformance.oracles.casts import convert
from weft.testing.conformance.oracles.contraction import (
    Pairing,
    dot_accumulator,
    plain_error,
    products,
)
from weft.testing.conformance.oracles.rounding import nearest, rounded
from weft.testing.conformance.tolerance import PerTensor


@dataclass(frozen=True)
class Layout:
    """The shapes of both operands and how their axes pair."""

    lhs: Shape
    rhs: Shape
    pairing: Pairing
    names: tuple[tuple[int, str], ...] = ()
    """Sizes that are symbols."""
    negative: bool = False
    """Whether the axes are given counted from the end."""


def _layout_of(
    lhs: Shape, rhs: Shape, contract: tuple[Shape, Shape], batch: tuple[Shape, Shape] = ((), ())
) -> Layout:
    return Layout(lhs, rhs, Pairing(batch, contract))


MATRICES = _layout_of((3, 5), (5, 7), ((1,), (0,)))
LAYOUTS = {
    "matrices": MATRICES,
    "transposed": _layout_of((5, 3), (7, 5), ((0,), (1,))),
    "vectors": _layout_of((9,), (9,), ((0,), (0,))),
    "matrix-vector": _layout_of((4, 9), (9,), ((1,), (0,))),
    "outer": _layout_of((3,), (5,), ((), ())),
    "rank0": _layout_of((), (), ((), ())),
    "batched": _layout_of((2, 3, 5), (2, 5, 4), ((2,), (1,)), ((0,), (0,))),
    "batched-inside": _layout_of((3, 2, 5), (5, 4, 2), ((2,), (0,)), ((1,), (2,))),
    "two-batches": _layout_of((2, 3, 4, 5), (3, 2, 5, 6), ((3,), (2,)), ((0, 1), (1, 0))),
    "swapped-batches": _layout_of((2, 3, 4, 5), (3, 2, 5, 6), ((3,), (2,)), ((1, 0), (0, 1))),
    "two-contracted": _layout_of((3, 4, 5), (5, 4, 2), ((1, 2), (1, 0))),
    "elementwise": _layout_of((6,), (6,), ((), ()), ((0,), (0,))),
    "empty-sum": _layout_of((3, 0), (0, 4), ((1,), (0,))),
    "empty-result": _layout_of((0, 3), (3, 4), ((1,), (0,))),
    "large": _layout_of((33, 71), (71, 45), ((1,), (0,))),
    "negative": Layout((2, 3, 5), (2, 5, 4), Pairing(((0,), (0,)), ((2,), (1,))), negative=True),
    "dynamic": Layout((3, 5), (5, 7), Pairing(contract=((1,), (0,))), names=((3, "?M"), (5, "?K"))),
}


def cases() -> Iterator[Case]:
    """Every layout on every dtype; accumulators, outputs, special values."""
    for dtype in defined("dot_general"):
        for name, layout in LAYOUTS.items():
            yield _case(dtype, name, trial=partial(_dot_trial, dtype, layout, None, None))
        for accum, out in _choices(dtype):
            parts = (f"accum={accum}" if accum else None, f"out={out}" if out else None)
            make = partial(_exact, dtype, accum, out)
            yield _case(dtype, "matrices", *parts, trial=make)
        for accum in and_wider(dtype):
            make = partial(_dot_trial, dtype, LAYOUTS["batched"], accum, None)
            yield _case(dtype, "batched", f"accum={accum}", trial=make)
        if dtype.is_float:
            yield _case(dtype, "special", trial=partial(_special_trial, dtype))
        if dtype.is_float and dtype is not F64:
            yield _case(dtype, "fine", "accum=f64", trial=partial(_fine, dtype))


_case = partial(case, "dot_general")


def _choices(dtype: DType) -> list[tuple[DType | None, DType | None]]:
    outputs: list[DType | None] = [BF16, F16, F32, F64, SI8, UI4, UI8, SI32, SI64, I1, CF64]
    accumulators = and_wider(dtype)
    return [(None, out) for out in outputs] + [(accum, accum) for accum in accumulators]


def _dot_attributes(layout: Layout, accum: DType | None, out: DType | None) -> dict[str, object]:
    def given(axes: tuple[int, ...], rank: int) -> list[int]:
        return [axis - rank if layout.negative else axis for axis in axes]

    ranks = len(layout.lhs), len(layout.rhs)
    batch, contract = layout.pairing.batch, layout.pairing.contract
    return {
        "batch_lhs": given(tuple(batch[0]), ranks[0]),
        "batch_rhs": given(tuple(batch[1]), ranks[1]),
        "contract_lhs": given(tuple(contract[0]), ranks[0]),
        "contract_rhs": given(tuple(contract[1]), ranks[1]),
        "accum_dtype": accum,
        "out_dtype": out,
    }


def _trial(
    lhs: Array, rhs: Array, layout: Layout, accum: DType | None, out: DType | None, want: Wanted
) -> Trial:
    names = dict(layout.names)
    dims = [symbolic(x.shape, names) for x in (lhs, rhs)] if names else None
    build = apply("dot_general", [lhs, rhs], dims=dims, **_dot_attributes(layout, accum, out))
    return trial(build, [lhs, rhs], want)


def _dot_trial(dtype: DType, layout: Layout, accum: DType | None, out: DType | None) -> Trial:
    lhs = sample(dtype, layout.lhs, "dot", 0)
    rhs = sample(dtype, layout.rhs, "dot", 1)
    want = _products_wanted(dtype, lhs, rhs, layout, accum, out)
    return _trial(lhs, rhs, layout, accum, out, want)


def _products_wanted(
    dtype: DType, lhs: Array, rhs: Array, layout: Layout, accum: DType | None, out: DType | None
) -> Wanted:
    work, result = accum or dot_accumulator(dtype), out or dtype
    exact = products(lhs, rhs, layout.pairing, work)
    if work.is_integer:
        return exactly(convert(exact, work, result))
    return Wanted(exact, result, PerTensor(work, plain_error(lhs, rhs, layout.pairing, work)))


def _exact(dtype: DType, accum: DType | None, out: DType | None) -> Trial:
    """Sums that every accumulator holds exactly: the cast to the output is all that shows."""
    layout = _layout_of((4, 3), (3, 2), ((1,), (0,)))
    make = sample if dtype.is_integer else partial(counts, most=1)
    lhs, rhs = make(dtype, (4, 3), "exact", 0), make(dtype, (3, 2), "exact", 1)
    work, result = accum or dot_accumulator(dtype), out or dtype
    found = products(lhs, rhs, layout.pairing, work)
    held = found if work.is_integer else rounded(found, work)
    want = exactly(convert(held, work, result), zeros=False)
    return _trial(lhs, rhs, layout, accum, out, want)


def _special_trial(dtype: DType) -> Trial:
    """Each row holds one special value, so that it shows in its own row only."""
    values = special(dtype)
    # A huge element would widen the bound for all others.
    values = values[~(np.abs(values.astype(np.float64)) > 4) | np.isinf(values.astype(np.float64))]
    lhs = np.ones((values.size, 3), dtype.numpy)
    lhs[:, 1] = values
    rhs = nearest(np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 2.0]]), dtype)
    layout = _layout_of(lhs.shape, rhs.shape, ((1,), (0,)))
    want = _products_wanted(dtype, lhs, rhs, layout, None, None)
    return _trial(lhs, rhs, layout, None, None, want)


def _fine(dtype: DType) -> Trial:
    """A sum that f32 cannot hold and f64 can."""
    narrow = {"fp8_e4m3": (256.0, 2.0**-9), "fp8_e5m2": (2.0**14, 2.0**-10)}
    big, small = narrow.get(dtype.name, (2.0**13, 2.0**-12))
    lhs = nearest(np.array([big, small]), dtype)
    rhs = nearest(np.array([big, small]), dtype)
    layout = _layout_of((2,), (2,), ((0,), (0,)))
    want = exactly(np.array(big * big + small * small))
    return _trial(lhs, rhs, layout, F64, F64, want)
